"""Kills, torn lines, full disks: what was published stays, and nothing is published twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

import sink.crashing
from rillet.errors import OutputError
from rillet.sink import make_sink
from rillet.sink.spelling import spell
from sink.crashing import engine, on_a_small_disk, whole_table
from sink.harness import FileHarness, ParquetHarness, SqliteHarness
from sink.tables import table

KILLS = 25

# One process that has imported everything, and forks what is to be killed.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([sink.crashing.__name__])


@pytest.fixture(scope="module", autouse=True)
def _quick_forks():
    """Start the server so that it finds what it is to import: it is not told our path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()


def json_lines(path, position=None, **more):
    return make_sink({"kind": "jsonl", "path": str(path), **more}).open(position)


PUBLIC = {"jsonl": FileHarness, "sqlite": SqliteHarness, "parquet": ParquetHarness}


def options_of(kind, folder):
    return {"kind": kind, "path": str(PUBLIC[kind](folder).path)}


def run(options, note, seed, kill_after=None):
    """Let the engine run; whether it was killed before it had finished."""
    started = FORKS.Event()
    process = FORKS.Process(target=engine, args=(options, note, seed, started))
    process.start()
    assert started.wait(60)
    if kill_after is not None:
        time.sleep(kill_after)
        process.kill()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("kind", PUBLIC)
