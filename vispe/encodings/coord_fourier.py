"""Encodings of coordinates known from radiance fields and point clouds, through a linear layer, added to the tokens.

    x_n ← x_n + W f(p_n) + b

f by `kind` (functions in coord_functions): "nerf" octaves (Mildenhall et al. 2020, arXiv 2003.08934); "barf", octaves that
appear with `progress` (Lin et al. 2021, arXiv 2104.06405); "integrated", their mean over a cell of the grid (mip-NeRF, Barron
et al. 2021, arXiv 2103.13415); "sape", coordinates and octaves revealed block by block (Hertz et al. 2021, arXiv 2104.09125);
"shifted", Gaussians at shifted places (Zheng et al. 2022, arXiv 2107.02561); "spline", cubic B-splines at even knots (the basis
of BF-STVSR, whose mapper is coord_spline); "sine" and "gaussian", 3DETR's and V-DETR's (Misra et al. 2021, arXiv 2109.08141);
"linear", the coordinates (Point Cloud Mamba, arXiv 2403.00762: without bias). Coordinates are (p + ½)/n in [0, 1] on grids;
custom ones are taken as they are, so normalise scenes first ((x − min)/(max − min)).
Chosen here: "gaussian" draws its fixed frequencies from the seed 0; "shifted" divides by √(axes · σ E √π / 2), the length of
a row in the middle, where released code divides by the longest row of the batch; "integrated" takes the cell as uniform, with
variance 1/12 of its side squared, and custom coordinates as points.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions, Resize, resize_option
from . import coord_functions as coord
from .base import Card, Encoding, at_least_float32
from .rotary import positive

Kind = Literal["nerf", "barf", "integrated", "sape", "shifted", "spline", "sine", "gaussian", "linear"]
KINDS = ("nerf", "barf", "integrated", "sape", "shifted", "spline", "sine", "gaussian", "linear")


class CoordFourier(Encoding):
    """Features of coordinates.

    Args:
        kind: see above.
        num_freqs: octaves, or functions on each axis.
        progress: share of training that is over, for "barf" and "sape"; set `encoding.progress` as it goes on.
        sigma: width of the Gaussians of "shifted"; standard deviation of the frequencies of "gaussian".
        resize: "rescale" (every image spans [0, 1]) or "extend".
    """

    card = Card(
        title="Coordinate features (NeRF, BARF, mip-NeRF, SAPE, 3DETR, ...)",
        family="additive",
        axes=(1, 2, 3),
        injection=("tokens",),
        formula="x_n + W f(p) + b, f by kind",
        paper="https://arxiv.org/abs/2003.08934",
        year=2020,
        code="chenhsuanlin/bundle-adjusting-NeRF",
        licence="MIT",
        cases=7,
    )
    default_resize: Resize = "rescale"
    neutral_zeros = ("linear",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        kind: Kind = "nerf",
        num_freqs: int = 10,
        progress: float = 1.0,
        sigma: float | None = None,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if kind not in KINDS:
            raise ValueError(f"coord_fourier: kind must be one of {KINDS}, got {kind!r}.")
        if num_freqs < 1:
            raise ValueError(f"coord_fourier: num_freqs must be at least 1, got {num_freqs}.")
        self.kind, self.num_freqs, self.progress = kind, num_freqs, progress
        self.sigma = positive("coord_fourier", "sigma", (0.07 if kind == "shifted" else 1.0) if sigma is None else sigma)
        self.resize = resize_option("coord_fourier", self.default_resize if resize is None else resize)
        per_axis = {"linear": 1, "sape": 1 + 2 * num_freqs, "shifted": num_freqs, "spline": num_freqs}.get(kind, 2 * num_freqs)
        self.linear = nn.Linear(per_axis * axes, dim, bias=kind != "linear")

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    def features(self, x: Tensor, variance: Tensor | None = None) -> Tensor:
        """f (..., features) of coordinates (..., axes); variance (axes,) of a cell, for "integrated"."""
        n, kind = self.num_freqs, self.kind
        if kind == "linear":
            return x
        if kind == "nerf":
            return coord.octaves(x, n)
        if kind == "barf":
            return coord.weighted_octaves(x, n, self.progress)
        if kind == "integrated":
            return coord.integrated(x, (torch.zeros_like(x) if variance is None else variance.expand_as(x)), 0, n)
        if kind == "sape":
            mask = coord.progressive_mask(1 + n, int(self.progress * n), 1).to(x)
            weight = torch.cat((mask[:1].expand(self.axes), mask[1:].repeat_interleave(2 * self.axes)))
            return torch.cat((x, coord.sape_octaves(x, n)), dim=-1) * weight
        if kind == "shifted":
            norm = math.sqrt(self.axes * self.sigma * n * math.sqrt(math.pi))
            return coord.shifted_gaussians(x, 2 * n, self.sigma, norm=norm)
        if kind == "spline":
            knots = torch.arange(n, device=x.device, dtype=x.dtype)
            return coord.b_spline(x[..., None] * max(n - 1, 1) - knots).flatten(-2)
        if kind == "sine":
            return coord.scene_sine(x, 2 * n * self.axes)
        return coord.gaussian_fourier(x, self.frequencies().to(x))

    def frequencies(self) -> Tensor:
        """The fixed frequencies of "gaussian", (axes, axes · num_freqs)."""
        with torch.device("cpu"):
            generator = torch.Generator().manual_seed(0)
            return torch.randn(self.axes, self.axes * self.num_freqs, generator=generator) * self.sigma

    def prepare(self, pos: Positions) -> Tensor:
        """(1 or B, prefix + N, C)."""
        self.check_axes(pos)
        dtype = at_least_float32(self.linear.weight.dtype)
        x = pos.to("unit", self.resize).to(dtype)
        size = None if pos.units == "custom" else (pos.extent if self.resize == "rescale" else pos.train)
        variance = None if size is None else torch.stack([x.new_ones(()) / (12 * n * n) for n in size])
        bias = None if self.linear.bias is None else self.linear.bias.to(dtype)
        embedded = F.linear(self.features(x, variance), self.linear.weight.to(dtype), bias)
        return F.pad(embedded, (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
