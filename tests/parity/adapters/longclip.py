"""beichenzbc/Long-CLIP: the stretched position table of its text tower."""

from __future__ import annotations

from vispe.models.clip_text import stretch_table

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    inputs = leaves(case.inputs)
    stretched = stretch_table(inputs["positional_embedding"], keep=c["kept"], ratio=c["ratio"])
    out = {"out.stretched": stretched}
    if "cotangent" in inputs:
        out |= gradients((stretched * case.inputs["cotangent"]).sum(), inputs)
    return out
