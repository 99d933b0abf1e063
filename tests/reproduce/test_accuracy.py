"""The default plan's error at step n: the paper's streams, others, and streams that defeat it.

*BT* is the plain binary tree at the bound B with pure ε; *best* is the same strategy with the best
of 200 declared thresholds, chosen with the data in hand, which clips and adds nothing back.
Errors are against the exact sum of the unclipped values, as mean |error|.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from helpers.streams import baseline
from rillet import FixedThreshold, MissingExtra, Plan, Secret, SmoothQuantile, Sum, datasets
from rillet.noise import FloatArray
from rillet.reproduce.accuracy import FixedRanges, best_fixed, evaluate, tree_error
from rillet.reproduce.context import StandIn
from rillet.reproduce.mechanisms import BASELINE, DEFAULT, mechanisms
from rillet.reproduce.simulator import simulate
from rillet.strategy import BinaryTree, BufferedToeplitz, HonakerTree, Independent, SignedDigitTree

DELTA = 2.0**-20
FEW, MANY = 96, 20_000
#: A measured mean may miss its band by so many standard errors.
DEVIATIONS = 3.0
#: Seed of the streams made here; the long tests take a fresh one each time, and print it.
SEED = 61803


def show(text: str) -> None:
    """The figures themselves: pytest -s, or -rP."""
    print(f"\n{text}")  # noqa: T201


def default_plan(length: int, upper: float, **more: Any) -> Plan:
    """Nothing chosen by hand; all values are there."""
    fields: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "statistic": Sum(), **more}
    return Plan(length=length, upper=upper, missing="none", **fields)


@cache
def data(name: str) -> FloatArray:
    try:
        if name == "baskets":
            return datasets.baskets()[:150_000]
        if name == "flights":
            return datasets.flights()
        if name == "household power":
            return datasets.household_power()
    except MissingExtra as missing:
        pytest.skip(str(missing))
    return datasets.trips(25_000_000)


# --- Errors at all steps -------------------------------------------------------------------------


def exponential(n: int) -> FloatArray:
    return np.random.default_rng(1).exponential(20.0, n)


def test_mean_squared_error_agrees_with_whole_streams():
    values = exponential(20_000)
    plan = default_plan(20_000, 3000.0)
    steps = np.unique(np.linspace(0, 20_000, 257)[1:].astype(np.int64))
    found = evaluate(plan, values, steps, np.ones(len(steps)), runs=40, draws=1000)
    exact = np.cumsum(values)
    squares, ends = [], []
    for run in range(40):
        releases = plan.open(secret=Secret.for_tests(2), key=(run,)).update_many(values)
        at = np.searchsorted(releases.t, steps[steps >= plan.lag])
        errors = releases.sum[at] - exact[releases.t[at] - 1]
        squares.append(np.mean(errors**2))
        ends.append(abs(errors[-1]))
    whole = np.sqrt(np.mean(squares))
    # Whole streams scatter: their errors are correlated over time.
    allowed = 5 * np.std(squares) / np.sqrt(40) / (2 * whole)
    assert found.over_all == pytest.approx(whole, abs=allowed)
    assert found.at_end == pytest.approx(np.mean(ends), abs=5 * np.std(ends) / np.sqrt(40))
    assert allowed < 0.5 * whole


def test_error_of_the_tree_at_the_last_step_is_the_closed_form():
    steps, plan = np.array([2500, 5000]), baseline(5000, upper=3000.0)
    found = evaluate(plan, exponential(5000), steps, np.ones(2), 1, 40_000)
    assert found.at_end == pytest.approx(tree_error(3000.0, 5000), abs=5 * found.at_end_error)


def test_the_same_numbers_every_time():
    smooth = SmoothQuantile(quantile=0.05)
    plan = default_plan(20_000, 3000.0, lag=8000, threshold=smooth, strategy=BinaryTree())
    steps, values = np.array([10_000, 20_000]), exponential(20_000)
    first, second = (
        evaluate(plan, values, steps, np.ones(2), runs=20, draws=500) for _ in range(2)
    )
    assert first == second


def test_every_mechanism_keeps_the_same_promise():
    stream = StandIn("made up", "Made up", "value", "units", 3000.0, exponential(120_000))
    named = {item.name: item.plan for item in mechanisms(stream)}
    assert {BASELINE, DEFAULT} <= set(named)
    kinds = {type(plan.strategy) for plan in named.values()}
    assert {Independent, BinaryTree, HonakerTree, SignedDigitTree, BufferedToeplitz} <= kinds
    for plan in named.values():
        assert plan.epsilon == 1.0
        assert plan.delta in (0.0, DELTA)
        assert plan.length == 120_000
        assert plan.layout.worst_cost().epsilon <= 1


# --- What to compare with ------------------------------------------------------------------------


def test_the_tree_s_error_is_exact():
    for length in (64, 1000, 1023):
        runs = simulate(
            Plan.baseline(epsilon=2.0, upper=5.0, length=length), np.zeros(length), MANY
        )
        expected = tree_error(5.0, length, epsilon=2.0)
        assert runs.mean_absolute_error == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_the_best_fixed_threshold_is_the_best_of_whole_plans(delta):
    values = np.random.default_rng(8).exponential(10.0, 4000)
    plan = default_plan(4000, 1000.0, delta=delta)
    best = best_fixed(plan, FixedRanges.of(values, 1000.0), draws=20_000)
    tried = {}
    for factor in (0.5, 1.0, 2.0):
        fixed = FixedThreshold(best.threshold_at_end * factor)
        given = default_plan(4000, 1000.0, delta=delta, threshold=fixed, strategy=plan.strategy)
        errors = []
        for run in range(60):
            stream = given.open(secret=Secret.for_tests(6), key=(run,))
            stream.update_many(values)
            errors.append(abs(stream.latest().sum - values.sum()))
        tried[factor] = np.mean(errors)
    assert min(tried, key=tried.__getitem__) == 1.0
    assert tried[1.0] == pytest.approx(best.at_end, rel=0.35)


def test_the_best_fixed_threshold_over_all_steps():
    values, n = exponential(20_000), 20_000
    steps = np.unique(np.linspace(0, n, 129)[1:].astype(np.int64))
    ranges = FixedRanges.of(values, 3000.0, steps=steps, count=40)
    plan = baseline(n, upper=3000.0)
    best = best_fixed(plan, ranges)
    errors = []
    for upper in ranges.uppers:
        bias = np.cumsum(np.minimum(values, upper) - values)[steps - 1]
        std = upper * np.array([plan.layout.unit_std_at(int(t)) for t in steps])
        errors.append(np.sqrt(np.mean(bias**2 + std**2)))
    assert best.over_all == pytest.approx(min(errors))
    assert best.threshold == ranges.uppers[int(np.argmin(errors))]
    assert 0 < np.argmin(errors) < len(errors) - 1


# --- Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Means over the runs, with their standard errors relative to them."""

    over_best: float
    tree_over: float
    chance: float

    @classmethod
    def of(cls, name: str, values: FloatArray, upper: float, runs: int, **more: Any) -> Measured:
        """``runs`` runs of the default plan; with few, the noise is integrated over."""
        plan = default_plan(len(values), upper, **more)
        best = best_fixed(plan, FixedRanges.of(values, upper), draws=20_000)
        simulated = simulate(plan, values, runs)
        errors = np.abs(simulated.errors) if runs >= MANY else simulated.expected_errors
        mean = float(np.mean(errors))
        found = cls(
            over_best=mean / best.at_end,
            tree_over=tree_error(upper, len(values)) / mean,
            chance=float(np.std(errors)) / mean / runs**0.5,
        )
        show(
            f"{name}, n = {len(values):,}, lag {plan.lag:,}, {runs:,} runs: BT / ours "
            f"{found.tree_over:.2f}, ours / best {found.over_best:.3f} (± {found.chance:.1%}); "
            f"best threshold {best.threshold_at_end:.4g}, ours at the end "
            f"{np.median(simulated.thresholds):.4g}"
        )
        return found

    def holds(self, *, improvement: float = 0.0, of_best: float = np.inf) -> bool:
        slack = DEVIATIONS * self.chance
        return self.tree_over * (1 + slack) >= improvement and self.over_best <= of_best * (
            1 + slack
        )


