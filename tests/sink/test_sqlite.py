"""The database of releases: its views, its versions, and those who read it meanwhile."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rillet.errors import OutputError, ParameterError
from rillet.release import Releases
from rillet.sink import make_sink
from rillet.sink.sqlite import APPLICATION_ID, FORMAT_VERSION, latest_times
from sink.harness import SqliteHarness, plain
from sink.tables import STRANGE_KEYS, replaced, table


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


NAMES = [("mean",), ("mean", "0.5", "0.9")]


@pytest.mark.parametrize("names", NAMES)
def test_latest_has_the_last_release_of_each_key(harness, names):
    whole = table(STRANGE_KEYS, 9, names=names)[:-3]  # three keys are one step behind
    fill(harness, whole)
    latest = {release.key: release for release in whole}
    found = list(map(plain, ask(harness, "SELECT * FROM latest")))
    expected = [row for release in latest.values() for row in release]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert len({row["t"] for row in found}) == 2
    assert latest_times(harness.path) == {key: release.t for key, release in latest.items()}


def test_latest_looks_at_the_end_of_each_key_only(harness):
    fill(harness, table())
    steps = [row["detail"] for row in ask(harness, "EXPLAIN QUERY PLAN SELECT * FROM latest")]
    assert any(
        step.startswith("SEARCH r USING PRIMARY KEY (series_id=? AND t=?)") for step in steps
    )
    assert not any(step.startswith(("SCAN r", "SCAN release_rows")) for step in steps)


@pytest.mark.parametrize("names", NAMES)
def test_rollup_is_all_keys_together_where_the_sum_is_known(harness, names):
    keys = tuple(key for key in STRANGE_KEYS if key)  # () is all of them together
    whole = table(keys, 5, names=names)[:-2]
    fill(harness, whole)
    last = list({release.key: release for release in whole}.values())
    (found,) = ask(harness, "SELECT * FROM rollup")
    total, count = math.fsum(r.sum for r in last), sum(r.count for r in last)
    noise = math.sqrt(math.fsum(r.sum_noise_std**2 for r in last))
    near = {"rel": 1e-12}
    assert (found["name"], found["keys"], found["count"]) == ("mean", len(keys), count)
    assert found["sum"] == pytest.approx(total, **near)
    assert found["sum_noise_std"] == pytest.approx(noise, **near)
    assert found["mean"] == pytest.approx(total / count, **near)
    assert found["mean_noise_std"] == pytest.approx(noise / count, **near)


def test_rollup_is_the_total_of_all_keys_where_there_is_one(harness):
    whole = table((("north", 1), ("south", 1), ("north",), ("south",), ()), 5)
    fill(harness, whole)
    last = [release for release in whole if release.key == ()][-1]
    (found,) = ask(harness, "SELECT * FROM rollup")
    assert found["keys"] == 1
    for name in ("count", "sum", "sum_noise_std", "mean", "mean_noise_std"):
        assert found[name] == pytest.approx(getattr(last, name), rel=1e-12)


def test_keys_of_one_part_are_shown_as_they_are(harness):
    fill(harness, table((("north",), (7,), ("7",), ("a", 1), ("[x",)), 1))
    rows = ask(harness, "SELECT key FROM latest ORDER BY typeof(key), key")
    assert [row["key"] for row in rows] == [7, "7", '["[x"]', '["a",1]', "north"]


def test_an_empty_database_answers_every_question(harness):
    harness.open().close()
    for view in ("releases", "latest", "rollup"):
        assert ask(harness, f"SELECT * FROM {view}") == []


def test_the_header_says_what_it_is(harness):
    fill(harness, table())
    assert ask(harness, "PRAGMA application_id") == [{"application_id": APPLICATION_ID}]
    assert ask(harness, "PRAGMA user_version") == [{"user_version": FORMAT_VERSION}]
    with closing(harness.open()) as sink:
        assert ask(harness, "PRAGMA journal_mode") == [{"journal_mode": "delete"}]
        sink.deliver(table())
        assert ask(harness, "PRAGMA journal_mode") == [{"journal_mode": "wal"}]
    assert ask(harness, "SELECT * FROM meta") == [
        {"name": "rows", "value": 40},
        {"name": "version", "value": FORMAT_VERSION},
        {"name": "width", "value": 8},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("PRAGMA application_id = 5", "a database of something else"),
        ("PRAGMA user_version = 7", "expected version 2 of the database of releases, found 7"),
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
            sink.deliver(table(first=71, names=("sum",)))
        sink.deliver(table(first=71))
    assert harness.records() == harness.expected([table(), table(first=71)])


def test_what_a_refused_table_numbered_is_forgotten(harness):
    """Keys and ranges of a transaction that was taken back must not be used again."""
    old, new = table(), table((("new",), ("north",)), 20)
    with closing(harness.open()) as sink:
        sink.deliver(old)
        with pytest.raises(OutputError, match="never replaced"):
            sink.deliver(new)
        assert ask(harness, "SELECT key FROM series") == [{"key": "north"}, {"key": "south"}]
        only_new = table((("new",), ("newer",)), 20)
        sink.deliver(only_new)
    assert harness.records() == harness.expected([old, only_new])


def test_two_who_write_do_not_mix_up_keys(harness):
    one, other = harness.open(), harness.open()
    with closing(one), closing(other):
        one.deliver(table((("a",), ("b",)), 5))
        other.deliver(table((("c",), ("a",)), 5, first=100, seed=2))
        one.deliver(table((("d",), ("c",)), 5, first=200, seed=3))
        assert one.position() == {"rows": 30}
    tables = [
        table((("a",), ("b",)), 5),
        table((("c",), ("a",)), 5, first=100, seed=2),
        table((("d",), ("c",)), 5, first=200, seed=3),
    ]
    assert harness.records() == harness.expected(tables)


def test_readers_see_whole_tables_and_stop_nobody(harness):
    keys = tuple((index,) for index in range(40))
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
    options = {"kind": "sqlite", "path": str(harness.path)}
    for name, number in (("normal", 1), ("full", 2)):
        with make_sink({**options, "synchronous": name}).open() as sink:
            assert sink._connection.execute("PRAGMA synchronous").fetchone() == (number,)
    with pytest.raises(ParameterError, match="synchronous"):
        make_sink({**options, "synchronous": "off"})


def test_the_same_row_twice_in_one_table(harness):
    whole = table()
    twice = Releases.join([whole, whole[:7]])
    fill(harness, twice)
    assert harness.records() == harness.expected([whole])
    other = Releases.join([table(first=71), table(first=71, seed=2)[:1]])
    with closing(harness.open()) as sink, pytest.raises(OutputError, match=r'"north".* at t = 71 '):
        sink.deliver(other)
    assert harness.records() == harness.expected([whole])


def test_ranges_that_change_with_every_row(harness):
    whole = replaced(table(), clip_upper=np.arange(40) + 200.5, clipped_share=np.arange(40) / 40)
    fill(harness, whole, whole)
    assert harness.records() == harness.expected([whole])
    assert ask(harness, "SELECT count(*) AS n FROM shared") == [{"n": 40}]


# --- what a row stores ---------------------------------------------------------------------------


def stored(harness):
    """How many numbers each row holds, beside t and at."""
    names = [row["name"] for row in ask(harness, "PRAGMA table_info(release_rows)")]
    return len(names) - 4


def mean_like(**more):
    whole = table()
    noise = whole.sum_noise_std / whole.t
    names = ("noise_covariance", "noise_slack", "noise_lower", "noise_upper")
    unknown = dict.fromkeys((*names, "clipping_below", "clipping_above"), np.full(40, np.nan))
    public = {**unknown, "count_noise_std": np.zeros(40)}
    return replaced(whole, noise_std=noise, mean_noise_std=noise, **public, **more)


def test_equal_columns_and_quotients_are_stored_once(harness):
    fill(harness, mean_like())
    assert stored(harness) == 2
    assert harness.records() == harness.expected([mean_like()])


def test_a_row_grows_when_columns_stop_being_equal(harness):
    """At t = 1 a sum is its mean: later rows need more room, and the first stay as they are."""
    whole = table(releases=30, first=1)
    fill(harness, whole[:2])
    assert stored(harness) == 8
    fill(harness, whole[2:6], whole[6:], whole)
    assert stored(harness) == 8
    other = replaced(table(first=100), value=np.arange(40.0), count=np.arange(40) / 7)
    fill(harness, other)
    assert stored(harness) == 10
    unknown = {name: np.full(40, np.nan) for name in ("sum", "mean", "count", "clip_upper")}
    few = replaced(table(first=200), value=np.zeros(40), **unknown)
    fill(harness, few, few)
    assert harness.records() == harness.expected([whole, other, few])


def test_what_is_not_finite_is_null(harness):
    column = np.arange(40.0)
    column[[3, 5, 7]] = np.inf, -np.inf, np.nan
    odd = replaced(table(), sum=column, clip_upper=np.full(40, np.inf))
    fill(harness, odd, odd)
    assert harness.records() == harness.expected([odd])
    assert ask(harness, "SELECT count(*) AS n FROM releases WHERE sum IS NULL") == [{"n": 3}]


def test_times_are_text_that_sorts(harness):
    """Also before 1970, and at the ends of the calendar."""
    ends = np.array(["0001-01-01", "1969-12-31T23:59:59.999999", "1970-01-01", "9999-12-31"])
    at = np.resize(ends.astype("M8[us]"), 40)
    old = replaced(table(), at=at)
    fill(harness, old)
    assert harness.records() == harness.expected([old])
    rows = ask(harness, "SELECT at FROM releases WHERE at < '1970' ORDER BY at")
    assert [row["at"] for row in rows[9:11]] == [
        "0001-01-01T00:00:00.000000Z",
        "1969-12-31T23:59:59.999999Z",
    ]


# --- who may read it -----------------------------------------------------------------------------

READ = """
import os, sqlite3, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
database = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
print(database.execute("SELECT count(*) FROM releases").fetchone())
"""


@pytest.mark.parametrize("open_meanwhile", [True, False])
def test_an_account_that_may_only_read_can_read(open_meanwhile):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        harness = SqliteHarness(folder)
        before = os.umask(0o022)
        try:
            sink = harness.open()
            sink.deliver(table())
        finally:
            os.umask(before)
        if not open_meanwhile:
            sink.close()
            assert [path.name for path in folder.iterdir()] == ["releases.db"]
        command = [sys.executable, "-c", READ, str(harness.path)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        sink.close()
    assert found.stdout == "(40,)\n", found.stderr
