"""Where releases go from Spark: functions for ``writeStream.foreachBatch``.

Spark does a batch again whose end was not noted before a crash, so each of them takes the same
records twice and keeps them once, by (key, t, name).  A second, different value is refused: it
would have the noise of the first, and their difference would be bare.

**Privacy.** Post-processing: takes public records, knows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rillet.errors import OutputError
from rillet.release import FIELDS, NUMBERS, Releases, key_from_shown
from rillet.sink import make_sink
from rillet.sink.base import conflict
from rillet.spark.files import Folder
from rillet.spark.record import EVENT, whole_records

#: What ``foreachBatch`` calls, with the records of a batch and its number.
Write: TypeAlias = Callable[[DataFrame, int], None]
#: Numbers that are seldom the same in two rows: a dictionary of them is made in vain.
_PLAIN: Final = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in ("value", "sum", "mean", "mean_noise_std", "count")
}


def to_parquet(path: str) -> Write:
    """A folder ``batch=…`` of Parquet files for each batch, in a folder of any file system.

    **Delivery.** A batch is written under a name that readers pass over and renamed, so that they
    see all of it or nothing, where renaming a folder is one step (local disks, HDFS).  What is
    there already is compared and left as it is.

    The files have the columns of the data frame, and its schema has the other fields of the record:
    ``whole_records(spark.read.parquet(path))`` are whole records, and so is what
    ``whole_records(releases)`` writes.
    """

    def write(batch: DataFrame, number: int) -> None:
        # One action: a second one on the batch would have the streams advance again.
        folder = Folder(batch.sparkSession, path)
        name, unfinished = f"batch={number:012d}", f"_unfinished-{number:012d}"
        batch.write.mode("overwrite").options(**_PLAIN).parquet(f"{path}/{unfinished}")
        later = [known for known in folder.names() if known.startswith("batch=") and known >= name]
        if not later:
            folder.rename(unfinished, name)
            return
        read = batch.sparkSession.read.parquet
        stored = read(*(f"{path}/{known}" for known in later))
        _compare(path, read(f"{path}/{unfinished}"), stored)
        folder.delete(unfinished)

    return write


def _compare(name: str, new: DataFrame, stored: DataFrame) -> None:
    """Refuse records other than those that are there."""
    # All that must be the same when a record comes again; both have it, narrow or whole.
    fields = [field.name for field in FIELDS if field.name not in ("at", *EVENT)]
    stored = whole_records(stored).select(
        *EVENT, F.struct(*fields).alias("stored"), F.lit(True).alias("is_stored")
    )
    new = whole_records(new).select(*EVENT, F.struct(*fields).alias("new"))
    together = new.join(stored, list(EVENT), "left")
    same = F.col("new").eqNullSafe(F.col("stored"))
    other = together.where(~same).select(*EVENT, "is_stored").first()
    if other is None:
        return
    if other["is_stored"]:
        raise conflict(name, key_from_shown(other["key"]), other["t"])
    raise OutputError(
        f"{name}: expected the records of a batch that was delivered before, found others; the "
        "checkpoint was restored from a backup. Name another folder"
    )


def to_postgres(**options: Any) -> Write:
    """A table of PostgreSQL, as ``[[sink]]`` with ``kind = "postgres"``; from all workers at once.

    ``options`` are its ``dsn``, ``table`` and ``patience``.  Workers need ``rillet[postgres]``.  A
    password belongs in a password file of each worker: in ``dsn`` it would be part of the query.
    """
    table = {"kind": "postgres", **options}
    make_sink(table)  # whatever is wrong is found here

    def write(batch: DataFrame, _: int) -> None:
        whole_records(batch).mapInArrow(_delivers(table), "records BIGINT").collect()

    return write


def _delivers(table: Mapping[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # All of a partition: a release whose records lie in two batches is not cut.
        held = list(batches)
        rows = sum(map(len, held))
        if rows:
            with make_sink(table).open() as sink:
                sink.deliver(releases_of(pa.Table.from_batches(held)))
        yield pa.RecordBatch.from_pydict({"records": [rows]})

    return stage


def releases_of(table: pa.Table) -> Releases:
    """Records with those of a release beside each other, as releases."""
    names = table["name"].to_pylist()
    width = len(dict.fromkeys(names))
    keys = table["key"].combine_chunks().dictionary_encode()
    return Releases(
        tuple(map(key_from_shown, keys.dictionary.to_pylist())),
        keys.indices.to_numpy()[::width].astype(np.int64),
        table["t"].to_numpy()[::width],
        table["at"].cast(pa.timestamp("us")).to_numpy().astype("M8[us]")[::width],
        tuple(names[:width]),
        {name: np.array(table[name].to_numpy(), np.float64) for name in NUMBERS},
        table["noise_law"][0].as_py(),
        tuple(table["post_processing"][0].as_py()),
    )


def to_kafka(topic: str, **options: str) -> Write:
    """A topic of Kafka: whole records as JSON, by (key, t, name).

    Not tested: there was no broker to test it with.
    ``options`` are those of Spark's own sink, such as ``bootstrap_servers`` (written with points:
    ``**{"kafka.bootstrap.servers": …}``); Spark needs its package ``spark-sql-kafka``.

    **Delivery.** At least once: a batch that is done again is sent again, with the same keys and
    the same values.  A compacted topic keeps each once.
    """

    def write(batch: DataFrame, _: int) -> None:
        key = F.to_json(F.array(*(F.col(name).cast("string") for name in EVENT)))
        message = whole_records(batch).select(
            key.alias("key"), F.to_json(F.struct("*")).alias("value")
        )
        message.write.format("kafka").option("topic", topic).options(**options).save()

    return write
