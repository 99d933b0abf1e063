"""By the clock: which tick an observation falls into, and when a tick is over.

Times are whole microseconds since 1970 in UTC, as in :mod:`rillet.times`. What a program or a file
gives as the time of an observation is one of

- ISO 8601 as :meth:`datetime.datetime.fromisoformat` reads it, with T or a space between date and
  time; a date alone is its midnight;
- seconds since 1970, as a number or as decimal text (eight digits are seconds, not a date);
- an object: ``datetime``, ``date``, ``numpy.datetime64``, ``pandas.Timestamp``.

A time without an offset from UTC is one of the declared zone. Where a change of clocks repeats it,
the first of the two is meant, unless the object says ``fold=1``; where a change skips it, the
offset from before the change holds. What cannot be read is `NO_TIME`.

**Privacy.** Times of observations are raw data: each is read by itself, and none raises or warns.
What kind of container a program passes, its dtype, shape and length are public, and so is the
clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from itertools import compress
from typing import Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt

from rillet.errors import ParameterError
from rillet.times import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    seconds_in_microseconds,
    show_duration,
    show_moment,
    since_1970,
    time_zone,
)

__all__ = ["NO_TIME", "Clock", "as_times", "read_time", "read_times"]

IntArray = npt.NDArray[np.int64]

#: The time of an observation that has none that can be used; also what NumPy calls NaT.
NO_TIME: Final = -(2**63)

#: Seconds beyond this on either side of 1970, some 285,000 years, are no time: 64 bits end there.
_MOST_SECONDS: Final = 9_000_000_000_000
#: What a wall clock can show, in years 1 to 9999, as if it were one of UTC.
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_WALL: Final = (datetime.min.replace(tzinfo=UTC) - _UNIX) // timedelta(microseconds=1)
_LAST_WALL: Final = (datetime.max.replace(tzinfo=UTC) - _UNIX) // timedelta(microseconds=1)


@dataclass(frozen=True)
class Clock:
    """Ticks of equal length from a public start.

    Tick j = 1, 2, … covers [start + (j - 1)·every, start + j·every).

    **Privacy.** Public. Which tick an observation falls into is a function of its own time alone.

    Parameters
    ----------
    start, every
        Beginning of tick 1, and length of a tick of at least one second, in microseconds.
    zone
        Of times without an offset.
    late
        What happens to an observation whose tick is closed: it enters the tick that is open when
        it arrives, or nowhere.
    early
        What happens to one whose tick has not begun: it is held until then, or dropped.
    grace
        Microseconds for which a tick stays open behind its end.
    """

    start: int
    every: int
    zone: str | None = None
    late: Literal["enter", "drop"] = "enter"
    early: Literal["hold", "drop"] = "hold"
    grace: int = 0

    def __post_init__(self) -> None:
        if self.every < SECOND:
            raise ParameterError("every", "at least one second", show_duration(self.every))
        if self.grace < 0:
            raise ParameterError("grace", "a duration that is not negative", self.grace)
        for name, allowed in (("late", ("enter", "drop")), ("early", ("hold", "drop"))):
            if getattr(self, name) not in allowed:
                raise ParameterError(name, " or ".join(map(repr, allowed)), getattr(self, name))
        show_moment(self.start)
        time_zone(self.zone)

    def tick_of(self, raw_at: IntArray) -> IntArray:
        """The tick of each time, numbered from 1; 0 for one before the start, and for `NO_TIME`.

        **Privacy.** Touches raw data; total, whatever the time.
        """
        # Within half of what 64 bits hold nothing overflows; no tick is out there.
        raw_near = np.clip(raw_at, -(2**62), 2**62)
        return np.maximum((raw_near - self.start) // self.every + 1, 0)

    @overload
    def end_of(self, tick: int) -> int: ...
    @overload
    def end_of(self, tick: IntArray) -> IntArray: ...
    def end_of(self, tick: int | IntArray) -> int | IntArray:
        """The nominal end of a tick, without grace: the first microsecond behind it."""
        return self.start + tick * self.every

    def closed_by(self, now: int) -> int:
        """How many ticks are over at this time, their grace included."""
        return max(0, (now - self.grace - self.start) // self.every)

    @property
    def ticks_of_grace(self) -> int:
        """So many ticks may have begun behind the first one that is open."""
        return -(-self.grace // self.every)

    def open_at(self, arrived: IntArray) -> IntArray:
        """The first tick that was open at each of these times of arrival."""
        return np.maximum((arrived - self.grace - self.start) // self.every, 0) + 1

    def entering(
        self, raw_ticks: IntArray, opened: IntArray | int, begun: IntArray | int
    ) -> IntArray:
        """The tick that each observation enters, given those that were open when it came.

        ``raw_ticks`` are those of their own times, ``opened`` is the first one that was open, and
        ``begun`` the last one that had begun, which lies behind it during a grace.  0 is nowhere:
        for what is before the start, and for what is late or early where the rule says so.

        **Privacy.** Touches raw data; a function of each observation and of public times alone.
        """
        late = opened if self.late == "enter" else 0
        early = raw_ticks if self.early == "hold" else 0
        entered = np.where(raw_ticks < opened, late, np.where(raw_ticks > begun, early, raw_ticks))
        return np.where(raw_ticks > 0, entered, 0)

    def seconds_until_close(self, tick: int, now: int) -> float:
        """How long a tick stays open from now on; 0 if it is closed."""
        return max(0, self.end_of(tick) + self.grace - now) / SECOND


# --- What a program passes ------------------------------------------------------------------------


def as_times(at: object, count: int, zone: str | None = None) -> IntArray:
    """Times of ``count`` observations: one for all of them, or one for each.

    **Privacy.** Touches raw data; no element raises or warns.

    Parameters
    ----------
    at
        Text, a number, an object that is a time; or a sequence, array or column of them.
    count
        The number of observations.
    zone
        Declared zone of times without an offset.

    Raises
    ------
    ParameterError
        If the container is none, has more dimensions than one or another length, or if its type
        says that no element has an offset and ``zone`` is None.

    Examples
    --------
    >>> as_times(["2026-01-01T00:00Z", "soon"], 2) == [1767225600000000, NO_TIME]
    array([ True,  True])
    """
    where = time_zone(zone)
    if isinstance(at, Set | Mapping):
        raise ParameterError("at", "a time, or one for each observation", type(at).__name__)
    shape = getattr(at, "shape", None)
    if isinstance(shape, tuple) and len(shape) > 1:
        raise ParameterError(
            "at", "one dimension, one time for each observation", f"{len(shape)} dimensions"
        )
    if isinstance(at, np.datetime64) or (isinstance(shape, tuple) and not shape):
        return np.repeat(_column(np.asanyarray(at).reshape(1), where), count)
    if isinstance(at, str | bytes) or not isinstance(at, Iterable):
        return np.full(count, _time(at, where))
    elements = at if isinstance(at, Sized) else list(at)
    if len(elements) != count:
        raise ParameterError("at", f"{count:,} times, one for each observation", len(elements))
    return _column(elements, where)


def _column(raw_elements: Any, zone: tzinfo | None) -> IntArray:
    """Times of a sequence, an array or a column, by its dtype if that tells what they are."""
    dtype = getattr(raw_elements, "dtype", getattr(raw_elements, "type", None))
    # A column of pandas, Polars or Arrow with a zone has an array of UTC inside.
    in_utc = any(getattr(dtype, name, None) is not None for name in ("tz", "time_zone"))
    unit = getattr(dtype, "unit", None) or getattr(dtype, "time_unit", None)
    if isinstance(raw_elements, np.ma.MaskedArray):
        raw_elements = np.ma.filled(raw_elements.astype(object), None)
    elif in_utc and unit:
        raw_elements = np.asarray(raw_elements, f"M8[{unit}]")
    elif isinstance(dtype, np.dtype) or unit:
        raw_elements = np.asarray(raw_elements)
    kind = raw_elements.dtype.kind if isinstance(raw_elements, np.ndarray) else "O"
    if kind == "M":
        return _datetime64(raw_elements, zone, in_utc=in_utc)
    if kind in "iu":
        usable = (raw_elements >= -_MOST_SECONDS) & (raw_elements <= _MOST_SECONDS)
        return np.where(
            usable, np.where(usable, raw_elements, 0).astype(np.int64) * SECOND, NO_TIME
        )
    if kind == "f":
        return _seconds(raw_elements)
    raw_list = list(raw_elements)
    kinds = set(map(type, raw_list))
    if kinds <= {str, bytes, np.str_, np.bytes_}:
        return _texts(raw_list, zone)
    if kinds <= {int, float}:
        try:
            return _seconds(np.array(raw_list, np.float64))
        except OverflowError:
            pass  # an integer beyond the largest float
    return np.fromiter((_time(raw, zone) for raw in raw_list), np.int64, len(raw_list))


def _seconds(raw_seconds: npt.NDArray[Any]) -> IntArray:
    """Seconds since 1970; as `seconds_in_microseconds` for each."""
    with np.errstate(all="ignore"):  # a signalling NaN, or a wide float beyond the narrow ones
        raw_floats = raw_seconds.astype(np.float64)
        usable = np.abs(raw_floats) <= _MOST_SECONDS
    raw_floats = np.where(usable, raw_floats, 0.0)
    raw_whole = np.floor(raw_floats)
    raw_at = raw_whole.astype(np.int64) * SECOND
    raw_at += np.rint((raw_floats - raw_whole) * SECOND).astype(np.int64)
    return np.where(usable, raw_at, NO_TIME)


#: At most so many microseconds make a unit of datetime64, and how many of a finer one make one.
_UNITS: Final = {
    "Y": 366 * DAY, "M": 31 * DAY, "W": 7 * DAY, "D": DAY, "h": HOUR, "m": MINUTE, "s": SECOND,
    "ms": 1000, "us": 1,
}  # fmt: skip
_FINER: Final = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}


def _datetime64(raw_times: npt.NDArray[Any], zone: tzinfo | None, *, in_utc: bool) -> IntArray:
    """Times of a ``datetime64`` array, fractions of a microsecond cut off."""
    if not in_utc and zone is None:
        raise ParameterError(
            "at",
            "times with a zone",
            f"an array of {raw_times.dtype}, which has none",
            'declare theirs in the plan, such as zone="Europe/Berlin" or zone="UTC"',
        )
    unit, count = np.datetime_data(raw_times.dtype)
    raw_times = np.ascontiguousarray(raw_times, raw_times.dtype.newbyteorder("="))
    raw_counts = raw_times.view(np.int64)
    # Beyond what 64 bits of microseconds hold, a cast would wrap around without a word.
    most = (2**63 - 1) // (_UNITS.get(unit, 1) * count)
    usable = (raw_counts >= -most) & (raw_counts <= most) & (unit in _UNITS or unit in _FINER)
    if unit in _FINER:
        raw_at = np.where(usable, raw_counts * count // _FINER[unit], NO_TIME)
    else:
        raw_at = np.where(usable, raw_times, np.datetime64("NaT")).astype("M8[us]").view(np.int64)
    return raw_at if in_utc or zone is None else _from_wall(raw_at, zone)


def _time(raw_value: object, zone: tzinfo | None) -> int:
    """One time; `NO_TIME` if it is none."""
    try:
        if isinstance(raw_value, str | bytes):
            return int(_texts([raw_value], zone)[0])
        if isinstance(raw_value, np.datetime64):
            return NO_TIME if zone is None else int(_column(np.asarray([raw_value]), zone)[0])
        if isinstance(raw_value, date):
            if not isinstance(raw_value, datetime):
                raw_value = datetime(*raw_value.timetuple()[:3])  # noqa: DTZ001 - at its midnight
            raw_at = since_1970(raw_value, zone)
            return NO_TIME if raw_at is None or abs(raw_at) > _MOST_SECONDS * SECOND else raw_at
        if isinstance(raw_value, np.integer | np.floating):
            with np.errstate(all="ignore"):  # a signalling NaN, or a wide float
                raw_value = (
                    int(raw_value) if isinstance(raw_value, np.integer) else float(raw_value)
                )
        if isinstance(raw_value, bool) or not isinstance(raw_value, _NUMBERS):
            return NO_TIME
        # Compared first: the integer that a decimal with a large exponent is would fill the memory.
        if not -_MOST_SECONDS <= raw_value <= _MOST_SECONDS:
            return NO_TIME
        return seconds_in_microseconds(raw_value)
    except Exception:  # noqa: BLE001 - an object's own methods; whether they fail is private
        return NO_TIME


_NUMBERS: Final = (int, float, Decimal, Fraction)


def _from_wall(raw_wall: IntArray, zone: tzinfo) -> IntArray:
    """Times of a zone's wall clocks, given as if they were UTC, in UTC.

    The offset from UTC is a step function of the wall's time. Where it is the same at both ends of
    an hour it is the same within; what is left is looked at by the minute, and so on.
    """
    raw_at = np.full(raw_wall.shape, NO_TIME)
    left = np.flatnonzero((raw_wall >= _FIRST_WALL) & (raw_wall <= _LAST_WALL))
    for width in (HOUR, MINUTE, SECOND, 1):
        spans, span_of = np.unique(raw_wall[left] // width, return_inverse=True)
        edges = (spans * width).tolist()
        offsets = [_offset(edge, zone) for edge in edges]
        steady = np.array(
            [
                width == 1 or _offset(edge + width, zone) == offset
                for edge, offset in zip(edges, offsets, strict=True)
            ],
            bool,
        )
        known = steady[span_of]
        raw_at[left[known]] = raw_wall[left[known]] - np.array(offsets, np.int64)[span_of[known]]
        left = left[~known]
    return raw_at


def _offset(wall: int, zone: tzinfo) -> int:
    """What a wall clock is ahead of UTC when it shows this time, in microseconds."""
    when = _UNIX + timedelta(microseconds=min(wall, _LAST_WALL))
    offset = when.replace(tzinfo=zone).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


# --- Text -----------------------------------------------------------------------------------------


def read_time(raw_cell: bytes | str, zone: str | None = None) -> int:
    """The time that a cell holds, or `NO_TIME`.

    **Privacy.** Touches raw data; total.

    Examples
    --------
    >>> read_time("2026-01-01 00:00:00+01:00"), read_time(b" 1767222000"), read_time("")
    (1767222000000000, 1767222000000000, -9223372036854775808)
    """
    return int(read_times([raw_cell], zone)[0])


def read_times(raw_cells: Sequence[bytes | str], zone: str | None = None) -> IntArray:
    """`read_time` of each cell.

    **Privacy.** Touches raw data; total. Cells of unusual form cost more time, before any release
    is made of them.
    """
    return _texts(raw_cells, time_zone(zone))


#: Bytes behind the date and the character T, for each precision of a time of day.
_PRECISIONS: Final = {
    0: "",
    6: " hh:mm",
    9: " hh:mm:ss",
    13: " hh:mm:ss.fff",
    16: " hh:mm:ss.ffffff",
}
#: By its length, what a text of the usual forms is: where which digits are, and how it ends.
_FORMS: Final = {
    10 + size + len(end): "YYYY-MM-DD" + text + end
    for size, text in _PRECISIONS.items()
    for end in ("", "Z", "+oo:uu")
    if size or not end
}


def _texts(raw_cells: Sequence[bytes | str], zone: tzinfo | None) -> IntArray:
    raw_texts = [
        (cell if isinstance(cell, bytes) else cell.encode("ascii", "replace")).strip()
        for cell in raw_cells
    ]
    raw_at = np.full(len(raw_texts), NO_TIME)
    sizes = np.fromiter(map(len, raw_texts), np.int64, len(raw_texts))
    left = np.ones(len(raw_texts), bool)
    for size in np.unique(sizes).tolist():
        if size in _FORMS:
            rows = np.flatnonzero(sizes == size)
            raw_same = (
                raw_texts
                if rows.size == len(raw_texts)
                else list(compress(raw_texts, sizes == size))
            )
            raw_found, fits = _usual(raw_same, _FORMS[size], zone)
            raw_at[rows], left[rows] = raw_found, ~fits
    raw_rest = list(compress(raw_texts, left))
    if raw_rest:
        raw_at[left] = _unusual(raw_rest, zone)
    return raw_at


def _usual(
    raw_texts: list[bytes], form: str, zone: tzinfo | None
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Times of texts of one form, and which of them really have it."""
    raw_bytes = (
        np.frombuffer(b"".join(raw_texts), np.uint8).reshape(len(raw_texts), len(form)).T.copy()
    )
    raw_bytes -= ord("0")  # what is no digit wraps around to more than 9
    fits = np.ones(len(raw_texts), bool)
    for index, mark in enumerate(form):
        if mark.isalpha() and mark != "Z":
            fits &= raw_bytes[index] <= 9
        else:
            allowed = {" ": b"T ", "+": b"+-"}.get(mark, mark.encode())
            fits &= np.isin(raw_bytes[index], np.frombuffer(allowed, np.uint8) - np.uint8(ord("0")))

    def number(mark: str) -> IntArray:
        raw_number = np.zeros(len(raw_texts), np.int64)
        for index in range(form.find(mark), form.find(mark) + form.count(mark)):
            raw_number = raw_number * 10 + raw_bytes[index]
        return raw_number

    raw_year, raw_month, raw_day = number("Y"), number("M"), number("D")
    raw_hour, raw_minute, raw_second = number("h"), number("m"), number("s")
    raw_months = (raw_year - 1970) * 12 + raw_month - 1
    raw_first = _first_day(raw_months)
    fits &= (raw_year >= 1) & (raw_month >= 1) & (raw_month <= 12)
    fits &= (raw_day >= 1) & (raw_first + raw_day <= _first_day(raw_months + 1))
    fits &= (raw_hour <= 23) & (raw_minute <= 59) & (raw_second <= 59)
    raw_at = (raw_first + raw_day - 1) * DAY
    raw_at += raw_hour * HOUR + raw_minute * MINUTE + raw_second * SECOND
    if "f" in form:
        raw_at += number("f") * 10 ** (6 - form.count("f"))
    if form.endswith("oo:uu"):
        raw_ahead, raw_past = number("o"), number("u")
        fits &= (raw_ahead <= 23) & (raw_past <= 59)
        minus = raw_bytes[form.index("+")] == (ord("-") - ord("0")) % 256
        raw_at -= np.where(minus, -1, 1) * (raw_ahead * HOUR + raw_past * MINUTE)
    elif not form.endswith("Z"):
        raw_at = (
            np.full(len(raw_texts), NO_TIME)
            if zone is None
            else _from_wall(np.where(fits, raw_at, NO_TIME), zone)
        )
    return np.where(fits, raw_at, NO_TIME), fits


