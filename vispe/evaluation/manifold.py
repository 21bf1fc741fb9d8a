"""Precision and recall of samples by balls around features.

    precision  share of samples inside the ball of some real picture        recall  share of real pictures inside some
    sample's ball

A ball reaches to the k-th nearest neighbour within its own cloud, the picture itself not counted; inside means distance <=
radius. Source: Kynkäänniemi et al., NeurIPS 2019, arXiv 1904.06991. As in openai/guided-diffusion k = 3 and distances are
squared. Different from there: float32 or float64 throughout, where its code begins in float16.
"""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(N, M), never below 0; exact differences, since |a|² + |b|² − 2ab loses half of the digits among near points."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def radii(features: Tensor, *, k: int = 3, chunk: int = 2048) -> Tensor:
    """Squared distance (N,) of each feature to its k-th nearest neighbour in its own cloud (N, D)."""
    if not 1 <= k < len(features):
        raise ValueError(f"radii: k must lie in 1..{len(features) - 1} with {len(features)} pictures, got {k}.")
    found = [squared_distances(part, features).kthvalue(k + 1, dim=1).values for part in features.split(chunk)]
    return torch.cat(found)


def inside(points: Tensor, centres: Tensor, radius: Tensor, *, chunk: int = 2048) -> Tensor:
    """Which points (N, D) lie in the ball of any centre (M, D) with squared radius (M,): (N,) bool."""
    return torch.cat([(squared_distances(part, centres) <= radius).any(1) for part in points.split(chunk)])


def precision_recall(real: Tensor, samples: Tensor, *, k: int = 3, chunk: int = 2048) -> tuple[float, float]:
    """(precision, recall) of features (N, D) of real pictures and (M, D) of samples."""
    if real.ndim != 2 or samples.ndim != 2 or real.shape[1] != samples.shape[1]:
        raise ValueError(
            f"precision_recall: needs features (N, D) and (M, D) of one network, got {tuple(real.shape)} and "
            f"{tuple(samples.shape)}."
        )
    real, samples = (t if t.dtype == torch.float64 else t.float() for t in (real, samples))
    precision = inside(samples, real, radii(real, k=k, chunk=chunk), chunk=chunk).double().mean()
    recall = inside(real, samples, radii(samples, k=k, chunk=chunk), chunk=chunk).double().mean()
    return float(precision), float(recall)
