"""Where tokens are: the `Positions` dataclass and the builders for image grids.

Axis order is row before column (time before row in videos); the last axis runs fastest. Positions are float32 whatever
the model's dtype: bfloat16 tells only 256 integers apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Units = Literal["index", "unit", "centered", "centered_min", "centered_max", "custom"]
Resize = Literal["extend", "rescale"]

UNITS: tuple[str, ...] = ("index", "unit", "centered", "centered_min", "centered_max")
RESIZE: tuple[str, ...] = ("extend", "rescale")


def resize_option(name: str, value: str) -> Resize:
    """The value, when it is one of "extend" and "rescale"."""
    if value not in RESIZE:
        raise ValueError(f"{name}: resize must be 'extend' or 'rescale', got {value!r}.")
    return value


@dataclass(frozen=True)
class Positions:
    """The places of the tokens of one sequence, or of a batch of sequences.

    Attributes:
        coords: (B or 1, N, axes) float32. Cell indices when `units` is "index", else numbers to be used as they are.
        grid: (H, W) or (T, H, W) when the N tokens are a full row-major grid, else None.
        prefix: tokens ahead of the N that have no position (class token, registers).
        extent: size of the frame the indices count in. It equals `grid` for a whole image and stays when tokens are
            dropped or a sub-grid is cut out.
        train: extent the model was trained with; the reference of "extend" and "rescale".
        units: "index" for cell indices, "custom" for coordinates of the caller's own, which no encoding converts.
        indices: (B or 1, N) int64 row-major cell of each token in `extent`; None when the tokens are all cells in order.
    """

    coords: Tensor
    grid: tuple[int, ...] | None = None
    prefix: int = 0
    extent: tuple[int, ...] | None = None
    train: tuple[int, ...] | None = None
    units: Literal["index", "custom"] = "index"
    indices: Tensor | None = None

    @property
    def axes(self) -> int:
        return self.coords.shape[-1]

    def take(self, keep: Tensor) -> Positions:
        """The positions of the kept tokens. `keep` is (B, K) or (K,) int64 into the N tokens, prefix not counted."""
        keep = keep[None] if keep.ndim == 1 else keep
        batch = max(keep.shape[0], self.coords.shape[0])
        keep = keep.expand(batch, -1)
        coords = self.coords.expand(batch, -1, -1).gather(1, keep[..., None].expand(-1, -1, self.axes))
        indices = keep if self.indices is None else self.indices.expand(batch, -1).gather(1, keep)
        return replace(self, coords=coords, grid=None, indices=indices if self.extent is not None else None)

    def crop(self, start: tuple[int, ...], size: tuple[int, ...]) -> Positions:
        """A sub-grid that keeps its place in the whole: `start` and `size` in cells, one number an axis."""
        if self.grid is None:
            raise ValueError("Positions.crop: these tokens are no full grid (grid is None); crop before dropping tokens.")
        if len(start) != self.axes or len(size) != self.axes:
            raise ValueError(f"Positions.crop: needs {self.axes} numbers in start and size, got {start} and {size}.")
        if any(a < 0 or n < 1 or a + n > g for a, n, g in zip(start, size, self.grid)):
            raise ValueError(f"Positions.crop: {size} cells from {start} do not lie inside the grid {self.grid}.")
        keep = torch.arange(self.coords.shape[1], device=self.coords.device).reshape(self.grid)
        for axis, (a, n) in enumerate(zip(start, size)):
            keep = keep.narrow(axis, a, n)
        return replace(self.take(keep.flatten()), grid=tuple(size))

    def to(self, units: Units, resize: Resize) -> Tensor:
        """The coordinates in another convention, (B or 1, N, axes) float32.

        With p the cell index, n the frame's cells on the axis, t the cells in training and s = n ("rescale") or t ("extend"):
        index = (p + ½)·t/s − ½ (which is p for "extend"), unit = (p + ½)/s, centered = 2·(p + ½)/s − 1, and
        centered_min / centered_max divide every axis by the shortest / longest side. "custom" positions come back unchanged.
        """
        if self.units == "custom":
            return self.coords
        if units not in UNITS:
            raise ValueError(f"Positions.to: units must be one of {UNITS}, got {units!r}.")
        if resize not in RESIZE:
            raise ValueError(f"Positions.to: resize must be one of {RESIZE}, got {resize!r}.")
        if units == "index" and (resize == "extend" or self.train is None and self.extent is None):
            return self.coords
        size = self._frame("extent" if resize == "rescale" else "train", units, resize)
        if units == "centered_min":
            size = (min(size),) * len(size)
        if units == "centered_max":
            size = (max(size),) * len(size)
        if units == "index":
            scale = [t / s for t, s in zip(self._frame("train", units, resize), size)]
            return torch.stack([(c + 0.5) * f - 0.5 for c, f in zip(self.coords.unbind(-1), scale)], dim=-1)
        unit = torch.stack([(c + 0.5) / s for c, s in zip(self.coords.unbind(-1), size)], dim=-1)
        return unit if units == "unit" else 2 * unit - 1

    def _frame(self, field: str, units: str, resize: str) -> tuple[int, ...]:
        size = getattr(self, field)
        if size is None:
            raise ValueError(
                f"Positions.to({units!r}, {resize!r}) needs `{field}`, which these positions do not carry; build them with "
                f"patch_grid(..., train=(H, W)) or pass coordinates with units='custom'."
            )
        return size


def lattice(size: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """Cell indices of a full grid, (prod(size), axes) float32, last axis fastest."""
    axes = [torch.arange(n, device=device, dtype=torch.float32) for n in size]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def patch_grid(
    height: int,
    width: int,
    *,
    prefix: int = 0,
    train: tuple[int, int] | None = None,
    device: torch.device | None = None,
) -> Positions:
    """All patches of an image of `height` x `width` patches, row-major, behind `prefix` tokens without a position."""
    return full_grid((height, width), prefix=prefix, train=train, device=device)


def full_grid(
    size: tuple[int, ...],
    *,
    prefix: int = 0,
    train: tuple[int, ...] | None = None,
    device: torch.device | None = None,
) -> Positions:
    """All cells of a grid with any number of axes, row-major."""
    if any(isinstance(n, int) and n < 1 for n in size):
        raise ValueError(f"positions: every side of a grid must be at least 1 cell, got {tuple(size)}.")
    if prefix < 0:
        raise ValueError(f"positions: prefix counts the tokens without a position and must be >= 0, got {prefix}.")
    if train is not None and len(train) != len(size):
        raise ValueError(f"positions: the train grid {tuple(train)} has another number of axes than the grid {tuple(size)}.")
    size = tuple(size)
    return Positions(lattice(size, device)[None], grid=size, prefix=prefix, extent=size, train=train or size)


def custom_positions(coords: Tensor, *, prefix: int = 0) -> Positions:
    """Positions with coordinates of the caller's own, (N, axes) or (B, N, axes); no encoding converts them."""
    if coords.ndim not in (2, 3) or not coords.is_floating_point():
        raise ValueError(
            f"custom_positions: needs a float tensor (N, axes) or (B, N, axes), got {tuple(coords.shape)} {coords.dtype}."
        )
    if coords.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"custom_positions: {coords.dtype} cannot hold positions; pass float32 coordinates.")
    return Positions(coords if coords.ndim == 3 else coords[None], prefix=prefix, units="custom")


def masked_grid(mask: Tensor, *, normalize: bool = True, scale: float = 2 * torch.pi, eps: float = 1e-6) -> Positions:
    """DETR's coordinates of padded images: 1-based counts of unpadded cells along each axis.

    Args:
        mask: (B, H, W), true (non-zero) where the cell is padding.
        normalize: divide by the last count of the row or column (plus `eps`) and multiply by `scale`.

    Source: facebookresearch/detr, PositionEmbeddingSine.
    """
    if mask.ndim != 3:
        raise ValueError(f"masked_grid: needs a mask (B, H, W), got shape {tuple(mask.shape)}.")
    valid = (mask == 0).to(torch.float32)
    counts = torch.stack((valid.cumsum(1), valid.cumsum(2)), dim=-1)  # (B, H, W, 2)
    if normalize:
        last = torch.stack((counts[:, -1:, :, 0].expand(mask.shape), counts[:, :, -1:, 1].expand(mask.shape)), dim=-1)
        counts = counts / (last + eps) * scale
    return Positions(counts.flatten(1, 2), grid=tuple(mask.shape[1:]), extent=tuple(mask.shape[1:]), units="custom")
