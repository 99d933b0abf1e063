"""JSON lines: one line is one observation, and joining lines for speed changes nothing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.sources import read_json_lines
from rillet.errors import InputError, ParameterError
from rillet.source import json_lines


def values_of(path, column="x", **options):
    parts = [block.raw_values for block in read_json_lines(path, column, **options)]
    return np.concatenate([np.empty(0), *parts])


def write(folder, *rows):
    path = folder / "data.jsonl"
    path.write_bytes(
        b"".join(row if isinstance(row, bytes) else f"{row}\n".encode() for row in rows)
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12.5", 12.5),
        ("7", 7.0),
        ("-0.0", -0.0),
        ("1e400", math.inf),
        ("9" * 400, math.inf),
        ("-" + "9" * 5000, -math.inf),
        (str(2**53 + 1), float(2**53)),
        ("NaN", math.nan),
        ("-Infinity", -math.inf),
        ("null", math.nan),
        ("true", math.nan),
        ("[1]", math.nan),
        ('{"x": 1}', math.nan),
        ('" 12.5 "', 12.5),
        ('"abc"', math.nan),
        ('"\\ud800"', math.nan),
        ('"1_0"', math.nan),
        ('""', math.nan),
    ],
)
@pytest.mark.parametrize("other", ["1", "[]"])
def test_values(folder, value, expected, other):
    """``other`` with a bracket forces reading line by line; without, the lines are joined."""
    path = write(folder, '{"x": 1}', f'{{"a": {other}, "x": {value}}}', '{"x": 3}')
    np.testing.assert_array_equal(values_of(path), [1, expected, 3])


# What can go wrong at a joint: open and closed strings, objects, arrays, commas, several members.
FRAGMENTS = [
    *(
        '{"x":1}',
        '{"x":1',
        '"x":2}',
        '{"y":"',
        '"}',
        "}",
        "{",
        '{"x":"a}',
        '{y":3}',
        "1,2",
        "[",
        "]",
    ),
    *(
        '{"x":1},{"x":2}',
        '{"x":[{}',
        '{"d":1}]}',
        "",
        " ",
        "null",
        "5",
        '{"x":{"x":4}}',
        "{}",
        "\r",
    ),
    *('{"x":1}]', '[{"x":1}', '{"x":9},', ',{"x":9}', '"', "\\", '{"x":1}\x0b', '{"\xff":1,"x":2}'),
]


lines = st.one_of(st.sampled_from(FRAGMENTS), st.text('{}[]",:x1\\', max_size=8))
# Lines that start like an object are the ones that get joined.
objects = st.sampled_from([fragment for fragment in FRAGMENTS if fragment.startswith("{")])


@given(st.one_of(*(st.lists(line, min_size=1, max_size=6) for line in (lines, objects))))
@example(['{"x":1},{"y":2}', '{"a":[{}', '{"d":1}]}'])
@example(['{"x":1', '"y":2}'])
@example(['{"x":"a}', '{y":3}'])
@example(['{"x":1},{"x":2}', '{"x":3', '{"x":4}'])
@example(['{"x":1},{"x":2}', '{"x":3}'])
@example(['{"x":1', '"y":2}', "5,6"])
def test_joined_lines_are_read_as_each_line_alone(lines):
    encoded = [line.encode("latin-1") for line in lines]
    alone = [json_lines._record(line) for line in encoded]
    assert repr(json_lines._raw_records(encoded)) == repr(alone)


def test_plain_objects_are_read_in_one_call(monkeypatch):
    calls = []

    def counted(line, record=json_lines._record):
        calls.append(line)
        return record(line)

    monkeypatch.setattr(json_lines, "_record", counted)
    assert json_lines._raw_records([b'{"x":1}', b'{"x":2}']) == [{"x": 1.0}, {"x": 2.0}]
    assert len(calls) == 1


@given(body=st.binary(max_size=200), block_rows=st.integers(1, 5))
def test_any_bytes_give_one_number_to_each_line(folder, body, block_rows):
    path = write(folder, '{"x": 1}', body)
    expected = 1 + body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
    assert values_of(path, block_rows=block_rows).size == expected


@given(values=st.lists(st.floats(), min_size=1), block_rows=st.integers(1, 5))
def test_floats_come_back_exactly_and_positions_continue(folder, values, block_rows):
    path = write(folder, *(json.dumps({"t": 0, "x": value}) for value in values))
    np.testing.assert_array_equal(values_of(path), values)
    for block in read_json_lines(path, "x", block_rows=block_rows):
        rows = block.position["rows"]
        np.testing.assert_array_equal(values_of(path, start=block.position), values[rows:])
        np.testing.assert_array_equal(values_of(path, start={"rows": rows}), values[rows:])


def test_missing_fields_broken_lines_and_deep_nesting_are_nan(folder):
    deep = '{"x": ' + "[" * 100_000
    nested = '{"x": 5, "y": ' + '{"z": ' * 5000 + "1" + "}" * 5001
    path = write(folder, '{"x": 1}', "{}", "{", "", "5", deep, nested, '{"x": 2}')
    found = values_of(path)
    np.testing.assert_array_equal(found[[0, 1, 2, 3, 4, 5, 7]], [1, *[math.nan] * 5, 2])
    assert found.size == 8


def test_bare_numbers_need_no_column(folder):
    path = write(folder, "12.5", "abc", "null", "", "1e400", " 7 ")
    np.testing.assert_array_equal(
        values_of(path, None), [12.5, math.nan, math.nan, math.nan, math.inf, 7]
    )


def test_a_byte_order_mark_is_no_part_of_the_first_record(folder):
    assert values_of(write(folder, '\ufeff{"x": 1}', '{"x": 2}')).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("first", "column", "text"),
    [
        ('{"a": 271.828, "b": 2}', "x", "expected a column 'x', found 'a', 'b'"),
        ("{}", "x", "found no column"),
        ("271.828", "x", "expected a JSON object"),
        ("a,x", "x", "expected a JSON object"),
        ("minutes", None, "expected a number"),
        ("[271.828]", None, "expected a number"),
    ],
)
def test_the_first_record_stands_in_for_a_header(folder, first, column, text):
    with pytest.raises(InputError, match=r"data\.jsonl: ") as caught:
        read_json_lines(write(folder, first, "5"), column)
    assert text in str(caught.value)
    assert "271.828" not in str(caught.value)


@pytest.mark.parametrize("record", ['{"a": 1}', '{"a": 1, "b": 2}'])
def test_objects_need_a_column(folder, record):
    with pytest.raises(ParameterError, match="column: expected one of 'a'"):
        read_json_lines(write(folder, record))


def test_empty_and_missing_files(folder):
    # No record is none: by the clock that there are none is protected.
    assert list(read_json_lines(write(folder), "x")) == []
    with pytest.raises(InputError, match="No such file"):
        read_json_lines(folder / "nowhere.jsonl", "x")
    with pytest.raises(ParameterError, match="block_rows"):
        read_json_lines(write(folder, "{}"), "x", block_rows=0)
