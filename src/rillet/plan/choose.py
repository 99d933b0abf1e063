"""What ``"auto"`` stands for: the choice of threshold, strategy, lag and split, and its reasons.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rillet.errors import ParameterError
from rillet.paper.recommended import THRESHOLD_SHARE, recommended_lag
from rillet.privacy import Guarantee
from rillet.strategy import (
    BufferedToeplitz,
    Mechanism,
    SignedDigitTree,
    Strategy,
)
from rillet.strategy.base import Moves
from rillet.threshold import FixedThreshold, TailHistogram, Threshold
from rillet.times import duration

if TYPE_CHECKING:
    from rillet.plan.plan import Plan

#: What every observation pays for a threshold that keys share.
SHARED_SHARE = 0.05


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why."""

    threshold: Threshold
    strategy: Strategy
    lag: int
    threshold_share: float
    reasons: tuple[str, ...]

    @property
    def refresh(self) -> float | None:
        """By how much the stream grows before the range is learned again; None: never."""
        return self.threshold.growth if isinstance(self.threshold, TailHistogram) else None

    @property
    def chose_strategy(self) -> bool:
        """Whether the plan left the strategy open."""
        return any(reason in self.reasons for reason in _STRATEGY_REASONS.values())


def choose(plan: Plan) -> Choice:
    """Replace every ``"auto"`` of a plan by a choice."""
    reasons: list[str] = []
    guarantee, every, length = plan.guarantee, plan.leaf_every, plan.last_t
    strategy, share = plan.strategy, plan.threshold_share
    if strategy == "auto":
        strategy = BufferedToeplitz() if guarantee.delta > 0 else SignedDigitTree()
        reasons.append(_STRATEGY_REASONS[strategy.name])
    if plan.shared_threshold:
        # The lag is one of all keys together, the share one that all observations pay.
        length *= len(plan.keys)
        share = SHARED_SHARE if share == "auto" else share
    threshold = plan.threshold
    if threshold == "auto":
        threshold = _auto_threshold(plan, length, reasons)
    _check_threshold(plan, threshold, length)
    if not threshold.learns:
        return Choice(threshold, strategy, 0, 0.0, tuple(reasons))
    lag = plan.lag
    if isinstance(threshold, TailHistogram):
        lag = _tail_lag(plan, length) if lag == "auto" else lag
        if share == "auto":
            moves = plan.statistic.leaf(plan.setting(strategy.law)).moves
            share = _tail_share(strategy, guarantee, length, lag, every, moves)
    elif share == "auto":
        share = THRESHOLD_SHARE
    if lag == "auto" and plan.clock is not None:
        lag = _tail_lag(plan, length)
    if lag != "auto":
        return Choice(threshold, strategy, lag, share, tuple(reasons))
    wanted = recommended_lag(threshold, guarantee, share)
    if wanted < length:
        reasons.append(f"the paper's criteria ask for a lag of {wanted:,} observations.")
        return Choice(threshold, strategy, wanted, share, tuple(reasons))
    # The paper's fallback (section VI): where no gain is predicted, the plain tree from the start.
    reasons.append(
        f"the paper's criteria ask for a lag of {wanted:,} observations, and the stream has only "
        f"{length:,}: no gain over clipping at upper is predicted, so no lag is spent on learning."
    )
    return Choice(FixedThreshold(), strategy, 0, 0.0, tuple(reasons))


