"""Histograms, quantiles, shares and lists: brute force over neighbours.

The statements are those of docs/proofs/counts.md.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest

from rillet import Count, Histogram, Mean, Person, Plan, Quantile, Share
from rillet.audit.replay import by_clock, by_count, paid
from rillet.layout import Layout
from rillet.privacy import Cost
from rillet.strategy import BinaryTree, BufferedToeplitz, Independent, SignedDigitTree

NAN = math.nan
EDGES = (0.0, 10.0, 20.0, 50.0)
#: In every bin, on edges, beyond them, and nowhere.
VALUES = [-5.0, 3.0, 10.0, 15.0, 20.0, 33.0, 70.0, NAN]
STATISTICS: dict[str, Any] = {
    "histogram": Histogram(bins=EDGES),
    "histogram of a learned range": Histogram(bins=4),
    "quantiles": Quantile(0.5, 0.9, bins=EDGES),
    "quantiles of a learned range": Quantile(0.5, bins=7),
    "two bins": Quantile(0.5, bins=2),
    "share": Share(above=20.0),
    "list": [Mean(share=0.5), Quantile(0.5, bins=EDGES), Share(above=20.0)],
    "list of counts": [Histogram(bins=EDGES), Count()],
}
STRATEGIES = [
    BinaryTree(),
    SignedDigitTree(arity=3),
    Independent("gaussian"),
    BufferedToeplitz(),
]


def plan_of(name: str, strategy: Any, **more: Any) -> Plan:
    learned = "learned" in name or name in ("list", "two bins")
    return Plan(
        epsilon=1.0,
        delta=0.0 if strategy.law == "laplace" else 2.0**-20,
        lower=-20.0,
        upper=100.0,
        statistic=STATISTICS[name],
        strategy=strategy,
        **({"lag": 2, "threshold_share": 0.5} if learned else {"lag": 0}),
        **more,
    )


def charged(layout: Layout, t: int) -> Cost:
    """What an observation at ``t`` is charged in all."""
    (total,) = (c.cost for c in layout.charges().totals() if c.first <= t <= (c.last or t))
    return total


def part_of(found: Any, charge: Cost) -> float:
    """How much of a charge was paid; nothing is paid that is not charged."""
    assert found.epsilon <= charge.epsilon
    assert found.mu_squared <= charge.mu_squared
    whole = charge.mu_squared or charge.epsilon
    return float((found.mu_squared if charge.mu_squared else found.epsilon) / whole)


@pytest.mark.parametrize("missing", ["skip", "none"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{s.name}-{s.law}")
@pytest.mark.parametrize("name", STATISTICS)
def test_a_replaced_observation_pays_what_is_charged(name, strategy, missing):
    """Every other value in the place of some observations, in the warm-up and after it."""
    layout = plan_of(name, strategy, length=8, missing=missing).layout
    stream = [7.0, 12.0, 55.0, 3.0, 18.0, 21.0, 9.0, 14.0]
    one = by_count(layout, stream)
    largest = 0.0
    for place in (0, 2, 6):
        worlds = [
            by_count(layout, [*stream[:place], value, *stream[place + 1 :]], one)
            for value in VALUES
        ]
        for first, second in combinations(worlds, 2):
            found = paid(layout, first, second)
            largest = max(largest, part_of(found, charged(layout, place + 1)))
    assert largest > 0.7  # and it is charged little more


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{s.name}-{s.law}")
@pytest.mark.parametrize("name", STATISTICS)
def test_an_added_observation_pays_what_is_charged(name, strategy):
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "6h"}
    layout = plan_of(name, strategy, **clock).layout
    stream = [(1, 7.0), (1, 12.0), (3, 55.0), (3, NAN), (4, 18.0), (6, 9.0)]
    one = by_clock(layout, stream)
    largest = 0.0
    for tick in (1, 3, 5):
        for value in VALUES:
            two = by_clock(layout, [*stream, (tick, value)], one)
            largest = max(largest, part_of(paid(layout, one, two), charged(layout, tick)))
    assert largest > 0.7


@pytest.mark.parametrize("name", ["histogram", "quantiles", "share", "list of counts"])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_all_of_a_person_pays_what_is_charged(name, law):
    """All of a person's observations in one bin, or in several, however far apart."""
    strategy = BufferedToeplitz() if law == "gaussian" else SignedDigitTree(arity=3)
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "9h"}
    unit = Person(most=3, apart="2h")
    layout = plan_of(name, strategy, unit=unit, **clock).layout
    stream = [(1, 7.0), (2, 12.0), (5, 55.0), (7, 18.0)]
    one = by_clock(layout, stream)
    parts = []
    for ticks in ((1, 3, 5), (2, 5, 9), (1, 4, 8)):
        for values in ((3.0, 3.0, 3.0), (3.0, 15.0, 70.0), (70.0, 70.0, -5.0)):
            two = by_clock(layout, [*stream, *zip(ticks, values, strict=True)], one)
            found = paid(layout, one, two)
            parts.append((part_of(found, charged(layout, 1)), len(set(values))))
    largest = max(part for part, _ in parts)
    assert largest > 0.7
    assert largest == max(part for part, kinds in parts if kinds == 1)  # worst in one bin
