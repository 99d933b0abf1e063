"""CSV: one line is one observation, whatever is in it."""

from __future__ import annotations

import csv
import io
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.sources import read_csv
from rillet.errors import InputError, ParameterError
from rillet.source import lines

WEIRD_CELLS = [
    *("", " ", "nan", "-NaN", "inf", "-Infinity", "abc", "1e400", "-1e400", "1e-400", "-0"),
    *("12.5", " 7 ", "+3", ".5", "5.", "0x10", "1_000", "1 2", "٣", "½", "1,5", '"', '""', '"7"'),
    *(
        "null",
        "None",
        "true",
        "\x00",
        "1\x00",
        "\ufeff1",
        "9" * 400,
        "1;2",
        "'1'",
        "\u2028",
        "=1+1",
    ),
]


def column(path, name="x", **options):
    blocks = list(read_csv(path, name, **options))
    return np.concatenate([block.raw_values for block in blocks]) if blocks else np.empty(0)


def write(folder, data):
    path = folder / "data.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("csv")


def plain_float(text):
    """An independent reading of a cell: Python's float, without underscores or wide digits."""
    try:
        return math.nan if "_" in text or not text.isascii() else float(text)
    except ValueError:
        return math.nan


cells = st.one_of(
    st.sampled_from(WEIRD_CELLS),
    st.floats().map(repr),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
)


@given(rows=st.lists(st.tuples(cells, cells, cells), max_size=30), place=st.integers(0, 2))
def test_every_cell_is_read_as_the_csv_module_cuts_it(folder, rows, place):
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow("abc")
    writer.writerows(rows)
    values = column(write(folder, text.getvalue()), "abc"[place], block_rows=7)
    expected = [plain_float(row[place]) for row in rows]
    np.testing.assert_array_equal(values, expected)


@given(rows=st.lists(st.text('",;1. ab', max_size=12), max_size=20), place=st.integers(0, 3))
@example(rows=['"1,2', "3,4"], place=0)
@example(rows=['1,"2""3",4', '"1"2,3'], place=1)
@example(rows=["1,2", '"'], place=0)
@example(rows=['"1', '2,"3'], place=0)
def test_lines_that_no_writer_makes_are_cut_as_the_csv_module_cuts_each_alone(folder, rows, place):
    values = column(write(folder, "a,b,c,d\n" + "".join(f"{row}\n" for row in rows)), "abcd"[place])
    expected = []
    for row in rows:
        cut = next(csv.reader([row]), [])
        expected.append(plain_float(cut[place]) if place < len(cut) else math.nan)
    np.testing.assert_array_equal(values, expected)


@given(body=st.binary(max_size=300), block_rows=st.integers(1, 5))
def test_any_bytes_give_one_number_to_each_line(folder, body, block_rows):
    values = column(write(folder, b"a,x\n" + body), block_rows=block_rows)
    assert values.size == body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
    assert values.dtype == np.float64


@given(
    rows=st.lists(st.binary(max_size=20).map(lambda row: row.replace(b"\n", b"")), min_size=1),
    other=st.binary(max_size=20).map(lambda row: row.replace(b"\n", b"")),
    data=st.data(),
)
@example(rows=[b"1,2", b"3,4"], other=b'"1,2', data=None)
def test_a_line_changes_its_own_observation_only(folder, rows, other, data):
    """Neighbouring files give neighbouring streams: the unit of privacy is the line."""
    place = 0 if data is None else data.draw(st.integers(0, len(rows) - 1))
    before = column(write(folder, b"a,x\n" + b"".join(row + b"\n" for row in rows)))
    rows = [*rows[:place], other, *rows[place + 1 :]]
    after = column(write(folder, b"a,x\n" + b"".join(row + b"\n" for row in rows)))
    keep = np.arange(len(rows)) != place
    np.testing.assert_array_equal(before[keep], after[keep])


@pytest.mark.parametrize("cell", WEIRD_CELLS)
def test_a_bare_weird_cell_neither_raises_nor_moves_its_neighbours(folder, cell):
    values = column(write(folder, f"x,y\n1,a\n{cell},b\n3,c\n"))
    assert values.size == 3
    assert values[0] == 1
    assert values[2] == 3


def test_numbers_are_the_nearest_doubles_and_overflow_is_infinite(folder):
    values = column(write(folder, "x\n0.1\n1e400\n-1e400\n-0\n5e-324\n1_0\n"))
    np.testing.assert_array_equal(values, [0.1, math.inf, -math.inf, 0.0, 5e-324, math.nan])
    assert math.copysign(1, values[3]) == -1


def test_short_lines_and_empty_lines_are_observations(folder):
    values = column(write(folder, "a,x\n1,2\n3\n\n4,5,6\n"))
    np.testing.assert_array_equal(values, [2, math.nan, math.nan, 5])


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_may_end_or_not(folder, end):
    assert column(write(folder, "x\n1\n2" + end)).tolist() == [1, 2]


