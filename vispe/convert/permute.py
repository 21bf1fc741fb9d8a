"""Rotary weights from one pair layout to the other."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def permute_rope(tensor: Tensor, num_heads: int, to: Literal["half", "interleaved"]) -> Tensor:
    """Reorder the output channels of a query or key projection so that the other pair layout gives the same scores.

    Rotary pairs are channels (2i, 2i + 1) when interleaved and (i, i + D/2) in halves. The same order is needed for the
    weight and the bias of both projections, and for the weights of query and key norms (num_heads=1 for a norm of one
    head's width).

    Args:
        tensor: (H · D, in) weight, (H · D,) bias or norm weight; queries or keys alone, not a fused qkv.
        num_heads: heads that the first axis holds.
        to: the layout wanted; the tensor is in the other one.

    Returns:
        A tensor of the same shape.
    """
    if to not in ("half", "interleaved"):
        raise ValueError(f"permute_rope: to must be 'half' or 'interleaved', got {to!r}.")
    rows = tensor.shape[0]
    if num_heads < 1 or rows % (2 * num_heads):
        raise ValueError(
            f"permute_rope: {rows} rows are no {num_heads} heads of an even width; pass the query or key rows alone and their "
            f"number of heads."
        )
    order = torch.arange(rows // num_heads, device=tensor.device)
    if to == "half":
        order = order.view(-1, 2).mT.flatten()  # 0, 2, 4, ..., 1, 3, 5, ...
    else:
        order = order.view(2, -1).mT.flatten()  # 0, D/2, 1, D/2 + 1, ...
    return tensor.unflatten(0, (num_heads, -1))[:, order].flatten(0, 1)
