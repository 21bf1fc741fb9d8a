"""An encoding at any amount between nothing and itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..encodings.base import Composed, Encoding

WAYS = ("tokens", "scores", "bias", "values", "between", "mlp")


def fade(x: Tensor, y: Tensor, amount: Tensor) -> Tensor:
    """x + amount · (y − x), for y = what a hook makes of x (..., T, C) and amounts (T, 1)."""
    if y is x:
        return x
    if y.shape != x.shape:
        raise ValueError(f"relevance: a hook that changes shapes, {tuple(x.shape)} to {tuple(y.shape)}, cannot be faded in.")
    return x + amount.to(x.dtype) * (y - x)


class Faded:
    """The hooks of self-attention and MLP, each an amount of the way from the identity to what the encoding does.

    Args:
        encoding: one layer's.
        amounts: {way of `WAYS`: (T, 1)}, of every token; a bias between two tokens takes the mean of both.
    """

    def __init__(self, encoding: Encoding | Composed, amounts: dict[str, Tensor]) -> None:
        self.encoding, self.amount = encoding, amounts
        self.mixes, self.in_mlp = encoding.mixes, encoding.in_mlp

    @staticmethod
    def amounts(count: int, like: Tensor, value: float = 1.0, *, grad: bool = False) -> dict[str, Tensor]:
        """The same amount for all of `count` tokens, a leaf for each way, on the device of `like`."""
        return {
            way: torch.full((count, 1), value, device=like.device, dtype=torch.float32, requires_grad=grad) for way in WAYS
        }

    def look(self, x: Tensor, ctx: Any) -> Any:
        return self.encoding.look(x, ctx)

    def projected(self, y: Tensor, ctx_q: Any) -> Tensor:
        return fade(y, self.encoding.projected(y, ctx_q), self.amount["values"])

    def meet(self, ctx_q: Any, ctx_k: Any) -> tuple[Any, Any]:
        return self.encoding.meet(ctx_q, ctx_k)

    def qk(self, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> tuple[Tensor, Tensor]:
        turned_q, turned_k = self.encoding.qk(q, k, ctx_q, ctx_k)
        more = turned_q.shape[-1] - q.shape[-1]
        if more > 0:  # MD-LRPE doubles the channels; zeros beside q and k leave the scores as they are
            q, k = F.pad(q, (0, more)), F.pad(k, (0, more))
        return fade(q, turned_q, self.amount["scores"]), fade(k, turned_k, self.amount["scores"])

    def bias(self, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor | None:
        bias = self.encoding.bias(q, k, ctx_q, ctx_k)
        amount = self.amount["bias"]
        return None if bias is None else bias * ((amount + amount.mT) / 2).to(bias.dtype)

    def v(self, v: Tensor, ctx_k: Any) -> Tensor:
        return fade(v, self.encoding.v(v, ctx_k), self.amount["values"])

    def out(self, o: Tensor, ctx_q: Any) -> Tensor:
        return fade(o, self.encoding.out(o, ctx_q), self.amount["values"])

    def mix(self, p: Tensor, v: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor:
        return fade(p @ v, self.encoding.mix(p, v, ctx_q, ctx_k), self.amount["values"])

    def beside(self, v: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor | None:
        extra = self.encoding.beside(v, ctx_q, ctx_k)
        return None if extra is None else extra * self.amount["values"].to(extra.dtype)

    def hidden(self, h: Tensor, ctx: Any) -> Tensor:
        return fade(h, self.encoding.hidden(h, ctx), self.amount["mlp"])
