"""Releases as JSON lines: exact numbers, whole lines, nothing published overwritten."""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import pathlib
import subprocess
import sys
from collections import UserDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rillet.sink
from rillet.errors import OutputError, ParameterError
from rillet.sink import JsonLinesSink

RECORD = {"key": ["north"], "t": 3, "value": 0.1}


def rows_of(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_floats_come_back_as_they_were(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("sink") / "out.jsonl"
    with JsonLinesSink(path) as sink:
        assert sink.write_many({"t": t, "value": value} for t, value in enumerate(values)) == len(
            values
        )
    assert [repr(row["value"]) for row in rows_of(path)] == list(map(repr, values))
    assert [row["t"] for row in rows_of(path)] == list(range(len(values)))


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")]
)
def test_what_json_cannot_say_is_null_at_any_depth(tmp_path, bad):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write({"value": bad, "interval": (1.5, bad), "more": {"x": np.array([bad, 2.0])}})
    row = json.loads(path.read_text(), parse_constant=no_constant)
    assert row == {"value": None, "interval": [1.5, None], "more": {"x": [None, 2.0]}}


def test_numpy_tuples_text_and_other_mappings(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write(UserDict(t=np.int64(7), key=("Zürich", "\ud800"), flag=np.True_, line="a\nb"))
    (row,) = rows_of(path)
    assert row == {"t": 7, "key": ["Zürich", "\ud800"], "flag": True, "line": "a\nb"}


def test_the_order_of_names_is_kept(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write({"t": 1, "a": 2, "key": 3})
    assert path.read_text() == '{"t":1,"a":2,"key":3}\n'


def test_an_unknown_thing_is_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink, pytest.raises(OutputError, match="found object"):
        sink.write_many([RECORD, {"value": object()}])
    assert path.read_text() == ""


def test_records_are_readable_before_the_sink_is_closed(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write(RECORD)
        assert rows_of(path) == [RECORD]
        sink.write_many([RECORD] * 5000)
        assert rows_of(path) == [RECORD] * 5001


def test_write_many_takes_records_as_they_come(tmp_path):
    """Bounded memory: an endless source may not be collected first."""
    path = tmp_path / "out.jsonl"

    def records():
        for _ in range(10_000):
            yield RECORD
        assert len(rows_of(path)) >= 4096

    with JsonLinesSink(path) as sink:
        assert sink.write_many(records()) == 10_000


def test_published_numbers_are_not_overwritten_unless_told(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text('{"t":1}\n')
    with pytest.raises(OutputError, match=r'found 8 bytes; .*existing="append"'):
        JsonLinesSink(path)
    assert path.read_text() == '{"t":1}\n'
    with JsonLinesSink(path, existing="append") as sink:
        sink.write({"t": 2})
    assert path.read_text() == '{"t":1}\n{"t":2}\n'
    with JsonLinesSink(path, existing="replace") as sink:
        sink.write({"t": 3})
    assert path.read_text() == '{"t":3}\n'


def test_an_empty_file_is_as_good_as_none(tmp_path):
    path = tmp_path / "out.jsonl"
    path.touch()
    with JsonLinesSink(path) as sink:
        sink.write(RECORD)
    assert rows_of(path) == [RECORD]


def test_a_torn_last_line_is_refused(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text('{"t":1}\n{"t"')
    with pytest.raises(OutputError, match="a torn one"):
        JsonLinesSink(path, existing="append")
    assert path.read_text() == '{"t":1}\n{"t"'


def test_existing_is_checked(tmp_path):
    with pytest.raises(ParameterError, match="existing: expected one of refuse, append, replace"):
        JsonLinesSink(tmp_path / "out.jsonl", existing="overwrite")
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="No such file"):
        JsonLinesSink(tmp_path / "nowhere" / "out.jsonl")
    with pytest.raises(OutputError, match="Is a directory"):
        JsonLinesSink(tmp_path)
    if pathlib.Path("/dev/full").exists():
        with JsonLinesSink("/dev/full") as sink, pytest.raises(OutputError, match="No space left"):
            sink.write(RECORD)


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write(RECORD)
        before = path.read_bytes()
        stream = sink._stream

        class HalfFull:
            fileno = stream.fileno
            closed = False
            written = 0

            def write(self, data):
                if self.written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.written = stream.write(bytes(data[:10]))
                return self.written

        sink._stream = HalfFull()
        with pytest.raises(OutputError, match="No space left"):
            sink.write(RECORD)
        assert sink._stream.written == 10
        sink._stream = stream
        assert path.read_bytes() == before
        sink.write(RECORD)
    assert rows_of(path) == [RECORD, RECORD]


def test_short_writes_are_continued(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonLinesSink(path) as sink:
        stream = sink._stream

        class Slow:
            fileno = stream.fileno
            closed = False

            def write(self, data):
                return stream.write(bytes(data[:3]))

        sink._stream = Slow()
        sink.write(RECORD)
        sink._stream = stream
    assert rows_of(path) == [RECORD]


def test_fsync_waits_for_the_disk_at_each_write(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", calls.append)
    with JsonLinesSink(tmp_path / "a.jsonl", fsync=True) as sink:
        sink.write(RECORD)
        sink.write_many([RECORD, RECORD])
    assert len(calls) == 2
    with JsonLinesSink(tmp_path / "b.jsonl") as sink:
        sink.write(RECORD)
    assert len(calls) == 2


def test_a_closed_sink_says_so(tmp_path):
    sink = JsonLinesSink(tmp_path / "out.jsonl")
    sink.close()
    sink.close()
    with pytest.raises(OutputError, match="found it closed"):
        sink.write(RECORD)


def test_standard_output_stays_open(capsys):
    with JsonLinesSink("-") as sink:
        sink.write(RECORD)
    sink.write_many([RECORD])
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [RECORD, RECORD]
    assert repr(sink) == "JsonLinesSink('standard output')"


PROGRAM = """
import itertools, sys
from rillet.errors import OutputError
from rillet.sink import JsonLinesSink
try:
    JsonLinesSink("-").write_many({"t": t} for t in itertools.count())
except OutputError as error:
    sys.stderr.write(f"{error.exit_code} {error}")
    sys.stderr.flush()
    import os
    os._exit(error.exit_code)
"""


def test_a_reader_that_goes_away_is_an_output_error():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b'{"t":0}\n'
        process.stdout.close()
        assert b"5 standard output: expected a writable file, found: Broken pipe" in (
            process.stderr.read()
        )
    assert process.returncode == 5


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
        f"rillet.{name}" for name in ("broker", "errors", "extras", "release", "sink", "table")
    )
    assert {name for name in own if not name.startswith(allowed)} == set()
    assert "rillet.errors" in own
