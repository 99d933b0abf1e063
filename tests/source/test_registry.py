"""The one door: format by name, standard input, and rows of a live pipe as they come."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
import threading

import numpy as np
import pytest

from helpers.sources import read
from rillet.cli import main
from rillet.errors import InputError, ParameterError
from rillet.source import open_source
from rillet.source.file import FileOptions
from rillet.testing import check_source


def values_of(path, column="x", **options):
    parts = [block.raw_values for block in read(path, column, **options)]
    return np.concatenate([np.empty(0), *parts]).tolist()


@pytest.fixture
def standard_input(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


CSV = "a,x\n1,2\n3,4\n"
JSON = '{"x": 2}\n{"x": 4}\n'


@pytest.mark.parametrize(
    ("name", "data"),
    [("d.csv", CSV), ("d.CSV", CSV), ("d.jsonl", JSON), ("d.ndjson", JSON), ("d.json", JSON)],
)
def test_the_name_tells_the_format(tmp_path, name, data):
    (tmp_path / name).write_text(data)
    assert values_of(tmp_path / name) == [2, 4]
    assert values_of(str(tmp_path / name), block_rows=1, start={"rows": 1}) == [4]


@pytest.mark.parametrize("name", ["d.parquet", "d.pq"])
def test_the_name_tells_parquet(tmp_path, name):
    with pytest.raises(InputError, match="readable Parquet file"):
        read(tmp_path / name, "x")


def test_an_unknown_ending_is_refused_unless_told(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text(CSV)
    with pytest.raises(InputError, match=r"\.csv, .*found '\.txt'; say which"):
        read(path, "x")
    assert values_of(path, format="csv") == [2, 4]
    path.write_text(JSON)
    assert values_of(path, format="jsonl") == [2, 4]


@pytest.mark.parametrize("format_", ["xlsx", ""])
def test_an_unknown_format_is_named(format_):
    with pytest.raises(ParameterError, match="format: expected one of auto, csv, jsonl, parquet"):
        read("-", "x", format=format_)


@pytest.mark.parametrize(
    ("options", "parameter"), [({"block_rows": 0}, "block_rows"), ({"delimiter": ""}, "delimiter")]
)
def test_wrong_parameters_are_named_before_anything_is_read(options, parameter):
    with pytest.raises(ParameterError, match=parameter):
        read("nowhere.csv", "x", **options)


@pytest.mark.parametrize("text", [CSV, JSON, "\ufeff" + CSV, "\ufeff" + JSON, " " + JSON])
def test_standard_input_shows_its_format(standard_input, text):
    standard_input(text)
    assert values_of("-") == [2, 4]
    assert not sys.stdin.closed


def test_standard_input_as_told(standard_input):
    standard_input("2\n4\n")
    assert values_of("-", None, format="jsonl") == [2, 4]
    standard_input("a;x\n1;2\n")
    assert values_of("-", format="csv", delimiter=";") == [2]
    standard_input("a;x\n1;2\n")
    assert values_of("-", delimiter=";") == [2]
    with pytest.raises(ParameterError, match="write Parquet to a file first"):
        read("-", "x", format="parquet")


def test_standard_input_passes_over_rows_it_is_told_to(standard_input):
    for start in ({"rows": 1}, {"rows": 1, "byte": 8}):
        standard_input(CSV)
        assert values_of("-", start=start) == [4]
    standard_input(CSV)
    with pytest.raises(InputError, match="standard input: expected 3 more rows"):
        values_of("-", start={"rows": 5})


def test_numbers_on_standard_input_are_not_taken_for_a_header(standard_input):
    standard_input("271.828\n3\n")
    with pytest.raises(InputError, match='format="jsonl"') as caught:
        read("-", None)
    assert "271.828" not in str(caught.value)


def test_empty_and_absent_standard_input(standard_input, monkeypatch):
    standard_input("")
    assert list(open_source({"path": "-", "column": "x"}).blocks()) == []
    standard_input("")
    with pytest.raises(InputError, match=r"standard input: .*an empty file"):
        read("-", "x", format="csv")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input: expected an open one"):
        read("-", "x")


PROGRAM = """
from rillet.source import open_source
for block in open_source({"path": "-", "column": "x"}).blocks():
    print(block.raw_values.tolist(), block.position["rows"], block.fraction, flush=True)