@dataclass(frozen=True)
class Row:
    """A stream that must be improved on so many times, within so much of the best threshold."""

    data: str
    upper: float
    improvement: float
    largest_lag: int
    of_best: float = 1.15
    more: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "baskets": Row("baskets", 3000.0, 24.0, 5000),
    "trips": Row("trips", 1440.0, 22.5, 10_000),
    "flights": Row("flights", 1440.0, 8.3, 10_000),
    # So few releases have so little noise that what learning costs weighs more beside it.
    "baskets every 1,000": Row("baskets", 3000.0, 38.0, 5000, of_best=1.35, more={"every": 1000}),
    "baskets, pure": Row("baskets", 3000.0, 15.0, 5000, more={"delta": 0.0}),
    "household power": Row("household power", 36.0, 1.0, 10_000, of_best=1.3),
}


def measure_row(name: str, runs: int) -> None:
    row = ROWS[name]
    values = data(row.data)
    plan = default_plan(len(values), row.upper, **row.more)
    assert plan.lag <= row.largest_lag
    assert plan.threshold.learns
    found = Measured.of(name, values, row.upper, runs, **row.more)
    assert found.holds(improvement=row.improvement, of_best=row.of_best), found


@pytest.mark.parametrize("name", ROWS)
def test_rows_with_few_runs(name):
    measure_row(name, FEW if len(data(ROWS[name].data)) < 10**6 else FEW // 2)


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_rows_with_twenty_thousand_runs(name):
    measure_row(name, MANY)


# --- Streams made here ---------------------------------------------------------------------------

LENGTH = 10**6


def mixture(random: np.random.Generator, n: int, times: float) -> FloatArray:
    """Two in a hundred are so many times larger."""
    values = random.exponential(10.0, n)
    values[random.random(n) < 0.02] *= times
    return np.minimum(values, 3000.0)


def weibull(random: np.random.Generator, n: int, shape: float) -> FloatArray:
    return np.minimum(10.0 * random.weibull(shape, n), 3000.0)


def daily(random: np.random.Generator, n: int) -> FloatArray:
    swing = 1 + 0.6 * np.sin(2 * np.pi * np.arange(n) / 1440)
    return np.minimum(random.exponential(10.0, n) * swing, 3000.0)


def doubling(random: np.random.Generator, n: int) -> FloatArray:
    values = random.exponential(10.0, n)
    values[n // 2 :] *= 2
    return np.minimum(values, 3000.0)


Make = Callable[[np.random.Generator, int], FloatArray]
MADE: dict[str, tuple[Make, float]] = {
    "2 % are 4 times larger": (lambda random, n: mixture(random, n, 4.0), 1.3),
    "2 % are 6 times larger": (lambda random, n: mixture(random, n, 6.0), 1.3),
    "2 % are 8 times larger": (lambda random, n: mixture(random, n, 8.0), 1.3),
    "Weibull 0.7": (lambda random, n: weibull(random, n, 0.7), 1.3),
    "Weibull 1": (lambda random, n: weibull(random, n, 1.0), 1.3),
    "Weibull 1.5": (lambda random, n: weibull(random, n, 1.5), 1.3),
    "Weibull 2": (lambda random, n: weibull(random, n, 2.0), 1.3),
    "a daily swing": (daily, 1.3),
    "the level doubles half way": (doubling, 3.0),
}


def measure_made(name: str, runs: int, seed: int) -> None:
    make, of_best = MADE[name]
    values = make(np.random.default_rng(seed), LENGTH)
    found = Measured.of(f"{name} (seed {seed})", values, 3000.0, runs)
    assert found.holds(of_best=of_best), (found, seed)


@pytest.mark.parametrize("name", MADE)
def test_made_streams_with_few_runs(name):
    measure_made(name, FEW // 4, SEED)


@pytest.mark.long
@pytest.mark.parametrize("name", MADE)
def test_made_streams_with_a_fresh_seed(name):
    measure_made(name, 2000, secrets.randbits(32))


# --- Where the light tail fails ------------------------------------------------------------------


def pareto(random: np.random.Generator, n: int) -> FloatArray:
    return np.minimum(random.random(n) ** (-1 / 1.5), 1e4)


HARD: dict[str, tuple[Make, float]] = {
    "0.001 of the values at B": (
        lambda random, n: np.where(random.random(n) < 1e-3, 1e3, 1.0),
        1e3,
    ),
    "Pareto 1.5": (pareto, 1e4),
    "all at B": (lambda _, n: np.full(n, 1e3), 1e3),
    "all 0": (lambda _, n: np.zeros(n), 1e3),
}


def measure_hard(name: str, runs: int, seed: int) -> None:
    make, upper = HARD[name]
    values = make(np.random.default_rng(seed), LENGTH)
    simulated = simulate(default_plan(LENGTH, upper), values, runs)
    ours, tree = simulated.expected_errors, tree_error(upper, LENGTH)
    uppers = np.median(simulated.paths.uppers, axis=0)
    show(
        f"{name} (seed {seed}), n = {LENGTH:,}, {runs:,} runs: ours / BT "
        f"{np.mean(ours) / tree:.3g}, in the worst run {np.max(ours) / tree:.3g}; "
        f"range after the warm-up {uppers[0]:.4g}, at the end {uppers[-1]:.4g} of {upper:g}"
    )
    assert np.mean(ours) <= 2 * tree
    if name == "0.001 of the values at B":  # noticed, and the range raised to where they are
        assert uppers[0] < 0.5 * upper
        assert uppers[-1] > 0.85 * upper


@pytest.mark.parametrize("name", HARD)
def test_at_most_twice_the_tree_s_error_where_the_light_tail_fails(name):
    measure_hard(name, FEW // 8, SEED)


@pytest.mark.long
@pytest.mark.parametrize("name", HARD)
def test_at_most_twice_the_tree_s_error_with_a_fresh_seed(name):
    measure_hard(name, 2000, secrets.randbits(32))


# --- What a release says of clipping -------------------------------------------------------------

SHARES = {
    **{name: make for name, (make, _) in MADE.items() if name != "the level doubles half way"},
    "0.001 of the values at B": HARD["0.001 of the values at B"][0],
    "Pareto 1.5": pareto,
}


def shares(make: Make, upper: float, runs: int) -> Iterator[tuple[float, float]]:
    """Clipped share by the release that ends a segment, and the share in that segment."""
    values = make(np.random.default_rng(SEED), LENGTH)
    plan = default_plan(LENGTH, upper)
    for run in range(runs):
        stream, first = plan.open(secret=Secret.for_tests(9), key=(run,)), 0
        for last in (plan.lag, *(epoch.last for epoch in plan.layout.segments)):
            release = stream.update_many(values[first:last])[-1]
            truth = np.mean(values[first:last] > release.clip_upper)
            # A few values ten orders of magnitude away are believed late: not in the first half.
            if last * 2 >= LENGTH:
                yield release.clipped_share, float(truth)
            first = last


#: A share below this is a few values in the last segments: neither stated nor true to a factor.
TINY = 3e-5


#: Known not to hold, and so must fail: the tail is too heavy to be read off.
UNKNOWN_SHARE = ("Pareto 1.5",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(reason="the share assumes a light tail"))
        if name in UNKNOWN_SHARE
        else name
        for name in SHARES
    ],
)
def test_the_stated_clipped_share_is_within_a_factor_of_the_truth(name):
    found = list(shares(SHARES[name], HARD.get(name, (None, 3000.0))[1], 3))
    stated, truth = np.array(found).T
    factor = (stated + TINY) / (truth + TINY)
    show(
        f"{name}: clipped share stated / true "
        + ", ".join(f"{one:.1e} / {other:.1e}" for one, other in found)
    )
    assert 1 / 5 < np.median(factor) < 5
    assert np.all((factor > 1 / 20) & (factor < 20))
