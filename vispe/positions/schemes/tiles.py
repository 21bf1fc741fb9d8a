"""RoPE-DHR and ID-Align: high-resolution tokens take the ids of the thumbnail tokens that show the same place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..segments import SegmentError, Tiles
from .base import Block, counting
from .line import Line


@dataclass(frozen=True)
class RopeDHR(Line):
    """The thumbnail counts on, token by token; each tile token inherits the id of the thumbnail cell that covers it.

    RoPE-DHR: Liu et al., CoMemo, arXiv 2506.06279, LALBJ/CoMemo d2d9d2f. ID-Align: arXiv 2505.21465 (no code), the same rule.
    An image of one tile without a thumbnail is its own thumbnail. Text goes on behind the thumbnail's last id.

    Args:
        rule: "fixed", floor of the cell scaled to the thumbnail; "released", CoMemo's code with both defects its weights were
            trained with: tiles are placed column by column though they come row by row, and every tile but the first starts a
            cell early.
        thumbnail: grid to inherit from where the segment has no thumbnail; None for a tile's own grid.
    """

    rule: Literal["fixed", "released"] = "fixed"
    thumbnail: tuple[int, int] | None = None
    pad: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.rule not in ("fixed", "released"):
            raise ValueError(f"rope_dhr: rule must be 'fixed' or 'released', got {self.rule!r}.")

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        height, width = tiles.thumbnail or self.thumbnail or (tiles.height, tiles.width)
        place = self.covered if self.rule == "fixed" else self.released
        row, column = place(tiles, height, width)
        own, whole = row * width + column, counting(height * width if tiles.thumbnail else 0)
        parts = (own.double(), whole) if tiles.first == "tiles" else (whole, own.double())
        return Block(torch.cat(parts)[None], height * width)

    @staticmethod
    def covered(tiles: Tiles, height: int, width: int) -> tuple[Tensor, Tensor]:
        row, column = tiles.cells()
        return row * height // (tiles.rows * tiles.height), column * width // (tiles.cols * tiles.width)

    @staticmethod
    def released(tiles: Tiles, height: int, width: int) -> tuple[Tensor, Tensor]:
        if tiles.order != "tiles":
            raise SegmentError("rope_dhr 'released' takes tiles one after the other; rule='fixed' takes any order.")
        k = torch.arange(tiles.rows * tiles.cols)
        down, across = k % tiles.rows, k // tiles.rows

        def span(place: Tensor, parts: int, side: int, n: int) -> Tensor:
            band = side / parts - 1e-6
            return (place[:, None] * band + torch.linspace(0, 1, n, dtype=torch.float64) * band).long()  # (tiles, n)

        row = span(down, tiles.rows, height, tiles.height)[:, :, None].expand(-1, -1, tiles.width)
        column = span(across, tiles.cols, width, tiles.width)[:, None].expand(-1, tiles.height, -1)
        return row.flatten(), column.flatten()


@dataclass(frozen=True)
class IDAlign(RopeDHR):
    """RoPE-DHR's fixed rule under the name of the paper that takes any thumbnail grid (LLaVA-NeXT puts the thumbnail first)."""
