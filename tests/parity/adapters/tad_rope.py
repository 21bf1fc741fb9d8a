"""TAD-RoPE as Wiselnn570/VideoRoPE has it: time index plus flat index on all axes."""

from __future__ import annotations

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary, tolerance
from .common import Results

__all__ = ["run", "tolerance"]


def run(case: Case) -> Results:
    scheme = create_scheme("tad_rope")
    made = sequence(case, scheme)
    rotary = sequence_rotary(case, allocation="chunked")
    # rope_deltas come from the time index alone, which is what is left of an id without its place in the row
    flat = made.mask.cumsum(dim=1) - 1
    time = (made.ids[0] - flat).masked_fill(~made.mask, -1)
    deltas = time.max(dim=1, keepdim=True).values + 1 - made.mask.shape[1]
    return {"out.position_ids": made.ids, "out.rope_deltas": deltas} | rotated(case, rotary, made.ids)
