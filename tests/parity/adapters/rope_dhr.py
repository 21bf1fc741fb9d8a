"""LALBJ/CoMemo: tiles that take the ids of their thumbnail, with both defects of the released code."""

from __future__ import annotations

from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Text, Tiles
from vispe.positions.sequence import build_ids

from ..cases import Case
from .common import Results
from .v2pe import IMAGE_TOKEN, token_runs


def run(case: Case) -> Results:
    c, visual = case.config, case.inputs["input_ids"] == IMAGE_TOKEN
    assert c["order"] == "tiles then thumbnail", c["order"]
    assert c["tokens_per_tile"] == c["thumbnail_side"] ** 2, "tiles have as many tokens as the thumbnail"
    side = c["thumbnail_side"]
    splits = iter(case.inputs["tile_columns_rows"].tolist())
    segments = []
    for is_visual, n in token_runs(visual):
        if not is_visual:
            segments.append(Text(n))
            continue
        columns, rows = next(splits)
        thumbnail = (side, side) if columns * rows > 1 else None  # one tile needs none
        segments.append(Tiles(rows, columns, side, side, thumbnail=thumbnail, tokens=n))
    ids = build_ids(segments, create_scheme("rope_dhr", rule="released"))[0][0]
    assert next(splits, None) is None, "more splits than images"
    return {"out.position_ids": ids, "out.media_position_ids": ids[visual]}
