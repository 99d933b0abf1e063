"""From a plan's parameters to calibrated mechanisms: how the promise is divided and spent.

**Privacy.** Public numbers only.  What is made here is checked as a whole by its charges.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from rillet.layout import Layout, LookNoise, Segment, SharedThreshold
from rillet.privacy import Cost, Guarantee, laplace_scale, root_up
from rillet.strategy import Independent, Mechanism, SignedDigitTree, Strategy
from rillet.threshold import FixedThreshold, Threshold

if TYPE_CHECKING:
    from rillet.plan.plan import Plan


def layout_of(plan: Plan) -> Layout:
    """Calibrate every part of a plan in which nothing is left to choose."""
    threshold, strategy, lag = plan.threshold, plan.strategy, plan.lag
    assert isinstance(threshold, Threshold) and isinstance(strategy, Strategy)
    assert isinstance(lag, int) and isinstance(plan.threshold_share, float)
    # The share as the decimal that was typed, so that 0.8 of 1 leaves exactly 0.2.
    budget = Fraction(plan.epsilon) * Fraction(repr(plan.threshold_share))
    shared, already = None, Cost()
    if plan.shared_threshold:
        # Each key's stream has no warm-up, and what the shared threshold leaves of the promise.
        # All observations of all keys have the same budget for their sums, also those that came
        # after the range was learned: a key cannot say beforehand which of its own those are.
        already = threshold.cost(budget, plan.delta)
        shared = SharedThreshold(threshold, lag, plan.bounds, budget, already)
        threshold, lag, budget = FixedThreshold(), 0, Fraction(0)
    most, main = plan.most_observations, None
    if most > lag:
        main = Mechanism.calibrate(
            strategy,
            -(-(most - lag) // plan.every),
            plan.guarantee,
            already=already,
            observations=most - lag,
            moves=plan.statistic.moves,
        )
    return Layout(
        guarantee=plan.guarantee,
        bounds=plan.bounds,
        length=most,
        length_is_known=plan.length is not None,
        lag=lag,
        every=plan.every,
        backfill=plan.backfill,
        threshold=threshold,
        threshold_budget=budget,
        warm_up=_warm_up(plan, threshold, strategy, lag, budget),
        main=main,
        segments=_segments(plan, main, threshold, lag),
        statistic=plan.statistic,
        keys=len(plan.keys),
        shared=shared,
    )


def _warm_up(
    plan: Plan, threshold: Threshold, strategy: Strategy, lag: int, budget: Fraction
) -> Mechanism | None:
    """The sum of the first ``lag``, with what learning the threshold leaves."""
    if not lag:
        return None
    # The warm-up's own release is pure: the threshold may have used up all of delta.
    of_sum: Strategy = Independent()
    if plan.backfill:
        of_sum = strategy if strategy.law == "laplace" else SignedDigitTree()
    leaves = -(-lag // plan.every) if plan.backfill else 1
    left = Cost(epsilon=threshold.cost(budget, plan.delta).epsilon)
    return Mechanism.calibrate(
        of_sum,
        leaves,
        Guarantee(plan.epsilon),
        already=left,
        observations=lag,
        moves=plan.statistic.moves,
    )


def _segments(
    plan: Plan, main: Mechanism | None, threshold: Threshold, lag: int
) -> tuple[Segment, ...]:
    """Segments of the main mechanism, each with the look at its end."""
    if main is None:
        return ()
    most = plan.most_observations
    return tuple(
        _segment(main, threshold, first + 1, last, threshold.look_share(last, most))
        for first, last in pairwise((lag, *threshold.segment_ends(lag, most, plan.every)))
    )


def _segment(
    main: Mechanism, threshold: Threshold, first: int, last: int, share: Fraction
) -> Segment:
    """Give ``share`` of an observation's budget to the look, the rest to the main mechanism.

    The main mechanism keeps its noise and takes fewer steps: what it costs falls with them.
    """
    if not share:
        return Segment(first, last, main.steps, main.cost)
    law, whole = main.strategy.law, main.cost
    sensitivity = threshold.count_sensitivity(law)
    if law == "laplace":
        scale = laplace_scale(sensitivity, whole.epsilon * share)
        cost = Cost.pure(sensitivity / Fraction(scale))
    else:
        scale = root_up(sensitivity / (whole.mu_squared * share))
        cost = Cost.gaussian(sensitivity / Fraction(scale) ** 2)
    steps, reduced = main.with_less(share)
    return Segment(first, last, steps, reduced, LookNoise(last - first + 1, scale, law, cost))
