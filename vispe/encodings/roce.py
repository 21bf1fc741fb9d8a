"""RoCE's arithmetic: camera tokens shift the phases of a video model's rotary encoding.

    q, k ← e^(i(rope + φ_qk)),  v ← e^(−i φ_vo),  y = e^(i φ_vo) · W_o o,  φ = W SiLU(camera tokens)

Source: byeongjun-park/ReDirector at 2ceace5 (Wan's transformer). W has no bias and starts at zero. A head has fewer phases than
pairs: zeros in front leave the temporal pairs alone. The last turn comes behind the output projection, so it is no inverse of
that on the values. Channels of adjacent pairs; frequencies θ^(−2i / channels of the axis).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .functional import rotate


def rope_angles(coords: Tensor, axis_dims: Sequence[int], theta: float) -> Tensor:
    """Angles (N, pairs) of frame, row and column indices (N, 3), axis after axis."""
    blocks = []
    for place, dim in zip(coords.unbind(-1), axis_dims):
        freqs = theta ** -(torch.arange(0, dim, 2, device=coords.device, dtype=coords.dtype) / dim)
        blocks.append(place[:, None] * freqs)
    return torch.cat(blocks, dim=-1)


def camera_phases(tokens: Tensor, weight: Tensor) -> Tensor:
    """(B, N, heads · phases) from camera tokens (B, N, C) and W (heads · phases, C)."""
    return F.linear(F.silu(tokens), weight)


def turn_heads(x: Tensor, angle: Tensor | None, phase: Tensor, *, heads: int, sign: float = 1.0) -> Tensor:
    """x (B, N, heads · D) turned by angle (N, D / 2) and sign · phase (B, N, heads · P), whose zeros go in front."""
    pairs = x.shape[-1] // heads // 2
    phase = phase.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, N, P)
    phase = sign * F.pad(phase.double(), (pairs - phase.shape[-1], 0))
    total = phase if angle is None else phase + angle.double()
    per_head = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    turned = rotate(per_head.double(), total.cos(), total.sin())
    return turned.transpose(1, 2).flatten(2).to(x.dtype)