def test_a_header_alone_is_an_empty_stream(folder):
    assert list(read_csv(write(folder, "x\n"), "x")) == []


@pytest.mark.parametrize("data", ["\ufeffx,y\n1,2\n", "x,y\r\n1,2\r\n", '"x","y"\n"1","2"\n'])
@pytest.mark.parametrize(("name", "value"), [("x", 1), ("y", 2)])
def test_byte_order_mark_windows_lines_and_quotes(folder, data, name, value):
    assert column(write(folder, data), name).tolist() == [value]


def test_names_with_quotes_delimiters_and_spaces(folder):
    path = write(folder, ' a ,"b,""c""",x\n1,2,3\n')
    assert column(path, "a").tolist() == [1]
    assert column(path, 'b,"c"').tolist() == [2]
    assert column(path, "x").tolist() == [3]


def test_other_delimiters(folder):
    assert column(write(folder, 'a;x\n1,5;"2;"\n3;4\n'), delimiter=";")[1] == 4
    assert column(write(folder, "a\tx\n1\t2\n"), delimiter="\t").tolist() == [2]


def test_the_only_column_needs_no_name(folder):
    assert column(write(folder, "minutes\n12.5\n"), None).tolist() == [12.5]


@given(
    body=st.text('1,."\r\n', max_size=60).map(str.encode),
    block_rows=st.integers(1, 5),
    chunk=st.sampled_from([1, 2, 3, 7, 64]),
)
def test_blocks_and_chunks_do_not_matter(folder, body, block_rows, chunk):
    path = write(folder, b"a,x\n" + body)
    whole = column(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        blocks = list(read_csv(path, "x", block_rows=block_rows))
    assert all(0 < len(block) <= block_rows for block in blocks)
    parts = [block.raw_values for block in blocks]
    np.testing.assert_array_equal(np.concatenate([np.empty(0), *parts]), whole)


@given(body=st.text('1,."\r\n', max_size=60).map(str.encode), block_rows=st.integers(1, 5))
def test_every_position_continues_where_it_says(folder, body, block_rows):
    path = write(folder, b"\xef\xbb\xbfa,x\n" + body)
    whole = column(path)
    for block in read_csv(path, "x", block_rows=block_rows):
        rows = block.position["rows"]
        for start in (block.position, {"rows": rows}):
            rest = list(read_csv(path, "x", start=start))
            parts = [part.raw_values for part in rest]
            np.testing.assert_array_equal(np.concatenate([np.empty(0), *parts]), whole[rows:])
            end = {"rows": whole.size, "byte": path.stat().st_size}
            assert all(part.position == end for part in rest[-1:])


def test_position_and_fraction_reach_the_end(folder):
    path = write(folder, "x\n" + "1.5\n" * 100)
    blocks = list(read_csv(path, "x", block_rows=30))
    assert [block.position["rows"] for block in blocks] == [30, 60, 90, 100]
    assert blocks[-1].position["byte"] == path.stat().st_size
    assert blocks[-1].fraction == 1.0
    assert blocks[0].fraction == pytest.approx(122 / 402)


def test_rows_appended_later_are_read_from_the_old_position(folder):
    path = write(folder, "x\n1\n2\n")
    *_, last = read_csv(path, "x")
    with path.open("a") as stream:
        stream.write("3\n4")
    assert column(path, start=last.position).tolist() == [3, 4]


def test_a_position_that_does_not_fit_is_refused(folder):
    path = write(folder, "x\n10\n20\n30\n")
    *_, last = read_csv(path, "x")
    for changed, found in (
        ("x\n10\n", "found one that is too short"),
        ("a long name,x\n1,2\n", "found one that is too short"),
        ("x\n10\n20\n301\n4\n", "found the middle of one"),
    ):
        write(folder, changed)
        with pytest.raises(InputError, match=rf"data\.csv: expected .*{found}") as caught:
            read_csv(path, "x", start=last.position)
        said = str(caught.value).removeprefix(str(path))
        assert not any(digit in said for digit in "0123456789")  # where rows lie is private
    write(folder, "x\n10\n20\n")
    with pytest.raises(InputError, match="1 more rows"):
        list(read_csv(path, "x", start={"rows": 3}))


@pytest.mark.parametrize("chunk", [16, 1 << 20])
def test_a_line_without_end_is_one_observation_without_a_number(folder, chunk, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 100)
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk)
    long = "1" * 300  # many chunks, so that its beginning is dropped before its end is seen
    data = f"x\n1\n{long}\n2\n{long}\n{long}"
    blocks = list(read_csv(write(folder, data), "x", block_rows=1))
    values = np.concatenate([block.raw_values for block in blocks])
    np.testing.assert_array_equal(values, [1, math.nan, 2, math.nan, math.nan])
    assert [block.position["byte"] for block in blocks] == [4, 305, 307, 608, 908]
    assert column(write(folder, "x\n" + "1" * 100)).tolist() == [float("1" * 100)]
    assert math.isnan(column(write(folder, "x\n" + "1" * 101 + "\n")).item())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "found an empty file"),
        ("\n1\n", "found an empty line"),
        ("a,b\n1,2\n", "expected a column 'x', found 2 with other names;"),
        ("x,x\n1,2\n", "expected one column 'x', found several"),
        ("x\n1\n".encode("utf-16"), "found UTF-16"),
        ("x\r1\r2\r", "carriage returns"),
        ("x" * (1 << 20 | 1), "found a longer one"),
    ],
)
def test_what_is_public_and_wrong_is_said_at_once(folder, data, text):
    with pytest.raises(InputError, match=r"data\.csv: ") as caught:
        read_csv(write(folder, data), "x")
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["x", None])
@pytest.mark.parametrize("row", ["north,271.828", "north,ill", "2026-01-01,yes,271.828"])
def test_a_file_without_header_does_not_leak_its_first_row(folder, name, row):
    with pytest.raises((InputError, ParameterError)) as caught:
        read_csv(write(folder, f"{row}\nsouth,2\n"), name)
    assert not any(cell in str(caught.value) for cell in row.split(","))


