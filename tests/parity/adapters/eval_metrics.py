"""Metrics of generated pictures against openai/guided-diffusion's evaluator.

Its distance goes through a matrix square root, whose rounding errors are about √ε for each missing rank of a covariance: two
runs of the official code on covariances that differ in the last bit differ by up to 7e-8 in 128 dimensions, and it is off the
exact value by 4e-6 there. Ours is exact, so such cases have a tolerance that grows with the width; see
`vispe/evaluation/frechet.py`.
"""

from __future__ import annotations

import torch

from vispe.evaluation import frechet_distance, inception_score, precision_recall, statistics

from ..cases import Case
from .common import Results

PAIRS = {"out.fid": ("gen", "ref"), "out.fid_few_vs_ref": ("few", "ref")}


def run(case: Case) -> Results:
    x, c = case.inputs, case.config
    ref = statistics(x["ref"])
    results = {"out.mu": ref.mean, "out.sigma": ref.cov}
    for key, (ours, other) in PAIRS.items():
        if ours in x:
            results[key] = number(frechet_distance(statistics(x[ours]), statistics(x[other])))
    precision, recall = precision_recall(x["ref"], x["gen"], k=c.get("k", 3))
    score = inception_score(x["prob"], split=c.get("is_split", 5000))
    return results | {
        "out.precision": number(precision), "out.recall": number(recall), "out.inception_score": number(score),
    }  # fmt: skip


def number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def tolerance(case: Case, key: str) -> float | None:
    if key not in PAIRS:
        return None
    rows = min(len(case.inputs[name]) for name in PAIRS[key])
    width = case.inputs["ref"].shape[1]
    return 5e-8 * width if rows <= width else None
