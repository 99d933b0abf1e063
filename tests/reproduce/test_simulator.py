"""The simulator: its parts against brute force, its noise against the plan, runs against streams.

Where ranges are learned again and again a run takes those of the stream with the same key, bit for
bit; only the running sum's noise is drawn afresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import given
from scipy.stats import norm

from helpers.laws import laplace_tail
from helpers.streams import baseline, paper, recorded
from rillet import Independent, MissingExtra, ParameterError, Plan, Secret, Sum, datasets
from rillet.noise import FloatArray
from rillet.reproduce.simulator import (
    Paths,
    Runs,
    clipping,
    draw_noise,
    draw_paths,
    expected_errors,
    improvement,
    node_matrix,
    noise_std,
    simulate,
    simulation_secret,
)
from rillet.strategy import BinaryTree, BufferedToeplitz, HonakerTree, SignedDigitTree
from rillet.testing import Budget, StatisticalFailure, check
from rillet.testing.statistics import goodness_of_fit

DELTA = 2.0**-20
FLOATS = some.floats(-50, 200)


def exponential(n: int, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).exponential(20.0, n)


def default_plan(length: int, upper: float, **more: Any) -> Plan:
    """Nothing chosen by hand; all values are there."""
    fields: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "statistic": Sum(), **more}
    return Plan(length=length, upper=upper, missing="none", **fields)


@cache
def baskets() -> FloatArray:
    try:
        return datasets.baskets()[:150_000]
    except MissingExtra as missing:
        pytest.skip(str(missing))


# --- Clipping ------------------------------------------------------------------------------------


@given(
    values=some.lists(FLOATS, min_size=1, max_size=30),
    lower=some.floats(-10, 10),
    other=some.floats(-10, 10),
    widths=some.lists(some.floats(0.01, 100), min_size=1, max_size=5),
    steps=some.sets(some.integers(1, 30), min_size=1),
    cut=some.integers(1, 30),
)
def test_clipping_is_that_of_clipped_values(values, lower, other, widths, steps, cut):
    n = len(values)
    at = np.array(sorted({min(step, n) for step in steps}))
    # A second segment with other ranges: those of the runs in reverse order, from another end.
    ends = np.unique([min(cut, n), n])
    both = np.column_stack((widths, widths[::-1]))[:, : len(ends)]
    lowers = np.broadcast_to(np.array([lower, other])[: len(ends)], both.shape)
    path = Paths(ends, lowers, lowers + both, 0 * both, 0 * both)
    found = clipping(path, np.array(values), at)
    segment = np.searchsorted(ends, np.arange(1, n + 1))
    for run, ranges in enumerate(path.uppers):
        clipped = np.clip(values, lowers[run][segment], ranges[segment])
        by_hand = np.cumsum(clipped - np.array(values))[at - 1]
        assert found[run] == pytest.approx(by_hand, abs=1e-9)


def test_clipping_and_what_is_added_back_by_hand():
    values = np.array([1.0, 9.0, 5.0, 7.0, 3.0, 8.0])
    steps = np.array([2, 4, 6])
    row = {"added": [[0.0, 0.5]], "added_each": [[0.0, 0.25]]}
    ends, uppers = np.array([3, 6]), np.array([[6.0, 4.0]])
    lowers = np.zeros((1, 2))
    path = Paths(ends, lowers, uppers, **{name: np.array(value) for name, value in row.items()})
    # Taken: 3 from the 9; then 3 from the 7; then 4 from the 8.
    assert clipping(path, values, steps).tolist() == [[-3.0, -6.0, -10.0]]
    assert path.added_at(steps).tolist() == [[0.0, 0.75, 1.25]]
    last = Paths(ends, lowers, uppers, path.added, path.added_each, added_last=np.array([9.0]))
    assert last.added_at(steps).tolist() == [[0.0, 0.75, 9.0]]


def test_nothing_is_clipped_where_no_value_is_outside():
    result = simulate(baseline(100, lower=-5.0), np.linspace(-5.0, 100.0, 100), 3)
    assert result.clipping.tolist() == [0.0] * 3
    raised = simulate(baseline(100, lower=2.0), np.full(100, 1.5), 3)
    assert raised.clipping.tolist() == [50.0] * 3


def test_threshold_and_clipping_of_every_run():
    values = np.random.default_rng(3).exponential(10.0, 3000)
    plan = paper(3000, 2500, upper=1000.0, quantile=0.05, statistic=Sum())
    result = simulate(plan, values, 200)
    assert len(set(result.thresholds.tolist())) > 150
    for threshold, clipped in zip(result.thresholds, result.clipping, strict=True):
        assert clipped == pytest.approx(np.minimum(values, threshold).sum() - values.sum())
    assert not result.added_back.any()
    assert np.array_equal(result.errors, result.clipping + result.noise)
    assert result.mean_absolute_error == np.mean(np.abs(result.errors))
    assert improvement(result, result) == 1.0


# --- Noise ---------------------------------------------------------------------------------------


def normalised(plan: Plan, t: int, runs: int) -> FloatArray:
    result = simulate(plan, np.ones(plan.length), runs, t=t)
    width = result.thresholds - plan.lower
    assert result.noise_std == pytest.approx(plan.layout.unit_std_at(t) * width)
    return result.noise / result.noise_std


def sum_law_p_value(values: FloatArray, draws: int) -> float:
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


@pytest.mark.parametrize(
    "strategy",
    [
        BinaryTree(),
        BinaryTree(law="gaussian"),
        HonakerTree(),
        Independent(),
        SignedDigitTree(),
        BufferedToeplitz(),
    ],
)
def test_drawn_noise_has_the_stated_size(strategy):
    delta = DELTA if strategy.law == "gaussian" else 0.0
    layout = baseline(5000, delta=delta, strategy=strategy).layout
    drawn = draw_noise(layout, np.ones((20_000, 1)), 5000, simulation_secret(3))
    assert np.std(drawn) == pytest.approx(layout.unit_std_at(5000), rel=0.03)
    assert abs(np.mean(drawn)) < 5 * np.std(drawn) / np.sqrt(20_000)


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_noise_of_changing_ranges_has_the_deviation_it_states(delta):
    plan = default_plan(6000, 1000.0, delta=delta)
    runs = simulate(plan, exponential(6000), 4, seed=2)
    widths = np.repeat(runs.paths.uppers, 600, axis=0)
    assert len(set(runs.paths.uppers[0].tolist())) > 1
    for t in (6000, 2000):
        drawn = draw_noise(plan.layout, widths, t, simulation_secret(5)).reshape(4, 600)
        stated = noise_std(plan.layout, runs.paths.uppers, np.array([t]))[:, 0]
        assert np.std(drawn, axis=1) == pytest.approx(stated, rel=0.15)
    again, other = (simulate(plan, exponential(6000), 3, seed=seed) for seed in (2, 3))
    assert np.array_equal(again.paths.uppers, runs.paths.uppers[:3])
    assert again.errors.tolist() != other.errors.tolist()


def test_nodes_of_the_signed_digit_tree_are_those_of_its_covariance():
    main = default_plan(5000, 100.0, delta=0.0).layout.main
    assert main is not None
    leaves = np.array([1, 7, 100, 2400, 2401, main.leaves])
    matrix = node_matrix(main, leaves)
    low, high = np.minimum.outer(leaves, leaves), np.maximum.outer(leaves, leaves)
    assert np.array_equal(matrix @ matrix.T, main.strategy.covariance(main.leaves, low, high))
    with pytest.raises(ParameterError, match="strategy"):
        node_matrix(default_plan(5000, 100.0).layout.main, leaves)


def test_runs_do_not_share_draws():
    noise = simulate(baseline(1000), np.ones(1000), 5000).noise
    assert len(set(noise.tolist())) > 4990
    assert not np.array_equal(noise, simulate(baseline(1000), np.ones(1000), 5000, seed=1).noise)


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_expected_errors_are_means_over_the_noise(delta):
    """With and without a normal law: against the mean over simulated runs."""
    strategy = BufferedToeplitz() if delta else BinaryTree()
    plan = baseline(1000, delta=delta, strategy=strategy)
    runs = simulate(plan, np.full(1000, 300.0), 20_000)  # the bound is 100
    bias, widths = runs.clipping[:1], np.array([[100.0]])
    found = expected_errors(plan.layout, widths, bias, 20_000, simulation_secret(8))
    assert found == pytest.approx(runs.mean_absolute_error, rel=0.03)


# --- Runs against whole streams ------------------------------------------------------------------


def whole_stream(plan: Plan, values: FloatArray, seed: int, run: int) -> Any:
    stream = plan.open(secret=Secret.for_tests(seed), key=(run,))
    stream.update_many(values)
    return stream


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_paths_are_those_of_whole_streams(delta):
    values = exponential(60_000)
    plan = default_plan(60_000, 3000.0, delta=delta)
    layout = plan.layout
    assert len(layout.segments) > 2
    exact, paths = np.cumsum(values), draw_paths(plan, values, 3, seed=11)
    steps = np.append(np.arange(10_000, 60_000, 500), 60_000)
    bias = clipping(paths, values, steps) + paths.added_at(steps)
    # At the very end the last look corrects once more.
    assert paths.added_last is not None
    for run in range(3):
        releases = plan.open(secret=Secret.for_tests(11), key=(run,)).update_many(values)
        at = np.searchsorted(releases.t, paths.ends)
        assert paths.uppers[run].tolist() == releases.clip_upper[at].tolist()
        assert paths.lowers[run].tolist() == releases.clip_lower[at].tolist()
        stated = noise_std(layout, paths.widths[run : run + 1], releases.t[::997])
        assert stated[0] == pytest.approx(releases.sum_noise_std[::997])
        # What is left of the error after clipping and adding back is noise of the stated size.
        index = np.searchsorted(releases.t, steps)
        noise = releases.sum[index] - exact[steps - 1] - bias[run]
        assert np.all(np.abs(noise / releases.sum_noise_std[index]) < 6)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"delta": 0.0},
        {"every": 1000},
        {"refresh": None},
        {"lower": 3.0, "refresh": 4.0},
        {"lag": 70_000},
        {"epsilon": 0.2},
    ],
    ids=str,
)
def test_a_run_decides_as_the_stream_with_its_key(more):
    values = baskets()
    plan = default_plan(len(values), 3000.0, **more)
    runs = simulate(plan, values, 2, seed=4)
    for run in range(2):
        stream = whole_stream(plan, values, 4, run)
        last, anchor = stream.latest(), stream._state().anchor
        assert last.clip_upper == runs.thresholds[run]
        removed = anchor.removed + anchor.removed_each * (len(values) - anchor.after)
        assert runs.added_back[run] == pytest.approx(removed, rel=1e-12)
        assert runs.noise_std[run] == pytest.approx(last.noise_std, rel=1e-6)
        # What is left is the noise: a few of its deviations at most.
        left = last.sum - runs.exact_sum - runs.clipping[run] - runs.added_back[run]
        assert 0 < abs(left) < 6 * runs.noise_std[run]


@dataclass(frozen=True)
class Comparison:
    """Whole streams beside runs with the same keys: the released error, what was expected."""

    errors: FloatArray
    left: FloatArray
    runs: Runs

    @property
    def expected_std(self) -> float:
        """Standard deviation of the errors: between the runs, and the noise within each."""
        shift = self.runs.clipping + self.runs.added_back
        return float(np.sqrt(np.var(shift) + np.mean(self.runs.noise_std**2)))


def compare(runs: int) -> Comparison:
    values = baskets()
    plan = default_plan(len(values), 3000.0)
    short = simulate(plan, values, runs, seed=4)
    released = [whole_stream(plan, values, 4, run).latest().sum for run in range(runs)]
    errors = np.array(released) - short.exact_sum
    known = short.clipping + short.added_back
    return Comparison(errors, (errors - known) / short.noise_std, short)


def normal_p_value(values: FloatArray) -> float:
    edges = np.linspace(-2.0, 2.0, 9)
    cells = np.diff([0.0, *norm.cdf(edges), 1.0])
    counts = np.bincount(np.searchsorted(edges, values), minlength=10)
    return goodness_of_fit(counts, cells).p_value


def agrees(found: Comparison, allowed: float) -> None:
    """The law of what is left, then the two figures that everything here rests on."""
    check(f"noise left in {len(found.left):,} whole runs", normal_p_value(found.left))
    with pytest.raises(StatisticalFailure):  # a noise four times as large would show
        check("power", normal_p_value(found.left * 4), budget=Budget())
    mean, expected_mean = np.mean(np.abs(found.errors)), np.mean(found.runs.expected_errors)
    assert mean == pytest.approx(expected_mean, rel=allowed)
    # Relative to each run's own noise: one run in many has a range that is far too wide.
    assert np.std(found.left) == pytest.approx(1.0, rel=allowed)


def test_runs_agree_with_whole_streams():
    """With 80 runs chance alone moves a mean |error| by 8 %, so 25 % are allowed."""
    agrees(compare(80), allowed=0.25)


@pytest.mark.long
def test_runs_agree_with_a_thousand_whole_streams_within_5_percent():
    found = compare(1000)
    agrees(found, allowed=0.05)
    assert np.std(found.errors) == pytest.approx(found.expected_std, rel=0.05)


# --- Bad requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "plan", "count", "more"),
    [
        ("t", baseline(100), 100, {"t": 0}),
        ("t", baseline(100), 100, {"t": 101}),
        ("t", paper(100, 50), 100, {"t": 49}),
        ("t", baseline(100, every=7), 100, {"t": 8}),
        ("values", baseline(100), 99, {}),
        ("values", default_plan(5000, 9.0), 4999, {"t": 4000}),
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
