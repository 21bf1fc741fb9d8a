"""Depthwise convolutions on tokens that fill a grid: what PEG, Mix-FFN and LePE share."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def depthwise(
    x: Tensor, grid: tuple[int, ...], weight: Tensor, bias: Tensor | None, *, stride: int = 1, dilation: int = 1
) -> Tensor:
    """Depthwise convolution of tokens (B, N, C) of a full row-major grid, zero padding dilation · (k // 2).

    Args:
        weight: (C, 1, k, ...) with as many kernel sides as the grid has axes, k odd.
        stride: shrinks each side to (n − 1) // stride + 1.
    """
    image = x.transpose(1, 2).unflatten(2, tuple(grid))
    pad = dilation * (weight.shape[-1] // 2)
    bias = None if bias is None else bias.to(x.dtype)
    y = _CONV[len(grid)](image, weight.to(x.dtype), bias, stride, pad, dilation, x.shape[-1])
    return y.flatten(2).transpose(1, 2)


def depthwise_layer(axes: int, channels: int, kernel_size: int, dilation: int = 1) -> nn.Module:
    """The layer that holds the parameters of `depthwise` on a grid with 1, 2 or 3 axes."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    pad = dilation * (kernel_size // 2)
    return conv(channels, channels, kernel_size, padding=pad, dilation=dilation, groups=channels)


def odd_kernel(name: str, kernel_size: int) -> int:
    """The side of a kernel that keeps the size of a grid."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"{name}: kernel_size must be odd, so that the grid keeps its size, got {kernel_size}.")
    return kernel_size


def check_full_grid(name: str, pos: Positions) -> Positions:
    """Refuse tokens that a convolution cannot act on."""
    if pos.grid is None:
        raise ValueError(
            f"{name}: the tokens are no full grid (some were dropped, or the positions are custom), so they cannot be "
            f"convolved; switch patch dropout or masking off, or use an encoding that takes free positions."
        )
    return pos


def on_patches(x: Tensor, prefix: int, act: Callable[[Tensor], Tensor]) -> Tensor:
    """`act` on the patches of tokens (B, prefix + N, C); the prefix tokens pass unchanged."""
    if not prefix:
        return act(x)
    lead, patches = x.split((prefix, x.shape[1] - prefix), dim=1)
    return torch.cat((lead, act(patches)), dim=1)
