"""Axis maps: which row of a sequence's ids each rotary pair reads, and which pairs read none.

    axis_map("chunked", pairs=64, sections=(16, 24, 24))          Qwen2-VL: t..t h..h w..w
    axis_map("interleaved", pairs=64)                             Qwen3-VL: t h w t h w .. t t t t
    axis_map("heads", pairs=64, sections=(2, 3, 3), heads=8)      MHRoPE: whole heads
    axis_map(create_scheme("hope").allocation, pairs=64)          the map of a scheme's official rotary

Pairs count from the fastest. Rows of ids are (time, row, column) but for "single" (one row) and "cycle" (VRoPE's four).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Allocation = Literal[
    "single",
    "chunked",
    "interleaved",
    "videorope",
    "hope",
    "alternating",
    "alternating_still",
    "heads",
    "cycle",
    "lumos",
]
STILL = -1  # a pair that reads no ids
LUMOS = (0, 0, 1, 2, 1, 2, 1, 2)


@dataclass(frozen=True)
class AxisMap:
    """The row of ids of every pair.

    Attributes:
        axis: one tuple of P rows for all heads, or one for each key-value head; `STILL` for pairs that do not turn.
        axes: rows that the ids must have.
        plain: whether still pairs have cosine 1 whatever the attention's temperature is (HoPE's code); else its factor, as
            tables that are computed for zero angles have.
    """

    axis: tuple[tuple[int, ...], ...]
    axes: int
    plain: bool = False

    def __post_init__(self) -> None:
        if not self.axis or not self.axis[0] or any(len(row) != len(self.axis[0]) for row in self.axis):
            raise ValueError(f"AxisMap: needs at least one pair, and as many for every head, got {self.axis}.")
        wrong = sorted({a for row in self.axis for a in row if not STILL <= a < self.axes})
        if wrong:
            raise ValueError(f"AxisMap: pairs read rows 0 .. {self.axes - 1} of the ids, or {STILL} for none, got {wrong}.")

    @property
    def pairs(self) -> int:
        return len(self.axis[0])

    @property
    def heads(self) -> int:
        """Maps: 1 for all heads alike."""
        return len(self.axis)

    @property
    def still(self) -> bool:
        """Whether any pair reads no ids."""
        return any(a == STILL for row in self.axis for a in row)

    def rows(self, device: torch.device | None = None) -> Tensor:
        """(H or 1, P) int64."""
        return torch.tensor(self.axis, device=device)

    def members(self, axis: int) -> Tensor:
        """Which pairs read this row in any head, (P,) bool."""
        return (self.rows() == axis).any(dim=0)


def default_sections(allocation: Allocation, *, pairs: int, heads: int | None = None) -> tuple[int, int, int]:
    """The published shares of (time, row, column) at another width.

    Of 64 pairs (16, 24, 24) in blocks and (24, 20, 20) interleaved, of 8 heads (2, 3, 3).
    """
    if allocation == "heads":
        side = 3 * (heads or 8) // 8 or (heads or 8) // 3
        return ((heads or 8) - 2 * side, side, side)
    side = 5 * pairs // 16 if allocation == "interleaved" else (pairs - pairs // 4) // 2
    return (pairs - 2 * side, side, side)


def axis_map(
    allocation: Allocation, *, pairs: int, sections: Sequence[int] | None = None, heads: int | None = None
) -> AxisMap:
    """The map of a rule.

    Args:
        allocation: "chunked" (Qwen2-VL), "interleaved" (Qwen3-VL, MRoPE-I), "videorope" (rows and columns alternate on the
            fastest pairs, time on the slowest), "hope" (the same, time turns nothing), "alternating" and "alternating_still"
            (those two as JJJYmmm/Multimodal-RoPEs reads them: the fastest pair belongs to time), "heads" (MHRoPE), "cycle"
            (VRoPE: pair c reads row c mod 4), "lumos" (MM-RoPE: t t h w h w h w again and again), "single" (one row).
        pairs: P, half the rotated channels of a head.
        sections: pairs (for "heads": key-value heads) of time, rows, columns; None for the published shares. Rules without
            sections refuse them.
        heads: key-value heads, for "heads" alone. Heads beyond the sections do not turn.
    """
    if allocation not in get_args(Allocation):
        raise ValueError(f"axis_map: allocation must be one of {get_args(Allocation)}, got {allocation!r}.")
    if pairs < 1:
        raise ValueError(f"axis_map: a head needs at least one pair of channels, got pairs={pairs}.")
    if allocation in ("single", "cycle", "lumos"):
        if sections is not None:
            raise ValueError(f"axis_map: {allocation!r} shares out no sections, got {tuple(sections)}; leave them out.")
        pattern, axes = {"single": ((0,), 1), "cycle": ((0, 1, 2, 3), 4), "lumos": (LUMOS, 3)}[allocation]
        return AxisMap((tuple(pattern[k % len(pattern)] for k in range(pairs)),), axes)
    if allocation == "heads":
        return _by_head(pairs, sections, heads)
    share = _sections(allocation, pairs, sections)
    build = {"chunked": _chunked, "interleaved": _interleaved, "videorope": _videorope, "hope": _videorope}
    row = build.get(allocation, _alternating)(pairs, share)
    if allocation in ("hope", "alternating_still"):
        row = [STILL if a == 0 else a for a in row]
    return AxisMap((tuple(row),), 3, plain=allocation == "hope")


def _sections(allocation: Allocation, pairs: int, sections: Sequence[int] | None) -> tuple[int, int, int]:
    share = default_sections(allocation, pairs=pairs) if sections is None else tuple(int(s) for s in sections)
    if len(share) != 3 or min(share) < 0 or sum(share) != pairs:
        raise ValueError(
            f"axis_map: sections of {allocation!r} are pairs of (time, row, column) that add up to {pairs}, half the head's "
            f"channels; got {share}, in sum {sum(share)}. Published shares give {default_sections(allocation, pairs=pairs)}."
        )
    return share


def _chunked(pairs: int, share: tuple[int, int, int]) -> list[int]:
    return [axis for axis, n in enumerate(share) for _ in range(n)]


def _interleaved(pairs: int, share: tuple[int, int, int]) -> list[int]:
    """Pair k is a row's where k mod 3 = 1 and a column's where k mod 3 = 2, as long as those last; else it is time's."""
    last = max(3 * share[1] - 2, 3 * share[2] - 1)
    if last >= pairs:
        raise ValueError(
            f"axis_map: interleaved sections {share} do not fit: rows read every third pair from 1 on, columns from 2 on, up "
            f"to pair {last} of {pairs} (counted from 0), and what lies beyond would go to time unseen; use at most "
            f"{(pairs + 1) // 3} for rows and {pairs // 3} for columns, e.g. {default_sections('interleaved', pairs=pairs)}."
        )
    return [k % 3 if k % 3 and k < 3 * share[k % 3] else 0 for k in range(pairs)]


