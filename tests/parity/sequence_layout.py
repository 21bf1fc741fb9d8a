"""From a multimodal parity case to what our builders take: segments, padding, ids, rotary tables, gradients.

An adapter of a scheme is usually

    def run(case):
        scheme = create_scheme("il_rope", stride=case.config["temporal_stride"])
        made = sequence(case, scheme)                                        ids, deltas
        rotary = sequence_rotary(case, scheme)                               a SequenceRotary from the configuration
        return made.results(dtype=torch.float32) | rotated(case, rotary, made.ids)

`rows_of(case)` alone gives the segments. The official inputs are token ids and grids in patches; which tokens are visual comes
from `in.mm_token_type_ids` or from the configuration's token ids. Grids are taken in the order of the batch; a run of visual
tokens takes as many grids as it has room for, and a video whose frames lie apart (between timestamps) gives its frames one by
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from vispe.encodings.rope_sequence import SequenceRotary, full_tables, scaling_of
from vispe.positions.schemes import Scheme
from vispe.positions.segments import Audio, Image, Segment, Text, Video
from vispe.positions.sequence import build_ids, pack

from .adapters.common import Results, gradients, leaves
from .cases import Case

TOKENS = {"image_token_id": 151655, "video_token_id": 151656, "audio_token_id": 151646}  # Qwen's vocabulary
Minus = Literal["padded", "valid"]
KINDS = ("text", "image", "video", "audio")


@dataclass
class Grids:
    """The grids that are left, in tokens; frames of a video that lie apart are given out one by one."""

    images: list[tuple[int, int, int]]
    videos: list[tuple[int, int, int]]
    seconds: list[float]  # between two frames of each video, or empty
    frames: list[tuple[int, int, int]] = field(default_factory=list)
    place: int = 0

    def image(self, tokens: int) -> Image:
        t, h, w = self.images.pop(0)
        assert t == 1 and h * w <= tokens, f"an image of {t} x {h} x {w} in a run of {tokens} tokens"
        return Image(h, w)

    def second(self) -> float | None:
        """Of the next video."""
        self.place += 1
        return self.seconds[self.place - 1] if self.seconds else None

    def video(self, tokens: int) -> Video:
        if not self.frames:
            t, h, w = self.videos.pop(0)
            seconds = self.second()
            if t * h * w <= tokens:
                return Video(t, h, w, seconds=seconds)
            self.frames = [(1, h, w)] * t
        _, h, w = self.frames.pop(0)
        assert h * w <= tokens, f"a frame of {h} x {w} in a run of {tokens} tokens"
        return Video(1, h, w)


def merged(grid: Tensor | None, merge: int) -> list[tuple[int, int, int]]:
    """Grids in patches to grids in tokens."""
    return [] if grid is None else [(t, h // merge, w // merge) for t, h, w in grid.tolist()]


def kinds_of(case: Case) -> Tensor:
    """0 text, 1 image, 2 video, 3 audio, of every token (B, S)."""
    if "mm_token_type_ids" in case.inputs:
        return case.inputs["mm_token_type_ids"]
    ids = case.inputs["input_ids"]
    kinds = torch.zeros_like(ids)
    for number, (name, usual) in enumerate(TOKENS.items(), start=1):
        kinds[ids == case.config.get(name, usual)] = number
    return kinds


def grids_of(case: Case) -> Grids:
    merge = case.config.get("spatial_merge_size", 2)
    seconds = case.inputs.get("second_per_grid_ts", case.inputs.get("second_per_grids"))
    return Grids(
        merged(case.inputs.get("image_grid_thw"), merge),
        merged(case.inputs.get("video_grid_thw"), merge),
        [] if seconds is None else seconds.tolist(),
    )


def rows_of(case: Case) -> list[list[Segment]]:
    """The segments of every row, padding left out."""
    grids = grids_of(case)
    rows = []
    for kinds, valid in zip(kinds_of(case), valid_tokens(case)):
        rows.append(segments_of(kinds[valid].tolist(), grids))
    return rows


def segments_of(kinds: list[int], grids: Grids) -> list[Segment]:
    """One row. Visual runs may hold several grids, one behind the other."""
    segments: list[Segment] = []
    for kind, run in groupby(kinds):
        left = len(list(run))
        while left:
            if KINDS[kind] == "text":
                segment: Segment = Text(left)
            elif KINDS[kind] == "audio":
                segment = Audio(left)
            else:
                segment = grids.image(left) if KINDS[kind] == "image" else grids.video(left)
            segments.append(segment)
            left -= segment.length
    return segments


def valid_tokens(case: Case) -> Tensor:
    """(B, S) bool."""
    ids = case.inputs["input_ids"]
    return case.inputs.get("attention_mask", torch.ones_like(ids)).bool()


def pad_value(case: Case, scheme: Scheme) -> float:
    """Id of padding: the configuration's, or else the scheme's."""
    return case.config.get("padding_value", scheme.pad)


@dataclass(frozen=True)
class SequenceIds:
    """ids (axes, B, S), mask (B, S), and the next id of every row."""

    ids: Tensor
    mask: Tensor
    next_ids: tuple[float, ...]

    def deltas(self, minus: Minus = "padded", axis: int | None = None) -> Tensor:
        """Official rope_deltas (B, 1): largest id of a row's tokens (of one axis, or of all) + 1 − its tokens, with or
        without padding."""
        ids = self.ids if axis is None else self.ids[axis : axis + 1]
        tops = [row[:, m].max() + 1 for row, m in zip(ids.unbind(1), self.mask)]
        less = self.mask.sum(dim=1) if minus == "valid" else torch.full((len(tops),), self.mask.shape[1])
        return (torch.stack(tops) - less.to(self.ids.dtype))[:, None]

    def results(self, *, minus: Minus = "padded", axis: int | None = None, dtype: torch.dtype | None = None) -> Results:
        dtype = dtype or self.ids.dtype
        return {"out.position_ids": self.ids.to(dtype), "out.rope_deltas": self.deltas(minus, axis).to(dtype)}


def sequence(
    case: Case,
    scheme: Scheme,
    *,
    rows: list[list[Segment]] | None = None,
    pad: float | None = None,
    axes: int = 3,
    **options: Any,
) -> SequenceIds:
    """Ids of the case. One-row schemes are repeated on `axes` rows, as the official code hands them to its rotary.

    Args:
        rows: segments, where `rows_of` does not know the layout.
        pad: id of padding; None for `pad_value`.
        options: of `build_ids` (rates of one number for all rows' segments are the scheme's own business).
    """
    rows = rows_of(case) if rows is None else rows
    built = [build_ids(segments, scheme, row=i, **options) for i, segments in enumerate(rows)]
    valid = valid_tokens(case) if "input_ids" in case.inputs else None
    side = "left" if valid is not None and not valid[:, 0].all() else "right"
    ids, mask = pack([ids for ids, _ in built], side=side, pad=pad_value(case, scheme) if pad is None else pad)
    assert valid is None or torch.equal(mask, valid), "the row's segments do not fill its valid tokens, on one side"
    if ids.shape[0] == 1:
        ids = ids.expand(axes, -1, -1)
    return SequenceIds(ids, mask, tuple(following for _, following in built))


def sequence_rotary(case: Case, scheme: Scheme | None = None, **options: Any) -> SequenceRotary:
    """The rotary of the configuration: head_dim, rope_theta, mrope_section, rope_type. `options` go first."""
    c = case.config
    given = {"theta": c.get("rope_theta", 1e6), "scaling": scaling_of(c), "sections": c.get("mrope_section")} | options
    return SequenceRotary(head_dim=c["head_dim"], scheme=scheme, **given)


def rotated(case: Case, rotary: SequenceRotary, ids: Tensor) -> Results:
    """cos, sin (B, S, D), and where the case has queries and keys their rotation, and gradients where it has cotangents."""
    ctx = rotary.prepare(ids)
    cos, sin = full_tables(ctx)
    out = {"out.cos": cos, "out.sin": sin}
    if "q" not in case.inputs:
        return out
    inputs = leaves({n: case.inputs[n] for n in ("q", "k")})
    q, k = rotary.qk(inputs["q"], inputs["k"], ctx, ctx)
    out |= {"out.q_rot": q, "out.k_rot": k}
    if "cotangent_q" in case.inputs:
        loss = (q * case.inputs["cotangent_q"]).sum() + (k * case.inputs["cotangent_k"]).sum()
        out |= gradients(loss, inputs)
    return out


def tolerance(case: Case, key: str) -> float | None:
    """For adapters to pass on: these tables are computed as the official ones are, so that they nearly agree bit by bit."""
    return 1e-7 if key.startswith("out.inv_freq") else 1e-5 if key.startswith("grad.") else None
