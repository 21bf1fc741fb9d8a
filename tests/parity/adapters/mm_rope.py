"""JJJYmmm/Multimodal-RoPEs: MM-RoPE (Lumos-1). Its configuration's mrope_section has no effect there."""

from __future__ import annotations

import torch

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    c = case.config
    scheme = create_scheme("mm_rope", scale=tuple(c["position_scale"]), stride=c["temporal_stride"])
    made = sequence(case, scheme)
    rotary = sequence_rotary(case, scheme, sections=None)
    return made.results(dtype=torch.float32) | rotated(case, rotary, made.ids)
