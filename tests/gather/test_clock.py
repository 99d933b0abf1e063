"""Ticks and times against plain datetime arithmetic; no element raises, whatever it is."""

# ruff: noqa: DTZ001, DTZ901 - naive times are part of the subject

from __future__ import annotations

import decimal
import fractions
import time
import warnings
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rillet import ParameterError
from rillet.gather.clock import NO_TIME, Clock, as_times, read_time, read_times
from rillet.times import DAY, HOUR, MINUTE, SECOND, moment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]


def exact(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)


def local(wall: datetime, zone: str) -> int:
    """A wall clock's time by the definition of the module zoneinfo, fold and all."""
    offset = wall.replace(tzinfo=ZoneInfo(zone)).utcoffset()
    return exact(wall.replace(tzinfo=UTC)) - offset // timedelta(microseconds=1)


# --- Ticks ------------------------------------------------------------------------------------


@given(
    start=st.datetimes(timezones=st.just(UTC)),
    at=st.datetimes(timezones=st.just(UTC)),
    every=st.integers(1, 10**9),
)
def test_a_tick_is_a_half_open_span(start, at, every):
    clock = Clock(exact(start), every * SECOND)
    tick = int(clock.tick_of(np.array([exact(at)]))[0])
    if at < start:
        assert tick == 0
    else:
        assert tick == (at - start) // timedelta(seconds=every) + 1
        assert clock.end_of(tick - 1) <= exact(at) < clock.end_of(tick)


@pytest.mark.parametrize(
    "start", ["1970-01-01", "2026-01-01", "2099-12-31", "9999-12-31", "0001-01-01"]
)
@pytest.mark.parametrize("every", [SECOND, HOUR, 366 * DAY, 9998 * 365 * DAY])
def test_no_time_overflows(start, every):
    clock = Clock(moment(start, "UTC"), every)
    raw_at = np.array([NO_TIME, NO_TIME + 1, -(2**62), 0, 2**62, 2**63 - 2, 2**63 - 1])
    ticks = clock.tick_of(raw_at)
    assert ticks[0] == ticks[1] == ticks[2] == 0
    assert np.all(np.diff(ticks) >= 0)
    assert clock.tick_of(np.array([clock.start - 1, clock.start])).tolist() == [0, 1]


def test_edges_are_exact():
    clock = Clock(moment("2026-01-01T00:00Z"), HOUR)
    edges = clock.end_of(np.arange(0, 9000))
    assert np.array_equal(clock.tick_of(edges), np.arange(1, 9001))
    assert np.array_equal(clock.tick_of(edges[1:] - 1), np.arange(1, 9000))


def test_a_leap_day_has_as_many_ticks_as_any():
    clock = Clock(moment("2028-02-28T00:00Z"), DAY)
    times = as_times(["2028-02-28T12:00Z", "2028-02-29T12:00Z", "2028-03-01T12:00Z"], 3)
    assert clock.tick_of(times).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("day", "zone", "hours"),
    [
        ("2026-03-29", "Europe/Berlin", 23),
        ("2026-10-25", "Europe/Berlin", 25),
        ("2026-03-08", "America/New_York", 23),
        ("2026-11-01", "America/New_York", 25),
    ],
)
def test_a_change_of_clocks_loses_and_repeats_no_tick(day, zone, hours):
    """Hourly ticks go on in UTC; a local day just has one more or one fewer of them."""
    begin, end = moment(day, zone), moment(date.fromisoformat(day) + timedelta(1), zone)
    clock = Clock(begin, HOUR, zone=zone)
    assert clock.tick_of(np.array([end - 1])).tolist() == [hours]


