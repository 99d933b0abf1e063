"""Numbers of means, sums, shares and counts from noisy totals, against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rillet import Count, Histogram, Mean, Quantile, Share, Sum
from rillet.gather.grid import Grid
from rillet.statistic import Margin, Range, Setting, Totals

CLIPPING = Range(0.0, 8.0)
#: Of the sum, the count, and the sum where nothing is missing.
COVARIANCE = np.array([[4e-4, 3e-5, 1e-4], [3e-5, 2.5e-5, 0.0], [1e-4, 0.0, 9e-4]])


def numbers(statistic, count, sums, *, complete=None, clipping=CLIPPING, **more):
    totals = Totals(count, sums, lambda i, j: COVARIANCE[i, j], clipping, complete, **more)
    return {name: make() for name, make in statistic.numbers(totals).items()}


@pytest.mark.parametrize("statistic", [Mean(), Sum()], ids=lambda one: one.name)
def test_a_public_count_divides(statistic):
    found = numbers(statistic, 10, (50.0,))
    assert (found["sum"], found["mean"], found["count"]) == (50.0, 5.0, 10.0)
    assert found["sum_noise_std"] == pytest.approx(0.02)
    assert found["mean_noise_std"] == pytest.approx(0.002)
    assert found["count_noise_std"] == 0.0
    assert found["value"] == found[statistic.name]
    assert found["noise_std"] == found[f"{statistic.name}_noise_std"]


def test_a_noisy_count_has_noise_of_its_own():
    found = numbers(Mean(), None, (50.0, 10.0))
    assert found["mean"] == found["value"] == 5.0
    variance = 4e-4 - 2 * 5 * 3e-5 + 25 * 2.5e-5
    assert found["mean_noise_std"] == pytest.approx(math.sqrt(variance) / 10)
    assert found["noise_covariance"] == pytest.approx((3e-5 - 5 * 2.5e-5) / 100)
    assert (found["count"], found["count_noise_std"]) == (10.0, pytest.approx(0.005))
    assert math.isnan(numbers(Mean(), None, (0.01, 0.004))["mean"])


def test_where_nothing_is_missing_the_public_count_divides():
    full = numbers(Mean(), 10, (50.0, 9.9, 51.0), complete=True)
    assert (full["mean"], full["sum"], full["count"]) == (5.1, 51.0, 10.0)
    assert full["mean_noise_std"] == pytest.approx(0.003)
    assert full["noise_slack"] == pytest.approx(1.1 * 0.005 / 10)
    assert math.isnan(full["noise_covariance"])
    some = numbers(Mean(), 10, (50.0, 8.0, 51.0), complete=False)
    assert (some["mean"], some["sum"], some["count"]) == (6.25, 50.0, 8.0)
    assert some["noise_slack"] == 0.0
    both = numbers(
        Mean(), 10, tuple(np.array([one, one]) for one in (50.0, 8.0, 51.0)),
        complete=np.array([True, False]),
    )  # fmt: skip
    assert both["mean"].tolist() == [5.1, 6.25]
    for complete, slack in ((True, 4 * 0.005), (False, 0.0)):
        found = numbers(Sum(), 10, (50.0, 8.0, 51.0), complete=complete)
        assert found["noise_slack"] == pytest.approx(slack)


def test_a_share_lies_between_0_and_1_whatever_the_clipping_range():
    found = numbers(Share(above=3.0), 10, (7.0, 10.0, 7.0), complete=True, clipping=Range(2, 9))
    assert found["value"] == found["mean"] == 0.7
    assert (found["clip_lower"], found["clip_upper"]) == (0.0, 1.0)
    assert found["noise_slack"] == pytest.approx(0.2 * 0.005 / 10)


def test_a_count_is_its_own_number():
    found = numbers(Count(), None, (12.5,))
    assert found["value"] == found["count"] == 12.5
    assert found["noise_std"] == found["count_noise_std"] == pytest.approx(0.02)


def test_what_clipping_may_be_off_by_is_that_of_a_mean_or_of_the_whole_sum():
    margin = Margin(0.3, 0.4, 0.0)
    mean = numbers(Mean(), 10, (50.0,), margin=lambda: margin)
    assert mean["clipping_below"] == pytest.approx(0.3)
    assert mean["clipping_above"] == pytest.approx(0.4)
    whole = numbers(Sum(), 10, (50.0,), margin=lambda: margin)
    assert whole["clipping_below"] == pytest.approx(3.0)
    assert whole["clipping_above"] == pytest.approx(4.0)
    assert "clipping_below" not in numbers(Share(above=1.0), 10, (5.0,), margin=lambda: margin)


def test_totals_of_values_that_are_spread_evenly():
    assert Histogram(bins=4).leaf(Setting()).totals(100, 0.0, 4) == (25.0,) * 4
    cumulated = Quantile(0.5, bins=4).leaf(Setting(by_clock=True))
    assert cumulated.totals(100, 0.0, 3) == (25.0, 50.0, 75.0)
    declared = Histogram(bins=(0.0, 30.0, 40.0)).leaf(Setting())
    assert declared.totals(100, 0.0, 4) == (0.0, 75.0, 25.0, 0.0)


def test_the_share_of_counting_is_the_distance_from_the_middle():
    """D/(a + D): with values at the middle counting gets nothing, at an end half of the budget."""
    for mean, share in ((4.0, 0.0), (8.0, 0.5), (0.0, 0.5), (6.0, 1 / 3), (99.0, 0.5)):
        sums = mean * 10, 10.0
        assert Mean().count_share(sums, CLIPPING) == pytest.approx(share)
    assert Mean().count_share((5.0, -1.0), CLIPPING) == 0.5  # lost in noise
    both = Mean().count_share((np.array([40.0, 60.0]), np.array([10.0, 10.0])), CLIPPING)
    assert both.tolist() == pytest.approx([0.0, 1 / 3])
    assert Share(above=3.0).count_share((5.0, 10.0), CLIPPING) == 0.0
    assert Share(above=3.0).count_share((10.0, 10.0), CLIPPING) == 0.5


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("by_clock", [False, True])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("statistic", [Mean(), Sum(), Share(above=3.0), Count()], ids=str)
def test_no_pair_of_values_moves_more_than_is_declared(statistic, missing, by_clock, law):
    """All that one observation can do, by trying: replaced by count, added by the clock.

    However columns are weighed, a declared movement is as large.
    """
    leaf = statistic.leaf(Setting(by_clock=by_clock, missing=missing, law=law))
    values = np.array([*np.linspace(-1.0, 9.0, 21), np.inf, -np.inf, np.nan])
    for steps in (7, 64):
        grid = Grid(0.0, 8.0, *leaf.cut(steps))
        exact = np.reshape(leaf.contribute(values, grid), (len(values), leaf.width))
        others = np.zeros((1, leaf.width), np.int64) if by_clock else exact
        moved = np.abs(exact[:, None, :] - others[None, :, :]).reshape(-1, leaf.width)
        declared = np.array(leaf.moves(steps))
        for weights in ((1, 0), (0, 1), (1, 1), (1, 2), (2, 1), (1, 5), (5, 1)):
            weighed = np.array(weights[: leaf.width])
            assert (moved @ weighed).max() <= (declared @ weighed).max()
        assert (moved.sum(axis=1)).max() >= 0.7 * declared.sum(axis=1).max()


def test_the_noise_of_a_quantile_is_that_of_its_count_over_the_density():
    """Counts that rise evenly: a count of one more is a hundredth of the range."""
    totals = Totals(100, (25.0, 50.0, 75.0), lambda i, j: float(i == j), CLIPPING)
    found = {name: make() for name, make in Quantile(0.5, 0.6, bins=4).numbers(totals).items()}
    assert np.asarray(found["value"]).tolist() == pytest.approx([4.0, 4.8])
    assert np.asarray(found["noise_std"]).tolist() == pytest.approx([0.08, 0.08])
