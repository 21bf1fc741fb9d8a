"""THUDM/CogVLM: all tokens of an image share one id. Images that touch are one image to the official rule."""

from __future__ import annotations

from itertools import groupby

from vispe.positions.segments import Image, Text
from vispe.positions.sequence import build_ids

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    runs = [(kind, len(list(tokens))) for kind, tokens in groupby(case.inputs["image_rope_mask"].tolist())]
    segments = [Image(1, n) if kind else Text(n) for kind, n in runs]
    ids, _ = build_ids([*segments, Text(case.config["generated"])], "shared_position")
    return {"out.position_ids": ids[0]}
