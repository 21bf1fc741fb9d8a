"""diffusers' DiTTransformer2DModel on latents that are not square.

Its forward takes the root of the number of tokens for both sides of the output: a latent of 8 x 12 cells fails, one of 4 x 16
comes out as 8 x 8 (huggingface/diffusers issue 13616). Two hooks repair that: tokens are filled up to the next square number,
and the output is put together again from the tokens.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch.nn.functional as F
from diffusers import DiTTransformer2DModel
from torch import Tensor, nn


def any_shape(model: nn.Module) -> None:
    """Let a DiTTransformer2DModel put out the shape that came in; others do so already."""
    if isinstance(model, DiTTransformer2DModel):
        model.proj_out_2.register_forward_hook(fill)
        model.register_forward_hook(reassemble, with_kwargs=True)


def fill(module: nn.Module, args: tuple[Tensor], tokens: Tensor) -> Tensor:
    """(B, N, C) to the next square number of tokens."""
    side = math.isqrt(tokens.shape[1] - 1) + 1
    return F.pad(tokens, (0, 0, 0, side * side - tokens.shape[1]))


def reassemble(model: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
    """The output (B, C, s·p, s·p) of filled tokens as (B, C, H, W) of the input."""
    latent = inspect.signature(type(model).forward).bind(model, *args, **kwargs).arguments["hidden_states"]
    p, sample = model.config.patch_size, output[0]
    rows, columns = (n // p for n in latent.shape[-2:])
    if rows == columns:
        return output
    side = sample.shape[-1] // p
    tokens = sample.unflatten(-1, (side, p)).unflatten(-3, (side, p)).permute(0, 2, 4, 1, 3, 5)  # (B, s, s, C, p, p)
    cells = tokens.flatten(1, 2)[:, : rows * columns].unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5)
    sample = cells.flatten(4, 5).flatten(2, 3)
    if isinstance(output, tuple):
        return (sample, *output[1:])
    output.sample = sample
    return output
