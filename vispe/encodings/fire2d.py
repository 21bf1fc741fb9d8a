"""FIRE on a grid. OURS: the paper is one-dimensional and no two-dimensional form is published.

    logit_ij += MLP(s_y, s_x, sign d_y, sign d_x),   d = i − j
    s_a = ψ(|d_a|) / (ψ(max(|m_a L_a|, n_a − 1)) + ε),   ψ(x) = ln(|c_a x| + 1)

After Li et al., Functional Interpolation for Relative Positions, ICLR 2024, arXiv 2310.04418 (see `fire`). What we
changed, and why: one feature an axis and its sign, since images are not causal; the normaliser is the grid's longest
offset (from the train grid L on, with a learned factor m) instead of the query's index, which would make the bias
depend on where the image starts. Features stay in [0, 1] at any size, and the network runs on the (2H−1)(2W−1) offsets.
Pairs with prefix tokens get 0; custom coordinates are divided by |m L| alone and run on pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Card, at_least_float32
from .fire import log_scale
from .offsets import OffsetBias
from .swinv2_cpb import offset_mlp, own_window, window_option


class Fire2d(OffsetBias):
    """A functional relative bias for grids (ours).

    Args:
        grid: (H, W) cells of training, L; a host fills it in. None takes the grid of each forward.
        hidden: width of the network.
        init_c: initial c of each axis.
        eps: ε.

    Attributes:
        fc1, fc2: the network (4 → hidden → heads).
        c, multiplier: (2,), c and m of each axis.
    """

    card = Card(
        title="2-D FIRE (ours)",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j + MLP(ψ(|i-j|) / ψ(L), sign(i-j))",
        paper="https://arxiv.org/abs/2310.04418",
        year=2024,
        relative=True,
    )
    name = "fire2d"
    no_decay = ("c", "multiplier")
    neutral_zeros = ("fc2",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        grid: tuple[int, int] | None = None,
        hidden: int = 32,
        init_c: float = 0.1,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.window, self.init_c, self.eps = window_option("fire2d", grid, axes), init_c, eps
        self.fc1, self.fc2 = nn.Linear(2 * axes, hidden), nn.Linear(hidden, num_heads)
        self.c, self.multiplier = nn.Parameter(torch.empty(axes)), nn.Parameter(torch.empty(axes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()
        nn.init.constant_(self.c, self.init_c)
        nn.init.ones_(self.multiplier)

    def at(self, offsets: Tensor, extent: tuple[int, int] | None) -> Tensor:
        dtype = at_least_float32(self.c.dtype)
        features = []
        window = own_window("fire2d", self.window, extent)
        for axis, (delta, c, m) in enumerate(zip(offsets.unbind(-1), self.c.to(dtype), self.multiplier.to(dtype))):
            reach = (m * window[axis]).abs()
            if extent is not None:
                reach = torch.maximum(reach, torch.full_like(reach, extent[axis] - 1))
            features.append(log_scale(delta, c) / (log_scale(reach, c) + self.eps))
        return offset_mlp(torch.cat((torch.stack(features, dim=-1), offsets.sign()), dim=-1), self.fc1, self.fc2)
