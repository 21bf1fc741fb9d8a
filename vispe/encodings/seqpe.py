"""SeqPE: a position is a sequence of digits, and a small network that reads them gives its vector.

    p_n = net(digits of row, digits of column),   [a_n | b_n] = W p_n,   q_i ← q_i ⊙ a_i,  k_j ← k_j ⊙ b_j

Paper: Li et al., SeqPE: Transformer with Sequential Position Encoding, 2025, arXiv 2506.13277. Code: ghrua/seqpe at
4c4b908, image_seqpe. Range 100 x 100 (2 digits an axis); W of each layer; a learned vector for the class token. Every
Linear and table starts from N(0, 0.02²) truncated, biases at 0; the network is kept out of weight decay (the run script
gives it 0). The two regularisers are in seqpe_loss.py; the network in seqpe_net.py.
Differences: the network and W run once a grid at batch 1 (there W runs for each image); any grid (there √N x √N); a
position with too many digits is an error (there a longer sequence of digits, or a crash); no dropout in the network;
class and register tokens each have a vector, out of weight decay too. Windows of the range for random shifts are
`full_grid((100, 100)).crop(start, size)`. The network belongs to the first of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..positions import Positions, lattice
from .base import Card, Encoding
from .seqpe_net import DigitEncoder, linear


@dataclass(frozen=True)
class SeqPEContext:
    """Parts for queries and keys of one layer, (1 or B, H or 1, prefix + N, D)."""

    q: Tensor
    k: Tensor


class SeqPE(Encoding):
    """Sequential position encoding.

    Args:
        method: "attn_mul" (multiplied with queries and keys), "attn_add" (added to them), "attn_scalar" (their product is
            added to that of query and key, ahead of the scale) or "input_add" (added to the tokens).
        heads: "split" (vectors of width dim, a part a head) or "shared" (of width head_dim, the same for all heads).
        projection: "per_layer" or "shared": one W a layer, or one for all. Without effect on "input_add", which has none.
        max_digits: digits of a coordinate; cells up to 10^max_digits − 1.
        net_width, net_layers, net_heads: of the network; defaults dim, 2, net_width // 64.
        prefix: prefix tokens of the host.
        layer: number of the layer; a host fills it in.

    Attributes:
        net: the network; None in layers after the first.
        pe_qk: W, (width, 2 · width).
        prefix_embed: (1, prefix, width); None without prefix tokens.
    """

    card = Card(
        title="SeqPE",
        family="additive",
        axes=(1, 2, 3),
        injection=("tokens", "qk", "bias"),
        formula="(q_i ⊙ a_i)·(k_j ⊙ b_j), [a | b] = W net(digits)",
        needs=("grid",),
        paper="https://arxiv.org/abs/2506.13277",
        year=2025,
        code="ghrua/seqpe",
        licence="MIT",
        cases=15,
    )
    no_decay = ("net", "prefix_embed")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        method: Literal["attn_mul", "attn_add", "attn_scalar", "input_add"] = "attn_mul",
        heads: Literal["split", "shared"] = "split",
        projection: Literal["per_layer", "shared"] = "per_layer",
        max_digits: int = 2,
        net_width: int | None = None,
        net_layers: int = 2,
        net_heads: int | None = None,
        prefix: int = 0,
        layer: int = 0,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        for option, value, known in (
            ("method", method, ("attn_mul", "attn_add", "attn_scalar", "input_add")),
            ("heads", heads, ("split", "shared")), ("projection", projection, ("per_layer", "shared")),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"seqpe: {option} must be one of {known}, got {value!r}.")
        if method == "input_add" and heads == "shared":
            raise ValueError("seqpe: input_add adds vectors of the tokens' width; use heads='split' with it.")
        self.method, self.heads, self.max_digits, self.prefix = method, heads, max_digits, prefix
        self.per_layer = method != "input_add" and projection == "per_layer"
        first = layer == 0 or not self.per_layer
        width = dim if heads == "split" else self.head_dim
        self.net = DigitEncoder(
            axes=axes, max_digits=max_digits, width=net_width or dim, out_dim=width, layers=net_layers, num_heads=net_heads
        ) if first else None  # fmt: skip
        self.prefix_embed = nn.Parameter(torch.empty(1, prefix, width)) if first and prefix else None
        self.pe_qk = None if method == "input_add" else nn.Linear(width, 2 * width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.net is not None:
            self.net.reset_parameters()
        if self.pe_qk is not None:
            nn.init.trunc_normal_(self.pe_qk.weight, std=0.02)
            nn.init.zeros_(self.pe_qk.bias)
        if self.prefix_embed is not None:
            nn.init.trunc_normal_(self.prefix_embed, std=0.02)

    @torch.no_grad()
    def set_identity(self) -> bool:
        if self.pe_qk is None:
            if self.prefix_embed is not None:
                nn.init.zeros_(self.prefix_embed)
            nn.init.zeros_(self.net.proj.weight)
            nn.init.zeros_(self.net.proj.bias)
        else:  # factors of 1; of a product only the part of k at 0, for at 0 both would have no gradient
            first = self.pe_qk.in_features if self.method == "attn_scalar" else 0
            nn.init.zeros_(self.pe_qk.weight[first:])
            nn.init.constant_(self.pe_qk.bias[first:], float(self.method == "attn_mul"))
        return True

    def embed(self, pos: Positions) -> Tensor:
        """The network's vectors with those of the prefix tokens, (1 or B, prefix + N, width) float32."""
        self.check_positions(pos)
        coords = pos.coords
        if coords.shape[0] > 1 and pos.indices is not None:  # every cell once, whatever the batch
            cells = self.net(lattice(pos.extent, coords.device))
            table = cells[pos.indices]
        else:
            table = self.net(coords.flatten(0, 1)).unflatten(0, coords.shape[:2])
        if not pos.prefix:
            return table
        return torch.cat((self.prefix_embed.to(table.dtype).expand(table.shape[0], -1, -1), table), dim=1)

    def check_positions(self, pos: Positions) -> None:
        """Refuse positions that are no cells, too large a frame, or another number of prefix tokens."""
        self.check_axes(pos)
        if self.net is None:
            raise ValueError("seqpe: the network belongs to the first layer; prepare all layers together (prepare_layers).")
        if pos.extent is None or pos.units == "custom":
            raise ValueError(
                "seqpe: digits need grid positions (patch_grid, or a crop of a larger grid), got custom coordinates; use "
                "learnable_fourier for free coordinates."
            )
        if self.prefix != pos.prefix:
            raise ValueError(
                f"seqpe: made for {self.prefix} prefix tokens, got {pos.prefix}; create it with prefix={pos.prefix}."
            )

    @classmethod
    def prepare_layers(cls, layers: Sequence[SeqPE], pos: Positions) -> list[Any]:
        table = layers[0].embed(pos)
        return [layer.parts(table) for layer in layers]

    def prepare(self, pos: Positions) -> SeqPEContext | Tensor:
        return self.prepare_layers([self], pos)[0]

    def parts(self, table: Tensor) -> SeqPEContext | Tensor:
        """What this layer makes of the vectors: parts for queries and keys, or for "input_add" the vectors themselves."""
        if self.pe_qk is None:
            return table
        split = (2, self.num_heads if self.heads == "split" else 1, -1)
        q, k = linear(table, self.pe_qk).unflatten(-1, split).permute(2, 0, 3, 1, 4)
        return SeqPEContext(q, k)

    def tokens(self, x: Tensor, ctx: SeqPEContext | Tensor) -> Tensor:
        return x + ctx.to(x.dtype) if self.method == "input_add" else x

    def qk(self, q: Tensor, k: Tensor, ctx_q: SeqPEContext, ctx_k: SeqPEContext) -> tuple[Tensor, Tensor]:
        if self.method == "attn_mul":
            return (q * ctx_q.q).type_as(q), (k * ctx_k.k).type_as(k)
        if self.method == "attn_add":
            return (q + ctx_q.q).type_as(q), (k + ctx_k.k).type_as(k)
        return q, k

    def bias(self, q: Tensor, k: Tensor, ctx_q: SeqPEContext, ctx_k: SeqPEContext) -> Tensor | None:
        if self.method != "attn_scalar":
            return None
        return (ctx_q.q @ ctx_k.k.mT) * q.shape[-1] ** -0.5  # positions alone: batch 1, whatever the batch
