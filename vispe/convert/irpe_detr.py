"""microsoft/Cream iRPE in DETR (DETR-with-iRPE at 4a13c40): the tables of its encoder.

`transformer.encoder.layers.i.self_attn.rpe_{q,k,v}.lookup_table_{weight,bias}`, without a bucket for prefix tokens. There is
no DETR here; the tables go into an `EncodingStack("irpe", ...)` (or any model that holds one as `encoding`) of as many layers,
whose attentions are the user's. Everything else of the detector is dropped by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from ..encodings import EncodingStack
from .irpe import table_name
from .report import Draft
from .tables import Grid

ENCODINGS = ("irpe",)  # whose weights these are
_DETECTOR = (
    "backbone.", "transformer.", "input_proj.", "query_embed.", "class_embed.", "bbox_embed.", "bbox_attention.", "mask_head.",
)  # fmt: skip
_TABLE = re.compile(r"transformer\.encoder\.layers\.(\d+)\.self_attn\.(rpe_.*)")


def matches(keys: Iterable[str]) -> bool:
    return any(_TABLE.fullmatch(key) for key in keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "irpe_detr")
    ours = set(model.state_dict())
    root = "irpe." if isinstance(model, EncodingStack) else "encoding.irpe."
    for key in list(draft.left):
        found = _TABLE.fullmatch(key)
        name = table_name(found[2]) if found else None
        if name is None:
            if key.startswith(_DETECTOR):
                draft.drop(key, "a part of the detector, not of its encoding")
        elif (new := f"{root}{found[1]}.{name}") in ours:
            draft.move(key, new)
        else:
            draft.refuse(key, "the model has no such table; create it with 'irpe' and the source's layers, on and method")
    return draft
