"""SegFormer's MLP for hosts that are no plain ViT: pyramids of stages (SegFormer, PVTv2) whose blocks know their grid."""

from __future__ import annotations

import torch.nn as nn
from torch import Tensor

from ..encodings.depthwise import depthwise, depthwise_layer, odd_kernel, on_patches
from ..encodings.mix_ffn import init_depthwise


class MixFfnMlp(nn.Module):
    """fc2(GELU(DWConv(fc1 x))); the block adds the identity. Prefix tokens skip the convolution.

    Paper: Xie et al., SegFormer, NeurIPS 2021, arXiv 2105.15203. Code: NVlabs/SegFormer at 65fa8cf, which names the
    convolution `dwconv.dwconv`; here it is `dwconv`. In a ViT use the encoding `mix_ffn`, which computes the same.

    Args:
        in_features, hidden_features, out_features: channels; defaults 4 · in and in.
        axes: of the grid (1, 2 or 3).
        act_layer: exact GELU.
        drop: dropout behind the activation and behind fc2.
    """

    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None, *, axes: int = 2,
        kernel_size: int = 3, act_layer: type[nn.Module] = nn.GELU, drop: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        self.fc1 = nn.Linear(in_features, hidden)
        self.dwconv = depthwise_layer(axes, hidden, odd_kernel("MixFfnMlp", kernel_size))
        self.act, self.drop = act_layer(), nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden, in_features if out_features is None else out_features)
        for layer in (self.fc1, self.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        init_depthwise(self.dwconv)

    def forward(self, x: Tensor, grid: tuple[int, ...], prefix: int = 0) -> Tensor:
        """x (B, prefix + N, C), N the cells of `grid`, row-major."""
        h = on_patches(self.fc1(x), prefix, lambda p: depthwise(p, grid, self.dwconv.weight, self.dwconv.bias))
        return self.drop(self.fc2(self.drop(self.act(h))))
