"""CCA, MCA and PyPE: visual tokens share ids by rings from the border inwards, and attend by ring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..segments import Video
from .base import Block
from .line import Line


@dataclass(frozen=True)
class Rings(Line):
    """One id a ring, outermost first; text goes on behind the innermost.

    CCA: the distance to the nearest border, Xing et al., NeurIPS 2024, arXiv 2410.15926, xing0047/cca-llava 8b5bb61.
    MCA: distances to the nearest horizontal and vertical border added, arXiv 2507.09184, ErikZ719/MCA-LLaVA a9a1e40.
    `ring_mask` (positions/masks.py) gives their attention mask. Different: any grid and batch, where 24 x 24 and 1 are fixed
    there; every frame of a video, every tile of an image and its thumbnail have rings of their own.

    Args:
        kind: how distances to the borders become one ring.
    """

    kind: Literal["nearest", "manhattan"] = "nearest"
    pad: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.kind not in ("nearest", "manhattan"):
            raise ValueError(f"rings: kind must be 'nearest' or 'manhattan', got {self.kind!r}.")

    def rings(self, height: int, width: int) -> Tensor:
        """Ring of every cell, (height · width,) int64, 0 at the border."""
        y, x = (torch.arange(n) for n in (height, width))
        y, x = torch.minimum(y, height - 1 - y)[:, None], torch.minimum(x, width - 1 - x)[None]
        return (torch.minimum(y, x) if self.kind == "nearest" else y + x).flatten()

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        own = self.rings(video.height, video.width)
        levels = int(own.max()) + 1
        ids = torch.arange(video.frames)[:, None] * levels + own
        return Block(ids.flatten()[None].double(), levels * video.frames)

    def tiles(self, tiles, rate: float) -> Block:
        return super(Line, self).tiles(tiles, rate)


@dataclass(frozen=True)
class PyPE(Rings):
    """CCA's rings, of which deeper layers keep fewer: the innermost merge until one is left.

    Rings that layer l keeps: levels + 1 − min(l // layers_per_step + 1, levels). Paper: Chen et al., arXiv 2501.10967; code
    SakuraTroyChen/PyPE 6c73390 (there levels = 12 of a 24 x 24 grid). Every layer has its own ids for text too: build them
    with `scheme.for_layer(i, depth)`.

    Args:
        layers_per_step: layers that keep the same rings.
        levels: rings of the first layers; None for those of each image.
        layer: which layer's ids.
    """

    layers_per_step: int = 2
    levels: int | None = None
    layer: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers_per_step < 1 or self.layer < 0 or self.levels is not None and self.levels < 1:
            raise ValueError(
                f"pype: layers_per_step and levels start at 1, layer at 0; got {self.layers_per_step}, {self.levels}, "
                f"{self.layer}."
            )

    def for_layer(self, layer: int, depth: int) -> PyPE:
        return replace(self, layer=layer)

    def rings(self, height: int, width: int) -> Tensor:
        own = super().rings(height, width)
        levels = self.levels or int(own.max()) + 1
        return own.clamp(max=levels - min(self.layer // self.layers_per_step + 1, levels))
