"""GTA on image coordinates: SO(2) rotations of queries, keys and values, undone on the attention's output.

    o_i = R_i⁻¹ Σ_j softmax(q_iᵀ R_iᵀ R_j k_j / √d) R_j v_j,  angle of pair (frequency f, axis a) = p_a · θ^(−f / n)

Paper: Miyato et al., GTA: A Geometry-Aware Attention Mechanism, ICLR 2024, arXiv 2310.10375, section 3 and the DiT branch of
its code. Code: autonomousvision/gta at 378748a. θ = 10000, integer row and column, frequencies outside, axes inside.
`transform_values=False` is that branch's rotary baseline. Prefix tokens are left as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Resize
from .base import Card
from .extrapolation import Series
from .functional import rotate
from .rotary import Rotary, Rotation, block_frequencies, positive, split_pairs


class Gta2d(Rotary):
    """Rotary transform of q, k and v, with its inverse on the output.

    Args:
        theta: base of the frequencies, in units of one patch.
        transform_values: also act on values and output; False is plain rotary with GTA's channel order.
        resize: see RopeAxial.
    """

    card = Card(
        title="GTA (image form)",
        family="transform",
        axes=(1, 2, 3),
        injection=("qk", "v", "out"),
        formula="o_i = R_i^-1 sum_j p_ij R_j v_j",
        paper="https://arxiv.org/abs/2310.10375",
        year=2024,
        code="autonomousvision/gta",
        licence="MIT",
        cases=2,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        theta: float = 10000.0,
        transform_values: bool = True,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("gta2d", self.head_dim, axes)
        self.theta = positive("gta2d", "theta", theta)
        self.transform_values = transform_values

    def frequencies(self) -> Tensor:
        freqs = self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        blocks = block_frequencies(freqs, self.axes)  # (1, axes, axes · n), axis outside
        return blocks.unflatten(-1, (self.axes, self.pairs)).transpose(-1, -2).flatten(-2)

    def series(self) -> tuple[Series, ...]:
        return (Series(self.theta, self.pairs),) * self.axes

    def v(self, v: Tensor, ctx_k: Rotation) -> Tensor:
        return rotate(v, ctx_k.cos, ctx_k.sin, self.layout) if self.transform_values else v

    def out(self, o: Tensor, ctx_q: Rotation) -> Tensor:
        return rotate(o, ctx_q.cos, -ctx_q.sin, self.layout) if self.transform_values else o
