"""Tables over the offsets of one grid, resampled to the offsets of another.

"geometric" (BEiT, timm): the source's rows stand for the offsets 0, ±1, ±(1 + q), ±(1 + q + q²), ... of the target,
where q in [1.01, 1.5] makes the last of them reach the target's edge; linear in between, constant outside. Near offsets
keep their values when a grid grows, and when it shrinks the far ones are cropped rather than squeezed.
"bicubic", "bilinear" (Swin, timm's `_simple`): the table as an image, without antialiasing.

Sources: microsoft/unilm BEiT (scipy's cubic interp2d, which no longer exists); timm 1.0.31 layers/pos_embed_rel.py
(linear).
Chosen here: the source grid is named, never guessed from a row count, so it may have any shape; rows beyond the offsets
are kept.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .functional import resample_table

Resample = Literal["bicubic", "bilinear", "geometric", "none"]


def resample_option(name: str, value: str) -> Resample:
    """The value, when it names a way to resample."""
    if value not in get_args(Resample):
        raise ValueError(f"{name}: resample must be one of {get_args(Resample)}, got {value!r}.")
    return value


def resize_rel_pos_bias_table(
    table: Tensor, source: tuple[int, int], target: tuple[int, int], *, method: Resample = "geometric", extra_rows: int = 0
) -> Tensor:
    """A table over the offsets of the grid `source`, for the grid `target`; equal grids give the table itself.

    Args:
        table: (Π(2n−1) + extra_rows, H), or (H, 2h−1, 2w−1) as in MaxViT.
        source, target: cells of the two grids, (h, w).
        method: "geometric" (any number of axes), "bicubic" or "bilinear".
        extra_rows: last rows that belong to no offset (BEiT's class token: 3), which are kept.

    Returns:
        The resampled table in the same layout and dtype.
    """
    if resample_option("resize_rel_pos_bias_table", method) == "none":
        raise ValueError("resize_rel_pos_bias_table: method 'none' resizes nothing; choose one of the others.")
    old, new = tuple(2 * n - 1 for n in source), tuple(2 * n - 1 for n in target)
    if table.ndim == 3:
        flat = resize_rel_pos_bias_table(table.flatten(1).T, source, target, method=method)
        return flat.T.unflatten(1, new)
    rows = math.prod(old)
    if table.ndim != 2 or table.shape[0] != rows + extra_rows:
        raise ValueError(
            f"resize_rel_pos_bias_table: offsets of the grid {tuple(source)} and {extra_rows} extra rows need "
            f"{rows + extra_rows} rows, the table has shape {tuple(table.shape)}; name the grid that it was made for."
        )
    if all(statically_known_true(a == b) for a, b in zip(source, target)):
        return table
    body, extra = table.split((rows, extra_rows))
    if method == "geometric":
        body = _geometric(body, old, new)
    else:
        body = resample_table(body[None], old, new, antialias=False, mode=method)[0]
    return torch.cat((body, extra)) if extra_rows else body


def _geometric(table: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    out = table.float().unflatten(0, old)
    reach = [torch.arange(n // 2 + 1, device=table.device)[-1].double() for n in new]
    same = torch.stack([r == n // 2 for r, n in zip(reach, old)]).all()  # traced with a symbolic size, which may be the same
    for axis, (n, m) in enumerate(zip(old, new)):
        points = geometric_points(n // 2, reach[axis])
        whole = torch.arange(n, device=table.device) - n // 2
        out = _linear(out, torch.where(same, whole, points).float(), m, axis)
    return out.flatten(0, len(new) - 1).to(table.dtype)


def geometric_points(half: int, reach: Tensor) -> Tensor:
    """Offsets 0, ±1, ±(1 + q), ... that 2·half + 1 rows stand for, so that the last ones come to ±reach (a float64 scalar)."""
    low, high = torch.full_like(reach, 1.01), torch.full_like(reach, 1.5)
    for _ in range(19):  # timm and BEiT bisect until the bounds are 1e-6 apart
        q = (low + high) / 2
        beyond = (1 - q**half) / (1 - q) > reach
        low, high = torch.where(beyond, low, q), torch.where(beyond, q, high)
    steps = (q ** torch.arange(half, device=reach.device)).cumsum(0)
    return torch.cat((-steps.flip(0), torch.zeros_like(reach)[None], steps))


def _linear(table: Tensor, points: Tensor, size: int, axis: int) -> Tensor:
    """Values at the offsets −(size // 2) ... size // 2 on one axis, linear between the points, constant outside."""
    at = torch.arange(size, device=table.device, dtype=points.dtype) - size // 2
    last = len(points) - 1
    right = torch.searchsorted(points, at).clamp(max=last)
    left = (right - 1).clamp(min=0)
    part = ((at - points[left]) / (points[right] - points[left]).clamp(min=1e-12)).clamp(0, 1)
    part = torch.where(right == left, 0.0, part).view(-1, *[1] * (table.ndim - 1 - axis))
    return torch.lerp(table.index_select(axis, left), table.index_select(axis, right), part)