@given(grace=st.integers(0, 10**6), tick=st.integers(0, 10**6), beside=st.integers(-(10**7), 10**7))
def test_a_tick_is_closed_by_the_wall_clock(grace, tick, beside):
    clock = Clock(moment("2026-01-01T00:00Z"), MINUTE, grace=grace)
    now = clock.end_of(tick) + grace + beside
    assert clock.closed_by(now) == max(0, tick + beside // MINUTE)
    assert clock.seconds_until_close(tick, now) == max(0, -beside) / SECOND
    assert clock.closed_by(clock.start - 10 * DAY) == 0


@given(
    arrived=st.integers(-5 * MINUTE, 9 * MINUTE),
    own=st.integers(-3 * MINUTE, 12 * MINUTE),
    grace=st.sampled_from([0, 1, MINUTE // 2, MINUTE, 5 * MINUTE // 2]),
    late=st.sampled_from(["enter", "drop"]),
    early=st.sampled_from(["hold", "drop"]),
)
def test_which_tick_an_observation_enters(arrived, own, grace, late, early):
    """By the definition: a tick is open from its begin to the end of its grace."""
    clock = Clock(moment("2026-01-01T00:00Z"), MINUTE, late=late, early=early, grace=grace)
    stamp, at = np.array([clock.start + arrived]), np.array([clock.start + own])
    opened, begun = clock.open_at(stamp), clock.tick_of(stamp)
    tick = own // MINUTE + 1
    ticks = range(1, 100)
    closed = [t for t in ticks if arrived >= t * MINUTE + grace]
    has_begun = [t for t in ticks if arrived >= (t - 1) * MINUTE]
    expected = tick
    if own < 0:
        expected = 0
    elif tick in closed:
        expected = len(closed) + 1 if late == "enter" else 0
    elif tick not in has_begun:
        expected = tick if early == "hold" else 0
    assert clock.entering(clock.tick_of(at), opened, begun).tolist() == [expected]
    assert len(has_begun) <= len(closed) + 1 + clock.ticks_of_grace


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": SECOND - 1},
        {"every": 0},
        {"grace": -1},
        {"late": "hold"},
        {"early": "enter"},
        {"zone": "Europe/Atlantis"},
        {"start": 2**62},
    ],
)
def test_clocks_that_cannot_be(wrong):
    with pytest.raises(ParameterError):
        Clock(**{"start": 0, "every": HOUR, **wrong})


# --- Text -------------------------------------------------------------------------------------

FORMS = [
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%d %H:%M:%SZ",
    "%Y-%m-%dT%HZ",
    "%Y%m%dT%H%M%S",
]


def by_definition(text: str, zone: str | None) -> int:
    when = datetime.fromisoformat(text)
    if when.tzinfo is not None:
        # Not by subtraction: near the year 1 or 9999 UTC itself is out of reach.
        return exact(when.replace(tzinfo=UTC)) - when.utcoffset() // timedelta(microseconds=1)
    return NO_TIME if zone is None else local(when, zone)


@given(
    when=st.datetimes(),
    form=st.sampled_from(FORMS),
    zone=st.sampled_from([None, *ZONES]),
    offset=st.sampled_from(["", "+01:00", "-11:30", "+00:00:30", "-23:59"]),
)
def test_text_is_read_as_datetime_reads_it(when, form, zone, offset):
    text = when.replace(microsecond=when.microsecond).strftime(form).rjust(10, "0")
    year = f"{when.year:04}"
    text = year + text[text.index("-" if "-" in form else f"{when:%m%d}") :]
    if "Z" not in form and "H" in form:
        text += offset
    expected = by_definition(text, zone)
    assert read_time(text, zone) == read_time(f" {text}\r".encode(), zone) == expected
    milli = when.replace(microsecond=when.microsecond // 1000 * 1000).isoformat(
        timespec="milliseconds"
    )
    assert read_times([text, milli, "x", text], zone).tolist() == [
        expected,
        by_definition(milli, zone),
        NO_TIME,
        expected,
    ]


@given(st.floats(allow_nan=True, allow_infinity=True))
@example(1767225600.000001)
@example(-0.0000005)
@example(9e12)
def test_seconds_are_the_nearest_microseconds(seconds):
    inside = abs(seconds) <= 9e12
    expected = round(fractions.Fraction(seconds) * SECOND) if inside else NO_TIME
    found = read_time(repr(seconds))
    assert found == as_times(seconds, 1)[0] == as_times(np.array([seconds]), 1)[0]
    # A product with a million is rounded once more.
    assert found == expected or abs(found - expected) <= 1
    if seconds == np.floor(seconds):
        assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "2026-02-29T00:00Z",
        "2026-13-01T00:00Z",
        "2026-00-10T00:00Z",
        "2026-01-01T24:01Z",
        "2026-01-01T23:60Z",
        "2026-01-01T23:59:60Z",
        "0000-01-01T00:00Z",
        "2026-01-01T00:00+24:00",
        "2026-01-01T00:00:00.0000000x",
        "2026-01-01_00:00Z",
        "1_000",
        "nan",
        "inf",
        "1e300",
        "-1e300",
        "9" * 10_000,
        "2026-01-01T",
        "２026-01-01T00:00Z",
        "2026-01-01\x0000:00Z",
        "\x00" * 20,
        "١٢٣٤٥",
        "2026/01/01",
        "T" * 17,
    ],
)
def test_what_is_no_time_is_none_and_changes_no_other(text):
    good = "2026-01-01T00:00Z"
    for cells in ([good, text], [good.encode(), text.encode()]):
        assert read_times(cells, "UTC").tolist() == [moment(good), NO_TIME]


