"""IL-RoPE, Omni-RoPE and MM-RoPE: ids of models that also draw images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..segments import Video
from .base import Block, Scheme, cells, counting


@dataclass(frozen=True)
class ILRope(Scheme):
    """Time counts on; rows and columns begin at 0 in every grid. Text goes on at start + max(last time + 1, rows, columns).

    Code: JJJYmmm/Multimodal-RoPEs cd413b9, VectorSpaceLab/OmniGen2 0f72fa9.

    Args:
        stride: ids between two frames.
        text_axes: rows and columns of text: the "same" id as time (both codes), or "zero" (what the papers write).
    """

    stride: float = 1.0
    text_axes: Literal["same", "zero"] = "same"
    floating: ClassVar[bool] = True
    pad: ClassVar[int] = 1
    allocation: ClassVar[str] = "interleaved"

    def __post_init__(self) -> None:
        if self.text_axes not in ("same", "zero"):
            raise ValueError(f"{type(self).__name__}: text_axes must be 'same' or 'zero', got {self.text_axes!r}.")
        if not self.stride > 0:
            raise ValueError(f"{type(self).__name__}: stride must be positive, got {self.stride}.")

    def text(self, n: int) -> Block:
        if self.text_axes == "same":
            return super().text(n)
        return Block(torch.stack((counting(n), *torch.zeros(2, n, dtype=torch.float64))), n, (1, 2))

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        times = self.stride * counting(video.frames)
        return Block(cells(times, video.height, video.width), max(times[-1].item() + 1, video.height, video.width), (1, 2))


@dataclass(frozen=True)
class OmniRope(ILRope):
    """IL-RoPE's ids with the axes in blocks of frequencies (OmniGen2, arXiv 2506.18871).

    OmniGen2's own rotary has a full range of frequencies for each axis and turns neighbouring channels.
    """

    allocation: ClassVar[str] = "chunked"


@dataclass(frozen=True)
class MMRope(Scheme):
    """(time, row, column) scaled by an axis' factor, plus the start; the largest id leads on.

    Paper: Yuan et al., Lumos-1, arXiv 2507.08801 (no code). Rule from JJJYmmm/Multimodal-RoPEs cd413b9.

    Args:
        scale: factors of time, rows, columns (Lumos-1: 4, 8, 8).
        stride: frames count by this ahead of the factor.
    """

    scale: tuple[float, float, float] = (4.0, 8.0, 8.0)
    stride: float = 1.0
    floating: ClassVar[bool] = True
    pad: ClassVar[int] = 1
    allocation: ClassVar[str] = "lumos"

    def __post_init__(self) -> None:
        if len(self.scale) != 3 or not all(s > 0 for s in self.scale):
            raise ValueError(f"mm_rope: scale must be three positive factors (time, row, column), got {self.scale}.")

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        ids = cells(self.stride * counting(video.frames), video.height, video.width)
        ids *= torch.tensor(self.scale, dtype=torch.float64)[:, None]
        return Block(ids, ids.max().item() + 1)
