"""A learned table with one row for each cell of the train grid, resampled to any other grid.

    x_n ← x_n + table[n]

Paper: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021, arXiv 2010.11929. Code: timm, DeiT, rope-vit (which
differ in what they do at other sizes: timm resamples with antialiasing, DeiT, MAE and rope-vit without; the two cubic
kernels differ even when the table grows). Always resampled from the original table, so that sizes can change to and fro.
Chosen here: `init="sincos"` starts from the fixed 2-D sin-cos table, which a short schedule needs to be a fair baseline.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..positions import Positions, full_grid
from .base import Card, Encoding
from .functional import resample_table
from .sincos2d import sincos


class Learned(Encoding):
    """Learned absolute positions, added to the tokens ahead of block 0.

    Args:
        grid: (H, W) cells of the table; a host fills in its train grid.
        prefix: prefix tokens of the host.
        prefix_rows: give the prefix tokens rows of their own (timm, DeiT: yes; DeiT-III, rope-vit: no).
        init: "trunc_normal" (std 0.02) or "sincos" (the fixed table, scaled by `sincos_scale`).
        sincos_scale, sincos_theta: factor and base of that fixed table.
        antialias: resample to other grids with the antialiased kernel (timm) or without (DeiT, MAE, rope-vit).
        interpolation: "bicubic" or "bilinear".

    Attributes:
        pos_embed: (1, prefix rows + H·W, C).
    """

    card = Card(
        title="Learned absolute table",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + T[n]",
        needs=("grid",),
        paper="https://arxiv.org/abs/2010.11929",
        year=2021,
        code="huggingface/pytorch-image-models",
        licence="Apache-2.0",
        cases=6,
    )
    no_decay = ("pos_embed",)
    neutral_zeros = ("pos_embed",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        grid: tuple[int, int],
        prefix: int = 0,
        prefix_rows: bool = False,
        init: Literal["trunc_normal", "sincos"] = "trunc_normal",
        sincos_scale: float = 0.7,
        sincos_theta: float = 100.0,
        antialias: bool = True,
        interpolation: Literal["bicubic", "bilinear"] = "bicubic",
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if init not in ("trunc_normal", "sincos"):
            raise ValueError(f"learned: init must be 'trunc_normal' or 'sincos', got {init!r}.")
        if interpolation not in ("bicubic", "bilinear"):
            raise ValueError(f"learned: interpolation must be 'bicubic' or 'bilinear', got {interpolation!r}.")
        if len(grid) != 2 or min(grid) < 1:
            raise ValueError(f"learned: grid must be (H, W) in cells, both at least 1, got {tuple(grid)}.")
        self.grid = (int(grid[0]), int(grid[1]))
        self.prefix_rows = prefix if prefix_rows else 0
        self.init, self.sincos_scale, self.sincos_theta = init, sincos_scale, sincos_theta
        self.antialias, self.interpolation = antialias, interpolation
        self.pos_embed = nn.Parameter(torch.empty(1, self.prefix_rows + self.grid[0] * self.grid[1], dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.init == "sincos":
            coords = full_grid(self.grid).coords
            table = sincos(coords, self.dim, theta=self.sincos_theta, order="col_row", stacking="axis") * self.sincos_scale
            with torch.no_grad():
                self.pos_embed[:, self.prefix_rows :] = table

    def prepare(self, pos: Positions) -> Tensor:
        """The rows to add, (1 or B, prefix + N, C): zero for prefix tokens that have no row."""
        self.check_axes(pos)
        if pos.extent is None or pos.units == "custom":
            raise ValueError(
                "learned: a table needs grid positions (patch_grid), got custom coordinates; use learnable_fourier or "
                "sincos2d for free coordinates."
            )
        if pos.grid is None and pos.indices is None:
            raise ValueError(
                "learned: these positions stand between the cells of a table; place tokens on whole cells, e.g. "
                "RandomPositions(inference='linspace_int')."
            )
        if self.prefix_rows not in (0, pos.prefix):
            raise ValueError(
                f"learned: the table has {self.prefix_rows} prefix rows, the tokens have {pos.prefix} prefix tokens; "
                f"create it with prefix={pos.prefix}, or with prefix_rows=False."
            )
        lead, table = self.pos_embed.split((self.prefix_rows, self.grid[0] * self.grid[1]), dim=1)
        table = resample_table(table, self.grid, pos.extent, antialias=self.antialias, mode=self.interpolation)
        if pos.indices is not None:
            table = table.expand(pos.indices.shape[0], -1, -1).gather(1, pos.indices[..., None].expand(-1, -1, self.dim))
        if not pos.prefix:
            return table
        lead = lead if self.prefix_rows else table.new_zeros(1, pos.prefix, self.dim)
        return torch.cat((lead.expand(table.shape[0], -1, -1), table), dim=1)

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)

    def set_grid(self, grid: tuple[int, int]) -> list[str]:
        """Resample the table itself to another grid (what fine-tuning at another size does); says what it did."""
        grid = (int(grid[0]), int(grid[1]))
        if grid == self.grid:
            return []
        lead, table = self.pos_embed.detach().split((self.prefix_rows, self.grid[0] * self.grid[1]), dim=1)
        table = resample_table(table, self.grid, grid, antialias=self.antialias, mode=self.interpolation)
        text = f"pos_embed resampled from {self.grid} to {grid}"
        self.pos_embed = nn.Parameter(torch.cat((lead, table), dim=1), requires_grad=self.pos_embed.requires_grad)
        self.grid = grid
        return [text]
