"""Fleets: many keys at once, whole durable processes beside the same job without privacy.

The other job is `plain_fleet.py`: a running sum for each key in NumPy, the same reader, the same
Parquet dataset, its sums on disk at each tick or block. As a script this makes the figure of the
documentation, what a key costs at a tick for fleets of several sizes:

    python benchmarks/bench_fleet.py --plot docs/assets/fleet.png [--keys 1000 10000 …]
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

import rillet
from frame import Comparison, Contender, Figure
from rillet.errors import RilletError

_HERE = Path(__file__).resolve().parent
#: 2026-01-01T00:00Z, in seconds since 1970, and an hour.
START, HOUR = 1_767_225_600, 3600
TICKS = 12
SIZES = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Fleet:
    """A job: so many keys, with so many observations each.

    By the clock each key has one in each of as many hours, and the plan is of a year; by count the
    default plan releases at each observation, and rows come in any order of keys.
    """

    keys: int
    each: int
    by_clock: bool = False
    block_rows: int | None = None
    csv: bool = False

    @property
    def records(self) -> int:
        """What both jobs release, at most: a warm-up releases nothing."""
        return self.keys * self.each


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rillet-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _input(keys: int, each: int, *, by_clock: bool, csv: bool) -> tuple[Path, Path]:
    """Readings of meters, and the declared meters."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    random = np.random.default_rng(2019)
    name = f"{keys}-{each}{'-clock' if by_clock else ''}"
    source = _folder() / f"{name}.{'csv' if csv else 'parquet'}"
    declared = _folder() / f"{keys}.txt"
    texts = [f"m{meter}" for meter in range(keys)]
    declared.write_text("\n".join(texts) + "\n", encoding="ascii")
    meters, writer = pa.array(texts), cast("Any", None)
    # By the clock hour after hour, in each of them the meters in any order.
    parts = each if by_clock else 1
    for part in range(parts):
        meter_of = np.tile(np.arange(keys), each // parts)
        random.shuffle(meter_of)
        columns: dict[str, Any] = {"meter": meters.take(meter_of)}
        if by_clock:
            seconds = START + HOUR * part + np.sort(random.integers(0, HOUR, len(meter_of)))
            columns["at"] = pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC"))
        columns["kwh"] = np.round(random.exponential(30.0, len(meter_of)), 2)
        table = pa.table(columns)
        if writer is None:
            kind = pa.csv.CSVWriter if csv else pa.parquet.ParquetWriter
            writer = kind(source, table.schema)
        writer.write_table(table)
    writer.close()
    return source, declared


def _source(fleet: Fleet, path: Path) -> dict[str, Any]:
    table: dict[str, Any] = {"path": str(path), "column": "kwh"}
    if fleet.by_clock:
        table["time"] = "at"
    if fleet.block_rows is not None:
        table["block_rows"] = fleet.block_rows
    return table


def _plan(fleet: Fleet) -> dict[str, Any]:
    plan: dict[str, Any] = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 3000.0}
    if fleet.by_clock:
        return {**plan, "every": "1h", "start": START, "length": "365d"}
    return {**plan, "length": 2 * fleet.each}


@cache
def _shares(fleet: Fleet) -> bool:
    """Whether keys share a range that is learned; before that is known by the clock: declared."""
    try:
        rillet.Plan.from_table({**_plan(fleet), "keys": ["a", "b"], "shared_threshold": True})
    except RilletError:
        return False
    return fleet.by_clock


def _config(fleet: Fleet, folder: Path) -> str:
    """The configuration of ``rillet run``."""

    def table(name: str, values: dict[str, Any]) -> str:
        return f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())

    source, declared = _input(fleet.keys, fleet.each, by_clock=fleet.by_clock, csv=fleet.csv)
    plan = _plan(fleet)
    keys: dict[str, Any] = {"columns": ["meter"], "file": str(declared)}
    if _shares(fleet):
        keys["shared_threshold"] = True
    elif fleet.by_clock:
        plan["threshold"] = "fixed"
    state = {"folder": str(folder / "live"), "releases": "parquet"}
    tables = {"plan": plan, "keys": keys, "source": _source(fleet, source), "state": state}
    return "".join(table(name, values) for name, values in tables.items())


def rillet_run(fleet: Fleet) -> dict[str, float]:
    """``rillet run`` as a process of its own; what it took."""
    folder = _fresh("rillet")
    config = folder / "run.toml"
    config.write_text(_config(fleet, folder), encoding="utf-8")
    words = ["-m", "rillet", "run", "--config", str(config), "--no-progress"]
    if fleet.by_clock:
        words += ["--until", str(START + HOUR * fleet.each)]
    said, found = _process(words, folder)
    # "12 ticks, 12,000,000 releases to …, 5.7 s (2 ticks a second)"
    own = re.search(r"([\d,.]+) s \(", said)
    assert own is not None, said
    found["inside"] = float(own[1].replace(",", ""))
    found["records"] = _records(folder / "live" / "releases")
    return found


def plain_run(fleet: Fleet) -> dict[str, float]:
    """The same without privacy."""
    folder = _fresh("plain")
    source, declared = _input(fleet.keys, fleet.each, by_clock=fleet.by_clock, csv=fleet.csv)
    job: dict[str, Any] = {"source": _source(fleet, source), "keys": str(declared)}
    job["folder"] = str(folder)
    if fleet.by_clock:
        job |= {"start": START, "every": HOUR, "ticks": fleet.each}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    said, found = _process([str(_HERE / "plain_fleet.py"), str(folder / "job.json")], folder)
    found["inside"] = json.loads(said)["seconds"]
    found["records"] = _records(folder / "releases")
    if found["records"] != fleet.records:
        raise RuntimeError(f"expected {fleet.records:,} records, found {found['records']:,}")
    return found


