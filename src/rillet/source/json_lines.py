"""Numbers from a field of JSON lines.

One JSON object to each line, in UTF-8. A number in the field is itself; text is read as a CSV cell
would be; anything else, a missing field or a line that is not JSON is NaN. ``NaN`` and
``Infinity``, which many programs write, are read although JSON does not have them.

Without a column each line is a bare number, read as a CSV cell would be. A time is text as in CSV,
or a number of seconds since 1970.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.gather.clock import as_times
from rillet.gather.gate import id_text
from rillet.source.base import RawRows, is_integer
from rillet.source.cells import find_column, listed, number, numbers, text_of
from rillet.source.keys import Wanted

__all__ = ["check_record", "json_rows"]

_LONG_INTEGER = 40


def _integer(text: str) -> int | float:
    """Read an integer; a long one becomes a float at once, for Python refuses 4,300 digits."""
    return int(text) if len(text) < _LONG_INTEGER else float(text)


_decode: Callable[[str], Any] = json.JSONDecoder(parse_int=_integer).decode

_NO_VALUE = object()


def check_record(source: str, first: bytes, wanted: Wanted) -> None:
    """Check the first record, which stands in for a header.

    **Privacy.** The shape of the first record is public: a number or an object, and the names of
    its fields.

    Raises
    ------
    InputError
        If it lacks a field, or is of another shape.
    ParameterError
        If a field must be named.
    """
    record = _record(first)
    if isinstance(record, dict):
        # Even a single field must be named: lines may lack it, and those are NaN, not an error.
        if wanted.column is None:
            raise ParameterError("column", f"one of {listed(list(record))}", None)
        for name in (wanted.column, *wanted.names):
            find_column(source, list(record), name)
        return
    if wanted.column is not None:
        expected = "a JSON object on the first line, since a column is named"
    elif isinstance(record, list) or (record is _NO_VALUE and math.isnan(number(first))):
        expected = "a number on the first line, since no column is named"
    elif wanted.names:
        raise ParameterError(
            "column",
            "the name of a field, since keys, sequence numbers, times and persons are read from "
            "fields",
            None,
        )
    else:
        return
    raise InputError(
        f"{source}: expected {expected}, found something else; is this JSON lines? CSV needs "
        'format="csv"'
    )


def _record(raw_line: bytes) -> Any:
    """Return what a line holds, or ``_NO_VALUE``; total."""
    try:
        return _decode(raw_line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # The latter for brackets nested a thousand deep.
        return _NO_VALUE


def _raw_records(raw_lines: list[bytes]) -> list[Any]:
    """Return `_record` of each line, in one call of the parser where that is the same.

    The lines are joined to one JSON array. It has one object for each line, and it is the object
    that the line alone would give, if all of this holds: every line starts with a brace; no
    line has a bracket; the array parses; it has as many members as there are lines. For a line
    break cannot lie inside a string (the parser refuses it) nor inside an object (a brace follows
    where a name must), and there is no inner array, so every line holds at least one whole member.
    """
    raw_joined = b",\n".join(raw_lines)
    all_objects = raw_joined.count(b",\n{") == len(raw_lines) - 1 and raw_joined[:1] == b"{"
    if all_objects and b"[" not in raw_joined:
        raw_array = _record(b"[" + raw_joined + b"]")
        if isinstance(raw_array, list) and len(raw_array) == len(raw_lines):
            return raw_array
    return list(map(_record, raw_lines))


def _number(raw_value: object) -> float:
    if isinstance(raw_value, float):
        return raw_value
    if isinstance(raw_value, str):
        return number(raw_value.encode("utf-8", "replace"))
    return float(raw_value) if is_integer(raw_value) else math.nan


def json_rows(wanted: Wanted) -> Callable[..., RawRows]:
    r"""Return a function from lines to rows; total. Without a column each line is a bare number.

    It also takes the texts of some fields, by name, where these are known from elsewhere.

    **Privacy.** Touches raw data. The number of lines is public; beyond it no line makes the
    function raise, skip or add a row.

    Examples
    --------
    >>> json_rows(Wanted("minutes"))([b'{"minutes": 12.5}', b'{"minutes": null}']).raw_values
    array([12.5,  nan])
    """
    column, time = wanted.column, wanted.time
    if column is None:
        return lambda raw_lines: RawRows(numbers(raw_lines))

    def raw_rows_of(
        raw_lines: list[bytes], raw_known: Mapping[str, list[bytes]] = MappingProxyType({})
    ) -> RawRows:
        raw_records = [
            record if isinstance(record, dict) else {} for record in _raw_records(raw_lines)
        ]
        raw_found = map(_number, [record.get(column) for record in raw_records])
        raw_at = None
        if time is not None:
            raw_times = [record.get(time) for record in raw_records]
            raw_at = as_times(raw_times, len(raw_records), wanted.zone)
        raw_texts = [
            raw_known[name]
            if name in raw_known
            else [text_of(record.get(name)) for record in raw_records]
            for name in wanted.texts
        ]
        if wanted.person is not None:
            raw_texts[-1] = [id_text(record.get(wanted.person)) for record in raw_records]
        raw_values = np.fromiter(raw_found, dtype=np.float64, count=len(raw_records))
        return wanted.raw_rows(raw_values, raw_texts, raw_at)

    return raw_rows_of
