"""``rillet run``: whole processes, from a CSV file through many keys to a database of releases."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np

from frame import Comparison, Contender, Figure

OBSERVATIONS = 1_000_000
KEYS = 1_000
LAG = 50
#: Twice the mean number of observations of a key, which differ by chance.
LENGTH = 2 * OBSERVATIONS // KEYS
MANY_KEYS = 100_000

_CONFIG = """
[plan]
mechanism = "paper"
epsilon = 1.0
delta = "2^-20"
upper = 3000.0
length = {length}
lag = {lag}

[keys]
columns = ["meter"]
file = "{keys}"

[source]
path = "{source}"
column = "kwh"
"""
_DURABLE = """
[state]
folder = "{folder}"
"""
_VOLATILE = """
[[sink]]
kind = "sqlite"
path = "{folder}/releases.db"
"""


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="rillet-bench-"))


@cache
def _input(keys: int) -> tuple[Path, Path]:
    """A million readings of meters in random order, and the declared meters."""
    random = np.random.default_rng(2019)
    meters = random.integers(0, keys, OBSERVATIONS).tolist()
    values = np.round(random.exponential(30.0, OBSERVATIONS), 2).tolist()
    source, declared = _folder() / f"{keys}.csv", _folder() / f"{keys}.txt"
    with source.open("w", encoding="ascii") as stream:
        stream.write("meter,kwh\n")
        stream.writelines(
            f"m{meter},{value}\n" for meter, value in zip(meters, values, strict=True)
        )
    declared.write_text("".join(f"m{meter}\n" for meter in range(keys)), encoding="ascii")
    return source, declared


def _run(keys: int, lag: int, *, durable: bool) -> dict[str, float]:
    """One whole process; what it took."""
    source, declared = _input(keys)
    work = _folder() / ("durable" if durable else "volatile")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    config = work / "run.toml"
    text = _CONFIG + (_DURABLE if durable else _VOLATILE)
    filled = text.format(
        length=max(LENGTH * KEYS // keys, 2 * lag),
        lag=lag,
        keys=declared,
        source=source,
        folder=work,
    )
    config.write_text(filled, encoding="utf-8")
    said = work / "said"
    begun = time.perf_counter()
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rillet", "run", "--config", str(config), "--no-progress"],
            stderr=errors,
        )
        _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"rillet run failed: {said.read_text(encoding='utf-8')[-500:]}")
    # "… releases to …, 5.7 s (176,892 observations a second)"
    rate = re.search(r"\(([\d,]+) observations a second\)", said.read_text(encoding="utf-8"))
    assert rate is not None
    return {
        "seconds": taken,
        "microseconds": 1e6 / float(rate[1].replace(",", "")),
        "memory": usage.ru_maxrss / 1024,
        "releases": _releases(work / "releases.db"),
    }


def _releases(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute("SELECT count(*) FROM release_rows").fetchone()
        return int(count)
    finally:
        connection.close()


def bench_load() -> Comparison:
    """The same process with and without durable state, its start included."""
    return Comparison(
        f"rillet run, {OBSERVATIONS:,} values of {KEYS:,} keys, lag {LAG}",
        "observation",
        [
            Contender(
                "rillet, durable",
                lambda: _run(KEYS, LAG, durable=True),
                OBSERVATIONS,
                most_rounds=4,
            ),
            Contender(
                "rillet, nothing durable",
                lambda: _run(KEYS, LAG, durable=False),
                OBSERVATIONS,
                rillet_within=2.0,
                most_rounds=4,
            ),
        ],
        processes=True,
    )


def bench_load_rate() -> Figure:
    """What the run says itself: from its first block to the last acknowledgement."""
    return Figure(
        "rillet run, durable, without the start of Python",
        f"{KEYS:,} keys",
        "µs an observation",
        lambda: min(_run(KEYS, LAG, durable=True)["microseconds"] for _ in range(3)),
        1e6 / 150_000,
    )


def bench_load_memory() -> Figure:
    """Peak memory of the durable run."""
    return Figure(
        "rillet run, durable, peak memory",
        f"{KEYS:,} keys",
        "MiB",
        lambda: _run(KEYS, LAG, durable=True)["memory"],
        500,
    )


def bench_load_releases() -> Figure:
    """Observations that come out without a release: the learning ones."""
    return Figure(
        "rillet run, durable, observations without a release",
        f"{KEYS:,} keys",
        "of a million",
        lambda: OBSERVATIONS - _run(KEYS, LAG, durable=True)["releases"],
        OBSERVATIONS - 900_000,
    )


@cache
def _many_keys() -> dict[str, float]:
    return _run(MANY_KEYS, 5, durable=True)


def bench_many_keys() -> Figure:
    """Ten observations of each of 100,000 keys, all of them declared and on disk."""
    return Figure(
        f"rillet run, durable, {OBSERVATIONS:,} values of {MANY_KEYS:,} keys, lag 5",
        "time of the whole process",
        "s",
        lambda: _many_keys()["seconds"],
        900,
    )


def bench_many_keys_memory() -> Figure:
    """And its memory: states are on disk, some of them cached."""
    return Figure(
        f"rillet run, durable, {MANY_KEYS:,} keys, peak memory",
        "whole process",
        "MiB",
        lambda: _many_keys()["memory"],
        2000,
    )
