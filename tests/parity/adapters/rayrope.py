"""Lucas-707/RayRoPE: attention with predicted depths, of three rays or of the centre ray of each patch."""

from __future__ import annotations

from dataclasses import replace

from vispe.encodings.rayrope import Rayrope
from vispe.layers import attend
from vispe.positions import camera_grid

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, i = case.config, case.inputs
    assert (c["kind"], c["pos_enc_type"], c["depth_encoding"]) == ("rayrope", "d_pj+0_3d", "d"), c
    heads = i["q"].shape[1]
    encoding = Rayrope(dim=heads * c["head_dim"], num_heads=heads, rays=c["rays_per_patch"], base=c["freq_base"])
    size = (c["image_height"], c["image_width"])
    ctx = encoding.prepare(camera_grid(c["patches_y"], c["patches_x"], i["viewmats_w2c"], i["Ks"], size))
    ctx = replace(ctx, depth=i["predicted_logdepth_sigma"])
    return {"out.attention_output": attend(i["q"], i["k"], i["v"], encoding, ctx, ctx, scale=c["head_dim"] ** -0.5)}
