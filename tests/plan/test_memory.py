"""Windows and half-lives in a plan: what is accepted, chosen, charged and forecast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rillet import Count, FixedThreshold, Mean, ParameterError, Plan, Secret, Sum
from rillet.reproduce.memory import root_of_half_life, root_of_window
from rillet.strategy import BinaryTree, Independent, RestartedTree, WindowToeplitz

DELTA = 2.0**-20


def plan_of(statistic: Any, **more: Any) -> Plan:
    fields: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "upper": 100.0, "length": 3000}
    return Plan(**{**fields, "statistic": statistic, **more})


def by_clock(statistic: Any, **more: Any) -> Plan:
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "365d"}
    return plan_of(statistic, **{**clock, **more})


@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize(
    "statistic",
    [Mean(window=7), Mean(window=90), Sum(window=50), Count(half_life=20), Mean(half_life=30)],
)
def test_the_forecast_is_what_a_release_says(statistic, delta, missing):
    plan = plan_of(statistic, delta=delta, missing=missing, threshold=FixedThreshold())
    values = np.random.default_rng(1).gamma(2.0, 10.0, 3000)
    releases = plan.open(secret=Secret.for_tests(2)).update_many(values)
    t = np.array([2999, 3, 40, 50, 51, 89, 90, 91, 500])
    assert np.allclose(plan.expected_error(t), releases.noise_std[t - 1], rtol=1e-9)


def test_the_noise_does_not_grow_with_the_stream():
    for statistic in (Count(window="7d"), Count(half_life="7d"), Count(window="1d")):
        plan = by_clock(statistic, length=None, upper=None)
        hours = 1000 + 168 * np.array([0, 50, 1000])  # a tree's noise depends on the place in it
        noise = plan.expected_error(hours)
        assert np.allclose(noise, noise[0], rtol=1e-3)


@pytest.mark.parametrize(("leaves", "expected"), [(10, 1.92), (60, 2.65), (168, 3.07)])
def test_the_root_of_a_window_is_what_theory_says(leaves, expected):
    assert abs(root_of_window(leaves) - expected) < 0.006


@pytest.mark.parametrize(("leaves", "expected"), [(10, 1.56), (60, 2.09), (168, 2.41)])
def test_the_root_of_a_half_life_is_what_theory_says(leaves, expected):
    assert abs(root_of_half_life(leaves) - expected) < 0.006


def test_the_strategy_with_the_least_noise_is_chosen():
    """Over a short memory pure noise is less than Gaussian, also where delta allows that."""
    chosen = {
        (window, delta): by_clock(Mean(window=window), delta=delta).strategy.name
        for window in ("1h", "12h", "7d", "28d")
        for delta in (0.0, DELTA)
    }
    assert chosen["12h", DELTA] == chosen["12h", 0.0] == "independent"
    assert chosen["7d", 0.0] == "restarted-tree"
    assert chosen["28d", DELTA] == "window-toeplitz"
    hours = np.arange(5000, 5000 + 672, 7)
    for leaves in (12, 168, 672):
        others = WindowToeplitz(leaves), RestartedTree(leaves), Independent(), BinaryTree()
        own, *rest = (
            np.mean(np.square(plan.expected_error(hours)))
            for plan in (
                by_clock(Count(window=f"{leaves}h"), upper=None, strategy=strategy)
                for strategy in ("auto", *others)
            )
        )
        assert own <= 1.001 * min(rest)


def test_segments_repeat_for_ever_and_each_observation_is_charged_once():
    layout = by_clock(Mean(window="1d"), length=None).layout
    assert layout.repeats
    far = 10**6
    segment = layout.segment_at(far)
    assert segment.first <= far <= segment.last
    assert layout.segment_at(segment.last + 1).first == segment.last + 1
    assert segment.last - segment.first == layout.segments[-1].last - layout.segments[-1].first
    looks = list(layout.looks_between(far, far + 1000))
    assert len(looks) >= 1000 // (segment.last - segment.first + 1) - 1
    (last,) = (c for c in layout.charges().totals() if c.last is None)
    assert last.cost.within(layout.guarantee)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mean(window=5, half_life=5), "half_life: expected none beside a window"),
        (lambda: plan_of(Mean(window="7d")), "statistic.window: expected a number of observations"),
        (
            lambda: plan_of(Mean(window=10), every=4),
            "statistic.window: expected a multiple of every",
        ),
        (lambda: by_clock(Mean(window=7)), "statistic.window: expected a duration"),
        (lambda: by_clock(Mean(window="90m")), "statistic.window: expected a multiple of every"),
        (lambda: plan_of(Mean(window=10**6), length=None), "at most 65,536 release intervals"),
        (lambda: plan_of(Mean(window=5), backfill=True), "backfill: expected false"),
        (
            lambda: plan_of(Mean(half_life=5), strategy=BinaryTree()),
            "for the statistic's half-life",
        ),
        (lambda: plan_of(Mean(window=5), threshold_share=0.5), "threshold_share: expected 1"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ParameterError, match=words):
        make()


def test_words():
    described = by_clock(Mean(window="7d")).describe()
    assert "A release looks back on the last 7 days" in described
    assert "after 1 day a value counts half" in by_clock(Sum(half_life="1d")).describe()
    by_count = plan_of(Mean(window=500), lag=100).describe()
    assert "the last 500 observations" in by_count
    assert "nothing else is released of them" in by_count


def test_json_round_trip():
    for plan in (plan_of(Mean(window=500)), by_clock(Sum(half_life="1d"), length=None)):
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert again.layout.digest == plan.layout.digest
