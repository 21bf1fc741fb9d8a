"""Lucas-707/RayRoPE: attention with predicted depths, of three rays or of the centre ray of each patch."""

from __future__ import annotations

import torch

from vispe.encodings.rayrope import ray_angles, ray_attention
from vispe.positions import lattice

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, i = case.config, case.inputs
    assert (c["kind"], c["pos_enc_type"], c["depth_encoding"]) == ("rayrope", "d_pj+0_3d", "d"), c
    grid = torch.tensor([c["patches_x"], c["patches_y"]])
    cells = torch.cat((lattice((c["patches_y"], c["patches_x"])).flip(-1) / grid, 1 / grid[None]))
    cos, sin = ray_angles(
        i["viewmats_w2c"], i["Ks"], (c["image_height"], c["image_width"]), cells, i["predicted_logdepth_sigma"],
        rays=c["rays_per_patch"], pairs=c["head_dim"] // 2, base=c["freq_base"],
    )  # fmt: skip
    return {"out.attention_output": ray_attention(i["q"], i["k"], i["v"], cos, sin, scale=c["head_dim"] ** -0.5)}
