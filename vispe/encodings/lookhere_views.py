"""Where the heads of LookHere look: names of directions, which heads get them, at what slope, and what they see.

Source: GreenCUBIC/lookhere at 641deab, create_lh_layer_tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

# What each of four heads sees: directions joined by "&" (all of them) or "|" (any of them).
VIEWS: dict[str, tuple[str, str, str, str]] = {
    "none": ("", "", "", ""),
    "zero": ("zero", "zero", "zero", "zero"),
    "none1zero3": ("", "zero", "zero", "zero"),
    "none2zero2": ("", "", "zero", "zero"),
    "none3zero1": ("", "", "", "zero"),
    "center": ("center", "center", "center", "center"),
    "halves": ("up", "down", "left", "right"),
    "corners": ("up&left", "up&right", "down&left", "down&right"),
    "triangles": ("tri_up", "tri_down", "tri_left", "tri_right"),
    "diagonals": ("tri_up|tri_right", "tri_up|tri_left", "tri_down|tri_right", "tri_down|tri_left"),
    "eighths1": ("tri_up&left", "tri_down&left", "tri_left&up", "tri_right&up"),
    "eighths2": ("tri_up&right", "tri_down&right", "tri_left&down", "tri_right&down"),
    "zerohalves": ("zero&up", "zero&down", "zero&left", "zero&right"),
    "zerocorners": ("zero&up&left", "zero&up&right", "zero&down&left", "zero&down&right"),
    "zerotriangles": ("zero&tri_up", "zero&tri_down", "zero&tri_left", "zero&tri_right"),
}
SHARES = {(2, 16): (8, 8), (3, 16): (8, 4, 4)}  # official splits of heads that the rule of `share_heads` would not give


def share_heads(names: Sequence[str], num_heads: int) -> list[tuple[str, int]]:
    """Heads of each name. Official: 4 + 2 of 6 heads, 8 + 4 of 12, 8 + 8 and 8 + 4 + 4 of 16, equal shares else.

    Our rule where there is no official one: two thirds and one third of two names, equal shares of more names (the first
    takes what is left over).
    """
    count = len(names)
    if num_heads < count and count > 2:
        raise ValueError(
            f"lookhere: {count} kinds of heads ({'-'.join(names)}) need as many heads, got num_heads={num_heads}; choose "
            f"fewer kinds."
        )
    share = num_heads // 3 if count == 2 else num_heads // count
    rest = num_heads - share * (count - 1)
    return list(zip(names, SHARES.get((count, num_heads), (rest, *[share] * (count - 1)))))


def head_views(directions: str, num_heads: int) -> list[tuple[str, float]]:
    """View and slope of every head of, for instance, "halves-none"."""
    names = directions.split("-")
    unknown = [name for name in names if name not in VIEWS]
    if unknown:
        raise ValueError(f"lookhere: no heads look {unknown[0]!r}; directions join names of {sorted(VIEWS)} by '-'.")
    heads = []
    for name, group in groupby([name for name, count in share_heads(names, num_heads) for _ in range(count)]):
        count = len(list(group))
        for i in range(count):
            if name.startswith(("zero", "center", "none")):
                slope = 4.0 ** -(1 + (i if count <= 4 else i * 4 // count))
            else:
                slope = 2.0 ** -(1 + i // 4)
            heads.append((VIEWS[name][i % 4], slope))
    return heads


def visible(view: str, dy: Tensor, dx: Tensor) -> Tensor:
    """Whether a head with that view sees a key at offset (dy, dx), query minus key."""
    if "|" in view:
        return torch.stack([visible(part, dy, dx) for part in view.split("|")]).any(0)
    seen = torch.ones_like(dy, dtype=torch.bool)
    for part in view.split("&"):
        side, _, direction = part.rpartition("_")
        ahead = {"up": dy, "down": -dy, "left": dx, "right": -dx}.get(direction)  # 0 and above: the own cell is seen
        if ahead is not None:
            aside = (dx if direction in ("up", "down") else dy).abs() if side else 0.0
            seen = seen & (ahead >= aside)
    return seen
