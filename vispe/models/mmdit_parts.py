"""Blocks of a multimodal diffusion transformer, and the view of an encoding that sees the image tokens of a joint sequence."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..encodings.base import Composed, Encoding
from ..layers import attend, feed
from .dit_parts import make_mlp, modulate

Order = Literal["text_image", "image_text"]


class OnImage:
    """The hooks of an encoding on the image tokens of a joint sequence; for text tokens every hook is the identity.

    Contexts are those of the image tokens alone. Encodings that weigh probabilities (`mix`) do so between image tokens.

    Args:
        encoding: of the layer.
        text: number of text tokens.
        order: whether they stand ahead of the image tokens.
    """

    def __init__(self, encoding: Encoding | Composed, text: int, order: Order) -> None:
        self.encoding, self.text, self.ahead = encoding, text, order == "text_image"

    def image(self, x: Tensor) -> Tensor:
        """The image tokens of (..., tokens, D)."""
        return x[..., self.text :, :] if self.ahead else x[..., : x.shape[-2] - self.text, :]

    def with_text(self, image: Tensor, x: Tensor) -> Tensor:
        """x with other image tokens; where those got wider, text tokens are as at the origin of such encodings, [x, 0]."""
        words = x[..., : self.text, :] if self.ahead else x[..., x.shape[-2] - self.text :, :]
        words = F.pad(words, (0, image.shape[-1] - words.shape[-1]))
        return torch.cat((words, image) if self.ahead else (image, words), dim=-2)

    def padded(self, x: Tensor, *, columns: bool) -> Tensor:
        """x over image tokens (rows, and columns if told) with zeros for the text tokens."""
        side = (self.text, 0) if self.ahead else (0, self.text)
        return F.pad(x, (*(side if columns else (0, 0)), *side))

    def meet(self, ctx_q: Any, ctx_k: Any) -> tuple[Any, Any]:
        return self.encoding.meet(ctx_q, ctx_k)

    def qk(self, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> tuple[Tensor, Tensor]:
        own_q, own_k = self.image(q), self.image(k)
        new_q, new_k = self.encoding.qk(own_q, own_k, ctx_q, ctx_k)
        if new_q is own_q and new_k is own_k:
            return q, k
        return self.with_text(new_q, q), self.with_text(new_k, k)

    def v(self, v: Tensor, ctx_k: Any) -> Tensor:
        own = self.image(v)
        new = self.encoding.v(own, ctx_k)
        return v if new is own else self.with_text(new, v)

    def out(self, o: Tensor, ctx_q: Any) -> Tensor:
        own = self.image(o)
        new = self.encoding.out(own, ctx_q)
        return o if new is own else self.with_text(new, o)

    def bias(self, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor | None:
        bias = self.encoding.bias(self.image(q), self.image(k), ctx_q, ctx_k)
        if bias is None:
            return None
        return self.padded(bias.expand(*bias.shape[:-2], self.image(q).shape[-2], self.image(k).shape[-2]), columns=True)

    def mix(self, p: Tensor, v: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor:
        between = self.image(self.image(p).mT).mT  # image rows, image columns
        own = self.image(v)
        return p @ v + self.padded(self.encoding.mix(between, own, ctx_q, ctx_k) - between @ own, columns=False)

    def beside(self, v: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor | None:
        extra = self.encoding.beside(self.image(v), ctx_q, ctx_k)
        return None if extra is None else self.padded(extra, columns=False)

    def hidden(self, h: Tensor, ctx: Any) -> Tensor:
        return self.with_text(self.encoding.hidden(self.image(h), ctx), h)

    @property
    def mixes(self) -> bool:
        return self.encoding.mixes

    @property
    def in_mlp(self) -> bool:
        return self.encoding.in_mlp


class Stream(nn.Module):
    """Norms, projections, modulation and MLP of one kind of token.

    Args:
        out: whether tokens leave the block; without, they only lend keys and values.
    """

    def __init__(self, dim: int, num_heads: int, *, mlp_ratio: float, qk_norm: bool, out: bool = True) -> None:
        super().__init__()
        self.num_heads, self.out = num_heads, out
        norm = partial(nn.RMSNorm, dim // num_heads, eps=1e-6)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm, self.k_norm = (norm(), norm()) if qk_norm else (nn.Identity(), nn.Identity())
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, (6 if out else 2) * dim))
        if out:
            self.proj = nn.Linear(dim, dim)
            self.norm2 = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
            self.mlp = make_mlp("gelu", dim, mlp_ratio)

    def modulation(self, c: Tensor) -> tuple[Tensor, ...]:
        return self.adaLN_modulation(c).chunk(6 if self.out else 2, dim=1)

    def project(self, x: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, N, D)."""
        qkv = self.qkv(modulate(self.norm1(x), scale, shift)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    def finish(
        self, x: Tensor, o: Tensor, parts: tuple[Tensor, ...], encoding: Encoding | Composed | OnImage | None, ctx: Any
    ) -> Tensor:
        """Add the attended (B, H, N, D) and the MLP; `encoding` None for tokens without positions."""
        x = x + parts[2][:, None] * self.proj(o.transpose(1, 2).flatten(2))
        h = modulate(self.norm2(x), parts[4], parts[3])
        return x + parts[5][:, None] * (self.mlp(h) if encoding is None else feed(self.mlp, h, encoding, ctx))


class JointBlock(nn.Module):
    """Two streams that meet in one attention (SD3; Flux's double-stream block).

    Args:
        text_out: whether text tokens leave the block.
    """

    def __init__(
        self, dim: int, *, num_heads: int, mlp_ratio: float, qk_norm: bool, order: Order, text_out: bool = True
    ) -> None:
        super().__init__()
        self.order, self.scale = order, (dim // num_heads) ** -0.5
        self.image = Stream(dim, num_heads, mlp_ratio=mlp_ratio, qk_norm=qk_norm)
        self.text = Stream(dim, num_heads, mlp_ratio=mlp_ratio, qk_norm=qk_norm, out=text_out)
        if not text_out:
            self.text.q_norm = nn.Identity()  # its queries are not asked for

    def modulations(self) -> list[nn.Linear]:
        return [self.image.adaLN_modulation[1], self.text.adaLN_modulation[1]]

    def forward(
        self, image: Tensor, text: Tensor, c: Tensor, encoding: Encoding | Composed, ctx: Any, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """image (B, N, C), text (B, T, C), c (B, C); mask (B, 1, 1, T + N) in the joint order."""
        ours, theirs = self.image.modulation(c), self.text.modulation(c)
        pairs = list(zip(self.image.project(image, *ours[:2]), self.text.project(text, *theirs[:2])))
        ahead = self.order == "text_image"
        q, k, v = (torch.cat((b, a) if ahead else (a, b), dim=2) for a, b in pairs)
        on_image = OnImage(encoding, text.shape[1], self.order)
        o = attend(q, k, v, on_image, ctx, ctx, scale=self.scale, mask=mask)
        image = self.image.finish(image, on_image.image(o), ours, encoding, ctx)
        if not self.text.out:
            return image, None
        words = o[:, :, : text.shape[1]] if ahead else o[:, :, image.shape[1] :]
        return image, self.text.finish(text, words, theirs, None, None)


class SingleBlock(nn.Module):
    """One stream for both kinds of tokens, joined in the explicit order."""

    def __init__(self, dim: int, *, num_heads: int, mlp_ratio: float, qk_norm: bool, order: Order) -> None:
        super().__init__()
        self.order, self.scale = order, (dim // num_heads) ** -0.5
        self.stream = Stream(dim, num_heads, mlp_ratio=mlp_ratio, qk_norm=qk_norm)

    def modulations(self) -> list[nn.Linear]:
        return [self.stream.adaLN_modulation[1]]

    def forward(
        self, image: Tensor, text: Tensor, c: Tensor, encoding: Encoding | Composed, ctx: Any, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See JointBlock."""
        on_image = OnImage(encoding, text.shape[1], self.order)
        x = torch.cat((text, image) if self.order == "text_image" else (image, text), dim=1)
        parts = self.stream.modulation(c)
        o = attend(*self.stream.project(x, *parts[:2]), on_image, ctx, ctx, scale=self.scale, mask=mask)
        x = self.stream.finish(x, o, parts, on_image, ctx)
        words = x[:, : text.shape[1]] if self.order == "text_image" else x[:, image.shape[1] :]
        return on_image.image(x), words
