"""Ids from seconds: what released models make of them, in float32, and the chunks of Qwen2.5-Omni."""

from __future__ import annotations

import pytest
import torch

from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Audio, AudioVideo, Text, Video
from vispe.positions.sequence import build_ids


@pytest.mark.parametrize("seconds", [0.04, 0.28, 0.58, 1 / 3, 0.1])
@pytest.mark.parametrize(("scheme", "rate"), [("tmrope", 25), ("mrope_time", 2)])
def test_floors_are_float32s(scheme: str, rate: float, seconds: float) -> None:
    """0.04 s at 25 ids a second is id 1 in float32, and 0 in float64 (float32's 0.04 is a little less than that)."""
    got = build_ids([Video(40, 1, 1, seconds=seconds)], scheme)[0][0]
    assert torch.equal(got, (torch.arange(40) * torch.tensor(seconds) * rate).long())


def test_float32_seconds_that_float64_would_floor_down() -> None:
    stored = torch.tensor(0.04).item()
    assert 25 * stored < 1 and build_ids([Video(2, 1, 1, seconds=stored)], "tmrope")[0][0].tolist() == [0, 1]


def test_times_and_seconds_agree() -> None:
    even = build_ids([Video(4, 2, 2, seconds=0.75)], "mrope_time")[0]
    stamped = build_ids([Video(4, 2, 2, timestamps=(3.0, 3.75, 4.5, 5.25))], "mrope_time")[0]
    assert torch.equal(even, stamped)
    with pytest.raises(ValueError, match="counts seconds, and this video has none"):
        build_ids([Text(1), Video(4, 2, 2)], "mrope_time")


def test_chunks_are_whole_numbers_of_ids() -> None:
    """Half seconds at 25 ids a second: chunks of 12 ids, so that frame 12 and sound 12 open the second."""
    both = AudioVideo(Video(2, 1, 1, seconds=0.5), Audio(14))  # frames at 0 and 12
    ids = build_ids([both], create_scheme("tmrope", seconds_per_chunk=0.5))[0][0]
    assert ids.tolist() == [0, 0, 1, *range(1, 13), 13, 13, 14, 15, 15]
    with pytest.raises(ValueError, match="less than one id"):
        create_scheme("tmrope", seconds_per_chunk=0.01)
