"""JJJYmmm/Multimodal-RoPEs: MHRoPE, whole key-value heads for each axis."""

from __future__ import annotations

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    c = case.config
    scheme = create_scheme("mhrope", spatial_reset=c["spatial_reset"], stride=c["temporal_stride"])
    made = sequence(case, scheme)
    heads = c.get("heads_per_axis", c.get("mrope_section"))
    rotary = sequence_rotary(case, scheme, sections=heads, kv_heads=c["num_key_value_heads"])
    return made.results() | rotated(case, rotary, made.ids)
