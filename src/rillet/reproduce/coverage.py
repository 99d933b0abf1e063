"""How often the 95 % interval covers the truth: the mean of the unclipped values, by default plan.

At t = 2 lags, n/2 and n.  Each run has the looks and ranges of a stream of its own, by the code
that streams use; the noise of the sum, which is normal, is integrated over.  Streams that are drawn
are drawn anew every four runs.  The width is the median of that over the noise interval's.

Run it with ``python -m rillet.reproduce.coverage --runs 200``; all values are there, and the plans
say so (``missing="none"``).

**Privacy.** For public data only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from rillet import datasets
from rillet.plan import Plan
from rillet.reproduce.simulator import clipping, draw_paths, noise_std
from rillet.statistic import DEVIATIONS

__all__ = ["STREAMS", "Covered", "Stream", "covered", "main", "measure"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Random = np.random.Generator

#: Runs on the same values, where they are drawn.
_RUNS_OF_VALUES: Final = 4


@dataclass(frozen=True)
class Stream:
    """Values to make, their upper bound, and the least coverage and greatest width, if asked.

    ``only_at_end``: of a stream whose level changes, only its end is judged.
    """

    make: Callable[[Random, int], FloatArray]
    length: int
    upper: float
    least: float | None = None
    widest: float | None = None
    only_at_end: bool = False


def _weibull(shape: float) -> Callable[[Random, int], FloatArray]:
    return lambda random, n: 20 * random.weibull(shape, n)


def _lognormal(sigma: float) -> Callable[[Random, int], FloatArray]:
    return lambda random, n: random.lognormal(2.0, sigma, n)


def _growing(random: Random, n: int) -> FloatArray:
    return random.exponential(20.0, n) * np.linspace(1.0, 3.0, n)


def _second_group(random: Random, n: int) -> FloatArray:
    values = random.exponential(10.0, n)
    values[random.random(n) < 0.02] *= 8.0
    return values


STREAMS: Final[dict[str, Stream]] = {
    "exponential": Stream(_weibull(1.0), 20_000, 3000.0, 0.93, 1.3),
    "exponential, long": Stream(_weibull(1.0), 150_000, 3000.0, 0.93, 1.3),
    "Weibull 0.7": Stream(_weibull(0.7), 20_000, 3000.0, 0.93),
    "Weibull 0.7, long": Stream(_weibull(0.7), 150_000, 3000.0, 0.93),
    "Weibull 1.4": Stream(_weibull(1.4), 20_000, 3000.0, 0.93, 1.3),
    "Weibull 2": Stream(_weibull(2.0), 20_000, 3000.0, 0.93, 1.3),
    "Weibull 2, long": Stream(_weibull(2.0), 150_000, 3000.0, 0.93, 1.3),
    "baskets": Stream(lambda _, n: datasets.baskets()[:n], 150_000, 3000.0, 0.93),
    "flights": Stream(lambda _, n: datasets.flights()[:n], 327_346, 1440.0, 0.93),
    "lognormal(2, 1)": Stream(_lognormal(1.0), 20_000, 3000.0, 0.92),
    "lognormal(2, 1), long": Stream(_lognormal(1.0), 150_000, 3000.0, 0.92),
    "lognormal(2, 1.5)": Stream(_lognormal(1.5), 20_000, 3000.0, 0.90),
    "lognormal(2, 1.5), long": Stream(_lognormal(1.5), 100_000, 10_000.0, 0.90),
    "scale grows to 3 times": Stream(_growing, 20_000, 3000.0, 0.90, only_at_end=True),
    "scale grows to 3 times, long": Stream(_growing, 150_000, 3000.0, 0.90, only_at_end=True),
    "lognormal(2, 0.6)": Stream(_lognormal(0.6), 20_000, 3000.0),
    "Normal(240, 4)": Stream(lambda random, n: random.normal(240.0, 4.0, n), 100_000, 1000.0),
    "Pareto 3": Stream(lambda random, n: 20 * (random.pareto(3.0, n) + 1), 100_000, 3000.0),
    "Pareto 1.5": Stream(lambda random, n: random.pareto(1.5, n) + 1, 100_000, 10_000.0),
    "2 % are 8 times larger": Stream(_second_group, 100_000, 3000.0),
}


@dataclass(frozen=True, eq=False)
class Covered:
    """For each run (row) and step: the chance that the truth is covered, and the relative width.

    ``by_noise`` is the chance that the noise interval covers it.
    """

    steps: IntArray
    chance: FloatArray
    by_noise: FloatArray
    width: FloatArray


def covered(plan: Plan, values: FloatArray, runs: int, seed: int) -> Covered:
    """Run a plan many times on some values, and look at 2 lags, n/2 and n.

    **Privacy.** For public data only.
    """
    layout, n = plan.layout, len(values)
    steps = np.array([2 * layout.lag, n // 2, n])
    paths = draw_paths(plan, values, runs, seed)
    bias = (clipping(paths, values, steps) + paths.added_at(steps)) / steps
    std = noise_std(layout, paths.widths, steps) / steps
    segment = np.searchsorted(paths.ends, steps)
    segment[-1] += paths.added_last is not None
    off = np.array(
        [
            [
                layout.margin(run[place], t, layout.bounds).of(t)
                for place, t in zip(segment, steps.tolist(), strict=True)
            ]
            for run in paths.margins
        ]
    )
    noise = DEVIATIONS * std
    join = np.add if layout.tail == "bound" else np.hypot
    down, up = join(noise, off[..., 0]), join(noise, off[..., 1])

    def chance(below: FloatArray, above: FloatArray) -> FloatArray:
        found: FloatArray = ndtr((below - bias) / std) - ndtr((-above - bias) / std)
        return found

    return Covered(steps, chance(down, up), chance(noise, noise), (down + up) / (2 * noise))


def measure(
    stream: Stream,
    runs: int,
    seed: int,
    epsilon: float = 1.0,
    tail: Literal["fitted", "bound"] = "fitted",
) -> tuple[int, FloatArray]:
    """The lag; and coverage, that of the noise interval and the median width, at each step."""
    random = np.random.default_rng(seed)
    plan = Plan(
        epsilon=epsilon,
        delta=2.0**-20,
        upper=stream.upper,
        length=stream.length,
        missing="none",
        tail=tail,
    )
    found = []
    for first in range(0, runs, _RUNS_OF_VALUES):
        values = np.clip(stream.make(random, stream.length), 0.0, stream.upper)
        some = covered(plan, values, min(_RUNS_OF_VALUES, runs - first), seed + first)
        found.append(np.array([some.chance, some.by_noise, some.width]))
    chance, by_noise, width = np.concatenate(found, axis=1)
    return plan.layout.lag, np.array([chance.mean(0), by_noise.mean(0), np.median(width, axis=0)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(
        prog="python -m rillet.reproduce.coverage", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", choices=[*STREAMS, []], help="streams; all if none")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--tail", choices=["fitted", "bound"], default="fitted")
    parser.add_argument("--seed", type=int, default=None, help="of the streams; fresh if none")
    options = parser.parse_args(arguments)
    fresh = int(np.random.default_rng().integers(2**31))
    seed = fresh if options.seed is None else options.seed
    show = sys.stdout.write
    show(f"ε = {options.epsilon:g}, δ = 2^-20, {options.runs} runs, seed {seed}\n\n")
    show(
        "| stream | n | upper | lag | coverage at 2 lags, n/2, n | noise alone | width | asked |\n"
    )
    show("|---|---|---|---|---|---|---|---|\n")
    kept = True
    for name in options.names or STREAMS:
        stream = STREAMS[name]
        lag, found = measure(stream, options.runs, seed, options.epsilon, options.tail)
        chance, by_noise, width = found
        judged = slice(-1, None) if stream.only_at_end else slice(None)
        ok = (stream.least is None or min(chance[judged]) >= stream.least) and (
            stream.widest is None or max(width) <= stream.widest
        )
        kept = kept and ok
        asked = "" if stream.least is None else f"{100 * stream.least:.0f} %"
        asked += "" if stream.widest is None else f", width {stream.widest:g}"
        shown = [" ".join(f"{100 * one:.1f}" for one in row) for row in (chance, by_noise)]
        widths = " ".join(f"{one:.2f}" for one in width)
        show(
            f"| {name} | {stream.length:,} | {stream.upper:g} | {lag:,} | {shown[0]} | "
            f"{shown[1]} | {widths} | {asked or '–'}{'' if ok else ' (not kept)'} |\n"
        )
        sys.stdout.flush()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
