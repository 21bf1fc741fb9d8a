"""BEiT: attention with a table over offsets and rows for the class token, one a layer or one for all."""

from __future__ import annotations

from vispe import create_encoding, patch_grid
from vispe.encodings.beit_bias import class_rows
from vispe.encodings.offsets import offset_index

from ..cases import Case
from .common import Results, bind, leaves
from .window import window_attention


def run(case: Case) -> Results:
    c = case.config
    grid, prefix = tuple(c["window"]), int(c["class_token"])
    p, x = leaves(case.params), leaves({"x": case.inputs["x"]})["x"]
    encoding = create_encoding(
        "beit_bias", dim=c["dim"], num_heads=c["num_heads"], grid=grid, prefix=prefix, per_layer=not c["shared_over_layers"]
    )
    table = next(v for k, v in p.items() if k.endswith("relative_position_bias_table"))
    bind(encoding, table=table)
    pos = patch_grid(*grid, prefix=prefix)
    ctx = encoding.prepare(pos)
    index = class_rows(offset_index(pos.coords, pos.coords, grid), prefix, prefix, table.shape[0] - encoding.extra_rows)[0]
    return {"out.relative_position_index": index, "out.bias": ctx.pairs[0]} | window_attention(case, p, x, encoding, ctx)
