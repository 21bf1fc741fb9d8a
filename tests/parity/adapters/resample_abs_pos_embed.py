"""timm's resample_abs_pos_embed: learned tables on another grid, with and without antialiasing."""

from __future__ import annotations

from vispe import create_encoding, patch_grid

from ..cases import Case
from .common import Results, bind


def run(case: Case) -> Results:
    c = case.config
    assert not c.get("align_corners"), "timm never aligns corners"
    encoding = create_encoding(
        "learned", dim=c["dim"], num_heads=1, grid=c["source_grid"], prefix=c["prefix_tokens"],
        prefix_rows=c["prefix_tokens"] > 0, antialias=c["antialias"], interpolation=c["mode"],
    )  # fmt: skip
    bind(encoding, pos_embed=case.inputs["pos_embed"])
    return {"out.pos_embed": encoding.prepare(patch_grid(*c["target_grid"], prefix=c["prefix_tokens"]))}
