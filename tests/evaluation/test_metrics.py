"""Fréchet distance, inception score, precision and recall: against loops, other implementations, and where they break."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.image.fid import FrechetInceptionDistance

from vispe.evaluation import (
    FeatureStatistics,
    Statistics,
    frechet_distance,
    inception_score,
    precision_recall,
    read_adm,
    statistics,
)


def cloud(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    points, mix = (torch.randn(rows, d, generator=g, dtype=torch.float64) for rows in (n, d))
    return points @ mix / d**0.5 + shift


class Flat(torch.nn.Module):
    """A feature extractor that gives the pixels."""

    num_features = 12

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).double()


def test_the_distance_is_that_of_torchmetrics() -> None:
    metric = FrechetInceptionDistance(feature=Flat(), antialias=False).set_dtype(torch.float64)
    a, b = cloud(40, 12, 0), cloud(50, 12, 1, shift=0.5)
    metric.update(a.view(-1, 3, 2, 2), real=True)
    metric.update(b.view(-1, 3, 2, 2), real=False)
    assert frechet_distance(statistics(a), statistics(b)) == pytest.approx(metric.compute().item(), rel=1e-9)


def test_normal_distributions_along_the_axes_have_a_closed_form() -> None:
    a = Statistics(torch.tensor([0.0, 1.0]).double(), torch.diag(torch.tensor([4.0, 9.0])).double())
    b = Statistics(torch.tensor([3.0, 1.0]).double(), torch.diag(torch.tensor([1.0, 25.0])).double())
    assert frechet_distance(a, b) == pytest.approx(9 + (2 - 1) ** 2 + (3 - 5) ** 2, rel=1e-12)
    assert abs(frechet_distance(a, a)) < 1e-12


@pytest.mark.parametrize(("few", "width"), [(2, 6), (3, 40), (20, 40)])
def test_fewer_pictures_than_features(few: int, width: int) -> None:
    a, b = statistics(cloud(few, width, 2)), statistics(cloud(3 * width, width, 3))
    found = frechet_distance(a, b)
    # within the span of the few, Σ₁^½ Σ₂ Σ₁^½ has full rank and its square root is exact
    values, vectors = torch.linalg.eigh(a.cov)
    basis = vectors[:, -(few - 1) :] * values[-(few - 1) :].sqrt()
    common = torch.linalg.eigvalsh(basis.T @ b.cov @ basis).sqrt().sum()
    expected = (a.mean - b.mean).square().sum() + a.cov.trace() + b.cov.trace() - 2 * common
    assert math.isfinite(found) and found == pytest.approx(expected.item(), rel=1e-12)
    assert frechet_distance(b, a) == pytest.approx(found, rel=1e-12) and abs(frechet_distance(a, a)) < 1e-12


def test_statistics_in_batches() -> None:
    x = 1000 + cloud(57, 5, 4)
    parts = FeatureStatistics()
    for part in x.split([1, 20, 0, 36]):
        parts.update(part)
    found = parts.result()
    torch.testing.assert_close(found.mean, x.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(found.cov, x.T.cov(), rtol=1e-10, atol=1e-12)
    assert found.count == 57


def test_precision_and_recall_by_loops() -> None:
    real, samples = cloud(23, 3, 5), cloud(17, 3, 6, shift=1.0)

    def ball(points: torch.Tensor, i: int, k: int) -> float:
        return sorted(((points[i] - p) ** 2).sum().item() for j, p in enumerate(points) if j != i)[k - 1]

    def share(points: torch.Tensor, centres: torch.Tensor, k: int) -> float:
        radius = [ball(centres, i, k) for i in range(len(centres))]
        hits = sum(any(((p - c) ** 2).sum() <= r for c, r in zip(centres, radius)) for p in points)
        return hits / len(points)

    for k in (1, 3, 5):
        found = precision_recall(real, samples, k=k, chunk=7)
        assert found == pytest.approx((share(samples, real, k), share(real, samples, k)))
    assert precision_recall(real, real) == (1.0, 1.0) and precision_recall(real, samples + 100) == (0.0, 0.0)


def test_a_point_on_the_border_is_inside() -> None:
    real = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
    assert precision_recall(real, torch.tensor([[6.0], [6.0], [-1.0], [6.001]]), k=1)[0] == 0.75


def test_inception_score_by_loops() -> None:
    p = torch.rand(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p[0] = torch.tensor([1.0, 0, 0, 0])
    p = p / p.sum(1, keepdim=True)
    scores = []
    for part in (p[:5], p[5:10], p[10:]):  # the last split is shorter
        mean = part.mean(0).tolist()
        kl = [sum(a * (math.log(a) - math.log(m)) for a, m in zip(row, mean) if a > 0) for row in part.tolist()]
        scores.append(math.exp(sum(kl) / len(kl)))
    assert inception_score(p, split=5) == pytest.approx(sum(scores) / 3, rel=1e-12)
    assert inception_score(torch.eye(7)) == pytest.approx(7) and inception_score(torch.full((9, 4), 0.25)) == pytest.approx(1)


def test_reference_batches_of_adm(tmp_path) -> None:
    a = statistics(cloud(30, 4, 7))
    mean, cov = a.mean.numpy(), a.cov.numpy()
    np.savez(tmp_path / "ref.npz", mu=mean, sigma=cov, mu_s=mean[:2], sigma_s=cov[:2, :2])
    found = read_adm(tmp_path / "ref.npz")
    assert set(found) == {"pool3", "spatial"} and len(found["spatial"].mean) == 2
    assert abs(frechet_distance(found["pool3"], a)) < 1e-12
    np.savez(tmp_path / "other.npz", arr_0=np.zeros(3))
    with pytest.raises(ValueError, match="a reference batch has mu and sigma"):
        read_adm(tmp_path / "other.npz")


def test_refusals() -> None:
    a, b = statistics(cloud(9, 3, 0)), statistics(cloud(9, 4, 0))
    for call, words in (
        (lambda: frechet_distance(a, b), "width 3 and 4"),
        (lambda: statistics(torch.zeros(1, 3)), "at least 2 pictures, got 1"),
        (lambda: statistics(torch.zeros(3, 2, 2)), "flatten them"),
        (lambda: statistics(torch.full((4, 2), math.nan)), "is not finite"),
        (lambda: FeatureStatistics().update(torch.zeros(2, 3)).update(torch.zeros(2, 4)), "width 4 after some of width 3"),
        (lambda: precision_recall(torch.zeros(3, 2), torch.zeros(9, 2)), r"k must lie in 1..2 with 3 pictures"),
        (lambda: precision_recall(torch.zeros(3, 2), torch.zeros(9, 3)), "of one network"),
        (lambda: inception_score(torch.zeros(3, 2)), "apply softmax"),
        (lambda: inception_score(torch.eye(3), split=0), "split is a number"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
