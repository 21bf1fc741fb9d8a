"""CPVT: the isotropic layout (`pos_block.j.proj.weight`) and the pyramid of Twins (`pos_block.s.proj.0.weight`).

The isotropic CPVT was never published; its layout is that of the paper's algorithm in timm's names, with the j-th PEG
at the j-th of the chosen blocks. The pyramid (CPVTV2, Twins-PCPVT) goes into timm's `Twins`, whose keys it shares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid

ENCODINGS = ("cpe",)  # whose weights these are
_PEG = re.compile(r"pos_block\.(\d+)\.proj\.(?:0\.)?(weight|bias)")


def matches(keys: Iterable[str]) -> bool:
    return any(key.startswith("pos_block.") for key in keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "cpvt")
    ours = set(model.state_dict())
    if "pos_block.0.proj.0.weight" not in ours:
        places = [k.split(".")[3] for k in ours if k.startswith("encoding.cpe.pegs.") and k.endswith(".weight")]
        places.sort(key=int)
        for key in list(draft.left):
            found = _PEG.fullmatch(key)
            if found is None:
                continue
            if int(found[1]) < len(places):
                draft.move(key, f"encoding.cpe.pegs.{places[int(found[1])]}.{found[2]}")
            else:
                draft.refuse(key, f"the model has {len(places)} PEGs; create it with 'cpe' and `after` as in the source")
    plain.finish(draft, model, source_grid)
    return draft