@given(st.lists(st.binary(max_size=30) | st.text(max_size=30), max_size=5))
def test_any_cell_is_read_by_itself(cells):
    together = read_times(cells, "Europe/Berlin")
    assert together.tolist() == [read_time(cell, "Europe/Berlin") for cell in cells]


ALMOST = st.text("0123456789-:T Z+.,", min_size=10, max_size=32)


@settings(max_examples=500)
@given(ALMOST, st.sampled_from([None, "Europe/Berlin"]))
def test_text_that_is_almost_a_time(text, zone):
    text = text.strip()
    found = read_time(text, zone)
    try:
        float(text)
    except ValueError:
        try:
            expected = by_definition(text, zone)
        except ValueError:
            expected = NO_TIME
        assert found == expected


# --- What a program passes --------------------------------------------------------------------

TIME = datetime(2026, 7, 1, 12, 30, 0, 250_000, tzinfo=UTC)
WALL = datetime(2026, 7, 1, 14, 30, 0, 250_000)  # in Berlin


class Unwilling(datetime):
    def utcoffset(self):
        raise ZeroDivisionError("a private value")


ELEMENTS = [
    (TIME, exact(TIME)),
    (WALL, exact(TIME)),
    (TIME.astimezone(ZoneInfo("Asia/Kathmandu")), exact(TIME)),
    (TIME.isoformat(), exact(TIME)),
    (WALL.isoformat().encode(), exact(TIME)),
    (np.datetime64(WALL), exact(TIME)),
    (np.datetime64(WALL, "ns"), exact(TIME)),
    (np.str_(TIME.isoformat()), exact(TIME)),
    (date(2026, 7, 1), local(datetime(2026, 7, 1), "Europe/Berlin")),
    (TIME.timestamp(), exact(TIME)),
    (np.float64(TIME.timestamp()), exact(TIME)),
    (np.int8(7), 7 * SECOND),
    (np.uint64(2**64 - 1), NO_TIME),
    (np.float16(7.5), 7_500_000),
    (np.longdouble("1e4000"), NO_TIME),
    (np.array([0x7D01], np.uint16).view(np.float16)[0], NO_TIME),
    (decimal.Decimal("1767225600.000001"), 1_767_225_600_000_001),
    (decimal.Decimal("1e999999999"), NO_TIME),
    (decimal.Decimal("sNaN"), NO_TIME),
    (fractions.Fraction(1, 4), 250_000),
    (10**400, NO_TIME),
    (-1, -SECOND),
    (True, NO_TIME),
    (np.True_, NO_TIME),
    (None, NO_TIME),
    (float("nan"), NO_TIME),
    (np.datetime64("NaT"), NO_TIME),
    (np.datetime64(2**62, "D"), NO_TIME),
    (timedelta(1), NO_TIME),
    (np.timedelta64(1, "s"), NO_TIME),
    (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))), 253402315200 * SECOND),
    (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), -62135614800 * SECOND),
    (datetime.min, local(datetime.min, "Europe/Berlin")),
    (datetime.max, local(datetime.max, "Europe/Berlin")),
    (Unwilling(2026, 1, 1), NO_TIME),
    (object(), NO_TIME),
    ([], NO_TIME),
    ({"a": 1}, NO_TIME),
    (3 + 4j, NO_TIME),
    (np.ma.masked, NO_TIME),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), ELEMENTS, ids=lambda value: type(value).__name__)
