"""Layouts of pre-extracted latents on disk, each as an indexable of (latent, label)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LAYOUTS = """one of
    *.safetensors                 shards with `latents` (N, C, H, W), `labels` (N,), maybe `latents_flip`: LightningDiT's layout
    NAME.npy + NAME.labels.npy    an array (N, C, H, W) and one (N,), any number of pairs
    *features/ + *labels/         one .npy a picture, (1, C, H, W) or (C, H, W), of the same name in both: fast-DiT's layout"""


class LatentFiles(ABC):
    """Latents of one split.

    Attributes:
        shape: (C, H, W) of a latent.
        flips: whether each picture's mirror image was encoded as well.
    """

    shape: tuple[int, int, int]
    flips = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int, *, flip: bool = False) -> tuple[Tensor, int]:
        """(latent float32 (C, H, W), label)."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Where it stands, for messages."""


def checked(shape: tuple[int, ...], where: Path) -> tuple[int, int, int]:
    """(C, H, W) of one latent."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"{where}: latents are (N, C, H, W), got {('N', *shape)}; export them as channels, rows, columns")
    return tuple(shape)


class Shards(LatentFiles):
    """Files that hold many latents each; nothing but the file list and the labels is read ahead."""

    def __init__(self, sources: list[tuple[Path, Any, Any, Any]]) -> None:
        self.sources = sources  # (path, latents, flipped latents or None, labels (N,))
        self.shape = checked(tuple(sources[0][1].shape[1:]), sources[0][0])
        self.flips = all(flipped is not None for _, _, flipped, _ in sources)
        self.ends = np.cumsum([len(labels) for *_, labels in sources])
        for path, latents, flipped, labels in sources:
            for what, found in (("latents", latents), ("latents_flip", flipped)):
                if found is not None and tuple(found.shape[1:]) != self.shape:
                    raise ValueError(f"{path}: {what} {tuple(found.shape)} beside {('N', *self.shape)}; one folder, one shape")
                if found is not None and found.shape[0] != len(labels):
                    raise ValueError(f"{path}: {found.shape[0]} {what}, but {len(labels)} labels; extract the folder again")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def _place(self, index: int) -> tuple[int, int]:
        shard = bisect_right(self.ends, index)
        return shard, index - (int(self.ends[shard - 1]) if shard else 0)

    def read(self, index: int, *, flip: bool = False) -> tuple[Tensor, int]:
        shard, row = self._place(index)
        _, latents, flipped, labels = self.sources[shard]
        found = (flipped if flip and self.flips else latents)[row : row + 1]
        found = torch.from_numpy(np.array(found)) if isinstance(found, np.ndarray) else found
        return found[0].float(), int(labels[row])

    def name(self, index: int) -> str:
        shard, row = self._place(index)
        return f"{self.sources[shard][0]} [{row}]"


class Slices:
    """A tensor of a .safetensors file that is read a few rows at a time, opened anew in each process."""

    def __init__(self, path: Path, key: str, shape: tuple[int, ...]) -> None:
        self.path, self.key, self.shape = path, key, shape

    def __getitem__(self, rows: slice) -> Tensor:
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            return file.get_slice(self.key)[rows.start : rows.stop]


def safetensors_shards(paths: list[Path]) -> Shards:
    """Shards in LightningDiT's layout."""
    from safetensors import safe_open

    sources = []
    for path in paths:
        with safe_open(path, framework="pt") as file:
            keys = set(file.keys())
            if not {"latents", "labels"} <= keys:
                raise ValueError(f"{path}: holds {sorted(keys)}, needs `latents` and `labels`")
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in ("latents", "latents_flip") if key in keys}
            labels = file.get_tensor("labels").flatten().numpy()
        flipped = Slices(path, "latents_flip", shapes["latents_flip"]) if "latents_flip" in shapes else None
        sources.append((path, Slices(path, "latents", shapes["latents"]), flipped, labels))
    return Shards(sources)


def npy_shards(paths: list[Path]) -> Shards:
    """Arrays with their labels beside them, mapped into memory."""
    sources = []
    for path in paths:
        beside = path.with_name(path.stem + ".labels.npy")
        if not beside.is_file():
            raise FileNotFoundError(f"{path}: its labels are missing, expected {beside.name} beside it")
        sources.append((path, np.load(path, mmap_mode="r"), None, np.load(beside).reshape(-1)))
    return Shards(sources)


class SingleFiles(LatentFiles):
    """One file a latent and one a label, in fast-DiT's layout."""

    def __init__(self, features: Path, labels: Path) -> None:
        self.files = sorted(features.glob("*.npy"), key=lambda p: (len(p.stem), p.stem))
        self.labels = labels
        if not self.files:
            raise FileNotFoundError(f"{features}: holds no .npy")
        missing = [path.name for path in self.files if not (labels / path.name).is_file()]
        if missing:
            raise FileNotFoundError(f"{labels}: {len(missing)} of {len(self.files)} labels are missing, e.g. {missing[0]}")
        self.shape = checked(self._latent(0).shape, self.files[0])

    def __len__(self) -> int:
        return len(self.files)

    def _latent(self, index: int) -> np.ndarray:
        found = np.load(self.files[index])
        return found[0] if found.ndim == 4 and len(found) == 1 else found

    def read(self, index: int, *, flip: bool = False) -> tuple[Tensor, int]:
        latent = self._latent(index)
        if latent.shape != self.shape:
            raise ValueError(f"{self.files[index]}: a latent of {latent.shape} among those of {self.shape}")
        return torch.from_numpy(latent).float(), int(np.load(self.labels / self.files[index].name).reshape(-1)[0])

    def name(self, index: int) -> str:
        return str(self.files[index])


def open_latents(folder: str | Path) -> LatentFiles:
    """The latents of a folder, whichever layout it has."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"latents: {folder} is no folder. It should hold {LAYOUTS}")
    if shards := sorted(folder.glob("*.safetensors")):
        return safetensors_shards(shards)
    if arrays := sorted(p for p in folder.glob("*.npy") if not p.name.endswith(".labels.npy")):
        return npy_shards(arrays)
    pairs = [sorted(p for p in folder.iterdir() if p.is_dir() and p.name.endswith(end)) for end in ("features", "labels")]
    if len(pairs[0]) == len(pairs[1]) == 1:
        return SingleFiles(pairs[0][0], pairs[1][0])
    raise FileNotFoundError(f"latents: {folder} holds none of the known layouts. It should hold {LAYOUTS}")
