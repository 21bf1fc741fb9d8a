"""LePE: a depthwise convolution of the values, added to what attention makes of them.

    o = softmax(q kᵀ / √d) v + DWConv_3(v) + b

Paper: Dong et al., CSWin Transformer, CVPR 2022, arXiv 2107.00652. Code: microsoft/CSWin-Transformer (LePEAttention). Zero
padding, own weights in each layer, initialised as torch does; the addition goes past the probabilities, so that fused
attention serves it. In CSWin the convolution ends at the border of each cross-shaped window; a ViT attends to the whole
grid, which is the window here (CSWin's last stage). Chosen here: prefix tokens get and give nothing.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions
from .base import Card, Encoding
from .depthwise import check_full_grid, depthwise, depthwise_layer, odd_kernel


class Lepe(Encoding):
    """Locally enhanced positional encoding.

    Args:
        kernel_size: odd.
    """

    card = Card(
        title="LePE (CSWin)",
        family="conditional",
        axes=(1, 2, 3),
        injection=("beside",),
        formula="p v + DWConv(v) + b",
        needs=("grid",),
        paper="https://arxiv.org/abs/2107.00652",
        year=2021,
        code="microsoft/CSWin-Transformer",
        licence="MIT",
    )
    per_layer = True
    neutral_zeros = ("conv",)

    def __init__(self, *, dim: int, num_heads: int, axes: int = 2, kernel_size: int = 3) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.conv = depthwise_layer(axes, dim, odd_kernel("lepe", kernel_size))

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()

    def prepare(self, pos: Positions) -> Positions:
        self.check_axes(pos)
        return check_full_grid("lepe", pos)

    def beside(self, v: Tensor, ctx_q: Positions, ctx_k: Positions) -> Tensor:
        if ctx_q is not ctx_k:
            raise ValueError(
                "lepe: values are added to the tokens that they come from, which cross-attention does not have; use "
                "self-attention, or another encoding for this layer."
            )
        patches = v[:, :, ctx_q.prefix :].transpose(1, 2).flatten(2)  # (B, N, C)
        y = depthwise(patches, ctx_q.grid, self.conv.weight, self.conv.bias)
        y = y.unflatten(2, v.shape[1::2]).transpose(1, 2)  # (B, H, N, D)
        return F.pad(y, (0, 0, ctx_q.prefix, 0))
