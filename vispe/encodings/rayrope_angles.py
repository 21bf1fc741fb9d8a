"""RayRoPE's arithmetic: rotary angles from where each patch's rays lie in the camera that asks.

Source: Lucas-707/RayRoPE at 52e3631, pos_enc/rayrope.py, type "d_pj+0_3d", depth encoding "d". Coordinates: the token's camera
centre (largest period 4), unit direction x, y of each ray (8), |depth| up to 10 (80); frequencies apart by the factor `base`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OFFSETS = {1: ((0.5, 0.5),), 2: ((0.0, 0.0), (1.0, 1.0)), 3: ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))}


def coordinates(rays: int) -> int:
    """Coordinates of a token: its camera's centre, and x, y and depth of each ray."""
    return 3 + 3 * rays


def patch_points(cells: Tensor, grid: tuple[int, int], rays: int) -> Tensor:
    """(..., rays, 2) of patches (..., 2), column before row: places of an image of [−½, ½]²."""
    size = torch.stack([cells.new_ones(()) / n for n in (grid[1], grid[0])])  # sides may be symbolic
    return (cells[..., None, :] + cells.new_tensor(OFFSETS[rays])) * size - 0.5


def ray_ends(at: Tensor, depth: Tensor) -> Tensor:
    """Points (2, B, N, rays, 4), as x, y, 1, 1/z: places (B or 1, N, rays, 2) at exp(log-depth ∓ spread), depth (B, N, 2)."""
    log, spread = depth.unbind(-1)
    ends = torch.stack((log - spread, log + spread)).clamp(max=3.0).exp().clamp(0.01, 100.0)  # (2, B, N)
    shape = (2, max(ends.shape[1], at.shape[0]), *at.shape[1:3])
    inverse = (1 / ends)[..., None, None].expand(*shape, 1)
    return torch.cat((at.expand(*shape, 2), torch.ones_like(inverse), inverse), dim=-1)


def turns(points: Tensor, move: Tensor, own: Tensor, *, pairs: int, base: float) -> tuple[Tensor, Tensor]:
    """Mean cos and sin (B, Q, N, pairs) of every token as each camera sees it.

    Args:
        points: (2, B, N, rays, 4) in the tokens' own images.
        move: (B, Q, N, 4, 4) from there to the image of each camera. own: (B, Q, N, 3), the tokens' cameras in its axes.
    """
    seen = (move[:, :, :, None] * points[:, :, None, :, :, None, :]).sum(-1)  # (2, B, Q, N, rays, 4)
    own = own.expand(2, *own.shape)
    direction = (seen[..., :3] / (seen[..., :3].norm(dim=-1, keepdim=True) + 1e-6))[..., :2].flatten(-2)
    far = (seen[..., 2].square() + 1e-9).sqrt().clamp(min=1e-4) / seen[..., 3].clamp(min=1e-4)
    batch = max(own.shape[1], direction.shape[1])
    parts = ((own, 4.0), (direction, 8.0), (far.clamp(max=10.0), 80.0))
    count = pairs // sum(p.shape[-1] for p, _ in parts)
    powers = base ** torch.arange(count, device=move.device, dtype=torch.float32)[:, None]
    angle = torch.cat(
        [((2 * math.pi / period * powers) * p[..., None, :]).expand(2, batch, -1, -1, -1, -1) for p, period in parts], dim=-1
    )
    return mean_turn(*angle.flatten(-2).unbind(0))


def mean_turn(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cos and sin over the angles from a to b; those of a where they differ by 0.01 at most.

    (sin b − sin a) / (b − a) = cos(m) sin(h) / h with the middle m and half the difference h: no difference of near numbers.
    """
    near = (b - a).abs() <= 1e-2
    half, middle = torch.where(near, 1.0, (b - a) / 2), torch.where(near, a, (a + b) / 2)
    size = torch.where(near, 1.0, half.sin() / half)
    return middle.cos() * size, middle.sin() * size
