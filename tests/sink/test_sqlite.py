"""The database of releases: its views, its versions, and those who read it meanwhile."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from rillet.errors import OutputError, ParameterError
from rillet.sink.sqlite import APPLICATION_ID, FORMAT_VERSION, SqliteSink
from rillet.table import ReleaseTable
from sink.harness import SqliteHarness
from sink.tables import STRANGE_KEYS, table


@pytest.fixture
def harness(tmp_path):
    return SqliteHarness(tmp_path)


def fill(harness, *tables):
    with closing(harness.open()) as sink:
        for one in tables:
            sink.deliver(one)


def ask(harness, question):
    with closing(sqlite3.connect(harness.path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(question)]


@pytest.mark.parametrize("statistic", ["mean", "sum"])
def test_latest_has_the_last_release_of_each_key(harness, statistic):
    whole = table(STRANGE_KEYS, 9, statistic=statistic)[:-3]  # three keys are one step behind
    fill(harness, whole)
    latest = {}
    for release in whole:
        latest[release.key] = release
    found = ask(harness, "SELECT * FROM latest")
    for row in found:
        row["key"] = json.loads(row["key"])
        row["post_processing"] = json.loads(row["post_processing"])
    expected = [release.to_record() for release in latest.values()]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert len({row["t"] for row in found}) == 2


def test_latest_looks_at_the_end_of_each_key_only(harness):
    fill(harness, table())
    steps = [row["detail"] for row in ask(harness, "EXPLAIN QUERY PLAN SELECT * FROM latest")]
    assert any(step.startswith("SEARCH r USING PRIMARY KEY (key_id=? AND t=?)") for step in steps)
    assert not any(step.startswith(("SCAN r", "SCAN release_rows")) for step in steps)


@pytest.mark.parametrize("statistic", ["mean", "sum"])
def test_rollup_is_all_keys_together(harness, statistic):
    whole = table(STRANGE_KEYS, 5, statistic=statistic)[:-2]
    fill(harness, whole)
    last = list({release.key: release for release in whole}.values())
    (found,) = ask(harness, "SELECT * FROM rollup")
    total, count = math.fsum(r.sum for r in last), sum(r.t for r in last)
    noise = math.sqrt(math.fsum(r.sum_noise_std**2 for r in last))
    near = {"rel": 1e-12}
    assert (found["keys"], found["t"]) == (len(STRANGE_KEYS), count)
    assert found["sum"] == pytest.approx(total, **near)
    assert found["sum_noise_std"] == pytest.approx(noise, **near)
    assert found["mean"] == pytest.approx(total / count, **near)
    assert found["mean_noise_std"] == pytest.approx(noise / count, **near)
    assert found["value"] == found[statistic]
    assert found["noise_std"] == found[f"{statistic}_noise_std"]
    assert found["statistic"] == statistic


def test_an_empty_database_answers_every_question(harness):
    harness.open().close()
    for view in ("releases", "latest", "rollup"):
        assert ask(harness, f"SELECT * FROM {view}") == []


def test_the_header_says_what_it_is(harness):
    fill(harness, table())
    assert ask(harness, "PRAGMA application_id") == [{"application_id": APPLICATION_ID}]
    assert ask(harness, "PRAGMA user_version") == [{"user_version": FORMAT_VERSION}]
    assert ask(harness, "PRAGMA journal_mode") == [{"journal_mode": "wal"}]
    assert ask(harness, "SELECT * FROM meta") == [
        {"name": "rows", "value": 40},
        {"name": "version", "value": FORMAT_VERSION},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("PRAGMA application_id = 5", "a database of something else"),
        ("PRAGMA user_version = 2", "expected version 1 of the database of releases, found 2"),
    ],
)
def test_another_application_or_version_is_refused(harness, change, message):
    fill(harness, table())
    with closing(sqlite3.connect(harness.path)) as connection:
        connection.execute(change)
    content = harness.path.read_bytes()
    with pytest.raises(OutputError, match=message):
        harness.open()
    assert harness.path.read_bytes() == content


def test_releases_of_another_plan_are_refused(harness):
    fill(harness, table())
    with closing(harness.open()) as sink:
        with pytest.raises(OutputError, match="name another file for another plan"):
            sink.deliver(table(first=71, statistic="sum"))
        sink.deliver(table(first=71))
    assert harness.records() == harness.expected([table(), table(first=71)])


def test_what_a_refused_table_numbered_is_forgotten(harness):
    """Keys and ranges of a transaction that was taken back must not be used again."""
    old, new = table(), table((("new",), ("north",)), 20)
    with closing(harness.open()) as sink:
        sink.deliver(old)
        with pytest.raises(OutputError, match="never replaced"):
            sink.deliver(new)
        assert ask(harness, "SELECT key FROM keys") == [{"key": '["north"]'}, {"key": '["south"]'}]
        only_new = table((("new",), ("newer",)), 20)
        sink.deliver(only_new)
    assert harness.records() == harness.expected([old, only_new])


def test_two_who_write_do_not_mix_up_keys(harness):
    one, other = harness.open(), harness.open()
    with closing(one), closing(other):
        one.deliver(table((("a",), ("b",)), 5))
        other.deliver(table((("c",), ("a",)), 5, first=100, seed=2))
        one.deliver(table((("d",), ("c",)), 5, first=200, seed=3))
        assert one.place() == {"rows": 30}
    tables = [
        table((("a",), ("b",)), 5),
        table((("c",), ("a",)), 5, first=100, seed=2),
        table((("d",), ("c",)), 5, first=200, seed=3),
    ]
    assert harness.records() == harness.expected(tables)


def test_readers_see_whole_tables_and_stop_nobody(harness):
    keys = tuple((place,) for place in range(40))
    tables = [table(keys, 10, first=1 + 10 * turn, seed=turn) for turn in range(30)]
    harness.open().close()
    counts, stop = [], threading.Event()

    def read():
        with closing(sqlite3.connect(harness.path)) as connection:
            while not stop.is_set():
                counts.append(connection.execute("SELECT count(*) FROM releases").fetchone()[0])

    reader = threading.Thread(target=read)
    reader.start()
    fill(harness, *tables)
    time.sleep(0.05)
    stop.set()
    reader.join()
    assert counts == sorted(counts)
    assert {count % 400 for count in counts} == {0}
    assert counts[-1] == 30 * 400


def test_synchronous_is_what_was_asked_for(harness):
    for name, number in (("normal", 1), ("full", 2)):
        with closing(SqliteSink(harness.path, synchronous=name)) as sink:
            assert sink._connection.execute("PRAGMA synchronous").fetchone() == (number,)
    with pytest.raises(ParameterError, match="synchronous"):
        SqliteSink(harness.path, synchronous="off")


def test_the_same_row_twice_in_one_table(harness):
    whole = table()
    twice = ReleaseTable.join([whole, whole[:7]])
    fill(harness, twice)
    assert harness.records() == harness.expected([whole])
    other = ReleaseTable.join([table(first=71), table(first=71, seed=2)[:1]])
    with closing(harness.open()) as sink, pytest.raises(OutputError, match=r'"north".* at t = 71 '):
        sink.deliver(other)
    assert harness.records() == harness.expected([whole])


def test_ranges_that_change_with_every_row(harness):
    whole = replace(table(), threshold=np.arange(40) + 200.5, clipped_share=np.arange(40) / 40)
    fill(harness, whole, whole)
    assert harness.records() == harness.expected([whole])
    assert ask(harness, "SELECT count(*) AS n FROM ranges") == [{"n": 40}]
