"""SakuraTroyChen/PyPE: rings that shrink with depth, on the 24 x 24 image that is fixed there."""

from __future__ import annotations

import torch

from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Image, Text
from vispe.positions.sequence import build_ids

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, side = case.config, case.config.get("side", 24)
    scheme = create_scheme("pype", layers_per_step=c["layers_per_step"])
    layers = [scheme.for_layer(i, c["layers"]) for i in range(c["layers"])]
    ids = [build_ids([Text(c["image_start"]), Image(side, side), Text(c["text_after"])], layer)[0][0] for layer in layers]
    return {
        "out.position_ids_per_layer": torch.stack(ids),
        "out.levels_per_layer": torch.stack([layer.rings(side, side).max() + 1 for layer in layers]),
    }  # fmt: skip
