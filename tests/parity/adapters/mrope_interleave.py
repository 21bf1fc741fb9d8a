"""Qwen3-VL in transformers 5 (with YaRN and dynamic NTK), and MRoPE-I with and without spatial reset (Multimodal-RoPEs)."""

from __future__ import annotations

import torch

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    c = case.config
    scheme = create_scheme(
        "mrope_interleave", spatial_reset=c.get("spatial_reset", False), stride=c.get("temporal_stride", 1)
    )
    authors = "temporal_stride" in c  # the other cases are transformers': padding 0, deltas without padding
    made = sequence(case, scheme, pad=c.get("padding_value", 1 if authors else 0))
    rotary = sequence_rotary(case, scheme)
    out = made.results(minus="padded" if authors else "valid") | rotated(case, rotary, made.ids)
    if rotary.scaling is not None:
        length = int(made.ids.max()) + 1
        out |= {"out.inv_freq": rotary.frequencies(length), "out.attention_scaling": torch.tensor(rotary.scaling.amount)}
    return out
