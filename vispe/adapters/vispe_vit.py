"""`vispe_vit`: the ViT host whose norms, activations and MLPs are named by plain values, so that any ViT can be saved as one.

timm writes the arguments of a model to a JSON file and builds the model from them again. A class is no JSON value, so the
arguments that are classes in timm's VisionTransformer have names here.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Literal

import torch
from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.layers import (
    GELU,
    AttentionPoolLatent,
    GELUTanh,
    GluMlp,
    LayerNorm,
    LayerNormFp32,
    Mlp,
    QuickGELU,
    RmsNorm,
    SimpleNorm,
    SwiGLU,
)
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from ..models.vit import EncodedVisionTransformer
from ..models.vit_zoo import _filter as fit_weights

__all__ = ["AdoptedVisionTransformer"]

NORMS: dict[str, type[nn.Module]] = {
    "layernorm": LayerNorm, "layernorm_torch": nn.LayerNorm, "layernorm_fp32": LayerNormFp32, "rmsnorm": RmsNorm,
    "simplenorm": SimpleNorm,
}  # fmt: skip
ACTS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU, "gelu_timm": GELU, "gelu_tanh": GELUTanh, "quick_gelu": QuickGELU, "silu": nn.SiLU, "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
}  # fmt: skip
MLPS: dict[str, Any] = {
    "mlp": Mlp, "glu": GluMlp, "glu_gate_first": partial(GluMlp, gate_last=False), "swiglu": SwiGLU,
}  # fmt: skip


class AdoptedVisionTransformer(EncodedVisionTransformer):
    """An `EncodedVisionTransformer` whose every argument is a plain value.

    Args:
        norm, norm_eps: kind of every norm, and its ε.
        act: activation of the MLPs (of a gated one: of its gate).
        mlp: "mlp", "glu" (one fused layer, gate in its second half), "glu_gate_first", or "swiglu" (two layers).
        mlp_dim: outputs of the MLP's first layer, as a number rather than a ratio; a fused gate counts.
        embed_norm: a norm after the patch embedding.
        pool_heads, pool_mlp_dim: of the attention pool of global_pool="map" (default: those of the blocks).
        distilled: DeiT's second classifier, on the first register token (its distillation token); logits are the mean of both.
        timm_kwargs: as in `EncodedVisionTransformer`, without norm_layer, act_layer, mlp_layer and mlp_ratio.
    """

    def __init__(
        self,
        encoding: str = "none",
        encoding_kwargs: dict[str, Any] | None = None,
        img_size: int | tuple[int, int] = 224,
        train_size: int | tuple[int, int] | None = None,
        patch_drop_rate: float = 0.0,
        embed_dim: int = 768,
        norm: str = "layernorm",
        norm_eps: float = 1e-6,
        act: str = "gelu",
        mlp: Literal["mlp", "glu", "glu_gate_first", "swiglu"] = "mlp",
        mlp_dim: int | None = None,
        embed_norm: bool = False,
        pool_heads: int | None = None,
        pool_mlp_dim: int | None = None,
        distilled: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **timm_kwargs: Any,
    ) -> None:
        for option, value, known in (("norm", norm, NORMS), ("act", act, ACTS), ("mlp", mlp, MLPS)):
            if value not in known:
                raise ValueError(f"{type(self).__name__}: {option} must be one of {tuple(known)}, got {value!r}.")
        named = {"norm_layer": "norm", "act_layer": "act", "mlp_layer": "mlp", "mlp_ratio": "mlp_dim"}
        for name in named.keys() & timm_kwargs.keys():
            raise TypeError(f"{type(self).__name__}: {name!r} is not an argument here; use {named[name]!r}, a plain value.")
        make_norm = partial(NORMS[norm], eps=norm_eps)
        # timm takes int(embed_dim * ratio): the half keeps rounding from losing a unit
        ratio = 4.0 if mlp_dim is None else (mlp_dim + 0.5) / embed_dim
        super().__init__(
            encoding=encoding,
            encoding_kwargs=encoding_kwargs,
            img_size=img_size,
            train_size=train_size,
            patch_drop_rate=patch_drop_rate,
            embed_dim=embed_dim,
            norm_layer=make_norm,
            embed_norm_layer=make_norm if embed_norm else None,
            act_layer=ACTS[act],
            mlp_layer=MLPS[mlp],
            mlp_ratio=ratio,
            device=device,
            dtype=dtype,
            **timm_kwargs,
        )
        if isinstance(self.attn_pool, AttentionPoolLatent) and (pool_heads or pool_mlp_dim):
            self.attn_pool = AttentionPoolLatent(
                embed_dim, num_heads=pool_heads or self.attn_pool.num_heads, norm_layer=make_norm, act_layer=ACTS[act],
                mlp_ratio=(pool_mlp_dim + 0.5) / embed_dim if pool_mlp_dim else ratio, device=device, dtype=dtype,
            )  # fmt: skip
        if distilled and (self.reg_token is None or self.cls_token is None or self.global_pool != "token"):
            raise ValueError("vispe_vit: distilled=True needs a class token, reg_tokens=1 and global_pool='token'.")
        self.distilled, self.distilled_training = distilled, False
        if distilled:
            self.head_dist = copy.deepcopy(self.head)

    def set_distilled_training(self, enable: bool = True) -> None:
        """Whether training returns both classifiers' logits, as timm's distilled DeiT does on request."""
        self.distilled_training = enable

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes, global_pool)
        if self.distilled:
            self.head_dist = copy.deepcopy(self.head)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Tokens (B, prefix + N, C) to logits (B, classes)."""
        if not self.distilled:
            return super().forward_head(x, pre_logits)
        first, second = x[:, 0], x[:, 1]
        if not pre_logits:
            first, second = self.head(first), self.head_dist(second)
            if self.distilled_training and self.training:
                return first, second
        return (first + second) / 2


# timm reads this module's `default_cfgs` while it registers a name, so it stands above the entry.
default_cfgs = generate_default_cfgs(
    {
        "vispe_vit.untrained": dict(
            url="", input_size=(3, 224, 224), fixed_input_size=False, first_conv="patch_embed.proj", classifier="head",
            mean=IMAGENET_INCEPTION_MEAN, std=IMAGENET_INCEPTION_STD, interpolation="bicubic", crop_pct=0.9,
        )
    }
)  # fmt: skip


@register_model
def vispe_vit(pretrained: bool = False, **kwargs: Any) -> AdoptedVisionTransformer:
    """A ViT described by plain values alone; what `vispe.swap` returns."""
    out_indices = kwargs.pop("out_indices", 3)
    return build_model_with_cfg(
        AdoptedVisionTransformer,
        "vispe_vit",
        pretrained,
        pretrained_filter_fn=fit_weights,
        feature_cfg=dict(out_indices=out_indices, feature_cls="getter"),
        **kwargs,
    )
