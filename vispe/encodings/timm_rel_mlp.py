"""timm's RelPosMlp: a small network on logarithmic offsets, in timm's own mode "cr" and in SwinV2's.

    "cr":   logit_ij += W2 relu(W1 c + b1) + b2,   c = sign(d) ln(1 + |d|),   d = i − j in cells
    "swin": logit_ij += 16 · sigmoid(W2 relu(W1 c + b1)),   c as in SwinV2

Code: timm 1.0.31, layers/pos_embed_rel.py (MaxxViT and SwinV2-CR models); after Liu et al., arXiv 2111.09883. The
network runs on the (2H−1)(2W−1) offsets of the grid. Pairs with prefix tokens get 0, in timm too.
Differences: timm drops 1/8 of the hidden units in training, always, which is `hidden_drop=0.125` here and off by
default; a window side of 1 gives 0/0 in timm's mode "swin" and is divided by 1 here. In mode "swin" the divisor is the
host's train grid unless `pretrained_window` says otherwise ((0, 0): the window at hand, timm's default).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from .offsets import OffsetBias
from .swinv2_cpb import SwinV2Cpb, log_coords, offset_mlp, own_window, window_option


class TimmRelMlp(OffsetBias):
    """A bias from a network on log offsets.

    Args:
        mode: "cr" (natural logarithm of cells, biases in both layers) or "swin" (SwinV2's coordinates and sigmoid).
        grid, pretrained_window: as in SwinV2Cpb; mode "cr" has no divisor.
        hidden: width of the network.
        hidden_drop: dropout of hidden units in training.

    Attributes:
        fc1, fc2: the network (2 → hidden → heads); fc2 has a bias in mode "cr".
    """

    card = dataclasses.replace(
        SwinV2Cpb.card,
        title="timm RelPosMlp",
        formula="q_i·k_j + MLP(log(i-j))",
        code="huggingface/pytorch-image-models",
        licence="Apache-2.0",
        cases=3,
    )
    name = "timm_rel_mlp"
    no_decay = ("fc1", "fc2")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        mode: Literal["cr", "swin"] = "cr",
        grid: tuple[int, int] | None = None,
        pretrained_window: tuple[int, int] | None = None,
        hidden: int = 128,
        hidden_drop: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if mode not in ("cr", "swin"):
            raise ValueError(f"timm_rel_mlp: mode must be 'cr' or 'swin', got {mode!r}.")
        if not 0 <= hidden_drop < 1:
            raise ValueError(f"timm_rel_mlp: hidden_drop is a share in [0, 1), got {hidden_drop}.")
        self.mode, self.hidden_drop = mode, hidden_drop
        self.window = window_option("timm_rel_mlp", grid if pretrained_window is None else pretrained_window, axes)
        self.fc1, self.fc2 = nn.Linear(axes, hidden), nn.Linear(hidden, num_heads, bias=mode == "cr")

    def reset_parameters(self) -> None:
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()

    @torch.no_grad()
    def set_identity(self) -> bool:
        if self.mode == "swin":  # 16 times a sigmoid is never 0
            return False
        nn.init.zeros_(self.fc2.weight)
        nn.init.zeros_(self.fc2.bias)
        return True

    def at(self, offsets: Tensor, extent: tuple[int, int] | None) -> Tensor:
        drop = self.hidden_drop if self.training else 0.0
        if self.mode == "cr":
            return offset_mlp(offsets.sign() * torch.log(1 + offsets.abs()), self.fc1, self.fc2, drop)
        window = own_window("timm_rel_mlp", self.window, extent)
        return 16 * offset_mlp(log_coords(offsets, window), self.fc1, self.fc2, drop).sigmoid()