def _check_threshold(plan: Plan, threshold: Threshold, length: int) -> None:
    """Refuse a threshold, and what is said about learning it, where they do not fit."""
    growth = threshold.growth if isinstance(threshold, TailHistogram) else None
    by_itself = plan.threshold != "auto" or not plan.statistic.clips
    if by_itself and plan.refresh not in ("auto", growth):
        raise ParameterError(
            "refresh",
            f'"auto" or {growth}, which is what the threshold does by itself',
            plan.refresh,
            hint="give refresh without a threshold, or growth to TailHistogram",
        )
    if not plan.statistic.clips and threshold != FixedThreshold():
        raise ParameterError("threshold", "none, since the statistic clips nothing", threshold)
    if plan.setting("").hides_count and not threshold.hides_count:
        raise ParameterError(
            "threshold",
            "one that protects how many values there are",
            threshold.name,
            "leave threshold out"
            if plan.clock is not None
            else 'give missing="none" if every observation has a value, or leave threshold out',
        )
    if not threshold.learns:
        if plan.lag not in (0, "auto"):
            raise ParameterError("lag", "0, since no range is learned", plan.lag)
        return
    if plan.lag != "auto" and not 1 <= plan.lag <= length:
        raise ParameterError(
            "lag",
            f"a whole number from 1 to length ({length:,})",
            plan.lag,
            hint="the threshold is learned from the first observations of the stream",
        )
    if plan.threshold_share != "auto" and not 0 < plan.threshold_share < 1:
        expected = "a number between 0 and 1, both excluded"
        raise ParameterError("threshold_share", expected, plan.threshold_share)


_STRATEGY_REASONS = {
    "buffered-toeplitz": "delta allows Gaussian noise, and BLT has the least of it.",
    "signed-digit-tree": "of all that can be pure (delta is 0), the signed-digit tree has the "
    "least noise.",
}
#: Below this many observations, or ticks, a range learned from a few of them gains too little.
_SHORTEST_TO_LEARN = 3000
_FEWEST_TICKS_TO_LEARN = 30
#: By the clock, where no end is known, the first look comes after so long at the latest.
_LONGEST_WARM_UP_BY_CLOCK = duration("7d")
#: The first look takes this part of the stream, and at most 10,000 observations at ε = 1 or more.
_WARM_UP_PART = 30
_LONGEST_WARM_UP = 10_000


def _auto_threshold(plan: Plan, length: int, reasons: list[str]) -> Threshold:
    if not plan.statistic.clips:
        return FixedThreshold()
    shortest = _SHORTEST_TO_LEARN if plan.clock is None else _FEWEST_TICKS_TO_LEARN
    if plan.lag == 0 or (plan.lag == "auto" and length < shortest):
        reasons.append("the stream is too short (or lag is 0) to learn a range: clipped at upper.")
        return FixedThreshold()
    refresh = None if plan.shared_threshold else plan.refresh
    again = "once" if refresh is None else "again each time the stream has grown"
    reasons.append(
        f"a range learned from noisy histograms, {again}, stays close to the best range known in "
        "advance; smooth sensitivity needs ten times the lag."
    )
    return TailHistogram() if refresh == "auto" else TailHistogram(growth=refresh)


def _tail_lag(plan: Plan, length: int) -> int:
    """A thirtieth of the stream, at most 10,000/ε observations, in whole releases.

    By the clock a thirtieth of the ticks: how many observations they have is not known.
    """
    every = plan.leaf_every
    if plan.clock is not None:
        longest = max(1, _LONGEST_WARM_UP_BY_CLOCK // plan.clock.every)
        return max(1, min(length // _WARM_UP_PART, length if plan.length else longest))
    longest = math.ceil(_LONGEST_WARM_UP / min(1.0, plan.epsilon))
    lag = max(1, min(length // _WARM_UP_PART, longest))
    return lag // every * every if lag >= every else min(every, length)


def _tail_share(
    strategy: Strategy, guarantee: Guarantee, length: int, lag: int, every: int, moves: Moves
) -> float:
    """Leave the warm-up's own sum so much that its noise is a fifth of the last sum's."""
    if lag >= length:
        return 0.5
    leaves = -(-(length - lag) // every)
    main = Mechanism.calibrate(strategy, leaves, guarantee, observations=length - lag, moves=moves)
    last = math.sqrt(float(main.unit_variance(leaves)[0]))
    for_sum = math.sqrt(2) / (guarantee.epsilon * 0.2 * last)
    return 1 - round(min(0.5, max(0.2, for_sum)), 6)
