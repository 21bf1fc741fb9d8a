"""Means, intervals, differences and ranks against numbers computed by hand."""

import math

import pytest

from train.study.stats import Estimate, estimate, paired, ranks, separated, t_quantile

TABLE = {  # two-sided 95 % points of Student's t, as printed in textbooks
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 9: 2.262, 10: 2.228, 29: 2.045,
}  # fmt: skip


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_t_quantiles_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(value, abs=5e-4)


def test_t_quantiles_of_other_coverages() -> None:
    assert t_quantile(0.5, 1) == pytest.approx(1.0)  # tan(pi / 4)
    assert t_quantile(0.99, 2) == pytest.approx(9.925, abs=5e-4)
    assert t_quantile(0.90, 7) == pytest.approx(1.895, abs=5e-4)
    for wrong in ((1.0, 2), (0.0, 2), (0.95, 0)):
        with pytest.raises(ValueError, match="t_quantile"):
            t_quantile(*wrong)


def test_interval_of_three_values() -> None:
    found = estimate([70.0, 72.0, 74.0])
    assert (found.mean, found.std, found.n) == (72.0, 2.0, 3)
    half = 4.302653 * 2 / math.sqrt(3)  # 4.9683
    assert found.low == pytest.approx(72 - half, abs=1e-5) and found.high == pytest.approx(72 + half, abs=1e-5)


def test_one_value_has_no_interval() -> None:
    found = estimate([70.0])
    assert found.mean == 70.0 and math.isnan(found.std) and not found.bounded
    assert found.overlaps(estimate([10.0, 10.1, 10.2]))
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_paired_differences_use_common_seeds_only() -> None:
    found = paired({0: 71.0, 1: 75.0, 2: 70.0, 7: 0.0}, {0: 70.0, 1: 72.0, 2: 68.0, 8: 99.0})
    assert (found.mean, found.std, found.n) == (2.0, 1.0, 3)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)  # -0.484
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_a_difference_that_every_seed_shares_has_a_narrow_interval_though_the_means_spread() -> None:
    own, base = {0: 50.0, 1: 60.0, 2: 70.0}, {0: 48.0, 1: 58.1, 2: 67.9}
    assert estimate(list(own.values())).overlaps(estimate(list(base.values())))
    assert paired(own, base).low > 1.7


def fixed(mean: float, half: float) -> Estimate:
    return Estimate(mean, half, mean - half, mean + half, 3)


def test_ranks_only_where_nothing_overlaps() -> None:
    found = ranks([fixed(90, 1), fixed(70, 3), fixed(66, 2), fixed(63, 2), fixed(10, 1)])
    # 70 ± 3 and 63 ± 2 do not overlap, and both overlap 66 ± 2
    assert found == [(1, 1), (2, 3), (2, 4), (3, 4), (5, 5)]
    assert ranks([fixed(90, 1), estimate([50.0])]) == [(1, 2), None]


def test_touching_intervals_overlap() -> None:
    assert fixed(10, 1).overlaps(fixed(12, 1)) and not fixed(10, 1).overlaps(fixed(12.01, 1))


def test_separated_lists_what_overlaps_best_first() -> None:
    others = {"far": fixed(60, 1), "near": fixed(78, 2), "nearer": fixed(79, 1)}
    assert separated(fixed(80, 1), others) == ["nearer", "near"]
