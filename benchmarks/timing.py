"""Whether the time that an observation takes depends on its value, or on the noise.

    python benchmarks/timing.py [--pairs 1000000] [--json FILE] [--page docs/timing.md]

Calls are made in pairs, one of each of two classes, in an order that a coin decides, on one core
and without garbage collection.  Of some hundred pairs at a time the times of both classes are
sorted, and the means of five parts of them compared: the fastest tenth, the lower half, and so on.
These differences go to Wilcoxon's signed-rank test, which needs nothing of them but that they are
symmetric where the classes do not matter: the coin sees to that, whatever else the machine does.
A score beyond 4.5 in any part counts as a dependence.  The estimate that belongs to the test is
that of Hodges and Lehmann, with its interval.

A value against itself shows what is found where nothing is.  Leaks of one, two and four additions,
their size measured alone by the same method, show what is found.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
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

#: Parts of the sorted times of a class: the upper ones are interrupts, the lower the code itself.
PARTS = ((0.0, 0.1), (0.1, 0.5), (0.5, 0.75), (0.75, 0.9), (0.9, 0.99))
#: The part whose difference is stated.
STATED = (0.1, 0.5)
LIMIT = 4.5
#: Normal quantiles: of a 95 % interval, and of being found 9 times in 10.
WIDE, OFTEN = 1.96, 1.28
UPPER = 100.0
FIXED = 37.5
OTHER = 37.25
#: By default values may be missing, and are counted beside what they sum up to.
COUNTED = "BLT with a count"
#: Of other statistics: what is picked by the value is a count, or a row of a table.
OTHERS = {
    "share": rillet.Share(above=UPPER / 2),
    "quantile": rillet.Quantile(0.5, bins=16),
}
Floats = NDArray[np.float64]
Times = NDArray[np.int64]
Call = Callable[[Any], object]


@dataclass(frozen=True)
class Finding:
    """What the times of two classes of calls say."""

    what: str
    pairs: int
    #: Mean time of the first class in the stated part, and how much longer the second takes there.
    nanoseconds: float
    longer: float
    interval: tuple[float, float]
    #: The signed-rank score of the part where it is largest in size, and that part.
    score: float
    part: tuple[float, float]

    @property
    def depends(self) -> bool:
        return bool(abs(self.score) > LIMIT)  # of NumPy's, which JSON does not know

    @property
    def smallest(self) -> float:
        """A difference in the stated part that would be found 9 times in 10."""
        return (LIMIT + OFTEN) * (self.interval[1] - self.interval[0]) / (2 * WIDE)


def shifts(differences: Floats) -> tuple[float, tuple[float, float], float]:
    """The median of means of all pairs (Hodges, Lehmann), its 95 % interval, Wilcoxon's score."""
    count = len(differences)
    first, second = np.triu_indices(count)
    means = np.sort(differences[first] + differences[second]) / 2
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    above = np.count_nonzero(means > 0) + np.count_nonzero(means == 0) / 2
    reach = min(len(means) // 2, round(WIDE * deviation))
    middle = len(means) // 2
    ends = float(means[middle - reach]), float(means[min(middle + reach, len(means) - 1)])
    return float(np.median(means)), ends, (above - len(means) / 2) / deviation


def at_once(calls: int) -> int:
    """Pairs that give one difference: enough of these for a score that can pass the limit."""
    return 500 if calls >= 200_000 else 50


def compared(what: str, times: Times, second: NDArray[np.bool_]) -> Finding:
    """Compare two classes of times, of which each has half of every so many calls."""
    size = at_once(len(times))
    blocks = len(times) // (2 * size)
    kept = blocks * 2 * size
    order = np.argsort(second[:kept].reshape(blocks, -1), axis=1, kind="stable")
    sides = np.take_along_axis(times[:kept].reshape(blocks, -1), order, 1)
    one, other = (np.sort(side, axis=1) for side in np.split(sides, 2, axis=1))
    found = {}
    for part in PARTS:
        own = slice(*(round(end * size) for end in part))
        found[part] = shifts(other[:, own].mean(1) - one[:, own].mean(1))
    part = max(PARTS, key=lambda part: abs(found[part][2]))
    longer, ends, _ = found[STATED]
    own = slice(*(round(end * size) for end in STATED))
    typical = float(np.median(one[:, own].mean(1)))
    row = Finding(what, kept // 2, typical, longer, ends, found[part][2], part)
    print(f"{what}: {longer:+.1f} ns, score {row.score:+.1f}", file=sys.stderr, flush=True)
    return row


def coins(pairs: int, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Which calls are of the second class: one of every two, in an order by chance."""
    heads = draws.random(pairs) < 0.5
    return np.stack([heads, ~heads], 1).reshape(-1)


def larger(sizes: Floats) -> NDArray[np.bool_]:
    """The larger half of every so many: what is correlated over long times is alike in both."""
    size = at_once(len(sizes))
    near = sizes[: len(sizes) // (2 * size) * 2 * size]
    ranks = near.reshape(-1, 2 * size).argsort(axis=1).argsort(axis=1)
    return (ranks >= size).reshape(-1)


def timed(call: Call, values: list[Any], look: Callable[[Any], None] | None = None) -> Times:
    """Nanoseconds of each call; ``look`` is called with what it returns, and not timed."""
    clock, times = time.perf_counter_ns, np.empty(len(values), np.int64)
    gc.collect()
    gc.disable()
    try:
        for index, value in enumerate(values):
            begun = clock()
            found = call(value)
            times[index] = clock() - begun
            if look is not None:
                look(found)
    finally:
        gc.enable()
    return times


def plan_for(length: int, strategy: str) -> rillet.Plan:
    """A plan with a declared range, so that every call releases."""
    promise: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "upper": UPPER, "length": length}
    if strategy == "tree":
        return rillet.Plan.baseline(**promise)
    if strategy in OTHERS:
        promise["statistic"] = OTHERS[strategy]
    elif strategy != COUNTED:
        promise["missing"] = "none"
    return rillet.Plan(**promise, threshold=rillet.FixedThreshold())


def opened(length: int, strategy: str) -> rillet.Stream:
    """A stream that has begun."""
    stream = plan_for(length + 1, strategy).open()
    stream.update(1.0)
    return stream


KINDS = {
    "the same": FIXED,
    "another": OTHER,
    "below the range": -1e6,
    "above the range": 1e6,
    "not a number": math.nan,
    "infinite": math.inf,
    "zero": 0.0,
    "the middle": UPPER / 2,
    "subnormal": 5e-320,
}


def values_of(kind: str, count: int, draws: np.random.Generator) -> Floats:
    """Values of one class."""
    return draws.uniform(0.0, UPPER, count) if kind == "random" else np.full(count, KINDS[kind])


def mixed(kind: str, pairs: int) -> tuple[list[float], NDArray[np.bool_]]:
    """A fixed value and one of another class in every pair."""
    draws = np.random.default_rng(pairs + len(kind))
    second = coins(pairs, draws)
    fixed, other = (values_of(own, 2 * pairs, draws) for own in ("the same", kind))
    return np.where(second, other, fixed).tolist(), second


#: Leaks: so many additions more for any other value than the fixed one.
LEAKS: dict[str, Callable[[float], float]] = {
    "one addition": lambda value: value if value == FIXED else value + 1.0,
    "two additions": lambda value: value if value == FIXED else value + 1.0 - 1.0,
    "four additions": lambda value: value if value == FIXED else value + 1.0 - 1.0 + 1.0 - 1.0,
}


def of_leak(name: str, pairs: int) -> list[Finding]:
    """What a leak takes alone, and whether it is found beside the update of a stream."""
    values, second = mixed("another", pairs)
    leak, update = LEAKS[name], opened(2 * pairs, "BLT").update
    alone = compared(f"a leak alone: {name}", timed(leak, values), second)
    times = timed(lambda value: update(leak(value)), values)
    return [alone, compared(f"update, BLT, with a leak: {name}", times, second)]


def by_value(kind: str, pairs: int, strategy: str) -> Finding:
    """One observation at a time: a fixed value, and one of another class."""
    values, second = mixed(kind, pairs)
    times = timed(opened(2 * pairs, strategy).update, values)
    return compared(f"update, {strategy}: fixed, {kind}", times, second)


def by_block(kind: str, pairs: int, size: int) -> Finding:
    """Blocks whose values are all fixed, or all of another class."""
    draws = np.random.default_rng(pairs + len(kind))
    second = coins(pairs, draws)
    blocks = [[values_of(own, size, draws) for _ in range(500)] for own in ("the same", kind)]
    given = [blocks[own][index % 500] for index, own in enumerate(second.tolist())]
    times = timed(opened(2 * pairs * size, "BLT").update_many, given)
    return compared(f"update_many of {size}: fixed, {kind}", times, second)


def by_noise(pairs: int, strategy: str, *, alone: bool = True) -> Finding:
    """Always the same observation, or a block of it: releases with little noise, and with much."""
    sizes: list[float] = []

    def look(found: Any) -> None:
        release = found if alone else found[-1]
        exact = 1.0 + FIXED * (len(sizes) + 1)
        sizes.append(abs(release.sum - exact) / release.noise_std)

    stream, count = opened(2 * pairs, strategy), 2 * pairs
    if alone:
        times = timed(stream.update, [FIXED] * count, look)
    else:
        times = timed(stream.update_many, [np.array([FIXED])] * count, look)
    what = "update" if alone else "update_many of 1"
    return compared(f"{what}, {strategy}: noise small, large", times, larger(np.array(sizes)))


def by_draw(law: Law, pairs: int) -> Finding:
    """One draw at a time: small ones, and large ones."""
    noise = LatticeNoise(law, 20 * 2.0**20, Secret.generate(), ("timing",))
    times = timed(lambda index: noise.draw(index, 1), list(range(2 * pairs)))
    sizes = np.abs(noise.draw(0, 2 * pairs)).astype(np.float64)
    return compared(f"one {law.name} draw: small, large", times, larger(sizes))


def findings(pairs: int) -> list[Finding]:
    """All that is measured; the first is where nothing is, then come the leaks."""
    found = [by_value("the same", pairs, "BLT")]
    for name in LEAKS:
        found += of_leak(name, pairs)
    for strategy in ("BLT", "tree"):
        found += [by_value("random", pairs, strategy), by_noise(pairs // 2, strategy)]
    others = [kind for kind in KINDS if kind not in ("the same", "another")]
    found += [by_value(kind, pairs, "BLT") for kind in others]
    found += [by_value(kind, pairs, "tree") for kind in ("zero", "subnormal", "the middle")]
    for kind in ("random", "zero", "the middle", "above the range", "not a number"):
        found.append(by_value(kind, pairs, COUNTED))
    found += [by_value(kind, pairs, "share") for kind in ("random", "above the range")]
    # Many columns, each with noise of its own.
    found += [by_value(kind, pairs // 5, "quantile") for kind in ("random", "not a number")]
    found.append(by_noise(pairs // 20, "BLT", alone=False))
    blocks = max(pairs // 50, 5_000)
    for kind in ("random", "subnormal", "above the range", "not a number"):
        found.append(by_block(kind, blocks, 100))
    return [*found, *(by_draw(law, pairs // 2) for law in (LAPLACE, GAUSSIAN))]


def table(found: list[Finding]) -> str:
    """Rows for the documentation."""
    names = ["first and second class", "pairs", "first, ns", "second longer by, ns (95 %)"]
    names += ["found from, ns", "score (part, %)", ""]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in found:
        low, high = row.interval
        part = "–".join(f"{100 * end:g}" for end in row.part)
        cells = [row.what, f"{row.pairs:,}", f"{row.nanoseconds:,.0f}"]
        cells += [f"{row.longer:+,.1f} ({low:+,.1f} to {high:+,.1f})", f"{row.smallest:,.1f}"]
        cells += [f"{row.score:+.1f} ({part})", "**depends**" if row.depends else "not seen"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(found: list[Finding], pairs: int, minutes: float, load: tuple[float, float]) -> str:
    """The page of the documentation."""
    leaks = [row for row in found if "with a leak" in row.what]
    seen = [row.what.rpartition(": ")[2] for row in leaks if row.depends]

    def smallest(*kinds: str) -> float:
        return max(row.smallest for row in found if row.what.startswith(kinds))

    return HEAD.format(
        pairs=pairs,
        minutes=minutes,
        load=load,
        python=platform.python_version(),
        null="is" if found[0].depends else "is not",
        seen=", ".join(seen) if seen else "none",
        update=smallest("update, BLT: fixed", "update, tree: fixed"),
        noise=smallest("update, BLT: noise", "update, tree: noise"),
        block=smallest("update_many of 100"),
        draw=smallest("one "),
        table=table(found),
    )


HEAD = """# Timing

Does the time of a call tell its value, or the noise? `benchmarks/timing.py` wrote this page
(`make timing` takes a million pairs); what follows from it is on the page on
[assurance](assurance.md#time).

Calls are made in {pairs:,} pairs, one of each of two classes, in an order that a coin decides, on
one core, without garbage collection (quantiles: a fifth as many, blocks of 100: a fiftieth).
Classes by noise are half as many, split at the median of every 1,000. Each 500 pairs (50 where
there are few) give one difference for each of five parts of the sorted times; Wilcoxon's
signed-rank test on these is right whatever else the machine does, as the coin makes them symmetric
where the classes do not matter. A score beyond 4.5 in any part counts as a dependence: by chance
that comes less than once in a thousand runs of this page. *Longer by* is the difference of the
part from 10 to 50 %, with its interval (Hodges and Lehmann); *found from* is a difference
there that would be found 9 times in 10.

Taken in {minutes:.0f} minutes with Python {python}; load of the machine (processes that want to
run) {load[0]:.1f} before, {load[1]:.1f} after: one of them is the measurement.

- Where nothing differs (a value against itself), a difference {null} found.
- Leaks made on purpose, whose size is measured alone by the same method: found beside an update
  are those of {seen}.
- What would be found: {update:.1f} ns of an update, {noise:.1f} ns between releases with little and
  much noise, {block:,.0f} ns of a block of 100, {draw:,.0f} ns of a draw.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    told = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    began, before = time.perf_counter(), os.getloadavg()[0]
    found = findings(told.pairs)
    minutes = (time.perf_counter() - began) / 60
    sys.stdout.write(table(found) + "\n")
    if told.json:
        told.json.write_text(json.dumps([asdict(row) | {"depends": row.depends} for row in found]))
    if told.page:
        load = before, os.getloadavg()[0]
        told.page.write_text(page(found, told.pairs, minutes, load), encoding="utf-8")
    controls = {row.what.rpartition(": ")[2]: row for row in found if "with a leak" in row.what}
    sys.exit(0 if controls["two additions"].depends and not found[0].depends else 1)


if __name__ == "__main__":
    main()
