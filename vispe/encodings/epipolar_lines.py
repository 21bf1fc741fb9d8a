"""SPAD's epipolar masks as its code draws them: whole-pixel lines between borders of the target image, 3 x 3 thick.

Source: yashkant/spad@7a375c0, spad/geometry.py (MIT). Released weights were trained with these masks; `epipolar` has the same
idea without their quantisation. Square images only, as there. Quirks kept: a line through the corner (0, 0) loses that end; a
line that misses the image leaves its row empty; in the target that shows the source's centre, the line starts there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions.camera_formats import invert_pose, rotate
from ..positions.rays import pixel_centres, unproject

NEIGHBOURS = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]


def spad_mask(
    source: Tensor, target: Tensor, intrinsics: Tensor, size: int, *, target_intrinsics: Tensor | None = None,
    dilated: bool = True, depth: float = 3.5,
) -> Tensor:  # fmt: skip
    """Which target pixels each source pixel may attend to, (size², size²) bool, rows and columns row-major.

    Args:
        source, target: world_to_camera (4, 4). intrinsics: (3, 3), of both unless target_intrinsics are given.
        dilated: nine lines between the neighbours of both ends instead of one.
        depth: z at which source pixels become points; it only decides on which side of the source's centre a line runs.
    """
    rays = unproject(pixel_centres(size, size, source.device).flatten(0, 1), intrinsics)
    move = target @ invert_pose(source)
    lens = intrinsics if target_intrinsics is None else target_intrinsics
    points = _screen(rotate(move[:3, :3], depth * rays) + move[:3, 3], lens)  # (S, 2), x before y
    centre = _screen(move[:3, 3], lens)
    first, last = _ends(points, centre, float(size))
    first, last = ((p - 0.5).nan_to_num(0.0).long() for p in (first, last))  # towards zero, as there
    drawn = ~((first.sum(-1) == 0) & (last.sum(-1) == 0))
    mask = torch.zeros(size**2, size**2, dtype=torch.bool, device=source.device)
    for step in NEIGHBOURS if dilated else [(0, 0)]:
        shift = first.new_tensor(step)
        mask |= _line((first + shift).clamp(0, size - 1), (last + shift).clamp(0, size - 1), size)
    return mask & drawn[:, None]


def _screen(points: Tensor, k: Tensor) -> Tensor:
    x, y = points[..., 0] / points[..., 2], points[..., 1] / points[..., 2]
    return torch.stack((k[0, 0] * x + k[0, 1] * y + k[0, 2], k[1, 1] * y + k[1, 2]), dim=-1)


def _ends(points: Tensor, centre: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Where the lines from `centre` through `points` (S, 2) leave the image; (0, 0) for one that is not found."""
    flow = points - centre
    flow = flow / flow.norm(dim=-1, keepdim=True)
    slope = flow[:, 0] / flow[:, 1]
    start = points[:, 0] - slope * points[:, 1]  # x at y = 0
    zero, full = torch.zeros_like(start), torch.full_like(start, size)
    across = [(start, zero), (slope * size + start, full), (full, (size - start) / slope), (zero, (0 - start) / slope)]
    free = [0, 0, 1, 1]  # which of x and y must lie inside
    found = [(torch.stack(p, dim=-1), (p[i] <= size) & (p[i] >= 0)) for p, i in zip(across, free)]
    first, last = _choose(found), _choose(found[::-1])
    if bool(((centre >= 0) & (centre <= size)).all()):
        same = ((first - centre > 0) == (flow > 0)).all(dim=-1, keepdim=True)
        return torch.where(same, first, last), centre.expand_as(last)
    return first, last


def _choose(found: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The first crossing that lies on the border and does not add up to 0."""
    chosen = torch.zeros_like(found[0][0])
    for point, there in found:
        open_ = chosen.sum(-1) == 0
        chosen = torch.where((there & open_)[:, None], point, chosen)
    return chosen


def _line(first: Tensor, last: Tensor, size: int) -> Tensor:
    """Bresenham's lines (S, size²) between whole pixels (S, 2), x before y; the minor axis rounds half away from the start."""
    cells = torch.arange(size, device=first.device)
    x, y = cells[None, None, :], cells[None, :, None]  # (1, row, column)
    x0, y0 = (first[:, i, None, None] for i in (0, 1))
    dx, dy = (last[:, i, None, None] - first[:, i, None, None] for i in (0, 1))
    steep = dy.abs() > dx.abs()

    def hit(major: Tensor, minor: Tensor, d_major: Tensor, d_minor: Tensor) -> Tensor:
        long, short = d_major.abs(), d_minor.abs()
        i = major * torch.where(d_major < 0, -1, 1)
        offset = torch.div(2 * short * i + long, (2 * long).clamp(min=1), rounding_mode="floor")
        return (i >= 0) & (i <= long) & (minor == torch.where(d_minor < 0, -1, 1) * offset)

    return torch.where(steep, hit(y - y0, x - x0, dy, dx), hit(x - x0, y - y0, dx, dy)).flatten(1)