"""


def line_of(process):
    """The next line of output, or a failure instead of waiting for ever."""
    ready, _, _ = select.select([process.stdout], [], [], 60)
    if not ready:
        process.kill()
        pytest.fail("no row came out although the pipe held whole lines")
    return process.stdout.readline()


def test_rows_of_a_live_pipe_come_out_before_the_pipe_ends():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n1\n2\n3")
        process.stdin.flush()
        assert line_of(process) == b"[1.0, 2.0] 2 None\n"
        process.stdin.write(b"4\n")
        process.stdin.flush()
        assert line_of(process) == b"[34.0] 3 None\n"
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


def test_a_check_takes_nothing_from_a_pipe(tmp_path, standard_input):
    """Opening it would wait for its writer, and what is read is gone."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    source = open_source({"path": pipe, "column": "x"})
    source.check()  # nobody writes: this returns all the same
    with subprocess.Popen(["sh", "-c", f"printf 'x\\n1\\n2\\n' > '{pipe}'"]):
        source.check()
        assert [block.raw_values.tolist() for block in source.blocks()] == [[1, 2]]
    standard_input(CSV)
    open_source({"path": "-", "column": "x"}).check()
    assert values_of("-") == [2, 4]


def test_a_pipe_without_a_writer_can_be_stopped(tmp_path):
    pipe, stop = tmp_path / "pipe.csv", threading.Event()
    os.mkfifo(pipe)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(InputError, match="found none that is complete before the stop"):
        open_source({"path": pipe, "column": "x"}, stop=stop).blocks()


@pytest.mark.parametrize("follow", [False, True])
def test_a_check_of_a_file_reads_its_first_line_if_it_has_one(tmp_path, follow):
    path = tmp_path / "d.csv"
    options = {"path": path, "column": "x", "follow": follow}
    with pytest.raises(InputError, match="No such file"):
        open_source(options).check()
    path.write_text("a,b\n")
    with pytest.raises(InputError, match="expected a column 'x'"):
        open_source(options).check()
    path.write_text("a,")
    if follow:
        open_source(options).check()  # the header is still to come
    path.write_text("a,x\n")
    open_source(options).check()


OUTSIDE = """
import msgspec, numpy as np
from rillet.source import Block, Source

class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True,
              tag_field="kind", tag="counter"):
    rows: int

class Counter(Source):
    Options = Options
    replayable, redelivers = True, False
    def __init__(self, options, *, keys=None, stop=None):
        self.rows, self.stop = options.rows, stop
        self.name = self.identity = "counter"
    def check(self):
        pass
    def blocks(self, start=None, *, block_rows=None):
        row, step = start["rows"] if start else 0, block_rows or 100
        while row < self.rows and not (self.stop and self.stop.is_set()):
            end = min(row + step, self.rows)
            yield Block(np.arange(row, end, dtype=float), {"rows": end}, None, {"rows": row})
            row = end
"""


def test_a_source_of_another_package_is_found_by_its_name(tmp_path, monkeypatch):
    info = tmp_path / "counters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rillet.sources]\ncounter = counting_source:Counter\n")
    (tmp_path / "counting_source.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    table = {"kind": "counter", "rows": 30}
    check_source(lambda stop: open_source(table, stop=stop), np.arange(30.0))
    with pytest.raises(ParameterError, match=r"source\.row: .*did you mean rows\?"):
        open_source({"kind": "counter", "row": 3})
    # A whole run, from a configuration, with a state.
    (tmp_path / "run.toml").write_text(
        '[plan]\nmechanism = "baseline"\nepsilon = 1.0\nupper = 40\nlength = 100\n'
        '[source]\nkind = "counter"\nrows = 30\n[state]\nfolder = "live"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--config", "run.toml", "--quiet"]) == 0
    assert main(["run", "--config", "run.toml", "--quiet"]) == 0  # goes on, and finds nothing new


def test_an_unknown_kind_is_named():
    with pytest.raises(
        ParameterError, match=r"source\.kind: expected .* one of file, mqtt, http, found"
    ):
        open_source({"kind": "carrier pigeon"})


def test_a_struct_made_in_python_is_checked():
    with pytest.raises(ParameterError, match=r"source\.column: expected text or none, found 3"):
        open_source(FileOptions(path="d.csv", column=3))


def test_a_plan_loads_no_source():
    code = (
        "import sys, rillet\nrillet.Plan(epsilon=1.0, upper=1.0, length=10)\n"
        "print([name for name in ('ssl', 'rillet.source.file', 'rillet.source.mqtt') "
        "if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_named_pipe_is_a_file_without_size(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"printf 'x\\n1\\n2\\n' > '{pipe}'"]):
        assert values_of(pipe) == [1, 2]
