"""Means, intervals, paired differences and ranks of a few seeds, without more claims than the numbers carry."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval.

    Attributes:
        mean: Mean of the values.
        std: Sample standard deviation (n - 1); nan for one value.
        low, high: Ends of the t interval; -inf and inf for one value, which says nothing about its spread.
        n: Number of values.
    """

    mean: float
    std: float
    low: float
    high: float
    n: int

    @property
    def bounded(self) -> bool:
        """Whether there is an interval at all."""
        return self.n > 1

    def overlaps(self, other: "Estimate") -> bool:
        """Whether the intervals share a point; always with an estimate from one value."""
        return self.low <= other.high and other.low <= self.high


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and Student's t interval: mean ± t · s / √n, with n - 1 degrees of freedom."""
    if not values:
        raise ValueError("estimate: got no values, expected at least one")
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Estimate(mean, math.nan, -math.inf, math.inf, 1)
    std = statistics.stdev(values)
    half = t_quantile(confidence, n - 1) * std / math.sqrt(n)
    return Estimate(mean, std, mean - half, mean + half, n)


def paired(values: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95) -> Estimate | None:
    """Differences to a baseline, seed by seed, over the seeds that both have; None without a common one."""
    common = sorted(values.keys() & baseline.keys())
    return estimate([values[seed] - baseline[seed] for seed in common], confidence) if common else None


def ranks(estimates: Sequence[Estimate]) -> list[tuple[int, int] | None]:
    """Best and worst rank that each estimate can have, higher means first; None for an estimate without an interval.

    Only estimates whose interval lies wholly above count as better and only those wholly below as worse, so that the two
    numbers are equal exactly where no other interval overlaps.
    """
    found: list[tuple[int, int] | None] = []
    for own in estimates:
        better = sum(other.low > own.high for other in estimates)
        worse = sum(other.high < own.low for other in estimates)
        found.append((better + 1, len(estimates) - worse) if own.bounded else None)
    return found


def separated(best: Estimate, others: Mapping[str, Estimate]) -> list[str]:
    """Names of the others whose interval overlaps that of the best, best mean first: not separated from it."""
    names = [name for name, other in others.items() if other.overlaps(best)]
    return sorted(names, key=lambda name: -others[name].mean)


def t_quantile(confidence: float, freedom: int) -> float:
    """t with P(|T| <= t) = confidence for Student's distribution with an integer number of degrees of freedom."""
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"t_quantile: needs 0 < confidence < 1 and freedom >= 1, got {confidence} and {freedom}")
    low, high = 0.0, math.pi / 2  # of the angle atan(t / √freedom), in which the probability rises from 0 to 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if central(middle, freedom) < confidence else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def central(angle: float, freedom: int) -> float:
    """P(|T| <= √freedom · tan angle): the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    if freedom == 1:
        return 2 * angle / math.pi
    term = cosine if odd else 1.0
    total = term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
