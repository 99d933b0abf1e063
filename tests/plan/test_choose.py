"""What a plan chooses by itself: streams without a known end."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import FixedThreshold, Plan, Secret, Sum, TailHistogram
from rillet.state.encoding import encode_state
from rillet.step import start, step, without_key
from rillet.testing.statistics import check, normal_scale_p_value

#: By how much the noise may be larger than that of a plan which knows that the stream ends there.
MOST = {10**4: 1.7, 10**6: 1.5, 10**7: 1.35}


def running_sum(length: int | None, **more: object) -> Plan:
    options = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 1.0, "threshold": FixedThreshold()}
    return Plan(**{**options, "length": length, "statistic": Sum(), **more})


@pytest.mark.parametrize("t", MOST)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_stated_error_follows_the_stream_where_no_end_is_known(t, epsilon):
    without, known = running_sum(None, epsilon=epsilon), running_sum(t, epsilon=epsilon)
    assert without.layout.main.strategy.name == "buffered-toeplitz"
    assert 1 < without.expected_error(t) / known.expected_error(t) < MOST[t]


@pytest.mark.parametrize("t", [10**6, 10**7])
def test_with_a_learned_range_it_follows_as_well(t):
    learned = Plan(epsilon=1.0, delta=2.0**-20, upper=1.0, length=None)
    known = Plan(epsilon=1.0, delta=2.0**-20, upper=1.0, length=t)
    assert learned.expected_error(t) / known.expected_error(t) < MOST[t]


def errors(plan: Plan, seeds: int, *, at: tuple[int, ...]) -> np.ndarray:
    """What is released of a stream of zeros at some times, for each seed."""
    block = 2**19
    found = np.empty((seeds, len(at)))
    for seed in range(seeds):
        stream, done = plan.open(secret=Secret.for_tests(seed)), 0
        for index, t in enumerate(at):
            while done < t:
                last = stream.update_many(np.zeros(min(block, t - done)))[-1]
                done = last.t
            found[seed, index] = last.value
    return found


def measured_ratio(t: int, without: np.ndarray, known: np.ndarray) -> float:
    """Of the noise with no known end to that with one, both as stated."""
    for name, plan, noise in (
        ("no end known", running_sum(None), without),
        ("known length", running_sum(t), known),
    ):
        check(f"{name}, noise at {t}", normal_scale_p_value(noise, plan.expected_error(t)))
    return float(np.sqrt(np.mean(without**2) / np.mean(known**2)))


def test_the_measured_error_follows_the_stream_where_no_end_is_known():
    t, seeds = 10**4, 1000
    without = errors(running_sum(None), seeds, at=(t,))[:, 0]
    known = errors(running_sum(t), seeds, at=(t,))[:, 0]
    # The ratio has a deviation of 0.05, and the seeds are fixed.
    assert measured_ratio(t, without, known) < MOST[t]


@pytest.mark.long
def test_the_measured_error_follows_a_long_stream():
    times = (10**6, 10**7)
    without = errors(running_sum(None), 60, at=times)
    for index, t in enumerate(times):
        known = errors(running_sum(t), 60, at=(t,))[:, 0]
        ratio = measured_ratio(t, without[:, index], known)
        print(f"no end known, at {t:,}: {ratio:.2f} times the noise of a known length")  # noqa: T201
        assert ratio < 1.4 * MOST[t]  # three deviations of 60 runs


@pytest.mark.parametrize("length", ["100000s", "194d", "1550d", None])
def test_by_the_clock_a_long_stream_is_not_drowned_in_roundings(length):
    """Room for many observations in each second leaves a coarse lattice, and fine nodes for it."""
    plan = running_sum(length, every="1s", start="2026-01-01T00:00Z")
    short = running_sum("100000s", every="1s", start="2026-01-01T00:00Z")
    t, rate = 10**5, 3.0
    assert plan.expected_error(t, rate=rate) < 1.4 * short.expected_error(t, rate=rate)


def test_memory_is_flat_where_no_end_is_known():
    """The strategy's state has the same size after a thousand observations as after a million."""
    layout = running_sum(None).layout
    state = start(layout, Secret.for_tests(1).derive("stream", layout.digest, ""))
    sizes, done = [], 0
    for t in (10**3, 10**4, 10**6):
        state, _ = step(layout, (), state, np.full(t - done, 0.7), 7)
        done = t
        exact = without_key(layout, state)
        sizes.append(
            sum(
                part.nbytes
                for group in (exact.encoders, exact.decoders)
                for parts in group
                for part in parts
            )
        )
        assert len(encode_state(exact)) < 2**19  # mostly noise up to the next ratchet step
    assert len(set(sizes)) == 1
    assert sizes[0] < 6000


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_pure_noise_has_the_signed_digit_tree(every):
    plan = running_sum(None, delta=0.0, every=every)
    assert plan.layout.main.strategy.name == "signed-digit-tree"


@pytest.mark.parametrize("length", [1, 36, 200, 500, 2_000, 10**6])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_the_strategy_with_the_least_noise_is_chosen(length, epsilon):
    options = {"epsilon": epsilon, "delta": 2.0**-20, "upper": 1.0, "length": length, "lag": 0}
    chosen = Plan(**options)
    turned_down = [line for line in chosen.describe().splitlines() if "Turned down: " in line]
    assert turned_down
    for line in turned_down:
        assert float(line.split(", ")[1].split()[0]) >= 1
    at = np.arange(length // 2 + 1, length + 1, max(1, length // 200))
    noise = {
        name: np.mean(Plan(**options, strategy={"kind": name}).expected_error(at) * at)
        for name in ("buffered-toeplitz", "signed-digit-tree")
    }
    assert noise[chosen.strategy.name] <= 1.02 * min(noise.values())


@pytest.mark.parametrize(
    ("length", "epsilon", "share"),
    [
        (10_000, 1.0, 0.12),
        (100_000, 1.0, 0.12),
        (1_600_000, 1.0, 0.06),
        (1_600_000, 4.0, 0.06),
        (1_600_000, 1 / 16, 0.12),
        (100_000_000, 1.0, 0.04),
    ],
)
def test_looks_take_the_less_of_the_budget_the_longer_the_stream_is(length, epsilon, share):
    facts = {"epsilon": epsilon, "upper": 100.0, "length": length}
    assert Plan(**facts, delta=2.0**-20).threshold.share == share
    assert Plan(**facts).threshold.share == TailHistogram.share  # pure noise pays more for looks


def test_looks_take_the_same_where_no_end_is_known():
    facts = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 100.0}
    assert Plan(**facts, length=None).threshold.share == TailHistogram.share
    hourly = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "365d"}
    assert Plan(**facts, **hourly).threshold.share == TailHistogram.share
    windows = Plan(**facts, length=100_000, statistic=Sum(window=1000))
    assert windows.threshold.share == TailHistogram.share
