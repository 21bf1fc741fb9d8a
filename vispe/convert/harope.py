"""Studentxll/HARoPE's DiT onto EncodedDiT with the harope encoding. No weights were published.

Of the official A_u and A_v only the skew part acts: ours holds the strict upper triangle of (A − Aᵀ) / 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from . import dit
from .comrope import upper_triangle
from .report import Draft
from .tables import Grid

ENCODINGS = ("harope",)  # whose weights these are
_MATRIX = re.compile(r"blocks\.(\d+)\.attn\.learnable_rot\.(A_u|A_v|sigma)")


def matches(keys: Iterable[str]) -> bool:
    return any(_MATRIX.fullmatch(key) for key in keys)


def encoding_tensor(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Name and value of our parameter for an official one, (H, D, D) or (H, D)."""
    return (name, tensor) if name == "sigma" else (f"skew_{name[-1]}", 0.5 * upper_triangle(tensor))


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "harope")
    ours = set(model.state_dict())
    for key in list(draft.left):
        found = _MATRIX.fullmatch(key)
        if found is None:
            continue
        name, tensor = encoding_tensor(found[2], draft.left[key])
        new = f"encoding.harope.{found[1]}.{name}"
        if new in ours:
            draft.put(new, tensor, key)
        else:
            draft.refuse(key, "the model has no matrices there; create it with encoding='harope' and the source's depth")
    dit.finish(draft, model, source_grid)
    return draft
