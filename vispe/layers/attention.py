"""Self- and cross-attention that call the hooks of an encoding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import use_fused_attn
from timm.layers.attention import Attention as TimmAttention
from torch import Tensor, nn

from ..encodings.base import Composed, Encoding


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding | Composed,
    ctx_q: Any,
    ctx_k: Any,
    *,
    scale: float,
    mask: Tensor | None = None,
    drop: nn.Dropout | None = None,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention with every hook in its place.

    Args:
        q, k, v: (B, H, Nq or Nk, D).
        ctx_q, ctx_k: the encoding's contexts of both sides; self-attention passes one object twice.
        mask: added to the logits (float) or kept where true (bool), broadcastable to (B, H, Nq, Nk).
        fused: use `scaled_dot_product_attention`, unless the encoding needs explicit probabilities, or training in bfloat16
            on a CPU with up to 256 keys, where its backward pass takes 1.4 to 5 times as long.

    Returns:
        (B, H, Nq, D).
    """
    ctx_q, ctx_k = encoding.meet(ctx_q, ctx_k)  # always: a compiler cannot compare the identities of tuples
    extra = encoding.beside(v, ctx_q, ctx_k)
    bias = encoding.bias(q, k, ctx_q, ctx_k)
    turned_q, turned_k = encoding.qk(q, k, ctx_q, ctx_k)
    moved = encoding.v(v, ctx_k)
    if moved is v and turned_k is not k and turned_q is not q and _share_a_buffer(q, k, v):
        # q and k were replaced: the view v alone would keep the projection's whole result alive until the backward pass.
        moved = v.contiguous()
    q, k, v = turned_q, turned_k, moved
    if bias is not None or mask is not None:
        mask = _join(bias, mask, q.dtype)
    p_drop = drop.p if drop is not None and drop.training else 0.0
    if fused and not encoding.mixes and not _fused_is_slow(q, k):
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p_drop, scale=scale)
    else:
        logits = (q * scale) @ k.mT
        if mask is not None:
            logits = logits + mask if mask.is_floating_point() else logits.masked_fill(~mask, float("-inf"))
        p = F.dropout(logits.softmax(dim=-1), p_drop).to(v.dtype)
        o = encoding.mix(p, v, ctx_q, ctx_k)
    o = encoding.out(o, ctx_q)
    return o if extra is None else o + extra


def _fused_is_slow(q: Tensor, k: Tensor) -> bool:
    """Whether explicit probabilities are faster: torch 2.14's fused CPU backward in bfloat16 on short sequences."""
    return q.dtype == torch.bfloat16 and q.device.type == "cpu" and k.shape[-2] <= 256 and torch.is_grad_enabled()


def _share_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether autograd would keep one result of which all three are views; compilers cannot ask, and take it so."""
    if torch.compiler.is_exporting() or not (torch.is_grad_enabled() and v.requires_grad):
        return False
    return torch.compiler.is_compiling() or (v._is_view() and q._base is v._base and k._base is v._base)


def _join(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    if bias is None:
        return mask if mask.dtype == torch.bool else mask.to(dtype)
    bias = bias.to(dtype)
    if mask is None:
        return bias
    return bias + mask.to(dtype) if mask.is_floating_point() else bias.masked_fill(~mask, float("-inf"))


class Attention(TimmAttention):
    """timm's self-attention (same parameters, same names) with an encoding."""

    def forward(
        self, x: Tensor, encoding: Encoding | Composed, ctx: Any, attn_mask: Tensor | None = None
    ) -> Tensor:
        """x (B, N, C); `ctx` is the encoding's context of these N tokens."""
        batch, count, _ = x.shape
        ctx = encoding.look(x, ctx)
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        qkv = self.qkv(x).reshape(batch, count, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # (B, H, N, D)
        q, k = self.q_norm(q), self.k_norm(k)
        o = attend(
            q, k, v, encoding, ctx, ctx, scale=self.scale, mask=attn_mask, drop=self.attn_drop, fused=self.fused_attn
        )
        o = self.norm(o.transpose(1, 2).reshape(batch, count, self.attn_dim))
        o = o if gate is None else o * gate
        return self.proj_drop(encoding.projected(self.proj(o), ctx))


class CrossAttention(nn.Module):
    """Attention from one set of tokens to another, each with positions of its own.

    Args:
        dim: channels of the queries and of the result.
        context_dim: channels of the tokens attended to (default: dim).
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        context_dim: int | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: type[nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"CrossAttention: dim={dim} must be a multiple of num_heads={num_heads}.")
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(context_dim or dim, 2 * dim, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        encoding: Encoding | Composed,
        ctx_q: Any,
        ctx_k: Any,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """x (B, Nq, C) attends to context (B, Nk, C'); contexts of the encoding belong to x and to context."""
        ctx_q, ctx_k = encoding.look(x, ctx_q), encoding.look(context, ctx_k)
        q = self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, Nq, D)
        k, v = self.kv(context).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, Nk, D)
        q, k = self.q_norm(q), self.k_norm(k)
        o = attend(
            q, k, v, encoding, ctx_q, ctx_k, scale=self.scale, mask=attn_mask, drop=self.attn_drop, fused=self.fused_attn
        )
        return self.proj_drop(encoding.projected(self.proj(o.transpose(1, 2).flatten(2)), ctx_q))
