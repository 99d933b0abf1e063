"""What Spark does twice is kept once, and a different value is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow.compute as pc
import pytest

import rillet
from helpers.spark import records, sorted_records
from rillet.errors import OutputError, ParameterError
from rillet.release import Releases

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]


def releases(seed: int = 1, **options: Any) -> Releases:
    given: dict[str, Any] = options or {"lag": 4}
    plan = rillet.Plan(epsilon=1.0, delta=1e-6, upper=10.0, length=20, keys=["a", 7], **given)
    streams = plan.open_many(secret=rillet.Secret.for_tests(seed))
    values = np.random.default_rng(1).exponential(2.0, 24)
    return streams.absorb(values, np.tile([0, 1], 12))


def frame(spark: Any, found: Releases) -> Any:
    from rillet.spark.record import RECORD

    table = found.to_arrow()
    return spark.createDataFrame(table.to_pylist(), RECORD)


def test_a_folder_of_parquet_keeps_a_batch_once(spark: Any, tmp_path: Path) -> None:
    from rillet.spark import to_parquet

    write, found = to_parquet(str(tmp_path)), releases()
    for number, part in ((4, found[:6]), (5, found[6:]), (5, found[6:]), (4, found[:6])):
        write(frame(spark, part), number)
    assert records(tmp_path) == sorted_records(found)
    assert not list(tmp_path.glob("_unfinished*"))
    with pytest.raises(OutputError, match="a published value is never replaced"):
        write(frame(spark, releases(2)[6:]), 5)
    with pytest.raises(OutputError, match="restored from a backup"):
        write(frame(spark, found[:8]), 5)
    assert records(tmp_path) == sorted_records(found)


def test_fields_that_the_schema_has_are_compared_and_delivered(
    spark: Any, database: Any, tmp_path: Path
) -> None:
    from rillet.spark import to_parquet, to_postgres, whole_records
    from rillet.spark.record import METADATA

    found = releases()
    same = {name: found.common[name] for name in ("noise_law", "post_processing")}
    left_out = {"same": same, "synonyms": {"mean": "value"}}
    whole = frame(spark, found)
    narrow = whole.drop(*left_out["same"], *left_out["synonyms"])
    with pytest.raises(ParameterError, match="with its column value"):
        whole_records(narrow)
    narrow = narrow.withMetadata("value", {METADATA: json.dumps(left_out)})
    assert whole_records(narrow).dtypes == whole.dtypes
    write = to_parquet(str(tmp_path))
    for batch in (narrow, narrow, whole):
        write(batch, 1)
    assert "noise_law" not in spark.read.parquet(str(tmp_path)).columns
    assert records(tmp_path) == sorted_records(found)
    read = whole_records(spark.read.parquet(str(tmp_path)))
    assert sorted_records(read.toArrow()) == sorted_records(found)
    left_out = {**left_out, "same": {**same, "noise_law": "another"}}
    other = narrow.withMetadata("value", {METADATA: json.dumps(left_out)})
    with pytest.raises(OutputError, match="a published value is never replaced"):
        write(other, 1)
    to_postgres(dsn=database.dsn(), table="narrow")(narrow, 1)
    with psycopg.connect(database.dsn()) as connection:
        rows = connection.execute(
            "SELECT t, mean, noise_law FROM narrow WHERE key = 'a'"
        ).fetchall()
    own = found.to_arrow().filter(pc.field("key") == "a")
    assert sorted(rows) == [
        (t, mean, same["noise_law"])
        for t, mean in zip(own["t"].to_pylist(), own["mean"].to_pylist(), strict=True)
    ]


def test_a_table_of_postgresql_keeps_a_batch_once(spark: Any, database: Any) -> None:
    from rillet.spark import to_postgres

    several = {"statistic": rillet.Histogram(bins=[2, 5])}
    for options in ({}, several):
        table = f"spark_{len(options)}"
        write, found = to_postgres(dsn=database.dsn(), table=table), releases(**options)
        for number, part in ((4, found[:6]), (5, found[6:]), (5, found[6:])):
            write(frame(spark, part), number)
        with psycopg.connect(database.dsn()) as connection:
            rows = connection.execute(f"SELECT key, t, name, value FROM {table}").fetchall()
        expected = found.to_arrow().select(["key", "t", "name", "value"]).to_pylist()
        assert sorted(rows) == sorted(
            (str(r["key"]), r["t"], r["name"], r["value"]) for r in expected
        )
        with pytest.raises(Exception, match="a published value is never replaced"):
            write(frame(spark, releases(2, **options)), 6)
