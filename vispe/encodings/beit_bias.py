"""BEiT's relative position bias: a table over offsets with rows of its own for the class token.

    logit_ij += table[offset(i − j)];  rows K, K + 1, K + 2 for class → token, token → class, class → class

Paper: Bao et al., BEiT, ICLR 2022, arXiv 2106.08254. Code: microsoft/unilm at 768a3c8, beit/modeling_finetune.py
(fine-tuning: one table a layer; pre-training: one for all layers, `per_layer=False`, copied to every layer for
fine-tuning). timm's `RelPosBias` with one prefix token is the same (with initial values of std 0.02,
and kept out of weight decay; the official code starts at zero and decays it).
Chosen here: any number of prefix tokens share the class token's rows; other grids are served by BEiT's geometric
resampling (linear, as in timm; the official cubic interp2d no longer exists), from grids of any shape.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .offsets import pick
from .rel_bias_resize import Resample
from .swin_bias import SwinBias


class BeitBias(SwinBias):
    """A table over offsets with three rows for pairs with prefix tokens.

    Args:
        grid, resample: as in SwinBias.
        prefix: prefix tokens of the host; none means no rows for them.
        per_layer: one table a layer, or one for all.

    Attributes:
        table: ((2H−1)(2W−1) + 3, heads), without the 3 for prefix 0.
    """

    card = dataclasses.replace(
        SwinBias.card,
        title="BEiT relative position bias",
        formula="q_i·k_j + b[i-j], rows for the class token",
        paper="https://arxiv.org/abs/2106.08254",
        code="microsoft/unilm",
        cases=3,
    )
    name = "beit_bias"
    no_decay = ()
    init_std = 0.0

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        grid: tuple[int, int],
        prefix: int = 0,
        resample: Resample = "geometric",
        per_layer: bool = True,
    ) -> None:
        self.prefix = prefix
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, grid=grid, resample=resample)
        self.per_layer = per_layer

    @property
    def extra_rows(self) -> int:
        return 3 if self.prefix else 0

    def spread(self, values: Tensor, index: Tensor, prefix_q: int, prefix_k: int) -> Tensor:
        if (prefix_q or prefix_k) and not self.prefix:
            raise ValueError(
                f"{self.name}: the tokens have {max(prefix_q, prefix_k)} prefix tokens, but the table has no rows for them; "
                f"create it with prefix={max(prefix_q, prefix_k)}."
            )
        return pick(values, class_rows(index, prefix_q, prefix_k, values.shape[1] - 3))


def class_rows(index: Tensor, prefix_q: int, prefix_k: int, first: int) -> Tensor:
    """Index (B, Nq, Nk) with prefix tokens in front: row `first` for their queries, + 1 for their keys, + 2 for both."""
    batch, queries, keys = index.shape
    if prefix_k:
        index = torch.cat((index.new_full((batch, queries, prefix_k), first + 1), index), dim=2)
    if prefix_q:
        top = torch.cat(
            (index.new_full((batch, prefix_q, prefix_k), first + 2), index.new_full((batch, prefix_q, keys), first)), dim=2
        )
        index = torch.cat((top, index), dim=1)
    return index
