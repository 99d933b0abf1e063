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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from rillet.plan import Plan
from rillet.reproduce.simulator import clipping, draw_paths, noise_std
from rillet.reproduce.streams import (
    DRAWN,
    Stream,
    Work,
    growing,
    in_parts,
    lognormal,
    pareto,
    table,
    weibull,
)
from rillet.statistic import DEVIATIONS

__all__ = ["ASKED", "Asked", "Covered", "covered", "main", "measure"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Runs on the same values, where they are drawn.
_RUNS_OF_VALUES: Final = 4


@dataclass(frozen=True)
class Asked:
    """A stream, and the least coverage and greatest width, if asked.

    ``only_at_end``: of a stream whose level changes, only its end is judged.
    """

    stream: Stream
    least: float | None = None
    widest: float | None = None
    only_at_end: bool = False

    def kept(self, chance: FloatArray, width: FloatArray) -> bool:
        """Whether coverage and widths at each step are as asked."""
        judged = chance[-1:] if self.only_at_end else chance
        enough = self.least is None or bool(judged.min() >= self.least)
        return enough and (self.widest is None or bool(width.max() <= self.widest))

    @property
    def words(self) -> str:
        """What is asked, as the table says it."""
        if self.least is None:
            return "–"
        return f"{100 * self.least:.0f} %" + (f", width {self.widest:g}" if self.widest else "")


ASKED: Final[dict[str, Asked]] = {
    "exponential": Asked(weibull(1.0, 20_000), 0.93, 1.3),
    "exponential, long": Asked(weibull(1.0, 150_000), 0.93, 1.3),
    "Weibull 0.7": Asked(weibull(0.7, 20_000), 0.93),
    "Weibull 0.7, long": Asked(weibull(0.7, 150_000), 0.93),
    "Weibull 1.4": Asked(weibull(1.4, 20_000), 0.93, 1.3),
    "Weibull 2": Asked(weibull(2.0, 20_000), 0.93, 1.3),
    "Weibull 2, long": Asked(weibull(2.0, 150_000), 0.93, 1.3),
    "baskets": Asked(DRAWN["baskets"], 0.93),
    "flights": Asked(DRAWN["flights"], 0.93),
    "lognormal(2, 1)": Asked(lognormal(1.0, 20_000), 0.92),
    "lognormal(2, 1), long": Asked(lognormal(1.0, 150_000), 0.92),
    "lognormal(2, 1.5)": Asked(lognormal(1.5, 20_000), 0.90),
    "lognormal(2, 1.5), long": Asked(DRAWN["lognormal(2, 1.5)"], 0.90),
    "scale grows to 3 times": Asked(Stream(growing, 20_000, 3000.0), 0.90, only_at_end=True),
    "scale grows to 3 times, long": Asked(Stream(growing, 150_000, 3000.0), 0.90, only_at_end=True),
    "lognormal(2, 0.6)": Asked(lognormal(0.6, 20_000)),
    "Normal(240, 4)": Asked(replace(DRAWN["Normal(240, 4)"], length=100_000)),
    "Pareto 3": Asked(pareto(3.0, 100_000, 3000.0, scale=20.0)),
    "Pareto 1.5": Asked(DRAWN["Pareto 1.5, B = 10⁴"]),
    "2 % are 8 times larger": Asked(DRAWN["2 % are 8 times larger"]),
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
    stream: Stream, work: Work, tail: Literal["fitted", "bound"] = "fitted"
) -> tuple[int, FloatArray]:
    """The lag; and coverage, that of the noise interval and the median width, at each step."""
    parts = in_parts(partial(_part, tail), stream, work, _RUNS_OF_VALUES)
    chance, by_noise, width = np.concatenate([found for _, found in parts], axis=1)
    return parts[0][0], np.array([chance.mean(0), by_noise.mean(0), np.median(width, axis=0)])


def _part(
    tail: Literal["fitted", "bound"], stream: Stream, epsilon: float, runs: int, seed: int
) -> tuple[int, FloatArray]:
    plan = stream.plan(epsilon, tail=tail)
    some = covered(plan, stream.draw(seed), runs, seed)
    return plan.layout.lag, np.array([some.chance, some.by_noise, some.width])


def _row(name: str, work: Work, options: argparse.Namespace) -> tuple[str, bool]:
    asked = ASKED[name]
    lag, (chance, by_noise, width) = measure(asked.stream, work, options.tail)
    kept = asked.kept(chance, width)
    shown = [" ".join(f"{100 * one:.1f}" for one in row) for row in (chance, by_noise)]
    widths = " ".join(f"{one:.2f}" for one in width)
    row = (
        f"| {name} | {asked.stream.length:,} | {asked.stream.upper:g} | {lag:,} | {shown[0]} | "
        f"{shown[1]} | {widths} | {asked.words}{'' if kept else ' (not kept)'} |"
    )
    return row, kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a limit is not kept."""
    return table(
        arguments,
        module="rillet.reproduce.coverage",
        document=__doc__,
        names=ASKED,
        header=(
            "| stream | n | upper | lag | coverage at 2 lags, n/2, n | noise alone | width "
            "| asked |"
        ),
        row=_row,
        more=lambda parser: parser.add_argument(
            "--tail", choices=["fitted", "bound"], default="fitted"
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
