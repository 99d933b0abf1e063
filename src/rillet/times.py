"""Public times and durations: whole microseconds since 1970 in UTC, and how people write them.

Integers, so that the edges of ticks are exact. UTC has no gaps and no repeated hours, so every
duration here is a fixed number of seconds: a day is 24 hours, whatever clocks on walls do.

**Privacy.** Public numbers only; what a record says about its time is read in
:mod:`rillet.gather.clock`.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from rillet.errors import ParameterError

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "SECOND",
    "duration",
    "duration_words",
    "moment",
    "now",
    "per_period",
    "period_words",
    "seconds_in_microseconds",
    "show_duration",
    "show_moment",
    "since_1970",
    "time_zone",
]

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

_UNITS: Final = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_CALENDAR: Final = re.compile(r"(?:M|mo|mon|months?|q|quarters?|y|yr|years?|Y)")
#: As far as a date can go, from year 1 to 9999; also keeps sums of a few of them within 64 bits.
LONGEST: Final = 3_652_059 * DAY
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> int:
    """What the wall clock of this machine says."""
    return time.time_ns() // 1000


def duration(text: str, name: str = "every") -> int:
    """A length of time as microseconds: a whole number and a unit.

    Units are ``s``, ``m`` (minutes), ``h``, ``d`` (24 hours) and ``w`` (7 days).

    Raises
    ------
    ParameterError
        If it is no such text, is zero, or is in months or years.

    Examples
    --------
    >>> duration("15m"), duration("2w") == duration("14d")
    (900000000, True)
    """
    expected = 'a whole number and one of the units s, m, h, d, w, such as "15m", "1h" or "7d"'
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)", str(text))
    if found is None:
        raise ParameterError(name, expected, text)
    number, unit = found.groups()
    if _CALENDAR.fullmatch(unit):
        hint = 'months and years differ in length; count days, such as "30d" or "365d"'
        raise ParameterError(name, expected, text, hint)
    if unit not in _UNITS:
        raise ParameterError(name, expected, text)
    if not number.isdecimal():
        raise ParameterError(
            name, expected, text, 'use a smaller unit: "90m" for one hour and a half'
        )
    # A length first: Python refuses to read an integer of thousands of digits.
    length = int(number) * _UNITS[unit] if len(number) < 16 else LONGEST + 1
    if not SECOND <= length <= LONGEST:
        raise ParameterError(name, "at least 1s and at most 9,999 years", text)
    return length


def show_duration(length: int) -> str:
    """A duration as text that `duration` reads: in the largest of d, h, m, s that divides it.

    Examples
    --------
    >>> show_duration(duration("3600s")), show_duration(duration("366d"))
    ('1h', '366d')
    """
    for unit in ("d", "h", "m", "s"):
        if length % _UNITS[unit] == 0:
            return f"{length // _UNITS[unit]}{unit}"
    return f"{length / SECOND:.6f}".rstrip("0") + "s"


def duration_words(length: int) -> str:
    """A duration for a person, in its two largest units; what is below them is cut off.

    Examples
    --------
    >>> duration_words(duration("292h")), duration_words(duration("60d"))
    ('12 days 4 hours', '60 days')
    """
    parts, left = [], length
    for unit, word in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (SECOND, "second")):
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count:,} {word}{'s' * (count > 1)}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 seconds"


def period_words(length: int) -> str:
    """How often something happens, for a person.

    Examples
    --------
    >>> period_words(duration("1h")), period_words(duration("15m"))
    ('each hour', 'every 15 minutes')
    """
    number, _, unit = duration_words(length).partition(" ")
    return f"each {unit}" if number == "1" and " " not in unit else f"every {number} {unit}"


def per_period(rate: float | str, period: int, name: str = "rate") -> float:
    """How many come in a period: a number is already that, ``"400/h"`` is so many an hour.

    Raises
    ------
    ParameterError
        If it is neither, or not positive.

    Examples
    --------
    >>> per_period("400/h", duration("15m")), per_period(7, duration("15m"))
    (100.0, 7.0)
    """
    expected = 'a positive number, for each tick, or with a unit s, m, h, d or w, as "400/h"'
    typed, slash, unit = str(rate).replace("_", "").partition("/")
    try:
        number = -1.0 if isinstance(rate, bool) else float(typed)
    except ValueError:
        number = -1.0
    if not 0 < number < 2.0**62 or (slash and unit not in _UNITS):
        raise ParameterError(name, expected, rate)
    return number * period / _UNITS[unit] if slash else number


@lru_cache(maxsize=64)
def time_zone(zone: str | None) -> tzinfo | None:
    """The zone of a name such as ``"Europe/Berlin"``; None for None.

    Raises
    ------
    ParameterError
        If there is no such zone, or no database of zones on this machine.
    """
    if zone is None:
        return None
    if zone == "UTC":
        return UTC
    try:
        return ZoneInfo(zone)
    except (OSError, LookupError, TypeError, ValueError):
        pass
    try:
        ZoneInfo("Europe/Berlin")
        hint = None
    except (OSError, LookupError):
        hint = "this machine has no database of time zones: type: pip install tzdata"
    raise ParameterError("zone", 'a time zone such as "Europe/Berlin" or "UTC"', zone, hint)


def moment(value: object, zone: str | None = None, name: str = "start") -> int:
    """A declared time as microseconds since 1970.

    ISO 8601 text, a ``datetime``, a date (its midnight), or seconds since 1970. What names no zone
    is a time of ``zone``; of a time that a change of clocks repeats the first is meant, and one
    that it skips is read with the offset from before the change.

    Raises
    ------
    ParameterError
        If it is none of these, or names no zone and ``zone`` is None.

    Examples
    --------
    >>> show_moment(moment("2026-01-01T01:00+01:00"))
    '2026-01-01T00:00:00Z'
    >>> show_moment(moment("2026-07-01", zone="Europe/Berlin"))
    '2026-06-30T22:00:00Z'
    """
    expected = 'a time such as "2026-01-01T00:00Z", a datetime with a zone, or seconds since 1970'
    where = time_zone(zone)
    found: object = value.item() if isinstance(value, np.number) else value
    try:
        if isinstance(found, str):
            found = _from_text(found.strip())
        if isinstance(found, date) and not isinstance(found, datetime):
            found = datetime(found.year, found.month, found.day)  # noqa: DTZ001 - zone or refused
        if isinstance(found, datetime):
            microseconds = since_1970(found, where)
            if microseconds is None:
                hint = (
                    'add its offset ("Z" for UTC), or declare a zone such as zone="Europe/Berlin"'
                )
                raise ParameterError(name, "a time with a zone", value, hint)
        elif isinstance(found, int | float) and not isinstance(found, bool):
            microseconds = seconds_in_microseconds(found)
        else:
            raise ParameterError(name, expected, value)
        show_moment(microseconds)
    except ParameterError:
        raise
    except (ValueError, OverflowError) as error:
        raise ParameterError(name, expected, value) from error
    return microseconds


def _from_text(text: str) -> datetime | float:
    """ISO 8601, or a decimal number; eight digits could be either."""
    if re.fullmatch(r"[0-9]{8}", text):
        raise ValueError("a date without hyphens, or seconds")
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text) if len(text) < 20 else float(text)
    if re.fullmatch(r"[+-]?[0-9]+\.[0-9]*", text):
        return float(text)
    return datetime.fromisoformat(text)


def since_1970(when: datetime, zone: tzinfo | None) -> int | None:
    """Microseconds of a ``datetime``; None if neither it nor ``zone`` tells its offset from UTC.

    Raises what the object's own time zone raises.
    """
    offset = when.utcoffset()
    if offset is None:
        if zone is None:
            return None
        offset = when.replace(tzinfo=zone).utcoffset()
        assert offset is not None
    return _microseconds(when.replace(tzinfo=UTC) - _EPOCH) - _microseconds(offset)


def _microseconds(difference: timedelta) -> int:
    return (difference.days * 86_400 + difference.seconds) * SECOND + difference.microseconds


def seconds_in_microseconds(seconds: float | Decimal | Fraction) -> int:
    """Seconds in the nearest microseconds; raises `ValueError` or `OverflowError` for NaN and inf.

    The whole part apart, because seconds times a million need more digits than a float has.
    """
    whole = int(seconds // 1)
    return whole * SECOND + round(float(seconds - whole) * SECOND)


def show_moment(microseconds: int) -> str:
    """A time as ISO 8601 in UTC, with a fraction only where there is one.

    Raises
    ------
    ParameterError
        If it is before year 1 or after year 9999.

    Examples
    --------
    >>> show_moment(1_767_225_600_000_000)
    '2026-01-01T00:00:00Z'
    """
    try:
        when = _EPOCH + timedelta(microseconds=int(microseconds))
    except OverflowError as error:
        raise ParameterError("time", "one in the years 1 to 9999", int(microseconds)) from error
    return when.replace(tzinfo=None).isoformat() + "Z"
