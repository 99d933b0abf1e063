"""Running sums of groups of keys: what the workers of ``plain_spark`` do with rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from plain_spark import Plain
from rillet.source import DeclaredKeys
from rillet.source.keys import Wanted
from rillet.source.parquet import arrow_columns, arrow_rows
from rillet.spark.group import labels_of
from rillet.state.fleets import pack, unpack


@lru_cache
def _lines(path: str) -> tuple[str, ...]:
    return tuple(Path(path).read_text(encoding="utf-8").splitlines())


@lru_cache
def _declared(path: str) -> DeclaredKeys:
    return DeclaredKeys([(key,) for key in _lines(path)], ["meter"])


@lru_cache
def labels(job: Plain) -> list[int]:
    """What Spark knows the groups by."""
    return labels_of(-(-len(_lines(job.path)) // job.size), job.partitions)


@lru_cache(maxsize=64)
def _strings(path: str, first: int, size: int) -> Any:
    return pa.array(_lines(path)[first : first + size])


def packed(job: Plain) -> Any:
    """From record batches to one row for each group that occurs."""

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
                    groups.append(labels(job)[group])
                    contents.append(pack([*parts, number[own]]))
                begin = end
            none = pa.nulls(len(groups), pa.int64())
            arrays = [pa.array(groups, pa.int32()), pa.array(contents, pa.binary()), none]
            yield pa.RecordBatch.from_arrays(arrays, ["group", "raw", "until"])

    return stage


def summed(job: Plain, label: int, rows: Iterator[Any], state: Any) -> Iterator[pd.DataFrame]:
    """All that came for a group in a batch, added to its sums."""
    parts: list[Any] = []
    until = -1
    for frame in rows:
        parts += [unpack(bytes(one)) for one in frame["raw"] if one is not None]
        reached = frame["until"].dropna()
        until = max(until, int(reached.max()) if len(reached) else -1)
    key_of, values, number = (np.concatenate(column) for column in zip(*parts, strict=True))
    group = labels(job).index(label)
    own = _strings(job.path, group * job.size, job.size)
    sums, count = np.zeros(len(own)), np.zeros(len(own), np.int64)
    if (known := state.getValue(("sums",))) is not None:
        sums, count = unpack(bytes(known[0]))
    if job.every:
        found = _by_tick(job, own, sums, count, key_of, values, number, until)
    else:
        found = _each(own, sums, count, key_of, values, number)
    yield found
    state.updateValue(("sums",), (pack([sums, count]),))


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
