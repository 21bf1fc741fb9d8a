"""Positions of patches together with the image that they were cut from, for encodings that look at it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from .grid import Positions

_FIELDS = tuple(f.name for f in fields(Positions))  # here, because a compiler cannot read the fields of a class


@dataclass(frozen=True)
class ImagePositions(Positions):
    """Positions of patches and their image.

    Attributes:
        image: (B, channels, height, width), the pixels that the host sees.
    """

    image: Tensor | None = None


def with_image(pos: Positions, image: Tensor) -> ImagePositions:
    """Positions that carry the image.

    Args:
        pos: positions of a grid (patch_grid), all of it or part of it.
        image: (B, channels, height, width), sides a multiple of the cells on each axis.

    Raises:
        ValueError: no grid, another shape, or sides that the cells do not divide.
    """
    if pos.axes != 2 or pos.extent is None:
        raise ValueError("with_image: needs positions of an image's patches (patch_grid), which have rows and columns.")
    if image.ndim != 4 or not image.is_floating_point():
        raise ValueError(
            f"with_image: needs a float tensor (B, channels, height, width), got {tuple(image.shape)} {image.dtype}."
        )
    if any(n % cells for n, cells in zip(image.shape[-2:], pos.extent)):
        raise ValueError(
            f"with_image: an image of {tuple(image.shape[-2:])} pixels does not divide into {tuple(pos.extent)} patches; pass "
            f"the image that the patches were cut from."
        )
    return ImagePositions(**{name: getattr(pos, name) for name in _FIELDS}, image=image)
