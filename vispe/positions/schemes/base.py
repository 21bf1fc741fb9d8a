"""What a scheme of position ids is: a rule that places one segment relative to where it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..segments import Audio, AudioVideo, Image, Segment, SegmentError, Text, Tiles, Video


@dataclass(frozen=True)
class Block:
    """One segment's ids as if it started at 0.

    Attributes:
        ids: (axes, n) float64.
        advance: how far the next segment starts behind this one's start.
        fixed: axes whose ids do not move with the start (ids that begin again in every image).
    """

    ids: Tensor
    advance: float
    fixed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """Base of the schemes: text counts on, equal on all axes; subclasses say what grids do.

    Class attributes:
        axes: rows of ids.
        floating: float32 ids; else int64.
        pad: id of padding in the official code.
        allocation: name of the rule by which rotary pairs read the axes in the official rotary.
        choices: rates that the authors draw from in training, one for each visual segment.
        step: ids between two text tokens.
    """

    axes: ClassVar[int] = 3
    floating: ClassVar[bool] = False
    pad: ClassVar[int] = 0
    allocation: ClassVar[str] = "chunked"
    choices: ClassVar[tuple[float, ...]] = ()
    step: ClassVar[int] = 1

    @property
    def rate(self) -> float:
        """The rate of visual segments for which none is given or drawn."""
        return 1.0

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.floating else torch.int64

    def for_layer(self, layer: int, depth: int) -> Scheme:
        """The scheme of one layer; the same everywhere, unless a scheme says otherwise."""
        return self

    def block(self, segment: Segment, rate: float) -> Block:
        """The segment's ids. `rate` is V2PE's step, HoPE's scale; other schemes have none."""
        if isinstance(segment, Text):
            return self.text(segment.n)
        if isinstance(segment, Image):
            return self.grid(Video(1, segment.height, segment.width), rate, still=True)
        if isinstance(segment, Video):
            return self.grid(segment, rate, still=False)
        if isinstance(segment, Audio):
            return self.text(segment.n)
        if isinstance(segment, Tiles):
            return self.tiles(segment, rate)
        if isinstance(segment, AudioVideo):
            return self.audio_video(segment, rate)
        raise SegmentError(f"expected Text, Image, Video, Audio, AudioVideo or Tiles, got {type(segment).__name__}.")

    def text(self, n: int) -> Block:
        return Block((self.step * counting(n)).expand(self.axes, n), self.step * n)

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        """An image (`still`, one frame) or a video."""
        raise SegmentError(f"{type(self).__name__} places no grids.")

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        """Every tile, and the thumbnail, as an image of its own."""
        if tiles.order != "tiles":
            raise SegmentError(
                f"{type(self).__name__} takes tiles one after the other, as images; these are in order {tiles.order!r}."
            )
        own = [Image(tiles.height, tiles.width)] * (tiles.rows * tiles.cols)
        whole = [Image(*tiles.thumbnail)] if tiles.thumbnail else []
        parts = own + whole if tiles.first == "tiles" else whole + own
        return chain([self.block(part, rate) for part in parts])

    def audio_video(self, both: AudioVideo, rate: float) -> Block:
        raise SegmentError(
            f"{type(self).__name__} has no rule for a video with its sound in one block; TMRoPE has (scheme 'tmrope')."
        )


def counting(n: int) -> Tensor:
    """0 .. n − 1, float64."""
    return torch.arange(n, dtype=torch.float64)


def clock(video: Video, who: str, rate: float) -> Tensor:
    """Frame · seconds · rate, (frames,) float64 with float32's roundings.

    Released models floor such products, and were trained on what float32 makes of them: frame 1 at 0.04 s and 25 ids a second
    is at 1, though float32's 0.04 is a little less.
    """
    if video.seconds is None:
        times = video.times(who).float()
    else:
        times = torch.arange(video.frames) * torch.tensor(video.seconds, dtype=torch.float32)
    return (times * rate).double()


def cells(times: Tensor, height: int, width: int) -> Tensor:
    """(time, row, column) of every token of a video whose frames have these times, (3, frames · height · width) float64."""
    out = torch.empty(3, times.shape[0], height, width, dtype=torch.float64)
    out[0] = times[:, None, None]
    out[1] = counting(height)[:, None]
    out[2] = counting(width)
    return out.flatten(1)


def chain(blocks: list[Block]) -> Block:
    """Blocks one after the other, as one."""
    start, moved = 0.0, []
    for block in blocks:
        shift = torch.full((block.ids.shape[0], 1), start, dtype=torch.float64)
        shift[list(block.fixed)] = 0
        moved.append(block.ids + shift)
        start += block.advance
    return Block(torch.cat(moved, dim=1), start, blocks[0].fixed)