def test_no_element_raises_or_warns(value, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_times([value, 1.0], 2, "Europe/Berlin").tolist() == [expected, SECOND]
        held = np.empty(2, object)
        held[:] = value, "x"
        assert as_times(held, 2, "Europe/Berlin").tolist() == [expected, NO_TIME]
        if not isinstance(value, list | dict):
            assert as_times(value, 3, "Europe/Berlin").tolist() == [expected] * 3


def test_without_a_zone_naive_elements_have_no_time():
    naive = [WALL, WALL.isoformat(), date(2026, 7, 1), np.datetime64(WALL)]
    assert as_times([*naive, TIME], 5).tolist() == [NO_TIME] * 4 + [exact(TIME)]


@pytest.mark.parametrize(
    "unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "15m", "7us"]
)
def test_datetime64_of_every_unit(unit):
    limits = [-(2**63) + 1, -(2**62), -(10**12), -(10**7), -1, 0, 1, 1000, 10**7, 2**62, 2**63 - 1]
    counts = np.array([NO_TIME, *limits])
    times = counts.view(f"M8[{unit}]")
    found = as_times(times, counts.size, "UTC")
    assert found[0] == NO_TIME
    name, count = np.datetime_data(times.dtype)
    for raw, at in zip(limits, found[1:].tolist(), strict=True):
        per = {"W": 7 * DAY, "D": DAY, "h": HOUR, "m": MINUTE, "s": SECOND, "ms": 1000, "us": 1}
        fine = {"ns": 1000, "ps": 10**6}
        if name in "YM":
            months = raw * count * (12 if name == "Y" else 1)
            if not -1969 * 12 <= months < 8030 * 12:
                assert at == NO_TIME
            else:
                when = datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=UTC)
                assert at == exact(when)
            continue
        exactly = raw * count * per[name] if name in per else raw * count // fine[name]
        within = exact(datetime.min.replace(tzinfo=UTC)) <= exactly <= exact(
            datetime.max.replace(tzinfo=UTC)
        )  # fmt: skip
        assert at == (exactly if within else NO_TIME)


def test_other_byte_orders_and_steps():
    times = np.array(["2026-01-01", "2026-01-02", "NaT"], "M8[s]")
    expected = [moment("2026-01-01", "UTC"), moment("2026-01-02", "UTC"), NO_TIME]
    assert as_times(times.astype(">M8[s]"), 3, "UTC").tolist() == expected
    assert as_times(np.repeat(times, 2)[::2], 3, "UTC").tolist() == expected
    assert as_times(np.array([5, 7], ">i4"), 2).tolist() == [5 * SECOND, 7 * SECOND]
    assert as_times(np.array([5, 2**64 - 1], np.uint64), 2).tolist() == [5 * SECOND, NO_TIME]
    assert as_times(np.array([True, False]), 2).tolist() == [NO_TIME] * 2
    assert as_times(np.array([5.5, np.nan], np.float32), 2).tolist() == [5_500_000, NO_TIME]
    assert as_times(np.ma.array([5, 7], mask=[True, False]), 2).tolist() == [NO_TIME, 7 * SECOND]
    assert as_times(np.array(["2026-01-01T00:00Z", "x"]), 2).tolist() == [expected[0], NO_TIME]
    assert as_times((float(n) for n in range(3)), 3).tolist() == [0, SECOND, 2 * SECOND]
    assert as_times(np.array(5), 2).tolist() == [5 * SECOND] * 2


@pytest.mark.parametrize("zone", ZONES)
@given(data=st.data())
def test_wall_clocks_of_a_zone(zone, data):
    """In an array as one by one, near changes of clocks most of all."""
    near = st.sampled_from(
        [
            datetime(2026, 3, 29, 2),
            datetime(2026, 10, 25, 2),
            datetime(2026, 3, 8, 2),
            datetime(2026, 11, 1, 1),
            datetime(2026, 4, 5, 2),
            datetime(1893, 4, 1),
        ]
    )
    hours = st.timedeltas(timedelta(hours=-2), timedelta(hours=3))
    close = st.builds(lambda change, beside: change + beside, near, hours)
    walls = data.draw(st.lists(close | st.datetimes(), max_size=8))
    expected = [local(wall.replace(fold=0), zone) for wall in walls]
    array = np.array(walls, "M8[us]")
    assert as_times(array, len(walls), zone).tolist() == expected
    assert read_times([wall.isoformat() for wall in walls], zone).tolist() == expected
    assert as_times([wall.replace(fold=0) for wall in walls], len(walls), zone).tolist() == expected