def _fresh(name: str) -> Path:
    folder = _folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _process(words: list[str], folder: Path) -> tuple[str, dict[str, float]]:
    # Compiled files are kept, as in an installed package, whatever this shell says.
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    begun = time.perf_counter()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=said, stderr=said, env=variables
        )
        _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    text = (folder / "said").read_text(encoding="utf-8")
    if process.returncode:
        raise RuntimeError(f"{' '.join(words[:3])} failed: {text[-800:]}")
    processor = usage.ru_utime + usage.ru_stime
    return text, {"seconds": taken, "processor": processor, "memory": usage.ru_maxrss / 1024}


def _records(folder: Path) -> int:
    """How many rows the dataset has, by the names of its files."""
    return max(int(path.stem.split("-")[1]) for path in folder.glob("*.parquet"))


# --- What is promised -----------------------------------------------------------------------------

MILLION = Fleet(1_000_000, TICKS, by_clock=True)
THOUSAND = Fleet(1_000, 1_000)
HUNDRED_THOUSAND = Fleet(100_000, 10)
SMALL_BLOCKS = Fleet(1_000, 1_000, block_rows=1_000)


def _comparison(fleet: Fleet, title: str, within: float) -> Comparison:
    operation = "key and tick" if fleet.by_clock else "observation"
    return Comparison(
        f"{title}, durable, to Parquet",
        operation,
        [
            Contender("rillet run", lambda: rillet_run(fleet), fleet.records, most_rounds=2),
            Contender(
                "a running sum in NumPy",
                lambda: plain_run(fleet),
                fleet.records,
                rillet_within=within,
                most_rounds=2,
            ),
        ],
        processes=True,
    )


def bench_by_clock() -> Comparison:
    """A million meters, an hour after the other, under a plan of a year."""
    how = "a shared range" if _shares(MILLION) else "a declared range"
    return _comparison(MILLION, f"{MILLION.keys:,} keys, {TICKS} hourly ticks, {how}", 4)


def bench_by_count() -> Comparison:
    """A thousand keys with a thousand observations each, under the default plan."""
    return _comparison(THOUSAND, f"{THOUSAND.records:,} observations of 1,000 keys", 3)


def bench_by_count_csv() -> Comparison:
    """The same from CSV, as most have it."""
    fleet = Fleet(THOUSAND.keys, THOUSAND.each, csv=True)
    return _comparison(fleet, f"{fleet.records:,} observations of 1,000 keys from CSV", 3)


def bench_short_streams() -> Comparison:
    """Ten observations of each of a hundred thousand keys."""
    return _comparison(HUNDRED_THOUSAND, "100,000 keys with 10 observations each", 30)


def bench_small_blocks() -> Figure:
    """Blocks in which each of a thousand keys has about one row, each block on disk."""
    return Figure(
        "1,000 keys in blocks of 1,000 rows, durable, to Parquet",
        "rillet run, without the start of Python",
        "µs an observation",
        lambda: rillet_run(SMALL_BLOCKS)["inside"] / SMALL_BLOCKS.records * 1e6,
        1e6 / 50_000,
    )


def bench_memory() -> Figure:
    """Peak memory of the process with a million keys."""
    return Figure(
        f"{MILLION.keys:,} keys by the clock, durable, peak memory",
        "rillet run",
        "MiB",
        lambda: rillet_run(MILLION)["memory"],
        2048,
    )


# --- The figure -----------------------------------------------------------------------------------


def scaling(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """What both jobs take by the clock for fleets of several sizes, the best of some rounds.

    Small ones have more ticks, so that the start of Python does not count for more.
    """
    rows = []
    for keys in sizes:
        ticks = max(TICKS, 1_200_000 // keys)
        fleet = Fleet(keys, ticks, by_clock=True)
        for name, run in (("rillet", rillet_run), ("plain", plain_run)):
            found = min((run(fleet) for _ in range(rounds)), key=lambda one: one["processor"])
            rows.append({"by": name, "keys": keys, "ticks": ticks, **found})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the time of the processor for each key and tick over the number of keys."""
    from rillet.reproduce.style import ROLES, draw, thousands

    labels = {"rillet": "rillet run, durable", "plain": "a running sum in NumPy, durable"}

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for role, (name, label) in zip(("rillet", "tree"), labels.items(), strict=True):
            own = [row for row in rows if row["by"] == name]
            each = [1e6 * row["processor"] / (row["keys"] * row["ticks"]) for row in own]
            look = {**ROLES[role], "marker": "o", "markersize": 4}
            axes.plot([row["keys"] for row in own], each, label=label, **look)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("keys")
        axes.set_ylabel("µs of a core for a key and tick")
        thousands(axes.xaxis)
        thousands(axes.yaxis)
        axes.set_ylim(0.3, 30)
        axes.legend(loc="upper right")

    picture = draw("fleet", "", (5.0, 2.9), paint)
    path.write_bytes(picture.png)


def main() -> None:
    """Measure fleets of several sizes, note the figures and draw them."""
    parser = argparse.ArgumentParser(description="what a key costs at a tick, by fleet size")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw this figure")
    parser.add_argument("--keys", type=int, nargs="+", default=list(SIZES), help="sizes")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts")
    parser.add_argument(
        "--json", type=Path, default=_HERE / "results" / "fleet.json", help="note figures here"
    )
    parser.add_argument("--again", action="store_true", help="draw what was noted, measure nothing")
    options = parser.parse_args()
    if options.again:
        rows = json.loads(options.json.read_text(encoding="utf-8"))
    else:
        rows = scaling(options.keys, options.rounds)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
