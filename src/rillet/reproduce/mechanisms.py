"""The mechanisms that are compared: named plans, all under the same promise.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rillet.plan import Plan
from rillet.reproduce.context import StandIn
from rillet.reproduce.paper_values import BETA, DELTA, EPSILON, HEADLINE_LAG, row_of
from rillet.statistic import Sum
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    HonakerTree,
    Independent,
    SignedDigitTree,
    Strategy,
)
from rillet.threshold import ExponentialQuantile

__all__ = ["BASELINE", "DEFAULT", "PAPER", "TOEPLITZ", "Named", "facts", "mechanisms", "paper_plan"]
__all__ += ["strategy_plan"]

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


def facts(stream: StandIn, delta: float = DELTA) -> dict[str, Any]:
    """What all plans for one stream have in common."""
    return {
        "epsilon": EPSILON,
        "delta": delta,
        "upper": stream.upper,
        "length": stream.length,
        "statistic": Sum(),
        "missing": "none",
    }


def strategy_plan(stream: StandIn, strategy: Strategy) -> Plan:
    """A strategy alone, with noise for the bound."""
    delta = DELTA if strategy.law == "gaussian" else 0.0
    return Plan.baseline(**facts(stream, delta), strategy=strategy)


def paper_plan(stream: StandIn, calibration: str) -> Plan:
    """The paper's mechanism, by its tables or, for streams it does not know, by its advice."""
    plan = {**facts(stream), "lag": HEADLINE_LAG, "calibration": calibration}
    if not stream.table:
        return Plan.paper(**plan)
    row = row_of(stream.table, HEADLINE_LAG)
    return Plan.paper(
        **plan,
        quantile=row.quantile,
        rank_factor=row.rank_factor,
        multiplier=row.multiplier,
        threshold_share=row.threshold_share,
        beta_lt=row.beta_lt * BETA,
    )


def mechanisms(stream: StandIn) -> Iterator[Named]:
    """Every mechanism for one stream, at ε = 1 and δ = 2^-20 (or δ = 0, where it can).

    Another mechanism is another line here.
    """
    for name, strategy in _STRATEGIES.items():
        yield Named(name, name, _BOUND, strategy_plan(stream, strategy))
    for name, label, constants in (
        ("paper, its constants", "its tree, its constants", "paper"),
        (PAPER, "its tree, exact constants", "exact"),
    ):
        yield Named(name, label, _PAPER, paper_plan(stream, constants))
    both: tuple[tuple[str, Strategy], ...] = (
        ("signed-digit tree", SignedDigitTree()),
        ("BLT", BufferedToeplitz()),
    )
    for name, strategy in both:
        yield Named(f"paper's threshold, {name}", name, _PAPER, _smooth(stream, strategy))
    for name, strategy in both:
        plan = _exponential(stream, strategy)
        label = name if plan.delta else f"{name}, δ = 0"
        yield Named(f"exponential mechanism, {name}", label, _PURE, plan)
    for name, label, delta in (
        (f"{DEFAULT}, δ = 0", "default, δ = 0", 0.0),
        (DEFAULT, "default", DELTA),
    ):
        yield Named(name, label, _OURS, Plan(**facts(stream, delta)))


_STRATEGIES: Final[dict[str, Strategy]] = {
    "independent noise": Independent(),
    BASELINE: BinaryTree(),
    "binary tree, Gaussian": BinaryTree(law="gaussian"),
    "Honaker's tree": HonakerTree(),
    "signed-digit tree": SignedDigitTree(),
    TOEPLITZ: BufferedToeplitz(),
}


def _smooth(stream: StandIn, strategy: Strategy) -> Plan:
    """The paper's threshold with another strategy after it."""
    paper = paper_plan(stream, "exact")
    learned: dict[str, Any] = {
        "threshold": paper.threshold,
        "threshold_share": paper.threshold_share,
    }
    return Plan(**facts(stream), lag=HEADLINE_LAG, strategy=strategy, **learned)


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
    plan = {**facts(stream, alone.delta), "lag": lag, "threshold_share": share}
    return Plan(**plan, threshold=threshold, strategy=strategy)
