"""Multiplicative GRAPE with commuting planes: rotary with learned, positive frequencies.

    angle_i = −p · exp(w_i / s),  channel pairs (i, i + d/2), w learned

Paper: Zhang et al., Group Representational Position Encoding, 2025, arXiv 2512.07805, section 3.1. Code:
model-architectures/GRAPE at f5b539f (MSGRAPECommuting): one axis, a language model. Frequencies start at θ^(−2i/d), θ =
10000, shared by heads; the rotation is the inverse of the usual one.
Different from the code: tables stay float32 (there bfloat16). Chosen here: several axes share the planes out evenly,
each with its own frequencies from θ^0 down; no weight decay (in log space it would pull every frequency to 1); prefix
tokens not rotated.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..positions import Resize
from .base import Card
from .rotary import Rotary, positive, split_pairs


class MsGrape(Rotary):
    """Learned rotary frequencies, each bound to one plane and one axis.

    Args:
        theta: base of the initial frequencies.
        heads: "shared" frequencies (the code's default) or "per_head".
        log_scale: s; larger values slow the frequencies' learning down.
        resize: see RopeAxial.

    Attributes:
        log_freq: (H or 1, axes, head_dim / (2 axes)); frequencies are exp(log_freq / s) radians per cell.
    """

    card = Card(
        title="MS-GRAPE (commuting)",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="angle_i = -p · exp(w_i / s), w learned",
        paper="https://arxiv.org/abs/2512.07805",
        year=2025,
        code="model-architectures/GRAPE",
        licence="Apache-2.0",
        cases=2,
        relative=True,
    )
    layout = "half"
    per_layer = True
    no_decay = ("log_freq",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        theta: float = 10000.0,
        heads: Literal["shared", "per_head"] = "shared",
        log_scale: float = 1.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("ms_grape", self.head_dim, axes)
        if heads not in ("shared", "per_head"):
            raise ValueError(f"ms_grape: heads must be 'shared' or 'per_head', got {heads!r}.")
        self.theta = positive("ms_grape", "theta", theta)
        self.log_scale = positive("ms_grape", "log_scale", log_scale)
        self.log_freq = nn.Parameter(torch.empty(num_heads if heads == "per_head" else 1, axes, self.pairs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        freqs = self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        with torch.no_grad():
            self.log_freq.copy_(freqs.log() * self.log_scale)

    def frequencies(self) -> Tensor:
        own = -torch.exp(self.log_freq.float() / self.log_scale)  # (H, axes, n)
        axis = torch.eye(self.axes, device=own.device)[..., None]  # a plane turns with its own axis only
        return (own[:, None] * axis).flatten(-2)  # (H, axes, axes · n)
