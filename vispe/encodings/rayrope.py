"""RayRoPE's arithmetic: rotary angles from where each patch's rays lie in the camera that asks.

Each token has a depth interval [exp(l − s), exp(l + s)]; points of its rays at both ends and its camera's centre are moved into
the camera of the query, whose keys and values are therefore turned anew for each query camera. Between both depths the turn is
the mean one: (sin b − sin a) / (b − a) and (cos a − cos b) / (b − a).

Source: Lucas-707/RayRoPE at 52e3631, pos_enc/rayrope.py, type "d_pj+0_3d", depth encoding "d". Coordinates: camera centre
(largest period 4), unit direction x, y of each ray (8), |depth| up to 10 (80); frequencies apart by the factor `base`. Split
halves over the whole head; queries, keys and values turn back, the output forward.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .functional import rotate
from .prope import lifted
from .se3 import invert_rigid

OFFSETS = {1: ((0.5, 0.5),), 2: ((0.0, 0.0), (1.0, 1.0)), 3: ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))}


def ray_angles(
    pose: Tensor, intrinsics: Tensor, image_size: tuple[int, int], cells: Tensor, depth: Tensor, *, rays: int, pairs: int,
    base: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """cos and sin (B, query cameras, N, pairs) of every token as each camera sees it.

    Args:
        pose: (B, V, 4, 4) world to camera. intrinsics: (B, V, 3, 3) pixels of image_size (height, width).
        cells: (T, 2) column and row of the patches of a view in [0, 1), at their first corner; then (2,) the size of a patch.
        depth: (B, N, 2) log-depth and spread. rays: 1, 2 or 3 a patch. pairs: half of head_dim. base: ratio of frequencies.
    """
    lift, drop = lifted(intrinsics, image_size)
    size = cells[-1]
    at = cells[:-1, None] + size * cells.new_tensor(OFFSETS[rays]) - 0.5  # (T, rays, 2)
    batch, views = pose.shape[:2]
    log, spread = depth.unflatten(1, (views, -1)).unbind(-1)
    ends = torch.stack((log - spread, log + spread)).clamp(max=3.0).exp().clamp(0.01, 100.0)  # (2, B, V, T)
    inverse = (1 / ends)[..., None, None].expand(*ends.shape, rays, 1)
    at = at.expand(*ends.shape, rays, 2)
    points = torch.cat((at, torch.ones_like(inverse), inverse), dim=-1)
    world = torch.einsum("bvij,ebvtrj->ebvtri", invert_rigid(pose) @ drop, points)
    seen = torch.einsum("bqij,ebvtrj->ebqvtri", lift @ pose, world).flatten(3, 4)  # (2, B, Q, N, rays, 4)
    centre = torch.einsum("bqij,bvj->bqvi", pose, invert_rigid(pose)[..., 3])[..., :3]
    centre = centre.repeat_interleave(ends.shape[-1], dim=2).expand(2, -1, -1, -1, -1)
    direction = (seen[..., :3] / (seen[..., :3].norm(dim=-1, keepdim=True) + 1e-6))[..., :2].flatten(-2)
    far = (seen[..., 2].square() + 1e-9).sqrt().clamp(min=1e-4) / seen[..., 3].clamp(min=1e-4)
    parts = ((centre, 4.0), (direction, 8.0), (far.clamp(max=10.0), 80.0))
    count = pairs // sum(p.shape[-1] for p, _ in parts)
    powers = base ** torch.arange(count, device=pose.device, dtype=torch.float32)[:, None]
    angle = torch.cat([(2 * math.pi / period * powers) * p[..., None, :] for p, period in parts], dim=-1)
    a, b = angle.flatten(-2).unbind(0)
    return _mean_turn(a, b)


def _mean_turn(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cos and sin over the angles from a to b; those of a where they differ by 0.01 at most."""
    near = (b - a).abs() <= 1e-2
    step = torch.where(near, 1.0, b - a)
    return torch.where(near, a.cos(), (b.sin() - a.sin()) / step), torch.where(near, a.sin(), (a.cos() - b.cos()) / step)


def ray_attention(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, *, scale: float) -> Tensor:
    """Attention of full views with tables of `ray_angles`, one product a query camera; q, k, v (B, H, N, D)."""
    views, outs = cos.shape[1], []
    count = q.shape[2] // views
    for i, part in enumerate(q.chunk(views, dim=2)):
        c, s = cos[:, i, None], sin[:, i, None]
        own = slice(i * count, (i + 1) * count)
        turned = [rotate(t, c, -s, "half") for t in (k, v)]
        o = F.scaled_dot_product_attention(rotate(part, c[:, :, own], -s[:, :, own], "half"), *turned, scale=scale)
        outs.append(rotate(o, c[:, :, own], s[:, :, own], "half"))
    return torch.cat(outs, dim=2)
