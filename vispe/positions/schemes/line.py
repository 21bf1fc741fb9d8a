"""Schemes with one id a token on one line: plain, V2PE, TAD-RoPE, and one id for many visual tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..segments import Tiles, Video
from .base import Block, Scheme, counting


@dataclass(frozen=True)
class Line(Scheme):
    """Every token one id further, whatever it is: the plain 1-D rotary of language models."""

    axes: ClassVar[int] = 1
    pad: ClassVar[int] = 1
    allocation: ClassVar[str] = "single"

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        return self.text(video.length)

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        return self.text(tiles.length)


@dataclass(frozen=True)
class V2PE(Line):
    """Visual tokens advance by a fraction: last text id + delta · j for the j-th of an image, tiles and thumbnail as one.

    Text goes on at the next whole id. Paper: Ge et al., ICCV 2025, arXiv 2412.09616; code OpenGVLab/V2PE f96f189. There delta
    is drawn for each image in training. Different: ids are computed in float64 and rounded once, where the code's arange
    gives a token too many for steps that binary fractions cannot hold.

    Args:
        delta: step of a visual token where none is drawn.
        span: ids for a whole visual block, in place of a step a token (JJJYmmm/Multimodal-RoPEs' reading of the rule).
    """

    delta: float = 0.25
    span: float | None = None
    floating: ClassVar[bool] = True
    choices: ClassVar[tuple[float, ...]] = tuple(2.0**-k for k in range(9))

    def __post_init__(self) -> None:
        if not self.delta > 0 or self.span is not None and not self.span > 0:
            raise ValueError(f"v2pe: delta and span must be positive, got delta={self.delta}, span={self.span}.")

    @property
    def rate(self) -> float:
        return self.delta

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        return self.visual(video.length, rate)

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        return self.visual(tiles.length, rate)

    def visual(self, n: int, rate: float) -> Block:
        delta = rate if self.span is None else self.span / n
        # rounded ahead of the ceiling: 6 steps of 1/6 end at 1, not one id further for an error in the last place
        return Block((delta * (counting(n) + 1) - 1)[None], math.ceil(round(delta * n, 6)))


@dataclass(frozen=True)
class TadRope(Line):
    """Time index plus flat index: text advances by 2, tokens of one frame by 1, a new frame by 2.

    Code: Wiselnn570/VideoRoPE 7712ca3 (its baseline after TC-LLaVA). Generation must step by 2.
    """

    pad: ClassVar[int] = 2
    step: ClassVar[int] = 2

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        frame = counting(video.frames).repeat_interleave(video.height * video.width)
        return Block((frame + counting(video.length))[None], video.frames + video.length)

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        return Scheme.tiles(self, tiles, rate)


@dataclass(frozen=True)
class SharedPosition(Line):
    """One id for many visual tokens.

    Args:
        unit: what shares an id: a "row" of an image (the experts' scheme of MouSi, arXiv 2401.17221), an "image" (one frame;
            CogVLM, THUDM/CogVLM f7283b2, where images that touch share one too, because it only sees where visual tokens begin
            and end), or a whole "block" (all frames of a video, all tiles of an image).
    """

    unit: Literal["row", "image", "block"] = "image"

    def __post_init__(self) -> None:
        if self.unit not in ("row", "image", "block"):
            raise ValueError(f"shared_position: unit must be 'row', 'image' or 'block', got {self.unit!r}.")

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        units = {"row": video.frames * video.height, "image": video.frames, "block": 1}[self.unit]
        return Block(counting(units).repeat_interleave(video.length // units)[None], units)

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        if self.unit == "block":
            return Block(torch.zeros(1, tiles.length, dtype=torch.float64), 1)
        return Scheme.tiles(self, tiles, rate)
