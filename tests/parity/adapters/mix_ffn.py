"""NVlabs/SegFormer's Mlp: as the layer of a pyramid, and as a plain MLP with `mix_ffn` inside (both must agree)."""

from __future__ import annotations

import torch
from timm.layers import Mlp
from torch.func import functional_call

from vispe import create_encoding, patch_grid
from vispe.layers import MixFfnMlp, feed

from ..cases import Case
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    c, p, x = case.config, leaves(case.params), leaves(case.inputs)
    kernel = p["dwconv.dwconv.weight"].shape[-1]
    grid = (c["height"], c["width"])
    layer = MixFfnMlp(c["dim"], c["hidden"], kernel_size=kernel)
    y = functional_call(layer, {n.replace("dwconv.dwconv", "dwconv"): t for n, t in p.items()}, (x["x"], grid))

    encoding = create_encoding("mix_ffn", dim=c["dim"], num_heads=1, mlp_dim=c["hidden"], kernel_size=kernel)
    bind(encoding, **{n.removeprefix("dwconv."): t for n, t in p.items() if n.startswith("dwconv.")})
    plain = bind(Mlp(c["dim"], c["hidden"]), **{n: t for n, t in p.items() if n.startswith("fc")})
    torch.testing.assert_close(feed(plain, x["x"], encoding, encoding.prepare(patch_grid(*grid))), y)
    loss = (y * case.inputs["cotangent"]).sum()
    return {"out.y": y, **gradients(loss, x), **gradients(loss, p, params=True)}
