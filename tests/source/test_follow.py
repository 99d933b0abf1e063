"""A growing file: every whole line once, nothing torn, and no surprise when the file is changed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from helpers.sources import read
from rillet.errors import InputError, ParameterError
from rillet.source import DeclaredKeys, lines

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lines, "POLL_SECONDS", 0.01)


def add(path, text):
    with path.open("a") as stream:
        stream.write(text)


class Reader:
    """Reads in a thread until stopped; ``wait_for(n)`` until so many rows have come."""

    def __init__(self, path, **options):
        self.stop = threading.Event()
        self.blocks = []
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(path,), kwargs=options)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def _run(self, path, **options):
        try:
            for block in read(path, "x", follow=True, stop=self.stop, **options):
                self.blocks.append(block)
        except InputError as error:
            self.error = error

    @property
    def values(self):
        return np.concatenate([np.empty(0), *self.blocks]).tolist()

    def wait_for(self, rows):
        end = time.monotonic() + PATIENCE
        while sum(map(len, self.blocks)) < rows:
            assert self.error is None, self.error
            assert time.monotonic() < end, f"only {self.values} came"
            time.sleep(0.005)

    def wait_for_error(self):
        self.thread.join(PATIENCE)
        assert self.error is not None
        return str(self.error)


@pytest.mark.parametrize(
    ("name", "head", "row"), [("d.csv", "a,x\n", "n,{}\n"), ("d.jsonl", "", '{{"x": {}}}\n')]
)
def test_rows_come_as_they_are_appended_and_never_torn(tmp_path, name, head, row):
    path = tmp_path / name
    path.write_text(head + row.format(1) + row.format(2))
    with Reader(path) as reader:
        reader.wait_for(2)
        torn = row.format(345)
        add(path, torn[:-3])  # cut inside the number, which would read as another one
        time.sleep(0.1)
        assert reader.values == [1, 2]
        add(path, torn[-3:] + row.format(6))
        reader.wait_for(4)
        assert reader.values == [1, 2, 345, 6]
        add(path, row.format(7).rstrip("\n"))
        time.sleep(0.05)
    assert reader.error is None
    assert reader.values == [1, 2, 345, 6]
    last = reader.blocks[-1]
    assert last.fraction is None
    assert last.position["byte"] == path.stat().st_size - len(row.format(7)) + 1
    add(path, "\n")
    with Reader(path, start=last.position) as again:
        again.wait_for(1)
    assert again.values == [7]
    assert again.blocks[0].start == last.position


def test_the_line_ends_of_another_process(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("k,x,n\n")
    program = (
        "import sys, time\n"
        "for i in range(300):\n"
        "    line = f'{\"ab\"[i % 2]},{i}.5,{i}\\n'\n"
        "    for part in (line[:3], line[3:]):\n"
        "        sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.0005)\n"
    )
    options = {
        "keys": DeclaredKeys([("a",), ("b",)]),
        "key_columns": ["k"],
        "sequence": "n",
        "block_rows": 7,
    }
    with Reader(path, **options) as reader:
        with path.open("ab") as out:
            subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
        reader.wait_for(300)
    assert reader.values == [i + 0.5 for i in range(300)]
    assert np.concatenate([b.key_of for b in reader.blocks]).tolist() == [0, 1] * 150
    assert np.concatenate([b.sequence for b in reader.blocks]).tolist() == list(range(300))
    assert max(map(len, reader.blocks)) <= 7
    places = [{"rows": 0, "byte": 6}, *(block.position for block in reader.blocks)]
    assert [block.start for block in reader.blocks] == places[:-1]


def test_a_file_that_is_written_anew_and_longer_is_refused(tmp_path, monkeypatch):
    """It never looks shorter: only its content tells."""
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n2\n3\n")
    with Reader(path) as reader:
        reader.wait_for(3)
        monkeypatch.setattr(lines, "POLL_SECONDS", 0.3)
        time.sleep(0.1)
        path.write_text("x\n4\n5\n6\n7\n8\n9\n")
        message = reader.wait_for_error()
    assert "found other content where it was read before" in message
    assert reader.values == [1, 2, 3]


def test_a_file_that_shrinks_is_refused(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n2\n3\n")
    with Reader(path) as reader:
        reader.wait_for(3)
        path.write_text("x\n4\n")
        message = reader.wait_for_error()
    assert "expected a file that only grows, found it cut" in message
    assert reader.values == [1, 2, 3]


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_is_replaced_is_refused_after_its_last_line(tmp_path, there):
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n")
    with Reader(path) as reader:
        reader.wait_for(1)
        with path.open("a") as old:
            if there:
                other = tmp_path / "other.csv"
                other.write_text("x\n" + "8\n" * 50)
                other.rename(path)
            else:
                path.unlink()
            old.write("2\n")
        message = reader.wait_for_error()
    assert f"found {'another one' if there else 'none'} under its name" in message
    # What was written before the change was noticed may be taken; what is in the other may not.
    assert reader.values in ([1], [1, 2])


def test_the_first_line_is_waited_for(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,")
    with Reader(path) as reader:
        time.sleep(0.05)
        assert reader.thread.is_alive()
        add(path, "x\n1,2\n")
        reader.wait_for(1)
    assert reader.values == [2]
    path.write_text("a,")
    with Reader(path) as reader:
        time.sleep(0.05)
        reader.stop.set()
        assert "none that is complete before the stop" in reader.wait_for_error()


def test_a_followed_file_is_continued_at_a_line_only(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n2")
    (block,) = read(path, "x")
    assert len(block) == 2
    with pytest.raises(InputError, match="its last line has grown"):
        read(path, "x", start=block.position, follow=True)


def test_waiting_takes_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "POLL_SECONDS", 0.05)
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n")
    with Reader(path) as reader:
        reader.wait_for(1)
        begun = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - begun < 0.2


@pytest.mark.parametrize("path", ["-", "fifo"])
def test_only_files_are_followed(tmp_path, path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n1\n")))
    if path == "fifo":
        path = tmp_path / "d.csv"
        os.mkfifo(path)
        threading.Thread(target=lambda: path.open("wb").close(), daemon=True).start()
    with pytest.raises(ParameterError, match=r"^follow: expected a regular file"):
        read(path, "x", format="csv", follow=True)


def test_parquet_is_not_followed(tmp_path):
    with pytest.raises(ParameterError, match=r"^source\.follow: expected false for Parquet"):
        read(tmp_path / "d.parquet", "x", follow=True)


# --- stop -------------------------------------------------------------------------------------


def write_parquet(path):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"x": range(9)}), path)


def write_csv(path):
    path.write_text("x\n" + "".join(f"{i}\n" for i in range(9)))


@pytest.mark.parametrize(("name", "write"), [("d.csv", write_csv), ("d.parquet", write_parquet)])
def test_a_source_ends_between_two_blocks(tmp_path, name, write):
    write(tmp_path / name)
    stop = threading.Event()
    blocks = read(tmp_path / name, "x", block_rows=2, stop=stop)
    assert next(blocks).raw_values.tolist() == [0, 1]
    assert next(blocks).raw_values.tolist() == [2, 3]
    stop.set()
    assert list(blocks) == []
    assert list(read(tmp_path / name, "x", stop=stop)) == []


def test_a_silent_pipe_can_be_stopped():
    program = (
        "import threading\nfrom rillet.source import open_source\n"
        "stop = threading.Event()\n"
        "for block in open_source({'path': '-', 'column': 'x'}, stop=stop).blocks():\n"
        "    print(block.raw_values.tolist(), flush=True)\n"
        "    threading.Timer(0.1, stop.set).start()\n"
        "print('stopped')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        process.stdin.write(b"x\n1\n2")
        process.stdin.flush()
        try:
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
        assert process.stdout.read() == b"[1.0]\nstopped\n"
