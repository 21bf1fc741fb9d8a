"""LookHere: the biases of all layers, rounded to bfloat16 as the official code does."""

from __future__ import annotations

import torch

from vispe import patch_grid
from vispe.encodings import EncodingStack

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c = case.config
    options = {
        "directions": c["head_directions"], "layer_slopes": tuple(c["layer_slopes"]), "global_slope": c["global_slope"],
        "distance": c.get("distance", "linear"), "fill": c.get("fill_with", "inf"), "rounding": "bfloat16",
    }  # fmt: skip
    stack = EncodingStack("lookhere", dim=c["heads"], num_heads=c["heads"], depth=c["depth"], options=options)
    ctx = stack.prepare(patch_grid(c["height"], c["width"]))
    x = torch.zeros(1, c["heads"], c["height"] * c["width"], 1)
    layers = [stack.layer(ctx, i) for i in range(c["depth"])]
    return {"out.bias_bf16_as_f32": torch.cat([encoding.bias(x, x, own, own) for encoding, own in layers])}


def tolerance(case: Case, key: str) -> float:
    return 1e-6  # official numbers are bfloat16: equal, or 2^-8 apart
