"""Positions of points in a scene and of 3-D boxes, with the corners that box encodings look at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .grid import Positions, custom_positions


@dataclass(frozen=True)
class BoxPositions(Positions):
    """Positions of boxes: `coords` are their centres.

    Attributes:
        vertices: (B or 1, N, 2^axes, axes) float32 corners in the world; encodings tell them apart by this order.
        angle: (B or 1, N) float32 yaw in radians, clockwise as seen from the end of the third axis (V-DETR's), or None.
    """

    vertices: Tensor | None = None
    angle: Tensor | None = None

    def take(self, keep: Tensor) -> BoxPositions:
        base = super().take(keep)
        keep = (keep[None] if keep.ndim == 1 else keep).expand(base.coords.shape[0], -1)
        rows = torch.arange(keep.shape[0], device=keep.device)[:, None]
        batch = keep.shape[0]
        vertices = self.vertices.expand(batch, -1, -1, -1)[rows, keep]
        angle = None if self.angle is None else self.angle.expand(batch, -1)[rows, keep]
        return replace(base, vertices=vertices, angle=angle)


def box_positions(vertices: Tensor, angle: Tensor | None = None, *, prefix: int = 0) -> BoxPositions:
    """Positions of boxes with corners (B or 1, N, 2^axes, axes) and, where they are turned, yaw (B or 1, N) in radians.

    Raises:
        ValueError: half precision, NaN, or another number of corners than 2^axes.
    """
    if not isinstance(vertices, Tensor) or vertices.ndim != 4 or vertices.shape[2] != 2 ** vertices.shape[3]:
        got = tuple(vertices.shape) if isinstance(vertices, Tensor) else vertices
        raise ValueError(f"box_positions: vertices must be (B or 1, N, 2^axes, axes), e.g. (2, 100, 8, 3), got {got}.")
    for name, tensor in (("vertices", vertices), ("angle", angle)):
        if tensor is not None and tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"box_positions: {name} in {tensor.dtype} cannot hold a position; pass float32.")
        if tensor is not None and not torch.compiler.is_compiling() and not tensor.isfinite().all():
            raise ValueError(f"box_positions: {name} has NaN or infinite entries; drop those boxes.")
    if angle is not None and angle.shape != vertices.shape[:2]:
        raise ValueError(f"box_positions: angle must be {tuple(vertices.shape[:2])}, got {tuple(angle.shape)}.")
    base = custom_positions(vertices.mean(dim=2), prefix=prefix)
    return BoxPositions(base.coords, prefix=prefix, units="custom", vertices=vertices, angle=angle)


def box_corners(centres: Tensor, sizes: Tensor, angle: Tensor | None = None) -> Tensor:
    """Corners (..., N, 2^axes, axes) of boxes (..., N, axes), turned by −yaw (..., N) in the plane of the first two axes.

    V-DETR counts yaw clockwise as seen from the end of the third axis.

    The last axis' sign changes fastest: (−, −, −), (−, −, +), ...
    """
    axes = centres.shape[-1]
    signs = torch.cartesian_prod(*[centres.new_tensor([-0.5, 0.5])] * axes).reshape(-1, axes)
    offset = signs * sizes[..., None, :]  # (..., N, 2^axes, axes)
    if angle is not None:
        cos, sin = angle.cos()[..., None], angle.sin()[..., None]
        x, y = offset[..., 0], offset[..., 1]
        offset = torch.cat((torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1), offset[..., 2:]), dim=-1)
    return centres[..., None, :] + offset


def scene_centre(points: Tensor) -> Tensor:
    """Middle (..., 1, axes) of the range of points (..., N, axes); subtract one and the same from all points of a scene."""
    return (points.amin(dim=-2, keepdim=True) + points.amax(dim=-2, keepdim=True)) / 2
