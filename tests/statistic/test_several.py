"""Several statistics under one promise: what each gets."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from rillet import (
    BufferedToeplitz,
    Count,
    Histogram,
    Mean,
    Plan,
    Quantile,
    Secret,
    Share,
    SignedDigitTree,
    Sum,
)

DELTA = 2.0**-20


def plan(statistic: object, **options: object) -> Plan:
    known = {
        "epsilon": 1.0,
        "delta": DELTA,
        "upper": 50.0,
        "length": 2000,
        "every": 100,
        "lag": 0,
        "missing": "none",
    }
    return Plan(**{**known, **options, "statistic": statistic})


EVERY = (
    Mean(),
    Sum(),
    Count(),
    Share(above=6.0),
    Histogram(bins=(0.0, 5.0)),
    Quantile(0.5, bins=(0.0, 5.0, 20.0, 60.0)),
)


@pytest.mark.parametrize("by_clock", [False, True], ids=["by count", "by clock"])
@pytest.mark.parametrize(
    "parts", [*combinations(EVERY, 2), EVERY], ids=lambda parts: "+".join(p.name for p in parts)
)
def test_any_can_stand_beside_any_other(parts, by_clock):
    """Each number is there, and has intervals that hold it and the truth."""
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "20h"} if by_clock else {}
    stream = plan(list(parts), missing="skip", **clock).open(secret=Secret.for_tests(2))
    values = np.random.default_rng(1).exponential(8.0, 2000).clip(0, 50)
    if by_clock:
        stream.update_many(values, at=1_767_225_600.0 + 36.0 * np.arange(2000))
        last = stream.advance(until="2026-01-01T20:00Z")[-1]
    else:
        last = stream.update_many(values)[-1]
    truth = {
        "mean": values.mean(),
        "sum": values.sum(),
        "count": 2000,
        "above 6": np.mean(values > 6.0),
        "up to 0": 0,
        "0 to 5": np.sum(values <= 5.0),
        "above 5": np.sum(values > 5.0),
        "0.5": np.median(values),
    }
    for row in last:
        low, high = last[row["name"]].interval(0.95)
        assert low < row["value"] < high
        assert abs(row["value"] - truth[row["name"]]) < 5 * row["noise_std"] + 0.1


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_noise_grows_as_the_share_says(share, missing, delta):
    """With Gaussian noise by one over the root of the share, with Laplace noise by one over it."""
    grown = 1 / math.sqrt(share) if delta else 1 / share
    strategy = BufferedToeplitz() if delta else SignedDigitTree()
    values = np.linspace(0.0, 40.0, 2000)
    edges = (10.0, 20.0, 30.0)
    for statistic, name in (
        (Mean, "mean"),
        (lambda **o: Share(above=20.0, **o), "above 20"),
        (lambda **o: Histogram(bins=edges, **o), "10 to 20"),
    ):
        options = {"missing": missing, "delta": delta, "strategy": strategy}
        alone, both = (
            plan(statistic(), **options),
            plan([statistic(share=share), Count()], **options),
        )
        secret = Secret.for_tests(1)
        one = alone.open(secret=secret).update_many(values)[-1][name]
        two = both.open(secret=secret).update_many(values)[-1][name]
        # Whether any value is taken to be missing may differ, and counts a little.
        assert two.noise_std / one.noise_std == pytest.approx(grown, rel=0.05)


def test_each_number_is_its_own():
    values = np.random.default_rng(1).exponential(10.0, 2000)
    statistics = [
        Quantile(0.5, 0.9, bins=np.linspace(0.0, 50.0, 26)),
        Mean(share=0.4),
        Histogram(bins=(5.0, 15.0)),
        Share(above=12.0),
        Sum(),
    ]
    release = plan(statistics, epsilon=50.0).open().update_many(values)[-1]
    assert [row["name"] for row in release] == [
        *("0.5", "0.9", "mean", "up to 5", "5 to 15", "above 15", "above 12", "sum"),
    ]
    clipped = np.minimum(values, 50.0)
    expected = {
        "0.5": np.quantile(values, 0.5),
        "0.9": np.quantile(values, 0.9),
        "mean": clipped.mean(),
        "5 to 15": np.sum((values > 5) & (values <= 15)),
        "above 12": np.mean(values > 12),
        "sum": clipped.sum(),
    }
    for name, truth in expected.items():
        assert release[name].value == pytest.approx(truth, rel=0.02), name
    assert release["mean"].clip_upper == 50.0
    assert math.isnan(release["up to 5"].clip_upper)
    assert math.isnan(release["0.5"].mean)
    assert release["mean"].mean == release["mean"].value


@pytest.mark.parametrize("memory", [{"window": 300}, {"half_life": 200}])
def test_lists_forget_together(memory):
    values = np.repeat([10.0, 30.0], 1000)
    made = plan(
        [Mean(**memory), Share(above=20.0, **memory), Quantile(0.5, bins=10, **memory)],
        epsilon=20.0,
    )
    release = made.open(secret=Secret.for_tests(3)).update_many(values)[-1]
    recent = 1.0 if "window" in memory else 1 - 0.5**5
    assert release["above 20"].value == pytest.approx(recent, abs=0.1)
    assert release["mean"].value == pytest.approx(10 + 20 * recent, abs=2)
    assert 25 <= release["0.5"].value <= 30


def test_a_statistic_of_another_package_joins_a_list():
    from dataclasses import dataclass
    from typing import ClassVar

    from rillet.statistic import Range, Statistic

    @dataclass(frozen=True)
    class Below(Statistic):
        limit: float = 0.0
        name: ClassVar[str] = "below"
        clips: ClassVar[bool] = False

        def contribute(self, raw_values, lattice):
            return np.where(raw_values < self.limit, lattice.steps, 0)

        def spans(self, clipping):
            return (Range(0.0, 1.0),)

        def numbers(self, totals):
            (total,) = totals.sums
            return {"value": lambda: total, "noise_std": totals.std}

    values = np.linspace(0.0, 40.0, 2000)
    release = plan([Mean(share=0.8), Below(limit=10.0)]).open().update_many(values)[-1]
    below = release["below"]
    assert abs(below.value - 500) < 6 * below.noise_std


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_a_unit_may_move_each_of_a_list_by_any_of_its_movements(law):
    """Each has a large and a small movement, in opposite orders; a value makes both large ones."""
    from dataclasses import dataclass, field
    from itertools import combinations
    from typing import ClassVar

    from rillet.gather.grid import Grid
    from rillet.statistic import Setting, Several, Statistic

    @dataclass(frozen=True)
    class Bit(Statistic):
        digit: int = 1
        name: ClassVar[str] = field(default="bit", init=False)
        clips: ClassVar[bool] = False

        @property
        def names(self):
            return (f"bit {self.digit}",)

        def contribute(self, raw_values, lattice):
            return np.where((raw_values.astype(int) & self.digit) > 0, lattice.steps, 0)

        def moves(self, steps):
            sizes = ((steps,), (steps // 4,))
            return sizes if self.digit == 1 else sizes[::-1]

        def numbers(self, totals):
            return {"value": lambda: totals.sums[0], "noise_std": totals.std}

    leaf = Several((Bit(1), Bit(2))).leaf(Setting(law=law))
    rows = leaf.contribute(np.arange(4.0), Grid(0.0, 4.0, 1024, 0))
    power = 1 if law == "laplace" else 2
    moved = max(np.sum(np.abs(a - b) ** power) for a, b in combinations(rows, 2))
    assert moved <= max(np.sum(np.array(move) ** power) for move in leaf.moves(1024))
    assert moved >= 2 * 1000**power  # both at once: the test would notice pairs in order


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_beside_quantiles_a_count_gets_its_share(share):
    options = {"missing": "skip", "strategy": BufferedToeplitz(), "length": 200}
    alone = plan(Count(), **options)
    both = plan([Quantile(0.5, bins=(10.0, 20.0, 30.0)), Count(share=share)], **options)
    values, secret = np.linspace(0.0, 40.0, 200), Secret.for_tests(1)
    one, two = (each.open(secret=secret).update_many(values)[-1] for each in (alone, both))
    assert two["count"].noise_std / one.noise_std == pytest.approx(1 / math.sqrt(share), rel=1e-3)
