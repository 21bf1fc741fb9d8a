import gzip
import struct

import numpy as np
import pytest

from vispe.data import fashion_mnist

RNG = np.random.RandomState(0)
IMAGES = {"train": RNG.randint(0, 256, (6, 28, 28), np.uint8), "t10k": RNG.randint(0, 256, (3, 28, 28), np.uint8)}
LABELS = {k: (np.arange(len(v)) % 10).astype(np.uint8) for k, v in IMAGES.items()}


def write(folder, *, zipped):
    folder.mkdir(parents=True)
    for part in IMAGES:
        for what, a in ((f"{part}-images-idx3-ubyte", IMAGES[part]), (f"{part}-labels-idx1-ubyte", LABELS[part])):
            data = bytes((0, 0, 8, a.ndim)) + struct.pack(f">{a.ndim}I", *a.shape) + a.tobytes()
            path = folder / (what + ".gz" * zipped)
            path.write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize("layout", ["torchvision", "gz", "plain"])
def test_layouts(tmp_path, layout):
    folder = tmp_path / "data"
    write(folder / "FashionMNIST" / "raw" if layout == "torchvision" else folder, zipped=layout == "gz")
    train, test = fashion_mnist(folder), fashion_mnist(folder, train=False, transform=np.asarray)
    assert len(train) == 6 and len(test) == 3 and train.classes[1] == "Trouser"
    assert (np.asarray(train[4][0]) == IMAGES["train"][4]).all() and train[4][1] == 4
    assert (test[2][0] == IMAGES["t10k"][2]).all() and test[2][1] == 2


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte.*dataset-fashion-mnist.*download=True"):
        fashion_mnist(tmp_path)
    write(tmp_path / "a", zipped=True)
    (tmp_path / "a" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="train-labels-idx1-ubyte"):
        fashion_mnist(tmp_path / "a")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda raw: raw[: len(raw) // 2], "cannot be unzipped"),
        (lambda raw: raw[:-12] + b"\0" * 12, "cannot be unzipped"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-5]), "4699 bytes of data, expected 4704"),
        (lambda raw: gzip.compress(b"GIF89a" * 9), "starts with 47494638, expected an idx file"),
        (lambda raw: gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", 1, 28, 28) + bytes(784)), "1 images but 6"),
    ],
)
def test_damaged(tmp_path, damage, message):
    write(tmp_path / "a", zipped=True)
    path = tmp_path / "a" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        fashion_mnist(tmp_path / "a")
