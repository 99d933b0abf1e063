"""The streams that the default plan is tried on, and runs of it that are spread over all cores.

``ranges`` and ``coverage`` are the experiments.  A stream is drawn anew for each part of the runs,
from a seed of that part, so that what is printed depends on neither the number of processes nor
their order.

**Privacy.** For public data only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, Protocol, TypeVar
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from rillet import datasets
from rillet.plan import Plan

__all__ = [
    "DRAWN",
    "Stream",
    "Work",
    "growing",
    "in_parts",
    "lognormal",
    "pareto",
    "table",
    "weibull",
]

FloatArray = NDArray[np.float64]
Random = np.random.Generator
Found = TypeVar("Found")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Stream:
    """Values to make, how many, and their bounds."""

    make: Callable[[Random, int], FloatArray]
    length: int
    upper: float
    lower: float = 0.0

    def draw(self, seed: int) -> FloatArray:
        """Values within the bounds."""
        values = self.make(np.random.default_rng(seed), self.length)
        return np.clip(values, self.lower, self.upper)

    def plan(self, epsilon: float, **more: Any) -> Plan:
        """The default plan; all values are there, and it says so."""
        return Plan(
            epsilon=epsilon,
            delta=2.0**-20,
            lower=self.lower,
            upper=self.upper,
            length=self.length,
            missing="none",
            **more,
        )


# --- laws -----------------------------------------------------------------------------------------
# Functions of a module, since other processes are sent them.


def _normal(random: Random, n: int, *, level: float, deviation: float) -> FloatArray:
    return random.normal(level, deviation, n)


def _rounded_normal(random: Random, n: int, *, level: float, deviation: float) -> FloatArray:
    return np.rint(random.normal(level, deviation, n))


def _student(random: Random, n: int) -> FloatArray:
    return 20 + 1.5 * random.standard_t(4, n)


def _weibull(random: Random, n: int, *, shape: float) -> FloatArray:
    return 20 * random.weibull(shape, n)


def _lognormal(random: Random, n: int, *, sigma: float) -> FloatArray:
    return random.lognormal(2.0, sigma, n)


def _pareto(random: Random, n: int, *, index: float, scale: float = 1.0) -> FloatArray:
    return scale * (random.pareto(index, n) + 1)


def _zipf(random: Random, n: int) -> FloatArray:
    return np.asarray(random.zipf(2.0, n), np.float64)


def _second_group(random: Random, n: int, *, part: float, times: float) -> FloatArray:
    """Exponential values, of which a part is so many times larger."""
    values = random.exponential(10.0, n)
    values[random.random(n) < part] *= times
    return values


def growing(random: Random, n: int) -> FloatArray:
    """Exponential values whose scale grows to three times."""
    return random.exponential(20.0, n) * np.linspace(1.0, 3.0, n)


def _baskets(_: Random, n: int) -> FloatArray:
    return datasets.baskets()[:n]


def _flights(_: Random, n: int) -> FloatArray:
    return datasets.flights()[:n]


def _power(_: Random, n: int) -> FloatArray:
    return datasets.household_power()[:n]


def _trips(random: Random, n: int) -> FloatArray:
    return datasets.trips(n, int(random.integers(2**31)))


def weibull(shape: float, length: int) -> Stream:
    """Of scale 20, and a bound far above."""
    return Stream(partial(_weibull, shape=shape), length, 3000.0)


def lognormal(sigma: float, length: int, upper: float = 3000.0) -> Stream:
    """Of a median of e²."""
    return Stream(partial(_lognormal, sigma=sigma), length, upper)


def pareto(index: float, length: int, upper: float, scale: float = 1.0) -> Stream:
    """A power law from ``scale`` on."""
    return Stream(partial(_pareto, index=index, scale=scale), length, upper)


DRAWN: Final[dict[str, Stream]] = {
    "baskets": Stream(_baskets, 150_000, 3000.0),
    "trips": Stream(_trips, 25_000_000, 1440.0),
    "Normal(240, 4)": Stream(partial(_normal, level=240.0, deviation=4.0), 400_000, 1000.0),
    "20 + 1.5·t₄": Stream(_student, 300_000, 150.0, -50.0),
    "flights": Stream(_flights, 327_346, 1440.0),
    "household power": Stream(_power, 2_075_259, 36.0),
    "rounded Normal(30, 2)": Stream(
        partial(_rounded_normal, level=30.0, deviation=2.0), 50_000, 500.0
    ),
    "Pareto 1.5, B = 10⁴": pareto(1.5, 100_000, 1e4),
    "Pareto 1.5, B = 10⁶": pareto(1.5, 100_000, 1e6),
    "lognormal(2, 1.5)": lognormal(1.5, 100_000, 1e4),
    "Zipf 2": Stream(_zipf, 100_000, 1e4),
    "2 % are 4 times larger": Stream(partial(_second_group, part=0.02, times=4.0), 100_000, 3000.0),
    "2 % are 8 times larger": Stream(partial(_second_group, part=0.02, times=8.0), 100_000, 3000.0),
}


# --- runs -----------------------------------------------------------------------------------------


class Each(Protocol):
    """``map``, in this process or in others."""

    def __call__(self, function: Callable[[Item], Found], items: Iterable[Item], /) -> Any: ...


@dataclass(frozen=True)
class Work:
    """How many runs, from which seed, at which ε, and what maps a function over parts of them."""

    runs: int
    seed: int
    epsilon: float = 1.0
    each: Each = map


def in_parts(
    function: Callable[[Stream, float, int, int], Found], stream: Stream, work: Work, size: int
) -> list[Found]:
    """``function(stream, epsilon, runs, seed)`` for parts of so many runs, each of its own seed."""
    parts = [
        (min(size, work.runs - first), int(seed))
        for first, seed in zip(
            range(0, work.runs, size),
            np.random.SeedSequence(work.seed).generate_state(-(-work.runs // size)),
            strict=True,
        )
    ]
    return list(work.each(partial(_part, function, stream, work.epsilon), parts))


def _part(
    function: Callable[[Stream, float, int, int], Found],
    stream: Stream,
    epsilon: float,
    part: tuple[int, int],
) -> Found:
    runs, seed = part
    return function(stream, epsilon, runs, seed)


@contextmanager
def _mapping(jobs: int) -> Iterator[Each]:
    if jobs == 1:
        yield map
        return
    # One thread for each process; a library of linear algebra takes all cores otherwise.
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (
        patch.dict(os.environ, one),
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes,
    ):
        yield processes.map


# --- the command ----------------------------------------------------------------------------------


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text}")
    return int(text)


def table(
    arguments: Sequence[str] | None,
    *,
    module: str,
    document: str | None,
    names: Iterable[str],
    header: str,
    row: Callable[[str, Work, argparse.Namespace], tuple[str, bool]],
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> int:
    """Print a table with a row for each stream that is named; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(document or "").split("\n")[0]
    )
    names = list(names)
    parser.add_argument("names", nargs="*", choices=[*names, []], help="streams; all if none")
    parser.add_argument("--runs", type=_at_least_one, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="of the streams; fresh if none")
    parser.add_argument(
        "--jobs",
        type=_at_least_one,
        default=os.cpu_count() or 1,
        help="processes; all cores if none",
    )
    if more is not None:
        more(parser)
    options = parser.parse_args(arguments)
    fresh = int(np.random.default_rng().integers(2**31))
    seed = fresh if options.seed is None else options.seed
    show = sys.stdout.write
    show(f"ε = {options.epsilon:g}, δ = 2^-20, {options.runs} runs, seed {seed}\n\n")
    show(f"{header}\n{'|---' * (header.count('|') - 1)}|\n")
    kept = True
    with _mapping(options.jobs) as each:
        work = Work(options.runs, seed, options.epsilon, each)
        for name in options.names or names:
            shown, ok = row(name, work, options)
            kept = kept and ok
            show(f"{shown}\n")
            sys.stdout.flush()
    return 0 if kept else 1
