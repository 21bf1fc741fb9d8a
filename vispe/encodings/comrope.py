"""ComRoPE: rotary position embedding with trainable commuting angle matrices.

    q' = exp(Σ_a x_a A_a) q,   A_a = blockdiag(B_a,1 .. B_a,m), B skew;  AP: B_a,j = S_j if j mod axes = a else 0;
    LD: B_a,j = θ_a,j S_j

Paper: Yu et al., ComRoPE: Scalable and Robust Rotary Position Embedding Parameterized by Trainable Commuting Angle Matrices,
CVPR 2025, arXiv 2506.03737. Code: Longin-Yu/ComRoPE at 7aeef08. Block size 8, coordinates (p + ½)/n, class token rotated at ½.
Kept from the code where the paper differs: jitter of std σ/2 patches (paper: σ), multiplier shared by heads (paper: per head).
Chosen here:
- S = QΛQᵀ with Λ made of 2x2 rotations, and scores only need R_Λ(x) Qᵀ q: the outer Q cancels between queries and keys. So q
  and k are turned into that basis and rotated as plain rotary, at the cost of one small product; `ComRotation` holds the basis,
  and `turn_in_basis` brings S its exact gradient without differentiating an eigendecomposition. `matrices` gives the official
  R.
- Only the strict upper triangle of each S is stored (`skew`): the official `freqs` has dead entries that weight decay moves.
  skew_ij = freqs_ij − freqs_ji, so it starts at std √2 · init_std.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..positions import Positions, Resize
from .base import Card
from .functional import phase
from .rotary import FixedRotary, Rotary, Rotation
from .skew import skew_matrix, skew_schur, turn_in_basis


@dataclass(frozen=True)
class ComRotation(Rotation):
    """A Rotation in the basis of one layer's angle matrices: S, Q (H, m, b, b), λ (H, m, b // 2), times (B, H, N, m)."""

    skew: Tensor
    basis: Tensor
    rates: Tensor
    times: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        return self.cos, self.sin, self.skew, self.basis, self.rates, self.times


