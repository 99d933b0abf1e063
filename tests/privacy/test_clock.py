"""By the clock, and with missing values: brute force over neighbours, and a likelihood audit.

The statements are those of docs/proofs/clock.md.  By the clock neighbours have one observation
more; by count with missing values one observation is replaced, and may be missing before or after.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import rillet.step
from helpers.streams import looks_back, made, shown
from rillet import Plan
from rillet.audit.replay import by_clock, by_count, log_ratio, paid
from rillet.errors import ParameterError
from rillet.gather.grid import LARGEST_SUM
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.privacy import Cost, delta_at
from rillet.statistic import STATISTICS, running
from rillet.strategy import (
    STRATEGIES,
    BinaryTree,
    BufferedToeplitz,
    Independent,
    Mechanism,
    SignedDigitTree,
)
from rillet.threshold import ExponentialQuantile, FixedThreshold, TailHistogram

TICKS, LAG = 12, 3
INF, NAN = math.inf, math.nan
#: Ticks 2, 6 and 10 are empty; the values lie inside, at the ends, outside, or nowhere.
STREAM = [
    *[(1, 40.0), (1, NAN), (3, -INF), (3, 99.0), (4, 7.0), (5, 55.0), (5, 55.0), (5, INF)],
    *[(7, 0.0), (8, 100.0), (8, 20.0), (9, NAN), (11, 30.0), (11, 31.0), (12, 2.0)],
]
CUTS = (1, 3, 6, 7)
LAWS = ("laplace", "gaussian")


def strategies() -> list[Any]:
    """All that are registered, under every law that they take."""
    found = []
    for name, law in product(STRATEGIES.names(), LAWS):
        try:
            found.append(made(name, law=law))
        except ParameterError:
            continue  # some take one law only
    # With few leaves the best tree has one level, which would show little.
    return [*found, SignedDigitTree(arity=3)]


THRESHOLDS = {
    "fixed": FixedThreshold(),
    "tail": TailHistogram(growth=1.5, two_sided=False),
    "two-sided": TailHistogram(growth=1.5, two_sided=True),
    "rank": ExponentialQuantile(quantile=0.25),
}
#: Every statistic with every strategy; what does not depend on the strategy with some of them.
SHAPES = [
    *product(["mean-fixed", "mean-tail", "sum-tail", "count-fixed"], strategies()),
    *product(
        ["mean-two-sided", "mean-rank", "sum-fixed"],
        [BinaryTree(), SignedDigitTree(arity=3), BufferedToeplitz()],
    ),
]


def named(part: Any) -> str:
    return part if isinstance(part, str) else f"{part.name}-{part.law}"


def plan_of(shape: str, strategy: Any, **more: Any) -> Plan:
    statistic, threshold = shape.split("-", 1)
    learns = threshold != "fixed"
    fields: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 0.0 if strategy.law == "laplace" else 2.0**-20,
        "lower": -20.0,
        "upper": 100.0,
        "strategy": strategy,
        "threshold": THRESHOLDS[threshold],
        **({"lag": LAG} if learns else {}),
        **more,
    }
    memory = looks_back(
        strategy, lambda n: n if isinstance(fields.get("every", 1), int) else f"{int(n)}h"
    )
    if learns and not memory:
        fields["threshold_share"] = 0.5
    return Plan(statistic=STATISTICS.get(statistic, "statistic")(**memory), **fields)


def clock_plan(shape: str, strategy: Any, **more: Any) -> Plan:
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": f"{TICKS}h"}
    return plan_of(shape, strategy, **clock, **more)


def charge_at(layout: Layout, t: int) -> Cost:
    """What an observation that enters at ``t`` is charged in all."""
    (total,) = (c.cost for c in layout.charges().totals() if c.first <= t <= (c.last or t))
    return total


def assert_within(layout: Layout, t: int, found: Any) -> float:
    """Part by part and in all; returns the part of the charge that was needed."""
    charged = charge_at(layout, t)
    assert found.epsilon <= charged.epsilon
    assert found.mu_squared <= charged.mu_squared
    learning = t <= layout.lag
    for label, amount in found.by_label.items():
        if not amount:
            continue
        assert learning == (label in ("rank", "first look", "warm-up")), label
        if label == "warm-up":
            assert layout.warm_up is not None
            assert amount <= layout.warm_up.cost.epsilon
        elif learning:
            assert amount <= layout.threshold_budget
        else:
            segment = layout.segment_at(t)
            cost = segment.cost if label == "main" else segment.look.cost
            assert amount <= cost.epsilon + cost.mu_squared
    if learning:
        of_look = found.by_label.get("rank", 0) + found.by_label.get("first look", 0)
        assert of_look <= layout.threshold_budget
    return float((found.epsilon + found.mu_squared) / (charged.epsilon + charged.mu_squared))


def added_everywhere(
    layout: Layout, stream: list[tuple[int, float]], values: tuple[float, ...]
) -> dict[int, float]:
    """Add each value to each tick; returns by tick the largest part of the charge that was paid."""
    base = by_clock(layout, stream, cuts=CUTS)
    largest = {}
    for tick in range(1, layout.length + 1):
        used = []
        for value in values:
            # In front of the others: what drops a surplus would drop another one for it.
            other = by_clock(layout, [(tick, value), *stream], base, cuts=CUTS)
            # All that is released follows from the transcript: nothing else depends on the data.
            assert other.public() == base.public()
            used.append(assert_within(layout, tick, paid(layout, base, other)))
        largest[tick] = max(used)
    return largest


@pytest.mark.parametrize(("shape", "strategy"), SHAPES, ids=named)
def test_an_added_observation_pays_what_is_charged(shape, strategy):
    """Each tick, empty ones too, in the warm-up, in every segment and look."""
    layout = clock_plan(shape, strategy).layout
    if shape.endswith("tail"):
        assert len(layout.segments) >= 2
        assert all(segment.look is not None for segment in layout.segments)
    largest = added_everywhere(layout, STREAM, (INF, -INF))
    # No more is charged than is needed: the first leaf after the warm-up is in all nodes.
    assert largest[layout.lag + 1] > 0.98 * shown(strategy)
    # Of what a rank may cost only a part is seen here, since the bound is for all values.
    assert all(largest[tick] > 0.45 for tick in range(1, layout.lag + 1))


def saturating(layout: Layout, ranges: float) -> Layout:
    """The same layout, whose ticks are full when their sum is so many times the clipping range."""
    assert layout.main is not None
    changed = replace(layout)
    changed.__dict__["largest_leaf"] = round(ranges * layout.main.steps)
    return changed


FULL = [(5, INF)] * 8 + [(8, -INF)] * 8 + [(9, INF), (9, -INF)] * 8
SOME = [BinaryTree(), SignedDigitTree(arity=3), BinaryTree("gaussian"), BufferedToeplitz()]


@pytest.mark.parametrize("strategy", SOME, ids=named)
@pytest.mark.parametrize("shape", ["mean-fixed", "mean-tail", "count-fixed"])
def test_a_full_tick_moves_no_further(shape, strategy):
    """A leaf that saturates moves less, and nobody else for it; partly full ones too."""
    layout = saturating(clock_plan(shape, strategy).layout, 3.3)
    base = by_clock(layout, STREAM + FULL, cuts=CUTS)
    main = [meeting.exact for meeting in base.meetings if meeting.label == "main"]
    unbounded = by_clock(clock_plan(shape, strategy).layout, STREAM + FULL, cuts=CUTS)
    assert main != [meeting.exact for meeting in unbounded.meetings if meeting.label == "main"]
    added_everywhere(layout, STREAM + FULL, (INF, -INF))


@pytest.mark.parametrize("shape", ["mean-tail", "mean-rank"])
def test_a_full_warm_up_moves_no_further(shape, monkeypatch):
    layout = clock_plan(shape, BinaryTree()).layout
    assert layout.warm_up is not None
    monkeypatch.setattr(rillet.step, "LARGEST_SUM", 2 * layout.warm_up.steps)
    full = [(1, INF)] * 3 + [(2, -INF)] * 5
    base = by_clock(layout, STREAM + full, cuts=CUTS)
    exact = [m.exact[0] for m in base.meetings if m.label == "warm-up"]
    assert 2 * layout.warm_up.steps in exact
    assert LARGEST_SUM not in exact
    added_everywhere(layout, STREAM + full, (INF, -INF))


# --- By count, with missing values ---------------------------------------------------------------

VALUES = [INF, NAN, -INF, INF, 40.0, -INF, NAN, 7.0, INF, 30.0]


def count_plan(shape: str, strategy: Any, **more: Any) -> Plan:
    fields: dict[str, Any] = {"length": len(VALUES), "missing": "skip", **more}
    return plan_of(shape, strategy, **fields)


def replaced_everywhere(layout: Layout) -> dict[tuple[int, bool], float]:
    """Replace each observation; by place, and whether a missing one was involved, what was paid."""
    base = by_count(layout, VALUES, cuts=(2, 5))
    largest: dict[tuple[int, bool], float] = {}
    for place, value in product(range(len(VALUES)), (INF, -INF, NAN)):
        other = by_count(layout, [*VALUES[:place], value, *VALUES[place + 1 :]], base, cuts=(2, 5))
        assert other.public() == base.public()
        used = assert_within(layout, place + 1, paid(layout, base, other))
        case = place + 1, math.isnan(value) != math.isnan(VALUES[place])
        largest[case] = max(used, largest.get(case, 0.0))
    return largest


@pytest.mark.parametrize(("shape", "strategy"), SHAPES, ids=named)
def test_a_replaced_observation_pays_what_is_charged(shape, strategy):
    """Value for value, and value for missing or back: either costs all that is charged."""
    layout = count_plan(shape, strategy).layout
    largest = replaced_everywhere(layout)
    first = layout.lag + 1
    # A missing value is in no counts, so that only half of the look's share is needed for it.
    needed = 0.98 if layout.segments[0].look is None else 0.93
    assert largest[first, True] > needed * shown(strategy)
    if not shape.startswith("count"):
        assert largest[first, False] > 0.98 * shown(strategy)


def test_leaves_of_several_observations_with_missing_ones():
    for strategy in (BinaryTree(), BufferedToeplitz()):
        replaced_everywhere(count_plan("mean-tail", strategy, every=2).layout)


# --- The tests above can fail --------------------------------------------------------------------


def _dropping(original: Any) -> Any:
    def group(layout: Any, grid: Any, raw_values: Any, place: Any, *more: Any) -> Any:
        number = np.arange(len(place)) - np.searchsorted(place, place)
        return original(layout, grid, raw_values[number < 4], place[number < 4], *more)

    return group


def _telling(original: Any) -> Any:
    def measure(self: Any, raw_values: Any, *more: Any) -> Any:
        return replace(original(self, raw_values, *more), observations=len(raw_values))

    return measure


#: What is broken, what stands in for it, and a plan that suffers.
BROKEN = {
    "movements of the shares": (
        *(
            running._Shares,
            "moves",
            lambda _own: lambda _self, k: ((k - k // 8, 0), (0, k - k // 8)),
        ),
        *("clock", "mean-fixed", BinaryTree()),
    ),
    "movement of a count": (
        *(running._Count, "moves", lambda _own: lambda _self, k: ((k - k // 8,),)),
        *("clock", "count-fixed", BufferedToeplitz()),
    ),
    "the split": (
        *(Mechanism, "split", lambda own: lambda *given: (own(*given)[0], own(*given)[1] * 9 // 8)),
        *("clock", "mean-fixed", BufferedToeplitz()),
    ),
    "a count that is not free": (
        *(running._Present, "cut", lambda own: lambda self, k: (own(self, k)[0], own(self, k)[0])),
        *("count", "mean-fixed", BufferedToeplitz()),
    ),
    "the sensitivity of a later look": (
        *(TailHistogram, "count_sensitivity", lambda own: lambda *a, **b: own(*a, **b) / 2),
        *("clock", "mean-tail", BufferedToeplitz()),
    ),
    "the sensitivity of the first look": (
        *(TailHistogram, "count_sensitivity", lambda own: lambda *a, **b: own(*a, **b) / 2),
        *("clock", "mean-tail", BinaryTree()),
    ),
    "a surplus that is dropped": (
        *(rillet.step, "_group_ticks", _dropping),
        *("clock", "mean-fixed", BinaryTree("gaussian")),
    ),
    "a number of observations that is not hidden": (
        *(TailHistogram, "measure", _telling),
        *("clock", "mean-tail", BinaryTree()),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_seen(what, monkeypatch):
    owner, name, stand_in, cadence, shape, strategy = BROKEN[what]
    if owner is running._Present:
        # Only the lattice: what is charged is that of a count that costs nothing.
        monkeypatch.setattr(owner, "moves", lambda _, k: ((k, 0),))
    monkeypatch.setattr(owner, name, stand_in(getattr(owner, name)))
    if cadence == "clock":
        layout = clock_plan(shape, strategy).layout
        with pytest.raises(AssertionError):
            added_everywhere(layout, STREAM + FULL, (INF, -INF))
    else:
        layout = count_plan(shape, strategy).layout
        with pytest.raises(AssertionError):
            replaced_everywhere(layout)


# --- Nothing stops, whatever the noise says ------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 1e-4])
@pytest.mark.parametrize("shape", ["mean-tail", "mean-two-sided", "mean-rank", "sum-tail"])
@pytest.mark.parametrize("delta", [0.0, 2.0**-20])
def test_streams_of_nothing_run_to_their_end(shape, delta, epsilon):
    """No observation at all, missing ones only, or a single one: everything is decided by noise."""
    strategy = BufferedToeplitz() if delta else SignedDigitTree()
    plan = clock_plan(shape, strategy, epsilon=epsilon)
    for stream in ([], [(tick, NAN) for tick in range(1, 13)], [(2, 50.0)]):
        world = by_clock(plan.layout, stream, quick=False)
        assert world.releases is not None
        assert world.releases.t.tolist() == list(range(LAG, TICKS + 1))
        assert np.isfinite(world.releases.sum).all()


# --- Likelihoods ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cadence", ["clock", "count"])
@pytest.mark.parametrize("strategy", [BinaryTree(), Independent()], ids=named)
def test_no_transcript_is_likelier_than_promised(cadence, strategy):
    """Pure: the exact likelihood ratio of whole transcripts reaches e^ε and never passes it."""
    found = []
    for secret in range(60):
        if cadence == "clock":
            layout = clock_plan("mean-fixed", strategy).layout
            one = by_clock(layout, STREAM, secret=Secret.for_tests(secret))
            two = by_clock(layout, [(1, INF), *STREAM], one)
        else:
            layout = count_plan("mean-fixed", strategy).layout
            one = by_count(layout, VALUES, secret=Secret.for_tests(secret))
            two = by_count(layout, [NAN, *VALUES[1:]], one)
        found.append(abs(log_ratio(one, two)))
    assert max(found) <= 1 + 1e-12
    assert max(found) > 0.9


def audited(runs: int, shape: str, *, seen: float) -> None:
    """The curve of the most exposed observation, from exact likelihoods of whole transcripts."""
    epsilon, delta = 1.0, 1e-2
    layout = clock_plan(shape, BufferedToeplitz(), epsilon=epsilon, delta=delta).layout
    exposed = [(layout.lag + 1, -INF), *STREAM]
    charged = charge_at(layout, layout.lag + 1)
    ratios = []
    for secret in range(runs):
        # Either stream is the one that runs, and the other the one that might have.
        streams = (STREAM, exposed) if secret % 2 else (exposed, STREAM)
        one = by_clock(layout, streams[0], secret=Secret.for_tests(secret))
        ratios.append(log_ratio(one, by_clock(layout, streams[1], one)))
    for at in (0.0, 0.5 * epsilon, epsilon):
        beyond = np.maximum(0.0, -np.expm1(at - np.array(ratios)))
        error = beyond.std() / runs**0.5
        claimed = float(delta_at(at, charged))
        assert beyond.mean() <= claimed + 4 * error
        # An audit that sees nothing would pass for ever.
        assert at or beyond.mean() > seen * claimed
    assert float(delta_at(epsilon, charged)) <= delta


def test_the_most_exposed_observation_stays_below_the_claim():
    audited(60, "mean-tail", seen=0.6)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["mean-fixed", "mean-tail", "count-fixed"])
def test_the_most_exposed_observation_stays_below_the_claim_in_many_runs(shape):
    audited(3000, shape, seen=0.9)
