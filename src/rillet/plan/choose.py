"""What ``"auto"`` stands for: the choice of threshold, strategy, lag and split, and its reasons.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.paper.recommended import THRESHOLD_SHARE, recommended_lag
from rillet.privacy import Guarantee
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    HonakerTree,
    Mechanism,
    SignedDigitTree,
    Strategy,
)
from rillet.strategy.toeplitz.blt import LARGEST_LOG_LENGTH
from rillet.threshold import (
    FixedThreshold,
    RefreshingThreshold,
    TailHistogram,
    Threshold,
)

Auto = Literal["auto"]

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

    def describe(self, layout: Layout) -> str:
        """The plan for a person: promise, parts, noise, reasons."""
        lines = [f"Promise: {layout.guarantee}."]
        if layout.lag:
            share = float(layout.threshold_budget)
            lines.append(
                f"The first {layout.lag:,} observations teach the threshold "
                f"({layout.threshold.name}, ε₁ = {share:.4g}); their sum is released with the rest."
            )
        else:
            assert layout.declared_range is not None
            lines.append(f"Values are clipped at {layout.declared_range.upper:g}, declared.")
        if layout.main is not None:
            cadence = "each observation" if layout.every == 1 else f"every {layout.every:,}"
            lines.append(
                f"Then a release for {cadence} through {layout.main.strategy.name} "
                f"({layout.main.strategy.law} noise), up to {layout.length:,} observations."
            )
        unit = layout.unit_std_at(layout.length)
        lines.append(f"Noise of the last sum: {unit:.4g} times the clipping range (one std).")
        lines += [f"Why: {reason}" for reason in self.reasons]
        lines += [f"Turned down: {other}" for other in self._turned_down(layout)]
        return "\n".join(lines)

    def _turned_down(self, layout: Layout) -> list[str]:
        """Other strategies under the same promise, by their noise in the second half of the stream.

        A plan that names its strategy has turned nothing down.
        """
        main = layout.main
        if main is None or not any(reason in self.reasons for reason in _STRATEGY_REASONS.values()):
            return []
        others: list[Strategy] = [BinaryTree(), HonakerTree(), SignedDigitTree()]
        if layout.guarantee.delta > 0:
            others.append(BinaryTree(law="gaussian"))
        chosen = math.sqrt(main.typical_unit_variance)
        lines = []
        for other in others:
            if other == main.strategy:
                continue
            rival = Mechanism.calibrate(
                other, main.leaves, layout.guarantee, observations=layout.length - layout.lag
            )
            ratio = math.sqrt(rival.typical_unit_variance) / chosen
            lines.append(f"{other.name} ({other.law} noise), {ratio:.2f} times the noise.")
        if layout.lag:
            lines.append("clipping at upper from the start, which scales the noise to the bound.")
        return lines


def choose(
    *,
    guarantee: Guarantee,
    length: int,
    every: int,
    lag: int | Auto,
    threshold: Threshold | Auto,
    strategy: Strategy | Auto,
    threshold_share: float | Auto,
    refresh: float | Auto | None = "auto",
    sharing: int = 0,
) -> Choice:
    """Replace every ``"auto"`` by a choice; ``sharing`` keys learn one threshold together."""
    reasons: list[str] = []
    if strategy == "auto":
        strategy = _auto_strategy(guarantee, -(-length // every))
        reasons.append(_STRATEGY_REASONS[strategy.name])
    if sharing:  # The lag is one of all keys together, the share one that all observations pay.
        length *= sharing
        threshold_share = SHARED_SHARE if threshold_share == "auto" else threshold_share
    if threshold == "auto":
        threshold = _auto_threshold(length, lag, refresh, reasons)
    else:
        _check_refresh(refresh, threshold)
    for name, value, kind in (
        ("threshold", threshold, Threshold),
        ("strategy", strategy, Strategy),
    ):
        if not isinstance(value, kind):
            raise ParameterError(name, f'a {kind.__name__} object or "auto"', value)
    if not threshold.learns:
        _refuse_lag(lag)
        return Choice(threshold, strategy, 0, 0.0, tuple(reasons))
    if isinstance(threshold, RefreshingThreshold):
        lag = _tail_lag(length, every, guarantee) if lag == "auto" else _checked_lag(lag, length)
        if threshold_share == "auto":
            threshold_share = _tail_share(strategy, guarantee, length, lag, every)
        return Choice(threshold, strategy, lag, _checked_share(threshold_share), tuple(reasons))
    share = _checked_share(THRESHOLD_SHARE if threshold_share == "auto" else threshold_share)
    if lag != "auto":
        return Choice(threshold, strategy, _checked_lag(lag, length), share, tuple(reasons))
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


_STRATEGY_REASONS = {
    "buffered-toeplitz": "delta allows Gaussian noise, and BLT has the least of it.",
    "signed-digit-tree": "of all that can be pure (delta is 0) or run this long, the signed-digit "
    "tree has the least noise.",
    "honaker-tree": "of all that can run this long, Honaker's tree has the least noise.",
}
#: Below this many observations a range learned from a few of them gains too little.
_SHORTEST_TO_LEARN = 3000
#: The first look takes this part of the stream, and at most 10,000 observations at ε = 1 or more.
_OPENING_PART = 30
_LONGEST_OPENING = 10_000


def _auto_strategy(guarantee: Guarantee, leaves: int) -> Strategy:
    """The least noise for this promise and length."""
    if guarantee.delta > 0 and leaves <= 2**LARGEST_LOG_LENGTH:
        return BufferedToeplitz()
    candidates: list[Strategy] = [SignedDigitTree()]
    if guarantee.delta > 0:
        candidates.append(HonakerTree(law="gaussian"))

    def noise(strategy: Strategy) -> float:
        return Mechanism.calibrate(strategy, leaves, guarantee).typical_unit_variance

    return min(candidates, key=noise)


def _auto_threshold(
    length: int, lag: int | Auto, refresh: float | Auto | None, reasons: list[str]
) -> Threshold:
    if lag == 0 or (lag == "auto" and length < _SHORTEST_TO_LEARN):
        reasons.append("the stream is too short (or lag is 0) to learn a range: clipped at upper.")
        return FixedThreshold()
    again = "once" if refresh is None else "again each time the stream has grown"
    reasons.append(
        f"a range learned from noisy histograms, {again}, stays close to the best range known in "
        "advance; smooth sensitivity needs ten times the lag."
    )
    return TailHistogram() if refresh == "auto" else TailHistogram(growth=refresh)


def _check_refresh(refresh: float | Auto | None, threshold: object) -> None:
    growth = threshold.growth if isinstance(threshold, TailHistogram) else None
    if refresh not in ("auto", growth):
        raise ParameterError(
            "refresh",
            f'"auto" or {growth}, which is what the threshold does by itself',
            refresh,
            hint="give refresh without a threshold, or growth to TailHistogram",
        )


def _tail_lag(length: int, every: int, guarantee: Guarantee) -> int:
    """A thirtieth of the stream, at most 10,000/ε observations, in whole releases."""
    longest = math.ceil(_LONGEST_OPENING / min(1.0, guarantee.epsilon))
    lag = max(1, min(length // _OPENING_PART, longest))
    return lag // every * every if lag >= every else min(every, length)


def _tail_share(
    strategy: Strategy, guarantee: Guarantee, length: int, lag: int, every: int
) -> float:
    """Leave the opening's own sum so much that its noise is a fifth of the last sum's."""
    if lag >= length:
        return 0.5
    leaves = -(-(length - lag) // every)
    main = Mechanism.calibrate(strategy, leaves, guarantee, observations=length - lag)
    last = math.sqrt(float(main.unit_variance(leaves)[0]))
    for_sum = math.sqrt(2) / (guarantee.epsilon * 0.2 * last)
    return 1 - round(min(0.5, max(0.2, for_sum)), 6)


def _refuse_lag(lag: Any) -> None:
    if lag not in (0, "auto"):
        raise ParameterError("lag", "0 with a fixed threshold, which needs no lag", lag)


def _checked_share(share: Any) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise ParameterError("threshold_share", "a number between 0 and 1, both excluded", share)
    return float(share)


def _checked_lag(lag: Any, length: int) -> int:
    if isinstance(lag, float) and lag.is_integer():
        lag = int(lag)
    if isinstance(lag, bool) or not isinstance(lag, int) or not 1 <= lag <= length:
        raise ParameterError(
            "lag",
            f"a whole number from 1 to length ({length:,})",
            lag,
            hint="the threshold is learned from the first observations of the stream",
        )
    return lag
