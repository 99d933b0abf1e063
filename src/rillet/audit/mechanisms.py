"""What ``rillet audit all`` audits: every strategy, unit, statistic and threshold of the package.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rillet.plan import Plan
from rillet.privacy import Person
from rillet.statistic import Count, Histogram, Mean, Quantile, Share, Statistic, Sum
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    DecayedIndependent,
    DecayedToeplitz,
    HonakerTree,
    Independent,
    RestartedTree,
    SignedDigitTree,
    SquareRootToeplitz,
    Strategy,
    WindowToeplitz,
)
from rillet.threshold import ExponentialQuantile, SmoothQuantile, TailHistogram, Threshold

__all__ = ["SUBJECTS", "OneLook", "Secrets", "Subject"]

EPSILON: Final = 1.0
DELTA: Final = 1e-6
#: Leaves of a stream: every node of so few is seen in every trial.  Gaussian noise takes millions
#: of trials, so it gets fewer.
LEAVES: Final = {"laplace": 4, "gaussian": 2}
#: Keys by count are a trial each, and take a secret each.
CROWD: Final = 2**12


@dataclass(frozen=True)
class OneLook:
    """A threshold alone, that learns a range once."""

    threshold: Threshold
    upper: float = 100.0
    observations: int = 12


@dataclass(frozen=True)
class Secrets:
    """Where all noise comes from: so many fresh ones are compared."""

    count: int = 2**18


@dataclass(frozen=True)
class Subject:
    """A mechanism to audit: how it is made, and the lower bound on ε that trials should reach.

    ``times`` as many trials as others of its law have: more where less of what is paid is seen.
    """

    name: str
    about: str
    make: Callable[[], Plan | OneLook | Secrets]
    asked: float | None = None
    times: int = 1


def by_clock(
    strategy: Strategy,
    statistic: Statistic | None = None,
    *,
    leaves: int | None = None,
    **more: Any,
) -> Plan:
    """A plan by the clock with a declared range."""
    fields: dict[str, Any] = {
        "epsilon": EPSILON,
        "delta": 0.0 if strategy.law == "laplace" else DELTA,
        "upper": 100.0,
        "every": "1h",
        "start": "2026-01-01T00:00Z",
        "length": f"{leaves or LEAVES[strategy.law]}h",
        "lag": 0,
        "strategy": strategy,
        "statistic": Count() if statistic is None else statistic,
    }
    return Plan(**{**fields, **more})


def by_count(strategy: Strategy, *, length: int = 4, **more: Any) -> Plan:
    """A plan by count with a declared range."""
    delta = 0.0 if strategy.law == "laplace" else DELTA
    fields: dict[str, Any] = {"epsilon": EPSILON, "delta": delta, "upper": 100.0, "lag": 0}
    return Plan(**{**fields, "length": length, "strategy": strategy, **more})


def _learned(**more: Any) -> Plan:
    return Plan(epsilon=EPSILON, delta=DELTA, upper=100.0, **more)


_CLOCK: Final = {"every": "1h", "start": "2026-01-01T00:00Z"}
#: What the trials should see of ε = 1.
_TREE, _GAUSSIAN = 0.8, 0.7

SUBJECTS: Final = {
    subject.name: subject
    for subject in (
        Subject("binary-tree", "binary tree", lambda: by_clock(BinaryTree()), _TREE),
        Subject("honaker-tree", "Honaker's tree", lambda: by_clock(HonakerTree(), leaves=2), _TREE),
        Subject(
            "signed-digit-tree",
            "signed-digit tree",
            lambda: by_clock(SignedDigitTree(arity=3)),
            _TREE,
        ),
        Subject(
            "restarted-tree",
            "trees of a window",
            lambda: by_clock(RestartedTree(window=2), Mean(window="2h")),
            _TREE,
        ),
        Subject("independent", "independent noise", lambda: by_clock(Independent(), Mean()), _TREE),
        Subject(
            "decayed-independent",
            "independent noise, half-life",
            lambda: by_clock(DecayedIndependent(half_life=2), Mean(half_life="2h")),
            _TREE,
        ),
        Subject(
            "keys-by-count",
            "binary tree, many keys by count",
            lambda: by_count(BinaryTree(), length=2, statistic=Sum(), keys=range(CROWD)),
        ),
        Subject(
            "binary-tree-gaussian",
            "binary tree",
            lambda: by_clock(BinaryTree("gaussian")),
            _GAUSSIAN,
        ),
        Subject(
            "independent-gaussian",
            "independent noise",
            lambda: by_clock(Independent("gaussian")),
            _GAUSSIAN,
        ),
        Subject(
            "honaker-tree-gaussian",
            "Honaker's tree",
            lambda: by_clock(HonakerTree("gaussian"), leaves=2),
            _GAUSSIAN,
            times=2,
        ),
        Subject(
            "buffered-toeplitz",
            "buffered Toeplitz",
            lambda: by_clock(BufferedToeplitz()),
            _GAUSSIAN,
        ),
        Subject(
            "square-root-toeplitz",
            "square root of Toeplitz",
            lambda: by_clock(SquareRootToeplitz()),
            _GAUSSIAN,
        ),
        Subject(
            "window-toeplitz",
            "Toeplitz of a window",
            lambda: by_clock(WindowToeplitz(window=2), Mean(window="2h")),
            _GAUSSIAN,
        ),
        Subject(
            "decayed-toeplitz",
            "Toeplitz with a half-life",
            lambda: by_clock(DecayedToeplitz(half_life=2), Mean(half_life="2h")),
            _GAUSSIAN,
        ),
        Subject(
            "person",
            "a person: 2 observations",
            lambda: by_clock(BufferedToeplitz(), leaves=6, unit=Person(most=2, apart="1h")),
            _GAUSSIAN,
        ),
        Subject(
            "person-pure",
            "a person, pure: 2 observations, 2 hours apart",
            lambda: by_clock(Independent(), unit=Person(most=2, apart="2h")),
            _GAUSSIAN,
        ),
        Subject(
            "person-learned",
            "a person, in a range that is learned by looks",
            lambda: _learned(
                **_CLOCK,
                length="14h",
                lag=4,
                threshold=TailHistogram(growth=1.5),
                strategy=BufferedToeplitz(),
                unit=Person(most=3, apart="2h"),
            ),
        ),
        Subject(
            "histogram",
            "counts of values",
            lambda: by_clock(BinaryTree(), Histogram(bins=(0.0, 10.0, 50.0)), leaves=2),
            _TREE,
        ),
        Subject(
            "quantiles",
            "median and 0.9-quantile",
            lambda: by_clock(BinaryTree(), Quantile(0.5, 0.9, bins=(0.0, 10.0, 50.0)), leaves=2),
            _TREE,
        ),
        Subject(
            "several",
            "mean and share in one promise",
            lambda: by_clock(Independent(), [Mean(share=0.5), Share(above=20.0)], leaves=2),  # type: ignore[arg-type]
        ),
        Subject(
            "totals",
            "keys and totals of them",
            lambda: by_clock(
                BufferedToeplitz(),
                keys=[("r0", 0), ("r1", 1)],
                levels={"all": 0.05, "region": 0.35},
            ),
            _GAUSSIAN,
        ),
        Subject(
            "amended",
            "another ε from a tick on",
            lambda: by_clock(
                BufferedToeplitz(),
                leaves=8,
                keys=["a", "b"],
                amendments=[{"after": 2, "epsilon": 0.5}],
            ),
        ),
        Subject(
            "learned-by-count",
            "the default: a range learned by looks",
            lambda: _learned(length=80, lag=40),
        ),
        Subject(
            "learned-by-clock",
            "the default by the clock",
            lambda: _learned(**_CLOCK, length="12h", lag=3, threshold=TailHistogram(growth=1.5)),
        ),
        Subject(
            "learned-together",
            "a range that keys learn together",
            lambda: _learned(**_CLOCK, length="12h", lag=3, keys=["a", "b"], shared_threshold=True),
        ),
        Subject(
            "paper",
            "Perrier, Asghar, Kaafar (NDSS 2019)",
            lambda: Plan.paper(epsilon=EPSILON, delta=2.0**-20, upper=100.0, length=216, lag=200),
        ),
        Subject(
            "exponential-quantile",
            "a look: exponential mechanism",
            lambda: OneLook(ExponentialQuantile()),
        ),
        Subject("smooth-quantile", "a look: smooth sensitivity", lambda: OneLook(SmoothQuantile())),
        Subject("tail-histogram", "a look: noisy counts", lambda: OneLook(TailHistogram())),
        Subject("secrets", "fresh secrets", Secrets),
    )
}
