"""microsoft/Cream iRPE (DeiT-with-iRPE): timm's layout with lookup tables inside the attentions.

`blocks.i.attn.rpe_{q,k,v}.lookup_table_{weight,bias}`, for "cross" `rpe_k.rp_rows.…` and `rpe_k.rp_cols.…`. Tables do
not depend on the grid and keep their layout; bucket ids are not in the state dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid

ENCODINGS = ("irpe",)  # whose weights these are
_TABLE = re.compile(r"rpe_([qkv])\.(?:rp_(rows|cols)\.)?lookup_table_(?:weight|bias)")
_IN_BLOCK = re.compile(r"blocks\.(\d+)\.attn\.(rpe_.*)")


def matches(keys: Iterable[str]) -> bool:
    return any(".attn.rpe_" in key for key in keys)


def table_name(key: str) -> str | None:
    """`rpe_k.rp_cols.lookup_table_weight` to the name in our Irpe, `k.1`; None for anything else."""
    found = _TABLE.fullmatch(key)
    if found is None:
        return None
    side, part = found.groups()
    return f"{'values' if side == 'v' else side}.{1 if part == 'cols' else 0}"


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "irpe")
    ours = set(model.state_dict())
    for key in list(draft.left):
        found = _IN_BLOCK.fullmatch(key)
        name = table_name(found[2]) if found else None
        if name is None:
            continue
        new = f"encoding.irpe.{found[1]}.{name}"
        if new in ours:
            draft.move(key, new)
        else:
            draft.refuse(key, "the model has no such table; create it with 'learned+irpe' and the source's on and method")
    plain.finish(draft, model, source_grid)
    return draft