def test_a_name_that_is_nearly_right_is_told(folder):
    with pytest.raises(InputError, match=r"found 2 with other names; did you mean 'minutes'\?"):
        read_csv(write(folder, "line,minutes\n"), "minute")


def test_several_columns_need_a_name(folder):
    expected = r"column: expected one of the 2 columns of .*nothing; "
    with pytest.raises(ParameterError, match=expected):
        read_csv(write(folder, "a,b\n"))


@pytest.mark.parametrize(
    ("header", "delimiter", "right"),
    [("a;x", ",", ";"), ("a\tx", ",", "\t"), ("a|x", ";", "|"), ("a,x", ";", ",")],
)
@pytest.mark.parametrize("name", ["x", None])
def test_a_wrong_delimiter_is_refused_before_anything_is_spent(
    folder, header, delimiter, right, name
):
    path = write(folder, header + "\n" + header.replace("a", "1").replace("x", "2") + "\n")
    with pytest.raises(ParameterError, match=r"delimiter: expected the character between") as found:
        read_csv(path, name, delimiter=delimiter)
    assert f"it has {right!r} in its only name" in str(found.value)
    assert column(path, delimiter=right).tolist() == [2]
    # Whoever names such a column means it.
    assert column(path, header, delimiter=delimiter).size == 1


def test_missing_file_and_folder(folder):
    with pytest.raises(InputError, match="No such file"):
        read_csv(folder / "nowhere.csv", "x")
    with pytest.raises(InputError, match="Is a directory"):
        read_csv(folder, "x")


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        *(({"block_rows": value}, "block_rows") for value in (0, -1, 1.5, True)),
        *(
            ({"delimiter": value}, "delimiter")
            for value in ("", ",,", "e", "1", "-", '"', "\n", "é")
        ),
        ({"column": 3}, "column"),
    ],
)
def test_wrong_parameters_are_named(folder, options, parameter):
    path = write(folder, "x\n1\n")
    with pytest.raises(ParameterError, match=rf"^source\.{parameter}: expected"):
        read_csv(path, **{"column": "x", **options})


@pytest.mark.parametrize(
    "start", [{"rows": -1}, {"rows": 1, "byte": -1}, {"rows": True}, {"rows": 1.0}, {"t": 1}]
)
def test_what_is_no_position_is_refused(folder, start):
    with pytest.raises(ParameterError, match=r"^start: expected a position in lines of text"):
        read_csv(write(folder, "x\n1\n2\n"), "x", start=start)


def test_a_block_is_an_array_and_its_repr_holds_no_value(folder):
    (block,) = read_csv(write(folder, "x\n271.828\n"), "x")
    assert "271.828" not in repr(block)
    assert np.asarray(block).tolist() == [271.828]
    assert np.asarray(block) is block.raw_values
    assert np.array(block) is not block.raw_values
    assert np.asarray(block, dtype=np.float32).dtype == np.float32


def test_an_iterator_left_early_closes_its_file(folder):
    """A file left open would warn, and warnings fail the test."""
    path = write(folder, "x\n1\n2\n")
    read_csv(path, "x")
    iterator = read_csv(path, "x", block_rows=1)
    next(iterator)
    del iterator


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(rows):
        path = write(tmp_path, "a,x\n" + "north,12.345678\n" * rows)
        tracemalloc.start()
        try:
            assert sum(len(block) for block in read_csv(path, "x")) == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(300_000), peak(600_000)
    assert large < small * 1.1


def test_a_decimal_comma_where_it_is_declared(folder):
    path = write(folder, "line;x\nnorth;12,5\nsouth;1.5\neast;1.234,5\nwest;\n")
    found = column(path, delimiter=";", decimal=",")
    assert found[:2].tolist() == [12.5, 1.5]
    assert np.isnan(found[2:]).all()
    assert np.isnan(column(path, delimiter=";")[0])
    with pytest.raises(ParameterError, match="delimiter: expected another character than decimal"):
        column(path, decimal=",")
