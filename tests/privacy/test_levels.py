"""Totals: brute force over what one unit moves in the streams of its key and of its totals.

The statements are those of docs/proofs/levels.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from helpers.streams import looks_back, made, shown
from rillet import Person, Plan
from rillet.audit.replay import World, by_clock, paid
from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.privacy import gaussian_mu
from rillet.statistic import STATISTICS
from rillet.strategy import STRATEGIES
from rillet.threshold import TailHistogram

TICKS, INF = 8, math.inf
OTHERS = [(1, 40.0), (3, 99.0), (5, -INF), (8, 7.0), (8, 55.0)]
KEYS = [("north", 1), ("north", 2), ("south", 1)]


def plan_of(statistic: str, strategy: Any, unit: Person | None = None, **more: Any) -> Plan:
    memory = looks_back(strategy, lambda leaves: f"{int(leaves)}h")
    fields: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 0.0 if strategy.law == "laplace" else 2.0**-20,
        "lower": -20.0,
        "upper": 100.0,
        "every": "1h",
        "start": "2026-01-01T00:00Z",
        "length": f"{TICKS}h",
        "lag": 0,
        "statistic": STATISTICS.get(statistic, "statistic")(**memory),
        "strategy": strategy,
        "unit": unit,
        "keys": KEYS,
        "levels": {"all": 0.3, "region": 0.2},
        **more,
    }
    return Plan(**fields)


def strategies() -> list[Any]:
    found = []
    for name, law in product(STRATEGIES.names(), ("laplace", "gaussian")):
        try:
            found.append(made(name, law=law))
        except ParameterError:
            continue  # some take one law only
    return found


@lru_cache
def base_of(layout: Layout) -> World:
    return by_clock(layout, OTHERS)


def share(plan: Plan, added: dict[tuple[object, ...], list[tuple[int, float]]]) -> float:
    """The part of the promise that it costs to add these observations to keys: all streams."""
    tree, total = plan.tree, 0.0
    streams: dict[int, list[tuple[int, float]]] = {}
    for key, own in added.items():
        index = KEYS.index(key)  # type: ignore[arg-type]
        for stream in (index, *(int(total_of[index]) for total_of in tree.total_of)):
            streams.setdefault(stream, []).extend(own)
    for stream, own in streams.items():
        layout = plan.layout.of_level(tree.level_of(stream))
        base = base_of(layout)
        other = by_clock(layout, [*own, *OTHERS], base)
        assert other.public() == base.public()
        found = paid(layout, base, other)
        if plan.delta:
            assert not found.epsilon
            total += float(found.mu_squared) / gaussian_mu(plan.guarantee) ** 2
        else:
            total += float(found.epsilon) / plan.epsilon
    return total


@pytest.mark.parametrize("strategy", strategies(), ids=lambda one: f"{one.name}-{one.law}")
def test_an_observation_pays_for_all_its_streams_together(strategy):
    for statistic in ("mean", "count"):
        plan = plan_of(statistic, strategy)
        found = [
            share(plan, {("north", 1): [(tick, value)]})
            for tick in (1, 4, TICKS)
            for value in (INF, -INF, 30.0)
        ]
        assert max(found) <= 1.0
        assert max(found) > 0.9 * shown(strategy)


@pytest.mark.parametrize("name", ["buffered-toeplitz", "binary-tree", "decayed-toeplitz"])
def test_a_person_pays_for_all_streams_of_all_keys_together(name):
    """Every division of three observations over three keys in two regions."""
    law = "laplace" if name == "binary-tree" else "gaussian"
    plan = plan_of("mean", made(name, law=law), Person(most=3, apart="2h"))
    random, largest = np.random.default_rng(2), 0.0
    for keys in product(KEYS, repeat=3):
        first = int(random.integers(1, TICKS - 3))
        added: dict[tuple[object, ...], list[tuple[int, float]]] = {}
        for place, key in enumerate(keys):
            added.setdefault(key, []).append((first + 2 * place, INF))
        largest = max(largest, share(plan, added))
    assert 0.5 < largest <= 1.0


@pytest.mark.parametrize("name", ["buffered-toeplitz", "signed-digit-tree"])
def test_a_range_that_keys_learn_together_is_paid_for_once(name):
    """In the warm-up and after it: each look once, and all streams together."""
    law = "laplace" if name == "signed-digit-tree" else "gaussian"
    learned = {"lag": 3, "threshold": TailHistogram(growth=1.5), "shared_threshold": True}
    plan = plan_of("mean", made(name, law=law), **learned, threshold_share=0.5)
    largest = 0.0
    for tick, value in product((1, 3, 4, TICKS), (INF, -INF)):
        (charged,) = (
            c.cost for c in plan.layout.charges().totals() if c.first <= tick <= (c.last or tick)
        )
        assert charged.within(plan.guarantee)
        once, streams = 0.0, 0.0
        for level in (None, 0, 1):
            layout = plan.layout.of_level(level)
            base = base_of(layout)
            found = paid(layout, base, by_clock(layout, [(tick, value), *OTHERS], base))
            looks = [float(found.by_label.get(each, 0)) for each in ("look", "first look", "rank")]
            once = max(once, sum(looks))
            streams += sum(map(float, found.by_label.values())) - sum(looks)
        share = (once + streams) / float(charged.epsilon + charged.mu_squared)
        assert share <= 1 + 1e-9
        largest = max(largest, share)
    assert largest > 0.8


def test_a_total_that_is_not_paid_for_is_seen():
    """Power: were the keys given all of the budget, the totals would be too much."""
    strategy = made("buffered-toeplitz")
    plan, plain = plan_of("mean", strategy), plan_of("mean", strategy, levels=())
    added = [(1, INF), *OTHERS]
    whole = paid(
        plain.layout, base_of(plain.layout), by_clock(plain.layout, added, base_of(plain.layout))
    )
    total = float(whole.mu_squared) / gaussian_mu(plan.guarantee) ** 2
    layout = plan.layout.of_level(0)
    found = paid(layout, base_of(layout), by_clock(layout, added, base_of(layout)))
    assert total + float(found.mu_squared) / gaussian_mu(plan.guarantee) ** 2 > 1.2
