"""A transformer block that attends within frames, then along time, then applies its MLP.

    x ← x + SA_space(LN(x));  x ← x + SA_time(LN(x));  x ← x + MLP(LN(x))

Paper: Arnab et al., ViViT, ICCV 2021, arXiv 2103.15691, model 3 (factorised self-attention). Bertasius et al. (TimeSformer,
arXiv 2102.05095) attend along time first.
"""

from __future__ import annotations

from typing import Any

from timm.layers import DropPath, LayerNorm
from timm.models.vision_transformer import LayerScale
from torch import Tensor, nn

from ..encodings.factorised import Contexts, Parts, merge, split
from .attention import Attention
from .block import Block, feed


class SpaceTimeBlock(Block):
    """timm's block, whose attention acts in space, with a second attention along time.

    Its names: `norm1`, `attn` in space, `norm_time`, `attn_time`, and `norm2`, `mlp`. Arguments are those of timm's block.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_attn_norm: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        init_values: float | None = None,
        drop_path: float = 0.0,
        norm_layer: type[nn.Module] = LayerNorm,
        attn_layer: type[nn.Module] = Attention,
        device: Any = None,
        dtype: Any = None,
        **block_kwargs: Any,
    ) -> None:
        attention = dict(
            num_heads=num_heads, qkv_bias=qkv_bias, qk_norm=qk_norm, proj_bias=proj_bias, proj_drop=proj_drop,
            attn_drop=attn_drop, norm_layer=norm_layer, device=device, dtype=dtype,
        )  # fmt: skip
        super().__init__(
            dim, scale_attn_norm=scale_attn_norm, init_values=init_values, drop_path=drop_path, attn_layer=attn_layer,
            **attention, **block_kwargs,
        )  # fmt: skip
        self.norm_time = norm_layer(dim, device=device, dtype=dtype)
        self.attn_time = attn_layer(dim, scale_norm=scale_attn_norm, **attention)
        self.ls_time = LayerScale(dim, init_values, device=device, dtype=dtype) if init_values else nn.Identity()
        self.drop_path_time = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()

    def forward(self, x: Tensor, encoding: Parts, ctx: Contexts, attn_mask: Tensor | None = None) -> Tensor:
        """x (B, T·H·W, C)."""
        if attn_mask is not None:
            raise ValueError("SpaceTimeBlock: a mask over all tokens has no meaning in space and time by turns; use 'joint'.")
        places = split(self.norm1(x), ctx.grid, "space")
        x = x + self.drop_path1(self.ls1(merge(self.attn(places, encoding.space, ctx.space), ctx.grid, "space")))
        frames = split(self.norm_time(x), ctx.grid, "time")
        moved = merge(self.attn_time(frames, encoding.time, ctx.time), ctx.grid, "time")
        x = x + self.drop_path_time(self.ls_time(moved))
        return x + self.drop_path2(self.ls2(feed(self.mlp, self.norm2(x), encoding.joint, ctx.joint)))
