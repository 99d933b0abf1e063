"""What privacy costs on Spark: rillet beside running sums in the same kind of processor.

    python benchmarks/bench_spark.py [--rounds 4] [--only by-count | by-clock] [--whole]

As a program it runs both jobs in turns, by the clock and by count, and prints a line for each run:
seconds, seconds of a core of all processes, and bytes; behind them rillet's share of the throughput
of running sums, from the least of each without the first round, in which Java warms up.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import rillet
from frame import Comparison, Contender

_HERE = Path(__file__).resolve().parent
START, MINUTE = 1_767_225_600_000_000, 60_000_000
CORES = min(2, os.cpu_count() or 1)
_ATTEMPTS = 5


@dataclass(frozen=True)
class Job:
    """So many keys with so many observations each, in batches; by count, or one a minute."""

    keys: int
    each: int
    batches: int
    by_clock: bool = False

    @property
    def records(self) -> int:
        """Rows that come out: one for each observation, or for each key and tick."""
        return self.keys * self.each

    @property
    def names(self) -> tuple[str, ...]:
        """The keys."""
        return tuple(f"m{number}" for number in range(self.keys))

    def plan(self) -> rillet.Plan:
        """A sum with a declared range, of half a year by the clock."""
        options: dict[str, Any] = {"length": self.each}
        if self.by_clock:
            options = {"length": "180d", "every": "1m", "start": START / 1e6}
        return rillet.Plan(
            epsilon=1.0,
            delta=1e-6,
            upper=10.0,
            statistic=rillet.Sum(),
            threshold=rillet.FixedThreshold(),
            keys=tuple((name,) for name in self.names),
            **options,
        )


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="rillet-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def session(cores: int = CORES) -> Any:
    """One session for all of them, on loopback."""
    from pyspark.sql import SparkSession

    from rillet.spark import SETTINGS

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers find what is measured here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_HERE), os.environ.get("PYTHONPATH", "")])
    settings = {
        **SETTINGS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
    }
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.master(f"local[{cores}]").appName("rillet benchmarks").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    for _ in range(_ATTEMPTS):
        # On a busy machine the first workers may need longer to start than Spark waits.
        with contextlib.suppress(Exception):
            made.range(cores).mapInArrow(lambda batches: batches, "id BIGINT").collect()
            break
    made.sparkContext.setLogLevel("ERROR")
    return made


@cache
def _input(job: Job) -> Path:
    """Parquet files, one for each core in every batch, and rows of a clock."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = _folder() / f"input-{job.keys}-{job.each}-{job.by_clock}"
    (folder / "rows").mkdir(parents=True)
    (folder / "clock").mkdir()
    rng, names, part = np.random.default_rng(1), np.array(job.names), job.each // job.batches
    for number in range(job.batches * CORES):
        batch, half = divmod(number, CORES)
        own = np.arange(half * job.keys // CORES, (half + 1) * job.keys // CORES)
        t = np.repeat(np.arange(part), len(own)) + batch * part
        columns: dict[str, Any] = {"meter": np.tile(names[own], part)}
        if job.by_clock:
            at = START + t * MINUTE + rng.integers(0, MINUTE, len(t))
            columns["time"] = pa.array(at, pa.timestamp("us", "UTC"))
        else:
            columns["number"] = t
        columns["kwh"] = rng.exponential(2.0, len(t))
        path = folder / "rows" / f"{number:04d}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        if half == 0:
            until = pa.array([START + (batch + 1) * part * MINUTE], pa.timestamp("us", "UTC"))
            path = folder / "clock" / f"{batch:04d}.parquet"
            pq.write_table(pa.table({"until": until}), path)
            os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return folder


def streams(job: Job) -> tuple[Any, Any]:
    """The rows and the clock, a batch at a time."""
    spark, folder = session(), _input(job)
    order = "time TIMESTAMP" if job.by_clock else "number BIGINT"
    rows = spark.readStream.schema(f"meter STRING, {order}, kwh DOUBLE")
    rows = rows.option("maxFilesPerTrigger", CORES).parquet(str(folder / "rows"))
    clock = spark.readStream.schema("until TIMESTAMP").option("maxFilesPerTrigger", 1)
    return rows, clock.parquet(str(folder / "clock")) if job.by_clock else None


def _fresh(name: str) -> Callable[[], None]:
    return lambda: shutil.rmtree(_folder() / name, ignore_errors=True)


#: Seconds of each batch of the last query.
_seconds: list[float] = []


def _run(releases: Any, name: str, job: Job) -> Path:
    from rillet.spark import to_parquet

    folder = _folder() / name
    writer = releases.writeStream.foreachBatch(to_parquet(str(folder / "out")))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [json.loads(one.json) for one in query.recentProgress]
    _seconds[:] = [one["durationMs"]["triggerExecution"] / 1000 for one in progress]
    records = session().read.parquet(str(folder / "out")).count()
    if records != job.records:
        raise RuntimeError(f"expected {job.records:,} records, found {records:,}")
    return folder


def rillet_job(job: Job, *, whole: bool = False) -> Path:
    """Through streams; to whole records, or to what differs between them."""
    from rillet.spark import release, whole_records

    secret = _folder() / "secret"
    if not secret.exists():
        rillet.Secret.for_tests(1).save(secret)
    rows, clock = streams(job)
    order = {"at": "time", "clock": clock} if job.by_clock else {"sequence": "number"}
    checkpoint = _folder() / "rillet" / "checkpoint"
    found = release(
        rows,
        job.plan(),
        value="kwh",
        key="meter",
        secret=secret,
        checkpoint=checkpoint,
        **order,
    )
    return _run(whole_records(found) if whole else found, "rillet", job)


def plain_job(job: Job) -> Path:
    """Through running sums."""
    from plain_spark import Plain, running_sums
    from rillet.spark.group import usual_keys_in_group

    rows, clock = streams(job)
    size = usual_keys_in_group(job.plan().layout, CORES)
    clock_of = (START, MINUTE) if job.by_clock else ()
    keys = _folder() / f"keys-{job.keys}"
    keys.write_text("\n".join(job.names), encoding="utf-8")
    plain = Plain(str(keys), size, CORES, *clock_of)
    return _run(running_sums(rows, plain, clock), "plain", job)


def _comparison(job: Job, title: str) -> Comparison:
    return Comparison(
        f"{title}, on Spark with {CORES} cores, to Parquet",
        "record",
        [
            Contender(
                "rillet.spark",
                lambda: rillet_job(job),
                job.records,
                prepare=_fresh("rillet"),
                most_rounds=3,
            ),
            Contender(
                "running sums in the same kind of processor",
                lambda: plain_job(job),
                job.records,
                rillet_within=1 / 0.7,
                prepare=_fresh("plain"),
                most_rounds=3,
            ),
        ],
        processes=True,
    )


#: A thousand keys with a thousand observations each; a hundred thousand meters, minute by minute.
JOBS = {"by-clock": Job(100_000, 10, 5, True), "by-count": Job(1_000, 1_000, 4)}


def bench_by_count() -> Comparison:
    """A thousand keys with a thousand observations each."""
    return _comparison(JOBS["by-count"], "1,000,000 observations of 1,000 keys")


def bench_by_clock() -> Comparison:
    """A hundred thousand meters, minute after minute."""
    return _comparison(JOBS["by-clock"], "100,000 keys, 10 ticks of a minute")


def _processor() -> float:
    """Seconds of a core that this process and all below it have used: Java and Python workers."""
    below: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(stat.parent.name)
        below.setdefault(int(fields[1]), []).append(number)
        used[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found, left = 0.0, [os.getpid()]
    while left:
        number = left.pop()
        found += used.get(number, 0.0)
        left += below.get(number, [])
    return found


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(name: str, rounds: int, *, whole: bool) -> None:
    """Both jobs of a cadence in turns: a line for each run, and rillet's share."""
    job = JOBS[name]
    _input(job)
    least: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for own in ("running sums", "rillet"):
            _fresh("plain" if own == "running sums" else "rillet")()
            begun, used = time.perf_counter(), _processor()
            folder = plain_job(job) if own == "running sums" else rillet_job(job, whole=whole)
            seconds, used = time.perf_counter() - begun, _processor() - used
            found = {"seconds": round(seconds, 2), "seconds of a core": round(used, 2)}
            if number > 0:
                known = least.setdefault(own, found)
                least[own] = {one: min(known[one], found[one]) for one in found}
            line = {
                "job": f"{own}, {name}",
                "round": number,
                **found,
                "seconds of each batch": _seconds[: job.batches],
                "records a second": round(job.records / seconds),
                "checkpoint, bytes": _bytes(folder / "checkpoint"),
                "state, bytes": _bytes(folder / "checkpoint" / "state"),
                "out, bytes": _bytes(folder / "out"),
            }
            print(json.dumps(line), flush=True)
    if rounds > 1:
        plain, rillets = least["running sums"], least["rillet"]
        shares = {f"share by {one}": f"{plain[one] / rillets[one]:.0%}" for one in plain}
        line = {"job": name, "rillet": rillets, "running sums": plain, **shares}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Measure jobs by the clock and by count, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="the first warms up")
    parser.add_argument("--only", choices=list(JOBS))
    parser.add_argument("--whole", action="store_true", help="rillet writes whole records")
    given = parser.parse_args()
    for name in [given.only] if given.only else JOBS:
        measure(name, given.rounds, whole=given.whole)


if __name__ == "__main__":
    main()
