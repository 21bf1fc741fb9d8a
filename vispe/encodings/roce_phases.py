"""RoCE's arithmetic: camera tokens shift the phases of a video model's rotary encoding.

Source: byeongjun-park/ReDirector at 2ceace5 (Wan's transformer).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .functional import rotate


def wan_axis_dims(head_dim: int) -> tuple[int, int, int]:
    """Channels of frame, row and column: sixths of the head, twice for rows and columns, the rest for frames."""
    sixth = 2 * (head_dim // 6)
    return head_dim - 2 * sixth, sixth, sixth


def phase_count(head_dim: int) -> int:
    """Phases of a head, fewer than its pairs."""
    return 2 * head_dim // 3 // 2


def rope_angles(coords: Tensor, axis_dims: Sequence[int], theta: float) -> Tensor:
    """Angles (..., N, pairs) of frame, row and column indices (..., N, 3), axis after axis."""
    blocks = []
    for place, dim in zip(coords.unbind(-1), axis_dims):
        freqs = theta ** -(torch.arange(0, dim, 2, device=coords.device, dtype=coords.dtype) / dim)
        blocks.append(place[..., None] * freqs)
    return torch.cat(blocks, dim=-1)


def camera_phases(tokens: Tensor, weight: Tensor) -> Tensor:
    """(B, N, heads · phases) from camera tokens (B, N, C) and W (heads · phases, C)."""
    return F.linear(F.silu(tokens), weight)


def head_phases(phase: Tensor, heads: int, pairs: int) -> Tensor:
    """(B, H, N, pairs) of phases (B, N, heads · P), with zeros in front."""
    phase = phase.unflatten(-1, (heads, -1)).transpose(1, 2)
    return F.pad(phase, (pairs - phase.shape[-1], 0))


def turn_heads(x: Tensor, angle: Tensor | None, phase: Tensor, *, heads: int, sign: float = 1.0) -> Tensor:
    """x (B, N, heads · D) turned by angle (N, D / 2) and sign · phase (B, N, heads · P), whose zeros go in front."""
    per_head = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    total = sign * head_phases(phase.double(), heads, per_head.shape[-1] // 2)
    total = total if angle is None else total + angle.double()
    turned = rotate(per_head.double(), total.cos(), total.sin())
    return turned.transpose(1, 2).flatten(2).to(x.dtype)