class ComRoPE(Rotary):
    """Shared part of ComRoPE-AP and ComRoPE-LD.

    Args:
        block_size: b, channels of one angle matrix.
        init_std: std of the entries of the official `freqs`.
        jitter: σ; in training each token moves by clamp(N(0, σ/2), ±½) patches, one draw a forward (0.0: off).
        offset: ρ; in training all tokens move by one N(0, ρ) an axis, in coordinate units (0.0: off).
        resize: "rescale" (the paper's, coordinates in [0, 1]) or "extend" (one patch keeps its size).

    Attributes:
        skew: (H, m, b (b − 1) / 2) strict upper triangles, row-major.
    """

    per_layer = True
    no_decay = ("skew", "multiplier")
    neutral_zeros = ("skew",)
    units = "unit"
    default_resize = "rescale"
    prefix_coord = 0.5

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        block_size: int = 8,
        init_std: float = 1.0,
        jitter: float = 0.0,
        offset: float = 0.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        if block_size < 2 or self.head_dim % block_size:
            raise ValueError(
                f"comrope: block_size must be at least 2 and divide head_dim, got block_size={block_size}, "
                f"head_dim={self.head_dim}; divisors are {[b for b in range(2, self.head_dim + 1) if self.head_dim % b == 0]}."
            )
        if jitter < 0 or offset < 0:
            raise ValueError(f"comrope: jitter and offset are standard deviations, got {jitter} and {offset}.")
        self.block_size, self.blocks = block_size, self.head_dim // block_size
        self.init_std, self.jitter, self.offset = init_std, jitter, offset
        self.skew = nn.Parameter(torch.empty(num_heads, self.blocks, block_size * (block_size - 1) // 2))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.skew, std=self.init_std * math.sqrt(2))

    def axis_weights(self) -> Tensor:
        """θ, how far a unit step on each axis turns each block: (H or 1, axes, m)."""
        raise TypeError(f"{type(self).__name__} gives no axis weights; use comrope_ap or comrope_ld.")

    def coordinates(self, pos: Positions) -> Tensor:
        coords = pos.to(self.units, self.resize)
        if not self.training or (self.jitter == 0 and self.offset == 0) or pos.units == "custom":
            return coords
        if self.jitter:
            moved = (torch.randn_like(pos.coords) * (0.5 * self.jitter)).clamp(-0.5, 0.5)
            if pos.axes == 3:
                moved = moved * moved.new_tensor((0.0, 1.0, 1.0))  # frames stay where they are
            step = Positions(pos.coords + moved, extent=pos.extent, train=pos.train)
            coords = step.to(self.units, self.resize)
        return coords

    @classmethod
    def prepare_layers(cls, layers: Sequence[ComRoPE], pos: Positions) -> list[ComRotation]:
        one = layers[0]
        one.check_axes(pos)
        coords = one.coordinates(pos)
        if pos.prefix:
            coords = torch.cat((one.lead(coords, pos).expand(coords.shape[0], -1, -1), coords), dim=1)
        if one.training and one.offset and pos.units != "custom":
            coords = coords + torch.randn(pos.axes, device=coords.device) * one.offset
        skew = skew_matrix(torch.stack([layer.skew.float() for layer in layers]), one.block_size)  # (L, H, m, b, b)
        basis, rates = skew_schur(skew.detach())
        weights = torch.stack([layer.axis_weights().float() for layer in layers])  # (L, H or 1, axes, m)
        times = phase(coords, weights)  # (L, B, H or 1, N, m)
        angle, factor = (times[..., None] * rates[:, None, :, None]).flatten(-2), None  # (L, B, H, N, m · pairs)
        if one.extrapolation is not None:
            # One block's planes slow down by different factors, which no single time does: its matrix gets no gradient here.
            freqs, factor = one.extrapolated((weights[..., None] * rates[:, :, None]).flatten(-2), pos)
            angle, skew = phase(coords, freqs), skew.detach()
        parts = zip(angle.cos(), angle.sin(), skew, basis, rates, times.detach())
        return [ComRotation(*part, factor=factor) for part in parts]

    def qk(self, q: Tensor, k: Tensor, ctx_q: ComRotation, ctx_k: ComRotation) -> tuple[Tensor, Tensor]:
        return ctx_q.weigh(turn_in_basis(q, *ctx_q.parts())), ctx_k.weigh(turn_in_basis(k, *ctx_k.parts()))

    @torch.no_grad()
    def frequencies(self) -> Tensor:
        """Eigenfrequencies λ_j,k θ_a,j as plain rotary frequencies (H, axes, m · pairs)."""
        _, rates = skew_schur(skew_matrix(self.skew.float(), self.block_size))
        return (self.axis_weights().float()[..., None] * rates[:, None]).flatten(-2)

    def matrices(self, pos: Positions) -> Tensor:
        """The official rotation blocks exp(Σ_a x_a B_a,j), (B or 1, prefix + N, H, m, b, b), prefix tokens at ½."""
        ctx = self.prepare_layers([self], pos)[0]
        exponent = ctx.times.transpose(1, 2)[..., None, None] * ctx.skew  # (B, N, H, m, b, b)
        return torch.linalg.matrix_exp(exponent.contiguous())

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, FixedRotary]:
        """(Qᵀ as (H, D, D) to multiply W_q and W_k with, the plain rotary that is left)."""
        basis, _ = skew_schur(skew_matrix(self.skew.float(), self.block_size))
        turned = basis.new_zeros(self.num_heads, self.head_dim, self.head_dim)
        for head in range(self.num_heads):
            turned[head] = torch.block_diag(*basis[head].mT)
        pairs = self.block_size // 2
        if self.block_size % 2:  # channels that do not turn go last, as rotate() wants them
            channel = torch.arange(self.head_dim, device=basis.device).view(self.blocks, self.block_size)
            turned = turned[:, torch.cat((channel[:, : 2 * pairs].flatten(), channel[:, 2 * pairs :].flatten()))]
        rotary = FixedRotary(
            dim=self.dim, num_heads=self.num_heads, axes=self.axes, freqs=self.frequencies(), units=self.units,
            resize=self.resize, prefix_coord=self.prefix_coord,
        )  # fmt: skip
        return turned, rotary


class ComRoPEAP(ComRoPE):
    """ComRoPE with axial-partition angle matrices: block j turns with axis j mod axes only."""

    card = Card(
        title="ComRoPE-AP",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="exp(x_{j mod axes} S_j)",
        paper="https://arxiv.org/abs/2506.03737",
        year=2025,
        code="Longin-Yu/ComRoPE",
        licence="none stated",
        cases=26,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        block_size: int = 8,
        init_std: float = 1.0,
        jitter: float = 0.0,
        offset: float = 0.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(
            dim=dim, num_heads=num_heads, axes=axes, block_size=block_size, init_std=init_std, jitter=jitter, offset=offset,
            resize=resize,
        )  # fmt: skip
        if self.blocks % axes:
            raise ValueError(
                f"comrope_ap: every axis needs the same number of blocks, got {self.blocks} blocks of {block_size} channels "
                f"for {axes} axes; choose a block_size so that head_dim / block_size is a multiple of {axes}, or comrope_ld."
            )
        self.reset_parameters()

    def axis_weights(self) -> Tensor:
        owner = torch.arange(self.blocks, device=self.skew.device) % self.axes
        return (owner == torch.arange(self.axes, device=self.skew.device)[:, None]).float()[None]


class ComRoPELD(ComRoPE):
    """ComRoPE with linearly dependent angle matrices: every axis turns every block, at a learned rate.

    Args:
        multiplier: "shared" by heads (the official code), or "per_head" (the paper's parameter count; with block_size=2 this is
            RoPE-Mixed).
    """

    card = Card(
        title="ComRoPE-LD",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="exp(sum_a x_a theta_{a,j} S_j)",
        paper="https://arxiv.org/abs/2506.03737",
        year=2025,
        code="Longin-Yu/ComRoPE",
        licence="none stated",
        cases=26,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        block_size: int = 8,
        init_std: float = 1.0,
        multiplier: Literal["shared", "per_head"] = "shared",
        jitter: float = 0.0,
        offset: float = 0.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(
            dim=dim, num_heads=num_heads, axes=axes, block_size=block_size, init_std=init_std, jitter=jitter, offset=offset,
            resize=resize,
        )  # fmt: skip
        if multiplier not in ("shared", "per_head"):
            raise ValueError(f"comrope_ld: multiplier must be 'shared' or 'per_head', got {multiplier!r}.")
        self.multiplier = nn.Parameter(torch.empty(num_heads if multiplier == "per_head" else 1, axes, self.blocks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.multiplier)

    def axis_weights(self) -> Tensor:
        return self.multiplier
