"""Omni-RoPE: JJJYmmm/Multimodal-RoPEs (chunked sections) and VectorSpaceLab/OmniGen2 (a full spectrum for each axis)."""

from __future__ import annotations

import torch

from vispe.encodings.rope_sequence import SequenceRotary
from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Image, Text
from vispe.positions.sequence import build_ids, pack

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    c = case.config
    if "axes_dim" in c:
        return authors(case)
    scheme = create_scheme("omni_rope", stride=c["temporal_stride"])
    made = sequence(case, scheme)
    return made.results(dtype=torch.float32) | rotated(case, sequence_rotary(case, scheme), made.ids)


def authors(case: Case) -> Results:
    """A caption, the reference images, the image to draw; padding at id 0 behind them."""
    c = case.config
    lengths = c.get("caption_lengths", case.inputs.get("caption_lengths"))
    lengths = lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths
    rows = []
    for i, (caption, drawn) in enumerate(zip(lengths, c["image_sizes"])):
        sizes = [*((c.get("reference_sizes") or {i: None})[i] or []), drawn]
        images = [Image(h // c["patch"], w // c["patch"]) for h, w in sizes]
        rows.append(build_ids([Text(caption), *images], "omni_rope", row=i)[0])
    ids, _ = pack(rows, side="right", pad=0)
    sections = [d // 2 for d in c["axes_dim"]]
    options = {"sections": sections, "theta": c["theta"], "spectrum": "own", "layout": "interleaved"}
    ctx = SequenceRotary(head_dim=sum(c["axes_dim"]), scheme="omni_rope", **options).prepare(ids)
    return {"out.freqs_real": ctx.cos[:, 0], "out.freqs_imag": ctx.sin[:, 0]}
