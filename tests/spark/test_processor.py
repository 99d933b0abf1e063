"""The stages that run on workers, without Spark around them: rows in, records out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rillet
from helpers.spark import planned, saved, sorted_records
from rillet.errors import StateError
from rillet.spark import processor
from rillet.spark.group import check_of
from rillet.spark.shipped import Columns, GroupProcessor, Setup

SECRET = rillet.Secret.for_tests(5)
IDENTITY = "01234567-89ab"
HOUR = 3600 * 10**6


class Kept:
    """As a map state of one group."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._values.items()))

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return self._values.get(key)

    def removeKey(self, key: Any) -> None:  # noqa: N802
        del self._values[key]

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        assert type(value[0]) is bytes
        self._values[key] = value


class Context:
    """As that of a task."""

    identity = IDENTITY

    @classmethod
    def get(cls) -> type[Context]:
        return cls

    @classmethod
    def getLocalProperty(cls, name: str) -> str:  # noqa: N802
        assert name == "sql.streaming.queryId"
        return cls.identity


class Workers:
    """What Spark does between the stages."""

    def __init__(self, folder: Path, plan: rillet.Plan, columns: Columns) -> None:
        check = check_of(plan, SECRET, IDENTITY)
        path = str(saved(folder, SECRET))
        self.setup = Setup(planned(folder, plan), columns, path, check, IDENTITY, 3)
        self._kept: dict[int, Kept] = {}

    def run(self, batch: pa.RecordBatch, until: int | None = None) -> list[pa.Table]:
        parts = [batch.slice(0, 2), batch.slice(2)]
        stage = processor.sealed_rows(self.setup)
        sealed = [one.to_pandas() for one in stage(iter(parts))]
        if until is not None:
            groups = np.array(self.setup.open().labels, np.int32)
            sealed.append(pd.DataFrame({"group": groups, "raw": None, "until": until}))
        rows = pd.concat(sealed)
        found = []
        for group, own in rows.groupby("group"):
            state = self._kept.setdefault(int(group), Kept())
            one = GroupProcessor(self.setup)
            one.init(type("Handle", (), {"getMapState": lambda *_, state=state: state})())
            frames = (own.iloc[begin : begin + 1] for begin in range(len(own)))
            found += [
                pa.Table.from_pandas(frame, preserve_index=False)
                for frame in one.handleInputRows((group,), frames, None)
            ]
        return found


@pytest.fixture(autouse=True)
def _in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "TaskContext", Context)


def by_clock() -> rillet.Plan:
    return rillet.Plan(
        epsilon=1.0,
        delta=1e-6,
        upper=10.0,
        every="1h",
        start="2026-01-01T00:00Z",
        length="6h",
        threshold=rillet.FixedThreshold(),
        keys=[f"m{number}" for number in range(7)],
    )


def check_sent(table: pa.Table, releases: rillet.Releases, plan: rillet.Plan) -> None:
    """All that differs between records was sent once, and nothing else."""
    found, expected = sorted_records(table), sorted_records(releases)
    assert found == expected.select(found.column_names)
    synonyms = plan.layout.synonyms
    assert synonyms and not synonyms.keys() & set(found.column_names)
    for name, other in synonyms.items():
        assert expected[name] == found[other]
    for name in set(expected.column_names) - {*found.column_names, *synonyms}:
        assert len(set(map(str, expected[name].to_pylist()))) == 1


def test_rows_of_a_clock_become_records(tmp_path: Path) -> None:
    plan = by_clock()
    clock = plan.clock
    assert clock is not None
    workers = Workers(tmp_path, plan, Columns("kwh", ("meter",), "time"))
    streams, rng, found, expected = plan.open_many(secret=SECRET), np.random.default_rng(2), [], []
    for number in range(3):
        at = clock.start + (2 * number * HOUR) + rng.integers(0, 2 * HOUR, 40)
        key_of, values = rng.integers(0, 7, 40), np.round(rng.exponential(2.0, 40), 2)
        values[5] = np.nan
        ticks, until = clock.tick_of(at), 2 * number + 2
        expected.append(streams.absorb_ticks(values, key_of, ticks, until))
        texts = ["" if np.isnan(value) else str(value) for value in values]
        columns = {
            "kwh": [*texts, "3.0"],
            "meter": [*(f"m{key}" for key in key_of), "nobody"],
            "time": pa.array([*at.tolist(), None], pa.timestamp("us", "UTC")),
            processor.NOW: [1] * 41,
        }
        batch = pa.RecordBatch.from_pydict(columns)
        found += workers.run(batch, int(clock.end_of(until)))
    releases = rillet.Releases.join(expected)
    assert len(releases) == 42
    check_sent(pa.concat_tables(found), releases, plan)


@pytest.mark.parametrize("order", ["sequence", "at"])
def test_counted_rows_have_the_order_of_a_column_and_the_time_of_the_batch(
    order: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epsilon": 1.0, "upper": 10.0, "length": 9}
    plan = rillet.Plan(keys=["a", "b"], threshold=rillet.FixedThreshold(), **options)
    columns = Columns("x", ("key",), **{order: "order"})
    workers = Workers(tmp_path, plan, columns)
    values = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 7.0])
    numbers = np.array([4, 0, 3, 1, 2, 2])
    expected = plan.open_many(secret=SECRET).absorb(np.arange(1.0, 6.0), np.zeros(5, np.int64))
    cells = pa.array(numbers) if order == "sequence" else pa.array(numbers * 10**6)
    if order == "at":
        cells = cells.cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict(
        {"x": values, "key": ["a"] * 5 + ["c"], "order": cells, processor.NOW: [77] * 6}
    )
    table = pa.concat_tables(workers.run(batch))
    check_sent(table, expected, plan)
    assert set(table["at"].to_pylist()) == {77}
    assert workers.run(batch) == []


def test_another_query_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = by_clock()
    workers = Workers(tmp_path, plan, Columns("kwh", ("meter",), "time"))
    monkeypatch.setattr(Context, "identity", "another")
    columns = {"kwh": [1.0], "meter": ["m1"], "time": [0.0], processor.NOW: [1]}
    with pytest.raises(StateError, match="runs under another checkpoint"):
        workers.run(pa.RecordBatch.from_pydict(columns), 0)
