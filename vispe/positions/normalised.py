"""LARoPE: ids that count a sequence's own length, for cross-attention between sequences that say the same at other rates.

    queries, keys = normalised_ids([40, 25]), normalised_ids([12, 9])         (1, B, S) each
    rotary = SequenceRotary(head_dim=64, allocation="single", theta=1e4)
    q, k = rotary.turn(q, rotary.prepare(queries)), rotary.turn(k, rotary.prepare(keys))

Token m of a sequence of L has the id γ · m / L, so pairs turn by γ f (m / L_q − n / L_k): without any learning tokens look at
those that lie as far along as they do. Paper: LARoPE (length-aware rotary), arXiv 2509.11084; no code was compared, and γ's
default of 10 is reported, not read there. Not a scheme of `build_ids`: every id depends on the whole length, so no sequence can
be continued token by token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def normalised_ids(
    lengths: Sequence[int] | Tensor, *, scale: float = 10.0, size: int | None = None, pad: float = 0.0
) -> Tensor:
    """Ids of a batch of sequences, each from 0 to just below `scale`.

    Args:
        lengths: tokens of every row, (B,).
        scale: γ, ids that any sequence spans.
        size: tokens of the batch, padding on the right included; None for the longest row.
        pad: id of padding.

    Returns:
        (1, B, size) float32.

    Raises:
        ValueError: no rows, a row without tokens or longer than `size`, or a scale that is not positive.
    """
    lengths = torch.as_tensor(lengths)
    if lengths.ndim != 1 or not len(lengths) or lengths.is_floating_point() or bool((lengths < 1).any()):
        raise ValueError(f"normalised_ids: lengths are whole numbers of at least 1 token, one a row, got {lengths.tolist()}.")
    if not scale > 0:
        raise ValueError(f"normalised_ids: scale must be positive, got {scale}.")
    longest = int(lengths.max())
    size = longest if size is None else size
    if size < longest:
        row = int(lengths.argmax())
        raise ValueError(f"normalised_ids: row {row} has {longest} tokens, size={size} holds fewer; give at least {longest}.")
    counts = torch.arange(size, dtype=torch.float64, device=lengths.device)
    ids = scale * counts / lengths[:, None]
    return ids.masked_fill(counts >= lengths[:, None], pad).float()[None]
