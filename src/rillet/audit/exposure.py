"""The most exposed unit: what it moves left of the noise, found by trying, against the promise.

Every kind of unit that a plan protects is tried on a made-up stream: an observation replaced (by
count) or added (by the clock) at each place, with values inside, beyond and outside of the bounds,
or missing; all that a person may add, side by side or apart, in one key or in two.  The neighbour
is replayed on the same releases (:mod:`rillet.audit.replay`).

**Privacy.** For audits, on made-up streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any, Final

import numpy as np

from rillet.audit.hockey_stick import epsilon_at
from rillet.audit.replay import Diverged, World, by_clock, by_count, looked, paid
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.plan import Plan
from rillet.privacy import Cost, Guarantee
from rillet.statistic import Range, Setting
from rillet.testing.threshold_contract import on_public_grid
from rillet.threshold import Threshold
from rillet.times import show_duration

__all__ = ["Exposure", "exposure", "exposure_of_look", "in_miniature"]

#: A plan with more leaves than this is tried in miniature, where each unit can be enumerated.
MOST_LEAVES: Final = 16
#: So many places are tried, spread over the stream, beside the first and last of every part.
MOST_PLACES: Final = 20
_LOOKS: Final = ("rank", "smooth", "first look", "look")


@dataclass(frozen=True)
class Exposure:
    """The unit of which most was found out: its cost, as ε at the promised δ."""

    unit: str
    cost: Cost
    epsilon: float
    promised: Guarantee
    pairs: int

    @property
    def within(self) -> bool:
        """Whether the promise is kept; decided exactly."""
        return self.cost.within(self.promised)


def in_miniature(plan: Plan) -> Plan:
    """The same plan on few leaves, calibrated by the same code; as it is, if it has few."""
    layout = plan.layout
    if layout.main is None or layout.main.leaves <= MOST_LEAVES:
        return plan
    length: int | str = layout.lag + MOST_LEAVES * layout.every
    if plan.clock is not None:
        length = show_duration((layout.lag + MOST_LEAVES) * plan.clock.every)
    return replace(plan, length=length, lag=layout.lag, amendments=())


def exposure(plan: Plan, secret: Secret, *, places: int = MOST_PLACES) -> Exposure:
    """Try units everywhere; return the one that pays most.

    Raises
    ------
    Diverged
        If anything public depends on the unit other than through what is released.
    """
    layout = plan.layout
    tried = _added(plan, secret, places) if plan.clock else _replaced(plan, secret, places)

    def promised(t: int) -> Guarantee:
        return [layout.guarantee, *(other for first, other in layout.later if first <= t)][-1]

    return _worst((unit, promised(t), cost) for unit, t, cost in tried)


def _worst(tried: Iterable[tuple[str, Guarantee, Cost]]) -> Exposure:
    """The unit that pays most of its promise: of δ at the promised ε, then of ε and μ²."""

    def paid_part(each: tuple[str, Guarantee, Cost]) -> tuple[Any, ...]:
        _, promised, cost = each
        beyond = cost.delta_at(promised.epsilon)
        of_epsilon = cost.epsilon / Fraction(promised.epsilon)
        return not cost.within(promised), beyond, of_epsilon, cost.mu_squared

    found = list(tried)
    unit, promised, cost = max(found, key=paid_part)
    return Exposure(unit, cost, epsilon_at(cost, promised.delta), promised, len(found))


# --- By count: one observation is replaced -------------------------------------------------------


def _values(bounds: Range) -> tuple[float, ...]:
    """Beyond the bounds, inside, and missing."""
    lower, upper = (max(min(end, 1e6), -1e6) for end in (bounds.lower, bounds.upper))
    inside = (lower + (upper - lower) * part for part in (0.1, 0.4, 0.8))
    return (math.inf, -math.inf, *inside, math.nan)


def _places(layout: Layout, most: int) -> list[int]:
    """Where units are tried: ends of every part, and some between."""
    ends = {1, layout.lag, layout.lag + 1, layout.length}
    ends |= {t for segment in layout.segments for t in (segment.first, segment.last)}
    spread = np.linspace(1, layout.length, most).astype(int).tolist()
    return sorted({t for t in (*sorted(ends)[:most], *spread) if 1 <= t <= layout.length})


def _replaced(plan: Plan, secret: Secret, places: int) -> Iterator[tuple[str, int, Cost]]:
    layout, values = plan.layout, _values(plan.bounds)
    stream = np.resize(np.array([*values[::-1], *values]), layout.length).tolist()
    cuts = (2, layout.lag, 5)
    base = by_count(layout, stream, secret=secret, cuts=cuts)
    _same(base, by_count(layout, stream, secret=secret, cuts=cuts), "a run again")
    _same(base, by_count(layout, stream, secret=secret), "other blocks")
    for t in _places(layout, places):
        worlds = []
        for value in values:
            other = by_count(
                layout, [*stream[: t - 1], value, *stream[t:]], base, secret=secret, cuts=cuts
            )
            _same(base, other, f"observation {t}")
            worlds.append((value, other))
        for (one_value, one), (other_value, other) in combinations(worlds, 2):
            cost = paid(layout, one, other).cost
            if layout.shared is not None:
                shared = layout.shared
                pair = ([one_value, *stream[:7]], [other_value, *stream[:7]])
                cost = cost + _cost_of_look(
                    shared.threshold, pair, shared.bounds, shared.budget, plan.delta, secret
                )
            yield f"observation {t}, {one_value:g} or {other_value:g}", t, cost


# --- By the clock: a unit is added ---------------------------------------------------------------


def _added(plan: Plan, secret: Secret, places: int) -> Iterator[tuple[str, int, Cost]]:
    layout, values = plan.layout, _values(plan.bounds)
    ticks = [t for t in range(1, layout.length + 1) if t % 4 != 2]  # some are empty
    others = [(t, values[t % len(values)]) for t in ticks for _ in range(1 + t % 2)]
    streams = [layout.of_level(level) for level in (None, *range(len(layout.levels)))]
    bases = [by_clock(own, others, secret=secret) for own in streams]
    _same(bases[0], by_clock(layout, others, secret=secret), "a run again")

    def cost_of(added: Sequence[tuple[int, float]]) -> Cost:
        found = []
        for own, base in zip(streams, bases, strict=True):
            other = by_clock(own, [*added, *others], base, secret=secret)
            _same(base, other, f"what is added at {added}")
            found.append(paid(own, base, other))
        # A look is one for all streams of an observation; their sums are each their own.
        looks = [{k: v for k, v in each.by_label.items() if k in _LOOKS} for each in found]
        total = sum((each.cost for each in found), Cost())
        twice = sum(map(_total, looks), Fraction(0)) - max(map(_total, looks))
        if layout.guarantee.delta and not total.epsilon:
            return replace(total, mu_squared=total.mu_squared - twice)
        return replace(total, epsilon=total.epsilon - twice)

    if layout.gate is None:
        for t in _places(layout, places):
            for value in values:
                yield f"{value:g} added in tick {t}", t, cost_of([(t, value)])
        return
    for own in _ticks_of_a_person(layout, places):
        words = f"a person in ticks {', '.join(map(str, own))}"
        for signs in ((math.inf,), (math.inf, -math.inf)):
            added = list(zip(own, np.resize(signs, len(own)).tolist(), strict=True))
            yield words, own[0], cost_of(added)
            if len(plan.keys) > 1 and len(own) > 1:
                parts = [cost_of(added[::2]), cost_of(added[1::2])]
                yield f"{words}, in two keys", own[0], parts[0] + parts[1]


def _total(labels: dict[str, Fraction]) -> Fraction:
    return sum(labels.values(), Fraction(0))


def _ticks_of_a_person(layout: Layout, places: int) -> Iterable[tuple[int, ...]]:
    """As many as the gate lets in: as close as may be from each place on, and spread out."""
    gate = layout.gate
    assert gate is not None
    reach = min(layout.length, gate.within or layout.length)
    for first in _places(layout, places):
        for apart in {gate.apart, max(gate.apart, reach // max(1, gate.most))}:
            block = (first - 1) // reach
            last = min(layout.length, (block + 1) * reach)
            own = range(first, last + 1, apart)[: gate.most]
            if own:
                yield tuple(own)


def _same(one: World, other: World, what: str) -> None:
    """Control flow: all that is public is the same, and so is what was drawn."""
    if one.public() != other.public():
        raise Diverged(f"{what}: something public changes although all releases are the same")


# --- A look alone --------------------------------------------------------------------------------


def exposure_of_look(
    threshold: Threshold,
    bounds: Range,
    promised: Guarantee,
    secret: Secret,
    *,
    setting: Setting,
    observations: int = 12,
) -> Exposure:
    """Neighbours of small sets of values, made to break a quantile: all equal, or at an end."""
    lower, upper = bounds.lower, bounds.upper
    middle = (lower + upper) / 2
    spread = np.linspace(lower, upper, observations).tolist()
    sets = [
        spread,
        [lower] * observations,
        [middle] * observations,
        [upper] * observations,
        [lower] * (observations // 2) + [upper] * (observations - observations // 2),
        np.geomspace(max(lower, 1e-6) + 1e-6, upper, observations).tolist(),
    ]
    budget, tried = Fraction(promised.epsilon), []
    places = (0, observations // 2, observations - 1)
    for values, place, value in product(sets, places, _values(bounds)[:-1]):
        pair = values, [*values[:place], value, *values[place + 1 :]]
        cost = _cost_of_look(threshold, pair, bounds, budget, promised.delta, secret, setting)
        unit = f"value {place + 1} of {observations}, {values[place]:g} or {value:g}"
        tried.append((unit, promised, cost))
    return _worst(tried)


def _cost_of_look(
    threshold: Threshold,
    pair: tuple[Sequence[float], Sequence[float]],
    bounds: Range,
    budget: Fraction,
    delta: float,
    secret: Secret,
    setting: Setting | None = None,
) -> Cost:
    setting = Setting() if setting is None else setting
    one = looked(threshold, pair[0], bounds, budget, delta, setting, secret=secret)
    two = looked(threshold, pair[1], bounds, budget, delta, setting, one, secret=secret)
    looks = [(look.observations, look.centre, look.point) for look in (one.state, two.state)]
    if looks[0] != looks[1]:
        raise Diverged(f"{threshold.name}: a look differs although its releases are the same")
    point = one.state.point
    if point is not None and not on_public_grid(Range(bounds.lower, point), bounds):
        raise Diverged(f"{threshold.name}: a learned bound is not on the public grid")
    return paid(None, one, two).cost
