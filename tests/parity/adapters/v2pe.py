"""OpenGVLab/V2PE: fractional ids of visual tokens; and JJJYmmm/Multimodal-RoPEs' reading, one span for a whole block."""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby

import torch
from torch import Tensor

from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Segment, Text, Tiles
from vispe.positions.sequence import build_ids, pack

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary
from .common import Results

IMAGE_TOKEN = 92546  # behind <img> 92544 and </img> 92545 in InternVL's vocabulary


def token_runs(visual: Tensor) -> list[tuple[bool, int]]:
    """Runs of visual and other tokens of a row (S,) bool: whether visual, how many."""
    return [(kind, len(list(tokens))) for kind, tokens in groupby(visual.tolist())]


def run(case: Case) -> Results:
    c = case.config
    if "deltas" in c:
        names = {d: Fraction(d).limit_denominator(1 << 16) for d in c["deltas"]}
        return {f"out.position_ids_delta_{n.numerator}_{n.denominator}": ids(case, d) for d, n in names.items()}
    if "strides" in case.inputs:
        return {"out.position_ids": ids(case, case.inputs["strides"].double() / c["tokens_per_tile"])}
    if "visual_stride" in c:
        made = sequence(case, create_scheme("v2pe", span=c["visual_stride"]))
        deltas = torch.tensor(made.next_ids)[:, None] - made.mask.shape[1]
        return {"out.position_ids": made.ids, "out.rope_deltas": deltas} | rotary(case, made.ids[:1])
    placed = ids(case, c["delta"])
    return {"out.position_ids": placed} | (rotary(case, placed[None]) if "head_dim" in c else {})


def rotary(case: Case, placed: Tensor) -> Results:
    """What the files keep of the rotation by ids (1, B, S)."""
    return rotated(case, sequence_rotary(case, create_scheme("v2pe"), sections=None), placed)


def ids(case: Case, delta: float | Tensor) -> Tensor:
    """(B, S) float32, one delta or those of each image (B, images)."""
    tokens, scheme = case.config["tokens_per_tile"], create_scheme("v2pe")
    mask, tiles = case.inputs["attention_mask"].bool(), case.inputs["num_tiles"]
    rates = torch.as_tensor(delta, dtype=torch.float64).expand(tiles.shape)
    rows = []
    for ids_row, valid, counts, own in zip(case.inputs["input_ids"], mask, tiles.tolist(), rates.tolist()):
        used = [(n, rate) for n, rate in zip(counts, own) if n]
        images = iter(used)
        segments: list[Segment] = []
        for visual, n in token_runs(ids_row[valid] == IMAGE_TOKEN):
            segments.append(Tiles(1, next(images)[0], 1, tokens, tokens=n) if visual else Text(n))
        rows.append(build_ids(segments, scheme, rates=[rate for _, rate in used])[0])
    side = "left" if not mask[:, 0].all() else "right"
    packed, placed = pack(rows, side=side, pad=case.config.get("padding_value", scheme.pad))
    assert torch.equal(placed, mask), "padding is on one side only"
    return packed[0]
