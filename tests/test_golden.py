"""Releases under a fixed secret, for every mechanism: none changes without a new version.

A change of what is released, without a change of the mechanism's digest, would put the same noise
on another scale for everybody who goes on with a plan: two releases of one stream then reveal it.
Run ``python tests/test_golden.py`` after raising the version of what has changed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from rillet import (
    BinaryTree,
    BufferedToeplitz,
    Count,
    ExponentialQuantile,
    Histogram,
    HonakerTree,
    Independent,
    Mean,
    Person,
    Plan,
    Quantile,
    RestartedTree,
    Secret,
    Share,
    SignedDigitTree,
    SmoothQuantile,
    SquareRootToeplitz,
    Sum,
    TailHistogram,
    WindowToeplitz,
)
from rillet.statistic import STATISTICS
from rillet.strategy import STRATEGIES
from rillet.threshold import THRESHOLDS

STORED = Path(__file__).with_suffix(".json")
SECRET = Secret.for_tests(1912)
DELTA = 2.0**-20


def plan(**options: object) -> Plan:
    """Of one column, where nothing else is said."""
    known = {"epsilon": 1.0, "delta": DELTA, "upper": 100.0, "length": 900, "missing": "none"}
    given = {**known, **options}
    statistic = given.get("statistic", Sum())
    (memory, *_) = statistic if isinstance(statistic, list) else [statistic]
    if given["delta"] and memory.window is None and memory.half_life is None:
        # By itself a plan with so few releases would take pure noise.
        given.setdefault("strategy", BufferedToeplitz())
    return Plan(**given)


def by_clock(**options: object) -> Plan:
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "300h", "lag": 20}
    return plan(**{**clock, "missing": "skip", **options})


PLANS = {
    "baseline": lambda: Plan.baseline(epsilon=1.0, upper=100.0, length=900),
    "paper": lambda: Plan.paper(epsilon=1.0, delta=DELTA, upper=100.0, length=900, lag=300),
    "default": lambda: plan(lag=100),
    "default, pure": lambda: plan(lag=100, delta=0.0),
    "default, every 7, sum": lambda: plan(lag=98, every=7, statistic=Sum()),
    "no end known": lambda: plan(lag=100, length=None),
    "backfill": lambda: plan(lag=100, backfill=True),
    "one side": lambda: plan(lag=100, threshold=TailHistogram(two_sided=False)),
    "exponential": lambda: plan(lag=100, threshold=ExponentialQuantile()),
    "smooth, gaussian": lambda: plan(lag=300, threshold=SmoothQuantile(law="gaussian")),
    "binary tree, gaussian": lambda: plan(lag=0, strategy=BinaryTree("gaussian")),
    "honaker": lambda: plan(lag=0, strategy=HonakerTree()),
    "independent": lambda: plan(lag=0, strategy=Independent()),
    "signed digits": lambda: plan(lag=0, strategy=SignedDigitTree()),
    "square root": lambda: plan(lag=0, strategy=SquareRootToeplitz()),
    "comb": lambda: plan(
        lag=0, strategy=WindowToeplitz(window=60, buffers=2), statistic=Sum(window=60)
    ),
    "restarted": lambda: plan(
        lag=0, strategy=RestartedTree(window=60, arity=11), statistic=Sum(window=60)
    ),
    "buffers": lambda: plan(lag=0, strategy=BufferedToeplitz(buffers=5)),
    "may be missing": lambda: plan(lag=100, missing="skip"),
    "may be missing, pure": lambda: plan(lag=100, missing="skip", delta=0.0),
    "may be missing, backfill": lambda: plan(lag=100, missing="skip", backfill=True),
    "a number stands in": lambda: plan(lag=100, missing=7.0),
    "count": lambda: plan(lag=0, missing="skip", statistic=Count()),
    "clock": by_clock,
    "clock, pure": lambda: by_clock(delta=0.0),
    "clock, sum": lambda: by_clock(statistic=Sum()),
    "clock, count": lambda: by_clock(lag=0, statistic=Count()),
    "clock, declared range": lambda: by_clock(lag=0),
    "clock, keys": lambda: by_clock(keys=["a", "b", 3]),
    "window": lambda: plan(lag=50, statistic=Mean(window=20)),
    "window, may be missing": lambda: plan(lag=50, statistic=Mean(window=20), missing="skip"),
    "window, pure": lambda: plan(lag=70, statistic=Sum(window=70), delta=0.0),
    "short window, pure": lambda: plan(lag=50, statistic=Sum(window=20), delta=0.0),
    "half-life": lambda: plan(lag=50, statistic=Mean(half_life=60)),
    "half-life, pure": lambda: plan(lag=50, statistic=Mean(half_life=20), delta=0.0),
    "clock, window": lambda: by_clock(statistic=Mean(window="24h")),
    "clock, half-life": lambda: by_clock(statistic=Sum(half_life="60h"), lag=10),
    "persons": lambda: by_clock(unit=Person(most=5, apart="3h")),
    "persons, pure": lambda: by_clock(unit=Person(most=5, apart="3h"), delta=0.0),
    "persons, window": lambda: by_clock(
        unit=Person(most=5, apart="3h"), statistic=Mean(window="24h")
    ),
    "share": lambda: plan(lag=0, statistic=Share(above=10.0)),
    "share, may be missing": lambda: plan(missing="skip", statistic=Share(above=10.0)),
    "histogram": lambda: plan(statistic=Histogram(bins=[0.0, 5.0, 10.0, 20.0])),
    "histogram, learned": lambda: plan(lag=100, statistic=Histogram(bins=12)),
    "quantiles": lambda: plan(lag=100, statistic=Quantile(0.5, 0.9)),
    "quantiles, pure": lambda: plan(delta=0.0, lag=100, statistic=Quantile(0.5, 0.9, bins=16)),
    "quantiles, may be missing": lambda: plan(
        missing="skip", statistic=Quantile(0.5, bins=[0.0, 5.0, 10.0, 20.0])
    ),
    "list": lambda: plan(lag=100, statistic=[Mean(share=0.6), Quantile(0.5), Share(above=9.0)]),
    "clock, share": lambda: by_clock(lag=0, statistic=Share(above=10.0, half_life="20h")),
    "clock, histogram": lambda: by_clock(lag=0, statistic=Histogram(bins=[0.0, 5.0, 20.0])),
    "clock, quantiles": lambda: by_clock(statistic=Quantile(0.5, 0.9, window="24h")),
    "clock, list": lambda: by_clock(statistic=[Count(), Sum(), Histogram(bins=5)]),
    "persons, quantiles": lambda: by_clock(
        unit=Person(most=5, apart="3h"), statistic=Quantile(0.5, bins=8)
    ),
    "keys": lambda: plan(lag=50, length=300, keys=["a", "b", 3]),
    "keys that share a range": lambda: plan(
        lag=90, length=300, keys=["a", "b", 3], shared_threshold=True
    ),
    "crowd": lambda: plan(lag=0, length=300, keys=list(range(300)), missing="skip"),
    "fleet": lambda: by_clock(keys=["a", "b", 3], lag=0),
    "fleet, shared": lambda: by_clock(keys=["a", "b", 3], shared_threshold=True),
    "fleet, alone": lambda: by_clock(
        keys=["a", "b", 3], shared_threshold=True, epsilon=100.0, statistic=Mean(window="24h")
    ),
    "fleet, groups": lambda: by_clock(
        keys=[("a", 1), ("a", 2), ("b", 1)], shared_threshold=True, groups=1, statistic=Sum()
    ),
    "fleet, totals": lambda: by_clock(
        keys=[("a", 1), ("a", 2), ("b", 1)], shared_threshold=True, levels="all,region"
    ),
}


def released(name: str) -> dict[str, str]:
    made = PLANS[name]()
    random = np.random.default_rng(7)
    values = random.exponential(8.0, 900)
    if made.missing != "none":
        values[random.random(900) < 0.1] = np.nan
    streams = made.open_many(secret=SECRET)
    key_of = np.arange(900) % len(streams.keys)
    if made.clock is None:
        releases = streams.absorb(values, key_of)
    else:
        ticks = np.sort(random.integers(1, 301, 900))
        persons = streams._persons(random.integers(0, 100, 900), 900) if made.unit else None
        releases = streams.absorb_ticks(values, key_of, ticks, 300, person_of=persons)
    assert len(releases) > 100
    # Nine digits: the last bits of logarithms may differ between processors.
    text = "\n".join(
        f"{t} {value:.9g} {total:.9g} {count:.9g} {std:.9g} {lower:.9g} {upper:.9g}"
        for t, value, total, count, std, lower, upper in zip(
            releases.t,
            releases.value,
            releases.sum,
            releases.count,
            releases.noise_std,
            releases.clip_lower,
            releases.clip_upper,
            strict=True,
        )
    )
    return {
        "mechanism": made.layout.digest.hex(),
        "releases": hashlib.sha256(text.encode()).hexdigest(),
    }


@pytest.mark.parametrize("name", PLANS)
def test_releases_are_those_of_this_version(name):
    stored, found = json.loads(STORED.read_text())[name], released(name)
    if stored != found:
        same = stored["mechanism"] == found["mechanism"]
        pytest.fail(
            "another release of the same mechanism: raise the version of what has changed "
            "(a strategy's, a threshold's, a statistic's, or MECHANISM_VERSION)"
            if same
            else "another mechanism: if that is meant, run python tests/test_golden.py"
        )


def test_every_mechanism_is_pinned():
    layouts = [make().layout for make in PLANS.values()]
    strategies = {layout.main.strategy.name for layout in layouts}
    thresholds = {layout.threshold.name for layout in layouts}
    assert strategies == set(STRATEGIES.own)
    assert thresholds == set(THRESHOLDS.own)
    for by_clock in (False, True):
        statistics = {one.statistic.name for one in layouts if (one.clock is not None) == by_clock}
        assert statistics == {*STATISTICS.own, "list"}
    assert sum(layout.crowd for layout in layouts) == 1
    assert {(layout.groups > 1, bool(layout.levels)) for layout in layouts if layout.fleet} == {
        (False, False),
        (False, True),
        (True, False),
    }


@pytest.mark.parametrize("part", ["statistic", "threshold", "strategy"])
def test_a_new_version_of_a_part_has_noise_of_its_own(part, monkeypatch):
    name = "default"
    before = released(name)
    monkeypatch.setattr(type(getattr(PLANS[name](), part)), "version", 99)
    after = released(name)
    assert after["mechanism"] != before["mechanism"]
    assert after["releases"] != before["releases"]


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: released(name) for name in PLANS}, indent=1) + "\n")
