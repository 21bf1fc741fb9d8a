"""timm's two ways to resample a table over offsets, in both layouts."""

from __future__ import annotations

from vispe.encodings.rel_bias_resize import resize_rel_pos_bias_table

from ..cases import Case
from .common import Results

METHODS = {"out.geometric_linear": "geometric", "out.simple_bicubic": "bicubic"}


def run(case: Case) -> Results:
    c = case.config
    source, target = tuple(c["source_window"]), tuple(c["target_window"])
    return {
        key: resize_rel_pos_bias_table(case.inputs["table"], source, target, method=method, extra_rows=c["extra_rows"])
        for key, method in METHODS.items()
    }
