"""Whole streams: clip, quantise, encode, exact noise, decode, and a release at each observation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np

from frame import Comparison, Contender, Figure
from rillet import Plan, Secret, Stream, datasets

LENGTH = 2**20
UPPER = 1440.0
EPSILON = 1.0


def bench_tree() -> Comparison:
    """The binary tree over a million trips, beside OpenDP's on the same integers."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    minutes = datasets.trips(LENGTH)
    plan = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH)
    steps = plan.layout.segments[0].steps

    tree = dp.t.make_b_ary_tree(
        dp.vector_domain(dp.atom_domain(T="i64")),
        dp.l1_distance(T="i64"),
        leaf_count=LENGTH,
        branching_factor=2,
    )
    noisy = tree >> dp.m.then_laplace(scale=tree.map(steps) / EPSILON)
    consistent = noisy >> dp.t.make_consistent_b_ary_tree(2, TIA="i64", TOA="f64")

    def opendp() -> object:
        units = np.rint(np.clip(minutes, 0.0, UPPER) * (steps / UPPER)).astype(np.int64)
        return np.cumsum(consistent(units)) * (UPPER / steps) / np.arange(1, LENGTH + 1)

    return Comparison(
        f"running mean of {LENGTH:,} values",
        "observation",
        [
            Contender(
                "rillet, block",
                lambda: plan.open().update_many(minutes).value,
                LENGTH,
                within_nanoseconds=200.0,  # five million a second
            ),
            Contender("OpenDP, tree", opendp, LENGTH, rillet_within=0.01, most_rounds=1),
        ],
    )


def bench_paper() -> Comparison:
    """The paper's mechanism, learning included, and its parts."""
    minutes = datasets.trips(LENGTH)
    paper = Plan.paper(
        epsilon=EPSILON, delta=2**-20, upper=UPPER, length=LENGTH, lag=50_000, calibration="exact"
    )
    hourly = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH, every=1000)
    return Comparison(
        f"{LENGTH:,} values, other plans",
        "observation",
        [
            Contender("paper, lag 50,000", lambda: paper.open().update_many(minutes).value, LENGTH),
            Contender(
                "release every 1,000", lambda: hourly.open().update_many(minutes).value, LENGTH
            ),
        ],
    )


def bench_one_at_a_time() -> Comparison:
    """``update`` with one value, a release from each."""
    count = 200_000
    values = datasets.trips(count).tolist()
    plan = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH)

    def run() -> None:
        update = plan.open().update
        for value in values:
            update(value)

    return Comparison(
        "one update at a time",
        "observation",
        [Contender("rillet", run, count, within_nanoseconds=5000.0)],
    )


def _guarded(
    what: str,
    plan: Plan,
    absorb: Callable[[Stream], None],
    count: int = LENGTH,
    within: float | None = 1.1,
) -> Comparison:
    """The same under a secret that is given, whose uses are remembered, and under a fresh one."""
    return Comparison(
        f"a given secret: {what}",
        "observation",
        [
            Contender("rillet, given", lambda: absorb(plan.open(secret=Secret.generate())), count),
            Contender("rillet, fresh", lambda: absorb(plan.open()), count, rillet_within=within),
        ],
    )


def _in_blocks(size: int) -> Callable[[Stream], None]:
    minutes = datasets.trips(LENGTH)

    def absorb(stream: Stream) -> None:
        for start in range(0, LENGTH, size):
            stream.update_many(minutes[start : start + size])

    return absorb


def bench_guarded_tree() -> Comparison:
    """The binary tree in large blocks."""
    plan = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH)
    return _guarded("tree, blocks of 65,536", plan, _in_blocks(2**16))


def bench_guarded_small_blocks() -> Comparison:
    """The binary tree in blocks of a chunk."""
    plan = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH)
    return _guarded("tree, blocks of 4,096", plan, _in_blocks(2**12))


def bench_guarded_default() -> Comparison:
    """The plan that is chosen, in large blocks."""
    plan = Plan(epsilon=EPSILON, delta=2**-20, upper=UPPER, length=LENGTH)
    return _guarded("default plan, blocks of 65,536", plan, _in_blocks(2**16))


def bench_guarded_seldom() -> Comparison:
    """Few releases: an observation is hardly more than read, so that nothing is promised."""
    plan = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH, every=100)
    return _guarded("release every 100, blocks of 65,536", plan, _in_blocks(2**16), within=None)


def bench_guarded_one_at_a_time() -> Comparison:
    """``update`` with one value; nothing is promised beyond what it may take in all."""
    values = datasets.trips(100_000).tolist()
    plan = Plan.baseline(epsilon=EPSILON, upper=UPPER, length=LENGTH)

    def absorb(stream: Stream) -> None:
        for value in values:
            stream.update(value)

    return _guarded("one update at a time", plan, absorb, len(values), within=None)


# A process of its own for each length. The kernel's VmHWM is the peak of this program alone; the
# portable ru_maxrss begins, on Linux, with the peak of the process that started it.
_CONSUME = """
import re, resource, sys
from pathlib import Path
from rillet import Plan, datasets
length = int(sys.argv[1])
plan = Plan.paper(epsilon=1.0, delta=2**-20, upper=1440.0, length=length, lag=50_000)
stream = plan.open()
released = 0
for minutes in datasets.trips_blocks(length):
    released += len(stream.update_many(minutes).value)
assert released == length - 50_000 + 1 and stream.t == length
status = Path("/proc/self/status")
if status.exists():
    print(int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) / 2**10)
else:
    unit = 2**20 if sys.platform == "darwin" else 2**10
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
"""


def bench_memory() -> Figure:
    """Peak memory of 25 million trips over that of one million, in blocks of 65,536."""

    def peak_mib(length: int) -> float:
        done = subprocess.run(
            [sys.executable, "-c", _CONSUME, str(length)],
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    return Figure(
        "25,000,000 values in blocks, a release at each",
        "rillet, peak over that of 1,000,000",
        "MiB",
        lambda: peak_mib(25_000_000) - peak_mib(1_000_000),
        at_most=64.0,
    )
