"""EVA02-AT's joint space-time RoPE: the spatial rotation of EVA-02 followed by a temporal rotation of all channels.

    R = R_xy R_t:  angle_i = x_axis · θ^(−i / m) + t · θ_t^(−2i / d),  m = d/4 pairs for rows, m for columns, pairs (2i, 2i+1)

Paper: Wang et al., EVA02-AT, 2025, arXiv 2506.14356, equations (8) to (10). No code was published (xqwang14/EVA02-AT at
0d272a9 holds a readme). The "inner product" of rotations is read as their composition: angles add. Not stated there and
chosen here: temporal base 10000, frames counted from 0 at any number of frames, unscaled rows and columns
(`pretrain_grid` brings EVA-02's scaling), class token not rotated. With two axes, images, the spatial rotation remains.
The paper also adds learned spatial and temporal tables: compose "learned_spacetime+eva02_at".
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Positions, Resize
from .base import Card
from .extrapolation import Series
from .rope_eva02 import grid_option
from .rotary import Rotary, block_frequencies, positive, reference_indices, split_pairs


class Eva02At(Rotary):
    """Fixed rotary frequencies; rows and columns have halves of the pairs, frames have all of them.

    Args:
        theta: base of the spatial frequencies.
        time_theta: base of the temporal frequencies.
        pretrain_grid: reference grid of rows and columns, see RopeEva02; None to count cells.
        resize: "extend" or "rescale" for rows and columns; frames keep their indices.
    """

    card = Card(
        title="EVA02-AT RoPE",
        family="rotary",
        axes=(2, 3),
        injection=("qk",),
        formula="angle_i = p · theta^(-i/m) + t · theta_t^(-2i/d)",
        paper="https://arxiv.org/abs/2506.14356",
        year=2025,
        licence="none published; from the formulas",
        cases=2,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 3,
        theta: float = 10000.0,
        time_theta: float = 10000.0,
        pretrain_grid: int | tuple[int, int] | None = None,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("eva02_at", self.head_dim, 2)
        self.theta = positive("eva02_at", "theta", theta)
        self.time_theta = positive("eva02_at", "time_theta", time_theta)
        self.pretrain_grid = grid_option("eva02_at", "pretrain_grid", pretrain_grid, 2)
        if resize is None and self.pretrain_grid is not None:
            self.resize = self.default_resize = "rescale"

    def frequencies(self) -> Tensor:
        space = block_frequencies(self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs), 2)
        if self.axes == 2:
            return space
        time = self.time_theta ** -(torch.arange(2 * self.pairs, dtype=torch.float32) / (2 * self.pairs))
        return torch.cat((time[None, None], space), dim=1)  # (1, [t, row, col], d / 2)

    def series(self) -> tuple[Series, ...]:
        time = (Series(self.time_theta, 2 * self.pairs),) * (self.axes - 2)
        return time + (Series(self.theta, self.pairs),) * 2

    def cell(self, train: tuple[int, ...]) -> tuple[float, ...]:
        space = self.pretrain_grid or train[-2:]
        return (1.0,) * (self.axes - 2) + tuple(r / n for r, n in zip(space, train[-2:]))

    def places(self, pos: Positions) -> Tensor:
        if pos.units == "custom" or (self.pretrain_grid is None and self.resize == "extend"):
            return pos.coords
        reference = self.pretrain_grid
        if reference is not None and self.axes == 3:
            reference = (1, *reference)  # the frames' own axis is put back below
        scaled = reference_indices(pos, self.resize, reference)
        return scaled if self.axes == 2 else torch.cat((pos.coords[..., :1], scaled[..., 1:]), dim=-1)
