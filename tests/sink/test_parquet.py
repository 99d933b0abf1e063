"""A dataset of Parquet files: whole deliveries, whatever stops them, and nothing twice."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest

from rillet.errors import OutputError
from rillet.release import FIELDS, NUMBERS, Releases
from rillet.sink import make_sink
from sink.harness import ParquetHarness
from sink.tables import changed, table


def parquet(path, position=None):
    return make_sink({"kind": "parquet", "path": str(path)}).open(position)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_one_file_for_each_delivery_named_by_its_rows(tmp_path):
    harness = ParquetHarness(tmp_path)
    sink = harness.open()
    sink.deliver(table(names=("mean", "0.5")))
    sink.deliver(table(first=71, names=("mean", "0.5")))
    assert sink.position() == {"rows": 160}
    sink.close()
    assert names(harness.path) == [
        "000000000000-000000000080.parquet",
        "000000000080-000000000160.parquet",
    ]
    schema = pyarrow.parquet.read_schema(harness.path / names(harness.path)[0])
    assert schema.names == [field.name for field in FIELDS]
    types = {field.name: str(field.type) for field in schema}
    assert (types["key"], types["t"], types["name"]) == ("string", "int64", "string")
    assert types["at"] == "timestamp[us, tz=UTC]"
    assert {types[name] for name in NUMBERS} == {"double"}


def test_all_files_have_one_schema_whatever_the_keys_are(tmp_path):
    sink = parquet(tmp_path / "out")
    sink.deliver(table(((1,), (2,))))
    sink.deliver(table((("1", 2),)))
    sink.close()
    found = pyarrow.dataset.dataset(tmp_path / "out").to_table()
    assert set(found["key"].to_pylist()) == {"1", "2", '["1",2]'}


def test_a_kill_before_the_acknowledgement_leaves_one_set_of_rows(tmp_path):
    """The first delivery was cut in two files; the same rows come again in one piece, and more."""
    harness = ParquetHarness(tmp_path)
    whole = table(releases=30)
    sink = harness.open()
    sink.deliver(whole[:10])
    sink.deliver(whole[10:40])
    sink.close()
    kept = {path: path.stat().st_mtime_ns for path in harness.path.iterdir()}
    again = harness.open({"rows": 0})
    again.deliver(whole[:25])
    assert again.position() == {"rows": 25}
    again.deliver(whole[25:])
    again.close()
    assert harness.records() == harness.expected([whole])
    assert len(names(harness.path)) == 3
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # no file is changed


def test_what_was_being_written_is_not_seen_and_is_gone_at_the_next_start(tmp_path):
    harness = ParquetHarness(tmp_path)
    first = harness.open()
    first.deliver(table())
    first.close()
    (harness.path / ".unfinished").write_bytes(b"PAR1 torn")
    assert harness.records() == harness.expected([table()])
    again = harness.open({"rows": 40})
    assert names(harness.path) == ["000000000000-000000000040.parquet"]
    again.close()


def test_the_file_is_on_disk_before_it_has_its_name_and_the_name_before_it_returns(
    tmp_path, monkeypatch
):
    harness = ParquetHarness(tmp_path)
    sink = harness.open()
    calls = []
    real = os.fsync

    def sync(number):
        calls.append((str(Path(f"/proc/self/fd/{number}").readlink()), names(harness.path)))
        real(number)

    monkeypatch.setattr(os, "fsync", sync)
    sink.deliver(table())
    sink.close()
    assert calls == [
        (str(harness.path / ".unfinished"), [".unfinished"]),
        (str(harness.path), ["000000000000-000000000040.parquet"]),
    ]


def test_a_full_disk_leaves_what_was_there(tmp_path):
    harness = ParquetHarness(tmp_path)
    sink = harness.open()
    sink.deliver(table())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        for _ in range(2):
            with pytest.raises(
                OutputError, match=r"expected a writable folder of .*File too large"
            ):
                sink.deliver(table(first=71, releases=500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(harness.path) == ["000000000000-000000000040.parquet"]
    sink.deliver(table(first=71, releases=500))
    sink.close()
    assert harness.records() == harness.expected([table(), table(first=71, releases=500)])


def test_the_first_row_that_differs_is_named(tmp_path):
    sink = parquet(tmp_path / "out")
    sink.deliver(table(releases=500))
    sink.close()
    again = parquet(tmp_path / "out")
    with pytest.raises(OutputError, match=r'key \["south"\] at t = 417 '):
        again.deliver(changed(table(releases=500), 2 * (417 - 51) + 1, "clip_upper"))
    assert again.position() == {"rows": 0}
    again.close()


@pytest.mark.parametrize("lost", ["first", "second", "both"])
def test_lost_files_are_noticed(tmp_path, lost):
    harness = ParquetHarness(tmp_path)
    sink = harness.open()
    sink.deliver(table())
    sink.deliver(table(first=71))
    sink.close()
    for name in names(harness.path)[{"first": slice(1), "second": slice(1, 2)}.get(lost, slice(2))]:
        (harness.path / name).unlink()
    with pytest.raises(OutputError, match=r"found none that begins at row 0|at least 80 records"):
        harness.open({"rows": 80})


def test_a_damaged_or_shorter_file_is_noticed_where_it_is_compared(tmp_path):
    harness = ParquetHarness(tmp_path)
    sink = harness.open()
    sink.deliver(table())
    sink.close()
    (path,) = harness.path.iterdir()
    whole = path.read_bytes()
    damaged = whole[:40] + bytes(400) + whole[440:]
    path.write_bytes(damaged)
    for content in (damaged, whole[:100]):
        path.write_bytes(content)
        again = harness.open({"rows": 0})
        with pytest.raises(OutputError):
            again.deliver(table())
        again.close()
        assert path.read_bytes() == content
    pyarrow.parquet.write_table(table().to_arrow().slice(1), path)
    again = harness.open({"rows": 0})
    with pytest.raises(OutputError, match="expected at least 40 records"):
        again.deliver(table())
    again.close()


def test_only_one_writes_and_only_releases(tmp_path):
    first = parquet(tmp_path / "out")
    with pytest.raises(OutputError, match="expected to be the only one who writes"):
        parquet(tmp_path / "out")
    first.close()
    parquet(tmp_path / "out").close()
    (tmp_path / "out" / "mine.parquet").write_bytes(b"")
    with pytest.raises(OutputError, match=r"found mine.parquet in it; name another folder"):
        parquet(tmp_path / "out")
    with pytest.raises(OutputError, match="No such file or directory"):
        parquet(tmp_path / "nowhere" / "out")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(OutputError, match="Not a directory"):
        parquet(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(OutputError, match="found a symbolic link"):
        parquet(tmp_path / "link")


def test_checking_makes_nothing(tmp_path):
    make_sink({"kind": "parquet", "path": str(tmp_path / "out")}).check()
    assert not (tmp_path / "out").exists()
    with pytest.raises(OutputError, match="expected a folder to write to"):
        make_sink({"kind": "parquet", "path": str(tmp_path / "nowhere" / "out")}).check()


def fleet(keys, tick=1):
    random = np.random.default_rng(tick)
    count = len(keys)
    value = random.normal(size=count)
    columns = {"value": value, "noise_std": np.abs(value), "clip_upper": np.full(count, 50.0)}
    columns |= {"sum": random.normal(size=count), "count": random.normal(size=count)}
    at = np.full(count, 1_700_000_000_000_000 + tick)
    t = np.full(count, tick)
    return Releases(keys, np.arange(count), t, at, ("mean",), columns, "laplace")


def test_a_fleet_is_written_without_an_object_for_each_key(tmp_path):
    """At a second tick no text is made of any key: much less time than one look at each."""
    keys = tuple((f"meter {index}",) for index in range(200_000))
    sink = parquet(tmp_path / "out")
    sink.deliver(fleet(keys))
    begun = time.process_time()
    for tick in range(2, 5):
        sink.deliver(fleet(keys, tick))
    taken = (time.process_time() - begun) / 3 / len(keys)
    sink.close()
    assert taken < 3e-6  # seconds for a record, of which half is all that NumPy and Arrow need
    stored = pyarrow.dataset.dataset(tmp_path / "out").to_table(columns=["key", "t"])
    assert stored["key"].to_pylist()[:200_000] == [key for (key,) in keys]
    assert stored["t"].to_pylist() == np.repeat([1, 2, 3, 4], 200_000).tolist()
