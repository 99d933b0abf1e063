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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rillet import datasets
from rillet.plan import Plan
from rillet.reproduce.simulator import simulate
from rillet.statistic import Range, Sum
from rillet.threshold import FixedThreshold

__all__ = ["STREAMS", "Measured", "Stream", "best_range", "main", "measure"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Random = np.random.Generator

#: Ends that are tried on each side: those that leave 0, 1, 2, … values outside, then fewer of them.
_ENDS: Final = 400
#: Runs on the same values, where they are drawn: one draw of a heavy tail is easier than another.
_RUNS_OF_VALUES: Final = 50


@dataclass(frozen=True)
class Stream:
    """Values to make, their bounds, and what the RMSE over the best one's may be at ε = 1."""

    make: Callable[[Random, int], FloatArray]
    length: int
    lower: float
    upper: float
    limit: float


def _second_group(times: float) -> Callable[[Random, int], FloatArray]:
    """Exponential values, of which two in a hundred are so many times larger."""

    def make(random: Random, n: int) -> FloatArray:
        values = random.exponential(10.0, n)
        values[random.random(n) < 0.02] *= times
        return values

    return make


def _pareto(random: Random, n: int) -> FloatArray:
    return np.asarray(random.random(n) ** (-1 / 1.5), np.float64)


def _zipf(random: Random, n: int) -> FloatArray:
    return np.asarray(random.zipf(2.0, n), np.float64)


def _baskets(_: Random, n: int) -> FloatArray:
    return datasets.baskets()[:n]


def _flights(_: Random, n: int) -> FloatArray:
    return datasets.flights()[:n]


def _power(_: Random, n: int) -> FloatArray:
    return datasets.household_power()[:n]


STREAMS: Final[dict[str, Stream]] = {
    "baskets": Stream(_baskets, 150_000, 0.0, 3000.0, 1.0),
    "trips": Stream(
        lambda random, n: datasets.trips(n, int(random.integers(2**31))),
        *(25_000_000, 0.0, 1440.0, 1.0),
    ),
    "Normal(240, 4)": Stream(
        lambda random, n: random.normal(240.0, 4.0, n), 400_000, 0.0, 1000.0, 1.0
    ),
    "20 + 1.5·t₄": Stream(
        lambda random, n: 20 + 1.5 * random.standard_t(4, n), 300_000, -50.0, 150.0, 1.0
    ),
    "flights": Stream(_flights, 327_346, 0.0, 1440.0, 1.1),
    "household power": Stream(_power, 2_075_259, 0.0, 36.0, 1.1),
    "rounded Normal(30, 2)": Stream(
        lambda random, n: np.rint(random.normal(30.0, 2.0, n)), 50_000, 0.0, 500.0, 1.2
    ),
    "Pareto 1.5, B = 10⁴": Stream(_pareto, 100_000, 0.0, 1e4, 2.0),
    "Pareto 1.5, B = 10⁶": Stream(_pareto, 100_000, 0.0, 1e6, 2.0),
    "lognormal(2, 1.5)": Stream(
        lambda random, n: random.lognormal(2.0, 1.5, n), 100_000, 0.0, 1e4, 2.0
    ),
    "Zipf 2": Stream(_zipf, 100_000, 0.0, 1e4, 2.0),
    "2 % are 4 times larger": Stream(_second_group(4.0), 100_000, 0.0, 3000.0, 2.0),
    "2 % are 8 times larger": Stream(_second_group(8.0), 100_000, 0.0, 3000.0, 2.0),
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


def measure(stream: Stream, epsilon: float, runs: int, seed: int) -> Measured:
    """Make the values, and run the default plan so many times."""
    random, ranges, squares, sizes = np.random.default_rng(seed), [], [], []
    plan = Plan(
        epsilon=epsilon,
        delta=2.0**-20,
        lower=stream.lower,
        upper=stream.upper,
        length=stream.length,
        statistic=Sum(),
        missing="none",
    )
    for first in range(0, runs, _RUNS_OF_VALUES):
        values = np.clip(stream.make(random, stream.length), stream.lower, stream.upper)
        best, error = best_range(plan, values)
        found = simulate(plan, values, min(_RUNS_OF_VALUES, runs - first), seed=seed + first)
        # The noise is integrated over; its law is known.
        square = (found.clipping + found.added_back) ** 2 + found.noise_std**2
        ranges.append(best)
        squares.append(square / error**2)
        sizes.append(np.abs(found.errors) / error)
    apart = squares[0] if len(squares) == 1 else np.array([one.mean() for one in squares])
    rmse = float(np.sqrt(np.concatenate(squares).mean()))
    return Measured(
        rmse=rmse,
        rmse_error=float(apart.std()) / np.sqrt(len(apart)) / (2 * rmse),
        median=float(np.median(np.concatenate(sizes))),
        best=ranges[0],
        length=stream.length,
        lag=plan.layout.lag,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m rillet.reproduce.ranges", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*STREAMS, []], help="streams; all if none")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="of the streams; fresh if none")
    options = parser.parse_args(arguments)
    fresh = int(np.random.default_rng().integers(2**31))
    seed = fresh if options.seed is None else options.seed
    show = sys.stdout.write
    show(f"ε = {options.epsilon:g}, δ = 2^-20, {options.runs} runs, seed {seed}\n\n")
    show("| stream | n | bounds | lag | best range | RMSE / best | median / best | limit |\n")
    show("|---|---|---|---|---|---|---|---|\n")
    kept = True
    for name in options.names or STREAMS:
        stream = STREAMS[name]
        found = measure(stream, options.epsilon, options.runs, seed)
        limit = stream.limit if options.epsilon >= 1 else SMALL_EPSILON_LIMIT
        kept = kept and found.rmse <= limit
        show(
            f"| {name} | {found.length:,} | [{stream.lower:g}, {stream.upper:g}] | {found.lag:,} | "
            f"[{found.best.lower:.4g}, {found.best.upper:.4g}] | "
            f"{found.rmse:.2f} ± {found.rmse_error:.2f} | {found.median:.2f} | {limit:g} |\n"
        )
        sys.stdout.flush()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