def _videorope(pairs: int, share: tuple[int, int, int]) -> list[int]:
    """Row, column, row, ... over the fastest pairs; time on the slowest. Only the sum of rows and columns matters."""
    return [1 + k % 2 for k in range(pairs - share[0])] + [0] * share[0]


def _alternating(pairs: int, share: tuple[int, int, int]) -> list[int]:
    """Rows on odd pairs below 2 h, columns on even ones from 2 on below 2 w; pair 0 and the rest are time's."""
    return [1 if k % 2 and k < 2 * share[1] else 2 if k and k % 2 == 0 and k < 2 * share[2] else 0 for k in range(pairs)]


def _by_head(pairs: int, sections: Sequence[int] | None, heads: int | None) -> AxisMap:
    if heads is None or heads < 1:
        raise ValueError(f"axis_map: 'heads' gives whole key-value heads to axes; pass heads=, at least 1, got {heads}.")
    share = default_sections("heads", pairs=pairs, heads=heads) if sections is None else tuple(int(s) for s in sections)
    if len(share) != 3 or min(share) < 0 or sum(share) > heads:
        raise ValueError(
            f"axis_map: sections of 'heads' are heads for (time, row, column), at most {heads} together, got {share}; the "
            f"published shares give {default_sections('heads', pairs=pairs, heads=heads)}."
        )
    owners = [axis for axis, n in enumerate(share) for _ in range(n)] + [STILL] * (heads - sum(share))
    return AxisMap(tuple((axis,) * pairs for axis in owners), 3)
