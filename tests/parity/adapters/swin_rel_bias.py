"""Swin: window attention with a table over offsets, masks of shifted windows included."""

from __future__ import annotations

from vispe import create_encoding, patch_grid
from vispe.convert.swin import encoding_tensors
from vispe.encodings.offsets import offset_index

from ..cases import Case
from .common import Results, bind, leaves
from .window import window_attention


def run(case: Case) -> Results:
    c = case.config
    grid = tuple(c["window"])
    p, x = leaves(case.params), leaves({"x": case.inputs["x"]})["x"]
    encoding = create_encoding("swin_bias", dim=c["dim"], num_heads=c["num_heads"], grid=grid)
    bind(encoding, **encoding_tensors(p))
    pos = patch_grid(*grid)
    index = offset_index(pos.coords, pos.coords, grid)[0]
    return {"out.relative_position_index": index} | window_attention(case, p, x, encoding, encoding.prepare(pos))
