"""LookHere: heads that look in one direction, and pay for distance.

    logit_ij −= global_slope · layer_slope · head_slope · |x_i − x_j|;   keys outside a head's field of view are masked

Paper: Fuller et al., LookHere, NeurIPS 2024, arXiv 2405.13985. Code: GreenCUBIC/lookhere at 641deab, lookhere.py. A
head sees its own cell and the cells of its direction, borders included: halves (up, down, left, right), corners,
triangles (90° around an axis), eighths1 and eighths2 (45°), diagonals (two triangles), or everything ("none"). Slopes
of directed heads are 1/2, 1/4, ... in groups of four, those of undirected ones 1/4, 1/16, 1/64, 1/256; layer slopes run
linearly from the first layer to the last. Class tokens: 0. Masked pairs hold the negative maximum of bfloat16, as in
the official code, so that a query that sees no key is no NaN.
Chosen here: any grid, free coordinates, any number of prefix tokens, numbers of heads that the official table lacks
(see `share_heads`); slopes must be positive (an official slope of 0 lifts the masks). The official code rounds the bias
to bfloat16, which is `rounding="bfloat16"`, needed for exact outputs of its weights. Distances are built once; a layer
multiplies them by its own slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions, Resize, resize_option
from .base import Card, Encoding
from .lookhere_views import head_views, visible
from .offsets import pair_offsets

POWERS = {"linear": 1.0, "sqrt": 0.5, "square": 2.0}
MASKED = -torch.finfo(torch.bfloat16).max


@dataclass(frozen=True)
class Looks:
    """One side's cells, its base (B or 1, H, prefix + N, prefix + N) with −inf where masked, and the slope of the layer."""

    coords: Tensor
    prefix: int
    extent: tuple[int, ...] | None
    base: Tensor
    slope: float


class LookHere(Encoding):
    """Directed heads with distance penalties, without parameters.

    Args:
        directions: kinds of heads joined by "-", e.g. "halves-none", or a list with one such string for each layer.
        layer_slopes: of the first and the last layer.
        global_slope: of all layers; the paper lowers it at larger sizes.
        distance: "linear", "sqrt" or "square".
        fill: what cells out of view get: "inf" masks them, "zero" is no penalty, "max" the penalty of the longest distance.
        rounding: "bfloat16" rounds the bias as the official code does.
        resize: "extend" (distances in patches of the image at hand) or "rescale" (in patches of the train grid).
        depth, layer: of the host, which fills them in.
    """

    card = Card(
        title="LookHere",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j - s_l m_h |i-j|, masked by direction",
        paper="https://arxiv.org/abs/2405.13985",
        year=2024,
        code="GreenCUBIC/lookhere",
        licence="MIT",
        cases=3,
        relative=True,
    )
    per_layer = True
    default_resize: Resize = "extend"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        directions: str | Sequence[str] = "halves-none",
        layer_slopes: tuple[float, float] = (1.5, 0.5),
        global_slope: float = 1.0,
        distance: Literal["linear", "sqrt", "square"] = "linear",
        fill: Literal["inf", "zero", "max"] = "inf",
        rounding: Literal["none", "bfloat16"] = "none",
        resize: Resize = "extend",
        depth: int | None = None,
        layer: int = 0,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        depth = depth or 1
        if not 0 <= layer < depth:
            raise ValueError(f"lookhere: layer must lie in 0 ... {depth - 1}, got {layer}.")
        if min(*layer_slopes, global_slope) <= 0:
            raise ValueError(f"lookhere: slopes must be positive, got {tuple(layer_slopes)} and {global_slope}.")
        for option, value, known in (
            ("distance", distance, tuple(POWERS)),
            ("fill", fill, ("inf", "zero", "max")),
            ("rounding", rounding, ("none", "bfloat16")),
        ):
            if value not in known:
                raise ValueError(f"lookhere: {option} must be one of {known}, got {value!r}.")
        if not isinstance(directions, str) and len(directions) != depth:
            raise ValueError(f"lookhere: directions are one string, or one for each of {depth} layers, got {len(directions)}.")
        self.directions = directions if isinstance(directions, str) else directions[layer]
        self.heads = head_views(self.directions, num_heads)
        first, last = layer_slopes
        self.slope = global_slope * (first + (last - first) * layer / max(depth - 1, 1))
        self.distance, self.fill, self.rounding = distance, fill, rounding
        self.resize = resize_option("lookhere", resize)

    @classmethod
    def prepare_layers(cls, layers: Sequence[LookHere], pos: Positions) -> list[Looks]:
        layers[0].check_axes(pos)
        coords = pos.to("index", layers[0].resize)
        bases: dict[str, Tensor] = {}
        for one in layers:  # layers that look alike share one base
            if one.directions not in bases:
                bases[one.directions] = one._base(coords, coords, pos.extent, pos.prefix, pos.prefix)
        return [Looks(coords, pos.prefix, pos.extent, bases[one.directions], one.slope) for one in layers]

    def prepare(self, pos: Positions) -> Looks:
        return self.prepare_layers([self], pos)[0]

    def _base(self, query: Tensor, key: Tensor, extent: tuple[int, ...] | None, prefix_q: int, prefix_k: int) -> Tensor:
        dy, dx = pair_offsets(query, key).unbind(-1)  # (B or 1, Nq, Nk)
        power = POWERS[self.distance]
        far = (dy.square() + dx.square()).sqrt() ** power
        heads = []
        for view, slope in self.heads:
            if "center" in view:
                penalty = self._from_center(key, extent)[:, None].expand_as(far)
            else:
                penalty = torch.zeros_like(far) if "zero" in view else far
            filled = float("inf") if self.fill == "inf" else self._longest(extent) ** power if self.fill == "max" else 0.0
            filled = 0.0 if "zero" in view and self.fill == "max" else filled
            heads.append(-slope * torch.where(visible(view, dy, dx), penalty, filled))
        return F.pad(torch.stack(heads, dim=1), (prefix_k, 0, prefix_q, 0))

    def _from_center(self, key: Tensor, extent: tuple[int, ...] | None) -> Tensor:
        """Distance of every key from the centre of the frame, (B or 1, Nk)."""
        sides = self._sides(extent)
        return torch.stack([c - n / 2 for c, n in zip(key.unbind(-1), sides)]).square().sum(0).sqrt()

    def _longest(self, extent: tuple[int, ...] | None) -> float:
        return sum(n * n for n in self._sides(extent)) ** 0.5

    def _sides(self, extent: tuple[int, ...] | None) -> list[int]:
        if extent is None:
            raise ValueError("lookhere: fill='max' and heads that look at the centre need a grid, got custom coordinates.")
        return [n - 1 for n in extent]

    def bias(self, q: Tensor, k: Tensor, ctx_q: Looks, ctx_k: Looks) -> Tensor:
        base = ctx_k.base
        if ctx_q is not ctx_k:
            base = self._base(ctx_q.coords, ctx_k.coords, ctx_k.extent, ctx_q.prefix, ctx_k.prefix)
        bias = (base * ctx_k.slope).clamp(min=MASKED)
        return bias.bfloat16().to(bias.dtype) if self.rounding == "bfloat16" else bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, directions={self.directions!r}, slope={self.slope:.4g}"
