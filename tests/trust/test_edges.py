"""Plans at the edge of what floats can do are refused when they are made, or run (FINDINGS A7)."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import (
    ExponentialQuantile,
    FixedThreshold,
    ParameterError,
    Plan,
    Secret,
    StateError,
    TailHistogram,
)

DELTA = 2.0**-20


def runs_or_is_refused_at_once(make, values):
    """Nothing may raise after the plan was accepted."""
    try:
        plan = make()
    except ParameterError:
        return
    if plan.keys:
        streams = plan.open_many(secret=Secret.for_tests(7))
        streams.update_many(values, key=plan.keys[0])
        return
    stream = plan.open(secret=Secret.for_tests(7))
    stream.update_many(values[:-3])
    for value in values[-3:]:
        stream.update(value)


def test_a_shared_range_that_is_learned_can_be_used():
    keys = (("a",), ("b",))
    runs_or_is_refused_at_once(
        lambda: Plan(
            epsilon=50.0,
            upper=2.0**-915,
            length=2_000,
            lag=500,
            keys=keys,
            shared_threshold=True,
        ),
        np.zeros(600),
    )


def test_an_accepted_plan_with_a_huge_bound_runs():
    runs_or_is_refused_at_once(
        lambda: Plan(epsilon=1.0, delta=DELTA, upper=1e300, length=20_000, lag=20),
        np.full(10_000, 1e300),
    )


@pytest.mark.parametrize("upper", [1e300, 2.0**-915])
def test_the_papers_plan_is_refused_when_it_is_made(upper):
    runs_or_is_refused_at_once(
        lambda: Plan.paper(epsilon=1.0, delta=DELTA, upper=upper, length=20_000, lag=20),
        np.full(100, upper),
    )


#: From far too small over the least, the greatest, and everything between, to far too large.
UPPERS = [2.0**power for power in (-1000, -915, -234, -201, -200, 0, 100, 199, 200, 201, 500, 1000)]
PLANS = {
    "default": lambda **more: Plan(delta=DELTA, lag=20, **more),
    "pure, no end known": lambda **more: Plan(lag=50, **{**more, "length": None}),
    "two sides": lambda **more: Plan(
        delta=DELTA, lag=50, threshold=TailHistogram(two_sided=True), **more
    ),
    "exponential": lambda **more: Plan(lag=50, threshold=ExponentialQuantile(), **more),
    "baseline": lambda **more: Plan.baseline(**more),
    "paper": lambda **more: Plan.paper(delta=DELTA, lag=100, **more),
    "keys that share a range": lambda **more: Plan(
        lag=300, keys=("a", "b"), shared_threshold=True, **{**more, "epsilon": 50.0}
    ),
}


@pytest.mark.parametrize("upper", UPPERS)
@pytest.mark.parametrize("below", [0.0, 1.0])
@pytest.mark.parametrize("name", PLANS)
def test_every_plan_that_is_accepted_runs_and_releases_numbers(name, below, upper):
    """Values at either end make the learned range as narrow, and as wide, as it can be."""
    words = {"epsilon": 1.0, "lower": -below * upper, "upper": upper, "length": 3_000}
    if not (upper <= 2.0**200 and upper * (1 + below) >= 2.0**-200):
        with pytest.raises(ParameterError, match=r"another unit|floats can divide"):
            PLANS[name](**words)
        return
    plan = PLANS[name](**words)
    for values in (np.full(1_500, -below * upper), np.full(1_500, upper)):
        streams = plan.open_many(secret=Secret.for_tests(7))
        found = streams.update_many(values, key=streams.keys[0])
        assert len(found)
        for column in ("sum", "sum_noise_std", "clip_lower", "clip_upper"):
            assert np.isfinite(getattr(found, column)).all(), column
        # There is no mean yet where the count is lost in noise.
        lost = (found.count != found.t) & (found.count <= 2 * found.count_noise_std)
        assert np.array_equal(np.isfinite(found.mean), ~lost)
        assert lost.mean() < 0.1
        assert (found.sum_noise_std > 0).all()
        assert (found.clip_upper > found.clip_lower).all()


def test_a_declared_threshold_is_checked_like_a_bound():
    with pytest.raises(ParameterError, match="another unit"):
        Plan(epsilon=1.0, upper=1.0, length=100, threshold=FixedThreshold(upper=2.0**-210))


# --- By the clock ---------------------------------------------------------------------------------

BY_CLOCK = {
    "epsilon": 1.0,
    "upper": 10.0,
    "every": "1h",
    "start": "2026-01-01T00:00Z",
    "length": "48h",
}
NOON = "2026-01-01T12:00Z"


def test_a_tick_is_never_taken_for_an_observation():
    plan = Plan(**BY_CLOCK)
    for streams in (plan.open_many(), Plan(**BY_CLOCK, keys=["a"]).open_many()):
        with pytest.raises(ParameterError, match=r"^every: expected a number of observations"):
            streams.absorb(np.ones(3), np.zeros(3, np.int64))


def test_by_the_clock_no_secret_serves_two_streams():
    """What a secret was used for is not compared there, so in memory only a fresh one is taken."""
    plan, secret = Plan(**BY_CLOCK), Secret.generate()
    for open_with in (plan.open, plan.open_many):
        with pytest.raises(ParameterError, match=r"^secret: expected none by the clock.*folder"):
            open_with(secret=secret)
    fresh = plan.open()
    fresh.update(1.0, at=NOON)
    assert len(fresh.advance(until=NOON)) == 12
    with pytest.raises(StateError, match=r"^snapshot: by the clock a stream is kept in a folder"):
        fresh.snapshot()
    assert len(fresh.advance(until="2026-01-01T13:00Z")) == 1
