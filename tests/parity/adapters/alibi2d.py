"""CROMA's 2-D ALiBi: the whole bias."""

from __future__ import annotations

from vispe import create_encoding, patch_grid

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c = case.config
    encoding = create_encoding("alibi2d", dim=c["heads"], num_heads=c["heads"])
    return {"out.bias": encoding.prepare(patch_grid(c["height"], c["width"])).pairs}
