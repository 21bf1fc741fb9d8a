"""Fashion-MNIST from files that are already on the disk."""

import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import FashionMNIST

HOW_TO_GET = (
    "Fashion-MNIST is not shipped with vispe and never downloaded by it. Get it with `apt-get install "
    "dataset-fashion-mnist` (then root is /usr/share/datasets/fashion-mnist), or with torchvision: "
    "FashionMNIST(root, download=True)."
)


def fashion_mnist(root: str | Path, *, train: bool = True, transform: Callable | None = None) -> FashionMNIST:
    """Fashion-MNIST (10 classes, 28 px, grey; 60000 train and 10000 test pictures) as torchvision's data set.

    Items are ``(PIL image, label)``, or ``(transform(image), label)``.

    Args:
        root: either torchvision's folder, which has ``FashionMNIST/raw/train-images-idx3-ubyte`` and so on,
            or any folder that holds the four idx files themselves, gzipped (``.gz``) or not.
        train: the training part, else the test part.
        transform: as in torchvision.

    Raises:
        FileNotFoundError: neither layout is found; says how to get the data.
        ValueError: a file is damaged or is not the idx file its name says.
    """
    root = Path(root)
    folder = next((f for f in (root, root / "FashionMNIST" / "raw") if _idx_path(f, train, "images")), None)
    if folder is None:
        name = _name(train, "images")
        raise FileNotFoundError(f"no {name} or {name}.gz in {root} or in {root}/FashionMNIST/raw. {HOW_TO_GET}")
    if not _idx_path(folder, train, "labels"):
        raise FileNotFoundError(f"no {_name(train, 'labels')} (or .gz) in {folder}, beside the images. {HOW_TO_GET}")
    return _LocalFashionMNIST(folder, train=train, transform=transform)


class _LocalFashionMNIST(FashionMNIST):
    """torchvision's class on a folder of idx files, gzipped or not."""

    @property
    def raw_folder(self) -> str:
        return str(self.root)

    def _check_exists(self) -> bool:
        return True  # fashion_mnist has looked, and has the better message

    def _load_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        folder = Path(self.raw_folder)
        images = read_idx(_idx_path(folder, self.train, "images"), 3)
        labels = read_idx(_idx_path(folder, self.train, "labels"), 1)
        if len(images) != len(labels):
            raise ValueError(f"{folder}: {len(images)} images but {len(labels)} labels; the files do not belong together")
        return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _name(train: bool, what: str) -> str:
    return f"{'train' if train else 't10k'}-{what}-{'idx3' if what == 'images' else 'idx1'}-ubyte"


def _idx_path(folder: Path, train: bool, what: str) -> Path | None:
    name = _name(train, what)
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """A uint8 array of ``ndim`` axes from an idx file (big-endian header: 0, 0, type 8, ndim, lengths)."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, gzip.zlib.error) as e:
        raise ValueError(f"{path}: cannot be unzipped ({e}); the file is damaged") from e
    head = 4 + 4 * ndim
    if len(data) < head or data[:4] != bytes((0, 0, 8, ndim)):
        raise ValueError(f"{path}: starts with {data[:4].hex()}, expected an idx file of bytes with {ndim} axes")
    shape = struct.unpack(f">{ndim}I", data[4:head])
    if len(data) - head != math.prod(shape):
        raise ValueError(f"{path}: {len(data) - head} bytes of data, expected {math.prod(shape)} for shape {shape}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape).copy()
