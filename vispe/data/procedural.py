"""What the drawn scene sets share: numbers from keys, drawing many at once, and the rules of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .two_shot import uniform

Split = Literal["train", "val", "test"]


class Procedural(Dataset):
    """Scenes that are functions of (seed, split, index) and the options alone, however many are drawn together.

    A subclass says how many `numbers` a scene takes and `draw`s a batch of them. Items are dictionaries of tensors; `batch`
    draws many at once, which is several times as fast, and a `DataLoader` does so by itself.
    """

    numbers: int

    def __init__(self, split: Split, *, size: int | tuple[int, int], length: int, seed: int) -> None:
        name = type(self).__name__
        if split not in get_args(Split):
            raise ValueError(f"{name}: split must be one of {get_args(Split)}, got {split!r}.")
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        if len(self.size) != 2 or min(self.size) < 4:
            raise ValueError(f"{name}: size must be one number or (H, W), each at least 4 px, got {size!r}.")
        if length < 1 or seed < 0:
            raise ValueError(f"{name}: length must be at least 1 and seed not negative, got {length} and {seed}.")
        self.split, self.length, self.seed = split, length, seed

    def draw(self, u: np.ndarray) -> dict[str, Tensor]:
        """Scenes of uniform numbers (S, numbers) in [0, 1)."""
        raise TypeError(f"{type(self).__name__} does not say how a scene is drawn")

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """The scenes of these indices, stacked along a new first axis."""
        for index in indices:
            if not 0 <= index < self.length:
                raise IndexError(f"index {index} is outside 0..{self.length - 1} of this {type(self).__name__}")
        key = (self.seed, get_args(Split).index(self.split))
        return self.draw(np.stack([uniform(self.numbers, *key, int(index)) for index in indices]))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[0] for name, tensor in self.batch([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        return apart(self.batch(indices))


def apart(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """A batch as a list of its items."""
    return [dict(zip(batch, item)) for item in zip(*(tensor.unbind(0) for tensor in batch.values()))]


def normal(u: np.ndarray) -> np.ndarray:
    """Normal numbers (..., n) of uniform ones (..., 2n)."""
    first, second = np.split(u, 2, axis=-1)
    return np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)


def between(u: np.ndarray, low: float, high: float) -> np.ndarray:
    return low + (high - low) * u


def rotations(u: np.ndarray) -> np.ndarray:
    """Rotations (..., 3, 3), uniform over all, of uniform numbers (..., 3) (Shoemake, Graphics Gems III, 1992)."""
    a, b = np.sqrt(1 - u[..., 0]), np.sqrt(u[..., 0])
    s, t = 2 * np.pi * u[..., 1], 2 * np.pi * u[..., 2]
    x, y, z, w = a * np.sin(s), a * np.cos(s), b * np.sin(t), b * np.cos(t)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def float32(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
