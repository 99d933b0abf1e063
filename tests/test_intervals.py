"""Intervals of the noise by the clock: a nominal 95 % covers 95 %, early, in the middle and late.

Of all so far, of windows while they fill and where the range changes inside them, of half-lives.

What a record says about its noise (deviations of sum and count, and their covariance) is compared
with the error of many runs on the same values, clipped as the runs did it; the last section of
docs/proofs/clock.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rillet.step
from helpers.streams import made
from rillet import Plan, Secret
from rillet.audit.replay import quick_judge
from rillet.layout import Layout
from rillet.release import noise_deviations
from rillet.statistic import STATISTICS
from rillet.step import advance, start
from rillet.strategy import BufferedToeplitz, HonakerTree, SignedDigitTree
from rillet.testing.statistics import Budget, StatisticalFailure, binomial_p_value, check
from rillet.threshold import FixedThreshold, TailHistogram

TICKS, RUNS = 20, 500
#: What a nominal 95 % may cover, and the chance that some check of it here fails for nothing: a
#: proportion of 500 runs is off by 1 %, and the bounds themselves are no reason to fail.
LEAST, MOST = 0.93, 0.97
ALARMS = Budget(2e-4)
#: Early, in the middle, late; with a learned range there is nothing before the warm-up's end, and
#: of what forgets nothing before the leaf after it.
SHOWN = (3, 4, 9, 20)


def trips(rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Minutes of commutes, and the ticks that they fall into; how many is random too."""
    random = np.random.default_rng(4)
    ticks = np.repeat(np.arange(1, TICKS + 1), random.poisson(rate, TICKS))
    return np.minimum(2 + random.gamma(2.6, 14.0, len(ticks)), 1440.0), ticks


def plan_of(strategy: Any, threshold: Any, statistic: str = "mean", **memory: str) -> Plan:
    learns = {"lag": 3} if threshold.learns else {}
    if learns and not memory:
        learns["threshold_share"] = 0.5
    return Plan(
        epsilon=1.0,
        delta=0.0 if strategy.law == "laplace" else 2.0**-20,
        upper=150.0,
        every="1h",
        start="2026-01-01T00:00Z",
        length=f"{TICKS}h",
        statistic=STATISTICS.get(statistic, "statistic")(**memory),
        strategy=strategy,
        threshold=threshold,
        **learns,
    )


def looked_back_on(layout: Layout, ticks: np.ndarray, t: int) -> np.ndarray:
    """What each observation counts at ``t``."""
    memory, past = layout.memory, (ticks <= t).astype(float)
    if memory.forgets:
        past[ticks <= layout.lag] = 0.0
    if memory.window is not None:
        past[ticks <= t - memory.window] = 0.0
    return past * layout.discount ** np.maximum(t - ticks, 0)


def assert_covered(found: dict[str, np.ndarray], runs: int) -> None:
    """No number, at no time, covers significantly less or more than it may."""
    for name, right in found.items():
        for t, times in zip(SHOWN[-len(right) :], right.tolist(), strict=True):
            what = f"{name} at {t}: {times} of {runs}"
            check(
                what, float(binomial_p_value(times, runs, LEAST, MOST)), alpha=1e-6, budget=ALARMS
            )


def covered(
    layout: Layout, rate: float, runs: int, deviations: float = 1.0
) -> dict[str, np.ndarray]:
    """For each number of a record, and each time shown, how many of the runs were right.

    ``deviations`` is what the deviation of the noise is multiplied by: 1 unless it is to be wrong.
    """
    z = deviations * noise_deviations(0.95, layout.noise_law)
    values, ticks = trips(rate)
    shown = [t for t in SHOWN if t >= layout.first_release]
    counts = np.array([looked_back_on(layout, ticks, t) for t in shown])
    number = counts.sum(axis=1)
    right: dict[str, list[np.ndarray]] = {}
    for run in range(runs):
        with noted() as found:
            state = start(layout, Secret.for_tests(run))
            advance(layout, (), state, values, ticks, TICKS)
        # Of the warm-up there is one release, and none of it counts where the statistic forgets.
        ends = np.array([found[max(t, layout.first_release)][2] for t in range(1, TICKS + 1)])
        clipped = np.clip(values, *ends[ticks - 1].T)
        total = counts @ clipped
        sums, covariance = (np.array([found[t][part] for t in shown]) for part in (0, 1))
        errors = {"count": (sums[:, -1] - number, covariance[:, -1, -1])}
        if layout.leaf.count_reading is not None:
            errors["sum"] = sums[:, 0] - total, covariance[:, 0, 0]
            # A mean M is in the interval if |Ŝ − M·N̂| is within z deviations of its noise.
            mean = total / np.maximum(number, 1)
            of_mean = np.stack([np.ones_like(mean), -mean])
            variance = np.einsum("it,tij,jt->t", of_mean, covariance, of_mean)
            errors["mean"] = sums[:, 0] - mean * sums[:, 1], variance
        for name, (error, variance) in errors.items():
            right.setdefault(name, []).append(error**2 <= z**2 * variance)
    return {name: np.sum(each, axis=0) for name, each in right.items()}


