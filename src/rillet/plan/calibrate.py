"""From a plan's parameters to calibrated mechanisms: how the promise is divided and spent.

**Privacy.** Public numbers only.  What is made here is checked as a whole by its charges.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from rillet.errors import ParameterError
from rillet.gather.gate import GateRule
from rillet.gather.grid import FEWEST_STEPS, LARGEST_SUM
from rillet.layout import MANY_KEYS, Layout, LevelTotals, LookNoise, Segment, SharedThreshold
from rillet.levels import key_share, share_of
from rillet.privacy import (
    Cost,
    Guarantee,
    gaussian_mu,
    gaussian_std,
    laplace_scale,
    root_down,
    root_up,
)
from rillet.strategy import Contributions, Independent, Mechanism, SignedDigitTree, Strategy
from rillet.threshold import FixedThreshold, Threshold

if TYPE_CHECKING:
    from rillet.plan.plan import Plan

#: By the clock a tick is made to hold this many observations before it saturates, where the lattice
#: allows it.
_IN_A_TICK = 2**24
#: Where a strategy charges rounding, there are this many steps for each square root of its leaves,
#: so that the charge is at most 5 % of the noise; more would let a tick saturate sooner.
_STEPS_PER_ROOT = 32
#: A statistic that forgets has settled after so many times what it looks back on: from then on
#: segments repeat.
_SPANS_TO_SETTLE = 4
#: A leaf that splits its budget between values and counts does so anew at most so often.
_MOST_SPLITS = 10


def layout_of(plan: Plan) -> Layout:
    """Calibrate every part of a plan in which nothing is left to choose, as it was amended."""
    layout = _layout_at_first(plan)
    for each in plan.amendments:
        if each.epsilon is None:
            continue
        # The next tick is open: its observations lie on a lattice already.
        first = max(each.after + 2, layout.lag + 1)
        promise = replace(plan.guarantee, epsilon=each.epsilon)
        assert layout.main is not None
        main = layout.main.for_promise(promise)
        threshold, lag = layout.threshold, layout.lag
        segments, _ = _segments(plan, main, threshold, lag, key_share(plan.levels))
        levels = tuple(
            replace(own, segments=_segments(plan, main, threshold, lag, share_of(level))[0])
            for own, level in zip(layout.levels, plan.levels, strict=True)
        )
        other = replace(layout, segments=segments, levels=levels)
        layout = layout.amended(first, promise, other)
    return layout


def _layout_at_first(plan: Plan) -> Layout:
    threshold, strategy, lag = plan.threshold, plan.strategy, plan.lag
    assert isinstance(threshold, Threshold) and isinstance(strategy, Strategy)
    assert isinstance(lag, int) and isinstance(plan.threshold_share, float)
    main = main_of(plan, strategy, threshold, lag, plan.threshold_share)
    budget = _threshold_budget(plan, plan.threshold_share)
    shared = None
    if _shares_by_count(plan):
        # Each key's stream has no warm-up, and what the shared threshold leaves of the promise.
        cost = threshold.cost(budget, plan.delta)
        shared = SharedThreshold(threshold, lag, plan.bounds, budget, cost)
        threshold, lag, budget = FixedThreshold(), 0, Fraction(0)
    most, every = plan.last_t, plan.leaf_every
    fleet, strategy = _is_fleet(plan, threshold), _for_keys(plan, strategy, threshold)
    setting, contributions = plan.setting(strategy.law), contributions_of(plan)
    segments, repeats = _segments(plan, main, threshold, lag, key_share(plan.levels))
    first_look: tuple[LookNoise, ...] = ()
    threshold_cost, rounding = threshold.cost(budget, plan.delta), Cost()
    if lag and contributions.most > 1 and strategy.law == "gaussian":
        rounding = Cost() if main is None else main.rounding
        first_look = _first_look(plan, threshold, lag, contributions.most, rounding)
        threshold_cost = sum((part.cost for part in first_look), Cost())
    else:
        budget /= contributions.most
    warm_up = _warm_up(plan, strategy, lag, threshold_cost + rounding, first_look)
    return Layout(
        guarantee=plan.guarantee,
        bounds=plan.bounds,
        length=most,
        length_is_known=plan.length is not None,
        lag=lag,
        every=every,
        backfill=plan.backfill,
        threshold=threshold,
        threshold_budget=budget,
        threshold_cost=threshold_cost,
        first_look=first_look,
        warm_up=_part_of(warm_up, key_share(plan.levels)),
        main=main,
        segments=segments,
        repeats=repeats,
        memory=plan.memory,
        statistic=plan.statistic,
        keys=len(plan.keys),
        shared=shared,
        setting=setting,
        clock=plan.clock,
        missing_value=plan.missing if isinstance(plan.missing, float) else None,
        unit=plan.unit,
        gate=gate_of(plan),
        fleet=fleet,
        groups=len(plan.tree.groups) if fleet else 1,
        levels=_levels(plan, main, warm_up, threshold, lag),
        tail=plan.tail,
        sane=plan.sane,
    )


def main_of(
    plan: Plan, strategy: Strategy, threshold: Threshold, lag: int, threshold_share: float
) -> Mechanism | None:
    """A strategy, calibrated for what comes after the warm-up; None where nothing does.

    Also of a plan that has not chosen yet, which compares strategies by it.
    """
    already = Cost()
    if _shares_by_count(plan):
        # All observations of all keys have the same budget for their sums, also those that came
        # after the range was learned: a key cannot say beforehand which of its own those are.
        already, lag = threshold.cost(_threshold_budget(plan, threshold_share), plan.delta), 0
    left = plan.last_t - lag
    if not left:
        return None
    strategy = _for_keys(plan, strategy, threshold)
    return Mechanism.calibrate(
        strategy,
        -(-left // plan.leaf_every),
        plan.guarantee,
        already=already,
        observations=largest_number(plan, strategy, left),
        moves=plan.statistic.leaf(plan.setting(strategy.law)).moves,
        contributions=contributions_of(plan),
    )


def _threshold_budget(plan: Plan, share: float) -> Fraction:
    """The share as the decimal that was typed, so that 0.8 of 1 leaves exactly 0.2."""
    return Fraction(plan.epsilon) * Fraction(repr(share))


def _shares_by_count(plan: Plan) -> bool:
    """Whether all keys learn one range from the first observations of any."""
    return plan.shared_threshold and plan.clock is None


def _is_fleet(plan: Plan, threshold: Threshold) -> bool:
    """Whether all keys are stepped at once, by the clock."""
    learns_alone = threshold.learns and not plan.shared_threshold
    return plan.clock is not None and bool(plan.keys) and not learns_alone


def _for_keys(plan: Plan, strategy: Strategy, threshold: Threshold) -> Strategy:
    """The strategy with a small state, where there are many."""
    many = _is_fleet(plan, threshold) or len(plan.keys) >= MANY_KEYS
    return strategy.for_many_keys() if many else strategy


def _part_of(mechanism: Mechanism | None, part: Fraction) -> Mechanism | None:
    """The same mechanism on as many steps as a part of its cost pays for."""
    if mechanism is None or part == 1:
        return mechanism
    steps, cost = mechanism.with_less(1 - part)
    return replace(mechanism, steps=steps, cost=cost)


def _levels(
    plan: Plan,
    main: Mechanism | None,
    warm_up: Mechanism | None,
    threshold: Threshold,
    lag: int,
) -> tuple[LevelTotals, ...]:
    """The same mechanism for each level of totals, on as many steps as its share pays for."""
    levels = []
    for number, level in enumerate(plan.levels):
        segments, _ = _segments(plan, main, threshold, lag, share_of(level))
        counts = np.unique(plan.tree.total_of[number], return_counts=True)[1]
        levels.append(
            LevelTotals(
                level.name,
                float(share_of(level)),
                segments,
                _part_of(warm_up, share_of(level)),
                len(counts),
                int(counts.max()),
            )
        )
    return tuple(levels)


def gate_of(plan: Plan) -> GateRule | None:
    """The bound on what is used of a person, in ticks of the plan's clock."""
    unit, clock = plan.unit, plan.clock
    if unit is None:
        return None
    assert clock is not None
    within = None if unit.within is None else unit.length("within") // clock.every
    return GateRule(unit.most, unit.length("apart") // clock.every, within)


def largest_number(plan: Plan, strategy: Strategy, leaves: int) -> int:
    """The most observations that so many leaves can be made to hold."""
    if plan.clock is None:
        return leaves
    coarsest = FEWEST_STEPS
    if strategy.sensitivity(leaves, 0):
        coarsest = max(coarsest, _STEPS_PER_ROOT * math.isqrt(leaves))
    return min(leaves * _IN_A_TICK, LARGEST_SUM // coarsest)


def contributions_of(plan: Plan) -> Contributions:
    """What one unit may add: an observation, or as many of a person as fit into a block."""
    rule = gate_of(plan)
    if rule is None:
        return Contributions()
    fit = (min(rule.within or plan.last_t, plan.last_t) - 1) // rule.apart + 1
    most = min(rule.most, fit)
    return Contributions(most, rule.apart, min(most, max(1, len(plan.keys))))


def _first_look(
    plan: Plan, threshold: Threshold, lag: int, most: int, rounding: Cost
) -> tuple[LookNoise, ...]:
    """The first look with Gaussian noise, as if all of a person's observations were in it.

    A person may be in the warm-up and after it, and Gaussian costs compose as the rest does; what
    the ``rounding`` of nodes may cost is left aside, since a single observation may cause it.
    """
    if not threshold.first_counts:
        raise ParameterError(
            "threshold",
            "one whose first look is counts, since a person may be in several looks",
            threshold.name,
            "leave threshold out, or declare a range with FixedThreshold",
        )
    share = Fraction(repr(plan.threshold_share))
    mu_squared = (Fraction(gaussian_mu(plan.guarantee)) ** 2 - rounding.mu_squared) * share
    moved = most**2 * threshold.count_sensitivity("gaussian", added=True)
    scales = [gaussian_std(moved, root_down(mu_squared * part)) for part in threshold.first_counts]
    return tuple(
        LookNoise(lag, scale, "gaussian", Cost.gaussian(moved / Fraction(scale) ** 2))
        for scale in scales
    )


def _warm_up(
    plan: Plan,
    strategy: Strategy,
    lag: int,
    spent: Cost,
    first_look: tuple[LookNoise, ...],
) -> Mechanism | None:
    """The sum of the first ``lag``, with what learning the threshold leaves.

    It could not be cut into windows, so a statistic that forgets has none.
    """
    if not lag or plan.memory.forgets:
        return None
    most = contributions_of(plan).most
    # Its own release is pure: the threshold may have used up all of delta.  Where it has not, and a
    # leaf has many columns, Gaussian noise may be less.
    pure: Strategy = Independent()
    if plan.backfill:
        pure = strategy if strategy.law == "laplace" else SignedDigitTree()
    tried = [(pure, Guarantee(plan.epsilon), Cost(epsilon=spent.epsilon))]
    gaussian = Independent(law="gaussian")
    if first_look:
        tried = [(gaussian, plan.guarantee, spent)]
    elif plan.delta and not spent.delta and most == 1 and not plan.backfill:
        tried.append((gaussian, plan.guarantee, spent))

    def calibrated(of_sum: Strategy, promise: Guarantee, left: Cost) -> tuple[float, Mechanism]:
        leaf = plan.statistic.leaf(plan.setting(of_sum.law))

        def all_in_one_leaf(steps: int) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(most * size for size in move) for move in leaf.moves(steps))

        found = Mechanism.calibrate(
            of_sum,
            -(-lag // plan.leaf_every) if plan.backfill else 1,
            promise,
            already=left,
            observations=largest_number(plan, of_sum, lag),
            moves=all_in_one_leaf,
        )
        return float(found.unit_variance(found.leaves)[0]) * leaf.typical_factor**2, found

    return min((calibrated(*each) for each in tried), key=itemgetter(0))[1]


def _segments(
    plan: Plan, main: Mechanism | None, threshold: Threshold, lag: int, part: Fraction
) -> tuple[tuple[Segment, ...], bool]:
    """Segments of the main mechanism, each with the look at its end; whether the last repeats.

    Sums get ``part`` of what looks leave of an observation's budget.
    """
    if main is None:
        return (), False
    most, until, known = plan.last_t, plan.last_t, plan.length is not None
    if plan.memory.forgets:
        until = min(most, lag + _SPANS_TO_SETTLE * plan.memory.span * plan.leaf_every)
        known = True
    ends = threshold.segment_ends(lag, until, plan.leaf_every)
    if plan.statistic.learns_once and len(ends) > 1:
        raise ParameterError(
            "threshold",
            "one that is learned once, since bins stay as they are",
            threshold.name,
            "give refresh=None, or declare the edges: bins=[0, 10, 20]",
        )
    can_change = type(main.strategy).covariance is not Strategy.covariance
    splits = plan.statistic.leaf(plan.setting(main.strategy.law)).splits and can_change
    if splits and len(ends) == 1:
        # The split of the budget needs public times as well, where the range has none.
        ends = _doubling(lag, until)
    if len(ends) == 1:
        until, ends = most, (most,)

    def share(last: int) -> Fraction:
        # Where no end is known, each segment is taken for the last but one: a look is worth no more
        # than what it can still improve.
        return threshold.look_share(last, until if known else min(until, 2 * last))

    segments = tuple(
        _segment(main, threshold, first + 1, last, share(last), part, added=plan.clock is not None)
        for first, last in pairwise((lag, *ends))
    )
    return segments, until < most


def _doubling(lag: int, most: int) -> tuple[int, ...]:
    """``most``, and what halving the rest gives, ten times or down to one."""
    lengths = [-(-(most - lag) // 2**halved) for halved in range(_MOST_SPLITS)]
    return tuple(sorted({lag + length for length in lengths}))


def _segment(
    main: Mechanism,
    threshold: Threshold,
    first: int,
    last: int,
    share: Fraction,
    part: Fraction,
    *,
    added: bool,
) -> Segment:
    """Give ``share`` of an observation's budget to the look, ``part`` of the rest to its sums.

    The main mechanism keeps its noise and takes fewer steps: what it costs falls with them.
    """
    steps, reduced = main.steps, main.cost
    if share or part < 1:
        steps, reduced = main.with_less(1 - (1 - share) * part)
    if not share:
        return Segment(first, last, steps, reduced)
    law, whole, most = main.strategy.law, main.cost, main.contributions.most
    sensitivity = threshold.count_sensitivity(law, added=added)
    # All of a person may fall into one look, whatever lies between them.
    sensitivity *= most if law == "laplace" else most**2
    if law == "laplace":
        scale = laplace_scale(sensitivity, whole.epsilon * share)
        cost = Cost.pure(sensitivity / Fraction(scale))
    else:
        scale = root_up(sensitivity / (whole.mu_squared * share))
        cost = Cost.gaussian(sensitivity / Fraction(scale) ** 2)
    return Segment(first, last, steps, reduced, LookNoise(last - first + 1, scale, law, cost))
