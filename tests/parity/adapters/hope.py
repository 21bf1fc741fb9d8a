"""hrlics/HoPE at fixed scales, and the variant of JJJYmmm/Multimodal-RoPEs."""

from __future__ import annotations

import torch

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    c = case.config
    variant = "temporal_stride_lst" in c
    scheme = create_scheme("hope", scale=c["temporal_stride_lst"][0] if variant else c["temporal_scale"])
    made = sequence(case, scheme)
    rotary = sequence_rotary(case, scheme, allocation="alternating_still" if variant else "hope")
    return made.results(dtype=torch.float32, axis=0) | rotated(case, rotary, made.ids)
