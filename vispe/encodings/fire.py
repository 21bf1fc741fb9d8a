"""FIRE: a network on the logarithm of the distance, relative to that of the query's position.

    logit_ij += MLP(ψ(|i − j|) / (ψ(max(i, |m L|)) + ε)),   ψ(x) = ln(|c x| + 1)

Paper: Li et al., Functional Interpolation for Relative Positions, ICLR 2024, arXiv 2310.04418 (listing in the appendix;
no official repository). Defaults are the listing's: width 32, c = 0.1, m = 1 (both learned), L = 512, ε = 1e-6. A
sequence encoding: the normaliser is the query's index, an idea for causal attention, so shifting all positions changes
the logits.
Chosen here: on an image (2 axes) i and j are row-major cell numbers, as when the sequence encoding is used unchanged;
`fire2d` is our form for grids. Since the argument depends on i and on |i − j|, the network runs on pairs. Pairs with
prefix tokens get 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding, at_least_float32
from .swinv2_cpb import offset_mlp


@dataclass(frozen=True)
class Indices:
    """Token indices of one side (B or 1, N) and its bias with itself (B or 1, H, prefix + N, prefix + N)."""

    index: Tensor
    prefix: int
    pairs: Tensor


def log_scale(x: Tensor, c: Tensor) -> Tensor:
    """ψ(x) = ln(|c x| + 1)."""
    return torch.log((c * x).abs() + 1)


class Fire(Encoding):
    """A functional relative bias for sequences.

    Args:
        hidden: width of the network.
        threshold: L, the index up to which the normaliser stays the same (times the learned m).
        init_c: initial c.
        eps: ε.

    Attributes:
        fc1, fc2: the network (1 → hidden → heads).
        c, multiplier: (1,), c and m.
    """

    card = Card(
        title="FIRE",
        family="bias",
        axes=(1, 2),
        injection=("bias",),
        formula="q_i·k_j + MLP(ψ(|i-j|) / ψ(max(i, L)))",
        needs=("grid",),
        paper="https://arxiv.org/abs/2310.04418",
        year=2024,
        cases=2,
    )
    per_layer = True
    no_decay = ("c", "multiplier")
    neutral_zeros = ("fc2",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        hidden: int = 32,
        threshold: float = 512.0,
        init_c: float = 0.1,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if not threshold > 0 or hidden < 1:
            raise ValueError(f"fire: threshold and hidden must be positive, got {threshold} and {hidden}.")
        self.threshold, self.init_c, self.eps = threshold, init_c, eps
        self.fc1, self.fc2 = nn.Linear(1, hidden), nn.Linear(hidden, num_heads)
        self.c, self.multiplier = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()
        nn.init.constant_(self.c, self.init_c)
        nn.init.ones_(self.multiplier)

    def prepare(self, pos: Positions) -> Indices:
        self.check_axes(pos)
        if self.axes == 1:
            index = pos.coords[..., 0]
        elif pos.units == "custom" or pos.extent is None:
            raise ValueError(
                "fire: a sequence encoding needs grid positions (patch_grid) to number the cells of an image, got custom "
                "coordinates; use fire2d for free coordinates."
            )
        else:
            index = pos.coords[..., 0] * pos.extent[1] + pos.coords[..., 1]
        return Indices(index, pos.prefix, self._pairs(index, index, pos.prefix, pos.prefix))

    def _pairs(self, query: Tensor, key: Tensor, prefix_q: int, prefix_k: int) -> Tensor:
        dtype = at_least_float32(self.c.dtype)
        c, start = self.c.to(dtype), (self.multiplier.to(dtype) * self.threshold).abs()
        distance = (query[:, :, None] - key[:, None]).abs()  # (B or 1, Nq, Nk)
        normaliser = log_scale(torch.maximum(query.to(dtype), start), c) + self.eps
        bias = offset_mlp((log_scale(distance, c) / normaliser[..., None])[..., None], self.fc1, self.fc2)
        return F.pad(bias.transpose(0, 1), (prefix_k, 0, prefix_q, 0))

    def bias(self, q: Tensor, k: Tensor, ctx_q: Indices, ctx_k: Indices) -> Tensor:
        if ctx_q is ctx_k:
            return ctx_k.pairs
        return self._pairs(ctx_q.index, ctx_k.index, ctx_q.prefix, ctx_k.prefix)
