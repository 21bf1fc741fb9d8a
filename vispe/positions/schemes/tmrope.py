"""TMRoPE of Qwen-Omni: MRoPE on absolute time, with sound on the same clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..segments import AudioVideo, Video
from .base import Block, Scheme, cells, clock, counting


@dataclass(frozen=True)
class TMRoPE(Scheme):
    """Ids a second for frames, one id a token for sound (40 ms in Omni-2.5, 1/13 s in Omni-3); text behind the largest id.

    A video with its sound in one block: "omni2.5" takes chunks of seconds, the frames of a chunk ahead of its sound; its two
    begin tokens share an id, so do its two end tokens, and these follow the last chunk placed, not the largest id. "omni3"
    takes token by token in order of time (frames first when equal), begin and end tokens count on. Paper: Xu et al.,
    Qwen2.5-Omni, arXiv 2503.20215; code transformers 5.24.

    Args:
        preset: of the model; Omni-3 has float ids that are not rounded down, and interleaved frequencies (`TMRoPE3`).
        ids_per_second: of frames.
        seconds_per_chunk: of "omni2.5".
    """

    ids_per_second: float = 25
    seconds_per_chunk: float = 2
    preset: ClassVar[Literal["omni2.5", "omni3"]] = "omni2.5"
    pad: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.ids_per_second > 0 or not self.seconds_per_chunk > 0:
            raise ValueError(
                f"tmrope: ids and chunks a second must be positive, got {self.ids_per_second}, {self.seconds_per_chunk}."
            )
        if self.ids_per_second * self.seconds_per_chunk < 1:
            raise ValueError(
                f"tmrope: a chunk of {self.seconds_per_chunk} s has less than one id at {self.ids_per_second} ids a second; "
                f"take longer chunks."
            )

    def times(self, video: Video, still: bool) -> Tensor:
        if still:
            return self.ids_per_second * counting(video.frames)
        times = clock(video, "tmrope", self.ids_per_second)
        return times if self.floating else times.floor()

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        ids = cells(self.times(video, still), video.height, video.width)
        return Block(ids, ids.max().item() + 1)

    def audio_video(self, both: AudioVideo, rate: float) -> Block:
        seen = self.grid(both.video, rate, still=False).ids
        heard = counting(both.audio.n).expand(3, -1)
        order, last = self.chunks(seen, heard) if self.preset == "omni2.5" else by_time(seen, heard)
        begins, step = (1, 0) if self.preset == "omni2.5" else (2, 1)
        middle = torch.cat((seen, heard), dim=1)[:, order] + begins
        end = middle[:, -last:].max() + 1
        edges = step * counting(2).expand(3, -1)
        return Block(torch.cat((edges, middle, edges + end), dim=1), end.item() + step + 1)

    def chunks(self, seen: Tensor, heard: Tensor) -> tuple[Tensor, int]:
        """Order of the tokens, frames first in each chunk, and the length of the last piece."""
        width = int(self.ids_per_second * self.seconds_per_chunk)  # a chunk is a whole number of ids in the code
        parts = [cut(seen[0], width), [p + seen.shape[1] for p in cut(heard[0], width)]]
        pieces = [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]
        return torch.cat(pieces), pieces[-1].numel()


@dataclass(frozen=True)
class TMRoPE3(TMRoPE):
    """TMRoPE of Qwen3-Omni (arXiv 2509.17765)."""

    ids_per_second: float = 13
    preset: ClassVar[Literal["omni2.5", "omni3"]] = "omni3"
    floating: ClassVar[bool] = True
    pad: ClassVar[int] = 0
    allocation: ClassVar[str] = "interleaved"


def cut(times: Tensor, width: float) -> list[Tensor]:
    """Indices of tokens in pieces; a new piece starts at the first token past the n-th multiple of `width`, n the pieces so
    far. One piece at a time, as in the released processor: after a gap, single tokens become pieces."""
    bounds, reached = [0], 1
    for i, time in enumerate(times.tolist()):
        if time >= reached * width:
            bounds.append(i)
            reached += 1
    bounds.append(len(times))
    return [torch.arange(a, b) for a, b in zip(bounds, bounds[1:]) if b > a]


def by_time(seen: Tensor, heard: Tensor) -> tuple[Tensor, int]:
    """Merge by time, frames ahead of sound when equal; also how many tokens are left over when one of both has ended."""
    times = torch.cat((seen[0], heard[0]))
    order = times.argsort(stable=True)
    is_seen = order < seen.shape[1]
    other = (is_seen != is_seen[-1]).nonzero()
    return order, len(order) - 1 - int(other[-1]) if len(other) else len(order)


def audio_tokens(frames: int, *, preset: Literal["omni2.5", "omni3"] = "omni2.5") -> int:
    """Tokens of a sound with this many mel frames."""
    if preset == "omni2.5":
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1
    if preset != "omni3":
        raise ValueError(f"audio_tokens: preset must be 'omni2.5' or 'omni3', got {preset!r}.")
    rest = (frames % 100 - 1) // 2 + 1
    return ((rest - 1) // 2 + 1 - 1) // 2 + 1 + 13 * (frames // 100)
