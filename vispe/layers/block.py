"""A pre-norm transformer block with an encoding."""

from __future__ import annotations

from typing import Any

from timm.layers import Mlp
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor, nn

from ..encodings.base import Composed, Encoding


class Block(TimmBlock):
    """timm's ViT block (same parameters, same names) that hands the encoding and its context to attention and MLP."""

    def forward(self, x: Tensor, encoding: Encoding | Composed, ctx: Any, attn_mask: Tensor | None = None) -> Tensor:
        """x (B, N, C)."""
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), encoding, ctx, attn_mask)))
        return x + self.drop_path2(self.ls2(feed(self.mlp, self.norm2(x), encoding, ctx)))


def feed(mlp: nn.Module, x: Tensor, encoding: Encoding | Composed, ctx: Any) -> Tensor:
    """The MLP of x (B, N, C), with the encoding's `hidden` between its first layer and its activation."""
    if not encoding.in_mlp:
        return mlp(x)
    if not isinstance(mlp, Mlp):
        raise ValueError(
            f"feed: an encoding that acts inside the MLP needs timm's Mlp (two layers and an activation), got "
            f"{type(mlp).__name__}; create the model with the default mlp_layer."
        )
    h = mlp.drop1(mlp.act(encoding.hidden(mlp.fc1(x), ctx)))
    return mlp.drop2(mlp.fc2(mlp.norm(h)))
