"""SwinV2's continuous position bias: a small network on logarithmic offsets, so that windows can grow.

    logit_ij += 16 · sigmoid(W2 relu(W1 c + b1)),   c = sign(r) log2(1 + 8|r|) / log2 8,   r = (i − j) / (window − 1)

Paper: Liu et al., Swin Transformer V2, CVPR 2022, arXiv 2111.09883. Code: microsoft/Swin-Transformer at f82860b,
swin_transformer_v2.py. The network runs on the (2H−1)(2W−1) offsets of the grid, never on pairs. At another window,
offsets are divided by the window of training (`pretrained_window`, official argument `pretrained_window_sizes`): a
model fine-tuned from 8 to 16 sees coordinates up to 1.394, and loses accuracy when they are squeezed back to log2(9)/3
= 1.057.
Chosen here: the divisor is the host's train grid unless `pretrained_window` says otherwise; the official default, the
window at hand, is `pretrained_window=(0, 0)`. A side of 1 divides by 1 (official code and timm's RelPosMlp: 0/0).
Cosine attention, which came in the same paper, is `attention="cosine"`. Pairs with prefix tokens get 0; custom
coordinates evaluate the network on pairs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Card, at_least_float32
from .offsets import OffsetBias, OffsetContext


def log_coords(offsets: Tensor, window: tuple[int, ...]) -> Tensor:
    """sign(r) · log2(1 + 8|r|) / 3 of offsets (..., axes) in cells, r = offset / max(window − 1, 1)."""
    r = torch.stack([8 * x / max(n - 1, 1) for x, n in zip(offsets.unbind(-1), window)], dim=-1)
    return r.sign() * torch.log2(1 + r.abs()) / 3


def cosine_queries(q: Tensor, k: Tensor, logit_scale: Tensor) -> tuple[Tensor, Tensor]:
    """q and k (B, H, N, D) such that q·k/√D is their cosine times exp(min(logit_scale, ln 100)); logit_scale (H, 1, 1)."""
    scale = logit_scale.float().clamp(max=math.log(100)).exp() * q.shape[-1] ** 0.5
    return (F.normalize(q.float(), dim=-1) * scale).type_as(q), F.normalize(k.float(), dim=-1).type_as(k)


def offset_mlp(x: Tensor, fc1: nn.Linear, fc2: nn.Linear, drop: float = 0.0) -> Tensor:
    """fc2(relu(fc1(x))) of x (..., axes) in at least float32, heads first: (H, ...); `drop` is the dropout of hidden units."""
    dtype = at_least_float32(fc1.weight.dtype)
    hidden = F.linear(x.to(dtype), fc1.weight.to(dtype), fc1.bias.to(dtype)).relu()
    hidden = F.dropout(hidden, drop)
    out = F.linear(hidden, fc2.weight.to(dtype), None if fc2.bias is None else fc2.bias.to(dtype))
    return out.movedim(-1, 0)


class SwinV2Cpb(OffsetBias):
    """Log-spaced continuous position bias.

    Args:
        grid: (H, W) cells of training; a host fills it in. None divides by the grid of each forward.
        pretrained_window: the divisor, when it is not `grid`: weights trained at 8 × 8 windows need (8, 8) at every size;
            (0, 0) is the official default, the grid of each forward.
        hidden: width of the network.
        attention: "dot", or "cosine" for SwinV2's attention with a learned temperature a head (at most 100). The scale of
            the host's attention must be 1/√head_dim.

    Attributes:
        fc1, fc2: the network (2 → hidden → heads, no bias in fc2).
        logit_scale: (heads, 1, 1), log of the temperature, with attention="cosine".
    """

    card = Card(
        title="SwinV2 log-spaced continuous position bias",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j + 16 σ(MLP(log(i-j)))",
        paper="https://arxiv.org/abs/2111.09883",
        year=2022,
        code="microsoft/Swin-Transformer",
        licence="MIT",
        cases=2,
        relative=True,
    )
    name = "swinv2_cpb"
    no_decay = ("fc1", "fc2")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        grid: tuple[int, int] | None = None,
        pretrained_window: tuple[int, int] | None = None,
        hidden: int = 512,
        attention: Literal["dot", "cosine"] = "dot",
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if attention not in ("dot", "cosine"):
            raise ValueError(f"swinv2_cpb: attention must be 'dot' or 'cosine', got {attention!r}.")
        window = grid if pretrained_window is None else pretrained_window
        self.window = window_option("swinv2_cpb", window, axes)
        self.fc1, self.fc2 = nn.Linear(axes, hidden), nn.Linear(hidden, num_heads, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(num_heads, 1, 1)) if attention == "cosine" else None
        self.no_decay = ("fc1", "fc2", "logit_scale") if attention == "cosine" else ("fc1", "fc2")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.fc1, self.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.fc1.bias)
        if self.logit_scale is not None:
            nn.init.constant_(self.logit_scale, math.log(10))

    def at(self, offsets: Tensor, extent: tuple[int, int] | None) -> Tensor:
        window = own_window("swinv2_cpb", self.window, extent)
        return 16 * offset_mlp(log_coords(offsets, window), self.fc1, self.fc2).sigmoid()

    def qk(self, q: Tensor, k: Tensor, ctx_q: OffsetContext, ctx_k: OffsetContext) -> tuple[Tensor, Tensor]:
        return (q, k) if self.logit_scale is None else cosine_queries(q, k, self.logit_scale)


def window_option(name: str, window: tuple[int, ...] | None, axes: int) -> tuple[int, ...] | None:
    """The window of training as integers; None and zeros mean the window at hand."""
    if window is None or not any(window):
        return None
    if len(window) != axes or min(window) < 1:
        raise ValueError(f"{name}: the window of training must have {axes} sides of at least 1 cell, got {tuple(window)}.")
    return tuple(int(n) for n in window)


def own_window(name: str, window: tuple[int, ...] | None, extent: tuple[int, ...] | None) -> tuple[int, ...]:
    """The window that offsets are divided by: that of training, else the frame's."""
    if window is None and extent is None:
        raise ValueError(f"{name}: custom coordinates have no window; create it with grid=(H, W) or pretrained_window=(H, W).")
    return extent if window is None else window
