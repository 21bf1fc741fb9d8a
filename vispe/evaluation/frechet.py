"""The Fréchet distance between two clouds of features, as if both were normally distributed.

    d² = |μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁ Σ₂)^½

On pool3 features of the 2015 Inception network this is FID (Heusel et al., NeurIPS 2017, arXiv 1706.08500), on its spatial ones
sFID (Nash et al., ICML 2021, arXiv 2103.03841); on any other features call it something else. Covariances have n − 1 below, as
in openai/guided-diffusion (evaluations/evaluator.py).

Different from there: the trace is the sum of the singular values of A₁ᵀ A₂ with Σ = A Aᵀ, which equals tr (Σ₁ Σ₂)^½ and stays
exact and real where a covariance has no full rank (fewer pictures than features). A matrix square root of the product has
errors of about √ε there, 3e-8 for each missing rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """Mean (D,) and covariance (D, D) of features, float64, and of how many pictures (0: unknown)."""

    mean: Tensor
    cov: Tensor
    count: int = 0

    def __post_init__(self) -> None:
        width = len(self.mean)
        if self.mean.ndim != 1 or self.cov.shape != (width, width):
            raise ValueError(
                f"Statistics: mean (D,) and cov (D, D) expected, got {tuple(self.mean.shape)} and {tuple(self.cov.shape)}."
            )
        if not (self.mean.isfinite().all() and self.cov.isfinite().all()):
            raise ValueError("Statistics: mean or covariance is not finite; look at the pictures and features they came from.")


class FeatureStatistics:
    """Mean and covariance of features that come in batches, without keeping them; float64 inside, exact to rounding."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._scatter: Tensor | None = None

    def update(self, features: Tensor) -> FeatureStatistics:
        """Count a batch (B, D)."""
        if features.ndim != 2:
            raise ValueError(f"FeatureStatistics: needs features (B, D), got {tuple(features.shape)}; flatten them.")
        if len(features) == 0:
            return self
        x = features.detach().double().cpu()
        mean = x.mean(0)
        off = x - mean
        if self._mean is None:
            self._mean, self._scatter, self.count = mean, off.T @ off, len(x)
            return self
        if len(mean) != len(self._mean):
            raise ValueError(f"FeatureStatistics: got features of width {len(mean)} after some of width {len(self._mean)}.")
        total, step = self.count + len(x), mean - self._mean
        self._scatter = self._scatter + off.T @ off + torch.outer(step, step) * (self.count * len(x) / total)
        self._mean = self._mean + step * (len(x) / total)
        self.count = total
        return self

    def result(self) -> Statistics:
        """Needs at least two pictures."""
        if self.count < 2:
            raise ValueError(f"FeatureStatistics: a covariance needs at least 2 pictures, got {self.count}.")
        return Statistics(self._mean, self._scatter / (self.count - 1), self.count)


def statistics(features: Tensor) -> Statistics:
    """Mean and covariance of features (N, D)."""
    return FeatureStatistics().update(features).result()


def half(cov: Tensor) -> Tensor:
    """A (D, rank) with A Aᵀ = cov; eigenvalues that are rounding noise count as zero."""
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    noise = 10 * torch.finfo(cov.dtype).eps * len(values) * values.abs().max()
    return vectors[:, values > noise] * values[values > noise].sqrt()


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """The squared distance; FID is this number."""
    if a.mean.shape != b.mean.shape:
        raise ValueError(
            f"frechet_distance: features of width {len(a.mean)} and {len(b.mean)}; take both from the same network and layer."
        )
    common = torch.linalg.svdvals(half(a.cov).T @ half(b.cov)).sum()
    return float((a.mean - b.mean).square().sum() + a.cov.trace() + b.cov.trace() - 2 * common)


def read_adm(path: str | Path) -> dict[str, Statistics]:
    """{"pool3", "spatial"} of a reference batch of guided-diffusion (mu, sigma, mu_s, sigma_s of
    VIRTUAL_imagenet256_labeled.npz)."""
    import numpy as np

    with np.load(path) as file:
        names = {"pool3": ("mu", "sigma"), "spatial": ("mu_s", "sigma_s")}
        found = {
            key: Statistics(*(torch.from_numpy(file[name]).double() for name in pair))
            for key, pair in names.items()
            if all(name in file.files for name in pair)
        }
        if not found:
            raise ValueError(f"{path}: holds {sorted(file.files)}, a reference batch has mu and sigma (and mu_s, sigma_s).")
    return found
