"""HARoPE: axial rotary embedding behind one learned matrix a head.

    q' = R(x) M q,  k' = R(x) M⁻ᵀ k,   M = U diag(s) Vᵀ,  U = exp(S_u), V = exp(S_v), S skew,  s = softplus(σ) + 1e-6

Paper: Li et al., Head-wise Adaptive Rotary Positional Encoding for Fine-Grained Image Generation, CVPR 2026, arXiv
2510.10489. Code: Studentxll/HARoPE at bf3d5c9. θ = 10000, integer positions, rows first, channel pairs (2i, 2i+1); the
matrices act after a query/key norm and on prefix tokens too, the rotation leaves those. s starts at 1 + 1e-6 and S at 0, so
that scores start as those of plain rotary.

- `mode="conjugate"` is the released code. MᵀR M⁻ᵀ has the eigenvalues of R: no frequency can change, and q·k at equal
  positions stays. `mode="shared"` is version 1 of the paper, eq. 7: k' = R(x) M k, another function.
- Without a query/key norm either mode is a reparametrisation of W_q and W_k: it adds no function to plain rotary, gains come
  from the optimisation, and `folded` bakes M into the projections. With such a norm (Flux, SD3.5) it is more expressive.

Different from the code: only the strict upper triangles of S are stored (`skew_u`, `skew_v`; S = (A − Aᵀ) / 2 of the official
A, whose symmetric part never gets a gradient); exponentials of all layers in one call, in float32 whatever the model's dtype
(torch 2.14's bfloat16 `matrix_exp` gives 1e30); no weight decay on any of the three (σ → 0 would pull s to 0.69). There is
no cache of M in evaluation: parameters' version counters miss writes through `.data`, and all exponentials of a DiT-B/2 take
25 ms of a forward of some 4 s (one thread, batch 8). Fold instead; then there is nothing to compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions, Resize
from .base import Card, at_least_float32
from .expm import skew_exp
from .extrapolation import Series
from .rope3d import Rope3d
from .rotary import Rotary, Rotation, block_frequencies, positive, split_pairs
from .skew import skew_matrix

Mode = Literal["conjugate", "shared"]
START = math.log(math.e - 1)  # softplus gives 1


@dataclass(frozen=True)
class HeadRotation(Rotation):
    """A Rotation of tokens that matrices (H, D, D) of their side have been applied to."""

    of_q: Tensor
    of_k: Tensor


class HARoPE(Rotary):
    """Axial rotary frequencies behind M on queries and M⁻ᵀ (or M) on keys.

    Args:
        theta: base of the frequencies, in units of one patch.
        mode: "conjugate" as released, "shared" as in version 1 of the paper.
        resize: see RopeAxial.

    Attributes:
        skew_u, skew_v: (H, D (D − 1) / 2) strict upper triangles of S_u and S_v, row-major.
        sigma: (H, D).
    """

    card = Card(
        title="HARoPE",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="R(x) M q, R(x) M^-T k, M = U diag(s) V^T",
        paper="https://arxiv.org/abs/2510.10489",
        year=2026,
        code="Studentxll/HARoPE",
        licence="CC-BY-NC (README)",
        cases=8,
        relative=True,
    )
    per_layer = True
    no_decay = ("skew_u", "skew_v", "sigma")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        theta: float = 10000.0,
        mode: Mode = "conjugate",
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("harope", self.head_dim, axes)
        if mode not in ("conjugate", "shared"):
            raise ValueError(f"harope: mode must be 'conjugate' or 'shared', got {mode!r}.")
        self.theta, self.mode = positive("harope", "theta", theta), mode
        triangle = self.head_dim * (self.head_dim - 1) // 2
        self.skew_u = nn.Parameter(torch.empty(num_heads, triangle))
        self.skew_v = nn.Parameter(torch.empty(num_heads, triangle))
        self.sigma = nn.Parameter(torch.empty(num_heads, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.skew_u)
        nn.init.zeros_(self.skew_v)
        nn.init.constant_(self.sigma, START)

    def frequencies(self) -> Tensor:
        freqs = self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        return block_frequencies(freqs, self.axes)

    def series(self) -> tuple[Series, ...]:
        return (Series(self.theta, self.pairs),) * self.axes

    @classmethod
    def head_matrices(cls, layers: Sequence[HARoPE]) -> tuple[Tensor, Tensor]:
        """M of queries and of keys, (L, H, D, D) each, float32 or wider."""
        wide = at_least_float32(layers[0].sigma.dtype)
        upper = torch.stack([torch.stack((layer.skew_u, layer.skew_v)) for layer in layers]).to(wide)  # (L, 2, H, t)
        sigma = torch.stack([layer.sigma for layer in layers]).to(wide)
        return svd_matrices(upper, sigma, mode=layers[0].mode)

    @classmethod
    def prepare_layers(cls, layers: Sequence[HARoPE], pos: Positions) -> list[HeadRotation]:
        turn = super().prepare_layers(layers[:1], pos)[0]  # frequencies are the same in every layer
        sides = zip(*cls.head_matrices(layers))
        return [HeadRotation(turn.cos, turn.sin, of_q, of_k, factor=turn.factor) for of_q, of_k in sides]

    def qk(self, q: Tensor, k: Tensor, ctx_q: HeadRotation, ctx_k: HeadRotation) -> tuple[Tensor, Tensor]:
        return super().qk(q @ ctx_q.of_q.mT.to(q.dtype), k @ ctx_k.of_k.mT.to(k.dtype), ctx_q, ctx_k)

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, Rope3d]:
        """(M of queries and of keys, (2, H, D, D), to multiply W_q and W_k with; the plain rotary that is left)."""
        of_q, of_k = self.head_matrices([self])
        rotary = Rope3d(dim=self.dim, num_heads=self.num_heads, axes=self.axes, theta=self.theta, resize=self.resize)
        return torch.cat((of_q, of_k)), rotary


def svd_matrices(upper: Tensor, sigma: Tensor, *, mode: Mode) -> tuple[Tensor, Tensor]:
    """M of queries, and M⁻ᵀ (conjugate) or M again (shared) of keys.

    Args:
        upper: (L, 2, H, D (D − 1) / 2) strict upper triangles of S_u and S_v, float32 or float64.
        sigma: (L, H, D).

    Returns:
        (L, H, D, D) twice.
    """
    with torch.autocast(upper.device.type, enabled=False):
        u, v = skew_exp(skew_matrix(upper, sigma.shape[-1])).unbind(1)
        s = (F.softplus(sigma) + 1e-6)[..., None, :]
        of_q = (u * s) @ v.mT
        return of_q, of_q if mode == "shared" else (u / s) @ v.mT
