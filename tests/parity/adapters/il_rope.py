"""JJJYmmm/Multimodal-RoPEs: IL-RoPE."""

from __future__ import annotations

import torch

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    scheme = create_scheme("il_rope", stride=case.config["temporal_stride"])
    made = sequence(case, scheme)
    return made.results(dtype=torch.float32) | rotated(case, sequence_rotary(case, scheme), made.ids)
