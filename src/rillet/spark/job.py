"""A job for ``spark-submit``, configured by the same TOML as ``rillet run``.

``python -m rillet.spark.job job.toml --secret FILE`` runs it with whatever master Spark is set to.
A further table says what only Spark knows::

    [spark]
    checkpoint = "hdfs:///meters"   # by default the folder of [state]
    trigger = "1 minute"            # by default: all that is there now, then the end
    until = "2026-02-01T00:00Z"     # by the clock, over finished files: close ticks up to then
    options = {maxFilesPerTrigger = 10}
    settings = {"spark.sql.shuffle.partitions" = "8"}
    whole = false                   # leave out what is the same in all rows

    [spark.source]                  # in place of the path in [source]
    format = "kafka"
    options = {"kafka.bootstrap.servers" = "…", subscribe = "readings"}
    json = "meter STRING, kwh DOUBLE, time TIMESTAMP"   # what the messages hold

**Privacy.** Touches raw data through :func:`rillet.spark.release` alone.  Text is read by rillet's
own rules: no schema is inferred from values.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rillet.engine.config import Config, load_config
from rillet.errors import ParameterError, RilletError
from rillet.options import convert
from rillet.plan import Plan
from rillet.source.file import SUFFIXES, FileOptions
from rillet.spark.files import Folder
from rillet.spark.query import SETTINGS, release, wall_clock
from rillet.spark.record import whole_records
from rillet.spark.sinks import Write, to_parquet, to_postgres
from rillet.times import moment


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Source(_Table, frozen=True):
    format: str
    options: dict[str, str | int | bool] = {}
    json: str | None = None


class SparkOptions(_Table, frozen=True):
    """The table ``[spark]``."""

    checkpoint: str | None = None
    trigger: str | None = None
    until: str | None = None
    options: dict[str, str | int | bool] = {}
    settings: dict[str, str] = {}
    whole: bool = True
    source: _Source | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job of a TOML file until its source ends, or until it is stopped by a signal."""
    parser = argparse.ArgumentParser(prog="rillet.spark.job", description=main.__doc__)
    parser.add_argument("config", help="the TOML file of the job")
    parser.add_argument("--secret", required=True, help="the secret's file, on every machine")
    given = parser.parse_args(arguments)
    try:
        run(given.config, given.secret)
    except RilletError as error:
        sys.stderr.write(f"rillet: {error}\n")
        return error.exit_code
    return 0


def run(path: str, secret: str) -> None:
    """Run a job."""
    config = load_config(path)
    options: SparkOptions = convert(config.spark, SparkOptions, "spark")
    checkpoint = options.checkpoint or (config.state and str(config.state))
    if not checkpoint:
        raise ParameterError("spark.checkpoint", "where the checkpoint is, or a [state]", None)
    builder: Any = SparkSession.builder
    for name, setting in {**SETTINGS, **options.settings}.items():
        builder = builder.config(name, setting)
    spark: SparkSession = builder.appName("rillet").getOrCreate()
    write = _sink(config)
    checkpoint, plan, source = _absolute(checkpoint), config.plan, config.source
    rows = _rows(spark, config, options)
    columns = source.get("column"), source.get("sequence"), source.get("time")
    value, sequence, at = columns
    if value is None:
        raise ParameterError("source.column", "the column with the values", None)
    clock = None if plan.clock is None else _clock(spark, plan, options, checkpoint)
    releases = release(
        rows,
        plan,
        value=value,
        key=config.key_columns,
        at=at,
        sequence=sequence,
        person=source.get("person"),
        clock=clock,
        secret=secret,
        checkpoint=checkpoint,
    )
    if options.whole:
        releases = whole_records(releases)
    writer = releases.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    if options.trigger is None:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=options.trigger).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: query.stop())
    query.awaitTermination()


def _absolute(path: str) -> str:
    """As seen from here: Java may have been started elsewhere."""
    return path if "://" in path else str(Path(path).absolute())


def _sink(config: Config) -> Write:
    if len(config.sinks) != 1:
        raise ParameterError("sink", "one sink on Spark", len(config.sinks))
    table: Mapping[str, Any] = config.sinks[0]
    kind, options = table.get("kind"), {k: v for k, v in table.items() if k != "kind"}
    if kind == "parquet":
        return to_parquet(_absolute(options["path"]))
    if kind == "postgres":
        return to_postgres(**options)
    raise ParameterError(
        "sink.kind", "parquet or postgres on Spark", kind, "others write to one machine's files"
    )


def _rows(spark: SparkSession, config: Config, options: SparkOptions) -> DataFrame:
    """The observations: files of a folder, or what ``[spark.source]`` says."""
    if options.source is not None:
        given = options.source
        found = spark.readStream.format(given.format).options(**given.options).load()
        if given.json is None:
            return found
        parsed = F.from_json(F.col("value").cast("string"), given.json)
        return found.select(parsed.alias("message")).select("message.*")
    table = {name: value for name, value in config.source.items() if name != "kind"}
    file: FileOptions = convert(table, FileOptions, "source")
    path = _absolute(file.path)
    kind = SUFFIXES.get(Path(file.path).suffix) if file.format == "auto" else file.format
    reader, folder = spark.readStream.options(**options.options), path
    if Path(path).suffix in SUFFIXES:  # a file or a pattern: Spark looks at folders
        folder, _, name = path.rpartition("/")
        reader = reader.option("pathGlobFilter", name)
    if kind == "parquet":
        return reader.schema(spark.read.parquet(path).schema).parquet(folder)
    if kind == "jsonl":
        names = (file.column, *config.key_columns, file.sequence, file.time)
        return reader.schema(_texts(name for name in names if name)).json(folder)
    if kind != "csv":
        raise ParameterError("source.format", "csv, jsonl or parquet", file.format)
    if file.decimal != ".":
        raise ParameterError("source.decimal", 'a "." on Spark', file.decimal)
    first = spark.read.options(header=True, sep=file.delimiter, inferSchema=False).csv(path)
    texts = reader.options(header=True, sep=file.delimiter).schema(_texts(first.columns))
    return texts.csv(folder)


def _texts(names: Any) -> str:
    return ", ".join(f"`{name}` STRING" for name in dict.fromkeys(names))


def _clock(spark: SparkSession, plan: Plan, options: SparkOptions, checkpoint: str) -> DataFrame:
    """The wall clock, or over finished files one that says when they end."""
    if options.trigger is not None and options.until is None:
        return wall_clock(spark, plan)
    if options.until is None:
        raise ParameterError(
            "spark.until", "when the last tick ends, by the clock over finished files", None
        )
    assert plan.clock is not None
    reached = moment(options.until, plan.clock.zone, "spark.until") + plan.clock.grace
    folder = f"{checkpoint}.clock"
    files = Folder(spark, folder)
    if str(reached) not in files.names():
        files.write(str(reached), f"{reached}\n")
    times = spark.readStream.schema("microseconds BIGINT").csv(folder)
    return times.select(F.timestamp_micros("microseconds").alias("until"))


if __name__ == "__main__":
    sys.exit(main())
