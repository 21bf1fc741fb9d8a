"""ALiBi on a grid: logits fall with the distance between cells, at a fixed slope for each head.

    logit_ij −= m_h · |x_i − x_j|,   m_h = 2^(−8h/H) for H a power of two

Paper: Fuller et al., CROMA, NeurIPS 2023, arXiv 2311.00566; ALiBi: Press et al., ICLR 2022, arXiv 2108.12409. Code:
antofuller/CROMA at 59505a6, get_2dalibi (square grids only, no class token). Other numbers of heads take the slopes of
the next smaller power of two, then every second one of the next larger.
Chosen here: any grid, free coordinates, any number of axes; pairs with prefix tokens get 0. One bias serves all layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions, Resize, resize_option
from .base import Card, Encoding
from .offsets import pair_offsets


@dataclass(frozen=True)
class Distances:
    """Coordinates of one side and its bias with itself (B or 1, H, prefix + N, prefix + N)."""

    coords: Tensor
    prefix: int
    pairs: Tensor


def alibi_slopes(num_heads: int) -> list[float]:
    """The slope of every head: 2^(−8/n), 2^(−16/n), ... for a power of two n."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


class Alibi2d(Encoding):
    """A distance bias without parameters.

    Args:
        resize: "extend" (distances in patches of the image at hand) or "rescale" (in patches of the train grid).
    """

    card = Card(
        title="2D-ALiBi",
        family="bias",
        axes=(1, 2, 3),
        injection=("bias",),
        formula="q_i·k_j - m_h |i-j|",
        paper="https://arxiv.org/abs/2311.00566",
        year=2023,
        code="antofuller/CROMA",
        licence="MIT",
        cases=2,
        relative=True,
    )
    default_resize: Resize = "extend"

    def __init__(self, *, dim: int, num_heads: int, axes: int = 2, resize: Resize = "extend") -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.resize = resize_option("alibi2d", resize)

    def prepare(self, pos: Positions) -> Distances:
        self.check_axes(pos)
        coords = pos.to("index", self.resize)
        return Distances(coords, pos.prefix, self._pairs(coords, coords, pos.prefix, pos.prefix))

    def _pairs(self, query: Tensor, key: Tensor, prefix_q: int, prefix_k: int) -> Tensor:
        distance = pair_offsets(query, key).square().sum(-1).sqrt()  # (B or 1, Nq, Nk)
        slopes = torch.tensor(alibi_slopes(self.num_heads), device=query.device, dtype=query.dtype)
        return F.pad(-slopes[:, None, None] * distance[:, None], (prefix_k, 0, prefix_q, 0))

    def bias(self, q: Tensor, k: Tensor, ctx_q: Distances, ctx_k: Distances) -> Tensor:
        if ctx_q is ctx_k:
            return ctx_k.pairs
        return self._pairs(ctx_q.coords, ctx_k.coords, ctx_q.prefix, ctx_k.prefix)
