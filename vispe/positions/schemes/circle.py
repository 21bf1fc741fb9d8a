"""Circle-RoPE: an image's ids lie on a ring around the line of text, equally far from all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..segments import Video
from .base import Block, Scheme, cells, chain, counting
from .mrope import MRoPE

LAYERS = ("all", "alternate", "first_half", "second_half")


@dataclass(frozen=True)
class CircleRope(Scheme):
    """Cells on a circle in the plane normal to (1, 1, 1), the direction in which text counts.

    With centred column x and row y: angle = alpha · (polar angle stretched to [0, 2π]) + (1 − alpha) · 2π · index / cells,
    point = radius · (cos u + sin v), u = (−1, 1, 0)/√2, v = (−1, −1, 2)/√6, of which (time, row, column) take (z, y, x). Text
    goes on one behind the largest id of the block, a fraction. Paper: Wang et al., arXiv 2505.16416; code
    lose4578/CircleRoPE 063fb2c (images only; here every frame of a video has a ring of its own, one behind the other).

    Args:
        alpha: share of the polar angle.
        radius: in ids, "auto" for the largest centred coordinate, "auto-k" for k times it.
        move_to_origin: centre coordinates at (max + min) / 2.
        blend: `dff_rate`, share of the grid itself, laid into the same plane, against the ring; None for the ring alone.
        move_to_positive: "auto" adds the size of the smallest id, a number adds that on top; None leaves ids around 0.
        layers: which layers use the circle ("alternate": the even ones, strategy 4 of the code), the others Qwen2.5-VL's grid.
    """

    alpha: float = 0.5
    radius: float | str = 10.0
    move_to_origin: bool = True
    blend: float | None = None
    move_to_positive: float | Literal["auto"] | None = None
    layers: Literal["all", "alternate", "first_half", "second_half"] = "alternate"
    floating: ClassVar[bool] = True
    pad: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.layers not in LAYERS:
            raise ValueError(f"circle_rope: layers must be one of {LAYERS}, got {self.layers!r}.")
        if isinstance(self.radius, str) and not self.radius.startswith("auto"):
            raise ValueError(f"circle_rope: radius must be a number, 'auto' or 'auto-k', got {self.radius!r}.")

    def for_layer(self, layer: int, depth: int) -> Scheme:
        half = (depth + 1) // 2
        circle = {"all": True, "alternate": layer % 2 == 0, "first_half": layer < half, "second_half": layer >= half}
        return self if circle[self.layers] else GridLayers()

    def grid(self, video: Video, rate: float, *, still: bool) -> Block:
        ids = self.ring(video.height, video.width)
        return chain([Block(ids, ids.max().item() + 1)] * video.frames)

    def ring(self, height: int, width: int) -> Tensor:
        """(3, height · width) float64, of numbers rounded to float32 step by step: ids that weights were trained with."""
        _, y, x = cells(counting(1), height, width).float()
        if self.move_to_origin:
            x, y = (c - (c.max() + c.min()) / 2 for c in (x, y))
        polar = torch.atan2(y, x)
        low, span = polar.min(), polar.max() - polar.min()
        polar = (polar - low) / span * (2 * math.pi) if span > 0 else torch.zeros_like(polar)
        around = counting(height * width).float() / (height * width) * (2 * math.pi)
        angle = self.alpha * polar + (1 - self.alpha) * around
        reach = torch.stack((x, y)).abs().max().item()
        radius = self.radius if not isinstance(self.radius, str) else reach * float(self.radius.partition("-")[2] or 1)
        ring = _plane(radius * angle.cos(), radius * angle.sin())
        if self.blend is not None:
            ring = (1 - self.blend) * ring + self.blend * _plane(x, y)
        if self.move_to_positive is not None:
            ring = ring + ring.min().abs() + (0 if self.move_to_positive == "auto" else self.move_to_positive)
        return ring.flip(0).double()


def _plane(a: Tensor, b: Tensor) -> Tensor:
    """a u + b v, with u and v orthonormal and normal to (1, 1, 1)."""
    text = F.normalize(torch.ones(3), dim=0)
    u = F.normalize(torch.tensor([-1.0, 1.0, 0.0]), dim=0)
    v = F.normalize(torch.linalg.cross(text, u), dim=0)
    return a * u[:, None] + b * v[:, None]


@dataclass(frozen=True)
class GridLayers(MRoPE):
    """The grid ids of the layers without a circle, as float32 like their neighbours."""

    floating: ClassVar[bool] = True
