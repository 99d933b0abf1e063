"""A plan in words: what a person must know before anything is spent."""

import numpy as np
import pytest

import rillet
from rillet.plan import Plan
from rillet.statistic import Count, Share

BY_CLOCK = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "every": "1h",
    "start": "2026-01-01T00:00Z",
    "length": "365d",
}


def by_clock(**options):
    return Plan(**{"upper": 11.0, **BY_CLOCK, **options})


def test_by_the_clock_it_speaks_of_ticks_and_times():
    text = by_clock().describe()
    for part in (
        "The first 12 days 4 hours (292 ticks) teach the range",
        "the first release comes after them, at 2026-01-13T04:00:00Z",
        "a release each hour, from 2026-01-13T05:00:00Z to 2027-01-01T00:00:00Z (8,468 ticks)",
        "whether anything came or not",
    ):
        assert part in text
    assert "on, without a known end" in by_clock(length=None).describe()
    declared = by_clock(every="15m", length="7d", threshold=rillet.FixedThreshold()).describe()
    assert "A release every 15 minutes, from 2026-01-01T00:15:00Z" in declared


def test_it_says_what_is_protected_and_what_is_not():
    text = by_clock().describe()
    assert "one observation, its value and that it is there" in text
    assert "Replacing a value counts as two steps" in text
    assert "2μ on the sum" in text
    assert "2ε" in by_clock(delta=0.0).describe()
    assert "2μ" not in by_clock(delta=0.0).describe()
    assert "Not protected: the schedule" in text
    by_count = Plan(epsilon=1.0, upper=11.0, length=1000).describe()
    assert "Not protected" not in by_count


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ["enters the tick that is open", "held until its tick opens", "by the wall clock."]),
        ({"late": "drop", "early": "drop"}, ["whose tick is closed, is left out; an early one is"]),
        ({"grace": "5m"}, ["by the wall clock, 5 minutes after its end"]),
        ({"zone": "Europe/Berlin"}, ["without a zone are of the zone Europe/Berlin"]),
        ({}, ["without a zone are left out"]),
    ],
)
def test_the_rules_for_times_are_those_of_the_plan(options, parts):
    text = by_clock(**options).describe()
    for part in parts:
        assert part in text


@pytest.mark.parametrize("clock", [True, False])
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("skip", "is left out"),
        ("none", "counts as the middle of the range"),
        (2.5, "counts as 2.5"),
    ],
)
def test_it_says_what_becomes_of_a_missing_value(clock, missing, words):
    plan = Plan(epsilon=1.0, upper=11.0, length=1000, missing=missing)
    text = (by_clock(missing=missing) if clock else plan).describe()
    (line,) = [line for line in text.splitlines() if "an empty cell" in line]
    assert words in line


@pytest.mark.parametrize(
    ("given", "statistic", "words"),
    [
        (99, rillet.Mean(), "counts as 11: 99, as declared, is clipped"),
        (-3, rillet.Sum(), "counts as 0: -3, as declared, is clipped"),
        (99, Share(above=60), "counts as 99, as declared."),
    ],
)
def test_what_stands_in_for_a_missing_value_is_clipped(given, statistic, words):
    plan = Plan(epsilon=1.0, upper=11.0, length=100, missing=given, statistic=statistic)
    assert words in plan.describe()


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"length": 20_000}, True),
        ({"length": 20_000, "lag": 0}, False),
        ({"length": 60_000}, False),
        ({"length": None}, False),
    ],
)
def test_it_warns_of_a_range_that_is_learned_from_noise(options, warned):
    text = Plan(epsilon=0.02, delta=2**-20, upper=1440, every=1000, **options).describe()
    assert ("Warning: a learned range follows noise" in text) == warned


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("statistic", [rillet.Mean(), rillet.Sum(), Count()])
def test_so_many_observations_fit_into_a_tick(statistic, delta):
    plan = by_clock(statistic=statistic, delta=delta, length="7d", every="1d", lag="auto")
    fit = plan.layout.fewest_to_saturate
    assert f"{fit:,} observations fit into a tick" in plan.describe()
    assert fit > 10_000_000
    layout, leaf = plan.layout, plan.layout.leaf
    for segment in layout.segments:
        for share in (0.0, 0.5, 1.0):
            grid = layout.grid(plan.bounds, segment, share)
            largest = abs(leaf.contribute(np.array([0.0, 5.5, 11.0]), grid)).max()
            assert fit * largest <= layout.largest_leaf


def test_noise_is_told_in_the_unit_of_the_statistic():
    declared = {"threshold": rillet.FixedThreshold(), "length": "60d"}
    count = by_clock(statistic=Count(), upper=None, length="60d")
    (line,) = [line for line in count.describe().splitlines() if line.startswith("Noise")]
    reach = 1.959964 * count.expected_error(1440)
    assert line == f"Noise of the last count: ± {reach:.3g} (95 %)."
    mean = by_clock(**declared)
    (line,) = [line for line in mean.describe().splitlines() if line.startswith("Noise")]
    # Over a large number of observations that number is as good as known.
    reach = 1.959964 * mean.expected_error(1440, rate=1e9) * 1e9 * 1440
    assert line == (
        f"Noise of the last mean: ± {reach:.3g} (95 %), divided by how many observations there are."
    )
    by_count = Plan(epsilon=1.0, delta=1e-6, upper=100.0, length=2000, missing="none")
    (line,) = [line for line in by_count.describe().splitlines() if line.startswith("Noise")]
    assert (
        line == f"Noise of the last mean: ± {1.959964 * by_count.expected_error(2000):.3g} (95 %)."
    )


def test_the_strategies_turned_down_are_compared_by_what_they_would_add():
    # A mean's noise at the lower end, from plans of the other strategies themselves.
    declared = {"threshold": rillet.FixedThreshold(), "length": "60d"}
    chosen = by_clock(**declared)
    text = chosen.describe()
    times = np.arange(720, 1441)
    own = chosen.expected_error(times, rate=1e6)
    for strategy in (rillet.BinaryTree(), rillet.HonakerTree(), rillet.BinaryTree(law="gaussian")):
        other = by_clock(**declared, strategy=strategy).expected_error(times, rate=1e6)
        ratio = ((other**2).mean() / (own**2).mean()) ** 0.5
        (line,) = [
            line
            for line in text.splitlines()
            if f"{strategy.name} ({strategy.law} noise)" in line and line.startswith("Turned down")
        ]
        assert float(line.split("), ")[1].split()[0]) == pytest.approx(ratio, rel=0.05)


def test_totals_are_told_with_what_they_gain():
    keys = [(f"r{number % 4}", number) for number in range(400)]
    text = by_clock(keys=keys, levels=["all", "region"], lag=0).describe()
    assert "A key has 1.10 times the noise that it would have without." in text
    assert "Total all (10 % of the budget, 400 keys): at most " in text
    assert "Total region (7 % of the budget, 4 totals of up to 100 keys)" in text
    assert "keys that are added up without levels have 20 times." in text
    assert "Total" not in by_clock(keys=keys, lag=0).describe()
