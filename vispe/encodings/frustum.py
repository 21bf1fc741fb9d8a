"""Points along camera rays and their sine embeddings: the functions that PETR, StreamPETR and 3DPPE share.

    X(d) = o + d·ray,  ray = A[:3, :3] (u, v, 1),  o = A[:3, 3],  A = (image from world)⁻¹;   z = logit((X − min) / (max − min))

Sources: megvii-research/PETR@f7525f9, exiawsh/StreamPETR@95f6470, drilistbox/3DPPE@a49bdc4. They repeat a 4x4 matrix for
every point; a ray a cell gives the same points. Everything is at least float32: u·d reaches 1e5, which float16 cannot hold.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import at_least_float32

Cell = Literal["corner", "centre"]
RANGE = (-61.2, -61.2, -10.0, 61.2, 61.2, 10.0)
EPS = 1e-5


def check_range(name: str, position_range: tuple[float, ...]) -> tuple[float, ...]:
    """Six numbers, minima of x, y, z before their maxima."""
    values = tuple(float(v) for v in position_range)
    if len(values) != 6 or any(not a < b for a, b in zip(values[:3], values[3:])):
        raise ValueError(f"{name}: position_range must be (x, y, z minima, x, y, z maxima), got {tuple(position_range)}.")
    return values


def invert_projection(projection: Tensor) -> Tensor:
    """A⁻¹ (..., 4, 4) float32 of matrices that map a world point to (u·d, v·d, d, 1), inverted in float64."""
    return torch.linalg.inv(projection.double()).float()


def image_to_world(world_to_camera: Tensor, intrinsics: Tensor) -> Tensor:
    """(..., 4, 4) float32 from (u·d, v·d, d, 1) to the world, in closed form for rigid poses and triangular intrinsics."""
    batch = torch.broadcast_shapes(world_to_camera.shape[:-2], intrinsics.shape[:-2])
    pose, k = world_to_camera.double().expand(*batch, 4, 4), intrinsics.double().expand(*batch, 3, 3)
    fx, fy, skew, cx, cy = k[..., 0, 0], k[..., 1, 1], k[..., 0, 1], k[..., 0, 2], k[..., 1, 2]
    zero, one = torch.zeros_like(fx), torch.ones_like(fx)
    rows = (
        torch.stack((1 / fx, -skew / (fx * fy), (skew * cy / fy - cx) / fx), dim=-1),
        torch.stack((zero, 1 / fy, -cy / fy), dim=-1),
        torch.stack((zero, zero, one), dim=-1),
    )
    back = pose[..., :3, :3].mT
    linear = (back[..., :, :, None] * torch.stack(rows, dim=-2)[..., None, :, :]).sum(-2)  # Rᵀ K⁻¹
    centre = -(back * pose[..., None, :3, 3]).sum(-1, keepdim=True)
    last = torch.stack((zero, zero, zero, one), dim=-1)[..., None, :]
    return torch.cat((torch.cat((linear, centre), dim=-1), last), dim=-2).float()


def cell_pixels(coords: Tensor, extent: tuple[int, int], image_size: tuple[int, int], cell: Cell) -> Tensor:
    """Pixels (..., 2), u before v, of cells (..., 2), row before column: their top-left corners or their centres."""
    offset = 0.5 if cell == "centre" else 0.0
    row, col = coords.unbind(-1)
    return torch.stack(
        ((col + offset) * (image_size[1] / extent[1]), (row + offset) * (image_size[0] / extent[0])), dim=-1
    )


def stride_pixels(height: int, width: int, stride: int, device: torch.device | None = None) -> Tensor:
    """StreamPETR's cell centres in pixels, i·stride + stride // 2, (height · width, 2), u before v."""
    v, u = (torch.arange(n, device=device, dtype=torch.float32) * stride + stride // 2 for n in (height, width))
    return torch.stack((u.expand(height, -1), v[:, None].expand(-1, width)), dim=-1).flatten(0, 1)


def ray_points(back: Tensor, pixels: Tensor, depths: Tensor, position_range: tuple[float, ...]) -> Tensor:
    """Points along rays, as fractions of the position range, not clamped.

    Args:
        back: A (..., N, 4, 4), one a cell (broadcastable).
        pixels: (..., N, 2), u before v.
        depths: (D,) or (..., N, D); where a depth is under 1e-5, u and v are multiplied by 1e-5 instead, as 3DPPE does.

    Returns:
        (..., N, D, 3) float32.
    """
    low, size = _range_of(position_range, back)
    a, uv, d = back[..., :3, :].float(), pixels.float(), depths.float()
    if d.ndim == 1:  # bins ahead of the camera: a ray in fractions of the range carries everything
        ray = (a[..., 0] * uv[..., 0, None] + a[..., 1] * uv[..., 1, None] + a[..., 2]) / size  # (..., N, 3)
        return ((a[..., 3] - low) / size)[..., None, :] + ray[..., None, :] * d.clamp(min=EPS)[:, None]
    a, d = a[..., None, :, :], d[..., None]  # metres first: logits near the border show the last digits of another order
    flat = uv[..., None, :] * d.clamp(min=EPS)  # (..., N, D, 2)
    points = a[..., 0] * flat[..., :1] + a[..., 1] * flat[..., 1:] + a[..., 2] * d + a[..., 3]
    return (points - low) / size


def _range_of(position_range: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    low, high = (torch.tensor(position_range[i : i + 3], device=like.device, dtype=torch.float32) for i in (0, 3))
    return low, high - low


def normalise_points(points: Tensor, position_range: tuple[float, ...]) -> Tensor:
    """Metric points (..., 3) as fractions of the range; outside it below 0 or above 1."""
    low, size = _range_of(position_range, points)
    return (points.to(at_least_float32(points.dtype)) - low) / size


def out_of_range(points: Tensor) -> Tensor:
    """Cells (...) of whose normalised points (..., D, 3) more coordinates leave [0, 1] than half the number of points.

    Official heads compute this mask and never use it (PETR issue 146).
    """
    return ((points > 1) | (points < 0)).flatten(-2).sum(-1) > 0.5 * points.shape[-2]


def inverse_sigmoid(x: Tensor, eps: float = EPS) -> Tensor:
    """log(x / (1 − x)) with x clamped to [0, 1] and both sides to at least `eps`: within ±11.52."""
    x = x.clamp(0, 1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


def sine_features(
    x: Tensor, count: int, *, stacking: Literal["interleaved", "function"], temperature: float = 10000.0
) -> Tensor:
    """Sines and cosines of x / T^(2⌊i/2⌋/count): (..., count) of x (...).

    Args:
        stacking: "interleaved" [sin, cos, sin, cos, ...], or "function" [all sines, all cosines].
    """
    steps = torch.arange(count // 2, device=x.device, dtype=x.dtype)
    angle = x[..., None] / temperature ** (2 * steps / count)
    pair = torch.stack((angle.sin(), angle.cos()), dim=-1)
    return pair.flatten(-2) if stacking == "interleaved" else pair.mT.flatten(-2)


def point_sine(points: Tensor, count: int, *, temperature: float = 10000.0, scale: float = 2 * math.pi) -> Tensor:
    """PETR's embedding of points (..., 3), order y, x, z, `count` interleaved channels each: (..., 3 · count)."""
    x, y, z = (points.to(at_least_float32(points.dtype)) * scale).unbind(-1)
    parts = [sine_features(t, count, stacking="interleaved", temperature=temperature) for t in (y, x, z)]
    return torch.cat(parts, dim=-1)


def time_sine(x: Tensor, count: int, *, temperature: float = 10000.0, scale: float = 2 * math.pi) -> Tensor:
    """StreamPETR's embedding of times (..., 1) or (...), interleaved: (..., count)."""
    x = x.squeeze(-1) if x.ndim and x.shape[-1] == 1 else x
    return sine_features(x.to(at_least_float32(x.dtype)) * scale, count, stacking="interleaved", temperature=temperature)


def view_counts(padding: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of valid cells along cameras, rows and columns, and the last count of each line, both (B, V, H, W, 3).

    Args:
        padding: (B, V, H, W), non-zero where a cell is padding.
    """
    valid = (padding == 0).float()
    counts = [valid.cumsum(axis) for axis in (1, 2, 3)]
    lasts = [c.narrow(axis, c.shape[axis] - 1, 1).expand_as(c) for axis, c in zip((1, 2, 3), counts)]
    return torch.stack(counts, dim=-1), torch.stack(lasts, dim=-1)


def view_sine(
    counts: Tensor, lasts: Tensor, count: int, *, normalise: bool = True, temperature: float = 10000.0,
    scale: float = 2 * math.pi, eps: float = 1e-6, offset: float = 0.0,
) -> Tensor:  # fmt: skip
    """PETR's multi-view sine (sine3D): order camera, row, column, all sines ahead of all cosines: (..., 3 · count)."""
    x = (counts + offset) / (lasts + eps) * scale if normalise else counts
    return torch.cat(
        [sine_features(t, count, stacking="function", temperature=temperature) for t in x.unbind(-1)], dim=-1
    )


def pad_mask(image_sizes: Tensor, pad_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Padding of feature cells (B, V, h, w) bool, from image sizes (B, V, 2) inside frames of `pad_size`, nearest cell."""
    rows, cols = (torch.arange(n, device=image_sizes.device) for n in pad_size)
    inside = (rows[:, None] < image_sizes[..., 0, None, None]) & (cols < image_sizes[..., 1, None, None])
    return F.interpolate((~inside).float(), size=tuple(grid)).bool()


def two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear, ReLU, Linear: official 1x1 convolutions, whose weights load as (out, in)."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def run_float32(net: nn.Sequential, x: Tensor) -> Tensor:
    """A two-layer network on positions, in float32 whatever the module's dtype."""
    first, last = net[0], net[-1]
    dtype = at_least_float32(first.weight.dtype)
    hidden = F.relu(F.linear(x.to(dtype), first.weight.to(dtype), first.bias.to(dtype)))
    return F.linear(hidden, last.weight.to(dtype), last.bias.to(dtype))


def augmentation_matrix(
    resize: float, crop: tuple[float, float, float, float], *, flip: bool = False, rotate: float = 0.0
) -> Tensor:
    """PETR's image augmentation as a (3, 3) matrix that goes in front of intrinsics: resize, crop, flip, turn.

    Args:
        crop: left, top, right, bottom in pixels of the resized image.
        rotate: degrees about the centre of the crop.

    Released code resizes to whole pixels and keeps this unrounded factor; corners are integers, so no half pixel moves.
    """
    width, height = crop[2] - crop[0], crop[3] - crop[1]
    angle = math.radians(rotate)
    placed = torch.tensor([[resize, 0, -crop[0]], [0, resize, -crop[1]], [0, 0, 1]], dtype=torch.float64)
    mirror = torch.tensor([[-1.0, 0, width], [0, 1, 0], [0, 0, 1]] if flip else [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]).double()
    cos, sin, cx, cy = math.cos(angle), math.sin(angle), width / 2, height / 2
    turn = torch.tensor(
        [[cos, sin, cx - cos * cx - sin * cy], [-sin, cos, cy + sin * cx - cos * cy], [0, 0, 1]], dtype=torch.float64
    )
    return (turn @ mirror @ placed).float()
