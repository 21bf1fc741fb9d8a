"""hustvl/LightningDiT onto EncodedDiT: SwiGLU under other names, and the tables of its rotation, which it saves.

The encoding is sincos2d (preset "dit") and rope_eva02 with pretrain_grid=None at once; prediction_type "sit_velocity".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from . import dit
from .report import Draft
from .tables import Grid

ENCODINGS = ("sincos2d", "rope_eva02")  # whose weights these are
_GATED = re.compile(r"(blocks\.\d+\.mlp)\.(w12|w3)\.(weight|bias)")
_NAMES = {"w12": "fc1", "w3": "fc2"}
_TABLES = {"feat_rope.freqs_cos": "cos", "feat_rope.freqs_sin": "sin"}


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    return dit.matches(keys) and ("feat_rope.freqs_cos" in keys or any(_GATED.fullmatch(key) for key in keys))


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "lightningdit")
    for key in list(draft.left):
        if found := _GATED.fullmatch(key):
            draft.move(key, f"{found[1]}.{_NAMES[found[2]]}.{found[3]}")
    if any(key in draft.left for key in _TABLES):
        count = next(draft.left[key] for key in _TABLES if key in draft.left).shape[0]
        dit.drop_rotation(draft, model, _TABLES, count, source_grid)
    dit.finish(draft, model, source_grid)
    return draft
