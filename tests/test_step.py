"""Segments: what a look and the running sum cost an observation, and what is really drawn.

The statements are those of docs/proofs/segments.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import given, settings

import rillet.step
from helpers.streams import SECRET, awkward_values, recorded
from rillet import BinaryTree, Independent, Plan, Sum
from rillet.layout import Layout
from rillet.privacy import Cost
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.strategy.toeplitz import BufferedToeplitz
from rillet.threshold import Range, TailHistogram
from rillet.threshold.tail import CENTRE_SHARE, PARTS
from rillet.threshold.tail_model import knots

DELTA = 2.0**-20
KNOTS = len(knots(1.0))
ANY_FLOAT = some.floats(width=64)
BOUNDS = some.tuples(some.floats(-1e6, 1e6), some.floats(1e-3, 1e6)).map(
    lambda pair: Range(pair[0], pair[0] + pair[1])
)


# --- Counts --------------------------------------------------------------------------------------


def distances(one: np.ndarray, two: np.ndarray) -> tuple[int, int]:
    """L1 and squared L2."""
    moved = one.astype(object) - two.astype(object)
    return sum(abs(moved)), sum(moved**2)


@given(
    bounds=BOUNDS, pair=some.tuples(ANY_FLOAT, ANY_FLOAT), rest=some.lists(ANY_FLOAT, max_size=5)
)
def test_one_observation_moves_counts_by_no_more_than_is_charged(bounds, pair, rest):
    threshold = TailHistogram()
    one, two = (threshold.count(np.array([value, *rest]), bounds, None) for value in pair)
    first, second = distances(one, two)
    assert first <= threshold.count_sensitivity("laplace") == 2 * PARTS
    assert second <= threshold.count_sensitivity("gaussian") == 2 * PARTS**2
    assert one.shape == (KNOTS,)
    assert one.min() >= 0
    assert one.sum() == PARTS * (1 + len(rest))


def test_the_sensitivity_of_counts_by_brute_force():
    """All pairs of values on, beside and between knots: the bound is reached and never passed."""
    bounds, threshold = Range(-2.0, 6.0), TailHistogram()
    places = bounds.lower + knots(bounds.width)[-12:]
    near = [np.nextafter(places, side) for side in (-np.inf, np.inf)]
    between = [places[:-1] + part * np.diff(places) for part in (0.2, 1 / 3, 0.5, 0.998)]
    odd = [np.nan, np.inf, -np.inf, -2.0, 6.0, 1e308, 5e-324]
    values = np.concatenate([places, *near, *between, odd])
    counted = [threshold.count(np.array([value]), bounds, None) for value in values]
    found = [distances(one, two) for one in counted for two in counted]
    assert max(first for first, _ in found) == 2 * PARTS
    assert max(second for _, second in found) == 2 * PARTS**2


def test_counts_add_up_whatever_the_blocks():
    values, bounds, threshold = awkward_values(500, 3), Range(0.0, 100.0), TailHistogram()
    parts = sum(threshold.count(part, bounds, None) for part in np.array_split(values, 7))
    assert np.array_equal(parts, threshold.count(values, bounds, None))


# --- What is charged -----------------------------------------------------------------------------


@some.composite
def plans(draw: Any) -> Plan:
    """Plans of every shape with a range that is learned again."""
    length = draw(some.integers(4, 20_000))
    lag = draw(some.integers(1, max(1, length // 2)))
    pure = draw(some.booleans())
    strategy = draw(
        some.sampled_from([SignedDigitTree(), BinaryTree(), Independent()])
        if pure
        else some.sampled_from([BufferedToeplitz(), BinaryTree("gaussian")])
    )
    growth = draw(some.one_of(some.none(), some.floats(1.5, 20.0)))
    return Plan(
        epsilon=draw(some.floats(0.01, 8.0)),
        delta=0.0 if pure else draw(some.sampled_from([2.0**-40, DELTA, 1e-3])),
        upper=100.0,
        length=length,
        every=draw(some.integers(1, max(1, length // 10))),
        lag=lag,
        threshold=TailHistogram(growth=growth, share=draw(some.floats(0.001, 0.36))),
        threshold_share=draw(some.floats(0.01, 0.99)),
        strategy=strategy,
        missing=draw(some.sampled_from(["skip", "none"])),
    )


@settings(max_examples=60)
@given(plan=plans())
def test_no_observation_pays_more_than_the_promise(plan):
    layout = plan.layout
    main = layout.main
    assert main is not None
    for charge in layout.charges().totals():
        assert charge.cost.within(layout.guarantee)
    # Every observation is in the warm-up or in one segment.
    firsts = [1, *(segment.first for segment in layout.segments)]
    lasts = [layout.lag, *(segment.last for segment in layout.segments)]
    assert firsts == [1, *(last + 1 for last in lasts[:-1])]
    assert lasts[-1] == plan.length
    # Look and sum together cost no more than the sum alone would, in the same kind.
    for segment in layout.segments:
        look = Cost() if segment.look is None else segment.look.cost
        both = segment.cost + look
        assert both.delta == 0
        assert both.epsilon <= main.cost.epsilon
        assert both.mu_squared <= main.cost.mu_squared
        # And leave next to nothing unused.
        used = both.epsilon + both.mu_squared
        assert used >= Fraction(98, 100) * (main.cost.epsilon + main.cost.mu_squared)
    assert layout.warm_up is not None
    look = layout.threshold.cost(layout.threshold_budget, plan.delta)
    assert layout.warm_up.cost + look == Cost.pure(Fraction(plan.epsilon))


def moved_most(layout: Layout, steps: int) -> Fraction:
    """How far a replaced observation moves the nodes, from what it can do to a leaf."""
    main = layout.main
    assert main is not None
    largest = [(steps,)]
    if layout.setting.missing:  # from value to value, and between a value and none
        even, count = layout.leaf.cut(steps)
        assert steps - 1 <= even <= steps
        assert even % 2 == 0
        largest = [(steps, 0), (even // 2, count)]
    # A column that does not move in one of them may in another: its rounding is charged in both.
    return max(
        sum((main.strategy.sensitivity(main.leaves, size) for size in move), Fraction(0))
        for move in largest
    )


@settings(max_examples=40)
@given(plan=plans())
def test_every_cost_is_a_sensitivity_over_a_scale(plan):
    layout, main = plan.layout, plan.layout.main
    assert main is not None
    power = 1 if main.strategy.law == "laplace" else 2
    for segment in layout.segments:
        moved = moved_most(layout, segment.steps)
        cost = moved / Fraction(main.scale) ** power
        if segment.look is None:  # calibrated: what is charged is what was allowed
            assert cost <= segment.cost.epsilon + segment.cost.mu_squared
            continue
        assert segment.cost == (Cost.pure(cost) if power == 1 else Cost.gaussian(cost))
        counted = Fraction(2 * PARTS**power)
        cost = counted / Fraction(segment.look.scale) ** power
        assert segment.look.cost == (Cost.pure(cost) if power == 1 else Cost.gaussian(cost))
        assert segment.look.law == main.strategy.law
    look = layout.threshold.measure(
        np.ones(3), layout.bounds, layout.threshold_budget, plan.delta, SECRET, layout.setting
    )
    assert look.law == "laplace"
    assert 2 * PARTS / Fraction(look.scale) <= layout.threshold_budget


# --- What is drawn -------------------------------------------------------------------------------

DRAWN = {
    "gaussian": {},
    "pure": {"delta": 0.0},
    "cadence": {"every": 7},
    "never again": {"refresh": None},
    "tree": {"delta": 0.0, "strategy": BinaryTree()},
    "one column": {"missing": "none"},
    "one column, pure": {"missing": "none", "delta": 0.0},
}
#: Of the main mechanism, and of the warm-up.
COLUMNS = {"skip": [(), ("column", 1)], "none": [()]}


def plan_of(name: str) -> Plan:
    fields: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "statistic": Sum(), **DRAWN[name]}
    return Plan(upper=100.0, length=900, lag=100, **fields)


def counts_of(layout):
    """How many counts a look has."""
    return 2 * KNOTS - 1 if layout.threshold.two_sided else KNOTS


@pytest.mark.parametrize("name", DRAWN)
def test_each_look_and_each_leaf_is_drawn_once_with_the_scale_that_is_charged(name):
    plan = plan_of(name)
    layout, main = plan.layout, plan.layout.main
    assert main is not None
    with recorded() as recording:
        plan.open(secret=SECRET).update_many(awkward_values(900, 5))
    looks = {segment.last: segment.look for segment in layout.segments if segment.look is not None}
    seen: dict[Any, list[int]] = {}
    for address, indices in recording.draws.items():
        kind = address[1]
        expected = None
        if kind == "look":
            expected = looks[address[2]]
            assert expected is not None
            seen.setdefault(("look", address[2]), []).extend(indices)
        elif kind == "threshold":
            assert indices == list(range(counts_of(layout)))
            (scale,) = recording.scales[address]
            # The rest of the budget paid for the centre, if there is one.
            left = 1 - CENTRE_SHARE if layout.threshold.two_sided else 1
            assert 2 * PARTS / Fraction(scale) <= layout.threshold_budget * left
            seen.setdefault("warm-up's look", []).extend(indices)
            continue
        else:
            expected = layout.warm_up if address[2] == "warm-up" else main
            seen.setdefault(address[2:], []).extend(indices)
        assert recording.scales[address] == {expected.scale}
        law = expected.law if kind == "look" else expected.strategy.law
        assert recording.laws[address] == {law}
    for end in looks:
        assert seen.pop(("look", end)) == list(range(counts_of(layout)))
    columns = COLUMNS[plan.missing]
    for column in columns:
        assert len(seen.pop(("warm-up", *column))) == 1
    assert len(seen.pop("warm-up's look")) == counts_of(layout)
    assert not recording.continuous
    for indices in seen.values():
        assert len(indices) == len(set(indices))
    assert {address[address.index("column") :] for address in seen if "column" in address} == set(
        columns[1:]
    )
    if not isinstance(plan.strategy, SignedDigitTree):
        for column in columns:
            assert sorted(seen.pop(("main", *column))) == list(range(1, main.leaves + 1))
        assert not seen


# --- Neighbours ----------------------------------------------------------------------------------


@dataclass
class Inside:
    """Exact leaves (a row for each column) and counts of one run, before the noise.

    Counts by the last observation of their segment; 0 stands for the warm-up.
    """

    leaves: list[np.ndarray] = field(default_factory=list)
    counts: dict[int, np.ndarray] = field(default_factory=dict)
    findings: list[Any] = field(default_factory=list)
    centre: float | None = None


@contextmanager
def watched(given: Inside | None = None) -> Iterator[Inside]:
    """Note what meets the noise; with ``given``, decide as that run did: the same releases."""
    found = Inside()
    release, finish = rillet.step._release_leaves, rillet.step._finish_segment
    measure, judge = TailHistogram.measure, TailHistogram.judge
    decisions = iter(given.findings if given is not None else ())

    def note_leaves(layout: Any, state: Any, first: int, exact_leaves: Any) -> Any:
        found.leaves.append(np.array(exact_leaves))
        return release(layout, state, first, exact_leaves)

    def note_first(self: TailHistogram, raw_values: Any, bounds: Range, *more: Any) -> Any:
        look = measure(self, raw_values, bounds, *more)
        found.centre = look.centre if given is None else given.centre
        found.counts[0] = self.count(raw_values, bounds, found.centre)
        return replace(look, centre=found.centre)

    def note_counts(layout: Any, state: Any, *more: Any) -> Any:
        found.counts[state.t] = state.exact_counts.copy()
        return finish(layout, state, *more)

    def decide(self: TailHistogram, *arguments: Any) -> Any:
        finding = judge(self, *arguments) if given is None else next(decisions)
        found.findings.append(finding)
        return finding

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rillet.step, "_release_leaves", note_leaves)
        patch.setattr(rillet.step, "_finish_segment", note_counts)
        patch.setattr(TailHistogram, "measure", note_first)
        patch.setattr(TailHistogram, "judge", decide)
        yield found


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("place", [0, 99, 100, 151, 449, 450, 899])
@pytest.mark.parametrize(
    "pair", [(-math.inf, math.inf), (math.nan, math.inf), (-math.inf, math.nan)], ids=str
)
def test_neighbours_with_the_same_releases_differ_by_what_is_charged(name, place, pair):
    plan = plan_of(name)
    layout, main = plan.layout, plan.layout.main
    assert main is not None
    values = awkward_values(900, 11)
    values[place] = pair[0]
    other = values.copy()
    other[place] = pair[1]
    with watched() as one:
        plan.open(secret=SECRET).update_many(values)
    with watched(one) as two:
        plan.open(secret=SECRET).update_many(other)
    moved = {t: distances(one.counts[t], two.counts[t]) for t in one.counts}
    touched = [t for t, found in moved.items() if found != (0, 0)]
    leaves = np.hstack(two.leaves) - np.hstack(one.leaves)
    if place < layout.lag:
        assert touched == [0]
        assert not leaves.any()
        return
    segment = layout.segment_at(place + 1)
    assert touched == ([segment.last] if segment.look is not None else [])
    # Exactly one leaf moves: from the lowest to the highest value by all the steps of its segment,
    # between a value and none by half of them and by what a value counts.
    assert np.flatnonzero(leaves.any(axis=0)).tolist() == [layout.leaf_of(place + 1) - 1]
    sizes = np.abs(leaves).max(axis=1).tolist()
    steps, count = layout.leaf.cut(segment.steps)
    assert segment.steps < (main.steps if segment.look is not None else 2**62)
    if np.isnan(pair).any():
        half = steps // 2 if pair[0] < 0 else steps - steps // 2
        assert sizes == ([half] if plan.missing == "none" else [half, count])
    else:
        assert sizes == ([steps] if plan.missing == "none" else [steps, 0])
    power = 1 if main.strategy.law == "laplace" else 2
    moves = [main.strategy.sensitivity(main.leaves, size) for size in sizes if size]
    paid = sum(moves) / Fraction(main.scale) ** power
    if segment.look is not None:
        paid += moved[segment.last][power - 1] / Fraction(segment.look.scale) ** power
    allowed = main.cost.epsilon if power == 1 else main.cost.mu_squared
    assert paid <= allowed


def test_the_range_of_an_segment_depends_on_what_came_before_it_alone():
    # With less noise than elsewhere, so that few values can change a range.
    plan = Plan(epsilon=8.0, delta=DELTA, upper=100.0, length=900, lag=100, statistic=Sum())
    values = awkward_values(900, 7)
    ends = [plan.lag, *(segment.last for segment in plan.layout.segments)]
    assert len(ends) > 3
    whole = plan.open(secret=SECRET)
    whole.update_many(values)
    for number, end in enumerate(ends[:-1]):
        changed = values.copy()
        changed[end:] = 90.0
        stream = plan.open(secret=SECRET)
        stream.update_many(changed)
        # Learned at the end of the warm-up and of each segment up to `end`.
        assert stream._state().ranges[: number + 1] == whole._state().ranges[: number + 1]
        # And the change was one that counts, where a range is still to be learned from it.
        assert (stream._state().ranges != whole._state().ranges) == (end != ends[-2])
