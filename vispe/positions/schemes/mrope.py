"""MRoPE of Qwen-VL, MRoPE-Interleave and MHRoPE: one id for time, row and column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..segments import Video
from .base import Block, Scheme, cells, clock, counting

PRESETS = ("qwen", "transformers_4", "transformers_5")


@dataclass(frozen=True)
class MRoPE(Scheme):
    """(time, row, column) of a cell plus the block's start; text equal on all axes.

    Paper: Wang et al., Qwen2-VL, arXiv 2409.12191; Qwen2.5-VL, arXiv 2502.13923.

    Args:
        preset: text goes on behind the largest id of the block ("qwen": paper and Qwen team; "transformers_4": 4.57), or at
            start + max(rows, columns), whatever the number of frames ("transformers_5": 5.24, where text may overlap a video).
            With absolute time, "transformers_4" cuts the seconds between frames to whole ones first.
        tokens_per_second: None counts frames (Qwen2-VL); a number makes time absolute (Qwen2.5-VL: 2), for videos only:
            id ⌊seconds · tokens_per_second⌋ of each frame.
    """

    preset: Literal["qwen", "transformers_4", "transformers_5"] = "qwen"
    tokens_per_second: float | None = None
    pad: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"mrope: preset must be one of {PRESETS}, got {self.preset!r}.")
        if self.tokens_per_second is not None and not self.tokens_per_second > 0:
            raise ValueError(f"mrope: tokens_per_second must be positive or None, got {self.tokens_per_second}.")

    def times(self, video: Video, still: bool) -> Tensor:
        if still or self.tokens_per_second is None:
            return counting(video.frames)
        if self.preset == "transformers_4":
            frames = counting(video.frames)
            return (video.times("mrope") / frames.clamp(min=1)).trunc() * frames * self.tokens_per_second
        return clock(video, "mrope", self.tokens_per_second).floor()

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        times = self.times(video, still)
        side = max(video.height, video.width)
        advance = side if self.preset == "transformers_5" else max(side, times[-1].item() + 1)
        return Block(cells(times, video.height, video.width), advance)


@dataclass(frozen=True)
class MRoPEInterleave(Scheme):
    """MRoPE with the axes interleaved over the frequencies; with a spatial reset rows and columns count from 0 in each grid.

    Paper: Huang et al., Revisiting Multimodal Positional Encoding, arXiv 2510.23095; code JJJYmmm/Multimodal-RoPEs cd413b9.
    Qwen3-VL uses it without the reset, one grid a frame between timestamps in text. The token behind a grid has id
    start + max(time, row, column) + 1 either way.

    Args:
        spatial_reset: rows and columns from 0.
        stride: ids between two frames of a grid.
    """

    spatial_reset: bool = False
    stride: int = 1
    pad: ClassVar[int] = 1
    allocation: ClassVar[str] = "interleaved"

    def __post_init__(self) -> None:
        if self.stride < 1 or self.stride != int(self.stride):
            raise ValueError(f"{type(self).__name__}: stride must be a whole number of at least 1, got {self.stride}.")

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        times = self.stride * counting(video.frames)
        advance = max(video.height, video.width, times[-1].item() + 1)
        return Block(cells(times, video.height, video.width), advance, (1, 2) if self.spatial_reset else ())


@dataclass(frozen=True)
class MHRoPE(MRoPEInterleave):
    """The ids of MRoPE-Interleave with spatial reset, read by whole heads (same paper and code)."""

    spatial_reset: bool = True
    allocation: ClassVar[str] = "heads"
