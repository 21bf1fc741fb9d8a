"""EVA02-AT from its equations: spatial, temporal and joint angles, rotated queries."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe import create_encoding
from vispe.encodings.functional import phase
from vispe.positions import video_grid

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "rope", c["kind"]
    encoding = create_encoding(
        "eva02_at", dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"], axes=3, theta=c["theta"],
        time_theta=c["theta"],
    )  # fmt: skip
    pos = video_grid(c["frames"], c["grid_h"], c["grid_w"], prefix=c["prefix_tokens"])
    coords, freqs = encoding.coordinates(pos), encoding.frequencies()

    def angle(axes: Tensor) -> Tensor:
        return phase(coords * axes, freqs)[0, 0]

    ctx = encoding.prepare(pos)
    inputs = leaves({"q": case.inputs["q"]})
    q, _ = encoding.qk(inputs["q"], inputs["q"], ctx, ctx)
    return {
        "out.q_rotated": q, "out.angle": angle(torch.ones(3)), "out.angle_spatial": angle(torch.tensor([0.0, 1.0, 1.0])),
        "out.angle_temporal": angle(torch.tensor([1.0, 0.0, 0.0])), **gradients((q * case.inputs["cotangent"]).sum(), inputs),
    }  # fmt: skip
