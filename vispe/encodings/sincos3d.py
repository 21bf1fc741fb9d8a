"""Fixed sin-cos tables of videos: frames, rows and columns with unequal shares of the channels.

    table[n] = [sin(t ω), cos(t ω), sin(row ω'), cos(row ω'), sin(col ω'), cos(col ω')],  ω_k = θ^(−k/q) with q pairs an axis

Source: facebookresearch/jepa (V-JEPA, Bardes et al. 2024, arXiv 2404.08471), get_3d_sincos_pos_embed: half of the channels
for time, a quarter for each side; "vjepa_uniform" is its `uniform_power`, whose equal shares are cut off at the end when 6
does not divide the width. "cogvideox" is diffusers' get_3d_sincos_pos_embed: a quarter for time, then columns, then rows.
Equal shares that divide are sincos2d with axes=3. Float32 here, float64 there. Chosen here: any grid (V-JEPA: square frames);
with axes=2 an image is a video of one frame, as in V-JEPA's image probing; prefix tokens get zeros.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions, Resize, resize_option
from .base import Card, Encoding
from .rotary import positive
from .sincos2d import sincos

Preset = Literal["vjepa", "vjepa_uniform", "cogvideox"]
MULTIPLES: dict[str, int] = {"vjepa": 8, "vjepa_uniform": 2, "cogvideox": 16}


def shares(preset: Preset, dim: int) -> list[tuple[int, int]]:
    """(axis, channels) in the order of the channels; axes are 0 time, 1 row, 2 column."""
    if preset not in MULTIPLES:
        raise ValueError(f"sincos3d: preset must be one of {tuple(MULTIPLES)}, got {preset!r}.")
    if dim % MULTIPLES[preset]:
        raise ValueError(f"sincos3d: dim must be a multiple of {MULTIPLES[preset]} for preset {preset!r}, got dim={dim}.")
    if preset == "vjepa_uniform":
        return [(axis, 2 * -(-dim // 6)) for axis in (0, 1, 2)]
    if preset == "cogvideox":
        return [(0, dim // 4), (2, 3 * dim // 8), (1, 3 * dim // 8)]
    return [(0, dim // 2), (1, dim // 4), (2, dim // 4)]


class SinCos3d(Encoding):
    """A fixed sin-cos table of a video, added to the tokens ahead of block 0.

    Args:
        preset: whose shares and order of the axes.
        theta: base of the frequencies, in units of one frame, row or column.
        resize: "extend" lets indices grow with the grid, "rescale" squeezes them onto the train grid.
    """

    card = Card(
        title="3-D sin-cos table",
        family="additive",
        axes=(2, 3),
        injection=("tokens",),
        formula="x_n + [sin(p w), cos(p w)] of time, row, column",
        paper="https://arxiv.org/abs/2404.08471",
        year=2024,
        code="facebookresearch/jepa",
        licence="CC-BY-NC-4.0",
    )
    default_resize: Resize = "extend"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 3,
        preset: Preset = "vjepa",
        theta: float = 10000.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.shares = shares(preset, dim)
        self.theta = positive("sincos3d", "theta", theta)
        self.resize = resize_option("sincos3d", self.default_resize if resize is None else resize)

    def prepare(self, pos: Positions) -> Tensor:
        """(1 or B, prefix + N, C) float32."""
        self.check_axes(pos)
        coords = pos.to("index", self.resize)
        coords = F.pad(coords, (3 - self.axes, 0))  # an image is frame 0
        parts = [
            sincos(coords[..., axis : axis + 1], width, theta=self.theta, order="row_col", stacking="axis")
            for axis, width in self.shares
        ]
        return F.pad(torch.cat(parts, dim=-1)[..., : self.dim], (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
