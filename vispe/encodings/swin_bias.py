"""Swin's relative position bias: a learned number for each offset of a window, each head and each layer.

    logit_ij += table[offset(i − j)]

Paper: Liu et al., Swin Transformer, ICCV 2021, arXiv 2103.14030. Code: microsoft/Swin-Transformer at f82860b,
WindowAttention (timm's `RelPosBias` without a class token is the same). The bias is added after scaling; masks of
shifted windows are the host's.
Chosen here: the window is the grid of the positions (a whole image in a ViT, one window in a window host), which may
have any shape; another grid than the table's is served by resampling the original table, in the way named by
`resample`; pairs with prefix tokens get 0; the index is computed from the positions and never stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .base import Card, at_least_float32
from .offsets import OffsetBias
from .rel_bias_resize import Resample, resample_option, resize_rel_pos_bias_table


class SwinBias(OffsetBias):
    """A table over the offsets of a grid.

    Args:
        grid: (H, W) cells of the table's window; a host fills in its train grid.
        resample: how another grid is served: "bicubic" (Swin's own loader), "bilinear", "geometric" (BEiT's), or "none", which
            refuses it.

    Attributes:
        table: ((2H−1)(2W−1), heads), row-major offsets query − key.
    """

    card = Card(
        title="Swin relative position bias",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j + b[i-j]",
        needs=("grid",),
        paper="https://arxiv.org/abs/2103.14030",
        year=2021,
        code="microsoft/Swin-Transformer",
        licence="MIT",
        cases=2,
    )
    name = "swin_bias"
    no_decay = ("table",)
    neutral_zeros = ("table",)
    init_std = 0.02

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, grid: tuple[int, int], resample: Resample = "bicubic"
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if len(grid) != axes or min(grid) < 1:
            raise ValueError(f"{self.name}: grid must have {axes} sides of at least 1 cell, got {tuple(grid)}.")
        self.grid = tuple(int(n) for n in grid)
        self.resample = resample_option(self.name, resample)
        self.table = nn.Parameter(torch.empty(self.table_shape()))
        self.reset_parameters()

    def table_shape(self) -> tuple[int, ...]:
        return (math.prod(2 * n - 1 for n in self.grid) + self.extra_rows, self.num_heads)

    @property
    def extra_rows(self) -> int:
        """Rows of the table that belong to no offset."""
        return 0

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=self.init_std) if self.init_std else nn.init.zeros_(self.table)

    def rows(self) -> Tensor:
        """The table as (K, heads), offsets query − key."""
        return self.table

    @classmethod
    def all_values(cls, layers: Sequence[SwinBias], extent: tuple[int, int], device: torch.device) -> Tensor:
        one = layers[0]
        if one.resample == "none" and tuple(extent) != one.grid:
            raise ValueError(
                f"{one.name}: the table belongs to the grid {one.grid}, the tokens to {tuple(extent)}; call set_grid with a "
                f"way to resample, or create it with resample='bicubic'."
            )
        rows = torch.cat([layer.rows() for layer in layers], dim=1)  # resampled together
        rows = rows.to(at_least_float32(rows.dtype))
        if one.resample != "none":
            rows = resize_rel_pos_bias_table(rows, one.grid, extent, method=one.resample, extra_rows=one.extra_rows)
        return rows.T.contiguous()

    @torch.no_grad()
    def set_grid(self, grid: tuple[int, int], resample: Resample | None = None) -> list[str]:
        """Resample the table itself to another grid (what fine-tuning at another size does); says what it did."""
        grid = tuple(int(n) for n in grid)
        if grid == self.grid:
            return []
        method = self.resample if resample is None else resample_option(self.name, resample)
        if method == "none":
            raise ValueError(f"{self.name}: resample='none' keeps the grid {self.grid}; name a way: set_grid(grid, 'bicubic').")
        extra = {} if self.table.ndim == 3 else {"extra_rows": self.extra_rows}
        table = resize_rel_pos_bias_table(self.table, self.grid, grid, method=method, **extra)
        self.table = nn.Parameter(table.contiguous(), requires_grad=self.table.requires_grad)
        text = f"table resampled ({method}) from {self.grid} to {grid}"
        self.grid = grid
        return [text]
