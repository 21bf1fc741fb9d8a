"""xing0047/cca-llava: ids of concentric rings and the mask that lets a token see the rings up to its own."""

from __future__ import annotations

from vispe.positions.masks import ring_mask
from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Image, Text
from vispe.positions.sequence import build_ids

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    return rings(case, side=2 * case.config["levels"])


def rings(case: Case, *, side: int) -> Results:
    """Text, one square image, text. The number of rings is how the files tell the image's side."""
    c, scheme = case.config, create_scheme(case.encoding)
    height, width = c.get("height", side), c.get("width", side)
    segments = [Text(c["image_start"]), Image(height, width), Text(c["text_after"])]
    ids, following = build_ids(segments, scheme)
    before, n = c["image_start"], height * width
    assert following == ids.shape[1] - n + c["levels"], "a generated token: cached length - image tokens + levels"
    seen = ring_mask(segments, scheme)
    centre = before + height // 2 * width + width // 2
    return {
        "out.position_ids": ids[0], "out.grid_ids": (ids[0, before : before + n] - before).view(height, width),
        "out.allowed_query_counts": seen.sum(1), "out.allowed_center": seen[centre],
        "out.allowed_first_image_row": seen[before],
    }  # fmt: skip
