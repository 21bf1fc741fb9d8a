"""Wiselnn570/VideoRoPE with the frequencies of VideoRoPE++, and the variant of JJJYmmm/Multimodal-RoPEs."""

from __future__ import annotations

import torch

from vispe.encodings.rope_sequence import SequenceRotary
from vispe.encodings.sequence_scaling import ScalingMethod, SequenceScaling
from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]

METHODS: dict[str, ScalingMethod] = {"ntk": "ntk", "yarn": "yarn", "mropepp": "mrope++", "videoropepp_v1": "videorope++"}


def run(case: Case) -> Results:
    c = case.config
    if not case.inputs:
        return extended(case)
    variant = "temporal_stride" in c
    scheme = create_scheme("videorope", scale=c["temporal_stride" if variant else "temporal_scale"])
    made = sequence(case, scheme)
    rotary = sequence_rotary(case, scheme, allocation="alternating" if variant else "videorope")
    return made.results(dtype=torch.float32, axis=0) | rotated(case, rotary, made.ids)


def extended(case: Case) -> Results:
    """Frequencies of each method; which pairs are time's depends on the method's own layout."""
    c = case.config
    options = {"head_dim": c["head_dim"], "theta": c["rope_theta"], "sections": c["mrope_section"]}
    out = {"out.inv_freq_default": SequenceRotary(scheme="videorope", **options).frequencies()}
    for name, method in METHODS.items():
        scheme = "mrope" if name == "mropepp" else "videorope"
        scaling = SequenceScaling(method, factor=c["factor"], trained=c["max_position_embeddings"])
        out[f"out.inv_freq_{name}"] = SequenceRotary(scheme=scheme, scaling=scaling, **options).frequencies()
    return out
