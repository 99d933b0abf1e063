"""Epochs: what a look and the running sum cost an observation, and what is really drawn.

The statements are those of docs/proofs/segments.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import given, settings

import rillet.step
from helpers.streams import SECRET, awkward_values, recorded
from rillet import BinaryTree, Independent, Plan, Sum
from rillet.privacy import Cost
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.strategy.toeplitz import BufferedToeplitz
from rillet.threshold import Range, TailHistogram
from rillet.threshold.tail import PARTS
from rillet.threshold.tail_model import KNOTS, knots

DELTA = 2.0**-20
ANY_FLOAT = some.floats(width=64)
BOUNDS = some.tuples(some.floats(-1e6, 1e6), some.floats(1e-3, 1e6)).map(
    lambda pair: Range(pair[0], pair[0] + pair[1])
)


# --- The tally -----------------------------------------------------------------------------------


def distances(one: np.ndarray, two: np.ndarray) -> tuple[int, int]:
    """L1 and squared L2."""
    moved = one.astype(object) - two.astype(object)
    return sum(abs(moved)), sum(moved**2)


@given(
    bounds=BOUNDS, pair=some.tuples(ANY_FLOAT, ANY_FLOAT), rest=some.lists(ANY_FLOAT, max_size=5)
)
def test_one_observation_moves_a_tally_by_no_more_than_is_charged(bounds, pair, rest):
    threshold = TailHistogram()
    one, two = (threshold.tally(np.array([value, *rest]), bounds) for value in pair)
    first, second = distances(one, two)
    assert first <= threshold.tally_sensitivity("laplace") == 2 * PARTS
    assert second <= threshold.tally_sensitivity("gaussian") == 2 * PARTS**2
    assert one.shape == (KNOTS,)
    assert one.min() >= 0
    assert one.sum() == PARTS * (1 + len(rest))


def test_the_sensitivity_of_a_tally_by_brute_force():
    """All pairs of values on, beside and between knots: the bound is reached and never passed."""
    bounds, threshold = Range(-2.0, 6.0), TailHistogram()
    places = bounds.lower + knots(bounds.width)[-12:]
    near = [np.nextafter(places, side) for side in (-np.inf, np.inf)]
    between = [places[:-1] + part * np.diff(places) for part in (0.2, 1 / 3, 0.5, 0.998)]
    odd = [np.nan, np.inf, -np.inf, -2.0, 6.0, 1e308, 5e-324]
    values = np.concatenate([places, *near, *between, odd])
    tallies = [threshold.tally(np.array([value]), bounds) for value in values]
    found = [distances(one, two) for one in tallies for two in tallies]
    assert max(first for first, _ in found) == 2 * PARTS
    assert max(second for _, second in found) == 2 * PARTS**2


def test_tallies_add_up_whatever_the_blocks():
    values, bounds, threshold = awkward_values(500, 3), Range(0.0, 100.0), TailHistogram()
    parts = sum(threshold.tally(part, bounds) for part in np.array_split(values, 7))
    assert np.array_equal(parts, threshold.tally(values, bounds))


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
    )


@settings(max_examples=60)
@given(plan=plans())
def test_no_observation_pays_more_than_the_promise(plan):
    layout = plan.layout
    main = layout.main
    assert main is not None
    for charge in layout.charges().totals():
        assert charge.cost.within(layout.guarantee)
    # Every observation is in the opening or in one epoch.
    firsts = [1, *(epoch.first for epoch in layout.epochs)]
    lasts = [layout.lag, *(epoch.last for epoch in layout.epochs)]
    assert firsts == [1, *(last + 1 for last in lasts[:-1])]
    assert lasts[-1] == plan.length
    # Look and sum together cost no more than the sum alone would, in the same kind.
    for epoch in layout.epochs:
        look = Cost() if epoch.look is None else epoch.look.cost
        both = epoch.cost + look
        assert both.delta == 0
        assert both.epsilon <= main.cost.epsilon
        assert both.mu_squared <= main.cost.mu_squared
        # And leave next to nothing unused.
        used = both.epsilon + both.mu_squared
        assert used >= Fraction(98, 100) * (main.cost.epsilon + main.cost.mu_squared)
    assert layout.opening is not None
    assert layout.opening_look is not None
    opening = layout.opening.cost + layout.opening_look.cost
    assert opening == Cost.pure(Fraction(plan.epsilon))


@settings(max_examples=40)
@given(plan=plans())
def test_every_cost_is_a_sensitivity_over_a_scale(plan):
    layout, main = plan.layout, plan.layout.main
    assert main is not None
    power = 1 if main.strategy.law == "laplace" else 2
    for epoch in layout.epochs:
        moved = main.strategy.sensitivity(main.leaves, epoch.steps)
        cost = moved / Fraction(main.scale) ** power
        if epoch.look is None:  # calibrated: what is charged is what was allowed
            assert cost <= epoch.cost.epsilon + epoch.cost.mu_squared
            continue
        assert epoch.cost == (Cost.pure(cost) if power == 1 else Cost.gaussian(cost))
        counted = Fraction(2 * PARTS**power)
        cost = counted / Fraction(epoch.look.scale) ** power
        assert epoch.look.cost == (Cost.pure(cost) if power == 1 else Cost.gaussian(cost))
        assert epoch.look.law == main.strategy.law
    opening_look = layout.opening_look
    assert opening_look is not None
    assert opening_look.law == "laplace"
    assert 2 * PARTS / Fraction(opening_look.scale) <= opening_look.cost.epsilon


# --- What is drawn -------------------------------------------------------------------------------

DRAWN = {
    "gaussian": {},
    "pure": {"delta": 0.0},
    "cadence": {"every": 7},
    "never again": {"refresh": None},
    "tree": {"delta": 0.0, "strategy": BinaryTree()},
}


def plan_of(name: str) -> Plan:
    fields: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "statistic": Sum(), **DRAWN[name]}
    return Plan(upper=100.0, length=900, lag=100, **fields)


@pytest.mark.parametrize("name", DRAWN)
def test_each_look_and_each_leaf_is_drawn_once_with_the_scale_that_is_charged(name):
    plan = plan_of(name)
    layout, main = plan.layout, plan.layout.main
    assert main is not None
    with recorded() as recording:
        plan.open(secret=SECRET).update_many(awkward_values(900, 5))
    looks = {layout.lag: layout.opening_look}
    looks |= {epoch.last: epoch.look for epoch in layout.epochs if epoch.look is not None}
    seen: dict[Any, list[int]] = {}
    for address, indices in recording.draws.items():
        kind = address[1]
        expected = None
        if kind == "look":
            expected = looks[address[2]]
            assert expected is not None
            seen.setdefault(("look", address[2]), []).extend(indices)
        elif address[2] == "opening":
            expected = layout.opening
            seen.setdefault("opening", []).extend(indices)
        else:
            expected = main
            seen.setdefault(address[2:], []).extend(indices)
        assert recording.scales[address] == {expected.scale}
        law = expected.law if kind == "look" else expected.strategy.law
        assert recording.laws[address] == {law}
    for end in looks:
        assert seen.pop(("look", end)) == list(range(KNOTS))
    assert len(seen.pop("opening")) == 1
    assert not recording.continuous
    for indices in seen.values():
        assert len(indices) == len(set(indices))
    if not isinstance(plan.strategy, SignedDigitTree):
        assert sorted(seen[("main",)]) == list(range(1, main.leaves + 1))


# --- Neighbours ----------------------------------------------------------------------------------


@dataclass
class Inside:
    """Exact leaves and tallies of one run, before the noise."""

    leaves: list[int] = field(default_factory=list)
    tallies: dict[int, np.ndarray] = field(default_factory=dict)
    findings: list[Any] = field(default_factory=list)


@contextmanager
def watched(given: Inside | None = None) -> Iterator[Inside]:
    """Note what meets the noise; with ``given``, decide as that run did: the same releases."""
    found = Inside()
    release, look, judge = rillet.step._release_leaves, rillet.step._look, TailHistogram.judge
    decisions = iter(given.findings if given is not None else ())

    def note_leaves(layout: Any, state: Any, first: int, exact_leaves: Any) -> Any:
        found.leaves.extend(np.asarray(exact_leaves).tolist())
        return release(layout, state, first, exact_leaves)

    def note_tally(layout: Any, state: Any, t: int) -> Any:
        found.tallies[t] = state.exact_tally.copy()
        return look(layout, state, t)

    def decide(self: TailHistogram, *arguments: Any) -> Any:
        finding = judge(self, *arguments) if given is None else next(decisions)
        found.findings.append(finding)
        return finding

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rillet.step, "_release_leaves", note_leaves)
        patch.setattr(rillet.step, "_look", note_tally)
        patch.setattr(TailHistogram, "judge", decide)
        yield found


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("place", [0, 99, 100, 151, 449, 450, 899])
def test_neighbours_with_the_same_releases_differ_by_what_is_charged(name, place):
    plan = plan_of(name)
    layout, main = plan.layout, plan.layout.main
    assert main is not None
    values = awkward_values(900, 11)
    values[place] = -math.inf
    other = values.copy()
    other[place] = math.inf
    with watched() as one:
        plan.open(secret=SECRET).update_many(values)
    with watched(one) as two:
        plan.open(secret=SECRET).update_many(other)
    moved = {t: distances(one.tallies[t], two.tallies[t]) for t in one.tallies}
    touched = [t for t, found in moved.items() if found != (0, 0)]
    leaves = np.array(two.leaves) - np.array(one.leaves)
    if place < layout.lag:
        assert touched == [layout.lag]
        assert not leaves.any()
        return
    epoch = layout.epoch_at(place + 1)
    assert touched == ([epoch.last] if epoch.look is not None else [])
    # From the lowest to the highest value: exactly one leaf moves, by all the steps of its epoch.
    assert np.flatnonzero(leaves).tolist() == [layout.leaf_of(place + 1) - 1]
    assert leaves.max() == epoch.steps < (main.steps if epoch.look is not None else 2**62)
    power = 1 if main.strategy.law == "laplace" else 2
    paid = main.strategy.sensitivity(main.leaves, int(leaves.max())) / Fraction(main.scale) ** power
    if epoch.look is not None:
        paid += moved[epoch.last][power - 1] / Fraction(epoch.look.scale) ** power
    allowed = main.cost.epsilon if power == 1 else main.cost.mu_squared
    assert paid <= allowed


def test_the_range_of_an_epoch_depends_on_what_came_before_it_alone():
    plan = plan_of("gaussian")
    values = awkward_values(900, 7)
    ends = [plan.lag, *(epoch.last for epoch in plan.layout.epochs)]
    assert len(ends) > 3
    whole = plan.open(secret=SECRET)
    whole.update_many(values)
    for number, end in enumerate(ends[:-1]):
        changed = values.copy()
        changed[end:] = 90.0
        stream = plan.open(secret=SECRET)
        stream.update_many(changed)
        # Learned at the end of the opening and of each epoch up to `end`.
        assert stream._settled().ranges[: number + 1] == whole._settled().ranges[: number + 1]
        # And the change was one that counts, where a range is still to be learned from it.
        assert (stream._settled().ranges != whole._settled().ranges) == (end != ends[-2])
