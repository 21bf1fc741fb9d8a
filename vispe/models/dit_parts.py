"""Parts of diffusion transformers: embedders of time, class and crop, the adaLN-zero block and the last layer.

Names and order of operations are facebookresearch/DiT's (ed81ce2), so that its weights load under their own keys; RMSNorm,
SwiGLU, QK-norm and modulation without shift are LightningDiT's (hustvl/LightningDiT at 2725fed).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from timm.layers import Mlp, SwiGLUPacked
from torch import Tensor, nn

from ..encodings.base import Composed, Encoding
from ..layers import Attention, feed
from ..positions.crop_condition import NO_CROP

Norm = Literal["layer", "rms"]
MlpKind = Literal["gelu", "swiglu"]
SINUSOID = 256  # width of the sinusoid of a time or of one number of a crop


def sinusoid(t: Tensor, dim: int = SINUSOID, *, max_period: float = 10000.0) -> Tensor:
    """[cos | sin] features (..., dim) float32 of numbers (...), frequencies max_period^(−i / (dim / 2))."""
    half = dim // 2
    steps = torch.arange(half, dtype=torch.float32, device=t.device)
    angle = t[..., None].float() * torch.exp(-math.log(max_period) * steps / half)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def norm_layer(kind: Norm, dim: int, *, affine: bool = False, eps: float = 1e-6) -> nn.Module:
    """LayerNorm, without weights unless `affine`, or RMSNorm, which always has a weight."""
    return nn.RMSNorm(dim, eps=eps) if kind == "rms" else nn.LayerNorm(dim, eps=eps, elementwise_affine=affine)


def modulate(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """x (B, N, C) times 1 + scale (B, C), plus shift (B, C)."""
    x = x * (1 + scale[:, None])
    return x if shift is None else x + shift[:, None]


class TimestepEmbedder(nn.Module):
    """Times (B,), in whatever unit the model was trained with, to (B, C)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(SINUSOID, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(sinusoid(t).to(self.mlp[0].weight.dtype))


class LabelEmbedder(nn.Module):
    """Class ids (B,) to (B, C); the id `num_classes` is the null class.

    Args:
        num_classes: classes without the null class.
        null_class: whether the table has a row for it.
        dropout: share of ids that training replaces by the null class: one draw a sample and forward.
    """

    def __init__(self, num_classes: int, dim: int, *, null_class: bool, dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1 or (dropout > 0 and not null_class):
            raise ValueError(
                f"LabelEmbedder: dropout is a share in [0, 1) and needs null_class=True, got dropout={dropout}, "
                f"null_class={null_class}."
            )
        self.num_classes, self.null_class, self.dropout = num_classes, null_class, dropout
        self.embedding_table = nn.Embedding(num_classes + int(null_class), dim)

    def forward(self, y: Tensor, drop: Tensor | None = None) -> Tensor:
        """drop (B,) bool: which ids become the null class; None draws in training and drops nothing in evaluation."""
        self.check(y)
        if drop is None and self.training and self.dropout > 0:
            drop = torch.rand(y.shape[0], device=y.device) < self.dropout
        if drop is not None:
            if not self.null_class:
                raise ValueError("LabelEmbedder: there is no null class to drop to; create the model with null_class=True.")
            y = torch.where(drop.bool(), self.num_classes, y)
        return self.embedding_table(y)

    def check(self, y: Tensor) -> None:
        """Ids on an accelerator are not read (that would wait for it in every step); its own lookup refuses them."""
        if torch.compiler.is_compiling() or y.device.type != "cpu" or y.numel() == 0:
            return
        rows = self.embedding_table.num_embeddings
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= rows:
            null = f"; {self.num_classes} is the null class" if self.null_class else ", there is no null class"
            raise ValueError(f"class ids must lie in 0..{rows - 1} ({self.num_classes} classes{null}), got {low}..{high}.")


class CropEmbedder(nn.Module):
    """How a training image was cropped, (top / H', left / W', S / H', S / W') of the resized image, to (B, C).

    The last layer starts at zero, so that the model begins as one without it. Operational reading of RPE-2D's
    "micro-conditioning" (arXiv 2503.18719), whose method section could not be had: the form is ours.

    Args:
        dropout: share of crops that training replaces by "no crop" (0, 0, 1, 1), one draw a sample and forward.
    """

    def __init__(self, dim: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"CropEmbedder: dropout is a share in [0, 1), got {dropout}.")
        self.dropout = dropout
        self.mlp = nn.Sequential(nn.Linear(4 * SINUSOID, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, crop: Tensor | None, batch: int) -> Tensor:
        whole = torch.tensor([NO_CROP], device=self.mlp[0].weight.device)
        if crop is None:
            crop = whole.expand(batch, -1)
        elif crop.shape not in ((batch, 4), (1, 4)):
            raise ValueError(f"crop must be ({batch}, 4): top / H', left / W', S / H', S / W'; got {tuple(crop.shape)}.")
        elif self.training and self.dropout > 0:
            gone = torch.rand(batch, 1, device=crop.device) < self.dropout
            crop = torch.where(gone, whole.to(crop), crop)
        features = sinusoid(1000.0 * crop).flatten(1)
        return self.mlp(features.to(self.mlp[0].weight.dtype)).expand(batch, -1)


class DiTBlock(nn.Module):
    """Attention and MLP, both behind a modulated norm and a gate, all zero at the start (adaLN-zero).

    Args:
        shift: modulation has shifts (chunks shift, scale, gate, twice); without, LightningDiT's `wo_shift` (scale, gate).
        mlp: "gelu" (tanh form, mlp_ratio · dim hidden) or "swiglu" (int(2/3 · mlp_ratio · dim) hidden).
        qk_norm: norm of queries and keys over a head: RMSNorm with norm "rms", else LayerNorm (eps 1e-5), with weights.
        qk_norm_weight: False for a LayerNorm without weights and with eps 1e-6, as FiTv2 has it.
    """

    def __init__(
        self, dim: int, num_heads: int, *, mlp_ratio: float = 4.0, mlp: MlpKind = "gelu", norm: Norm = "layer",
        qk_norm: bool = False, qk_norm_weight: bool = True, shift: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shift = shift
        self.norm1 = norm_layer(norm, dim)
        over_head = head_norm(norm, weight=qk_norm_weight)
        self.attn = Attention(dim, num_heads=num_heads, qkv_bias=True, qk_norm=qk_norm, norm_layer=over_head)
        self.norm2 = norm_layer(norm, dim)
        self.mlp = make_mlp(mlp, dim, mlp_ratio)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, (6 if shift else 4) * dim))

    def forward(self, x: Tensor, c: Tensor, encoding: Encoding | Composed, ctx: Any, attn_mask: Tensor | None = None) -> Tensor:
        """x (B, N, C), c (B, C)."""
        parts = self.adaLN_modulation(c).chunk(6 if self.shift else 4, dim=1)
        (shift1, scale1, gate1), (shift2, scale2, gate2) = (
            (parts[:3], parts[3:]) if self.shift else ((None, *parts[:2]), (None, *parts[2:]))
        )
        x = x + gate1[:, None] * self.attn(modulate(self.norm1(x), scale1, shift1), encoding, ctx, attn_mask)
        return x + gate2[:, None] * feed(self.mlp, modulate(self.norm2(x), scale2, shift2), encoding, ctx)


def head_norm(norm: Norm, *, weight: bool = True) -> Callable[[int], nn.Module]:
    """The class of norms over a head's channels."""
    if not weight:
        return partial(nn.LayerNorm, eps=1e-6, elementwise_affine=False)
    return partial(nn.RMSNorm, eps=1e-6) if norm == "rms" else partial(nn.LayerNorm, eps=1e-5)


def make_mlp(kind: MlpKind, dim: int, ratio: float) -> nn.Module:
    if kind == "swiglu":
        return SwiGLUPacked(dim, hidden_features=2 * int(2 / 3 * int(dim * ratio)))
    return Mlp(dim, hidden_features=int(dim * ratio), act_layer=partial(nn.GELU, approximate="tanh"))


class FinalLayer(nn.Module):
    """Modulated norm and a linear layer to the pixels of a patch (channels last), zero at the start."""

    def __init__(self, dim: int, patch_size: int, out_channels: int, *, norm: Norm = "layer") -> None:
        super().__init__()
        self.norm_final = norm_layer(norm, dim)
        self.linear = nn.Linear(dim, patch_size * patch_size * out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), scale, shift))


def unpatchify(x: Tensor, grid: tuple[int, int], patch_size: int) -> Tensor:
    """Tokens (B, H · W, p · p · C), channels last, to images (B, C, H · p, W · p) of any shape."""
    x = x.unflatten(2, (patch_size, patch_size, -1)).unflatten(1, grid)  # (B, H, W, p, p, C)
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


@torch.no_grad()
def init_linears(module: nn.Module) -> None:
    """Xavier-uniform weights and zero biases of every linear layer."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


@torch.no_grad()
def zero(*layers: nn.Linear) -> None:
    for layer in layers:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
