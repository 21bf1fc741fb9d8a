"""Qwen2-VL and Qwen2.5-VL: ids of transformers 4 and 5 and of the Qwen team, chunked rotary."""

from __future__ import annotations

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def preset(c: dict) -> str:
    """Which code: text may go on at start + max(h, w) (5.24), and seconds may be cut to whole ones (4.57)."""
    if c["text_resumes"].startswith("start"):
        return "transformers_5"
    whole = "int(" in c.get("temporal_step", "int(")
    return "transformers_4" if whole else "qwen"


def run(case: Case) -> Results:
    c = case.config
    scheme = create_scheme("mrope", preset=preset(c), tokens_per_second=c.get("tokens_per_second"))
    made = sequence(case, scheme)
    out = made.results(minus="valid" if scheme.preset == "transformers_5" else "padded")
    return out | rotated(case, sequence_rotary(case, scheme), made.ids) if "head_dim" in c else out
