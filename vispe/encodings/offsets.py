"""What biases over offsets share: one value for each of the (2H−1)(2W−1) offsets of a grid, picked for every pair of
tokens.

An offset is query minus key. That of (dy, dx) has the row (dy + H − 1)(2W − 1) + dx + W − 1, as in Swin, BEiT and timm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions, lattice
from .base import Encoding


def unique_offsets(extent: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Every offset between two cells of a grid, (Π(2n−1), axes) float32 in cells, row-major."""
    reach = torch.stack([torch.full((), n - 1.0, device=device) for n in extent])
    return lattice(tuple(2 * n - 1 for n in extent), device) - reach


def pair_offsets(query: Tensor, key: Tensor) -> Tensor:
    """Query minus key of coordinates (B or 1, Nq, axes) and (B or 1, Nk, axes): (B or 1, Nq, Nk, axes)."""
    return query.unsqueeze(-2) - key.unsqueeze(-3)


def offset_index(query: Tensor, key: Tensor, extent: Sequence[int]) -> Tensor:
    """Rows of `unique_offsets(extent)` that belong to the pairs of cells, (B or 1, Nq, Nk) int64."""
    index = 0
    for delta, n in zip(pair_offsets(query.long(), key.long()).unbind(-1), extent):
        index = index * (2 * n - 1) + delta + (n - 1)
    return index


def pick(values: Tensor, index: Tensor) -> Tensor:
    """values (H, K) at index (B, Nq, Nk): (B, H, Nq, Nk). `index_select` has the cheapest backward of the ways to gather."""
    return values.index_select(1, index.flatten()).view(-1, *index.shape).transpose(0, 1)


@dataclass(frozen=True)
class OffsetContext:
    """One side's cells, the values (H, K) of their frame's offsets, and the bias of the side with itself.

    `pairs` is (B or 1, H, prefix + N, prefix + N); `extent` and `values` are None for custom coordinates.
    """

    coords: Tensor
    prefix: int
    extent: tuple[int, ...] | None
    values: Tensor | None
    pairs: Tensor


class OffsetBias(Encoding):
    """Base of biases that see offsets only. Subclasses give `at`, or `table_values` where a table holds the values."""

    name: ClassVar[str]
    per_layer = True

    def at(self, offsets: Tensor, extent: tuple[int, ...] | None) -> Tensor:
        """Biases (H, ...) of offsets (..., axes) in cells of a frame, or in the caller's own units (extent None)."""
        raise ValueError(
            f"{self.name}: a table over the offsets of a grid needs grid positions (patch_grid), got custom coordinates; use "
            f"swinv2_cpb, fire2d or alibi2d for free coordinates."
        )

    @classmethod
    def all_values(cls, layers: Sequence[OffsetBias], extent: tuple[int, ...], device: torch.device) -> Tensor:
        """Values of all layers at every offset of the frame, (layers · H, K)."""
        offsets = unique_offsets(extent, device)
        return torch.cat([layer.at(offsets, extent) for layer in layers])

    def spread(self, values: Tensor, index: Tensor, prefix_q: int, prefix_k: int) -> Tensor:
        """Values for all pairs (B, H, prefix + Nq, prefix + Nk); 0 where a prefix token takes part."""
        return F.pad(pick(values, index), (prefix_k, 0, prefix_q, 0))

    @classmethod
    def prepare_layers(cls, layers: Sequence[OffsetBias], pos: Positions) -> list[OffsetContext]:
        one = layers[0]
        one.check_axes(pos)
        if pos.units == "custom" or pos.extent is None:
            offsets = pair_offsets(pos.coords, pos.coords)
            return [OffsetContext(pos.coords, pos.prefix, None, None, layer._free(offsets, pos, pos)) for layer in layers]
        values = cls.all_values(layers, pos.extent, pos.coords.device)
        index = offset_index(pos.coords, pos.coords, pos.extent)
        pairs = one.spread(values, index, pos.prefix, pos.prefix)  # (B or 1, layers · H, prefix + N, prefix + N)
        return [
            OffsetContext(pos.coords, pos.prefix, pos.extent, v, p)
            for v, p in zip(values.chunk(len(layers)), pairs.chunk(len(layers), dim=1))
        ]

    def prepare(self, pos: Positions) -> OffsetContext:
        return self.prepare_layers([self], pos)[0]

    def _free(self, offsets: Tensor, query: Positions | OffsetContext, key: Positions | OffsetContext) -> Tensor:
        return F.pad(self.at(offsets, None).transpose(0, 1), (key.prefix, 0, query.prefix, 0))

    def between_sides(self, ctx_q: OffsetContext, ctx_k: OffsetContext) -> Tensor:
        """Biases of every query with every key, (B or 1, H, prefix + Nq, prefix + Nk)."""
        if ctx_q is ctx_k:
            return ctx_k.pairs
        if ctx_q.extent != ctx_k.extent:
            raise ValueError(
                f"{self.name}: queries lie in the frame {ctx_q.extent}, keys in {ctx_k.extent}, and an offset has no meaning "
                f"between them; give both positions in one frame (take, crop), or both as custom coordinates."
            )
        if ctx_k.extent is None:
            return self._free(pair_offsets(ctx_q.coords, ctx_k.coords), ctx_q, ctx_k)
        return self.spread(ctx_k.values, offset_index(ctx_q.coords, ctx_k.coords, ctx_k.extent), ctx_q.prefix, ctx_k.prefix)

    def bias(self, q: Tensor, k: Tensor, ctx_q: OffsetContext, ctx_k: OffsetContext) -> Tensor:
        return self.between_sides(ctx_q, ctx_k)
