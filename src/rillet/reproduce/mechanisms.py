"""The mechanisms that are compared: named plans, all under the same promise.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rillet.plan import Plan
from rillet.reproduce.context import StandIn
from rillet.reproduce.errors import paper_plan
from rillet.reproduce.paper_values import DELTA, EPSILON, HEADLINE_LAG
from rillet.statistic import Sum
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    HonakerTree,
    Independent,
    SignedDigitTree,
    Strategy,
)
from rillet.threshold import ExponentialQuantile, SmoothQuantile

__all__ = ["BASELINE", "DEFAULT", "PAPER", "TOEPLITZ", "Named", "mechanisms", "strategy_plan"]

BASELINE: Final = "binary tree (BT)"
PAPER: Final = "paper, exact constants"
TOEPLITZ: Final = "buffered Toeplitz (BLT)"
DEFAULT: Final = "rillet.Plan(…)"

_BOUND: Final = "clipped at the bound B"
_PAPER: Final = "smooth sensitivity, m = 50,000"
_PURE: Final = "exponential mechanism"
_OURS: Final = "rillet.Plan"


@dataclass(frozen=True)
class Named:
    """A plan under its name, and under a short one in its group: where its threshold comes from."""

    name: str
    label: str
    group: str
    plan: Plan


def strategy_plan(stream: StandIn, strategy: Strategy) -> Plan:
    """A strategy alone, with noise for the bound."""
    return Plan.baseline(
        epsilon=EPSILON,
        delta=DELTA if strategy.law == "gaussian" else 0.0,
        upper=stream.upper,
        length=stream.length,
        statistic=Sum(),
        strategy=strategy,
    )


def mechanisms(stream: StandIn) -> Iterator[Named]:
    """Every mechanism for one stream, at ε = 1 and δ = 2^-20 (or δ = 0, where it can).

    Another mechanism is another line here.
    """
    for name, strategy in _STRATEGIES.items():
        yield Named(name, name, _BOUND, strategy_plan(stream, strategy))
    smooth, exponential = "paper's threshold", "exponential mechanism"
    signed, toeplitz = SignedDigitTree(), BufferedToeplitz()
    yield Named("paper, its constants", "its tree, its constants", _PAPER, _paper(stream, "paper"))
    yield Named(PAPER, "its tree, exact constants", _PAPER, _paper(stream, "exact"))
    for name, label, strategy in (
        ("signed-digit tree", "signed-digit tree", signed),
        ("BLT", "BLT", toeplitz),
    ):
        yield Named(f"{smooth}, {name}", label, _PAPER, _smooth(stream, strategy))
    for name, label, strategy in (
        ("signed-digit tree", "signed-digit tree, δ = 0", signed),
        ("BLT", "BLT", toeplitz),
    ):
        yield Named(f"{exponential}, {name}", label, _PURE, _exponential(stream, strategy))
    for name, label, delta in (
        (f"{DEFAULT}, δ = 0", "default, δ = 0", 0.0),
        (DEFAULT, "default", DELTA),
    ):
        plan = Plan(
            epsilon=EPSILON,
            delta=delta,
            upper=stream.upper,
            length=stream.length,
            statistic=Sum(),
        )
        yield Named(name, label, _OURS, plan)


_STRATEGIES: Final[dict[str, Strategy]] = {
    "independent noise": Independent(),
    BASELINE: BinaryTree(),
    "binary tree, Gaussian": BinaryTree(law="gaussian"),
    "Honaker's tree": HonakerTree(),
    "signed-digit tree": SignedDigitTree(),
    TOEPLITZ: BufferedToeplitz(),
}


def _paper(stream: StandIn, calibration: str) -> Plan:
    """The paper's mechanism, by its tables or, for streams it does not know, by its advice."""
    if stream.table:
        return paper_plan(stream, calibration)
    return Plan.paper(
        epsilon=EPSILON,
        delta=DELTA,
        upper=stream.upper,
        length=stream.length,
        lag=HEADLINE_LAG,
        statistic=Sum(),
        calibration=calibration,
    )


def _smooth(stream: StandIn, strategy: Strategy) -> Plan:
    """The paper's threshold with another strategy after it."""
    paper = _paper(stream, "exact")
    assert isinstance(paper.threshold, SmoothQuantile)
    return Plan(
        epsilon=EPSILON,
        delta=DELTA,
        upper=stream.upper,
        length=stream.length,
        lag=HEADLINE_LAG,
        statistic=Sum(),
        threshold=paper.threshold,
        strategy=strategy,
        threshold_share=paper.threshold_share,
    )


def _exponential(stream: StandIn, strategy: Strategy) -> Plan:
    """A quantile by the exponential mechanism, extrapolated to the one that suits the stream."""
    lag, share = min(10_000, stream.length // 30), 0.5
    alone = strategy_plan(stream, strategy)
    threshold = ExponentialQuantile.extrapolated(
        lag=lag,
        budget=share * EPSILON,
        length=stream.length,
        noise_per_unit=alone.layout.unit_std_at(stream.length),
    )
    return Plan(
        epsilon=EPSILON,
        delta=alone.delta,
        upper=stream.upper,
        length=stream.length,
        lag=lag,
        statistic=Sum(),
        threshold=threshold,
        strategy=strategy,
        threshold_share=share,
    )
