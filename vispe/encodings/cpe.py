"""Conditional positional encoding: a depthwise convolution on the patch grid, between blocks (PEG).

    x ← x + DWConv_k(x) + b   after the chosen blocks, zero padding dilation · (k // 2)

Paper: Chu et al., Conditional Positional Encodings for Vision Transformers, arXiv 2102.10882, algorithm 1 and table 3 (one
PEG after block 0). Code: Meituan-AutoML/Twins (gvt.py, PosCNN); the isotropic CPVT was never published. Zero padding is
what makes it leak absolute position. Conv init N(0, √(2 / k²)), bias 0, no weight decay as in Twins.
Prefix tokens bypass the convolution.
`dilation` is that of DCPE (Gu et al., XYLayoutLM, CVPR 2022, arXiv 2203.06947; no code): dilated on the grid of an image,
and with axes=1 its twin on the reading order of text. Each of both sequences is a grid of its own, with its own encoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding
from .depthwise import check_full_grid, depthwise, depthwise_layer, odd_kernel, on_patches


def peg(
    x: Tensor, grid: tuple[int, ...], weight: Tensor, bias: Tensor | None, *, stride: int = 1, dilation: int = 1
) -> Tensor:
    """Positional encoding generator: `depthwise`, to which stride 1 adds the identity (other strides do not)."""
    y = depthwise(x, grid, weight, bias, stride=stride, dilation=dilation)
    return x + y if stride == 1 else y


class Cpe(Encoding):
    """PEGs after a set of blocks.

    Args:
        after: blocks that a PEG follows; -1 is ahead of block 0. CPVT's "0-5" is range(0, 5) or range(0, 6).
        kernel_size: odd.
        dilation: step between the cells that a kernel sees.
        depth: blocks of the host, to refuse a PEG that would never run.
    """

    card = Card(
        title="Conditional (PEG)",
        family="conditional",
        axes=(1, 2, 3),
        injection=("between",),
        formula="x + DWConv(x) + b between blocks",
        needs=("grid",),
        paper="https://arxiv.org/abs/2102.10882",
        year=2021,
        code="Meituan-AutoML/Twins",
        licence="Apache-2.0",
        cases=7,
    )
    no_decay = ("pegs",)
    neutral_zeros = ("pegs",)
    of_blocks = "pegs"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        after: Sequence[int] = (0,),
        kernel_size: int = 3,
        dilation: int = 1,
        depth: int | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        odd_kernel("cpe", kernel_size)
        if dilation < 1:
            raise ValueError(f"cpe: dilation must be at least 1, got {dilation}.")
        self.dilation = dilation
        last = max(after, default=None)
        if last is None or min(after) < -1 or len(set(after)) < len(tuple(after)) or (depth is not None and last >= depth):
            raise ValueError(f"cpe: after must name different blocks from -1 to {(depth or 1) - 1}, got {tuple(after)}.")
        self.pegs = nn.ModuleDict({str(i): depthwise_layer(axes, dim, kernel_size, dilation) for i in sorted(after)})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for conv in self.pegs.values():
            nn.init.normal_(conv.weight, std=math.sqrt(2 / math.prod(conv.kernel_size)))
            nn.init.zeros_(conv.bias)

    def truncate(self, depth: int) -> None:
        """Drop the PEGs behind blocks that are gone."""
        for i in [i for i in self.pegs if int(i) >= depth]:
            del self.pegs[i]

    def prepare(self, pos: Positions) -> Positions:
        self.check_axes(pos)
        return check_full_grid("cpe", pos)

    def between(self, x: Tensor, ctx: Positions, i: int) -> Tensor:
        if str(i) not in self.pegs:
            return x
        conv = self.pegs[str(i)]
        return on_patches(x, ctx.prefix, lambda p: peg(p, ctx.grid, conv.weight, conv.bias, dilation=self.dilation))
