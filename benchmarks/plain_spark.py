"""The same job on Spark without privacy: running sums of groups of keys, in the same processor.

Rows become one row for each group that occurs, and a processor with state in RocksDB advances all
keys of a group at once; groups are the same, and spread in the same way. Sums take the place of
streams, and nothing is sealed. By count there is a record for each observation, by the clock one
for each key and tick, with no more columns than a sum needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from rillet.source import DeclaredKeys
from rillet.source.keys import Wanted
from rillet.source.parquet import arrow_columns, arrow_rows
from rillet.spark.group import labels_of
from rillet.spark.processor import ON_THE_WAY
from rillet.state.fleets import pack, unpack

SUMS = "key STRING, t BIGINT, at BIGINT, value DOUBLE"


@dataclass(frozen=True)
class Plain:
    """Keys in groups; by the clock, when it begins and how long a tick is, in microseconds.

    The keys are the lines of a file: with many of them a processor would be too large to send.
    """

    path: str
    size: int
    partitions: int
    start: int = 0
    every: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, read once in each process."""
        return _lines(self.path)

    @cached_property
    def labels(self) -> list[int]:
        """What Spark knows the groups by."""
        return labels_of(-(-len(self.keys) // self.size), self.partitions)


@lru_cache
def _lines(path: str) -> tuple[str, ...]:
    return tuple(Path(path).read_text(encoding="utf-8").splitlines())


@lru_cache
def _declared(path: str) -> DeclaredKeys:
    return DeclaredKeys([(key,) for key in _lines(path)], ["meter"])


@lru_cache(maxsize=64)
def _strings(path: str, first: int, size: int) -> Any:
    return pa.array(_lines(path)[first : first + size])


def _packed(job: Plain) -> Any:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = _declared(job.path)
        order = {"time": "time"} if job.every else {"sequence": "number"}
        wanted = Wanted("kwh", keys, **order, zone="UTC")
        whole = pa.Table.from_batches(list(batches)).combine_chunks()
        for batch in whole.to_batches():
            raw = arrow_rows(pa, batch, arrow_columns("rows", pa, batch.schema, wanted), wanted)
            key_of, number = raw.key_of, raw.at if job.every else raw.sequence
            assert key_of is not None and number is not None
            order_of = np.argsort(key_of // job.size, kind="stable")
            ends = np.cumsum(np.bincount(key_of // job.size)).tolist()
            groups, contents, begin = [], [], 0
            for group, end in enumerate(ends):
                own = order_of[begin:end]
                if len(own):
                    parts = [(key_of[own] - group * job.size).astype(np.int32), raw.raw_values[own]]
                    groups.append(job.labels[group])
                    contents.append(pack([*parts, number[own]]))
                begin = end
            none = pa.nulls(len(groups), pa.int64())
            arrays = [pa.array(groups, pa.int32()), pa.array(contents, pa.binary()), none]
            yield pa.RecordBatch.from_arrays(arrays, ["group", "raw", "until"])

    return stage


class Sums(StatefulProcessor):
    """Sum and number of each key of a group."""

    def __init__(self, job: Plain) -> None:
        self._job = job

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getMapState("parts", "name STRING", "content BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802
        parts: list[Any] = []
        until = -1
        for frame in rows:
            parts += [unpack(bytes(one)) for one in frame["raw"] if one is not None]
            reached = frame["until"].dropna()
            until = max(until, int(reached.max()) if len(reached) else -1)
        key_of, values, number = (np.concatenate(column) for column in zip(*parts, strict=True))
        job, group = self._job, self._job.labels.index(int(key[0]))
        own = _strings(job.path, group * job.size, job.size)
        sums, count = np.zeros(len(own)), np.zeros(len(own), np.int64)
        if (known := self._state.getValue(("sums",))) is not None:
            sums, count = unpack(bytes(known[0]))
        if job.every:
            found = _by_tick(job, own, sums, count, key_of, values, number, until)
        else:
            found = _each(own, sums, count, key_of, values, number)
        yield found
        self._state.updateValue(("sums",), (pack([sums, count]),))

    def close(self) -> None:
        pass


def _each(own: Any, sums: Any, count: Any, key_of: Any, values: Any, number: Any) -> pd.DataFrame:
    order = np.lexsort((number, key_of))
    key_of, values = key_of[order], values[order]
    lengths = np.bincount(key_of, minlength=len(own))
    begins = np.cumsum(lengths) - lengths
    running = np.concatenate([[0.0], np.cumsum(values)])
    value = running[1:] - running[begins][key_of] + sums[key_of]
    t = np.arange(len(key_of)) - begins[key_of] + 1 + count[key_of]
    sums += np.bincount(key_of, values, len(own))
    count += lengths
    return _table(own, key_of, t, np.zeros(len(t), np.int64), value)


def _by_tick(
    job: Plain, own: Any, sums: Any, count: Any, key_of: Any, values: Any, at: Any, until: int
) -> pd.DataFrame:
    first, last = int(count[0]), (until - job.start) // job.every
    tick = (at - job.start) // job.every - first
    cells = np.bincount(tick * len(own) + key_of, values, (last - first) * len(own))
    table = sums + np.cumsum(cells.reshape(-1, len(own)), axis=0)
    sums[:], count[:] = table[-1], last
    t = np.repeat(np.arange(first + 1, last + 1), len(own))
    keys = np.tile(np.arange(len(own), dtype=np.int32), last - first)
    return _table(own, keys, t, job.start + t * job.every, table.reshape(-1))


def _table(own: Any, key_of: Any, t: Any, at: Any, value: Any) -> pd.DataFrame:
    columns = {"key": own.take(pa.array(key_of)), "t": t, "at": at, "value": value}
    arrays = {
        name: pd.arrays.ArrowExtensionArray(pa.array(column)) for name, column in columns.items()
    }
    return pd.DataFrame(arrays, copy=False)


def running_sums(stream_df: DataFrame, job: Plain, clock: DataFrame | None) -> DataFrame:
    """A streaming data frame of running sums."""
    rows = stream_df.mapInArrow(_packed(job), ON_THE_WAY)
    if clock is not None:
        every = F.explode(F.lit(job.labels).cast("array<int>")).alias("group")
        reached = F.unix_micros(F.col(clock.columns[0])).alias("until")
        nothing = F.lit(None).cast("binary").alias("raw")
        rows = rows.unionByName(clock.select(reached).select(every, nothing, "until"))
    sums = rows.groupBy("group").transformWithStateInPandas(Sums(job), SUMS, "Append", "None")
    at = F.timestamp_micros("at").alias("at")
    return sums.select("key", "t", at, F.lit("sum").alias("name"), "value")
