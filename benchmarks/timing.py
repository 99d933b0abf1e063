"""Whether the time that an observation takes depends on its value, or on the noise.

    python benchmarks/timing.py [--trials 1000000] [--json FILE]

Two classes of calls are mixed at random and timed one by one; Welch's t is taken of times below
several percentiles, as Reparaz, Balasch and Verbauwhede do ("Dude, is my code constant time?",
2017): the upper ones are interrupts and garbage, the lower ones the code itself.  |t| above 4.5 at
any of them counts as a dependence.  A fixed value against itself shows what the method finds where
nothing is; a value that costs two more additions shows that it finds something.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rillet
from rillet.noise import GAUSSIAN, LAPLACE, LatticeNoise, Law, Secret

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 100.0)
LIMIT = 4.5
UPPER = 100.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Finding:
    """What the times of two classes of calls say."""

    what: str
    trials: int
    #: Mean time of the first class below the 90th percentile, and how much longer the second takes.
    nanoseconds: float
    difference: float
    #: A difference smaller than this would most likely not have been found.
    resolution: float
    #: Welch's t of the percentile where it is largest in size, and that percentile.
    t: float
    percentile: float

    @property
    def depends(self) -> bool:
        return abs(self.t) > LIMIT


def compared(what: str, times: NDArray[np.int64], second: NDArray[np.bool_]) -> Finding:
    """Welch's t of two classes of times, cut off at several percentiles of all of them."""
    worst, where = 0.0, 100.0
    for percentile in PERCENTILES:
        kept = times <= np.percentile(times, percentile)
        t = _welch(times[kept & ~second], times[kept & second])[2]
        if abs(t) > abs(worst):
            worst, where = t, percentile
    kept = times <= np.percentile(times, 90.0)
    difference, error, _ = _welch(times[kept & ~second], times[kept & second])
    first = float(times[kept & ~second].mean())
    found = Finding(what, len(times), first, difference, LIMIT * error, worst, where)
    print(f"{what}: t {worst:+.1f}", file=sys.stderr, flush=True)
    return found


def _welch(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[float, float, float]:
    difference = float(other.mean() - one.mean())
    error = float(np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)))
    return difference, error, difference / error if error else 0.0


def timed(call: Callable[[float], object], values: list[float]) -> NDArray[np.int64]:
    """Nanoseconds of each call."""
    clock, times = time.perf_counter_ns, np.empty(len(values), np.int64)
    gc.collect()
    gc.disable()
    try:
        for index, value in enumerate(values):
            begun = clock()
            call(value)
            times[index] = clock() - begun
    finally:
        gc.enable()
    return times


def plan_for(trials: int, strategy: str) -> rillet.Plan:
    """A plan with a declared range, so that every call releases."""
    promise: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "upper": UPPER, "length": trials + 1}
    if strategy == "tree":
        return rillet.Plan.baseline(**promise)
    return rillet.Plan(**promise, threshold=rillet.FixedThreshold(), missing="none")


def values_of(kind: str, count: int, draws: np.random.Generator) -> Floats:
    """Values of one class."""
    fixed = {
        "fixed": 37.5,
        "fixed again": 37.5,
        "below the range": -1e6,
        "above the range": 1e6,
        "not a number": np.nan,
        "infinite": np.inf,
        "zero": 0.0,
        "subnormal": 5e-320,
    }
    return draws.uniform(0.0, UPPER, count) if kind == "random" else np.full(count, fixed[kind])


def by_value(kind: str, trials: int, strategy: str, slower: bool = False) -> Finding:
    """One observation at a time: a fixed value, and one of another class."""
    draws = np.random.default_rng(trials + len(kind))
    second = draws.random(trials) < 0.5
    values = np.where(second, values_of(kind, trials, draws), values_of("fixed", trials, draws))
    stream = plan_for(trials, strategy).open()
    stream.update(1.0)
    update: Callable[[float], object] = stream.update
    if slower:
        # What the method must find: less than a tenth of a microsecond more for one of the classes.
        def update(value: float) -> object:
            return stream.update(value if value == 37.5 else value - 1.0 + 1.0)

    return compared(f"update, {strategy}: fixed, {kind}", timed(update, values.tolist()), second)


