"""One outermost element is one observation, converted alone (FINDINGS A4, A6)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rillet import ParameterError, Plan, Secret
from trust.runs import DONE

PLAN = Plan.baseline(epsilon=1.0, upper=1000.0, length=2_000)
KEYS = (("a",), ("b",))
SENSITIVITY = 1000.0


def last_sum(values, secret):
    stream = PLAN.open(secret=secret)
    return stream.update_many(values)[-1].sum


def rows(strange=None):
    """A cell of a table read as 1-tuples, one of them strange."""
    cells = [(500.0,)] * 600
    if strange is not None:
        cells[17] = (strange,)
    return cells


@pytest.mark.parametrize(
    "strange", [[1.0, 2.0], np.array([1.0, 2.0]), bytearray(b"12")], ids=["list", "array", "bytes"]
)
def test_one_strange_cell_moves_a_sum_by_one_observation(strange):
    secret = Secret.for_tests(4)
    try:
        plain, other = last_sum(rows(), secret), last_sum(rows(strange), secret)
    except ParameterError:
        # Rows of one cell have two dimensions: refused is right, if it is for both.
        with pytest.raises(ParameterError):
            last_sum(rows(), secret)
        with pytest.raises(ParameterError):
            last_sum(rows(strange), secret)
        return
    assert abs(plain - other) <= SENSITIVITY


def test_a_list_given_for_one_observation_of_a_key_is_one_observation():
    """Its second value must not become the first of another key, while all learn together."""
    plan = Plan(epsilon=1e5, upper=100.0, length=100, lag=4, keys=KEYS, shared_threshold=True)
    streams = plan.open_many(secret=Secret.for_tests(4))
    streams.update([90, 90], key="a")
    streams.update_many([1.0, 1.0, 1.0], key="b")
    assert streams.latest("b").mean == pytest.approx(1.0, abs=0.5)


def test_an_empty_list_given_for_one_observation_is_one_observation():
    streams = Plan(epsilon=1.0, upper=100.0, length=100, keys=KEYS).open_many()
    streams.update([], key="a")
    assert streams.t("a") == 1


@pytest.mark.parametrize(
    "values",
    [
        np.ones((3, 2)),
        np.ones((3, 1)),
        np.ma.ones((3, 2)),
        np.float64(1.0),
    ],
    ids=["matrix", "column", "masked matrix", "no dimension"],
)
def test_more_than_one_dimension_is_refused(values):
    stream = PLAN.open()
    with pytest.raises(ParameterError, match=r"dimension|sequence"):
        stream.update_many(values)
    assert stream.t == 0


def test_a_data_frame_is_refused():
    pandas = pytest.importorskip("pandas")
    stream = PLAN.open()
    with pytest.raises(ParameterError):
        stream.update_many(pandas.DataFrame({"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]}))
    assert stream.t == 0


def test_a_nested_element_is_one_observation():
    """What is nested equally everywhere must count as what is nested in one place only."""
    stream = PLAN.open()
    stream.update_many([[1.0, 2.0], [3.0, 4.0], 5.0])
    ragged = stream.t
    stream = PLAN.open()
    try:
        stream.update_many([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    except ParameterError:
        pytest.fail("refused because of what one element holds")
    assert (ragged, stream.t) == (3, 3)


# --- Nothing that depends on a value is said -----------------------------------------------------


def warnings_of(values):
    """What is warned of while values are absorbed; recorded, as errors would be caught inside."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stream = PLAN.open()
        stream.update_many(values)
        stream.update(values[0])
    assert stream.t == len(values) + 1
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "value",
    [
        np.complex64(1j),
        np.complex128(1j),
        np.clongdouble(1j),
        np.array(1j),
        np.array(np.complex64(1)),
    ],
    ids=repr,
)
def test_a_complex_value_is_silent(value):
    assert warnings_of([value, 3.0]) == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("make", [np.asarray, list, np.ma.array], ids=["array", "list", "masked"])
def test_a_signalling_nan_beside_a_long_double_is_silent(make, dtype):
    """Each element is converted alone, whatever stands beside it."""
    bits = np.array([0x7FF0000000000001, 0x3FF0000000000000], np.uint64)
    with np.errstate(all="ignore"):
        beside = bits.view(np.float64).astype(dtype)
    assert warnings_of(make(beside)) == []
    assert warnings_of([*bits.view(np.float64), np.longdouble(3)]) == []


SIGNALLING = np.array([0x7F800001, 0x3F800000], np.uint32).view(np.float32)


@pytest.mark.parametrize("make", [np.asarray, list], ids=["array", "list"])
def test_a_signalling_nan_is_silent(make):
    assert warnings_of(make(SIGNALLING)) == []


@pytest.mark.parametrize(
    "masked", [np.ma.masked, np.ma.array(1.0, mask=True)], ids=["constant", "no dimension"]
)
def test_a_masked_value_is_silent(masked):
    assert warnings_of([masked, 3.0]) == []


def parquet(path, cells):
    """A column of text whose bytes are given, whatever they are."""
    arrow = pytest.importorskip("pyarrow")
    file = pytest.importorskip("pyarrow.parquet")
    ends = np.cumsum([0, *map(len, cells)]).astype(np.int32)
    buffers = [None, arrow.py_buffer(ends.tobytes()), arrow.py_buffer(b"".join(cells))]
    column = arrow.Array.from_buffers(arrow.utf8(), len(cells), buffers)
    file.write_table(arrow.table({"x": column}), path)


def test_a_cell_that_is_not_text_is_one_observation(desk):
    parquet(desk / "in.parquet", [b"12.5", b"\xff\xfe\xfd", b"7"])
    ended = desk.run("in.parquet", "--column", "x", "--out", "out.jsonl")
    assert ended.code == DONE, ended.said
    assert len(desk.sums("out.jsonl")) == 3


def test_an_error_does_not_tell_how_long_private_cells_are(desk):
    """The same run over two files that differ in the length of one cell says the same."""
    said = []
    for number, cell in enumerate(("1", "1000000")):
        command = ("in.csv", "--state", f"live{number}")
        desk.csv("in.csv", [cell, 2])
        assert desk.run(*command).code == DONE
        desk.append("in.csv", [3])
        assert desk.run(*command).code == DONE
        desk.csv("in.csv", [], end="")  # cut: it is not the file that was read
        ended = desk.run(*command)
        assert ended.code != DONE
        said.append(ended.said.splitlines()[-1].replace(f"live{number}", "live"))
    assert said[0] == said[1]
