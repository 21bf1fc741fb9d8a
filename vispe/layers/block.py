"""A pre-norm transformer block with an encoding."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor

from ..encodings.base import Composed, Encoding


class Block(TimmBlock):
    """timm's ViT block (same parameters, same names) that hands the encoding and its context to attention."""

    def forward(self, x: Tensor, encoding: Encoding | Composed, ctx: Any, attn_mask: Tensor | None = None) -> Tensor:
        """x (B, N, C)."""
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), encoding, ctx, attn_mask)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