def by_block(kind: str, trials: int, size: int) -> Finding:
    """Blocks whose values are all fixed, or all of another class."""
    draws = np.random.default_rng(trials + len(kind))
    second = draws.random(trials) < 0.5
    stream = plan_for(trials * size, "BLT").open()
    stream.update_many(np.ones(1))
    blocks = [values_of(kind if other else "fixed", size, draws) for other in second[:1000]]
    numbers = (np.arange(trials) % 1000).astype(float)
    times = timed(lambda number: stream.update_many(blocks[int(number)]), numbers.tolist())
    return compared(
        f"update_many of {size}: fixed, {kind}", times, np.resize(second[:1000], trials)
    )


def by_noise(trials: int, strategy: str) -> Finding:
    """One observation at a time, always the same: releases with much noise, and with little."""
    stream = plan_for(trials, strategy).open()
    stream.update(1.0)
    clock, times, sizes = time.perf_counter_ns, np.empty(trials, np.int64), np.empty(trials)
    gc.collect()
    gc.disable()
    try:
        for index in range(trials):
            begun = clock()
            release = stream.update(37.5)
            times[index] = clock() - begun
            assert release is not None
            sizes[index] = abs(release.sum - (1.0 + 37.5 * (index + 1))) / release.noise_std
    finally:
        gc.enable()
    # The noise of sums is correlated over time; ranks among neighbours are not.
    near = sizes.reshape(-1, 100) if trials % 100 == 0 else sizes.reshape(1, -1)
    second = (near > np.median(near, axis=1, keepdims=True)).reshape(-1)
    return compared(f"update, {strategy}: noise small, large", times, second)


def by_draw(law: Law, trials: int) -> Finding:
    """One draw at a time: small ones, and large ones."""
    noise = LatticeNoise(law, 20 * 2.0**20, Secret.generate(), ("timing",))
    times = timed(lambda index: noise.draw(int(index), 1), np.arange(trials).astype(float).tolist())
    sizes = np.abs(noise.draw(0, trials))
    return compared(f"one {law.name} draw: small, large", times, sizes > np.median(sizes))


def findings(trials: int) -> list[Finding]:
    """All that is measured."""
    few = max(trials // 100, 1000)
    found = [by_value("fixed again", trials, "BLT")]
    found.append(by_value("zero", trials, "BLT", slower=True))
    for strategy in ("BLT", "tree"):
        found += [by_value("random", trials, strategy), by_noise(trials, strategy)]
    for kind in (
        "zero",
        "subnormal",
        "below the range",
        "above the range",
        "infinite",
        "not a number",
    ):
        found.append(by_value(kind, trials, "BLT"))
    for kind in ("random", "subnormal", "above the range", "not a number"):
        found.append(by_block(kind, few, 100))
    return [*found, *(by_draw(law, trials) for law in (LAPLACE, GAUSSIAN))]


def table(found: list[Finding]) -> str:
    """Rows for the documentation."""
    names = ["first and second class", "calls", "first, ns", "second longer by, ns"]
    names += ["would be found from, ns", "t (percentile)", ""]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [
        f"| {row.what} | {row.trials:,} | {row.nanoseconds:,.0f} | {row.difference:+,.1f} "
        f"| {row.resolution:,.1f} | {row.t:+.1f} ({row.percentile:g}) "
        f"| {'depends' if row.depends else 'not seen'} |"
        for row in found
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    found = findings(told.trials)
    sys.stdout.write(table(found) + "\n")
    if told.json:
        told.json.write_text(json.dumps([asdict(row) | {"depends": row.depends} for row in found]))
    sys.exit(0 if found[1].depends and not found[0].depends else 1)


if __name__ == "__main__":
    main()
