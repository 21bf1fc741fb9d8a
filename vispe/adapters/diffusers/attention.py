"""Attention with the hooks of an encoding: what the processors of all models share.

A processor holds the encodings of one layer, which thus are parameters of the model
(`...attn.processor.encodings.harope.skew_u`), and gets its contexts as an argument (`Placed`).
Text tokens stand ahead of the image tokens in every joint sequence here (SD3 has them behind, which attention cannot tell), as
prefix tokens of an encoding of queries and keys; other encodings see the image tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor, nn

from ...encodings.base import Composed, Encoding

NO_MASK = ("flash", "sage")  # backends of diffusers that take no mask


@dataclass(frozen=True)
class Placed:
    """What travels through one forward to the processors.

    Attributes:
        layers: of each replaced layer its hooks and its context.
        table: the model's own rotary table, where contexts travel with it.
    """

    layers: tuple[tuple[Composed, tuple[Any, ...]], ...]
    table: Any = None


class Processor(nn.Module):
    """Base of the processors of one layer.

    Args:
        number: of the layer among those replaced.
        encodings: of this layer, by name.
        turn: whether the model's own rotary table still acts.
    """

    stock: type  # the processor of diffusers that it stands for
    _attention_backend = None
    _parallel_config = None

    def __init__(self, number: int, encodings: dict[str, Encoding], *, turn: bool) -> None:
        super().__init__()
        self.number, self.turn = number, turn
        self.encodings = nn.ModuleDict(encodings)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        placed: Placed | None,
        *,
        turn: Callable[[Tensor], Tensor] | None = None,
        mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attention of (B, N, H, D) with every hook in its place; `turn` is the model's own rotary.

        Returns:
            (B, N, H · D).
        """
        if not isinstance(placed, Placed):
            raise ValueError("this attention layer has an encoding that needs the positions; call it through its whole model.")
        if self._parallel_config is not None:
            raise ValueError("context parallelism cuts the sequence, whose positions an encoding needs whole; turn it off.")
        hooks, ctx = placed.layers[self.number]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, N, D)
        extra, bias = hooks.beside(v, ctx, ctx), hooks.bias(q, k, ctx, ctx)
        q, k = hooks.qk(q, k, ctx, ctx)
        if turn is not None and self.turn:
            q, k = turn(q), turn(k)
        mask = self.join(bias, mask, q.dtype)
        v = hooks.v(v, ctx)
        o = self.mixed(q, k, v, hooks, ctx, mask, scale) if hooks.mixes else self.fused(q, k, v, mask, scale)
        o = hooks.out(o, ctx)
        o = o if extra is None else o + extra
        return o.transpose(1, 2).flatten(2).to(q.dtype)

    def join(self, bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if bias is None:
            return mask
        backend = str(getattr(self._attention_backend, "value", self._attention_backend) or "")
        if any(word in backend for word in NO_MASK):
            raise ValueError(f"{list(self.encodings)} add a bias to the attention, which the backend {backend!r} cannot take.")
        bias = bias.to(dtype)
        if mask is None:
            return bias
        return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask.to(dtype)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        o = dispatch_attention_fn(q, k, v, attn_mask=mask, scale=scale, backend=self._attention_backend)
        return o.transpose(1, 2)

    def mixed(
        self, q: Tensor, k: Tensor, v: Tensor, hooks: Composed, ctx: Any, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """With explicit probabilities."""
        logits = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
        if mask is not None:
            logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
        return hooks.mix(logits.softmax(dim=-1).to(v.dtype), v, ctx, ctx)


def heads(x: Tensor, width: int) -> Tensor:
    """(B, N, H · width) to (B, N, H, width)."""
    return x.unflatten(-1, (-1, width))


def project(attn: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, N, C), fused or not."""
    if getattr(attn, "fused_projections", False):
        return attn.to_qkv(x).chunk(3, dim=-1)
    return attn.to_q(x), attn.to_k(x), attn.to_v(x)


def project_text(attn: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of the text tokens of a joint attention."""
    if getattr(attn, "fused_projections", False):
        return attn.to_added_qkv(x).chunk(3, dim=-1)
    return attn.add_q_proj(x), attn.add_k_proj(x), attn.add_v_proj(x)


def normed(q: Tensor, k: Tensor, norm_q: nn.Module | None, norm_k: nn.Module | None) -> tuple[Tensor, Tensor]:
    return q if norm_q is None else norm_q(q), k if norm_k is None else norm_k(k)


def joint_qkv(attn: nn.Module, image: Tensor, text: Tensor | None, width: int) -> list[Tensor]:
    """Queries, keys and values (B, T + N, H, width), normed, text ahead."""
    q, k, v = (heads(x, width) for x in project(attn, image))
    q, k = normed(q, k, attn.norm_q, attn.norm_k)
    if text is None:
        return [q, k, v]
    tq, tk, tv = (heads(x, width) for x in project_text(attn, text))
    tq, tk = normed(tq, tk, attn.norm_added_q, attn.norm_added_k)
    return [torch.cat(pair, dim=1) for pair in ((tq, q), (tk, k), (tv, v))]
