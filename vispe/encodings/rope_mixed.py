"""RoPE-Mixed: learned frequency vectors over both axes, one set for each head and layer.

    angle_i = p_row · f_row,i + p_col · f_col,i

Paper: Heo et al., Rotary Position Embedding for Vision Transformer, ECCV 2024, arXiv 2403.13298, section 3.3.
Code: naver-ai/rope-vit (deit/models_v2_rope.py). Initial magnitudes θ^(−4i/d), θ = 10; the first half of the pairs points
along one random direction a head, the second half at a right angle to it. No weight decay. Class token not rotated.
Chosen here: rows before columns in `freqs` (the official tensor has columns first); three axes draw two random orthogonal
directions a head, as its author advises a non-zero start for the third axis (rope-vit issue 12).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..positions import Resize
from .base import Card
from .rotary import Rotary, positive, split_pairs


class RopeMixed(Rotary):
    """Learned rotary frequencies over all axes.

    Args:
        theta: base of the initial magnitudes, in units of one patch.
        resize: see RopeAxial.

    Attributes:
        freqs: (H, axes, head_dim / 2) radians per patch.
    """

    card = Card(
        title="RoPE-Mixed",
        family="rotary",
        axes=(2, 3),
        injection=("qk",),
        formula="angle_i = sum_a p_a · f[a, i], f learned",
        paper="https://arxiv.org/abs/2403.13298",
        year=2024,
        code="naver-ai/rope-vit",
        licence="Apache-2.0",
        cases=5,
        relative=True,
    )
    per_layer = True
    no_decay = ("freqs",)
    neutral_zeros = ("freqs",)

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, theta: float = 10.0, resize: Resize | None = None
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        split_pairs(type(self).__name__, self.head_dim, 2)
        self.theta = positive("rope_mixed", "theta", theta)
        self.freqs = nn.Parameter(torch.empty(num_heads, axes, self.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.freqs.copy_(draw_mixed_frequencies(self.num_heads, self.axes, self.head_dim, self.theta, self.freqs.device))

    def frequencies(self) -> Tensor:
        return self.freqs.float()


def draw_mixed_frequencies(
    heads: int, axes: int, head_dim: int, theta: float, device: torch.device | None = None
) -> Tensor:
    """Initial frequencies (H, axes, head_dim / 2), along a random direction and one at a right angle to it in each head."""
    if axes == 2:
        angle = torch.rand(heads, device=device) * 2 * torch.pi
        lead = torch.stack((angle.sin(), angle.cos()), dim=-1)  # (H, [row, col])
        cross = torch.stack((angle.cos(), -angle.sin()), dim=-1)
    else:
        frame = torch.linalg.qr(torch.randn(heads, axes, 2, device=device)).Q
        lead, cross = frame.unbind(-1)
    return mixed_frequencies(lead, cross, head_dim, theta)


def mixed_frequencies(lead: Tensor, cross: Tensor, head_dim: int, theta: float) -> Tensor:
    """(H, axes, head_dim / 2) from two orthogonal unit vectors (H, axes) a head and magnitudes θ^(−4i/head_dim)."""
    count = head_dim // 4
    size = theta ** -(torch.arange(count, dtype=torch.float32, device=lead.device) / count)
    return torch.cat((lead[..., None] * size, cross[..., None] * size), dim=-1)
