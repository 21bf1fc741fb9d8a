"""The hooks of an encoding, its card, and the composition of several encodings in one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..positions import Positions


@dataclass(frozen=True)
class Card:
    """What a table of encodings shows about one of them."""

    title: str
    family: str  # "none", "additive", "rotary", "bias", "conditional", "transform"
    axes: tuple[int, ...]  # numbers of coordinate axes it accepts
    injection: tuple[str, ...]  # the hooks it uses: tokens, between, look, qk, v, out, bias, mix, beside, projected, hidden
    formula: str
    needs: tuple[str, ...] = ("coords",)  # coords, grid
    paper: str = ""
    year: int | None = None
    code: str = ""  # the official repository, or "" when none was published
    licence: str = ""  # licence of the source that was read
    cases: int = 0  # official parity cases in tests/parity/cases
    relative: bool = False  # a common shift of all coordinates leaves the logits unchanged


class Encoding(nn.Module):
    """A positional encoding of one attention layer, or of all layers at once. Every hook is the identity by default.

    Contexts go through arguments, never onto modules: with gradient checkpointing, a recompute after a second forward at
    another size would otherwise read the wrong positions. Self-attention passes one context twice, cross-attention two.

    Args:
        dim: channels of the tokens.
        num_heads: attention heads; `head_dim = dim // num_heads`.
        axes: coordinate axes (1 sequence, 2 image, 3 video).
    """

    card: ClassVar[Card]
    wants_image: bool = False  # positions must carry the image (with_image); an option may decide
    per_layer: bool = False  # a host builds one instance for each layer; an option may decide
    of_blocks: ClassVar[str] = ""  # a submodule of a shared encoding with entries for single blocks, by their number
    no_decay: ClassVar[tuple[str, ...]] = ()  # parameters (by their last name) kept out of weight decay
    neutral_zeros: ClassVar[tuple[str, ...]] = ()  # parameters (by their first name) that are 0 where it changes nothing

    def __init__(self, *, dim: int, num_heads: int, axes: int = 2) -> None:
        super().__init__()
        name = type(self).__name__
        if dim < 1 or num_heads < 1 or dim % num_heads:
            raise ValueError(
                f"{name}: dim must be a positive multiple of num_heads, got dim={dim}, num_heads={num_heads}; "
                f"choose a number of heads that divides {dim}."
            )
        if axes not in self.card.axes:
            raise ValueError(f"{name}: accepts positions with {self.card.axes} axes, got axes={axes}.")
        self.dim, self.num_heads, self.head_dim, self.axes = dim, num_heads, dim // num_heads, axes

    def reset_parameters(self) -> None:
        """Set every parameter to its initial distribution."""

    @torch.no_grad()
    def set_identity(self) -> bool:
        """Set parameters so that a host computes what it does without this encoding, at a point where gradients do not vanish.

        Returns:
            Whether there is such a setting. False (fixed functions of positions, for instance) leaves every parameter alone.
        """
        found = [p for name, p in self.named_parameters() if name.split(".")[0] in self.neutral_zeros]
        for p in found:
            p.zero_()
        return bool(found)

    def check_axes(self, pos: Positions) -> None:
        """Refuse positions with another number of axes than this encoding was made for."""
        if pos.axes != self.axes:
            raise ValueError(
                f"{type(self).__name__}: made for {self.axes} axes, got positions with {pos.axes}; create it with "
                f"axes={pos.axes}, if its card accepts them ({self.card.axes})."
            )

    @classmethod
    def prepare_layers(cls, layers: Sequence[Encoding], pos: Positions) -> list[Any]:
        """Contexts of several layers of this encoding at the same positions; override to share or batch the work."""
        return [layer.prepare(pos) for layer in layers]

    def prepare(self, pos: Positions) -> Any:
        """Everything that depends on positions only: once a forward, float32, autocast off, not checkpointed."""
        return None

    def tokens(self, x: Tensor, ctx: Any) -> Tensor:
        """Add to the tokens ahead of block 0. x (B, prefix + N, C)."""
        return x

    def between(self, x: Tensor, ctx: Any, i: int) -> Tensor:
        """Act on the tokens after block i; i = -1 is ahead of block 0. x (B, prefix + N, C)."""
        return x

    def look(self, x: Tensor, ctx: Any) -> Any:
        """The context, with what the tokens that enter attention say: once for each side. x (B, prefix + N, C)."""
        return ctx

    def meet(self, ctx_q: Any, ctx_k: Any) -> tuple[Any, Any]:
        """Contexts of both sides in common terms (one frame for all cameras), ahead of the other hooks of attention."""
        return ctx_q, ctx_k

    def qk(self, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> tuple[Tensor, Tensor]:
        """Transform queries and keys ahead of the scores. q (B, H, Nq, D), k (B, H, Nk, D)."""
        return q, k

    def v(self, v: Tensor, ctx_k: Any) -> Tensor:
        """Transform values. v (B, H, Nk, D)."""
        return v

    def out(self, o: Tensor, ctx_q: Any) -> Tensor:
        """Transform the attention's output ahead of merging heads. o (B, H, Nq, D)."""
        return o

    def bias(self, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor | None:
        """A float tensor broadcastable to (B, H, Nq, Nk) that is added to the scaled logits; q and k come untransformed."""
        return None

    def mix(self, p: Tensor, v: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor:
        """What the probabilities p (B, H, Nq, Nk) make of the values v (B, H, Nk, D)."""
        return p @ v

    def beside(self, v: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor | None:
        """What the values (B, H, Nk, D), untransformed, add to the attention's output (B, H, Nq, D) past the probabilities."""
        return None

    def projected(self, y: Tensor, ctx_q: Any) -> Tensor:
        """Transform attention's result behind its output projection. y (B, Nq, C)."""
        return y

    def hidden(self, h: Tensor, ctx: Any) -> Tensor:
        """Act inside the block's MLP, ahead of its activation. h (B, prefix + N, hidden channels)."""
        return h

    @property
    def mixes(self) -> bool:
        """Whether attention has to build explicit probabilities for `mix`."""
        return type(self).mix is not Encoding.mix

    @property
    def in_mlp(self) -> bool:
        """Whether a block has to open its MLP for `hidden`."""
        return type(self).hidden is not Encoding.hidden

    def wavelengths(self, grid: tuple[int, ...]) -> Tensor | None:
        """Wavelengths in cells (heads or 1, pairs), inf for a pair that does not turn; None when there are no frequencies."""
        return None

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, axes={self.axes}"


class Composed:
    """Several encodings in one layer, applied in order; their contexts are a tuple in the same order."""

    def __init__(self, members: Sequence[Encoding]) -> None:
        self.members = tuple(members)

    def look(self, x: Tensor, ctx: Sequence[Any]) -> Sequence[Any]:
        return tuple(member.look(x, c) for member, c in zip(self.members, ctx))

    def meet(self, ctx_q: Sequence[Any], ctx_k: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        pairs = [member.meet(cq, ck) for member, cq, ck in zip(self.members, ctx_q, ctx_k)]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)

    def qk(self, q: Tensor, k: Tensor, ctx_q: Sequence[Any], ctx_k: Sequence[Any]) -> tuple[Tensor, Tensor]:
        for member, cq, ck in zip(self.members, ctx_q, ctx_k):
            q, k = member.qk(q, k, cq, ck)
        return q, k

    def v(self, v: Tensor, ctx_k: Sequence[Any]) -> Tensor:
        for member, ck in zip(self.members, ctx_k):
            v = member.v(v, ck)
        return v

    def out(self, o: Tensor, ctx_q: Sequence[Any]) -> Tensor:
        for member, cq in reversed(list(zip(self.members, ctx_q))):
            o = member.out(o, cq)
        return o

    def bias(self, q: Tensor, k: Tensor, ctx_q: Sequence[Any], ctx_k: Sequence[Any]) -> Tensor | None:
        total = None
        for member, cq, ck in zip(self.members, ctx_q, ctx_k):
            bias = member.bias(q, k, cq, ck)
            if bias is not None:
                total = bias if total is None else total + bias
        return total

    def mix(self, p: Tensor, v: Tensor, ctx_q: Sequence[Any], ctx_k: Sequence[Any]) -> Tensor:
        for member, cq, ck in zip(self.members, ctx_q, ctx_k):
            if member.mixes:
                return member.mix(p, v, cq, ck)
        return p @ v

    def beside(self, v: Tensor, ctx_q: Sequence[Any], ctx_k: Sequence[Any]) -> Tensor | None:
        parts = [m.beside(v, cq, ck) for m, cq, ck in zip(self.members, ctx_q, ctx_k)]
        parts = [p for p in parts if p is not None]
        return sum(parts[1:], parts[0]) if parts else None

    def projected(self, y: Tensor, ctx_q: Sequence[Any]) -> Tensor:
        for member, cq in reversed(list(zip(self.members, ctx_q))):
            y = member.projected(y, cq)
        return y

    def hidden(self, h: Tensor, ctx: Sequence[Any]) -> Tensor:
        for member, c in zip(self.members, ctx):
            h = member.hidden(h, c)
        return h

    @property
    def mixes(self) -> bool:
        return any(member.mixes for member in self.members)

    @property
    def in_mlp(self) -> bool:
        return any(member.in_mlp for member in self.members)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of position arithmetic: float64 stays, anything narrower becomes float32."""
    return torch.promote_types(dtype, torch.float32)
