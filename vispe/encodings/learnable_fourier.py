"""Learnable Fourier features of the coordinates, through a small MLP, added to the tokens.

    f = [cos(x W_rᵀ), sin(x W_rᵀ)] / √F,   x_n ← x_n + W2 GeLU(W1 f + b1) + b2

Paper: Li et al., Learnable Fourier Features for Multi-Dimensional Spatial Positional Encoding, NeurIPS 2021,
arXiv 2106.02795, algorithm 1. No official code. W_r ~ N(0, γ⁻²), that is std 1/γ, so that f(x)·f(y) is about
½ exp(−|x − y|² / 2γ²); two public copies use other stds. Exact GeLU.
Chosen here (the paper leaves them open): coordinates (p + ½)/n in [0, 1], F = C/2, 32 hidden units, γ = 1; prefix tokens get
nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions, Resize, resize_option
from .base import Card, Encoding, at_least_float32
from .rotary import positive


class LearnableFourier(Encoding):
    """Fourier features with learned frequencies and an MLP, shared by all groups of coordinates.

    Args:
        fourier_dim: F, even; None takes C / 2.
        hidden_dim: units of the MLP.
        gamma: length scale in coordinate units.
        groups: the axes are cut into this many groups, each mapped to C / groups channels.
        resize: "rescale" (every image spans [0, 1]) or "extend".
    """

    card = Card(
        title="Learnable Fourier features",
        family="additive",
        axes=(1, 2, 3, 4, 6),
        injection=("tokens",),
        formula="x_n + MLP([cos(W p), sin(W p)] / sqrt(F))",
        paper="https://arxiv.org/abs/2106.02795",
        year=2021,
        cases=5,
    )
    default_resize: Resize = "rescale"
    neutral_zeros = ("fc2",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        fourier_dim: int | None = None,
        hidden_dim: int = 32,
        gamma: float = 1.0,
        groups: int = 1,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        fourier_dim = fourier_dim or dim // 2
        if fourier_dim % 2:
            raise ValueError(f"learnable_fourier: fourier_dim must be even (cos and sin), got {fourier_dim}.")
        if axes % groups or dim % groups:
            raise ValueError(f"learnable_fourier: groups={groups} must divide axes={axes} and dim={dim}.")
        self.gamma, self.groups = positive("learnable_fourier", "gamma", gamma), groups
        self.resize = resize_option("learnable_fourier", self.default_resize if resize is None else resize)
        self.freqs = nn.Parameter(torch.empty(fourier_dim // 2, axes // groups))
        self.fc1 = nn.Linear(fourier_dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim // groups)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.freqs, std=1 / self.gamma)
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()

    def features(self, coords: Tensor) -> Tensor:
        """Fourier features (..., groups, F) of coordinates (..., axes)."""
        grouped = coords.unflatten(-1, (self.groups, -1))[..., None, :]  # (..., G, 1, M)
        angle = (grouped * self.freqs.to(coords.dtype)).sum(-1)  # (..., G, F/2)
        return torch.cat((angle.cos(), angle.sin()), dim=-1) / (2 * angle.shape[-1]) ** 0.5

    def prepare(self, pos: Positions) -> Tensor:
        """(1 or B, prefix + N, C)."""
        self.check_axes(pos)
        dtype = at_least_float32(self.freqs.dtype)
        hidden = self.features(pos.to("unit", self.resize).to(dtype))
        for layer in (self.fc1, self.fc2):  # in float32 whatever the module's dtype
            bias = layer.bias.to(dtype)
            hidden = F.linear(F.gelu(hidden) if layer is self.fc2 else hidden, layer.weight.to(dtype), bias)
        return F.pad(hidden.flatten(-2), (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
