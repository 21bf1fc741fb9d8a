"""Conditional positional encoding: a depthwise convolution on the patch grid, between blocks (PEG).

    x ← x + DWConv_k(x) + b   after the chosen blocks, zero padding k // 2

Paper: Chu et al., Conditional Positional Encodings for Vision Transformers, arXiv 2102.10882, algorithm 1 and table 3 (one
PEG after block 0). Code: Meituan-AutoML/Twins (gvt.py, PosCNN); the isotropic CPVT was never published. Zero padding is
what makes it leak absolute position. Conv init N(0, √(2 / k²)), bias 0, no weight decay as in Twins.
Prefix tokens bypass the convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def peg(x: Tensor, grid: tuple[int, ...], weight: Tensor, bias: Tensor | None, *, stride: int = 1) -> Tensor:
    """Positional encoding generator on tokens (B, N, C) of a full row-major grid.

    Args:
        weight: (C, 1, k, ...) with as many kernel sides as the grid has axes, k odd.
        stride: 1 adds the identity; more does not, and shrinks each side to (n − 1) // stride + 1.
    """
    image = x.transpose(1, 2).unflatten(2, tuple(grid))
    pad = weight.shape[-1] // 2
    y = _CONV[len(grid)](image, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), stride, pad, 1, x.shape[-1])
    y = y.flatten(2).transpose(1, 2)
    return x + y if stride == 1 else y


class Cpe(Encoding):
    """PEGs after a set of blocks.

    Args:
        after: blocks that a PEG follows; -1 is ahead of block 0. CPVT's "0-5" is range(0, 5) or range(0, 6).
        kernel_size: odd.
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
    of_blocks = "pegs"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        after: Sequence[int] = (0,),
        kernel_size: int = 3,
        depth: int | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"cpe: kernel_size must be odd, so that the grid keeps its size, got {kernel_size}.")
        last = max(after, default=None)
        if last is None or min(after) < -1 or len(set(after)) < len(tuple(after)) or (depth is not None and last >= depth):
            raise ValueError(f"cpe: after must name different blocks from -1 to {(depth or 1) - 1}, got {tuple(after)}.")
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
        self.pegs = nn.ModuleDict(
            {str(i): conv(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim) for i in sorted(after)}
        )
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
        if pos.grid is None:
            raise ValueError(
                "cpe: the tokens are no full grid (some were dropped, or the positions are custom), so they cannot be "
                "convolved; switch patch dropout or masking off, or use an encoding that takes free positions."
            )
        return pos

    def between(self, x: Tensor, ctx: Positions, i: int) -> Tensor:
        if str(i) not in self.pegs:
            return x
        conv = self.pegs[str(i)]
        lead, patches = x.split((ctx.prefix, x.shape[1] - ctx.prefix), dim=1) if ctx.prefix else (None, x)
        patches = peg(patches, ctx.grid, conv.weight, conv.bias)
        return patches if lead is None else torch.cat((lead, patches), dim=1)
