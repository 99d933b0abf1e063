"""``plan.release(frame)``: pandas, Polars and Arrow in and out, each spending anew."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from rillet import Mean, ParameterError, Person, Plan, Sum
from rillet.release import FIELDS

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}
#: So little noise that sums can be read.
SHARP = {"epsilon": 1e6, "upper": 100.0, "statistic": Sum(), "threshold": {"kind": "fixed"}}


def columns(found):
    names = found.column_names if isinstance(found, pa.Table) else list(found.columns)
    return {
        name: found[name].to_pylist() if isinstance(found, pa.Table) else found[name].to_list()
        for name in names
    }


@pytest.mark.parametrize("kind", FRAMES)
def test_the_result_is_of_the_same_kind_and_has_the_record(kind):
    make = FRAMES[kind]
    frame = make({"kwh": [1.0, 2.0, None, 4.0, float("nan"), 200.0], "other": list("abcdef")})
    plan = Plan(**SHARP, length=6, every=2)
    found = plan.release(frame, "kwh")
    assert type(found) is type(frame)
    shown = columns(found)
    known = [field.name for field in FIELDS if not (kind == "pandas" and field.name == "key")]
    assert list(shown) == known
    assert shown["t"] == [2, 4, 6]
    # The missing ones are left out, what is above the bound counts as the bound.
    assert shown["value"] == pytest.approx([3.0, 7.0, 107.0], abs=0.1)
    assert shown["name"] == ["sum"] * 3


@pytest.mark.parametrize("kind", FRAMES)
def test_keys_and_those_that_were_not_declared(kind):
    frame = FRAMES[kind](
        {"meter": ["b", "a", "z", "b"], "no": [1, 1, 1, 2], "kwh": [1.0, 10.0, 50.0, 2.0]}
    )
    plan = Plan(**SHARP, length=4, missing="none", keys=["a", "b"])
    shown = columns(plan.release(frame, value="kwh", key="meter"))
    assert list(zip(shown["key"], shown["t"], strict=True)) == [("b", 1), ("a", 1), ("b", 2)]
    assert shown["value"] == pytest.approx([1.0, 10.0, 3.0], abs=0.1)
    two = Plan(**SHARP, length=4, missing="none", keys=[("b", 1), ("b", 2)])
    shown = columns(two.release(frame, value="kwh", key=["meter", "no"]))
    assert shown["value"] == pytest.approx([1.0, 2.0], abs=0.1)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("early", ["hold", "drop"])
def test_by_the_clock_rows_in_any_order(kind, early):
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    hours = [2.5, 0.5, 0.2, 1.1, 99.0]
    frame = FRAMES[kind](
        {
            "time": [start + datetime.timedelta(hours=each) for each in hours],
            "kwh": [1.0, 2.0, 4.0, 8.0, 16.0],
        }
    )
    plan = Plan(**SHARP, every="1h", start=start, length="4h", early=early)
    shown = columns(plan.release(frame, "kwh", at="time"))
    assert shown["t"] == [1, 2, 3, 4]
    assert shown["value"] == pytest.approx([6.0, 14.0, 15.0, 15.0], abs=0.1)
    endless = Plan(**SHARP, every="1h", start=start, length=None, early=early)
    shown = columns(endless.release(frame, "kwh", at="time", until="2026-01-01T02:00Z"))
    assert shown["value"] == pytest.approx([6.0, 14.0], abs=0.1)
    with pytest.raises(ParameterError, match="until: expected when to stop"):
        endless.release(frame, "kwh", at="time")


@pytest.mark.parametrize("kind", FRAMES)
def test_of_a_person_the_first_in_time_are_used(kind):
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    frame = FRAMES[kind](
        {
            "time": [start + datetime.timedelta(hours=each) for each in (3.5, 0.5, 1.5, 2.5)],
            "kwh": [1.0, 2.0, 4.0, 8.0],
            "house": [7, 7, 7, 8],
        }
    )
    plan = Plan(
        **SHARP, delta=1e-6, every="1h", start=start, length="4h", unit=Person(most=2, apart="1h")
    )
    shown = columns(plan.release(frame, "kwh", at="time", person="house"))
    assert shown["value"][-1] == pytest.approx(14.0, abs=0.1)


def test_a_single_column():
    plan = Plan(**SHARP, length=3, missing="none")
    for column in (
        pd.Series([1.0, 2.0, 3.0]),
        pl.Series([1.0, 2.0, 3.0]),
        pa.array([1.0, 2.0, 3.0]),
        pa.chunked_array([[1.0, 2.0], [3.0]]),
    ):
        shown = columns(plan.release(column))
        assert shown["value"] == pytest.approx([1.0, 3.0, 6.0], abs=0.1)


def test_whole_numbers_with_gaps_and_columns_of_pandas_own_types():
    frame = pd.DataFrame({"n": pd.array([1, None, 3], "Int64")})
    plan = Plan(**SHARP, length=3, every=3)
    assert columns(plan.release(frame))["value"] == pytest.approx([4.0], abs=0.1)


def test_each_call_spends_anew():
    plan = Plan(epsilon=1.0, upper=10.0, length=4)
    frame = pd.DataFrame({"x": np.ones(4)})
    assert plan.release(frame)["value"][0] != plan.release(frame)["value"][0]


@pytest.mark.parametrize(
    ("plan", "options", "complaint"),
    [
        ({}, {"value": "kw"}, "value: expected one of the columns kwh, meter, found 'kw'"),
        ({}, {}, "value: expected one of the columns kwh, meter, found nothing"),
        ({}, {"value": "kwh", "key": "meter"}, "key: expected none, for this plan"),
        ({"keys": ["a"]}, {"value": "kwh"}, "key: expected the columns of the plan's"),
        ({"keys": ["a"]}, {"value": "kwh", "key": "mete"}, "key: expected one of the columns"),
        ({}, {"value": "kwh", "at": "meter"}, "at: expected none, for this plan"),
        ({}, {"value": "kwh", "person": "meter"}, "person: expected none, for this plan"),
        ({}, {"value": "kwh", "until": "2026-01-01"}, "until: expected none"),
    ],
)
def test_columns_that_do_not_fit_the_plan(plan, options, complaint):
    frame = pd.DataFrame({"kwh": [1.0], "meter": ["a"]})
    with pytest.raises(ParameterError, match=complaint):
        Plan(epsilon=1.0, upper=10.0, length=4, **plan).release(frame, **options)


def test_what_is_no_frame():
    with pytest.raises(ParameterError, match="frame: expected a data frame of pandas, Polars"):
        Plan(epsilon=1.0, upper=10.0, length=4, statistic=Mean()).release([1.0, 2.0])
