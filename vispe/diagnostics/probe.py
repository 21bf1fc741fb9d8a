"""A ridge regression in closed form: what a linear reader finds in features."""

from __future__ import annotations

import torch
from torch import Tensor

STRENGTHS = (1e-6, 1e-4, 1e-2, 1e-1, 1.0, 10.0, 100.0)


def ridge(x: Tensor, y: Tensor, strengths: tuple[float, ...] = STRENGTHS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All ridge solutions of centred, scaled features: one eigendecomposition serves every strength.

    Args:
        x: (n, D) features; y: (n, T) targets.
        strengths: penalties in units of the mean eigenvalue of the features' covariance.

    Returns:
        weights (len(strengths), D, T), mean (D,) and scale (D,) of the features, mean (T,) of the targets; float64.
    """
    x, y = x.double(), y.double()
    mean, scale, middle = x.mean(0), x.std(0, unbiased=False), y.mean(0)
    rounding = 1e-5 * x.square().mean().sqrt()  # of float32 sums: a channel that varies by less says nothing
    scale = torch.where(scale > rounding, scale, torch.inf)
    z = (x - mean) / scale
    values, vectors = torch.linalg.eigh(z.mT @ z)
    projected = vectors.mT @ (z.mT @ (y - middle))
    unit = values.clamp_min(0).mean().clamp_min(1e-12)
    weights = [vectors @ (projected / (values.clamp_min(0) + s * unit)[:, None]) for s in strengths]
    return torch.stack(weights), mean, scale, middle


def r2(predicted: Tensor, y: Tensor) -> Tensor:
    """Coefficient of determination of each target, (..., T): 1 perfect, 0 no better than the mean, below 0 worse."""
    residual = (predicted - y).square().sum(-2)
    return 1 - residual / (y - y.mean(-2, keepdim=True)).square().sum(-2).clamp_min(1e-300)


def probe(x: Tensor, y: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions and targets of held-out samples: fitted on part 0, the penalty chosen on part 1, tested on part 2.

    Args:
        x: (n, D), y: (n, T), parts: (n,) int64 of 0, 1, 2.
    """
    fit, choose, test = (parts == part for part in (0, 1, 2))
    if not (fit.any() and choose.any() and test.any()):
        raise ValueError(f"probe: parts must hold 0, 1 and 2, got {parts.unique().tolist()}; give more samples.")
    weights, mean, scale, middle = ridge(x[fit], y[fit])
    y = y.double()
    scores = r2(((x[choose].double() - mean) / scale) @ weights + middle, y[choose])  # (S, T)
    best = weights[scores.mean(-1).argmax()]
    return ((x[test].double() - mean) / scale) @ best + middle, y[test]
