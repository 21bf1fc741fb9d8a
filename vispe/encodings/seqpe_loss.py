"""SeqPE's two regularisers: near positions get near vectors, and shifted windows look like the training window.

    contrastive  −log softmax_c(p · p_c)[nearest c],      transfer  β (KL(main ‖ shift) + KL(shift ‖ main))

Paper: Li et al., arXiv 2506.13277; code: ghrua/seqpe at 4c4b908, image_seqpe (pe_criterion.py, pe_sampler.py). Training
adds 0.1 · contrastive (32 pivots, 64 candidates) and 0.1 · transfer (32 windows, 64 cells, β = 1, per head) at each step.
As shipped, logits are raw products (the scale option is ignored), divergences are means over all elements, and candidates
are drawn at random only: hard and local ones (30 % and 20 % of pivots in the paper) exist and are switched off by mistake.
Chosen here: hard candidates edit the digits of an axis; the shipped code, where it would run, joins the axes to one number.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive_loss(
    pivot: Tensor, candidates: Tensor, nearest: Tensor, *, num_heads: int = 1, scale: float = 1.0, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of raw products to the candidate that lies nearest.

    Args:
        pivot: (B, E) vectors; candidates: (B, K, E); nearest: (B,) int64, see `nearest_candidate`.
        num_heads: products for each part of the channels, averaged; 1 as shipped.
        scale: factor of the products.
    """
    p = pivot.unflatten(-1, (num_heads, -1))  # (B, H, D)
    c = candidates.unflatten(-1, (num_heads, -1))  # (B, K, H, D)
    logits = torch.einsum("bhd,bkhd->bhk", p, c) * scale
    target = nearest[:, None].expand(-1, num_heads)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=label_smoothing)


def transfer_loss(
    main: Tensor,
    shifted: Tensor,
    *,
    num_heads: int = 1,
    beta: float = 1.0,
    scale: float = 1.0,
    metric: Literal["kl", "mse"] = "kl",
    reduction: Literal["mean", "batchmean"] = "mean",
) -> Tensor:
    """Symmetric divergence of the similarity of cells in the training window and in shifted windows.

    Args:
        main: (B, K, E) vectors of K cells of the training window; shifted: (B, K, E) of the same cells in shifted ones.
        num_heads: similarities for each part of the channels.
        beta: share of the loss that moves the shifted vectors alone; 1 − beta moves the main ones alone.
        metric: "kl", or "mse", the mean squared difference of log-probabilities, an option of the code.
        reduction: of "kl": "mean" over all B · heads · K · K elements, as shipped; "batchmean" over the B · heads · K
            distributions, which is what a divergence is.
    """
    if reduction not in ("mean", "batchmean"):
        raise ValueError(f"transfer_loss: reduction must be 'mean' or 'batchmean', got {reduction!r}.")
    if metric not in ("kl", "mse"):
        raise ValueError(f"transfer_loss: metric must be 'kl' or 'mse', got {metric!r}.")
    m, s = (_similarities(t, num_heads, scale) for t in (main, shifted))
    distance = F.mse_loss if metric == "mse" else partial(_both_ways, reduction=reduction)
    loss = beta * distance(m.detach(), s)
    return loss + (1 - beta) * distance(m, s.detach()) if beta < 1 else loss


def _similarities(x: Tensor, num_heads: int, scale: float) -> Tensor:
    x = x.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, H, K, D)
    return (x @ x.mT * scale).log_softmax(dim=-1).flatten(0, 2)  # (B · H · K, K)


def _both_ways(a: Tensor, b: Tensor, reduction: str) -> Tensor:
    """KL(a ‖ b) + KL(b ‖ a) of rows of log-probabilities, summed in one: Σ (eᵃ − eᵇ)(a − b)."""
    terms = (a.exp() - b.exp()) * (a - b)
    return terms.mean() if reduction == "mean" else terms.sum() / len(a)


def nearest_candidate(pivot: Tensor, candidates: Tensor) -> Tensor:
    """Index (B,) of the candidate cell (B, K, axes) with the smallest Euclidean distance to the pivot cell (B, axes)."""
    return (candidates - pivot[:, None]).square().sum(-1).argmin(dim=-1)


def sample_candidates(
    pivot: Tensor,
    count: int,
    *,
    limit: int = 100,
    shares: tuple[float, float] = (0.3, 0.2),
    window: int = 14,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Candidate cells (B, count, axes) for pivot cells (B, axes); no candidate is its pivot.

    Args:
        limit: cells an axis of the range, at most as many as the network's digits hold.
        shares: of pivots with hard candidates (a fifth of them differ from the pivot by an edited digit) and with local ones
            (from one window of the range). The paper's by default; (0, 0) draws as the shipped code does.
        window: side of that window.
    """
    (batch, axes), kw = pivot.shape, {"generator": generator, "device": pivot.device}
    window = min(window, limit)
    out = torch.randint(limit, (batch, count, axes), **kw)
    kind = torch.rand(batch, **kw)[:, None, None]
    hard, local = kind < shares[0], (kind >= shares[0]) & (kind < sum(shares))
    corner = torch.randint(limit - window + 1, (batch, 1, axes), **kw)
    out = torch.where(local, corner + torch.randint(window, out.shape, **kw), out)
    edited = _edit_digit(pivot[:, None].expand(-1, max(count // 5, 1), -1), limit, kw)
    out = torch.where(hard, torch.cat((edited, out[:, edited.shape[1] :]), dim=1), out)
    same = (out == pivot[:, None]).all(-1)
    moved = torch.cat(((out[..., :1] + 1) % limit, out[..., 1:]), dim=-1)
    return torch.where(same[..., None], moved, out)


def _edit_digit(cells: Tensor, limit: int, kw: dict) -> Tensor:
    """Another digit in one place of one axis; a cell that this moves out of the range keeps its lower digits."""
    places = len(str(limit - 1))
    power = 10 ** torch.randint(places, cells.shape, **kw)
    change = torch.randint(1, 10, cells.shape, **kw)
    digit = cells // power % 10
    edited = (cells + ((digit + change) % 10 - digit) * power) % limit
    axis = torch.randint(cells.shape[-1], cells.shape[:-1], **kw)
    chosen = F.one_hot(axis, cells.shape[-1]).bool()
    return torch.where(chosen, edited, cells)


def sample_windows(
    grid: tuple[int, ...], windows: int, count: int, *, limit: int = 100, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Cells for the transfer loss: (count cells of the training window) and (the same, shifted), both (windows, count, axes).

    Windows begin at least one window's side beyond the training window on one axis and stay inside the range.
    """
    room = torch.tensor([limit - n for n in grid])
    if (room < torch.tensor(grid)).all():
        raise ValueError(
            f"sample_windows: no window of {tuple(grid)} lies beyond the training window within {limit} cells an axis; raise "
            f"limit, or use a smaller grid."
        )
    cells = torch.stack([torch.randint(n, (windows, count), generator=generator) for n in grid], dim=-1)
    starts = torch.cartesian_prod(*[torch.arange(int(r) + 1) for r in room]).reshape(-1, len(grid))
    starts = starts[(starts >= torch.tensor(grid)).any(-1)]
    start = starts[torch.randint(len(starts), (windows,), generator=generator)]
    return cells, cells + start[:, None]