def test_times_that_a_change_of_clocks_skips_or_repeats():
    """As documented: the first of two, and the offset from before where there is none."""
    berlin = "Europe/Berlin"
    assert read_time("2026-10-25T02:30", berlin) == moment("2026-10-25T00:30Z")
    assert read_time("2026-03-29T02:30", berlin) == moment("2026-03-29T01:30Z")
    second = datetime(2026, 10, 25, 2, 30, fold=1)
    assert as_times([second], 1, berlin)[0] == moment("2026-10-25T01:30Z")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_pandas_columns(unit):
    pd = pytest.importorskip("pandas")
    aware = pd.Series(pd.DatetimeIndex([TIME, None, EPOCH]).as_unit(unit))
    cut = {"s": exact(TIME) // SECOND * SECOND}.get(unit, exact(TIME))
    expected = [cut, NO_TIME, 0]
    in_berlin = aware.dt.tz_convert("Europe/Berlin")
    naive = in_berlin.dt.tz_localize(None)
    for column in (aware, in_berlin, pd.DatetimeIndex(in_berlin), in_berlin.array):
        assert as_times(column, 3).tolist() == expected
        assert as_times(column, 3, "America/New_York").tolist() == expected
    for column in (naive, pd.DatetimeIndex(naive)):
        assert as_times(column, 3, "Europe/Berlin").tolist() == expected
        with pytest.raises(ParameterError, match=r"^at: expected times with a zone"):
            as_times(column, 3)
    assert as_times(in_berlin.astype(object), 3).tolist() == expected
    assert as_times(pd.Series([5, None], dtype="Int64"), 2).tolist() == [5 * SECOND, NO_TIME]
    assert as_times(pd.Series([5.5, None]), 2).tolist() == [5_500_000, NO_TIME]
    assert as_times(pd.Series([TIME.isoformat(), None]), 2).tolist() == [exact(TIME), NO_TIME]
    assert as_times(pd.NaT, 2).tolist() == [NO_TIME] * 2
    assert as_times(pd.Timestamp(TIME), 1).tolist() == [exact(TIME)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_columns(unit):
    pa = pytest.importorskip("pyarrow")
    whole = TIME.replace(microsecond=0)
    aware = pa.array([whole, None, EPOCH], pa.timestamp(unit, "Asia/Kathmandu"))
    expected = [exact(whole), NO_TIME, 0]
    for column in (aware, pa.chunked_array([aware.slice(0, 1), aware.slice(1)])):
        assert as_times(column, 3, "Europe/Berlin").tolist() == expected
    walls = pa.array([WALL.replace(microsecond=0), None], pa.timestamp(unit))
    assert as_times(walls, 2, "Europe/Berlin").tolist() == expected[:2]
    with pytest.raises(ParameterError, match=r"^at: expected times with a zone"):
        as_times(walls, 2)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (np.zeros((2, 1)), "one dimension"),
        ({1.0, 2.0}, "set"),
        ({"a": 1.0}, "dict"),
        ([1.0], "2 times"),
        (iter([1.0, 2.0, 3.0]), "2 times"),
        (np.zeros(3), "2 times"),
        (np.zeros(2, "M8[s]"), "zone"),
        (np.datetime64("2026-01-01"), "zone"),
    ],
)
def test_containers_that_are_refused(at, message):
    with pytest.raises(ParameterError, match=message):
        as_times(at, 2)


@pytest.mark.long
def test_millions_in_seconds():
    count = 2_000_000
    raw = np.arange(count) * 7_919 * SECOND // 100
    walls = raw.view("M8[us]")
    began = time.perf_counter()
    as_times(walls, count, "Europe/Berlin")
    cells = np.datetime_as_string(walls, "s").tolist()
    between = time.perf_counter()
    read_times(cells, "Europe/Berlin")
    assert between - began < 10
    assert time.perf_counter() - between < 10


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Tokyo", "America/New_York"])
def test_walls_end_with_the_years_1_and_9999(zone):
    ends = ["0001-01-01T00:00", "9999-12-31T23:59:59.999999"]
    walls = np.array(ends, "M8[us]").view(np.int64)
    beyond = np.concatenate([walls[0] - np.arange(1, 9), walls[1] + np.arange(1, 9)])
    assert as_times(beyond.view("M8[us]"), 16, zone).tolist() == [NO_TIME] * 16
    within = as_times(walls.view("M8[us]"), 2, zone)
    assert np.all(np.abs(within - walls) < 20 * HOUR)


@pytest.mark.parametrize(("unit", "per"), [("ns", 3), ("ps", 6), ("fs", 9), ("as", 12)])
def test_fractions_of_a_microsecond_are_cut_off(unit, per):
    counts = np.array([7 * 10**per, 7 * 10**per - 1, -1, -(10**per)], np.int64)
    assert as_times(counts.view(f"M8[{unit}]"), 4, "UTC").tolist() == [7, 6, -1, -1]
