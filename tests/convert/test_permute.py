"""Pair layouts: interleaved weights under a half-layout rotation, and back (Dao-AILab/flash-attention 45 and others)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vispe.convert import permute_rope
from vispe.encodings.functional import phase, rotate

HEADS, DIM = 2, 8  # channels of one head


def scores(layout, wq, bq, wk, bk, gq, gk) -> torch.Tensor:
    """Logits of 5 tokens with rotary positions and a norm of queries and keys with weights."""
    x = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    freqs = torch.tensor([1.0, 0.4, 0.15, 0.05], dtype=torch.float64)[None, None]
    angle = phase(torch.arange(5.0, dtype=torch.float64)[None, :, None], freqs)
    heads = []
    for w, b, g in ((wq, bq, gq), (wk, bk, gk)):
        h = nn.functional.linear(x, w, b).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
        heads.append(rotate(nn.functional.rms_norm(h, (DIM,), g), angle.cos(), angle.sin(), layout))
    return heads[0] @ heads[1].mT


def tensors():
    torch.manual_seed(0)
    shapes = [(HEADS * DIM, 12), (HEADS * DIM,)] * 2 + [(DIM,)] * 2
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


@pytest.mark.parametrize("to", ["half", "interleaved"])
def test_scores_are_kept(to):
    wq, bq, wk, bk, gq, gk = tensors()
    source = "interleaved" if to == "half" else "half"
    wanted = scores(source, wq, bq, wk, bk, gq, gk)
    assert (scores(to, wq, bq, wk, bk, gq, gk) - wanted).abs().max() > 1
    moved = [permute_rope(t, HEADS, to) for t in (wq, bq, wk, bk)] + [permute_rope(g, 1, to) for g in (gq, gk)]
    torch.testing.assert_close(scores(to, *moved), wanted, rtol=0, atol=1e-12)


def test_order():
    assert permute_rope(torch.arange(8), 1, "half").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert permute_rope(torch.arange(8), 1, "interleaved").tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    weight = torch.randn(24, 5)
    assert torch.equal(permute_rope(permute_rope(weight, 3, "half"), 3, "interleaved"), weight)


def test_errors():
    with pytest.raises(ValueError, match="12 rows are no 4 heads of an even width"):
        permute_rope(torch.ones(12, 3), 4, "half")
    with pytest.raises(ValueError, match="'half' or 'interleaved', got 'pairs'"):
        permute_rope(torch.ones(12, 3), 3, "pairs")
