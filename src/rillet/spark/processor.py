"""The stages that run on workers: rows to groups, groups to releases.

**Privacy.** Touches raw data, which leave a stage sealed, or released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import MapState

from rillet.errors import StateError
from rillet.release import Field, Releases
from rillet.source.keys import Wanted
from rillet.source.parquet import arrow_columns, arrow_rows
from rillet.spark.group import PROGRESS, Group, Rows, by_group
from rillet.spark.record import sent
from rillet.spark.shipped import Setup

#: What goes from a stage to the next.
ON_THE_WAY: Final = "group INT, raw BINARY, until BIGINT"
#: The column with the time of the batch.
NOW: Final = "rillet_now"
#: So many rows are sealed at a time, about.
_ROWS: Final = 2**18
_QUERY: Final = "sql.streaming.queryId"


def sealed_rows(setup: Setup) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """From record batches of observations to one row for each group that occurs.

    **Privacy.** Touches raw data: each row is read by itself, and none raises.
    """

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            if sum(map(len, held)) >= _ROWS:
                yield _sealed(setup, held)
                held = []
        if held:
            yield _sealed(setup, held)

    return stage


def _sealed(setup: Setup, held: list[pa.RecordBatch]) -> pa.RecordBatch:
    opened, columns = setup.open(), setup.columns
    plan = opened.plan
    raw_batch = pa.Table.from_batches(held).combine_chunks().to_batches()
    groups, contents = [], []
    for batch in raw_batch:
        wanted = Wanted(
            columns.value, opened.declared, columns.sequence, columns.at, plan.zone or "UTC"
        )
        names = arrow_columns("stream_df", pa, batch.schema, wanted)
        raw = arrow_rows(pa, batch, names, wanted)
        key_of = raw.key_of
        if key_of is None:
            key_of = np.zeros(len(batch), np.int64)
        sequence = raw.sequence
        if plan.clock is None and sequence is None:
            sequence = raw.at
        rows = Rows(raw.raw_values, key_of, sequence, raw.at if plan.clock is not None else None)
        now = batch.column(NOW)[0].as_py()
        for group, content in by_group(opened, rows, now):
            groups.append(opened.labels[group])
            contents.append(content)
    none = pa.nulls(len(groups), pa.int64())
    arrays = [pa.array(groups, pa.int32()), pa.array(contents, pa.binary()), none]
    return pa.RecordBatch.from_arrays(arrays, ["group", "raw", "until"])


def advanced(setup: Setup, label: int, rows: Iterator[Any], kept: MapState) -> Iterator[Any]:
    """All that came for a group in a batch, through its streams; ``kept`` are its parts.

    **Privacy.** Touches raw data; see :class:`rillet.spark.group.Group`.
    """
    opened = setup.open()
    _check_query(setup.identity)
    sealed: list[bytes] = []
    until: int | None = None
    for frame in rows:
        sealed += [bytes(one) for one in frame["raw"] if one is not None]
        reached = frame["until"].dropna()
        if len(reached):
            until = max(int(reached.max()), -(2**62) if until is None else until)
    number = opened.number_of[label]

    def read(name: str) -> bytes:
        found = kept.getValue((name,))
        return b"" if found is None else bytes(found[0])

    group = opened.take(number, read(PROGRESS) or None, read)
    if group is None:
        parts = {name: bytes(content) for (name,), (content,) in kept.iterator()}
        group = Group(opened, number, parts)
    for releases in group.absorb(sealed, until):
        if len(releases):
            yield frame_of(releases, sent(opened.plan.layout))
    for name, content in group.changed():
        if content is None:
            kept.removeKey((name,))
        else:
            kept.updateValue((name,), (content,))
    opened.keep(number, group)


def _check_query(identity: str) -> None:
    """Refuse to begin a state under a checkpoint that was not compared."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(_QUERY)
    if found != identity:
        raise StateError(
            "checkpoint: the query runs under another checkpoint than rillet.spark.release was "
            "given; start it with option('checkpointLocation', …) as there"
        )


def frame_of(releases: Releases, fields: list[Field]) -> pd.DataFrame:
    """Releases as a data frame that holds Arrow's columns, which nobody has to convert."""
    columns = {}
    table = releases.to_arrow([field.name for field in fields])
    for field in fields:
        column = table[field.name]
        if field.kind == "key":
            column = column.cast(pa.string())
        elif field.kind == "time":
            column = column.cast(pa.int64())
        columns[field.name] = pd.Series(pd.arrays.ArrowExtensionArray(column.combine_chunks()))
    return pd.DataFrame(columns, copy=False)
