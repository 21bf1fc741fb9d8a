"""TMRoPE of Qwen2.5-Omni and Qwen3-Omni in transformers: ids with sound apart or inside videos, and the rotary."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vispe.positions.schemes import audio_tokens, create_scheme
from vispe.positions.schemes.tmrope import TMRoPE
from vispe.positions.segments import Audio, AudioVideo, Segment, Text, Video

from ..cases import Case
from ..sequence_layout import (
    Grids,
    grids_of,
    kinds_of,
    rotated,
    segments_of,
    sequence,
    sequence_rotary,
    tolerance,
    valid_tokens,
)
from .common import Results

__all__ = ["run", "tolerance"]

VISION_START, AUDIO_START = 151652, 151647  # where the configuration does not say


def run(case: Case) -> Results:
    c = case.config
    if "kind" in c:
        return rotated(case, sequence_rotary(case, allocation=c["kind"]), case.inputs["position_ids"])
    older = "seconds_per_chunk" in c
    options = {"seconds_per_chunk": c["seconds_per_chunk"]} if older else {}
    scheme = create_scheme("tmrope" if older else "tmrope3", ids_per_second=c["position_id_per_seconds"], **options)
    seen = {"image_grid_thw", "video_grid_thw"} & set(case.inputs)
    made = sequence(case, scheme, rows=rows(case, scheme), pad=None if seen else 1)  # sound alone is text there
    out = made.results(minus="valid")
    return out | rotated(case, sequence_rotary(case, scheme), made.ids) if "head_dim" in c else out


def rows(case: Case, scheme: TMRoPE) -> list[list[Segment]]:
    """Segments of every row. A video with its sound starts with both begin tokens, one behind the other."""
    grids = grids_of(case)
    sounds = iter([audio_tokens(n, preset=scheme.preset) for n in case.inputs.get("audio_seqlens", torch.empty(0)).tolist()])
    inside = case.config.get("use_audio_in_video", False)
    made = []
    for ids, kinds, valid in zip(case.inputs["input_ids"], kinds_of(case), valid_tokens(case)):
        made.append(row(ids[valid].tolist(), kinds[valid].tolist(), grids, sounds, case if inside else None))
    return made


def row(ids: list[int], kinds: list[int], grids: Grids, sounds: Iterator[int], case: Case | None) -> list[Segment]:
    segments: list[Segment] = []
    here = 0
    for at in both_begins(ids, case):
        if at < here:
            continue
        segments += apart(kinds[here:at], grids, sounds)
        t, h, w = grids.videos.pop(0)
        segments.append(AudioVideo(Video(t, h, w, seconds=grids.second()), Audio(next(sounds))))
        here = at + segments[-1].length
    return segments + apart(kinds[here:], grids, sounds)


def both_begins(ids: list[int], case: Case | None) -> list[int]:
    if case is None:
        return []
    begin = (case.config.get("vision_start_token_id", VISION_START), case.config.get("audio_start_token_id", AUDIO_START))
    return [i for i in range(len(ids) - 1) if (ids[i], ids[i + 1]) == begin]


def apart(kinds: list[int], grids: Grids, sounds: Iterator[int]) -> list[Segment]:
    """Text, images, videos and sounds one after the other; a sound must be as long as its features say."""
    segments = segments_of(kinds, grids)
    return [Audio(s.n, tokens=next(sounds)) if isinstance(s, Audio) else s for s in segments if s != Text(0)]
