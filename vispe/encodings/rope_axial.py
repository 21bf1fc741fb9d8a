"""RoPE-Axial: each axis turns its own share of the channel pairs with fixed frequencies.

    angle_i = p_axis · θ^(−i / n),  n pairs an axis, channel pairs (2i, 2i+1), columns first, then rows

Paper: Heo et al., Rotary Position Embedding for Vision Transformer, ECCV 2024, arXiv 2403.13298, section 3.2.
Code: naver-ai/rope-vit (deit/models_v2_rope.py). θ = 100 and integer positions as there; class token not rotated.
Chosen here: one or three axes use the same rule, last axis first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Resize
from .base import Card
from .extrapolation import Series
from .rotary import Rotary, block_frequencies, positive, split_pairs


class RopeAxial(Rotary):
    """Fixed axial rotary frequencies.

    Args:
        theta: base of the frequencies, in units of one patch.
        resize: "extend" lets indices grow with the grid (the paper's), "rescale" squeezes them onto the train grid.
    """

    card = Card(
        title="RoPE-Axial",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="angle_i = p · theta^(-i/n)",
        paper="https://arxiv.org/abs/2403.13298",
        year=2024,
        code="naver-ai/rope-vit",
        licence="Apache-2.0",
        cases=5,
        relative=True,
    )

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, theta: float = 100.0, resize: Resize | None = None
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("rope_axial", self.head_dim, axes)
        self.theta = positive("rope_axial", "theta", theta)

    def frequencies(self) -> Tensor:
        freqs = self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        return block_frequencies(freqs, self.axes).flip(1)

    def series(self) -> tuple[Series, ...]:
        return (Series(self.theta, self.pairs),) * self.axes