@contextmanager
def noted() -> Iterator[dict[int, tuple[Any, Any, tuple[float, float]]]]:
    """Readings, the covariances of their noise at the times shown, and the range at all times."""
    found = {}
    releases = rillet.step._releases

    def note(layout: Any, part: Any, at: Any) -> Any:
        for row, time in enumerate(part.t.tolist()):
            every: Any = None
            if time in SHOWN:
                of = part.covariance(slice(row, row + 1))
                readings = range(len(part.sums))
                every = [[float(of(one, other)[0]) for other in readings] for one in readings]
            range_now = part.anchor.range.lower, part.anchor.range.upper
            found[time] = [float(total[row]) for total in part.sums], every, range_now
        return releases(layout, part, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rillet.step, "_releases", note)
        yield found


GAUSSIAN, PURE = BufferedToeplitz(), SignedDigitTree(arity=3)


@pytest.mark.parametrize(
    ("statistic", "strategy"),
    [("mean", GAUSSIAN), ("mean", PURE), ("count", GAUSSIAN)],
    ids=["mean-gaussian", "mean-laplace", "count-gaussian"],
)
def test_intervals_cover_what_they_say(statistic, strategy):
    layout = plan_of(strategy, FixedThreshold(), statistic).layout
    assert_covered(covered(layout, 25.0, RUNS), RUNS)


def test_intervals_of_a_learned_range_cover_what_they_say(monkeypatch):
    """Ranges, splits and units change from segment to segment, from what was released."""
    monkeypatch.setattr(TailHistogram, "judge", without_correction(quick_judge))
    layout = plan_of(GAUSSIAN, TailHistogram()).layout
    assert len(layout.segments) >= 3
    assert_covered(covered(layout, 25.0, RUNS), RUNS)


FORGETTING = {"window": "8h"}, {"half_life": "4h"}


@pytest.mark.parametrize("memory", FORGETTING, ids=lambda memory: next(iter(memory)))
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_intervals_of_what_forgets_cover_what_they_say(memory, law, monkeypatch):
    """While a window fills, and where the range changes inside it."""
    monkeypatch.setattr(TailHistogram, "judge", without_correction(quick_judge))
    strategy = forgetting(memory, law)
    layout = plan_of(strategy, TailHistogram(), **memory).layout
    ends = [segment.last for segment in layout.segments]
    assert any(9 - 8 < end < 9 for end in ends)
    assert any(20 - 8 < end < 20 for end in ends)
    assert_covered(covered(layout, 25.0, RUNS), RUNS)


def forgetting(memory: dict[str, str], law: str) -> Any:
    """The strategy that a plan would take for this law, at any length."""
    if "half_life" in memory:
        return made("decayed-toeplitz" if law == "gaussian" else "decayed-independent", half_life=4)
    if law == "laplace":
        return made("restarted-tree", window=8)
    return made("window-toeplitz", window=8)


@pytest.mark.parametrize("strategy", [PURE, pytest.param(GAUSSIAN, marks=pytest.mark.long)])
def test_means_of_few_observations_are_covered_too(strategy):
    """With a count of the size of its noise, where the mean itself is any number."""
    layout = plan_of(strategy, FixedThreshold()).layout
    assert_covered(covered(layout, 0.5, RUNS), RUNS)


def test_a_deviation_that_is_too_small_is_seen():
    """By a fifth: intervals of Laplace noise are wide enough for any sum, and would hide it."""
    layout = plan_of(GAUSSIAN, FixedThreshold(), "count").layout
    runs = 3 * RUNS
    found = covered(layout, 25.0, runs, deviations=0.8)
    with pytest.raises(StatisticalFailure):
        assert_covered(found, runs)


def without_correction(judge: Any) -> Any:
    """The same range, without an estimate of what clipping removes: it has errors of its own."""

    def of_range(*arguments: Any) -> Any:
        return replace(judge(*arguments), removed=0.0, removed_each=0.0)

    return of_range


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy", [GAUSSIAN, PURE, HonakerTree("gaussian")], ids=lambda s: s.name
)
@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("statistic", ["mean", "sum"])
def test_intervals_of_ranges_that_were_really_learned(statistic, two_sided, strategy, monkeypatch):
    threshold = TailHistogram(two_sided=two_sided)
    monkeypatch.setattr(TailHistogram, "judge", without_correction(TailHistogram.judge))
    assert_covered(covered(plan_of(strategy, threshold, statistic).layout, 400.0, RUNS), RUNS)
