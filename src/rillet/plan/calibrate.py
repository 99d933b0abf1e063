"""From a plan's parameters to calibrated mechanisms: how the promise is divided and spent.

**Privacy.** Public numbers only.  What is made here is checked as a whole by its charges.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from rillet.layout import Epoch, Layout, LookNoise, SharedThreshold
from rillet.privacy import Cost, Guarantee, laplace_scale, root_up
from rillet.strategy import Independent, Mechanism, SignedDigitTree, Strategy
from rillet.threshold import FixedThreshold, RefreshingThreshold, Threshold

if TYPE_CHECKING:
    from rillet.plan.plan import Plan


def layout_of(plan: Plan) -> Layout:
    """Calibrate every part of a plan in which nothing is left to choose."""
    threshold, strategy, lag = plan.threshold, plan.strategy, plan.lag
    assert isinstance(threshold, Threshold) and isinstance(strategy, Strategy)
    assert isinstance(lag, int) and isinstance(plan.threshold_share, float)
    # The share as the decimal that was typed, so that 0.8 of 1 leaves exactly 0.2.
    budget = Fraction(plan.epsilon) * Fraction(repr(plan.threshold_share))
    if plan.shared_threshold:
        return _shared_layout(plan, threshold, strategy, lag, budget)
    most = plan.most_observations
    main = None
    if most > lag:
        leaves = -(-(most - lag) // plan.every)
        main = Mechanism.calibrate(strategy, leaves, plan.guarantee, observations=most - lag)
    epochs, look = _epochs(plan, main, threshold, lag, budget)
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
        opening=_opening(plan, threshold, strategy, lag, budget),
        opening_look=look,
        main=main,
        epochs=epochs,
        statistic=plan.statistic,
        digest=plan.digest,
        keys=len(plan.keys),
    )


def _opening(
    plan: Plan, threshold: Threshold, strategy: Strategy, lag: int, budget: Fraction
) -> Mechanism | None:
    """The sum of the first ``lag``, with what learning the threshold leaves."""
    if not lag:
        return None
    # The opening's own release is pure: the threshold may have used up all of delta.
    of_sum: Strategy = Independent()
    if plan.backfill:
        of_sum = strategy if strategy.law == "laplace" else SignedDigitTree()
    leaves = -(-lag // plan.every) if plan.backfill else 1
    left = Cost(epsilon=threshold.cost(budget, plan.delta).epsilon)
    promise = Guarantee(plan.epsilon)
    return Mechanism.calibrate(of_sum, leaves, promise, already=left, observations=lag)


def _epochs(
    plan: Plan, main: Mechanism | None, threshold: Threshold, lag: int, budget: Fraction
) -> tuple[tuple[Epoch, ...], LookNoise | None]:
    """Epochs of the main mechanism, and the look at the opening's end."""
    if not isinstance(threshold, RefreshingThreshold):
        if main is None:
            return (), None
        return (Epoch(lag + 1, plan.most_observations, main.steps, main.cost),), None
    epochs: list[Epoch] = []
    ends = threshold.epoch_ends(lag, plan.most_observations, plan.every) if main else ()
    for first, last in pairwise((lag, *ends)):
        assert main is not None
        share = threshold.look_share(last, plan.most_observations)
        epochs.append(_shared_epoch(main, threshold, first + 1, last, share))
    return tuple(epochs), _first_look(threshold, lag, budget)


def _first_look(threshold: RefreshingThreshold, lag: int, budget: Fraction) -> LookNoise:
    sensitivity = threshold.tally_sensitivity("laplace")
    for_look = budget * (1 - threshold.centre_share)
    return LookNoise(lag, laplace_scale(sensitivity, for_look), "laplace", Cost.pure(for_look))


def _shared_epoch(
    main: Mechanism, threshold: RefreshingThreshold, first: int, last: int, share: Fraction
) -> Epoch:
    """Give ``share`` of an observation's budget to the look, the rest to the main mechanism.

    The main mechanism keeps its noise and takes fewer steps: what it costs falls with them.
    """
    if not share:
        return Epoch(first, last, main.steps, main.cost)
    law, whole = main.strategy.law, main.cost
    sensitivity = threshold.tally_sensitivity(law)
    if law == "laplace":
        scale = laplace_scale(sensitivity, whole.epsilon * share)
        cost = Cost.pure(sensitivity / Fraction(scale))
    else:
        scale = root_up(sensitivity / (whole.mu_squared * share))
        cost = Cost.gaussian(sensitivity / Fraction(scale) ** 2)
    steps, reduced = main.with_less(share)
    return Epoch(first, last, steps, reduced, LookNoise(last - first + 1, scale, law, cost))


def _shared_layout(
    plan: Plan, threshold: Threshold, strategy: Strategy, lag: int, budget: Fraction
) -> Layout:
    """Each key's stream without an opening, with what the shared threshold leaves of the promise.

    All observations of all keys have the same budget for their sums, also those that came after
    the range was learned: a key cannot say beforehand which of its observations those are.
    """
    look = None
    cost = threshold.cost(budget, plan.delta)
    if isinstance(threshold, RefreshingThreshold):
        look, cost = _first_look(threshold, lag, budget), Cost.pure(budget)
    most = plan.most_observations
    leaves = -(-most // plan.every)
    main = Mechanism.calibrate(strategy, leaves, plan.guarantee, already=cost, observations=most)
    return Layout(
        guarantee=plan.guarantee,
        bounds=plan.bounds,
        length=most,
        length_is_known=plan.length is not None,
        lag=0,
        every=plan.every,
        backfill=False,
        threshold=FixedThreshold(),
        threshold_budget=Fraction(0),
        opening=None,
        opening_look=None,
        main=main,
        epochs=(Epoch(1, most, main.steps, main.cost),),
        statistic=plan.statistic,
        digest=plan.digest,
        keys=len(plan.keys),
        shared=SharedThreshold(threshold, lag, plan.bounds, budget, cost, look),
    )
