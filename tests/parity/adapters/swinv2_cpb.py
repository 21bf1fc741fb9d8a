"""SwinV2: cosine window attention with the log-spaced continuous position bias."""

from __future__ import annotations

from vispe import create_encoding, patch_grid
from vispe.convert.swin import encoding_tensors
from vispe.encodings.offsets import unique_offsets
from vispe.encodings.swinv2_cpb import log_coords

from ..cases import Case
from .common import Results, bind, leaves
from .window import window_attention


def run(case: Case) -> Results:
    c = case.config
    window = tuple(c["window"])
    p, x = leaves(case.params), leaves({"x": case.inputs["x"]})["x"]
    encoding = create_encoding(
        "swinv2_cpb", dim=c["dim"], num_heads=c["num_heads"], grid=window, pretrained_window=tuple(c["pretrained_window"]),
        hidden=c["mlp_hidden"], attention="cosine",
    )  # fmt: skip
    bind(encoding, **encoding_tensors(p))
    ctx = encoding.prepare(patch_grid(*window))
    table = log_coords(unique_offsets(window), encoding.window or window)
    return {
        "out.bias": ctx.pairs[0],
        "out.relative_coords_table": table.unflatten(0, tuple(2 * n - 1 for n in window))[None],
        **window_attention(case, p, x, encoding, ctx),
    }
