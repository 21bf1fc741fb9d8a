"""timm's RelPosBiasTf, the bias of MaxViT and CoAtNet in TensorFlow's convention: the table is indexed by key minus query.

    logit_ij += table[offset(j − i)]

Code: timm 1.0.31, layers/pos_embed_rel.py, after google-research/maxvit; Tu et al., MaxViT, ECCV 2022, arXiv
2204.01697. The opposite of Swin's and BEiT's direction, and heads come first: a table read with the wrong sign runs,
and is mirrored. timm looks rows up by multiplying with one-hot matrices; here they are picked.
Chosen here: as in SwinBias; pairs with prefix tokens get 0.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from .swin_bias import SwinBias


class TimmRelTf(SwinBias):
    """A table over the offsets of a grid, key minus query.

    Args:
        grid, resample: as in SwinBias.

    Attributes:
        table: (heads, 2H−1, 2W−1).
    """

    card = dataclasses.replace(
        SwinBias.card,
        title="timm RelPosBiasTf (MaxViT)",
        formula="q_i·k_j + b[j-i]",
        paper="https://arxiv.org/abs/2204.01697",
        year=2022,
        code="huggingface/pytorch-image-models",
        licence="Apache-2.0",
        cases=1,
    )
    name = "timm_rel_tf"

    def table_shape(self) -> tuple[int, ...]:
        return (self.num_heads, *(2 * n - 1 for n in self.grid))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def rows(self) -> Tensor:
        return self.table.flip(1, 2).flatten(1).T  # mirrored, it is indexed by query minus key
