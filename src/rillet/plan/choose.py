"""What ``"auto"`` stands for: the choice of threshold, strategy, lag and split, and its reasons.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rillet.errors import ParameterError
from rillet.levels import key_share, share_of, with_shares
from rillet.paper.recommended import CRITERIA, THRESHOLD_SHARE, recommended_lag
from rillet.plan.calibrate import main_of
from rillet.privacy import Guarantee
from rillet.statistic import Memory
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    DecayedIndependent,
    DecayedToeplitz,
    HonakerTree,
    Independent,
    Mechanism,
    RestartedTree,
    SignedDigitTree,
    Strategy,
    WindowToeplitz,
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
    #: Where the plan left the strategy open, others with their noise in that of the chosen one.
    turned_down: tuple[tuple[Strategy, float], ...] = ()

    @property
    def refresh(self) -> float | None:
        """By how much the stream grows before the range is learned again; None: never."""
        return self.threshold.growth if isinstance(self.threshold, TailHistogram) else None


def choose(plan: Plan) -> Choice:
    """Replace every ``"auto"`` of a plan by a choice."""
    if isinstance(plan.strategy, Strategy):
        return _choice_with(plan, plan.strategy)
    strategy, reason, turned_down = _best_strategy(plan)
    choice = _choice_with(plan, strategy)
    return replace(choice, reasons=(reason, *choice.reasons), turned_down=turned_down)


def _choice_with(plan: Plan, strategy: Strategy) -> Choice:
    """Replace every other ``"auto"``."""
    reasons: list[str] = []
    guarantee, every, length = plan.guarantee, plan.leaf_every, plan.last_t
    share = plan.threshold_share
    _check_memory(plan, strategy)
    if plan.shared_threshold and plan.clock is None:
        # The lag is one of all keys together, the share one that all observations pay.
        length *= len(plan.keys)
        share = SHARED_SHARE if share == "auto" else share
    threshold = plan.threshold
    if threshold == "auto":
        threshold = _auto_threshold(plan, length, strategy.law, reasons)
    _check_threshold(plan, threshold, length)
    _check_open(plan, threshold)
    if not threshold.learns:
        return Choice(threshold, strategy, 0, 0.0, tuple(reasons))
    lag = plan.lag
    if plan.memory.forgets:
        # Nothing else is released of the warm-up.
        share = 1.0
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
    asked = f"{CRITERIA} ask for a lag of {wanted:,} observations"
    if wanted < length:
        reasons.append(f"{asked}.")
        return Choice(threshold, strategy, wanted, share, tuple(reasons))
    # The paper's fallback (section VI): where no gain is predicted, the plain tree from the start.
    reasons.append(
        f"{asked}, and the stream has only {length:,}: no gain over clipping at upper is "
        "predicted, so no lag is spent on learning."
    )
    return Choice(FixedThreshold(), strategy, 0, 0.0, tuple(reasons))


def _best_strategy(plan: Plan) -> tuple[Strategy, str, tuple[tuple[Strategy, float], ...]]:
    """The strategy with the least noise, why, and how many times as much others have."""
    strategies = _strategies(plan)
    # The range, and the leaves that are left after it, depend at most on the law of the noise.
    first = {each.law: each for each in reversed(strategies)}
    ranges = {law: _choice_with(plan, each) for law, each in first.items()}
    less = {law: _noise_of_less(plan, law, known.threshold) for law, known in ranges.items()}
    noise = {each: _noise(plan, each, ranges[each.law]) * less[each.law] for each in strategies}
    best = min(strategies, key=noise.__getitem__)
    turned_down = tuple(
        (other, noise[other] / noise[best])
        for other in strategies
        if other != best and noise[other] < math.inf
    )
    where = " over keys and totals" if plan.levels else ""
    where += "" if plan.memory.forgets else " in the second half of the stream"
    allowed = "of all that delta allows"
    if plan.delta == 0:
        allowed = "of all that can be pure (delta is 0)"
    return best, f"{allowed}, {best.name} ({best.law}) has the least noise{where}.", turned_down


def _strategies(plan: Plan) -> list[Strategy]:
    """All strategies that are compared; of equal ones the first is taken."""
    memory = plan.memory
    if memory.half_life is not None:
        half_life = memory.half_life
        fading: list[Strategy] = [
            DecayedToeplitz(half_life=half_life),
            DecayedIndependent(half_life=half_life),
            DecayedIndependent(half_life=half_life, law="gaussian"),
        ]
        return _allowed(plan, fading)
    found: list[Strategy] = []
    independent: list[Strategy] = [Independent(), Independent(law="gaussian")]
    if memory.window is not None:
        if memory.window > 1:
            found = [WindowToeplitz(window=memory.window)]
            independent.append(RestartedTree(window=memory.window))
        found += independent
    found += [BufferedToeplitz(), SignedDigitTree(), HonakerTree()]
    found += [BinaryTree(), BinaryTree(law="gaussian")]
    if memory.window is None and plan.unit is not None:
        # For totals of all so far it is the best only where much of the stream may be one person's.
        found += independent
    return _allowed(plan, found)


def _allowed(plan: Plan, strategies: list[Strategy]) -> list[Strategy]:
    return [each for each in strategies if plan.delta or each.law == "laplace"]


def _noise(plan: Plan, strategy: Strategy, of_range: Choice) -> float:
    """Noise where the statistic has settled, per unit of range; infinite where it is too much."""
    lag = of_range.lag % plan.last_t  # where all is warm-up, as if there were none
    try:
        main = main_of(plan, strategy, of_range.threshold, lag, of_range.threshold_share)
    except ParameterError:  # the layout of the one that is taken says what is wrong
        return math.inf
    assert main is not None
    leaf = plan.statistic.leaf(plan.setting(strategy.law))
    return math.sqrt(_late_variance(main, plan.memory)) * leaf.typical_factor


def _noise_of_less(plan: Plan, law: str, threshold: Threshold) -> float:
    """By what noise grows, as looks and totals take a part of the budget.

    With totals the geometric mean over the levels, keys among them, once all are consistent.
    """
    squared = -2 if law == "laplace" else -1  # a variance, of a part of the budget
    sums = (1 - float(threshold.look_share(1, 1))) ** squared
    if not plan.levels:
        return math.sqrt(sums)
    levels, tree = with_shares(plan.levels, law), plan.tree
    parts = [key_share(levels), *map(share_of, levels)]
    rows = [slice(0, len(tree.keys)), *map(tree.rows, range(len(levels)))]
    variances = np.empty((1, 1, len(tree), 1))
    for part, own in zip(parts, rows, strict=True):
        variances[..., own, :] = sums * float(part) ** squared
    _, variances = tree.consistent(np.zeros((1, len(tree), 1)), variances)
    logs = [np.mean(np.log(variances[..., own, :])) for own in rows]
    return math.exp(float(np.mean(logs)) / 2)


def _late_variance(mechanism: Mechanism, memory: Memory) -> float:
    """Noise variance of a sum, per unit of range squared, in the second half of the stream.

    Over the last window, if that is shorter.
    """
    window, leaves = memory.window, mechanism.leaves
    if window is None:
        return mechanism.typical_unit_variance
    strategy, count = mechanism.strategy, min(window, leaves - leaves // 2)
    # In trees the noise goes up and down with the place in a window.
    last = leaves - np.arange(0, count, -(-count // _SAMPLED) | 1)
    weight = strategy.weights(leaves, last)
    full = last > window
    if full.any():
        after, before = last[full], last[full] - window
        weight[full] += strategy.weights(leaves, before)
        weight[full] -= 2 * strategy.covariance(leaves, before, after)
    return float(np.mean(weight)) * mechanism.node_variance / float(mechanism.steps) ** 2


def _check_memory(plan: Plan, strategy: Strategy) -> None:
    """Refuse a strategy that cannot answer what the statistic looks back on."""
    half_life = getattr(strategy, "half_life", None)
    if half_life != plan.memory.half_life:
        raise ParameterError(
            "strategy",
            "one for the statistic's half-life"
            if plan.memory.half_life is not None
            else "one for what the statistic looks back on, which is no half-life",
            strategy.name,
            "leave strategy out",
        )
    if plan.memory.window is not None and type(strategy).covariance is Strategy.covariance:
        expected = "one that knows the covariance of its noise, for a window"
        raise ParameterError("strategy", expected, strategy.name, "leave strategy out")


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
    if plan.memory.forgets:
        if plan.threshold_share not in ("auto", 1.0):
            expected = "1 or auto, since nothing else is released of the warm-up"
            raise ParameterError("threshold_share", expected, plan.threshold_share)
    elif plan.threshold_share != "auto" and not 0 < plan.threshold_share < 1:
        expected = "a number between 0 and 1, both excluded"
        raise ParameterError("threshold_share", expected, plan.threshold_share)


def _check_open(plan: Plan, threshold: Threshold) -> None:
    """Without a bound only counts on a logarithmic grid find a range."""
    if not plan.bounds.is_open:
        return
    name = "upper" if plan.upper is None else "lower"
    if isinstance(threshold, TailHistogram) and (plan.lower is not None or threshold.two_sided):
        return
    hint = f"a {threshold.name} threshold needs it; without a bound the automatic one does not"
    if plan.threshold == "auto":
        hint = (
            f"no range is learned with lag=0, nor of fewer than {_SHORTEST_TO_LEARN:,} observations"
        )
    raise ParameterError(name, "a public bound that values are clipped to", None, hint)


#: Of a longer window the noise is worked out at so many leaves.
_SAMPLED = 1024
#: Below this many observations, or ticks, a range learned from a few of them gains too little.
_SHORTEST_TO_LEARN = 3000
_FEWEST_TICKS_TO_LEARN = 30
#: By the clock, where no end is known, the first look comes after so long at the latest.
_LONGEST_WARM_UP_BY_CLOCK = duration("7d")
#: A look that many keys share takes at least this part of the budget.
_SMALLEST_LOOK_SHARE = 0.005
#: What the last look takes with Gaussian noise, where the number of observations is known: most up
#: to so many at ε = 1, then less, by the fourth root.  With more values what lies far out is seen
#: sooner: there is less to gain, and a longer stream pays for its looks with noise alone.
_MOST_LOOK_SHARE = 0.12
_FEW_FOR_LOOKS = 100_000
_LEAST_LOOK_SHARE = 0.04
#: The first look takes this part of the stream, at most 10,000 observations at ε = 1 or more, and
#: at least 1,000, below which counts are lost in their noise, if that is no sixth of the stream.
_WARM_UP_PART = 30
_LONGEST_WARM_UP = 10_000
#: So many at ε = 1 for a range that is learned once, or a third of the stream.
_ENOUGH_FOR_ONE_LOOK = 2_000
_SHORTEST_WARM_UP = 1_000
#: With fewer at ε = 1 the halves on both sides of a median do not stand out of the noise, as all
#: values above a lower bound do.
_FEWEST_FOR_TWO_SIDES = 500
_LARGEST_WARM_UP_PART = 6


def _auto_threshold(plan: Plan, length: int, law: str, reasons: list[str]) -> Threshold:
    if not plan.statistic.clips:
        return FixedThreshold()
    shortest = _SHORTEST_TO_LEARN if plan.clock is None else _FEWEST_TICKS_TO_LEARN
    if plan.lag == 0 or (plan.lag == "auto" and length < shortest):
        reasons.append("the stream is too short (or lag is 0) to learn a range: clipped at upper.")
        return FixedThreshold()
    refresh, once = plan.refresh, plan.shared_threshold and plan.clock is None
    if once or (plan.statistic.learns_once and refresh == "auto"):
        refresh = None
    again = "again each time the stream has grown"
    if plan.memory.forgets:
        again = "again and again"
    if refresh is None:
        again = "once"
    reasons.append(
        f"a range learned from noisy histograms, {again}, stays close to the best range known in "
        "advance; smooth sensitivity needs ten times the lag."
    )
    share = _look_share(plan, length, law)
    if plan.shared_threshold and plan.clock is not None:
        # Counts of many keys need less of each: with as many times as many, as much less noise.
        share = max(_SMALLEST_LOOK_SHARE, share / plan.keys_that_share)
    growth = TailHistogram.growth if refresh == "auto" else refresh
    two_sided = _has_two_sides(plan, length, reasons)
    return TailHistogram(growth=growth, share=share, two_sided=two_sided)


def _look_share(plan: Plan, length: int, law: str) -> float:
    """What the look of the last segment takes of the budget."""
    timed = plan.length is None or plan.clock is not None
    if timed or plan.memory.forgets or law == "laplace":
        return TailHistogram.share
    times = max(1.0, length * min(1.0, plan.epsilon) / _FEW_FOR_LOOKS)
    return round(max(_LEAST_LOOK_SHARE, _MOST_LOOK_SHARE / math.sqrt(math.sqrt(times))), 3)


def _has_two_sides(plan: Plan, length: int, reasons: list[str]) -> bool:
    """Whether a lower end is learned as well; below 0 it always is, as values have either sign."""
    if plan.bounds.lower < 0:
        return True
    if plan.clock is not None:
        # The noise of a sum with a hidden count is scaled to the farther end of the range from 0.
        return not plan.statistic.from_zero
    lag = _tail_lag(plan, length) if plan.lag == "auto" else plan.lag
    if lag >= _FEWEST_FOR_TWO_SIDES / min(1.0, plan.epsilon):
        return True
    reasons.append(
        f"the range begins at lower: a lag of {lag:,} is too short to learn a lower end as well "
        "(where values lie around a level, give threshold=TailHistogram())."
    )
    return False


def _tail_lag(plan: Plan, length: int) -> int:
    """A thirtieth of the stream, from 1,000/ε to 10,000/ε observations, in whole releases.

    By the clock a thirtieth of the ticks: how many observations they have is not known.
    """
    every, span = plan.leaf_every, length
    if plan.memory.forgets:
        span = plan.memory.span * every  # what is not released should not be longer
    if plan.clock is not None:
        longest = max(1, _LONGEST_WARM_UP_BY_CLOCK // plan.clock.every)
        lag = max(1, min(length // _WARM_UP_PART, span, length if plan.length else longest))
        # Keys that learn together have more values in a tick: at least one each, it is hoped.
        enough = math.ceil(_LONGEST_WARM_UP / min(1.0, plan.epsilon) / plan.keys_that_share)
        return min(lag, enough) if plan.shared_threshold else lag
    shortest, longest = (
        math.ceil(count / min(1.0, plan.epsilon)) for count in (_SHORTEST_WARM_UP, _LONGEST_WARM_UP)
    )
    part = max(length // _WARM_UP_PART, min(shortest, length // _LARGEST_WARM_UP_PART))
    lag = max(1, min(part, span, longest))
    if plan.statistic.learns_once:
        # No later look will put right what a first one with too few observations missed.
        lag = max(lag, min(math.ceil(_ENOUGH_FOR_ONE_LOOK / min(1.0, plan.epsilon)), length // 3))
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
