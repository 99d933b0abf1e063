"""Releases as JSON lines: whole lines, nothing published overwritten."""

from __future__ import annotations

import ast
import errno
import json
import os
import pathlib

import numpy as np
import pytest

import rillet.sink
from rillet.errors import OutputError, ParameterError
from rillet.sink import make_sink
from rillet.sink.spelling import spell
from sink.harness import FileHarness
from sink.tables import records, replaced, table

FIRST, SECOND = table(), table(first=71)


def text(*tables):
    return b"".join(piece for one in tables for piece in spell(one))


def write(path, *tables, **more):
    with make_sink({"kind": "jsonl", "path": str(path), **more}).open() as sink:
        for one in tables:
            sink.deliver(one)


def test_records_are_readable_before_the_sink_is_closed(tmp_path):
    harness = FileHarness(tmp_path)
    with harness.open() as sink:
        sink.deliver(FIRST)
        assert harness.records() == harness.expected([FIRST])
        sink.deliver(SECOND)
        assert harness.records() == harness.expected([FIRST, SECOND])


def test_published_numbers_are_not_overwritten_unless_told(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, FIRST)
    with pytest.raises(OutputError, match=r"found [\d,]+ bytes; name another"):
        write(path, existing="refuse")
    with pytest.raises(OutputError, match="never replaced"):
        write(path, SECOND)
    write(path, FIRST)  # the same again
    assert path.read_bytes() == text(FIRST)
    write(path, SECOND, FIRST, existing="append")
    assert path.read_bytes() == text(FIRST, SECOND, FIRST)
    write(path, SECOND, FIRST, existing="replace")
    assert path.read_bytes() == text(SECOND, FIRST)
    with pytest.raises(ParameterError, match=r"sink\.existing: expected one of"):
        write(path, existing="overwrite")


def test_a_position_says_more_than_the_option(tmp_path):
    """What a run has published is continued at its next start, whatever was wanted at the first."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"{}\n")
    for existing in ("append", "replace", "refuse"):
        sink = make_sink({"kind": "jsonl", "path": str(path), "existing": existing})
        sink.open({"offset": 3}).deliver(FIRST)
        sink.close()
        assert path.read_bytes() == b"{}\n" + text(FIRST)


@pytest.mark.parametrize("existing", ["append", "replace", "refuse", "continue"])
def test_a_check_changes_nothing(tmp_path, existing):
    path = tmp_path / "out.jsonl"
    write(path, FIRST)
    sink = make_sink({"kind": "jsonl", "path": str(path), "existing": existing})
    if existing == "refuse":
        with pytest.raises(OutputError, match="expected a new or empty file"):
            sink.check()
    else:
        sink.check()
    assert path.read_bytes() == text(FIRST)


@pytest.mark.parametrize("existing", ["append", "refuse", "continue", "replace"])
def test_an_empty_file_is_as_good_as_none(tmp_path, existing):
    path = tmp_path / "out.jsonl"
    path.touch()
    write(path, FIRST, existing=existing)
    assert path.read_bytes() == text(FIRST)


def test_a_torn_last_line_is_refused(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text('{"t":1}\n{"t"')
    with pytest.raises(OutputError, match="remove its last line"):
        write(path, FIRST, existing="append")
    assert path.read_text() == '{"t":1}\n{"t"'


def test_devices_and_pipes(tmp_path):
    with pytest.raises(OutputError, match="No space left"):
        write("/dev/full", FIRST, existing="refuse")
    write("/dev/null", FIRST, FIRST, existing="refuse")
    reader, writer = os.pipe()
    with make_sink(
        {"kind": "jsonl", "path": f"/dev/fd/{writer}", "existing": "append"}
    ).open() as sink:
        sink.deliver(FIRST[:3])
        assert sink.position() is None
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        assert stream.read() == text(FIRST[:3])
    for existing in ("continue", "append"):
        sink = make_sink({"kind": "jsonl", "path": "/dev/null", "existing": existing})
        if existing == "append":
            sink.check()
            continue
        with pytest.raises(OutputError, match="expected a regular file"):
            sink.check()


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    harness, real = FileHarness(tmp_path), os.write
    left = [3]

    def half_full(number, data):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(number, bytes(data[:10]))

    with harness.open() as sink:
        sink.deliver(FIRST)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half_full)
            with pytest.raises(OutputError, match="No space left"):
                sink.deliver(SECOND)
        assert left == [-1]
        assert harness.records() == harness.expected([FIRST])
        sink.deliver(SECOND)
    assert harness.records() == harness.expected([FIRST, SECOND])


def test_a_line_torn_within_its_time_is_completed_with_one_time(tmp_path):
    """A state that was restored releases the same again, later."""
    later = replaced(FIRST, at=FIRST.at + np.timedelta64(400 * 86_400, "s"))
    whole = text(FIRST)
    second = whole.index(b'"at"', whole.index(b"\n"))
    for length in range(second, second + 40):
        path = tmp_path / f"{length}.jsonl"
        path.write_bytes(whole[:length])
        write(path, later)
        found = [json.loads(line) for line in path.read_bytes().splitlines()]
        kept = 2 if length > second + len('"at":"2023-11-14T22:13:20.000000Z') - 1 else 1
        assert found == records(FIRST[:kept], later[kept:]), length


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda number, data: real(number, bytes(data[:300])))
    write(tmp_path / "out.jsonl", FIRST)
    assert (tmp_path / "out.jsonl").read_bytes() == text(FIRST)


def test_sinks_import_nothing_of_rillet_but_what_is_public():
    """The trust boundary: what shows results cannot reach what touches raw data."""
    folder = pathlib.Path(rillet.sink.__file__).parent
    imported = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    own = {name for name in imported if name.startswith("rillet")}
    # rillet.broker knows addresses and passwords, no data; the import contract holds for it, too.
    allowed = tuple(
        f"rillet.{name}"
        for name in ("broker", "errors", "extras", "options", "registry", "release", "sink")
    )
    assert {name for name in own if not name.startswith(allowed)} == set()
    assert "rillet.errors" in own
