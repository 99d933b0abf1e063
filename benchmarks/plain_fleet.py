"""What a fleet costs without privacy: running sums in NumPy, durable, to Parquet.

    python benchmarks/plain_fleet.py JOB.json

Reads the same file with the same reader as ``rillet run`` and writes the same Parquet dataset, one
record for each observation by count, one for each key and tick by the clock. Its sums are on disk
before a record is handed to the sink, as rillet's states are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.gather.clock import Clock
from rillet.release import Key, Releases
from rillet.sink import make_sink
from rillet.source import Block, DeclaredKeys, open_source
from rillet.source.by_tick import DEFAULT_BLOCK_ROWS, ByTick

FloatArray = NDArray[np.float64]


class Sums:
    """Sum and count of each key, in memory and in a file that is replaced whole."""

    def __init__(self, folder: Path, keys: tuple[Key, ...]) -> None:
        self.keys = keys
        self.sums, self.counts = np.zeros(len(keys)), np.zeros(len(keys))
        self._file, self._new = folder / "sums", folder / "sums.new"
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def commit(self, position: object) -> None:
        """Bring it to the disk, with where in the source it stands."""
        with self._new.open("wb") as file:
            file.write(json.dumps(position).encode().ljust(256))
            file.write(self.sums.data)
            file.write(self.counts.data)
            file.flush()
            os.fsync(file.fileno())
        self._new.replace(self._file)
        os.fsync(self._folder)

    def add(self, block: Block) -> None:
        """Add up the observations of each key."""
        assert block.key_of is not None
        used = (block.key_of >= 0) & ~np.isnan(block.raw_values)
        key_of, values = block.key_of[used], block.raw_values[used]
        self.sums += np.bincount(key_of, values, len(self.keys))
        self.counts += np.bincount(key_of, minlength=len(self.keys))

    def running(self, block: Block) -> tuple[NDArray[Any], FloatArray, FloatArray]:
        """Key, sum and count after each observation, in their order."""
        assert block.key_of is not None
        used = (block.key_of >= 0) & ~np.isnan(block.raw_values)
        key_of, values = block.key_of[used], block.raw_values[used]
        order = np.argsort(key_of, kind="stable")
        own = key_of[order]
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        lengths = np.diff(starts, append=len(own))
        total = np.cumsum(values[order])
        before = np.concatenate([[0.0], total])[starts]
        sums, counts = np.empty(len(own)), np.empty(len(own))
        sums[order] = total + np.repeat(self.sums[own[starts]] - before, lengths)
        within = np.arange(len(own)) - np.repeat(starts, lengths) + 1
        counts[order] = within + np.repeat(self.counts[own[starts]], lengths)
        self.add(block)
        return key_of, sums, counts

    def table(self, key_of: NDArray[Any], t: Any, at: Any, sums: FloatArray, n: Any) -> Releases:
        """Records: those numbers of the record that there are without noise."""
        with np.errstate(all="ignore"):
            mean = sums / n
        columns = {"value": mean, "sum": sums, "mean": mean, "count": n}
        t, at = (np.broadcast_to(np.asarray(one, np.int64), len(key_of)) for one in (t, at))
        return Releases(self.keys, key_of, t, at, ("mean",), columns, "none")


def _by_count(sums: Sums, source: Any) -> Iterator[Releases]:
    for block in source.blocks():
        key_of, running, counts = sums.running(block)
        sums.commit(block.position)
        at = time.time_ns() // 1000
        yield sums.table(key_of, counts.astype(np.int64), at, running, counts)


def _by_tick(sums: Sums, source: Any, clock: Clock, ticks: int) -> Iterator[Releases]:
    everybody = np.arange(len(sums.keys))
    closed = 0
    rows = max(DEFAULT_BLOCK_ROWS, 2 * len(sums.keys))  # as rillet run has it
    for block in ByTick(source, clock, ticks, block_rows=rows).blocks():
        assert block.at is not None and block.key_of is not None
        tick_of = clock.tick_of(block.at)
        for tick in range(int(tick_of[0]), int(tick_of[-1]) + 1):
            own = slice(*np.searchsorted(tick_of, [tick, tick + 1]))
            sums.add(Block(block.raw_values[own], key_of=block.key_of[own]))
            if tick <= block.complete_until and tick > closed:
                closed = tick
                sums.commit(block.position)
                at = clock.end_of(np.array([tick]))
                yield sums.table(everybody, tick, at, sums.sums.copy(), sums.counts.copy())


def main(path: str) -> None:
    """Run the job that a file describes; print what it took without the start of Python."""
    begun = time.perf_counter()
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    keys = tuple((line,) for line in Path(job["keys"]).read_text(encoding="utf-8").split())
    source = open_source(job["source"], keys=DeclaredKeys(keys, ["meter"]))
    folder = Path(job["folder"])
    sums = Sums(folder, keys)
    if "ticks" in job:
        clock = Clock(job["start"] * 1_000_000, job["every"] * 1_000_000)
        tables = _by_tick(sums, source, clock, job["ticks"])
    else:
        tables = _by_count(sums, source)
    records = 0
    sink = make_sink({"kind": "parquet", "path": str(folder / "releases")})
    with sink.open(), ThreadPoolExecutor(1) as courier:
        delivery: Future[None] | None = None
        for table in tables:
            if delivery is not None:
                delivery.result()
            delivery = courier.submit(sink.deliver, table)
            records += len(table)
        if delivery is not None:
            delivery.result()
    print(json.dumps({"records": records, "seconds": time.perf_counter() - begun}))


if __name__ == "__main__":
    main(sys.argv[1])
