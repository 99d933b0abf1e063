"""Rows of a state belong together: no set of rows opens but the one that was committed last."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3

import numpy as np
import pytest

from rillet import Plan, StateError
from rillet.errors import OutputError
from rillet.state.binding import Binding, name_of
from rillet.state.folder import rotate_key
from rillet.state.store import SqliteStore

PLAN = Plan(
    epsilon=1.0, upper=100.0, length=60, lag=4, keys=["a", "b", "c"], delta=2.0**-20, every=2
)
#: Keys a and b have learned, c has not begun to; some batches are delivered, others wait.
BLOCKS = [[0, 1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 2, 2], [2, 0, 0], [1, 1, 0]]


def absorb(streams, keys):
    return streams.absorb(np.arange(1.0, len(keys) + 1), np.array(keys))


@pytest.fixture
def commits(tmp_path):
    """A copy of the folder after each commit; the last is the state itself."""
    live = tmp_path / "live"
    copies = []
    for number, keys in enumerate(BLOCKS):
        with PLAN.open_folder(live) as streams:
            absorb(streams, keys)
            if number == 2:
                streams.store.acknowledge(1, {"sink": 1})
        copies.append(tmp_path / f"after {number}")
        shutil.copytree(live, copies[-1])
    return copies


def rows(folder):
    """Every sealed row, by its table and the numbers in it."""
    found = {}
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection:
        for table in ("progress", "streams", "learning", "outbox", "sinks"):
            for *numbers, sealed in connection.execute(f"SELECT * FROM {table}"):
                found[table, *numbers] = sealed
    return found


def write(folder, statement, *parameters):
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection, connection:
        assert connection.execute(statement, parameters).rowcount


def read_all(streams):
    assert sum(map(streams.t, streams.keys)) == streams.observations
    assert streams.store.sinks().keys() <= {"sink"}
    assert len(streams.store.undelivered()) <= streams.store.progress.batch


def refused(folder, match="put back, taken away or added"):
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    with pytest.raises(StateError, match=match):
        PLAN.open_folder(folder)
    assert files.items() <= {path.name: path.read_bytes() for path in folder.iterdir()}.items()


def test_what_was_committed_opens(commits):
    for folder in commits:
        with PLAN.open_folder(folder, only_look=True) as streams:
            read_all(streams)
            assert streams.store.commits > 1
    kinds = {table for table, *_ in rows(commits[-1])}
    assert kinds == {"progress", "streams", "learning", "outbox", "sinks"}


def test_every_row_of_every_commit_put_back_alone_is_noticed(commits, tmp_path):
    tried = 0
    now = rows(commits[-1])
    for older in commits[:-1]:
        for (table, *numbers), sealed in rows(older).items():
            if now.get((table, *numbers)) == sealed:
                continue
            folder = tmp_path / f"put back {tried}"
            shutil.copytree(commits[-1], folder)
            places = ", ".join("?" * (len(numbers) + 1))
            write(folder, f"INSERT OR REPLACE INTO {table} VALUES ({places})", *numbers, sealed)
            refused(folder)
            tried += 1
    assert tried >= 20


def test_every_row_taken_away_is_noticed(commits, tmp_path):
    columns = {"learning": "key_index = ? AND part = ?", "outbox": "batch = ?"}
    for number, (table, *numbers) in enumerate(rows(commits[-1])):
        folder = tmp_path / f"taken away {number}"
        shutil.copytree(commits[-1], folder)
        where = columns.get(table, "key_index = ?" if table == "streams" else "only = ?")
        write(folder, f"DELETE FROM {table} WHERE {where}", *numbers)
        refused(folder, "damaged")


def test_all_rows_of_all_tables_but_one_put_back_are_noticed(commits, tmp_path):
    """Older progress, streams, learning, outbox, sinks and mark, in every combination but all."""
    tables = ("progress", "streams", "learning", "outbox", "sinks")
    for number, chosen in enumerate(
        itertools.chain.from_iterable(
            itertools.combinations(tables, size) for size in range(1, len(tables))
        )
    ):
        folder = tmp_path / f"combined {number}"
        shutil.copytree(commits[-1], folder)
        shutil.copyfile(commits[1] / "opening", folder / "opening")
        with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection, connection:
            for table in chosen:
                connection.execute(f"DELETE FROM {table}")
            for (table, *numbers), sealed in rows(commits[1]).items():
                if table in chosen:
                    places = ", ".join("?" * (len(numbers) + 1))
                    connection.execute(f"INSERT INTO {table} VALUES ({places})", (*numbers, sealed))
        if rows(folder) == rows(commits[-1]):
            continue
        refused(folder)


@pytest.mark.parametrize("name", ["mechanism", "run", "keys", "identity"])
def test_what_is_in_the_clear_is_bound_too(commits, name):
    folder = commits[-1]
    write(folder, "UPDATE facts SET value = value || ' ' WHERE name = ?", name)
    refused(folder, "put back|does not open")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO facts VALUES ('more', 'x')",
        "DELETE FROM facts WHERE name = 'run'",
        "UPDATE facts SET value = x'00' WHERE name = 'run'",
        "UPDATE facts SET value = x'00' WHERE name = 'identity'",
        "UPDATE streams SET sealed = x''",
        "UPDATE sinks SET sealed = 'text'",
        "UPDATE learning SET part = 'first' WHERE part = 0 AND key_index = 2",
    ],
)
def test_odd_rows_are_damage(commits, statement):
    write(commits[-1], statement)
    refused(commits[-1], "damaged")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER keep AFTER UPDATE ON streams BEGIN DELETE FROM outbox; END",
        "CREATE TABLE kept (sealed BLOB)",
        "CREATE VIEW kept AS SELECT * FROM streams",
        "CREATE INDEX kept ON streams (sealed)",
        "CREATE INDEX kept ON learning (part)",
        "ALTER TABLE streams ADD COLUMN kept",
        "DROP TABLE learning",
        "PRAGMA journal_mode = DELETE; PRAGMA page_size = 4096; VACUUM; PRAGMA journal_mode = WAL",
        "PRAGMA auto_vacuum = FULL; VACUUM",
    ],
)
def test_another_schema_is_refused(commits, statement):
    with contextlib.closing(sqlite3.connect(commits[-1] / "state.db")) as connection:
        connection.executescript(statement)
    refused(commits[-1], "expected the tables of a state and nothing else")


def test_a_row_put_back_while_the_state_is_open_is_noticed(commits):
    """Somebody writes the file under the process: locks of SQLite bind only those who ask."""
    older = rows(commits[0])["streams", 0]
    with PLAN.open_folder(commits[-1]) as streams:
        before = streams.observations
        streams.store._connection.execute(
            "UPDATE streams SET sealed = ? WHERE key_index = 0", (older,)
        )
        with pytest.raises(StateError, match="put back"):
            absorb(streams, [0])
        assert streams.observations == before
    refused(commits[-1])


def test_a_commit_that_fails_leaves_memory_as_the_disk_is(commits, monkeypatch):
    streams = PLAN.open_folder(commits[-1])
    put, calls = SqliteStore._put, []

    def full(self, sealed):
        calls.append(set(sealed))
        if len(calls) == 4:  # the progress of the block, after its rows
            assert calls[-1] == {"progress"}
            raise OutputError("the disk is full")
        put(self, sealed)

    progress, commits_before = streams.store.progress, streams.store.commits
    monkeypatch.setattr(SqliteStore, "_put", full)
    with pytest.raises(OutputError):
        absorb(streams, [0, 1, 2, 0, 1])
    monkeypatch.setattr(SqliteStore, "_put", put)
    assert streams.store.progress == progress
    # The opening was counted, and nothing else.
    assert streams.store.commits == commits_before + 1
    assert len(absorb(streams, [0, 1, 2, 0, 1]))
    streams.close()
    with PLAN.open_folder(commits[-1]) as streams:
        read_all(streams)
        absorb(streams, [0, 1])


def test_another_key_seals_the_same_rows(commits):
    before = rows(commits[-1])
    rotate_key(commits[-1])
    after = rows(commits[-1])
    assert before.keys() == after.keys()
    assert all(before[address] != after[address] for address in before)
    with PLAN.open_folder(commits[-1]) as streams:
        read_all(streams)
        absorb(streams, [0, 1])
    write(commits[-1], "UPDATE streams SET sealed = ? WHERE key_index = 0", after["streams", 0])
    refused(commits[-1])


def test_a_sum_depends_on_every_row_and_on_the_key():
    seals = [bytes([number]) * 40 for number in range(4)]
    addresses = [("stream", 1), ("stream", 11), ("learning", 1, 1), ("outbox", 1)]
    sums = set()
    for key in (bytes(32), bytes([1]) * 32):
        for chosen in itertools.product([None, *seals], repeat=len(addresses)):
            binding = Binding(key)
            shares = {
                address: binding.share(address, seal)
                for address, seal in zip(addresses, chosen, strict=True)
                if seal is not None
            }
            sums.add(binding.sum_with(shares, ()))
    assert len(sums) == 2 * 5**4 - 1  # without rows it is 0


def change(binding, rows, gone=()):
    shares = {address: binding.share(address, sealed) for address, sealed in rows.items()}
    binding.take_over(shares, gone, binding.sum_with(shares, gone))


def test_a_sum_does_not_depend_on_the_way():
    there, back = Binding(b"k" * 32), Binding(b"k" * 32)
    random = np.random.default_rng(1)
    content = {}
    for _ in range(300):
        address = ("stream", int(random.integers(20)))
        if address in content and random.random() < 0.3:
            change(there, {}, [address])
            del content[address]
        else:
            content[address] = random.bytes(20)
            change(there, {address: content[address]})
    for address in sorted(content, reverse=True):
        change(back, {address: content[address]})
    assert there.sum == back.sum
    assert all(there.has(address, sealed) for address, sealed in content.items())
    assert not any(there.has(address, b"x" * 20) for address in content)


def test_addresses_have_names_of_their_own():
    numbers = (0, 1, -1, 10, 11, 2**62)
    addresses = [("stream", a) for a in numbers]
    addresses += [("learning", a, b) for a in numbers for b in numbers]
    names = {name_of(address) for address in addresses}
    assert len(names) == len(addresses)
    assert not any(b"\0" in name for name in names)
