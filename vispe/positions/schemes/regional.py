"""RegionalRoPE: reference images take the places of the box that they are to fill in the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..segments import BoxedImage, Segment, Tiles, Video
from .base import Block, Scheme, cells, counting

ALL = (0, 1, 2)  # nothing moves with the start: places are those of the picture


def box_cells(height: int, width: int, box: tuple[float, float, float, float], *, centre: bool = False) -> Tensor:
    """Rows and columns of a reference's cells inside a box, (2, height · width) float64.

    Cell (i, j) lies at (top + s i, left + s j) with s = min((right − left) / width, (bottom − top) / height), so that the
    reference keeps its shape.

    Args:
        box: (left, top, right, bottom) in cells of the picture.
        centre: put what the shape leaves of the box on both sides alike, instead of right and below.
    """
    left, top, right, bottom = box
    scale = min((right - left) / width, (bottom - top) / height)
    place = cells(counting(1), height, width)[1:] * scale
    if centre:
        left, top = left + (right - left - scale * width) / 2, top + (bottom - top - scale * height) / 2
    return place + torch.tensor([top, left], dtype=torch.float64)[:, None]


@dataclass(frozen=True)
class RegionalRoPE(Scheme):
    """(time, row, column) of a picture and of the references in it: a `BoxedImage` has time 0 and the places of its box, an
    image or a video its own grid from `first_frame` on.

    Text conditions such transformers from outside their rotary: its ids are 0, and it moves nothing, so that counting cannot
    continue a sequence. Tiles have their places in the whole image, its thumbnail those of a reference that fills it.
    Paper: DreamingComics, arXiv 2512.01686 (no code). Scale and corner are the paper's as its reviews tell them; the time of
    the picture and centring could not be confirmed, and are options.

    Args:
        first_frame: time of the picture, apart from that of its references.
        centre: see `box_cells`.
    """

    first_frame: float = 3.0
    centre: bool = False
    floating: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.first_frame < 0:
            raise ValueError(f"regional_rope: first_frame must be at least 0, the time of references, got {self.first_frame}.")

    def block(self, segment: Segment, rate: float) -> Block:
        if isinstance(segment, BoxedImage):
            return self.reference(segment.height, segment.width, segment.box)
        return super().block(segment, rate)

    def reference(self, height: int, width: int, box: tuple[float, float, float, float]) -> Block:
        place = box_cells(height, width, box, centre=self.centre)
        return Block(torch.cat((torch.zeros(1, place.shape[1], dtype=torch.float64), place)), 0, ALL)

    def text(self, n: int) -> Block:
        return Block(torch.zeros(3, n, dtype=torch.float64), 0, ALL)

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        return Block(cells(self.first_frame + counting(video.frames), video.height, video.width), 0, ALL)

    def tiles(self, tiles: Tiles, rate: float) -> Block:
        place = tiles.cells().double()
        parts = [torch.cat((torch.full((1, tiles.tiled), self.first_frame, dtype=torch.float64), place))]
        if tiles.thumbnail:
            whole = (0.0, 0.0, float(tiles.cols * tiles.width), float(tiles.rows * tiles.height))
            parts.append(self.reference(*tiles.thumbnail, whole).ids)
        return Block(torch.cat(parts if tiles.first == "tiles" else parts[::-1], dim=1), 0, ALL)
