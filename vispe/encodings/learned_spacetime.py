"""Learned tables of space and of time, added to the tokens of a video: one row for each cell of a frame, one for each frame.

    x_(t, n) ← x_(t, n) + space[n] + time[t]

Paper: Bertasius et al., Is Space-Time Attention All You Need for Video Understanding?, ICML 2021, arXiv 2102.05095. Code:
facebookresearch/TimeSformer. EVA02-AT (arXiv 2506.14356) adds both to its rotary positions: "learned_spacetime+eva02_at".
As there, space starts at std 0.02 and time at zero. Chosen here: other sizes are resampled, space with the antialiased bicubic
kernel, time linearly; prefix tokens get nothing. With two axes, images, the table of space remains.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding
from .functional import resample_table


class LearnedSpacetime(Encoding):
    """Learned absolute positions of rows and columns, and of frames.

    Args:
        grid: (H, W) or (T, H, W) cells of the tables; a host fills in its train grid.
        time_std: deviation of the table of time at the start. At 0 the model begins as one that sees no order, which training
            from scratch leaves slowly.

    Attributes:
        space: (1, H·W, C).
        time: (1, T, C); None with two axes.
    """

    card = Card(
        title="Learned space and time tables",
        family="additive",
        axes=(2, 3),
        injection=("tokens",),
        formula="x_(t,n) + S[n] + T[t]",
        needs=("grid",),
        paper="https://arxiv.org/abs/2102.05095",
        year=2021,
        code="facebookresearch/TimeSformer",
    )
    no_decay = ("space", "time")
    neutral_zeros = ("space", "time")

    def __init__(self, *, dim: int, num_heads: int, axes: int = 3, grid: tuple[int, ...], time_std: float = 0.0) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if time_std < 0:
            raise ValueError(f"learned_spacetime: time_std is a standard deviation, got {time_std}.")
        self.time_std = time_std
        if len(grid) != axes or min(grid) < 1:
            raise ValueError(
                f"learned_spacetime: grid must be {axes} numbers of cells, each at least 1, got {tuple(grid)}."
            )
        self.grid = tuple(int(n) for n in grid)
        self.space = nn.Parameter(torch.empty(1, self.grid[-2] * self.grid[-1], dim))
        self.time = nn.Parameter(torch.empty(1, self.grid[0], dim)) if axes == 3 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.space, std=0.02)
        if self.time is not None:
            nn.init.normal_(self.time, std=self.time_std)

    def tables(self, grid: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """(1, H·W, C) and (1, T, C) for another grid."""
        space = resample_table(self.space, self.grid[-2:], grid[-2:], antialias=True, mode="bicubic")
        if self.time is None:
            return space, None
        return space, resample_table(self.time, (self.grid[0], 1), (grid[0], 1), antialias=False, mode="bilinear")

    def prepare(self, pos: Positions) -> Tensor:
        """The rows to add, (1 or B, prefix + N, C)."""
        self.check_axes(pos)
        if pos.extent is None or pos.units == "custom":
            raise ValueError(
                "learned_spacetime: tables need grid positions (video_grid, patch_grid), got custom coordinates; use "
                "learnable_fourier for free coordinates."
            )
        if pos.grid is None and pos.indices is None:
            raise ValueError(
                "learned_spacetime: these positions stand between the cells of a table; place tokens on whole cells, e.g. "
                "RandomPositions(inference='linspace_int')."
            )
        table, time = self.tables(pos.extent)
        if time is not None:
            table = (time[:, :, None] + table[:, None]).flatten(1, 2)  # frames outside
        if pos.indices is not None:
            index = pos.indices[..., None].expand(-1, -1, self.dim)
            table = table.expand(pos.indices.shape[0], -1, -1).gather(1, index)
        return F.pad(table, (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)

    def set_grid(self, grid: tuple[int, ...]) -> list[str]:
        """Resample the tables themselves to another grid; says what it did."""
        grid = tuple(int(n) for n in grid)
        if grid == self.grid:
            return []
        text = f"space and time resampled from {self.grid} to {grid}"
        with torch.no_grad():
            space, time = self.tables(grid)
        self.space = nn.Parameter(space.clone(), requires_grad=self.space.requires_grad)
        if time is not None:
            self.time = nn.Parameter(time.clone(), requires_grad=self.time.requires_grad)
        self.grid = grid
        return [text]
