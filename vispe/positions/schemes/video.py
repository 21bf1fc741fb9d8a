"""VideoRoPE, HoPE and VRoPE: schemes that place videos on a line through time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..segments import Video
from .base import Block, Scheme, cells, counting


@dataclass(frozen=True)
class VideoRoPE(Scheme):
    """Frames on the diagonal: tau = start + scale · frame, row tau + i − (h−1)//2, column tau + j − (w−1)//2.

    Text goes on behind the last tau alone: an image moves it by one id, and its rows and columns reach past both sides.
    Paper: Wei et al., ICML 2025, arXiv 2502.05173; code Wiselnn570/VideoRoPE 7712ca3.

    Args:
        scale: ids between two frames.
    """

    scale: float = 2.0
    floating: ClassVar[bool] = True
    pad: ClassVar[int] = 1
    allocation: ClassVar[str] = "videorope"

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"{type(self).__name__}: scale must be positive, got {self.scale}.")

    @property
    def rate(self) -> float:
        return self.scale

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        tau = rate * counting(video.frames)
        ids = cells(tau, video.height, video.width)
        ids[1] += ids[0] - (video.height - 1) // 2
        ids[2] += ids[0] - (video.width - 1) // 2
        return Block(ids, tau[-1].item() + 1)


@dataclass(frozen=True)
class HoPE(VideoRoPE):
    """VideoRoPE's ids with a scale drawn for each visual block in training, and time on no frequency at all.

    Paper: Li et al., NeurIPS 2025, arXiv 2505.20444; code hrlics/HoPE 85b76c0. Draws come from an explicit generator.

    Args:
        scale: where none is drawn.
    """

    scale: float = 1.0
    allocation: ClassVar[str] = "hope"
    choices: ClassVar[tuple[float, ...]] = (0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass(frozen=True)
class VRoPE(Scheme):
    """Four sums of row and column, each counted from either end, on a base that steps h + w − 1 a frame.

    Channels (i + j, i + j', i' + j, i' + j') with i' = h−1−i, j' = w−1−j; rotary pair c reads channel c mod 4. Text goes on
    without gap or overlap. Paper: Liu et al., EMNLP 2025, arXiv 2502.11664; code johncaged/VRoPE 6a7adbc (ids only, so the
    order of rotary pairs is chosen here; its `half_time_dim` has no effect there, and is left out).
    """

    axes: ClassVar[int] = 4
    allocation: ClassVar[str] = "cycle"

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        reach = video.height + video.width - 1
        time, row, column = cells(reach * counting(video.frames), video.height, video.width)
        up, left = video.height - 1 - row, video.width - 1 - column
        return Block(time + torch.stack((row + column, row + left, up + column, up + left)), reach * video.frames)
