"""Durations and declared times: what is allowed, and that each has one canonical text."""

# ruff: noqa: DTZ001 - naive times are part of the subject

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rillet import ParameterError
from rillet.times import (
    LONGEST,
    SECOND,
    duration,
    duration_words,
    moment,
    per_period,
    period_words,
    show_duration,
    show_moment,
    time_zone,
)


@pytest.mark.parametrize(
    ("text", "seconds", "canonical"),
    [
        ("1s", 1, "1s"),
        ("90s", 90, "90s"),
        ("15m", 900, "15m"),
        ("60m", 3600, "1h"),
        ("1h", 3600, "1h"),
        ("24h", 86400, "1d"),
        ("7d", 7 * 86400, "7d"),
        ("2w", 14 * 86400, "14d"),
        ("366d", 366 * 86400, "366d"),
        ("007d", 7 * 86400, "7d"),
    ],
)
def test_durations(text, seconds, canonical):
    assert duration(text) == seconds * SECOND
    assert show_duration(duration(text)) == canonical


@given(st.integers(1, LONGEST // SECOND))
def test_a_shown_duration_is_read_back(seconds):
    assert duration(show_duration(seconds * SECOND)) == seconds * SECOND


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "h",
        "0s",
        "0d",
        "-1h",
        "1.5h",
        "1h30m",
        "1 h",
        "1H",
        "10ms",
        "1D",
        "one hour",
        "٣h",
        "9" * 5000 + "d",
        "3652060d",
        "1h\n",
        3600,
        None,
        "1é",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ParameterError, match=r"^window: expected"):
        duration(text, "window")


@pytest.mark.parametrize("unit", ["M", "mo", "month", "months", "y", "Y", "year", "years", "q"])
def test_months_and_years_are_refused_with_the_reason(unit):
    with pytest.raises(ParameterError, match=r'differ in length; count days, such as "30d"'):
        duration(f"1{unit}")


NEW_YEAR = 1_767_225_600 * SECOND  # 2026


@pytest.mark.parametrize(
    ("value", "zone"),
    [
        ("2026-01-01T00:00Z", None),
        ("2026-01-01T01:00+01:00", None),
        (" 2025-12-31 19:00:00-05:00", "Europe/Berlin"),
        ("2026-01-01", "UTC"),
        ("2026-01-01T01:00", "Europe/Berlin"),
        ("2025-12-31T19:00", "America/New_York"),
        ("20260101T000000Z", None),
        ("1767225600", None),
        ("1767225600.0", None),
        (1_767_225_600, None),
        (1_767_225_600.0, None),
        (np.int64(1_767_225_600), None),
        (np.float64(1_767_225_600), None),
        (datetime(2026, 1, 1, tzinfo=UTC), None),
        (datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "America/New_York"),
        (datetime(2026, 1, 1, 1), "Europe/Berlin"),
        (date(2026, 1, 1), "UTC"),
    ],
)
def test_a_moment_in_many_forms(value, zone):
    assert moment(value, zone) == NEW_YEAR
    assert show_moment(moment(value, zone)) == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("2026-01-01", "declare a zone"),
        ("2026-01-01T00:00", "declare a zone"),
        (datetime(2026, 1, 1), "declare a zone"),
        (date(2026, 1, 1), "declare a zone"),
        ("20260101", "expected a time"),  # a date or seconds?
        ("yesterday", "expected a time"),
        ("2026-02-29T00:00Z", "expected a time"),
        ("", "expected a time"),
        ("9" * 5000, "."),
        (float("nan"), "expected a time"),
        (float("inf"), "expected a time"),
        (1e18, "years 1 to 9999"),
        (True, "expected a time"),
        (None, "expected a time"),
        (np.datetime64("2026-01-01"), "expected a time"),
        ([2026], "expected a time"),
    ],
)
def test_what_is_no_moment_is_refused(value, hint):
    with pytest.raises(ParameterError, match=hint):
        moment(value, None)


def test_zones_that_do_not_exist_are_refused():
    for zone in ("Europe/Atlantis", "Europe", "../../etc/passwd", "", "\0", "Bérlin"):
        with pytest.raises(ParameterError, match=r"^zone: expected a time zone"):
            time_zone(zone)


def test_a_machine_without_zones_is_told_what_to_install(monkeypatch):
    def none(key):
        raise LookupError(key)

    monkeypatch.setattr("rillet.times.ZoneInfo", none)
    time_zone.cache_clear()
    with pytest.raises(ParameterError, match="pip install tzdata"):
        time_zone("Europe/Paris")
    assert time_zone("UTC") is UTC
    time_zone.cache_clear()


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])))
def test_a_shown_moment_is_read_back(when):
    try:
        in_utc = when.astimezone(UTC)
    except OverflowError:
        with pytest.raises(ParameterError):
            moment(when)
        return
    expected = (in_utc - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert moment(when) == moment(when.isoformat()) == expected
    assert moment(show_moment(expected)) == expected


@pytest.mark.parametrize(
    ("text", "words", "often"),
    [
        ("1s", "1 second", "each second"),
        ("90s", "1 minute 30 seconds", "every 1 minute 30 seconds"),
        ("15m", "15 minutes", "every 15 minutes"),
        ("1h", "1 hour", "each hour"),
        ("292h", "12 days 4 hours", "every 12 days 4 hours"),
        ("1w", "7 days", "every 7 days"),
        ("86401s", "1 day", "each day"),  # what is below two units that follow each other is cut
        ("90061s", "1 day 1 hour", "every 1 day 1 hour"),
    ],
)
def test_durations_in_words(text, words, often):
    assert duration_words(duration(text)) == words
    assert period_words(duration(text)) == often


def test_a_rate_is_a_number_for_each_period_or_has_a_unit():
    hour = duration("1h")
    found = [per_period(rate, hour) for rate in (400, 0.5, "400", "400/h", "1/m", "2.4e2/d", "1/s")]
    assert found == [400, 0.5, 400, 400, 60, 10, 3600]
    assert per_period("1_400/w", duration("1d")) == 200


@pytest.mark.parametrize(
    "rate", [0, -1, "0/h", "-3/h", "400/", "400/y", "/h", "many", "nan", "inf/h", True, None, []]
)
def test_other_rates_are_refused(rate):
    with pytest.raises(ParameterError, match=r"^rate: "):
        per_period(rate, duration("1h"))
