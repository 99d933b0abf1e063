"""What a plan chooses by itself: streams without a known end."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import (
    BufferedToeplitz,
    FixedThreshold,
    Independent,
    Mean,
    Person,
    Plan,
    RestartedTree,
    Secret,
    SignedDigitTree,
    Sum,
    TailHistogram,
)
from rillet.state.encoding import encode_state
from rillet.statistic import Range
from rillet.step import start, step, without_key
from rillet.strategy import Strategy
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


HOURLY = {"every": "1h", "start": "2026-01-01T00:00Z"}
OFTEN = Person(most=30, apart="1h", within="30d")
KEYS = [(name, number) for name, many in (("a", 3), ("b", 8), ("c", 12)) for number in range(many)]
DELTA = 2.0**-20
#: What is counted, remembered, protected and added up, each with every δ.
COMPARED = [
    *({"length": 37, "statistic": Sum(window=window)} for window in (1, 20, 36, 37, 60)),
    *({"length": 120, "statistic": Sum(window=window)} for window in (43, 55, 64, 100)),
    *({"length": None, "statistic": Sum(window=window)} for window in (20, 43, 55, 60, 1000)),
    *({"length": length, "statistic": Mean(half_life=40)} for length in (30, 3000)),
    *({"length": length, "every": every} for length in (40, 900, 36_000) for every in (1, 40)),
    *({"length": 36_000, "every": 1000, "epsilon": epsilon} for epsilon in (0.01, 1.0)),
    *(
        {"length": 1000, "keys": ["a", "b", "c"], "shared_threshold": True, "lag": 2000, **more}
        for more in ({}, {"threshold_share": 0.5})
    ),
    *(
        {**HOURLY, "length": length, "statistic": statistic, **more}
        for length in ("36h", "60d")
        for statistic in (Sum(), Sum(window="3h"), Sum(window="7d"), Sum(half_life="1d"))
        for more in (
            {"unit": OFTEN},
            {"unit": Person(most=5, apart="3h")},
            {"keys": KEYS, "levels": ["all", "r"], "lag": 0},
            {"keys": KEYS, "levels": ["all", "r"], "lag": 0, "unit": OFTEN},
        )
    ),
]


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("options", COMPARED, ids=str)
def test_nothing_that_is_turned_down_has_less_noise(options, delta):
    plan = Plan(**{"epsilon": 1.0, "delta": delta, "upper": 10.0, **options})
    factors = [
        float(line.split("), ")[1].split()[0])
        for line in plan.describe().splitlines()
        if line.startswith("Turned down: ") and " times the noise" in line
    ]
    assert factors or (delta == 0 and plan.memory.half_life is not None)
    assert min(factors, default=1.0) >= 0.98


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (
            {
                **HOURLY,
                "delta": 1e-6,
                "length": "60d",
                "statistic": Sum(window="24h"),
                "unit": OFTEN,
            },
            Independent("gaussian"),
        ),
        ({"length": 500, "statistic": Sum(window=55), "lag": 0}, RestartedTree(window=55)),
        ({"length": 45, "statistic": Sum(window=44), "lag": 0}, RestartedTree(window=44)),
        ({"length": 120, "statistic": Sum(window=100), "lag": 0}, SignedDigitTree()),
        (
            {"length": 36_000, "every": 1000, "epsilon": 0.01, "delta": DELTA, "upper": 50.0},
            BufferedToeplitz(),
        ),
        (
            {"length": 1000, "keys": ["a", "b"], "shared_threshold": True, "lag": 1500},
            SignedDigitTree(),
        ),
    ],
    ids=["persons", "window", "short stream", "shorter window", "learned range", "shared range"],
)
def test_factors_are_those_of_the_plans_of_the_others(options, chosen):
    options = {"epsilon": 1.0, "upper": 10.0, "statistic": Sum(), "missing": "none", **options}
    plan = Plan(**options)
    assert plan.strategy == chosen
    layout = plan.layout
    leaves = layout.main.leaves
    last = min(plan.memory.window or leaves, leaves - leaves // 2)
    at = layout.lag + (leaves - np.arange(last)) * layout.every

    def noise(strategy: Strategy) -> float:
        other = Plan(**{**options, "strategy": strategy}).layout
        return float(np.sqrt(np.mean(other.expected_noise(at, Range(0, 1))["noise_std"] ** 2)))

    for other, factor in plan._choice.turned_down:
        # Learned ranges: with the first observations' sum, and looks of other segments.
        assert noise(other) / noise(chosen) == pytest.approx(
            factor, rel=0.1 if layout.lag else 0.04
        )


@pytest.mark.parametrize("statistic", [Sum(window="3h"), Sum(half_life="4h"), Sum()], ids=str)
def test_with_totals_factors_are_those_of_what_is_released(statistic):
    options = {
        "epsilon": 1.0,
        "delta": DELTA,
        "upper": 150.0,
        "keys": KEYS,
        "levels": ["all", "r"],
        **HOURLY,
        "length": "12h",
        "statistic": statistic,
        "lag": 0,
    }
    plan = Plan(**options)

    def noise(strategy: Strategy) -> float:
        """Once totals are consistent: the mean over levels, times, and streams of the logarithm."""
        other = Plan(**{**options, "strategy": strategy})
        streams = other.open_many(secret=Secret.for_tests(1))
        of_level: list[list[float]] = [[] for _ in range(3)]
        for tick in range(1, 13):
            none = np.empty(0)
            streams.absorb_ticks(none, none.astype(int), none.astype(int), tick)
            for key in other.tree.all_keys if tick > 6 else ():
                of_level[len(key)].append(streams.latest(key).sum_noise_std)
        return float(np.mean([np.mean(np.log(stds)) for stds in of_level]))

    own = noise(plan.strategy)
    for other, factor in plan._choice.turned_down:
        if other.name in (
            "independent",
            "decayed-independent",
            "signed-digit-tree",
            "window-toeplitz",
        ):
            assert np.exp(noise(other) - own) == pytest.approx(factor, rel=0.04)


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
