"""Cayley-STRING: learned rotary frequencies in a learned basis, one orthogonal matrix a head.

    q' = R(x) P q,   P = (I − S)(I + S)⁻¹,  S skew;   R turns pair i by Σ_a x_a f_a,i

Paper: Schenck et al., Learning the RoPEs: Better 2D and 3D Position Encodings with STRING, ICML 2025, arXiv 2502.02562.
No code was published. The encoding of the paper is PᵀR(x)P; scores do not see the outer Pᵀ, so it is left out, as the
paper does. Chosen here, where the paper is silent: S starts at zero, which makes the encoding RoPE-Mixed at the start
(its frequencies, base 10); integer cells; prefix tokens stand where all coordinates are zero; no weight decay. `folded`
bakes P into W_q and W_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..positions import Positions, Resize
from .base import Card
from .rope_mixed import RopeMixed
from .rotary import FixedRotary, Rotation
from .skew import skew_matrix


@dataclass(frozen=True)
class BasisRotation(Rotation):
    """A Rotation of tokens that a basis (H, D, D) has been applied to."""

    basis: Tensor


class StringCayley(RopeMixed):
    """RoPE-Mixed behind a learned orthogonal matrix.

    Args:
        theta: base of the initial magnitudes of the frequencies, in units of one patch.
        resize: see RopeAxial.

    Attributes:
        skew: (H, head_dim (head_dim − 1) / 2) strict upper triangle of S, row-major.
        freqs: (H, axes, head_dim / 2) radians per patch.
    """

    card = Card(
        title="STRING (Cayley)",
        family="rotary",
        axes=(2, 3),
        injection=("qk",),
        formula="R(x) (I - S)(I + S)^-1",
        paper="https://arxiv.org/abs/2502.02562",
        year=2025,
        licence="none published; from the formulas",
        cases=1,
        relative=True,
    )
    no_decay = ("freqs", "skew")

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, theta: float = 10.0, resize: Resize | None = None
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, theta=theta, resize=resize)
        self.skew = nn.Parameter(torch.zeros(num_heads, self.head_dim * (self.head_dim - 1) // 2))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "skew"):  # not yet there when RopeMixed fills its own
            nn.init.zeros_(self.skew)

    @classmethod
    def prepare_layers(cls, layers: Sequence[StringCayley], pos: Positions) -> list[BasisRotation]:
        skew = torch.stack([skew_matrix(layer.skew.float(), layer.head_dim) for layer in layers])
        turns = super().prepare_layers(layers, pos)
        return [BasisRotation(turn.cos, turn.sin, basis, factor=turn.factor) for turn, basis in zip(turns, cayley(skew))]

    def qk(self, q: Tensor, k: Tensor, ctx_q: BasisRotation, ctx_k: BasisRotation) -> tuple[Tensor, Tensor]:
        q, k = q @ ctx_q.basis.mT.to(q.dtype), k @ ctx_k.basis.mT.to(k.dtype)
        return super().qk(q, k, ctx_q, ctx_k)

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, FixedRotary]:
        """(P as (H, D, D) to multiply W_q and W_k with, the plain rotary that is left)."""
        basis = cayley(skew_matrix(self.skew.double(), self.head_dim)).float()
        rotary = FixedRotary(
            dim=self.dim, num_heads=self.num_heads, axes=self.axes, freqs=self.frequencies(), units=self.units,
            resize=self.resize, prefix_coord=None,
        )  # fmt: skip
        return basis, rotary


def cayley(skew: Tensor) -> Tensor:
    """(I − S)(I + S)⁻¹ of skew matrices (..., D, D): orthogonal, and I + S can always be inverted."""
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    return torch.linalg.solve(eye + skew, eye - skew)  # the two factors commute
