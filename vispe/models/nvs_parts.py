"""Parts of view-synthesis transformers: patches and back, a convolutional stem, a block of cross-attention."""

from __future__ import annotations

from typing import Any

from timm.layers import Mlp
from torch import Tensor, nn

from ..encodings.base import Composed, Encoding
from ..layers import CrossAttention, feed


def patchify(images: Tensor, patch: int) -> Tensor:
    """(..., C, H, W) to (..., H/p · W/p, C·p·p), row-major."""
    *lead, c, height, width = images.shape
    x = images.reshape(*lead, c, height // patch, patch, width // patch, patch)
    n = len(lead)
    x = x.permute(*range(n), n + 1, n + 3, n, n + 2, n + 4)  # (..., h, w, C, p, p)
    return x.reshape(*lead, (height // patch) * (width // patch), c * patch * patch)


def unpatchify(tokens: Tensor, grid: tuple[int, int], patch: int) -> Tensor:
    """(..., h·w, C·p·p) back to (..., C, h·p, w·p)."""
    *lead, _, channels = tokens.shape
    n, c = len(lead), channels // patch**2
    x = tokens.reshape(*lead, *grid, c, patch, patch)
    x = x.permute(*range(n), n + 2, n, n + 3, n + 1, n + 4)  # (..., C, h, p, w, p)
    return x.reshape(*lead, c, grid[0] * patch, grid[1] * patch)


class ConvStem(nn.Sequential):
    """Images (B, C, H, W) to features (B, dim, H/s, W/s): two 3x3 convolutions an octave, the second with stride 2, then 1x1.

    As the stem of SRT (Sajjadi et al., CVPR 2022, arXiv 2111.13152), which starts at 96 channels and doubles them.

    Args:
        stride: a power of 2.
        width: channels of the first convolution; they double with every octave.
    """

    def __init__(self, in_channels: int, dim: int, *, stride: int, width: int) -> None:
        if stride < 2 or stride & (stride - 1):
            raise ValueError(f"ConvStem: stride must be a power of 2 from 2 on, got {stride}.")
        layers: list[nn.Module] = []
        channels = in_channels
        for octave in range(stride.bit_length() - 1):
            out = width * 2**octave
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(out, 2 * out, 3, stride=2, padding=1), nn.ReLU()]
            channels = 2 * out
        super().__init__(*layers, nn.Conv2d(channels, dim, 1))


class CrossBlock(nn.Module):
    """Queries look at a scene, then pass an MLP; pre-norm, as `Block` without self-attention."""

    def __init__(self, dim: int, num_heads: int, *, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), CrossAttention(dim, num_heads=num_heads)
        self.norm2, self.mlp = nn.LayerNorm(dim), Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor, scene: Tensor, encoding: Encoding | Composed, ctx_q: Any, ctx_k: Any) -> Tensor:
        """x (B, Nq, C) and scene (B, Nk, C) with the encoding's contexts of both."""
        x = x + self.attn(self.norm1(x), scene, encoding, ctx_q, ctx_k)
        return x + feed(self.mlp, self.norm2(x), encoding, ctx_q)
