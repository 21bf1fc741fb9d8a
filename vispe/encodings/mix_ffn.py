"""Mix-FFN: a depthwise convolution inside each block's MLP, whose zero padding tells where the border is.

    x ← x + fc2(GELU(DWConv_3(fc1(LN x))))

Paper: Xie et al., SegFormer, NeurIPS 2021, arXiv 2105.15203. Code: NVlabs/SegFormer at 65fa8cf (mix_transformer.py; Mlp and
DWConv; not copied, its licence is non-commercial). Zero padding, a bias, no identity around the convolution, init
N(0, √(2 / k²)). No other position anywhere. The convolution is a parameter of the encoding, fc1 and fc2 stay the host's.
Chosen here: prefix tokens, which SegFormer has not, skip the convolution. Pyramids use `vispe.layers.MixFfnMlp`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding
from .depthwise import check_full_grid, depthwise, depthwise_layer, odd_kernel, on_patches


def init_depthwise(conv: nn.Module) -> None:
    """N(0, √(2 / outputs that a weight takes part in)), bias 0."""
    nn.init.normal_(conv.weight, std=math.sqrt(2 / math.prod(conv.kernel_size)))
    nn.init.zeros_(conv.bias)


class MixFfn(Encoding):
    """A depthwise convolution ahead of the activation of every MLP.

    Args:
        kernel_size: odd.
        mlp_dim: hidden channels of the MLPs; a host fills it in (None: 4 · dim).
    """

    card = Card(
        title="Mix-FFN (SegFormer)",
        family="conditional",
        axes=(1, 2, 3),
        injection=("hidden",),
        formula="fc2(GELU(DWConv(fc1 x)))",
        needs=("grid",),
        paper="https://arxiv.org/abs/2105.15203",
        year=2021,
        code="NVlabs/SegFormer",
        licence="NVIDIA non-commercial",
        cases=2,
    )
    per_layer = True

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, kernel_size: int = 3, mlp_dim: int | None = None
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.dwconv = depthwise_layer(axes, mlp_dim or 4 * dim, odd_kernel("mix_ffn", kernel_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_depthwise(self.dwconv)

    @torch.no_grad()
    def set_identity(self) -> bool:
        nn.init.zeros_(self.dwconv.bias)
        nn.init.zeros_(self.dwconv.weight)
        middle = tuple(n // 2 for n in self.dwconv.kernel_size)
        self.dwconv.weight[(slice(None), 0, *middle)] = 1.0
        return True

    def prepare(self, pos: Positions) -> Positions:
        self.check_axes(pos)
        return check_full_grid("mix_ffn", pos)

    def hidden(self, h: Tensor, ctx: Positions) -> Tensor:
        return on_patches(h, ctx.prefix, lambda p: depthwise(p, ctx.grid, self.dwconv.weight, self.dwconv.bias))
