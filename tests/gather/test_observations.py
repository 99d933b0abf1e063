"""Input that nobody asked for: whatever it is, it is one observation and raises nothing."""

from __future__ import annotations

import decimal
import fractions
import warnings
from datetime import UTC, datetime

import numpy as np
import pytest

from helpers.streams import SECRET, awkward_values, baseline, paper, state_text
from rillet import ParameterError, Plan
from rillet.gather.observations import as_observations


class Unwilling:
    """Its conversion fails in a way that is all its own."""

    def __float__(self) -> float:
        raise ZeroDivisionError("a private value")

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise KeyError("a private value")


NAN = float("nan")
STRANGE = [
    ("12.5", 12.5),
    (" 7\n", 7.0),
    ("1_000", 1000.0),
    (b"3", 3.0),
    ("twelve", NAN),
    ("", NAN),
    ("nan", NAN),
    ("inf", np.inf),
    (None, NAN),
    (True, 1.0),
    (np.bool_(False), 0.0),
    (10**400, NAN),
    (2**70, 2.0**70),
    (3 + 4j, NAN),
    (np.complex128(3 + 4j), NAN),
    (decimal.Decimal("2.5"), 2.5),
    (decimal.Decimal("sNaN"), NAN),
    (fractions.Fraction(10**500, 3), NAN),
    (fractions.Fraction(1, 4), 0.25),
    (datetime(2020, 1, 1, tzinfo=UTC), NAN),
    (np.datetime64("2020-01-01"), NAN),
    (np.timedelta64(5, "s"), NAN),
    (np.longdouble("1e4000"), np.inf),
    (np.float16(np.inf), np.inf),
    (np.ma.masked, NAN),
    (object(), NAN),
    ([], NAN),
    ({"a": 1}, NAN),
    (Unwilling(), NAN),
    (np.array([0x7FF0000000000001], np.uint64).view(np.float64)[0], NAN),
]


@pytest.mark.parametrize(("value", "meant"), STRANGE, ids=lambda v: type(v).__name__)
def test_no_value_raises_or_warns(value, meant):
    """Alone, in a block, and as the only kind in an array: one observation, the same bits."""
    plan = baseline(4, upper=2000.0)
    expected = plan.open(secret=SECRET).update(meant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan.open(secret=SECRET).update(value) == expected
        in_list = plan.open(secret=SECRET).update_many([value, 1.0])
        assert in_list[0] == expected
        assert len(in_list) == 2
        typed = np.empty(1, object)
        typed[0] = value
        assert plan.open(secret=SECRET).update_many(typed)[0] == expected
        # While a threshold is being learned, values wait in a buffer.
        learning = paper(3, 2).open(secret=SECRET)
        assert learning.update(value) is None
        assert learning.update(value) is not None


@pytest.mark.parametrize(
    "array",
    [
        np.array([1 + 2j, 3 - 1j]),
        np.array(["2020-01-01", "NaT"], "M8[s]"),
        np.array([5, 6], "m8[s]"),
        np.array(["x", "1"]),
        np.array([b"x", b"1"]),
        np.array([np.longdouble("1e4000"), np.longdouble("nan")]),
        np.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        np.ma.array([1, 2], mask=[True, False]),
        np.array([2**64 - 1, 7], np.uint64),
        np.array([True, False]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_arrays_of_any_kind_are_the_loop_over_their_elements(array):
    plan = baseline(4, upper=2000.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        block = plan.open(secret=SECRET)
        expected = list(block.update_many(array))
        single = plan.open(secret=SECRET)
        assert [single.update(value) for value in array.reshape(-1)] == expected
    assert len(expected) == 2


def test_one_outermost_element_is_one_observation():
    for nested in ([[1.0, 2.0], [3.0, 4.0]], [(1.0,), (2.0,)], [np.array([1.0]), [2.0]]):
        assert np.isnan(as_observations(nested)).tolist() == [True, True]
    # A strange element changes nothing about the others.
    for strange in ([1.0], np.array([1.0]), bytearray(b"1"), (), {}, "x", None, np.ma.masked):
        assert as_observations([3.0, strange, 4.0])[[0, 2]].tolist() == [3.0, 4.0]
        assert as_observations((3.0, strange, 4.0)).shape == (3,)
    assert np.isnan(as_observations([[1.0, 2.0], [3.0]])).all()
    assert np.isnan(as_observations([np.zeros((2, 3)), np.zeros(2)])).all()
    assert np.isnan(as_observations([Unwilling(), Unwilling()])).tolist() == [True, True]


@pytest.mark.parametrize("values", [np.zeros((3, 2)), np.zeros((3, 1)), np.float64(3), "12", b"1"])
def test_what_is_not_one_dimension_is_refused(values):
    stream = baseline(10).open(secret=SECRET)
    with pytest.raises(ParameterError, match="values"):
        stream.update_many(values)
    assert stream.t == 0


def test_iterators_are_read_and_unordered_things_refused():
    """What a program passes is public; taking it for one observation would lose data silently."""
    assert as_observations(float(i) for i in range(3)).tolist() == [0.0, 1.0, 2.0]
    assert as_observations(map(str, range(3))).tolist() == [0.0, 1.0, 2.0]
    assert as_observations(range(3)).tolist() == [0.0, 1.0, 2.0]
    stream = baseline(10).open(secret=SECRET)
    for unordered in ({1.0, 2.0}, {"a": 1.0}, frozenset([1.0])):
        with pytest.raises(ParameterError, match="values"):
            stream.update_many(unordered)
    assert stream.t == 0


def test_values_are_not_changed_and_not_kept():
    values = awkward_values(50, 4)
    before = values.copy()
    stream = paper(100, 60).open(secret=SECRET)
    stream.update_many(values)
    assert np.array_equal(values, before, equal_nan=True)
    state = state_text(stream)
    values[:] = 0.0  # the caller's array is the caller's: the buffer must be a copy
    assert state_text(stream) == state


@pytest.mark.parametrize(
    ("value", "same_as"),
    [(np.nan, 17.5), (-np.inf, 5.0), (4.0, 5.0), (np.inf, 30.0), (30.5, 30.0), (-1e308, 5.0)],
)
def test_values_beyond_the_bounds_count_as_the_bound(value, same_as):
    plan = Plan.baseline(epsilon=1.0, lower=5.0, upper=30.0, length=5)
    odd, plain = plan.open(secret=SECRET), plan.open(secret=SECRET)
    assert odd.update(value) == plain.update(same_as)
    assert list(odd.update_many([value, 7.0])) == list(plain.update_many([same_as, 7.0]))
