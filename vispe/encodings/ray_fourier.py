"""Sines of each token's ray, through a linear layer, added to the tokens: the usual comparator of relative camera encodings.

    x_n ← x_n + W·f(ray_n) + b

"srt": octaves of the camera's centre, 2^−5 π to 2^9 π, then of the direction, 2^0 π to 2^14 π; each [all sines | all cosines]
with x, y, z apart (Sajjadi et al., Scene Representation Transformer, CVPR 2022, arXiv 2111.13152). "gbt": octaves 2^−6 π to
2^8 π of (d, m), [all sines | all cosines] with the octave outside (Venkat et al., arXiv 2301.04650). Source read:
autonomousvision/gta@1dcbd37, source/layers.py and source/utils/gbt.py (MIT). Absolute: another frame of the world is another
input; centres and moments have the scene's scale, which `scale` divides out. Prefix tokens get nothing.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.rays import cameras_of, plucker, token_rays
from .base import Card, Encoding, at_least_float32
from .rotary import positive

STARTS = {"srt": (-5, 0), "gbt": (-6, -6)}  # first octaves of both halves


def octaves(x: Tensor, count: int, first: int, *, outside: Literal["axis", "octave"]) -> Tensor:
    """[all sines | all cosines] of x·2^k·π, k from `first` on, (..., 2 · A · count) of x (..., A); axis or octave outside."""
    freqs = math.pi * 2.0 ** torch.arange(first, first + count, dtype=x.dtype, device=x.device)
    angle = x[..., None] * freqs  # (..., A, count)
    angle = (angle if outside == "axis" else angle.mT).flatten(-2)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def srt_features(
    origins: Tensor, directions: Tensor, *, position_octaves: int = 15, position_start: int = -5, ray_octaves: int = 15,
    ray_start: int = 0,
) -> Tensor:  # fmt: skip
    """SRT's encoding (..., 6 · (position + ray octaves)) of rays (..., 3)."""
    where = octaves(origins, position_octaves, position_start, outside="axis")
    return torch.cat((where, octaves(directions, ray_octaves, ray_start, outside="axis")), dim=-1)


def gbt_features(lines: Tensor, *, num_freqs: int = 15, start: int = -6) -> Tensor:
    """GBT's encoding (..., 12 · num_freqs) of Plücker coordinates (..., 6)."""
    return octaves(lines, num_freqs, start, outside="octave")


class RayFourier(Encoding):
    """Octaves of rays.

    Args:
        form: "srt" (centre and direction) or "gbt" (direction and moment).
        num_freqs: octaves of each coordinate.
        position_start, ray_start: first octave of the centre and of the direction; None is the official one. "gbt" takes
            `ray_start` for all six.
        scale: world units that count as 1.

    Attributes:
        proj: (12 · num_freqs → C).
    """

    card = Card(
        title="Fourier features of rays (SRT, GBT)",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + W [sin, cos](2^k π (o, d)) + b",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2111.13152",
        year=2022,
        code="autonomousvision/gta",
        licence="MIT",
        cases=2,
    )
    neutral_zeros = ("proj",)

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, form: Literal["srt", "gbt"] = "srt", num_freqs: int = 15,
        position_start: int | None = None, ray_start: int | None = None, scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if form not in STARTS:
            raise ValueError(f"ray_fourier: form must be one of {tuple(STARTS)}, got {form!r}.")
        if num_freqs < 1:
            raise ValueError(f"ray_fourier: num_freqs must be at least 1, got {num_freqs}.")
        self.form, self.num_freqs, self.scale = form, num_freqs, positive("ray_fourier", "scale", scale)
        own = (position_start, ray_start)
        self.starts = tuple(default if start is None else start for start, default in zip(own, STARTS[form]))
        self.proj = nn.Linear(12 * num_freqs, dim)

    def reset_parameters(self) -> None:
        self.proj.reset_parameters()

    def features(self, origins: Tensor, directions: Tensor) -> Tensor:
        """(..., 12 · num_freqs) of rays (..., 3)."""
        if self.form == "gbt":
            return gbt_features(plucker(origins, directions), num_freqs=self.num_freqs, start=self.starts[1])
        n, (position, ray) = self.num_freqs, self.starts
        return srt_features(
            origins, directions, position_octaves=n, position_start=position, ray_octaves=n, ray_start=ray
        )

    def prepare(self, pos: CameraPositions) -> Tensor:
        """What is added, (1 or B, prefix + N, C)."""
        self.check_axes(pos)
        origins, directions = token_rays(cameras_of(pos, "ray_fourier", intrinsics=True))
        dtype = at_least_float32(self.proj.weight.dtype)
        found = self.features(origins / self.scale, directions).to(dtype)
        return F.pad(F.linear(found, self.proj.weight.to(dtype), self.proj.bias.to(dtype)), (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
