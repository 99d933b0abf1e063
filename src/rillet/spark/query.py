"""From a streaming data frame of observations to one of releases."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rillet.errors import ParameterError
from rillet.extras import import_extra
from rillet.plan import Plan
from rillet.spark.checkpoint import belongs
from rillet.spark.group import check_of, labels_of, load_secret
from rillet.spark.processor import NOW, ON_THE_WAY, sealed_rows
from rillet.spark.record import records, sent_columns
from rillet.spark.shipped import Columns, GroupProcessor, Setup
from rillet.times import SECOND

_STORE: Final = "spark.sql.streaming.stateStore."
#: What a session needs: state in RocksDB, of which each batch writes what changed, and few old
#: states in the checkpoint, which would open with the secret.
SETTINGS: Final = {
    f"{_STORE}providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STORE}rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def release(
    stream_df: DataFrame,
    plan: Plan,
    *,
    value: str,
    secret: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    key: str | Sequence[str] | None = None,
    at: str | None = None,
    sequence: str | None = None,
    person: str | None = None,
    clock: DataFrame | None = None,
    run: str = "",
    keys_in_group: int | None = None,
    uses: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """The releases of a streaming data frame, as a streaming data frame of records.

    The numbers are those of :class:`rillet.Streams` and ``rillet run`` with the same secret, bit
    for bit, however the stream is cut into batches and spread over workers.  Fields of the record
    that are the same in all rows, or that another column has, are no columns here: the schema has
    them, and :func:`rillet.spark.whole_records` adds them.

    **Privacy.** Touches raw data; the plan's promise.  A batch that Spark does again gives the same
    releases, as long as the source gives the same rows again; write them through a sink that
    refuses a second, different value (:func:`rillet.spark.to_parquet`).  By the clock, put no limit
    on the rows of a batch: a row that has to wait because of others could miss its tick because of
    them.

    Parameters
    ----------
    stream_df
        Observations, a row for each.
    plan
        With a declared range, or one that each key learns alone.
    value, key
        The columns with the values, and with the keys or the parts of keys.  Rows of keys that were
        not declared are left out.
    at, clock
        By the clock: the column with the time of each row; and a streaming data frame with one
        column of times, public, each of which says that all ticks are to be closed that have ended
        by then (:func:`wall_clock`).  By count ``at`` may take the place of ``sequence``.
    sequence
        By count, required: the column with a whole number, from 0 on, that grows within a key.  It
        is the order of the observations, whatever order they arrive in.  What is not above the last
        one of a batch before was absorbed, and is left out; what has none is left out.
    secret
        The path of a file with the secret of the noise, which the driver and every worker have;
        :meth:`rillet.Secret.save` makes one.  It goes nowhere else.
    checkpoint
        Where the query keeps its checkpoint: the same as ``option("checkpointLocation", …)``.
    person
        Refused: who is protected over all keys needs one gate for all of them.
    run
        Part of what the noise is keyed by.
    keys_in_group
        Keys that are advanced together, and kept together.
    uses
        A file on the driver that remembers what the secret serves; by default beside the secret.

    Raises
    ------
    ParameterError
        If something does not fit the plan.
    StateError
        If the checkpoint belongs to another plan, secret or version, or the secret to something
        else.  Nothing has been released then.
    """
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    columns = Columns(value, keys, at, sequence)
    _check(stream_df, plan, columns, person, clock)
    spark = stream_df.sparkSession
    _check_settings(spark)
    import_extra("google.protobuf", package="protobuf", extra="spark", purpose="for its workers")
    own = load_secret(os.fspath(secret))
    if own.for_tests_only:
        kept = None
    else:
        kept = os.fspath(uses) if uses is not None else f"{os.fspath(secret)}.uses"
    identity, size, partitions = belongs(
        spark, os.fspath(checkpoint), plan, own, columns, run, keys_in_group, kept
    )
    check = check_of(plan, own, identity)
    shipped, path = _ship(spark, plan), os.fspath(secret)
    setup = Setup(shipped, columns, path, check, identity, size, partitions, run)
    wanted = [F.col(name) for name in dict.fromkeys(filter(None, (value, *keys, at, sequence)))]
    now = F.unix_micros(F.current_timestamp()).alias(NOW)
    rows = stream_df.select(*wanted, now).mapInArrow(sealed_rows(setup), ON_THE_WAY)
    if clock is not None:
        labels = labels_of(-(-max(1, len(plan.keys)) // size), partitions)
        every = F.explode(F.lit(labels).cast("array<int>")).alias("group")
        reached = F.unix_micros(F.col(clock.columns[0]).cast("timestamp")).alias("until")
        nothing = F.lit(None).cast("binary").alias("raw")
        rows = rows.unionByName(clock.select(reached).select(every, nothing, "until"))
    released = rows.groupBy("group").transformWithStateInPandas(
        GroupProcessor(setup), sent_columns(plan.layout), outputMode="Append", timeMode="None"
    )
    return records(released, plan.layout)


def wall_clock(spark: SparkSession, plan: Plan) -> DataFrame:
    """The clock of the driver: a row at the end of each tick and of its grace.

    Its rows are numbered from the first start of the query, and a batch that is done again has the
    same ones.
    """
    if plan.clock is None:
        raise ParameterError("plan", 'one by the clock, as with every="1h"', "one by count")
    seconds = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    start, every = plan.clock.start + plan.clock.grace, plan.clock.every
    since = F.unix_micros("timestamp") - F.lit(start)
    # Ticks are whole seconds at least: of these the first of each tick is enough.
    return seconds.where(F.pmod(since, F.lit(every)) < SECOND).select("timestamp")


def _check(
    stream_df: DataFrame,
    plan: Plan,
    columns: Columns,
    person: str | None,
    clock: DataFrame | None,
) -> None:
    """Refuse what does not fit the plan."""
    if not stream_df.isStreaming:
        raise ParameterError("stream_df", "a streaming data frame", "another one")
    _check_plan(plan, person)
    if bool(columns.key) != bool(plan.keys):
        expected = "the columns of keys, exactly where a plan declares keys"
        raise ParameterError("key", expected, columns.key or None)
    names = stream_df.columns
    for role, own in zip(("value", "key", "at", "sequence"), columns.named(), strict=True):
        for name in own:
            if name not in names:
                raise ParameterError(role, f"one of the columns {', '.join(names)}", name)
    if plan.clock is None:
        if clock is not None:
            raise ParameterError("clock", "none for a plan by count", "one")
        if (columns.sequence is None) == (columns.at is None):
            raise ParameterError(
                "sequence",
                "a column with the order of the rows of a key: sequence or at, not both",
                (columns.sequence, columns.at),
            )
        return
    if columns.at is None:
        raise ParameterError("at", "the column with the time of each row, by the clock", None)
    if clock is None or not clock.isStreaming or len(clock.columns) != 1:
        raise ParameterError(
            "clock",
            "a streaming data frame with one column of times, which closes ticks",
            "none" if clock is None else "another one",
            "use rillet.spark.wall_clock(spark, plan)",
        )


def _check_plan(plan: Plan, person: str | None) -> None:
    """Refuse plans that a group of keys cannot keep by itself."""
    if plan.unit is not None or person is not None:
        raise ParameterError(
            "unit",
            "single observations on Spark: what a person contributes is bounded over all keys, by "
            "one gate that sees every row in order",
            "a person",
            "run it on one machine (docs/fleets.md), or bound persons before the stream",
        )
    if plan.shared_threshold:
        raise ParameterError(
            "shared_threshold",
            "a range that is declared, or that each key learns alone, on Spark: for one look at "
            "all keys every group would wait for all others",
            True,
            "learn it on one machine (docs/fleets.md) and declare it",
        )
    if plan.amendments:
        raise ParameterError(
            "amendments",
            "none on Spark: keys and ε stay as the checkpoint was begun",
            len(plan.amendments),
            "begin a query of its own for further keys, with a secret of its own",
        )
    if plan.levels:
        raise ParameterError(
            "levels",
            "none on Spark: totals are streams of their own, which observations of every group "
            "enter",
            [level.name for level in plan.levels],
            "add up records with SQL, or run it on one machine (docs/many-keys.md)",
        )


def _ship(spark: SparkSession, plan: Plan) -> str:
    """Have Spark bring the plan to all workers as a file; its name."""
    text = plan.to_json(indent=None).encode()
    name = f"rillet-plan-{hashlib.sha256(text).hexdigest()[:32]}"
    path = _folder() / name
    if not path.exists():  # Spark serves it from here as long as it runs
        path.write_bytes(text)
    spark.sparkContext.addFile(str(path))
    return name


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="rillet-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _check_settings(spark: SparkSession) -> None:
    name = f"{_STORE}providerClass"
    if spark.conf.get(name) != SETTINGS[name]:
        raise ParameterError(
            name, SETTINGS[name], spark.conf.get(name), "set rillet.spark.SETTINGS on the session"
        )
