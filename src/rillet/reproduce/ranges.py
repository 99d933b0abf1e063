"""The default plan beside the best range known in advance, on streams with fresh seeds.

The error is that of the last sum, against the exact sum of the unclipped values: its RMSE, and its
median.  Both are divided by the RMSE of the *best* range with two ends: the same promise, strategy
and length, no lag, nothing learned and nothing added back, and the ends that minimise
``hypot(noise, mass above + mass below)`` on the very values.  No release could know them.  Streams
that are drawn are drawn anew every 50 runs.

Run it with ``python -m rillet.reproduce.ranges --runs 200``; all values are there, and the plans
say so (``missing="none"``).

**Privacy.** For public data only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rillet.plan import Plan
from rillet.reproduce.simulator import simulate
from rillet.reproduce.streams import DRAWN, Stream, Work, in_parts, table
from rillet.statistic import Range, Sum
from rillet.threshold import FixedThreshold

__all__ = ["LIMITS", "Measured", "best_range", "main", "measure"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Ends that are tried on each side: those that leave 0, 1, 2, … values outside, then fewer of them.
_ENDS: Final = 400
#: Runs on the same values, where they are drawn: one draw of a heavy tail is easier than another.
_RUNS_OF_VALUES: Final = 50

#: What the RMSE over that of the best range may be at ε = 1.
LIMITS: Final[dict[str, float]] = {
    "baskets": 1.0,
    "trips": 1.0,
    "Normal(240, 4)": 1.0,
    "20 + 1.5·t₄": 1.0,
    "flights": 1.1,
    "household power": 1.1,
    "rounded Normal(30, 2)": 1.2,
    "Pareto 1.5, B = 10⁴": 2.0,
    "Pareto 1.5, B = 10⁶": 2.0,
    "lognormal(2, 1.5)": 2.0,
    "Zipf 2": 2.0,
    "2 % are 4 times larger": 2.0,
    "2 % are 8 times larger": 2.0,
}
#: At ε = 0.1 those of the first group may have this.
SMALL_EPSILON_LIMIT: Final = 1.5


def best_range(plan: Plan, values: FloatArray) -> tuple[Range, float]:
    """The best range with two ends for all of the values, and its RMSE.

    **Privacy.** For public data only.
    """
    fixed = replace(plan, lag=0, threshold=FixedThreshold(), threshold_share="auto", refresh="auto")
    n = len(values)
    noise = float(fixed.layout.unit_std(np.array([fixed.layout.complete_leaves(n)]))[0])
    ranks = np.unique(np.concatenate((np.arange(60), np.geomspace(60, max(n // 2, 61), _ENDS))))
    tried: IntArray = ranks[ranks <= n // 2].astype(np.int64)
    uppers, above = _outside(values, tried, plan.bounds.upper)
    lowers, below = _outside(-values, tried, -plan.bounds.lower)
    errors = np.hypot(noise * (uppers[:, None] + lowers), above[:, None] + below)
    upper, lower = np.unravel_index(np.argmin(errors), errors.shape)
    return Range(-float(lowers[lower]), float(uppers[upper])), float(errors[upper, lower])


def _outside(values: FloatArray, ranks: IntArray, bound: float) -> tuple[FloatArray, FloatArray]:
    """Ends that leave so many values outside, and the bound; what lies outside each."""
    falling = np.sort(values)[::-1]
    ends = np.append(falling[ranks], bound)
    inside = np.append(ranks, 0)
    sums = np.concatenate(([0.0], np.cumsum(falling)))
    return ends, np.maximum(sums[inside] - inside * ends, 0.0)


@dataclass(frozen=True)
class Measured:
    """Errors over the RMSE of the best range, and the standard error of the first.

    ``best`` is that of the first values that were drawn.
    """

    rmse: float
    rmse_error: float
    median: float
    best: Range
    length: int
    lag: int


def measure(stream: Stream, work: Work) -> Measured:
    """Make the values, and run the default plan so many times."""
    parts = in_parts(_part, stream, work, _RUNS_OF_VALUES)
    squares = [squares for _, squares, _ in parts]
    apart = squares[0] if len(squares) == 1 else np.array([one.mean() for one in squares])
    rmse = float(np.sqrt(np.concatenate(squares).mean()))
    return Measured(
        rmse=rmse,
        rmse_error=float(apart.std()) / np.sqrt(len(apart)) / (2 * rmse),
        median=float(np.median(np.concatenate([sizes for _, _, sizes in parts]))),
        best=parts[0][0],
        length=stream.length,
        lag=stream.plan(work.epsilon, statistic=Sum()).layout.lag,
    )


def _part(
    stream: Stream, epsilon: float, runs: int, seed: int
) -> tuple[Range, FloatArray, FloatArray]:
    """The best range for some values; squares of errors and their sizes, over its RMSE."""
    values, plan = stream.draw(seed), stream.plan(epsilon, statistic=Sum())
    best, error = best_range(plan, values)
    found = simulate(plan, values, runs, seed=seed)
    # The noise is integrated over; its law is known.
    square = (found.clipping + found.added_back) ** 2 + found.noise_std**2
    return best, square / error**2, np.abs(found.errors) / error


def _row(name: str, work: Work, _: argparse.Namespace) -> tuple[str, bool]:
    stream = DRAWN[name]
    found = measure(stream, work)
    limit = LIMITS[name] if work.epsilon >= 1 else SMALL_EPSILON_LIMIT
    shown = (
        f"| {name} | {found.length:,} | [{stream.lower:g}, {stream.upper:g}] | {found.lag:,} | "
        f"[{found.best.lower:.4g}, {found.best.upper:.4g}] | "
        f"{found.rmse:.2f} ± {found.rmse_error:.2f} | {found.median:.2f} | {limit:g} |"
    )
    return shown, found.rmse <= limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a limit is not kept."""
    return table(
        arguments,
        module="rillet.reproduce.ranges",
        document=__doc__,
        names=LIMITS,
        header="| stream | n | bounds | lag | best range | RMSE / best | median / best | limit |",
        row=_row,
    )


if __name__ == "__main__":
    sys.exit(main())
