"""Learning positions without labels: random shares of patches, smoothed targets, loss and accuracy over the cells of a grid.

    w_ij ∝ exp(−d_ij² / σ²),   loss = Σ_n a_n · Σ_j −w_(c_n, j) log softmax(z_n)_j / Σ_n a_n

with d the distance between cells, c_n the true cell of token n, z_n its logits and a_n its weight.

Source: Wang et al., DropPos, NeurIPS 2023, arXiv 2309.03576; Haochen-Wang409/DropPos@13f50a8 (models_DropPos_mae.py,
engine_pretrain.py). The released map divides by the sum of the wrong index: see `smoothing_map`. Chosen here: any grid
instead of square ones.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .grid import lattice

Normalise = Literal["columns", "rows"]


def share_of(count: int, share: float) -> int:
    """The whole part of count * share, without the loss of one where the product falls just short of a whole number."""
    if not 0 <= share <= 1:
        raise ValueError(f"share_of: a share lies in [0, 1], got {share}.")
    return math.floor(count * share + 1e-6)


def random_order(
    batch: int, count: int, *, device: torch.device | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """A random order of `count` tokens for each sample, (batch, count) int64.

    Args:
        generator: draws on its own device, whatever `device` is; None draws from the global generator of `device`.
    """
    place = device if generator is None else generator.device
    return torch.rand(batch, count, device=place, generator=generator).argsort(dim=1).to(device)


def random_subset(
    batch: int, count: int, size: int, *, device: torch.device | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """`size` random tokens of `count` for each sample, as a mask (batch, count) bool."""
    chosen = random_order(batch, count, device=device, generator=generator)[:, :size]
    return torch.zeros(batch, count, dtype=torch.bool, device=device).scatter_(1, chosen, True)


def smoothing_map(
    grid: tuple[int, ...], sigma: float, *, normalise: Normalise = "rows", device: torch.device | None = None
) -> Tensor:
    """Targets for every true cell, (N, N) float32: row i belongs to true cell i, cells row-major.

    Args:
        grid: cells along each axis.
        sigma: width in cells; 0 gives one-hot targets.
        normalise: "rows" makes every target sum to 1. "columns" is the released code, which divides entry (i, j) by the sum of
            row j: on 14 x 14 at sigma 1 a target sums to 0.886 in a corner and 1.110 diagonally next to it.
    """
    if normalise not in ("columns", "rows"):
        raise ValueError(f"smoothing_map: normalise must be 'columns' or 'rows', got {normalise!r}.")
    if not sigma >= 0:
        raise ValueError(f"smoothing_map: sigma is a width in cells and must be at least 0, got {sigma}.")
    cells = lattice(tuple(grid), device)
    if sigma < 1e-3:  # exp(−1e6) is 0 in float32 already, and a smaller sigma could divide by 0
        return torch.eye(len(cells), device=device)
    scaled = (cells[:, None] - cells[None]) / sigma
    weight = torch.exp(-scaled.square().sum(-1))
    return weight / weight.sum(dim=-1, keepdim=normalise == "rows")


def position_loss(logits: Tensor, cells: Tensor, weight: Tensor, targets: Tensor | None = None) -> Tensor:
    """Weighted mean of the cross-entropy of each token with its cell's target.

    Args:
        logits: (B, N, cells).
        cells: (B, N) int64, the true cell of each token.
        weight: (B, N), true or positive where a token counts; any overall factor cancels.
        targets: (cells, cells), see `smoothing_map`; None takes the true cell alone.

    Returns:
        A number; NaN when no token counts.
    """
    logs = logits.log_softmax(dim=-1)
    if targets is None:
        each = -logs.gather(-1, cells[..., None]).squeeze(-1)
    else:
        each = -(targets.to(logs)[cells] * logs).sum(dim=-1)
    return (each * weight).sum() / weight.sum()


def position_accuracy(logits: Tensor, cells: Tensor, weight: Tensor) -> Tensor:
    """Weighted share of tokens whose largest logit (B, N, cells) is at their cell (B, N); weight as in `position_loss`."""
    return ((logits.argmax(dim=-1) == cells) * weight).sum() / weight.sum()


def attentive_weights(class_token: Tensor, patches: Tensor, temperature: float = 0.1) -> Tensor:
    """How alike each patch (B, N, C) is to the class token (B, C): softmax of the cosines over the temperature, (B, N)."""
    return (F.cosine_similarity(class_token[:, None], patches, dim=-1) / temperature).softmax(dim=-1)
