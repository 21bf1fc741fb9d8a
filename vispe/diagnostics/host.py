"""The model that diagnostics read: one of ours, or a timm ViT copied into one that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..adapters import swap
from ..models.video_vit import EncodedVideoTransformer
from ..models.vit import EncodedVisionTransformer
from ..positions import Positions, with_image


def as_host(model: nn.Module) -> EncodedVisionTransformer:
    """`model` itself when it is one of ours, else a copy that takes its encoding through our hooks (`vispe.swap`).

    Raises:
        ValueError: no image ViT, or one with a part that has no form here, which is named.
    """
    if isinstance(model, EncodedVideoTransformer):
        raise ValueError("diagnose: image models only, got a video model; its encoding alone can be drawn with `vispe show`.")
    if isinstance(model, EncodedVisionTransformer):
        return model
    try:
        return swap(model, "none", start="init")
    except ValueError as error:
        raise ValueError(
            f"diagnose: needs a ViT of vispe, or a timm VisionTransformer, Eva or Beit that vispe.swap can represent; got "
            f"{type(model).__name__}: {error}"
        ) from error


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode, every module as it was afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes.items():
            module.training = mode


@dataclass(frozen=True)
class Step:
    """What one place in the model holds.

    Attributes:
        name: "patches" (before any encoding), "input" (block 0's input), "block 0", "block 1", ...
        tokens: (B, prefix + N, C) after it; (B, N, C) for "patches".
        logits: computes that block's scaled attention logits with bias, (B, H, prefix + N, prefix + N) float32; None ahead of
            the blocks.
    """

    name: str
    tokens: Tensor
    logits: Callable[[], Tensor] | None = None


def patches_of(host: EncodedVisionTransformer, images: Tensor) -> tuple[Tensor, Positions]:
    """Patch tokens (B, N, C) of images (B, C, height, width), and their positions."""
    grid = host.patch_embed(images)  # (B, H, W, C)
    pos = host.positions(*grid.shape[1:-1], device=images.device)
    return grid.flatten(1, -2), with_image(pos, images) if host.encoding.wants_image else pos


def walk(host: EncodedVisionTransformer, patches: Tensor, pos: Positions) -> Iterator[Step]:
    """Every step of a forward pass from patch tokens at any positions, in order. The model must be in eval mode."""
    yield Step("patches", patches)
    x, ctx = host.start(patches, pos)
    yield Step("input", x)
    for i in range(len(host.blocks)):
        before = x
        x = host.run_block(i, x, ctx)
        yield Step(f"block {i}", x, lambda i=i, before=before: attention_logits(host, i, before, ctx))


def attention_logits(host: EncodedVisionTransformer, i: int, x: Tensor, ctx: list) -> Tensor:
    """Logits (B, H, T, T) of block i whose input is x, formed as attention forms them: scale · q kᵀ + bias."""
    encoding, own = host.encoding.layer(ctx, i)
    attn, normed = host.blocks[i].attn, host.blocks[i].norm1(x)
    q, k, _ = attn.qkv(normed).unflatten(-1, (3, attn.num_heads, attn.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
    q, k = attn.q_norm(q), attn.k_norm(k)
    own = encoding.look(normed, own)
    bias = encoding.bias(q, k, own, own)
    q, k = encoding.qk(q, k, own, own)
    logits = (q * attn.scale).float() @ k.float().mT
    return logits if bias is None else logits + bias.float()


def outputs(host: EncodedVisionTransformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Last tokens x (B, prefix + N, C) to normalised patch features (B, N, C) and logits (pooled features when headless)."""
    x = host.norm(x)
    return x[:, host.num_prefix_tokens :], host.forward_head(x)


def run(host: EncodedVisionTransformer, patches: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
    """`outputs` of patch tokens at any positions."""
    x, ctx = host.start(patches, pos)
    for i in range(len(host.blocks)):
        x = host.run_block(i, x, ctx)
    return outputs(host, x)


def relative_error(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖ over everything, 0 where both vanish."""
    return float((a - b).norm() / b.norm().clamp_min(torch.finfo(torch.float32).tiny))
