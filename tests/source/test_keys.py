"""Declared keys and sequence numbers: found in the cells, and never a reason to raise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.sources import read
from rillet.errors import InputError, ParameterError
from rillet.source import UNDECLARED, DeclaredKeys, lines
from rillet.source.keys import RawTexts, sequence_numbers

KEYS = DeclaredKeys([("north", 1), ("north", 2), ("süd", 1)])
ROWS = [
    ("north", "1", 1.5, 7),
    ("süd", "1", 2.5, 8),
    ("west", "1", 3.5, 9),
    (" north ", " 2", 4.5, 10),
    ("north", "02", 5.5, 11),
    ("", "", 6.5, 12),
    ("north", "1", 7.5, None),
]
PLACES = [0, 2, UNDECLARED, 1, UNDECLARED, UNDECLARED, 0]
SEQUENCE = [7, 8, 9, 10, 11, 12, -1]


def write_csv(folder, delimiter=","):
    text = "".join(f"{a},{b},{x},{'' if n is None else n}\n" for a, b, x, n in ROWS)
    (folder / "d.csv").write_text("line,stop,x,n\n" + text)
    return folder / "d.csv"


def write_jsonl(folder):
    records = [{"line": a, "stop": b, "x": x, "n": n} for a, b, x, n in ROWS]
    records[0]["stop"] = 1  # a number where the others have text
    (folder / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "d.jsonl"


def write_parquet(folder):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ("line", "stop", "x", "n")
    columns = dict(zip(names, zip(*ROWS, strict=True), strict=True))
    table = arrow.table({**columns, "line": arrow.array(columns["line"]).dictionary_encode()})
    parquet.write_table(table, folder / "d.parquet")
    return folder / "d.parquet"


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
@pytest.mark.parametrize("block_rows", [1, 3, 100])
def test_keys_and_sequence_numbers_of_each_format(tmp_path, write, block_rows):
    path = write(tmp_path)
    options = {"keys": KEYS, "key_columns": ["line", "stop"], "sequence": "n"}
    blocks = list(read(path, "x", block_rows=block_rows, **options))
    assert [len(block) for block in blocks] == [
        min(block_rows, 7 - first) for first in range(0, 7, block_rows)
    ]
    np.testing.assert_array_equal(np.concatenate([b.key_of for b in blocks]), PLACES)
    np.testing.assert_array_equal(np.concatenate([b.sequence for b in blocks]), SEQUENCE)
    np.testing.assert_array_equal(np.concatenate(blocks), [row[2] for row in ROWS])
    assert (
        {b.key_of.dtype for b in blocks} == {b.sequence.dtype for b in blocks} == {np.dtype("i8")}
    )
    for block in blocks:  # each block again, from the place in front of it
        again = next(read(path, "x", start=block.start, block_rows=len(block), **options))
        np.testing.assert_array_equal(again.key_of, block.key_of)
        np.testing.assert_array_equal(again.raw_values, block.raw_values)
        assert (again.start, again.position) == (block.start, block.position)


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
def test_nothing_is_given_that_was_not_asked_for(tmp_path, write):
    (block,) = read(write(tmp_path), "x")
    assert block.key_of is None
    assert block.sequence is None
    (block,) = read(write(tmp_path), "x", sequence="n")
    assert block.key_of is None
    assert block.sequence.tolist() == SEQUENCE


def test_the_repr_of_a_block_holds_neither_keys_nor_sequence_numbers(tmp_path):
    (tmp_path / "d.csv").write_text("k,x,n\n" + "b,1,271828\n" * 3)
    keys = DeclaredKeys([("a",), ("b",)])
    (block,) = read(tmp_path / "d.csv", "x", keys=keys, key_columns=["k"], sequence="n")
    assert block.sequence.tolist() == [271828] * 3
    assert "271828" not in repr(block)
    assert "array" not in repr(block)


@given(
    cells=st.lists(st.binary(max_size=6).map(lambda cell: cell.replace(b"\n", b"")), min_size=1),
    declared=st.sets(st.text("ab1 é", min_size=1).filter(str.strip), min_size=1),
)
@example(cells=[b" a", b"a\r", b"\xff", b"a\x00", b""], declared={"a"})
def test_places_are_those_of_a_plain_search(cells, declared):
    texts = {text.strip() for text in declared}
    keys = DeclaredKeys([(text,) for text in sorted(texts)])
    plain = [text.encode() for text in sorted(texts)]
    expected = [
        plain.index(cell.strip()) if cell.strip() in plain else UNDECLARED for cell in cells
    ]
    assert keys.indexes(cells).tolist() == expected
    pairs = DeclaredKeys([(text, 5) for text in sorted(texts)])
    assert pairs.indexes(cells, [b"5"] * len(cells)).tolist() == expected
    assert pairs.indexes(cells, [b"6"] * len(cells)).tolist() == [UNDECLARED] * len(cells)


@given(body=st.text('ab,1." \r\n', max_size=60).map(str.encode), chunk=st.sampled_from([1, 7, 99]))
@example(body=b"a,1\nb,2,3,4\n", chunk=99)  # as many cells as two regular lines
@example(body=b"a,1,2\nb,3,4\n", chunk=99)
def test_one_cut_for_all_lines_is_the_same_as_one_for_each(tmp_path_factory, body, chunk):
    """A block of several lines may be cut at once, a block of one line in its own way."""
    path = tmp_path_factory.getbasetemp() / "cut.csv"
    path.write_bytes(b"k,x,n\n" + body)
    options = {
        "keys": DeclaredKeys([("a",), ("b",), (1,)]),
        "key_columns": ["k"],
        "sequence": "n",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        whole = list(read(path, "x", **options))
        single = list(read(path, "x", block_rows=1, **options))
    for name in ("raw_values", "key_of", "sequence"):
        together = [getattr(block, name) for block in whole]
        apart = [getattr(block, name) for block in single]
        assert len(together) <= 1
        np.testing.assert_array_equal(
            np.concatenate([np.empty(0), *together]), np.concatenate([np.empty(0), *apart])
        )


@pytest.mark.parametrize("column", ["key", "sequence"])
def test_weird_cells_neither_raise_nor_move_their_neighbours(tmp_path, column):
    weird = [
        "",
        "\x00",
        "9" * 30,
        "9" * 5000,
        "1_0",
        "-1",
        "1.0",
        "٣",
        "nan",
        '"',
        "\ufeffa",
        "a a",
    ]
    path = tmp_path / "d.csv"
    if column == "key":
        path.write_text("k,x,n\n" + "".join(f"a,1,1\n{cell},2,2\na,3,3\n" for cell in weird))
    else:
        path.write_text("k,x,n\n" + "".join(f"a,1,1\na,2,{cell}\na,3,3\n" for cell in weird))
    keys = DeclaredKeys([("a",)])
    (block,) = read(path, "x", keys=keys, key_columns=["k"], sequence="n")
    middle = np.arange(len(block)) % 3 == 1
    assert set(block.key_of[~middle]) == {0}
    assert set(block.sequence[~middle]) == {1, 3}
    odd = block.key_of if column == "key" else block.sequence
    assert set(odd[middle]) == {-1}


@given(st.lists(st.one_of(st.integers(-(10**20), 10**20).map(str), st.text(max_size=5))))
def test_sequence_numbers_are_total(texts):
    def plain(text):
        text = text.strip(" \t\r\n\f\v")
        digits = text.removeprefix("+")
        if not digits.isascii() or not digits.isdigit():
            return -1
        return int(digits) if int(digits) < 2**63 else -1

    cells = [text.encode() for text in texts]
    assert sequence_numbers(cells).tolist() == [plain(text) for text in texts]


def test_a_file_gives_full_blocks_however_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    path = tmp_path / "d.csv"
    path.write_text("x\n" + "1.25\n" * 1000)
    assert [len(block) for block in read(path, "x", block_rows=300)] == [300, 300, 300, 100]
    monkeypatch.setattr(lines, "MOST_BYTES", 500)
    assert max(len(block) for block in read(path, "x", block_rows=300)) < 150


@settings(max_examples=400)
@given(
    body=st.lists(st.sampled_from([b"1\n", b"22\n", b"\n", b"3" * 9 + b"\n", b"4" * 30 + b"\n"])),
    end=st.sampled_from([b"", b"5", b"6" * 40]),
    block_rows=st.integers(1, 9),
    chunks=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    most=st.sampled_from([25, 500]),
)
def test_a_block_comes_out_the_same_again(tmp_path_factory, body, end, block_rows, chunks, most):
    """However it was read: a state compares what it absorbed last with what stands there now."""
    path = tmp_path_factory.getbasetemp() / "again.csv"
    path.write_bytes(b"x\n" + b"".join(body) + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LONGEST_LINE", 12)
        patch.setattr(lines, "MOST_BYTES", most)
        patch.setattr(lines, "CHUNK_BYTES", chunks[0])
        blocks = list(read(path, "x", block_rows=block_rows))
        assert sum(map(len, blocks)) == len(body) + bool(end)
        patch.setattr(lines, "CHUNK_BYTES", chunks[1])
        for block in blocks:
            again = next(read(path, "x", start=block.start, block_rows=len(block)))
            assert (again.start, again.position) == (block.start, block.position)
            np.testing.assert_array_equal(again.raw_values, block.raw_values)


def test_starts_and_positions_meet(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 20)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 8)
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n2\n" + "3" * 50 + "\n4\n5\n" + "6" * 70)
    for start in (None, {"rows": 1}, {"rows": 3}):
        blocks = list(read(path, "x", block_rows=2, start=start))
        begun = [block.start for block in blocks]
        assert begun[1:] == [block.position for block in blocks[:-1]]
        assert begun[0]["rows"] == (start["rows"] if start else 0)
        assert begun[0]["byte"] == {0: 2, 1: 4, 3: 57}[begun[0]["rows"]]
        assert blocks[-1].position == {"rows": 6, "byte": path.stat().st_size}


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["north"],
        [()],
        [("a",), ("a",)],
        [("a",), (" a",)],
        [(3,), ("3",)],
        [("a",), ("a", "b")],
        [(1.5,)],
        [(True,)],
        [("a", "")],
        [("a", None)],
        [(" ",)],
    ],
)
def test_keys_that_cannot_be_told_apart_are_refused(keys):
    with pytest.raises(ParameterError, match=r"^keys: expected"):
        DeclaredKeys(keys)


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"keys": KEYS}, "key_columns"),
        ({"keys": KEYS, "key_columns": ["k"]}, "key_columns"),
        ({"keys": KEYS, "key_columns": "kk"}, "key_columns"),
        ({"keys": KEYS, "key_columns": ["k", 3]}, "key_columns"),
        ({"sequence": 3}, r"source\.sequence"),
    ],
)
def test_wrong_parameters_are_named(tmp_path, options, parameter):
    (tmp_path / "d.csv").write_text("k,x\na,1\n")
    with pytest.raises(ParameterError, match=f"^{parameter}: expected"):
        read(tmp_path / "d.csv", "x", **options)


def test_missing_key_columns_are_named(tmp_path):
    keys = DeclaredKeys([("a",)])
    for write in (write_csv, write_jsonl, write_parquet):
        with pytest.raises(InputError, match="expected a column 'meter'"):
            read(write(tmp_path), "x", keys=keys, key_columns=["meter"])
    (tmp_path / "bare.jsonl").write_text("1\n2\n")
    with pytest.raises(ParameterError, match="column: expected the name of a field"):
        read(tmp_path / "bare.jsonl", None, keys=keys, key_columns=["meter"])


def test_keys_of_parquet_are_text_or_integers(tmp_path):
    with pytest.raises(InputError, match="expected text or integers in the column 'x'"):
        read(write_parquet(tmp_path), "x", keys=DeclaredKeys([("a",)]), key_columns=["x"])


# --- All rows at once -----------------------------------------------------------------------------

TEXTS = st.binary(max_size=20) | st.sampled_from(
    [b"a", b"a\1", b"a\1\0\0\0\0\0\0\0z", b" a\t", b"\xff"]
)


@given(st.data(), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_all_at_once_finds_what_one_by_one_does(data, parts):
    """Also texts that end with what marks an end, longer ones than any key, and white space."""
    part = st.text(st.characters(max_codepoint=300, exclude_categories=["Cs"]), min_size=1)
    part = part.filter(lambda text: bool(text.encode().strip())) | st.integers(-(10**20), 10**20)
    keys = data.draw(st.lists(st.tuples(*[part] * parts), min_size=1, max_size=30))
    distinct = {tuple(str(one).encode().strip() for one in key): key for key in keys}
    declared = DeclaredKeys(list(distinct.values()))
    rows = data.draw(
        st.lists(st.sampled_from(list(distinct)) | st.tuples(*[TEXTS] * parts), max_size=50)
    )
    columns = [[row[one] for row in rows] for one in range(parts)]
    found = declared.find(*map(RawTexts.of, columns)).tolist()
    assert found == declared.indexes(*columns).tolist()
    assert found == [
        list(distinct).index(stripped) if stripped in distinct else UNDECLARED
        for row in rows
        for stripped in [tuple(cell.strip() for cell in row)]
    ]


def test_of_a_slice_of_many_keys_each_is_found():
    keys = DeclaredKeys([(f"meter number {index}", index) for index in range(20_000)])
    order = np.random.default_rng(1).permutation(20_000).tolist()
    names = [f"meter number {index}".encode() for index in order]
    numbers = [str(index).encode() for index in order]
    assert keys.find(RawTexts.of(names), RawTexts.of(numbers)).tolist() == order
    # one row of each in the wrong company
    assert set(keys.find(RawTexts.of(names[1:]), RawTexts.of(numbers[:-1])).tolist()) == {-1}


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "int64", "uint8"])
def test_every_type_of_a_parquet_column_holds_keys(tmp_path, kind):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = arrow.array([3, 1, None, 7, 1, 3])
    if "int" in kind:
        column = column.cast(kind)
    else:
        column = column.cast("string")
        column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    table = arrow.table({"k": column, "x": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]})
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=4)
    keys = DeclaredKeys([(1,), ("3",)])
    for block_rows in (1, 2, 6):
        options = {"keys": keys, "key_columns": ["k"], "block_rows": block_rows}
        blocks = list(read(tmp_path / "d.parquet", "x", **options))
        assert np.concatenate([block.key_of for block in blocks]).tolist() == [1, 0, -1, -1, 0, 1]
