"""What a multimodal sequence is made of: runs of tokens, each with the grid, the times or the tiles behind it.

Grids count tokens as the language model sees them, after any spatial merge. A segment may say how many `tokens` the sequence
holds for it; a grid that does not have as many is refused, with its row and place. Segments come from whoever laid the
sequence out; nothing here looks at token ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


class SegmentError(ValueError):
    """A segment that cannot be placed; `build_ids` adds its row and number."""


def _count(name: str, found: int, tokens: int | None) -> None:
    if tokens is not None and tokens != found:
        raise SegmentError(f"{name} has {found} tokens, the sequence holds {tokens} for it; pass the grid these tokens have.")


def _sides(**sides: int) -> None:
    bad = {k: n for k, n in sides.items() if n < 1}
    if bad:
        raise SegmentError(f"every side must be at least 1 token, got {bad}.")


@dataclass(frozen=True)
class Text:
    """n tokens of text, delimiters of images included."""

    n: int
    kind = "text"

    @property
    def length(self) -> int:
        return self.n

    def check(self) -> None:
        if self.n < 0:
            raise SegmentError(f"a text has at least 0 tokens, got {self.n}.")


@dataclass(frozen=True)
class Image:
    """An image of height x width tokens, row-major."""

    height: int
    width: int
    tokens: int | None = None
    kind = "image"

    @property
    def length(self) -> int:
        return self.height * self.width

    def check(self) -> None:
        _sides(height=self.height, width=self.width)
        _count(f"a grid of {self.height} x {self.width}", self.length, self.tokens)


@dataclass(frozen=True)
class BoxedImage(Image):
    """A reference image that belongs into a box (left, top, right, bottom) of the picture to be made, in its tokens.

    Only scheme "regional_rope" reads the box; to the others it is an image.
    """

    box: tuple[float, float, float, float] = field(kw_only=True)

    def check(self) -> None:
        super().check()
        if len(self.box) != 4 or not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise SegmentError(f"a box is (left, top, right, bottom) with left < right and top < bottom, got {self.box}.")


@dataclass(frozen=True)
class Video:
    """A clip of frames x height x width tokens, frames outermost.

    Attributes:
        seconds: between two frames of the grid (temporal patch size over frames a second).
        timestamps: seconds of each frame, ascending; in place of `seconds` for clips that are not evenly sampled.
    """

    frames: int
    height: int
    width: int
    seconds: float | None = None
    timestamps: tuple[float, ...] | None = None
    tokens: int | None = None
    kind = "video"

    @property
    def length(self) -> int:
        return self.frames * self.height * self.width

    def check(self) -> None:
        _sides(frames=self.frames, height=self.height, width=self.width)
        _count(f"a grid of {self.frames} x {self.height} x {self.width}", self.length, self.tokens)
        if self.seconds is not None and self.seconds < 0:
            raise SegmentError(f"seconds between frames must be >= 0, got {self.seconds}.")
        if self.timestamps is None:
            return
        if self.seconds is not None:
            raise SegmentError("give either seconds between frames or timestamps, not both.")
        if len(self.timestamps) != self.frames:
            raise SegmentError(f"{self.frames} frames need as many timestamps, got {len(self.timestamps)}.")
        wrong = [i for i in range(1, self.frames) if self.timestamps[i] < self.timestamps[i - 1]]
        if wrong:
            i = wrong[0]
            raise SegmentError(
                f"timestamps must ascend, but frame {i} at {self.timestamps[i]} s follows {self.timestamps[i - 1]} s; sort the "
                f"frames."
            )

    def times(self, who: str) -> Tensor:
        """Seconds of each frame since the first, (frames,) float64."""
        if self.timestamps is not None:
            times = torch.tensor(self.timestamps, dtype=torch.float64)
            return times - times[0]
        if self.seconds is None:
            raise SegmentError(
                f"{who} counts seconds, and this video has none; set seconds=... (between frames) or timestamps=(...)."
            )
        return self.seconds * torch.arange(self.frames, dtype=torch.float64)


@dataclass(frozen=True)
class Audio:
    """n tokens of sound, in the model's fixed rate."""

    n: int
    tokens: int | None = None
    kind = "audio"

    @property
    def length(self) -> int:
        return self.n

    def check(self) -> None:
        _sides(n=self.n)
        _count(f"a sound of {self.n}", self.n, self.tokens)


@dataclass(frozen=True)
class AudioVideo:
    """A clip with its sound in one block: two begin tokens, tokens of both in the scheme's order of time, two end tokens."""

    video: Video
    audio: Audio
    kind = "video with audio"

    @property
    def length(self) -> int:
        return self.video.length + self.audio.length + 4

    def check(self) -> None:
        self.video.check()
        self.audio.check()


@dataclass(frozen=True)
class Tiles:
    """An image cut into rows x cols tiles of height x width tokens each, with a thumbnail of the whole.

    Attributes:
        thumbnail: its (height, width) in tokens, None for no thumbnail.
        order: of the tokens of the tiles: "tiles", one tile after the other (rows of tiles outermost), or "raster", rows of the
            whole image.
        first: which tokens come first, those of the "tiles" or of the "thumbnail".
    """

    rows: int
    cols: int
    height: int
    width: int
    thumbnail: tuple[int, int] | None = None
    order: Literal["tiles", "raster"] = "tiles"
    first: Literal["tiles", "thumbnail"] = "tiles"
    tokens: int | None = None
    kind = "tiles"

    @property
    def tiled(self) -> int:
        return self.rows * self.cols * self.height * self.width

    @property
    def length(self) -> int:
        return self.tiled + (self.thumbnail[0] * self.thumbnail[1] if self.thumbnail else 0)

    def check(self) -> None:
        _sides(rows=self.rows, cols=self.cols, height=self.height, width=self.width)
        if self.thumbnail:
            _sides(thumbnail_height=self.thumbnail[0], thumbnail_width=self.thumbnail[1])
        if self.order not in ("tiles", "raster") or self.first not in ("tiles", "thumbnail"):
            raise SegmentError(
                f"order is 'tiles' or 'raster', first 'tiles' or 'thumbnail'; got {self.order!r}, {self.first!r}."
            )
        what = f"{self.rows} x {self.cols} tiles of {self.height} x {self.width} and thumbnail {self.thumbnail}"
        _count(what, self.length, self.tokens)

    def cells(self) -> Tensor:
        """Row and column, in the whole image, of each token of the tiles in their order, (2, tiled) int64."""
        y = torch.arange(self.rows * self.height)[:, None].expand(-1, self.cols * self.width)
        x = torch.arange(self.cols * self.width)[None].expand(self.rows * self.height, -1)
        both = torch.stack((y, x))
        if self.order == "tiles":
            both = both.unflatten(2, (self.cols, self.width)).unflatten(1, (self.rows, self.height)).transpose(2, 3)
        return both.reshape(2, -1)


Segment = Text | Image | Video | Audio | AudioVideo | Tiles
VISUAL = (Image, Video, AudioVideo, Tiles)
