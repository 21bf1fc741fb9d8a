"""facebookresearch/dinov3: tables with each normalisation, and the training augmentation with the draws of the case."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe import patch_grid
from vispe.encodings.rope_dinov3 import RopeDinov3, augment
from vispe.positions import Positions

from ..cases import Case
from .common import Results, gradients, leaves


class GivenDraws(RopeDinov3):
    """The augmentation with draws that the case names, in the place of random ones."""

    draws: dict[str, Tensor]

    def coordinates(self, pos: Positions) -> Tensor:
        return augment(super().coordinates(pos), **self.draws)


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "rope", c["kind"]
    periods = {"base": c.get("base", 100.0)}
    if periods["base"] is None:
        periods |= {n: c[n] for n in ("min_period", "max_period")}
    encoding = GivenDraws(
        dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"],
        normalize=c.get("normalize_coords") or "separate", **periods,
    ).eval()  # fmt: skip
    encoding.draws = {
        "shift": case.inputs.get("shift_hw", torch.zeros(2)),
        "jitter": case.inputs.get("jitter_hw", torch.ones(2)),
        "rescale": case.inputs.get("rescale", torch.ones(1)),
    }
    prefix = c.get("prefix_tokens", 0)
    ctx = encoding.prepare(patch_grid(c["grid_h"], c["grid_w"], prefix=prefix))
    inputs = leaves({n: case.inputs[n] for n in "qk"})
    q, k = encoding.qk(inputs["q"], inputs["k"], ctx, ctx)
    loss = (q * case.inputs["cotangent"]).sum() + (k * case.inputs["cotangent"]).sum()
    tables = {f"out.{n}": getattr(ctx, n)[0, 0, prefix:].repeat(1, 2) for n in ("cos", "sin")}  # tiled, as officially stored
    return {"out.q_rotated": q, "out.k_rotated": k, **tables, **gradients(loss, inputs)}