def _first_day(raw_months: IntArray) -> IntArray:
    """Days from 1970 to the first of a month, given as months since 1970."""
    return raw_months.astype("M8[M]").astype("M8[D]").astype(np.int64)


_LETTERS: Final = re.compile(rb"[0-9TtWwZz:.,+ -]+")


def _unusual(raw_texts: list[bytes], zone: tzinfo | None) -> IntArray:
    """Times of texts of any form: most often seconds since 1970, all of them."""
    if b"_" not in b"".join(raw_texts):  # float() takes "1_000"
        try:
            return _seconds(np.fromiter(map(float, raw_texts), np.float64, len(raw_texts)))
        except ValueError:
            pass  # at least one is no number
    return np.fromiter((_text(raw, zone) for raw in raw_texts), np.int64, len(raw_texts))


def _text(raw_text: bytes, zone: tzinfo | None) -> int:
    try:
        if b"_" not in raw_text:
            return int(_seconds(np.array([float(raw_text)]))[0])
    except ValueError:
        pass
    try:
        if not _LETTERS.fullmatch(raw_text):
            return NO_TIME
        raw_at = since_1970(datetime.fromisoformat(raw_text.decode("ascii").upper()), zone)
    except (ValueError, OverflowError):
        return NO_TIME
    return NO_TIME if raw_at is None else raw_at
