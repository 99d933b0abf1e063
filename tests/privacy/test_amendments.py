"""Another ε from a tick on: brute force over what one observation moves, before and after it.

The statements are those of docs/proofs/amendments.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest
from tests.privacy.test_levels import OTHERS, TICKS, plan_of, strategies

from helpers.streams import made, shown
from rillet.amendments import Amendment
from rillet.audit.replay import World, by_clock, paid
from rillet.layout import Layout
from rillet.privacy import gaussian_mu
from rillet.threshold import TailHistogram

INF = math.inf


@lru_cache
def base_of(layout: Layout) -> World:
    return by_clock(layout, OTHERS)


def shares(layout: Layout) -> dict[int, float]:
    """For each tick the largest part of its promise that one more observation there costs."""
    charges, base, found = layout.charges(), base_of(layout), {}
    for tick in range(1, TICKS + 1):
        promise = charges.promised(tick)
        for value in (INF, -INF, 30.0):
            cost = paid(layout, base, by_clock(layout, [(tick, value), *OTHERS], base))
            if promise.delta:
                part = float(cost.mu_squared) / gaussian_mu(promise) ** 2
            else:
                part = float(cost.epsilon) / promise.epsilon
            found[tick] = max(part, found.get(tick, 0.0))
    return found


@pytest.mark.parametrize("epsilon", [0.25, 3.0])
@pytest.mark.parametrize("strategy", strategies(), ids=lambda one: f"{one.name}-{one.law}")
def test_every_observation_pays_what_was_promised_for_its_tick(strategy, epsilon):
    change = Amendment(after=2, epsilon=epsilon)
    plan = plan_of("mean", strategy, levels=(), amendments=[change])
    found = shares(plan.layout)
    assert plan.layout.later[0][0] == 4
    assert all(share <= 1 for share in found.values())
    before, after = (max(found[t] for t in ticks) for ticks in (range(1, 4), range(4, TICKS + 1)))
    assert before > 0.9 * shown(strategy)
    assert after > 0.5  # behind the middle an observation is in fewer nodes


def test_a_charge_of_the_old_promise_would_be_seen():
    plan = plan_of(
        "mean", made("buffered-toeplitz"), levels=(), amendments=[{"after": 2, "epsilon": 0.25}]
    )
    steps = plan.layout.segments[0].steps
    on_old_steps = tuple(replace(segment, steps=steps) for segment in plan.layout.segments)
    assert max(shares(replace(plan.layout, segments=on_old_steps)).values()) > 1.1


@pytest.mark.parametrize("name", ["buffered-toeplitz", "signed-digit-tree"])
def test_looks_of_a_learned_range_are_paid_for_as_well(name):
    law = "laplace" if name == "signed-digit-tree" else "gaussian"
    learned = {"lag": 2, "threshold": TailHistogram(growth=1.5), "shared_threshold": True}
    plan = plan_of(
        "mean",
        made(name, law=law),
        **learned,
        threshold_share=0.5,
        levels=(),
        amendments=[{"after": 3, "epsilon": 0.3}, {"after": 5, "epsilon": 2.0}],
    )
    layout = plan.layout
    base, charges, largest = base_of(layout), layout.charges(), dict.fromkeys((1.0, 0.3, 2.0), 0.0)
    assert [first for first, _ in layout.later] == [5, 7]
    for tick, value in product(range(1, TICKS + 1), (INF, -INF)):
        promise = charges.promised(tick)
        (charged,) = (c.cost for c in charges.totals() if c.first <= tick <= (c.last or tick))
        assert charged.within(promise)
        found = paid(layout, base, by_clock(layout, [(tick, value), *OTHERS], base))
        share = float(found.epsilon + found.mu_squared) / float(
            charged.epsilon + charged.mu_squared
        )
        assert share <= 1 + 1e-9
        largest[promise.epsilon] = max(largest[promise.epsilon], share)
    assert min(largest.values()) > 0.7
