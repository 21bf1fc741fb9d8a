"""johncaged/VRoPE: four sums of row and column, the ids of each rotary pair. Its files choose the half-split rotation."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe.encodings.axis_map import axis_map
from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Segment, Text, Video
from vispe.positions.sequence import build_batch, build_ids

from ..cases import Case
from ..sequence_layout import rotated, sequence_rotary
from .common import Results


def run(case: Case) -> Results:
    c, scheme = case.config, create_scheme("vrope")
    batch = build_batch([segments(row) for row in c["segments"]], scheme, side=c["padding_side"], pad=c["padding_value"])
    assert batch.mask.sum(1).tolist() == case.inputs["lengths"].tolist()
    pairs = axis_map(scheme.allocation, pairs=c["head_dim"] // 2).rows()[0]
    return {
        "out.position_ids": batch.ids[pairs].movedim(0, -1), "out.next_index": torch.tensor(batch.next_ids),
        "out.next_three_ids": torch.stack([steps(start, 3)[pairs].T for start in batch.next_ids]),
        **rotated(case, sequence_rotary(case, scheme), batch.ids),
    }  # fmt: skip


def segments(row: list) -> list[Segment]:
    return [Text(size) if kind == "text" else Video(*size) for kind, size in row]


def steps(start: int, count: int) -> Tensor:
    """Ids of generated tokens, one at a time, (4, count)."""
    found = []
    for _ in range(count):
        ids, start = build_ids([Text(1)], "vrope", start=start)
        found.append(ids)
    return torch.cat(found, dim=1)