def test_killed_at_random_it_publishes_everything_once(kind, tmp_path):
    options = options_of(kind, tmp_path)
    harness = PUBLIC[kind](tmp_path)
    note = tmp_path / "note"
    instants = random.Random(kind)
    killed, notes = 0, []
    for seed in range(KILLS):
        killed += run(options, note, seed, instants.uniform(0.0, 0.06))
        acknowledged = json.loads(note.read_text())["rows"] if note.exists() else 0
        assert len(published(kind, tmp_path)) >= acknowledged
        if note.exists():
            notes.append(note.read_text())
        if acknowledged > 10_000:  # begin again, with what is there
            note.unlink()
    assert killed > KILLS // 2
    assert not run(options, note, KILLS)
    assert harness.records() == harness.expected([whole_table()])
    # As if the last batches had been delivered, and the kill came before they were acknowledged.
    for turn, old in enumerate([*notes[:: len(notes) // 2 + 1], None]):
        note.unlink() if old is None else note.write_text(old)
        assert not run(options, note, KILLS + turn)
        assert harness.records() == harness.expected([whole_table()])
    if kind == "jsonl":
        assert harness.path.read_bytes() == b"".join(spell(whole_table()))


def published(kind, folder):
    """What a reader sees right after a kill: whole rows, each right."""
    harness = PUBLIC[kind](folder)
    if not harness.path.exists() or not harness.path.stat().st_size:
        return []
    if kind == "jsonl":
        return harness.path.read_bytes().splitlines(keepends=True)
    if kind == "parquet":
        return harness.records()
    connection = sqlite3.connect(harness.path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE name = 'releases'")
        if tables.fetchone() is None:
            return []
        return connection.execute("SELECT key, t FROM releases").fetchall()
    finally:
        connection.close()


# --- Torn and strange files -----------------------------------------------------------------------


def test_a_file_torn_at_any_byte_is_completed(tmp_path):
    releases = table(releases=3)
    content = b"".join(spell(releases))
    head = content.index(b"\n") + 1
    path = tmp_path / "out.jsonl"
    for end in range(head, len(content) + 1, 17):
        path.write_bytes(content[:end])
        torn = json_lines(path, {"offset": head})
        torn.deliver(releases[1:4])
        torn.deliver(releases[4:])
        assert torn.position() == {"offset": len(content)}
        torn.close()
        assert path.read_bytes() == content


@pytest.mark.parametrize("position", [None, {"offset": 0}, "first line"])
@pytest.mark.parametrize("end", ["changed", "longer", "shorter line", "not a line"])
def test_a_file_with_something_else_at_its_end_is_refused_and_left_alone(tmp_path, position, end):
    releases = table(releases=3)
    content = b"".join(spell(releases))
    head = content.index(b"\n") + 1
    lines = content.splitlines(keepends=True)
    found = {
        "changed": content[:-9] + b"0" + content[-8:],
        "longer": content[: head + 40] + b"1" + content[head + 40 :],
        "shorter line": lines[0] + b"{}\n" + b"".join(lines[2:]),
        "not a line": lines[0] + b"hello",
    }[end]
    path = tmp_path / "out.jsonl"
    path.write_bytes(found)
    begin = 1 if position == "first line" else 0
    refused = json_lines(path, {"offset": head} if begin else position)
    with pytest.raises(OutputError, match=r'key \["(north|south)"\] at t = 5[123] '):
        refused.deliver(releases[begin:])
    assert refused.position() == {"offset": head if begin else 0}
    refused.close()
    assert path.read_bytes() == found


def test_a_file_that_lost_content_or_is_another_is_refused(tmp_path):
    path = tmp_path / "out.jsonl"
    first = json_lines(path)
    first.deliver(table())
    position = first.position()
    first.close()
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(OutputError, match=r"expected at least [\d,]+ bytes, .* found [\d,]+; what"):
        json_lines(path, position)
    path.write_bytes(b"x" * len(content))
    with pytest.raises(OutputError, match="is not the one that was written before"):
        json_lines(path, position)
    path.write_bytes(content)
    again = json_lines(path, position)
    os.truncate(path, 5)
    with pytest.raises(OutputError, match="found 5; what is missing"):
        again.deliver(table(first=71))
    again.close()
    assert path.stat().st_size == 5


def test_only_one_writes_a_file(tmp_path):
    first = json_lines(tmp_path / "out.jsonl")
    with pytest.raises(OutputError, match="expected to be the only one who writes"):
        json_lines(tmp_path / "out.jsonl")
    first.close()
    json_lines(tmp_path / "out.jsonl").close()


def test_a_pipe_is_no_file(tmp_path):
    with pytest.raises(OutputError, match="expected a regular file"):
        json_lines("/dev/full")
    with pytest.raises(OutputError, match="Is a directory"):
        json_lines(tmp_path)
    with pytest.raises(OutputError, match="No such file"):
        json_lines(tmp_path / "nowhere" / "out.jsonl")


def test_fsync_waits_for_the_disk_before_it_returns(tmp_path, monkeypatch):
    calls = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: calls.append(os.fstat(number)) or real(number))
    synced = json_lines(tmp_path / "a", fsync=True)
    assert len(calls) == 1  # the folder has the name
    synced.deliver(table())
    assert calls[-1].st_size == synced.position()["offset"] > 0
    assert len(calls) == 2
    synced.close()
    plain = json_lines(tmp_path / "b")
    plain.deliver(table())
    plain.close()
    assert len(calls) == 2


def test_a_failed_fsync_takes_back_what_was_written(tmp_path, monkeypatch):
    harness = FileHarness(tmp_path, fsync=True)
    failing = harness.open()
    failing.deliver(table())

    def fail(_number):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError, match="Input/output error"):
            failing.deliver(table(first=71))
    assert harness.records() == harness.expected([table()])
    failing.deliver(table(first=71))
    failing.close()
    assert harness.records() == harness.expected([table(), table(first=71)])


# --- Full disks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_disk_that_is_full(kind, tmp_path):
    """No file may grow beyond a limit: the error is clear, and what was published is there."""
    options = options_of(kind, tmp_path)
    here, there = FORKS.Pipe()
    process = FORKS.Process(target=on_a_small_disk, args=(options, 400_000, there))
    process.start()
    assert here.poll(60)
    rows, position, messages = here.recv()
    process.join(60)
    assert rows >= 500
    assert len(messages) == 2
    for message in messages:
        assert message.startswith(f"{options['path']}: expected a ")
        assert any(words in message for words in ("File too large", "disk I/O error", "is full"))
    harness = PUBLIC[kind](tmp_path)
    assert harness.records() == harness.expected([whole_table()[:rows]])
    rest = make_sink(options).open(position)
    rest.deliver(whole_table()[rows:])
    rest.close()
    assert harness.records() == harness.expected([whole_table()])


def test_a_database_that_is_full(tmp_path):
    harness = SqliteHarness(tmp_path)
    full = harness.open()
    full.deliver(whole_table()[:100])
    full._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(OutputError, match="database or disk is full"):
        full.deliver(whole_table()[100:])
    assert full.position() == {"rows": 100}
    assert harness.records() == harness.expected([whole_table()[:100]])
    full._connection.execute("PRAGMA max_page_count = 2000000")
    full.deliver(whole_table()[100:])
    full.close()
    assert harness.records() == harness.expected([whole_table()])


def test_a_database_that_may_not_be_written(tmp_path):
    harness = SqliteHarness(tmp_path)
    first = harness.open()
    first.deliver(table())
    first._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(OutputError, match="readonly"):
        first.deliver(table(first=71))
    first.close()
    assert harness.records() == harness.expected([table()])


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "releases.db"
    path.write_bytes(b"something else altogether" * 500)
    with pytest.raises(OutputError, match="file is not a database"):
        make_sink({"kind": "sqlite", "path": str(path)}).open()
    assert path.read_bytes() == b"something else altogether" * 500


def test_a_damaged_database_is_refused_or_right(tmp_path):
    harness = SqliteHarness(tmp_path)
    first = harness.open()
    first.deliver(whole_table()[:2000])
    first.close()
    content = bytearray(Path(harness.path).read_bytes())
    for start in range(3000, len(content), 8192):
        content[start : start + 64] = bytes(64)
    harness.path.write_bytes(content)
    with pytest.raises(OutputError, match=r"malformed|never replaced|expected"):
        deliver(harness, whole_table()[:2000])


def deliver(harness, releases):
    opened = harness.open()
    try:
        opened.deliver(releases)
    finally:
        opened.close()
