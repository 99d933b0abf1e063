"""The simulation of many runs: its parts against brute force, its noise against the plan."""

from __future__ import annotations

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import given

from helpers.laws import laplace_tail
from helpers.streams import baseline, paper, recorded
from rillet import Independent, ParameterError, Plan, Sum
from rillet.reproduce.simulate import ClippedSums, improvement, simulate
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.testing import Budget, StatisticalFailure, check
from rillet.testing.statistics import goodness_of_fit

FLOATS = some.floats(-50, 200)


@given(
    values=some.lists(FLOATS, min_size=1, max_size=30),
    lower=some.floats(-10, 10),
    widths=some.lists(some.floats(0.01, 100), min_size=1, max_size=5),
)
def test_clipped_sums_are_sums_of_clipped_values(values, lower, widths):
    upper = lower + np.array(widths)
    sums = ClippedSums(values, lower)(upper)
    expected = [np.clip(values, lower, one).sum() for one in upper]
    assert sums == pytest.approx(expected, rel=1e-12, abs=1e-9)


def normalised(plan: Plan, t: int, runs: int) -> np.ndarray:
    result = simulate(plan, np.ones(plan.length), runs, t=t)
    return result.noise / (plan.layout.unit_std_at(t) * (result.thresholds - plan.lower))


def sum_law_p_value(values: np.ndarray, draws: int) -> float:
    """Exact fit of unit-variance values to a sum of so many Laplace draws of one scale."""
    edges = np.linspace(0.2, 3.0, 15)
    std = (2.0 * draws) ** 0.5
    tails = [1.0, *(laplace_tail(draws, edge * std) for edge in edges), 0.0]
    cells = np.searchsorted(edges, np.abs(values))
    return goodness_of_fit(np.bincount(cells, minlength=16), -np.diff(tails)).p_value


@pytest.mark.parametrize(
    ("plan", "t", "draws"),
    [
        (baseline(1000), 1000, 6),  # 1111101000 in binary
        (baseline(1000), 512, 1),
        (baseline(1000, every=10), 630, 6),  # leaf 63
        (baseline(100, strategy=Independent()), 7, 7),
        (baseline(1000, strategy=SignedDigitTree(arity=5)), 7, 3),  # 7 = 1·5 + 2
        (paper(500, 400, upper=1e4), 400, 1),
    ],
)
def test_noise_is_that_of_the_plan(plan, t, draws):
    values = normalised(plan, t, 20_000)
    check(f"simulated noise of {plan.strategy.name} at {t}", sum_law_p_value(values, draws))
    for factor in (0.9, 1.1):  # a scale that is off by a tenth would be seen
        with pytest.raises(StatisticalFailure):
            check("power", sum_law_p_value(values * factor, draws), budget=Budget())


def test_runs_do_not_share_draws():
    noise = simulate(baseline(1000), np.ones(1000), 5000).noise
    assert len(set(noise.tolist())) > 4990
    assert not np.array_equal(noise, simulate(baseline(1000), np.ones(1000), 5000, seed=1).noise)


def test_threshold_and_clipping_of_every_run():
    values = np.random.default_rng(3).exponential(10.0, 3000)
    plan = paper(3000, 2500, upper=1000.0, quantile=0.05, statistic=Sum())
    result = simulate(plan, values, 200)
    assert len(set(result.thresholds.tolist())) > 150
    for threshold, clipping in zip(result.thresholds, result.clipping, strict=True):
        assert clipping == pytest.approx(np.minimum(values, threshold).sum() - values.sum())
    assert np.array_equal(result.errors, result.clipping + result.noise)
    assert result.mean_absolute_error == np.mean(np.abs(result.errors))
    assert result.root_mean_square_error == pytest.approx(np.mean(result.errors**2) ** 0.5)
    assert improvement(result, result) == 1.0


def test_nothing_is_clipped_where_no_value_is_outside():
    result = simulate(baseline(100, lower=-5.0), np.linspace(-5.0, 100.0, 100), 3)
    assert result.clipping.tolist() == [0.0] * 3
    raised = simulate(baseline(100, lower=2.0), np.full(100, 1.5), 3)
    assert raised.clipping.tolist() == [50.0] * 3


@pytest.mark.parametrize(
    ("name", "plan", "count", "more"),
    [
        ("t", baseline(100), 100, {"t": 0}),
        ("t", baseline(100), 100, {"t": 101}),
        ("t", paper(100, 50), 100, {"t": 49}),
        ("t", baseline(100, every=7), 100, {"t": 8}),
        ("values", baseline(100), 99, {}),
        ("runs", baseline(100), 100, {"runs": 0}),
    ],
)
def test_bad_requests_name_the_parameter_and_draw_nothing(name, plan, count, more):
    with recorded() as recording, pytest.raises(ParameterError) as error:
        simulate(plan, np.ones(count), **{"runs": 5, **more})
    assert error.value.parameter == name
    assert not recording.draws
    assert not recording.continuous


def test_values_must_be_finite():
    with pytest.raises(ParameterError, match="values"):
        simulate(baseline(3), [1.0, np.nan, 2.0], 5)
