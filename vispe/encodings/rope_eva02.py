"""EVA-02's axial RoPE: cells counted on the pre-training grid, so that a larger image keeps the range of the angles.

    angle_i = (p / n · r) · θ^(−i / m),  n cells now, r in pre-training,  m pairs an axis, rows first, pairs (2i, 2i+1)

Paper: Fang et al., EVA-02: A Visual Representation for Neon Genesis, 2023, arXiv 2303.11331. Code: baaivision/EVA at
5623d08 (VisionRotaryEmbeddingFast). θ = 10000, r = 16 also for models trained on other grids; class token not rotated.
Chosen here: every axis is scaled by its own number of cells (the official module makes square grids only); tables are
computed, while released checkpoints hold them as buffers under every block (drop every key with `rope` in it); 1 or 3
axes use the same rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Positions, Resize
from .base import Card
from .extrapolation import Series
from .rotary import Rotary, block_frequencies, positive, reference_indices, split_pairs


def grid_option(name: str, option: str, value: int | tuple[int, ...] | None, axes: int) -> tuple[int, ...] | None:
    """Cells on each axis, from one number or one for each axis."""
    if value is None:
        return None
    cells = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(cells) != axes or min(cells) < 1:
        raise ValueError(f"{name}: {option} must be a number of cells or {axes} of them, got {value!r}.")
    return cells


class RopeEva02(Rotary):
    """Fixed axial rotary frequencies on a reference grid.

    Args:
        theta: base of the frequencies, in units of one cell of the reference grid.
        pretrain_grid: r, cells a side (or on each axis) of the reference grid; None for the host's train grid.
        resize: "rescale" (the paper's) maps every grid onto the reference; "extend" keeps the size of a patch in training.
    """

    card = Card(
        title="EVA-02 RoPE",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="angle_i = p / n · r · theta^(-i/m)",
        paper="https://arxiv.org/abs/2303.11331",
        year=2023,
        code="baaivision/EVA",
        licence="MIT",
        cases=2,
        relative=True,
    )
    default_resize = "rescale"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        theta: float = 10000.0,
        pretrain_grid: int | tuple[int, ...] | None = 16,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("rope_eva02", self.head_dim, axes)
        self.theta = positive("rope_eva02", "theta", theta)
        self.pretrain_grid = grid_option("rope_eva02", "pretrain_grid", pretrain_grid, axes)

    def frequencies(self) -> Tensor:
        freqs = self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        return block_frequencies(freqs, self.axes)

    def series(self) -> tuple[Series, ...]:
        return (Series(self.theta, self.pairs),) * self.axes

    def cell(self, train: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(r / n for r, n in zip(self.pretrain_grid or train, train))

    def places(self, pos: Positions) -> Tensor:
        return reference_indices(pos, self.resize, self.pretrain_grid)
