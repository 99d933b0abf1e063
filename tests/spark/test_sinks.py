"""What Spark does twice is kept once, and a different value is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import rillet
from helpers.spark import records, sorted_records
from rillet.errors import OutputError
from rillet.release import Releases

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]


def releases(seed: int = 1, **options: Any) -> Releases:
    given: dict[str, Any] = options or {"lag": 4}
    plan = rillet.Plan(epsilon=1.0, delta=1e-6, upper=10.0, length=20, keys=["a", 7], **given)
    streams = plan.open_many(secret=rillet.Secret.for_tests(seed))
    values = np.random.default_rng(1).exponential(2.0, 24)
    return streams.absorb(values, np.tile([0, 1], 12))


def frame(spark: Any, found: Releases) -> Any:
    from rillet.spark.processor import RECORD

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
