"""Parquet: the schema decides before any row; no value raises."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import sys

import numpy as np
import pytest

from helpers.sources import read_parquet
from rillet.errors import InputError, MissingExtra, ParameterError
from rillet.source import DeclaredKeys

pa = pytest.importorskip("pyarrow", reason='type: pip install "rillet[parquet]"')
pq = pytest.importorskip("pyarrow.parquet")


def write(folder, column, *, row_group_size=None):
    path = folder / "data.parquet"
    pq.write_table(
        pa.table({"key": ["north"] * len(column), "x": column}), path, row_group_size=row_group_size
    )
    return path


def values_of(path, column="x", **options):
    parts = [block.raw_values for block in read_parquet(path, column, **options)]
    return np.concatenate([np.empty(0), *parts])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, None, math.nan, math.inf, -0.0]), [1.5, math.nan, math.nan, math.inf, 0]),
        (pa.array([1.5, None], pa.float32()), [1.5, math.nan]),
        (pa.array([1, None, 2**63 - 1]), [1, math.nan, 2.0**63]),
        (pa.array([0, 2**64 - 1], pa.uint64()), [0, 2.0**64]),
        (pa.array([decimal.Decimal("12.34"), None]), [12.34, math.nan]),
        (pa.array(["12.5", "abc", "", None, "1e400"]), [12.5, *[math.nan] * 3, math.inf]),
        (pa.array(["7", None], pa.large_string()), [7, math.nan]),
        (pa.array(["7", "8", None, "7"]).dictionary_encode(), [7, 8, math.nan, 7]),
        (pa.nulls(2), [math.nan, math.nan]),
    ],
)
def test_values(tmp_path, column, expected):
    found = values_of(write(tmp_path, column))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True]),
        pa.array([dt.date(2019, 2, 27)]),
        pa.array([[271.828]]),
        pa.array([b"1"]),
    ],
)
def test_other_types_are_refused_by_the_schema(tmp_path, column):
    with pytest.raises(InputError, match="expected numbers or text") as caught:
        read_parquet(write(tmp_path, column), "x")
    assert f"found the type {column.type}".split("<")[0] in str(caught.value)
    assert "271.828" not in str(caught.value)


@pytest.mark.parametrize("row_group_size", [3, 7, 100])
@pytest.mark.parametrize("block_rows", [1, 4, 1000])
def test_blocks_positions_and_row_groups(tmp_path, row_group_size, block_rows):
    path = write(tmp_path, np.arange(20.0), row_group_size=row_group_size)
    blocks = list(read_parquet(path, "x", block_rows=block_rows))
    assert np.concatenate(blocks).tolist() == list(range(20))
    assert all(0 < len(block) <= block_rows for block in blocks)
    assert blocks[-1].position == {"rows": 20}
    assert blocks[-1].fraction == 1.0
    for rows in range(21):
        rest = values_of(path, start={"rows": rows}, block_rows=block_rows)
        assert rest.tolist() == list(range(rows, 20))


def test_no_rows(tmp_path):
    assert list(read_parquet(write(tmp_path, np.empty(0)), "x")) == []


def test_columns(tmp_path):
    path = write(tmp_path, np.arange(3.0))
    with pytest.raises(InputError, match="expected a column 'y', found 'key', 'x'"):
        read_parquet(path, "y")
    with pytest.raises(ParameterError, match="column: expected one of 'key', 'x'"):
        read_parquet(path)
    with pytest.raises(ParameterError, match="block_rows"):
        read_parquet(path, "x", block_rows=0)
    pq.write_table(pa.table({"only": [1.0]}), path)
    assert values_of(path, None).tolist() == [1]


def test_files_that_are_not_there_or_not_parquet(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_parquet(tmp_path / "nowhere.parquet", "x")
    path = tmp_path / "data.parquet"
    path.write_bytes(b"x\n271.828\n")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_parquet(path, "x")


def test_a_damaged_page_is_an_input_error_that_quotes_nothing(tmp_path):
    path = write(tmp_path, np.linspace(0, 1, 10_000))
    data = bytearray(path.read_bytes())
    data[4:5000] = b"\xff" * 4996
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged") as caught:
        values_of(path)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_position_behind_the_end_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected at least 4 rows"):
        read_parquet(write(tmp_path, np.arange(3.0)), "x", start={"rows": 4})


def test_without_pyarrow_the_error_says_what_to_type(tmp_path, monkeypatch):
    path = write(tmp_path, np.arange(3.0))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r'pip install "rillet\[parquet\]"'):
        read_parquet(path, "x")


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_text_that_is_not_utf_8_is_a_cell_like_any_other(tmp_path, kind):
    """Nobody's broken text stops the run for all others."""
    raw = pa.array([b"1.5", b"\xff\xfe", b"", b"2.5", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 5, raw.buffers())
    if kind == "dictionary":
        text = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None]), text[:4])
    elif kind == "large_string":
        text = text.cast(pa.large_string(), safe=False)
    numbers = pa.array(["1", "2", "3", "4", "5"])
    pq.write_table(pa.table({"x": text, "n": numbers}), tmp_path / "d.parquet")
    keys = DeclaredKeys([("1.5",), ("2.5",)])
    (block,) = read_parquet(tmp_path / "d.parquet", "x", keys=keys, key_columns=["x"], sequence="n")
    np.testing.assert_array_equal(block.raw_values, [1.5, math.nan, math.nan, 2.5, math.nan])
    assert block.key_of.tolist() == [0, -1, -1, 1, -1]


def test_the_only_column_must_be_named_if_it_is_text(tmp_path):
    pq.write_table(pa.table({"name": ["1", "2"]}), tmp_path / "d.parquet")
    with pytest.raises(ParameterError, match=r"^column: expected .* holds text, .*name it: 'name'"):
        read_parquet(tmp_path / "d.parquet")
    assert values_of(tmp_path / "d.parquet", "name").tolist() == [1, 2]
