"""iRPE: relative positions in logarithmic buckets, as a bias or as a product with queries, keys and values.

    logit_ij += s q_i · W_k[:, id(i,j)]  (on k)  +  s k_j · W_q[:, id(j,i)]  (on q),   s = 1/√d
    o_i += Σ_j p_ij W_v[id(i,j)]  (on v);   mode "bias": logit_ij += b[id(i,j)], unscaled

Paper: Wu et al., Rethinking and Improving Relative Position Encoding for Vision Transformer, ICCV 2021, arXiv 2107.14222.
Code: microsoft/Cream, iRPE (DeiT-with-iRPE and DETR-with-iRPE) at 4a13c40. Offsets are query minus key; the official code's
two departures from the paper are kept, since its weights depend on them: "quant" buckets the squared distance and "euclidean"
rounds the distance ahead of bucketing. All pairs with a prefix token share one extra bucket. Tables start at zero and are
weight-decayed, as there.
Chosen here: any grid, any prefix count, free coordinates and cross-attention (the official code guesses a square grid).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding
from .functional import log_bucket

Method = Literal["product", "cross", "euclidean", "quant"]
METHODS: tuple[str, ...] = ("product", "cross", "euclidean", "quant")
ON: tuple[str, ...] = ("k", "q", "v", "qk", "kv", "qv", "qkv")


@dataclass(frozen=True)
class Offsets:
    """Positions of one side and, for self-attention, the bucket ids (parts, 1 or B, N, N) of all its pairs."""

    coords: Tensor
    prefix: int
    ids: Tensor


def bucket_ids(query: Tensor, key: Tensor, method: Method, ratio: float) -> Tensor:
    """Bucket of every pair of positions (B, Nq, 2) and (B, Nk, 2): int64 (parts, B, Nq, Nk); parts is 2 for "cross"."""
    reach = int(2 * ratio)
    delta = query.unsqueeze(-2) - key.unsqueeze(-3)  # (B, Nq, Nk, 2), query minus key
    if method == "euclidean":
        return log_bucket(torch.round(delta.square().sum(-1).sqrt()), ratio)[None] + reach
    if method == "quant":
        return log_bucket(delta.square().sum(-1), ratio)[None] + reach
    row, col = (log_bucket(delta, ratio) + reach).unbind(-1)
    return torch.stack((row, col)) if method == "cross" else (row * (2 * reach + 1) + col)[None]


def pair_ids(query: Offsets | Positions, key: Offsets | Positions, method: Method, ratio: float) -> Tensor:
    """`bucket_ids` with the extra bucket for pairs that touch a prefix token: (parts, B, prefix + Nq, prefix + Nk)."""
    ids = bucket_ids(query.coords, key.coords, method, ratio)
    return nn.functional.pad(ids, (key.prefix, 0, query.prefix, 0), value=table_size(method, ratio))


def table_size(method: Method, ratio: float) -> int:
    """Buckets of one table, the extra one for prefix tokens not counted."""
    side = 2 * int(2 * ratio) + 1
    return side * side if method == "product" else side


class Irpe(Encoding):
    """Bucketed relative positions of one self- or cross-attention.

    Args:
        method: "product" (row bucket times column bucket), "cross" (a row table and a column table, summed),
            "euclidean" (rounded distance), "quant" (squared distance).
        mode: "contextual" multiplies with q, k or p; "bias" adds a number a bucket (not on v).
        on: any of q, k and v, e.g. "k" (the default), "qk", "qkv".
        ratio: α; offsets up to α have buckets of their own, the last bucket starts near 8α. Official models: 1.9 for
            product and cross, 20 for euclidean, 33 for quant.
        shared_head: one table for all heads.
        prefix: prefix tokens of the host; a positive number adds the extra bucket.

    Attributes:
        k, q: lists (one entry, two for "cross") of (H or 1, D, buckets), or (H or 1, buckets) in mode "bias".
        v: list of (H or 1, buckets, D).
    """

    card = Card(
        title="iRPE",
        family="bias",
        axes=(2,),
        injection=("bias", "mix"),
        formula="q_i·k_j + q_i·W[bucket(i-j)]",
        paper="https://arxiv.org/abs/2107.14222",
        year=2021,
        code="microsoft/Cream",
        licence="MIT",
        cases=64,
        relative=True,
    )
    per_layer = True
    neutral_zeros = ("k", "q", "values")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        method: Method = "product",
        mode: Literal["contextual", "bias"] = "contextual",
        on: str = "k",
        ratio: float = 1.9,
        shared_head: bool = True,
        prefix: int = 0,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if method not in METHODS:
            raise ValueError(f"irpe: method must be one of {METHODS}, got {method!r}.")
        if mode not in ("contextual", "bias"):
            raise ValueError(f"irpe: mode must be 'contextual' or 'bias', got {mode!r}.")
        if on not in ON:
            raise ValueError(f"irpe: on must be one of {ON}, got {on!r}.")
        if mode == "bias" and "v" in on:
            raise ValueError("irpe: mode='bias' has no form on v; use mode='contextual', or on='q', 'k' or 'qk'.")
        if ratio < 0.5:
            raise ValueError(f"irpe: ratio must be at least 0.5 (one bucket each way), got {ratio}.")
        self.method, self.mode, self.on, self.ratio, self.prefix = method, mode, on, ratio, prefix
        heads, buckets = 1 if shared_head else num_heads, table_size(method, ratio) + (prefix > 0)
        parts = 2 if method == "cross" else 1
        wide = (heads, buckets) if mode == "bias" else (heads, self.head_dim, buckets)
        shape = {"k": wide, "q": wide, "v": (heads, buckets, self.head_dim)}
        for side in on:
            tables = [nn.Parameter(torch.empty(shape[side])) for _ in range(parts)]
            setattr(self, side if side != "v" else "values", nn.ParameterList(tables))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.parameters():
            nn.init.zeros_(table)

    @classmethod
    def prepare_layers(cls, layers: Sequence[Irpe], pos: Positions) -> list[Offsets]:
        one = layers[0]  # ids do not depend on the layer
        if pos.axes != 2:
            raise ValueError(f"irpe: needs rows and columns (2 axes), got positions with {pos.axes}.")
        if pos.prefix and not one.prefix:
            raise ValueError(
                f"irpe: the tokens have {pos.prefix} prefix tokens, but the tables have no bucket for them; create it with "
                f"prefix={pos.prefix}."
            )
        return [Offsets(pos.coords, pos.prefix, pair_ids(pos, pos, one.method, one.ratio))] * len(layers)

    def prepare(self, pos: Positions) -> Offsets:
        return self.prepare_layers([self], pos)[0]

    def _ids(self, ctx_q: Offsets, ctx_k: Offsets) -> Tensor:
        return ctx_q.ids if ctx_q is ctx_k else pair_ids(ctx_q, ctx_k, self.method, self.ratio)

    def bias(self, q: Tensor, k: Tensor, ctx_q: Offsets, ctx_k: Offsets) -> Tensor | None:
        total = None
        for side in self.on.replace("v", ""):
            # on q, keys look up the offsets seen from them: swap the sides there, and the logits back
            x, pairs = (q, self._ids(ctx_q, ctx_k)) if side == "k" else (k, self._ids(ctx_k, ctx_q))
            for table, ids in zip(getattr(self, side), pairs):
                term = self.lookup(x, table, ids)
                term = term if side == "k" else term.mT
                total = term if total is None else total + term
        return total

    def lookup(self, x: Tensor, table: Tensor, ids: Tensor) -> Tensor:
        """(B, H, N, M) logits of tokens x (B, H, N, D) against the buckets `ids` (B or 1, N, M)."""
        if self.mode == "bias":
            return table[:, ids].transpose(0, 1)  # (B or 1, H or 1, N, M)
        product = x @ (table * self.head_dim**-0.5).to(x.dtype)  # (B, H, N, buckets)
        return product.gather(-1, ids[:, None].expand(*product.shape[:-1], -1))

    def mix(self, p: Tensor, v: Tensor, ctx_q: Offsets, ctx_k: Offsets) -> Tensor:
        out = p @ v
        if "v" not in self.on:
            return out
        for table, part in zip(self.values, self._ids(ctx_q, ctx_k)):
            ids = part[:, None].expand(p.shape)
            sums = p.new_zeros(*p.shape[:-1], table.shape[1]).scatter_add(-1, ids, p)  # probability in each bucket
            out = out + sums @ table.to(p.dtype)
        return out

    @property
    def mixes(self) -> bool:
        return "v" in self.on

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, method={self.method!r}, mode={self.mode!r}, on={self.on!r}, ratio={self.ratio}"
