"""URPE: a learned factor for each offset, multiplied with the attention probabilities.

    o_i = Σ_j p_ij · C[offset(i − j)] · v_j

Paper: Luo et al., Your Transformer May Not be as Powerful as You Expect, NeurIPS 2022, arXiv 2205.13401: probabilities
sum to one, whatever bias they hold, so a relative bias alone cannot tell a token where it is; a Toeplitz matrix C
behind the softmax can. Code: lsj2408/URPE, fairseq branch: C starts at one (option --constant-init-ur-attn), is shared
over layers and has one diagonal an offset for each head (--ur-attn-unique), indexed by key minus query; the identity of
both signs is learned, so the sign is a convention. Use it with a relative bias: "swin_bias+urpe".
Chosen here: offsets of a grid on 1 or 2 axes (the paper's sequences have 1; two-level Toeplitz matrices on images are
ours); factor 1 for pairs with prefix tokens; no weight decay, which would pull factors to 0, away from the identity;
other grids resample the table ("geometric" keeps near offsets and holds the far ones constant).
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Encoding
from .offsets import OffsetContext, pick
from .rel_bias_resize import Resample
from .swin_bias import SwinBias


class Urpe(SwinBias):
    """Multiplicative factors on probabilities, one for each offset and head.

    Args:
        grid: cells of the table; a host fills in its train grid.
        resample: as in SwinBias; "bicubic" and "bilinear" with 2 axes only.
        per_layer: one table a layer, or one for all.

    Attributes:
        table: (Π(2n−1), heads), offsets query − key.
    """

    card = dataclasses.replace(
        SwinBias.card,
        title="URPE",
        axes=(1, 2),
        injection=("mix",),
        formula="(p_ij C[i-j]) v_j",
        paper="https://arxiv.org/abs/2205.13401",
        year=2022,
        code="lsj2408/URPE",
        cases=0,
    )
    name = "urpe"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        grid: tuple[int, ...],
        resample: Resample = "geometric",
        per_layer: bool = False,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, grid=grid, resample=resample)
        if axes == 1 and resample in ("bicubic", "bilinear"):
            raise ValueError(f"urpe: {resample!r} resamples images; with 1 axis use 'geometric' or 'none'.")
        self.per_layer = per_layer

    def reset_parameters(self) -> None:
        nn.init.ones_(self.table)

    @torch.no_grad()
    def set_identity(self) -> bool:
        nn.init.ones_(self.table)
        return True

    def spread(self, values: Tensor, index: Tensor, prefix_q: int, prefix_k: int) -> Tensor:
        return F.pad(pick(values, index), (prefix_k, 0, prefix_q, 0), value=1.0)

    bias = Encoding.bias  # nothing is added to the logits

    def mix(self, p: Tensor, v: Tensor, ctx_q: OffsetContext, ctx_k: OffsetContext) -> Tensor:
        return (p * self.between_sides(ctx_q, ctx_k).to(p.dtype)) @ v
