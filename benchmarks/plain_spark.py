"""The same job on Spark without privacy: running sums of groups of keys, in the same processor.

Rows become one row for each group that occurs, and a processor with state in RocksDB advances all
keys of a group at once; groups are the same, and spread in the same way. Sums take the place of
streams, and nothing is sealed. By count there is a record for each observation, by the clock one
for each key and tick, with no more columns than a sum needs. As there, the processor loads what it
works with (``plain_sums``) when rows come, and keys are read once in each process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

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


class Sums(StatefulProcessor):
    """Sum and number of each key of a group."""

    def __init__(self, job: Plain) -> None:
        self._job = job

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getMapState("parts", "name STRING", "content BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802
        from plain_sums import summed

        return summed(self._job, int(key[0]), rows, self._state)

    def close(self) -> None:
        pass


def running_sums(stream_df: DataFrame, job: Plain, clock: DataFrame | None) -> DataFrame:
    """A streaming data frame of running sums."""
    from plain_sums import labels, packed
    from rillet.spark.processor import ON_THE_WAY

    rows = stream_df.mapInArrow(packed(job), ON_THE_WAY)
    if clock is not None:
        every = F.explode(F.lit(labels(job)).cast("array<int>")).alias("group")
        reached = F.unix_micros(F.col(clock.columns[0])).alias("until")
        nothing = F.lit(None).cast("binary").alias("raw")
        rows = rows.unionByName(clock.select(reached).select(every, nothing, "until"))
    sums = rows.groupBy("group").transformWithStateInPandas(Sums(job), SUMS, "Append", "None")
    at = F.timestamp_micros("at").alias("at")
    return sums.select("key", "t", at, F.lit("sum").alias("name"), "value")
