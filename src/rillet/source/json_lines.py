"""Numbers from a field of JSON lines.

One JSON object to each line, in UTF-8. A number in the field is itself; text is read as a CSV cell
would be; anything else, a missing field or a line that is not JSON is NaN. ``NaN`` and
``Infinity``, which many programs write, are read although JSON does not have them.

Without ``column`` each line is a bare number, read as a CSV cell would be.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.source.block import (
    DEFAULT_BLOCK_ROWS,
    Block,
    FloatArray,
    Position,
    check_block_rows,
)
from rillet.source.lines import LineReader, blocks_of
from rillet.source.names import find_column, listed
from rillet.source.number import number, numbers

__all__ = ["read_json_lines"]

# Integers become floats at once: Python refuses integers of more than 4,300 digits, and those
# beyond the largest double could not be converted later.
_decode: Callable[[str], Any] = json.JSONDecoder(parse_int=float).decode

_NO_VALUE = object()


def read_json_lines(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    block_rows: int = DEFAULT_BLOCK_ROWS,
    start: Position | None = None,
) -> Iterator[Block]:
    r"""Read a field of numbers from JSON lines, or from standard input for the path ``"-"``.

    **Privacy.** Touches raw data. The number of lines is public, and so is the shape of the first
    record, which stands in for a header: a number or an object, and the names of its fields. Beyond
    that no line makes this raise, skip or add a row.

    **Delivery.** As `rillet.source.read_csv`: a file exactly once from the position of the last
    absorbed block, standard input at most once.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"``.
    column : str, optional
        The name of the field; None if each line is a bare number.
    block_rows : int
        At most so many rows to a block.
    start : Position, optional
        Continue behind a block read before.

    Returns
    -------
    iterator of Block
        The first record has been checked when this returns.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, or its first record lacks the field.
    ParameterError
        If a parameter is wrong.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "trips.jsonl")
    >>> _ = file.write_text('{"minutes": 12.5}\n{"minutes": null}\n')
    >>> [block.raw_values.tolist() for block in read_json_lines(file, "minutes")]
    [[12.5, nan]]
    """
    check_block_rows(block_rows)
    return json_blocks(LineReader(path), column, block_rows=block_rows, start=start)


def json_blocks(
    reader: LineReader, column: str | None, *, block_rows: int, start: Position | None
) -> Iterator[Block]:
    """Check the first record of an open reader and return all blocks; see `read_json_lines`."""
    _check_shape(reader.name, reader.first_line(consume=False), column)
    return blocks_of(
        reader,
        numbers if column is None else _raw_field(column),
        block_rows=block_rows,
        start=reader.go_to(start or Position()),
    )


def _check_shape(source: str, first: bytes, column: str | None) -> None:
    record = _record(first)
    if isinstance(record, dict):
        # Even a single field must be named: lines may lack it, and those are NaN, not an error.
        if column is None:
            raise ParameterError("column", f"one of {listed(list(record))}", None)
        find_column(source, list(record), column)
    elif column is not None:
        raise InputError(
            f"{source}: expected a JSON object on the first line, since a column is named, found "
            'something else; is this JSON lines? CSV needs format="csv"'
        )
    elif isinstance(record, list) or (record is _NO_VALUE and math.isnan(number(first))):
        raise InputError(
            f"{source}: expected a number on the first line, since no column is named, found "
            'something else; is this JSON lines? CSV needs format="csv"'
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
    return math.nan


def _raw_field(column: str) -> Callable[[list[bytes]], FloatArray]:
    def raw_values_of(raw_lines: list[bytes]) -> FloatArray:
        raw_found = [
            record.get(column) if isinstance(record, dict) else None
            for record in _raw_records(raw_lines)
        ]
        return np.fromiter(map(_number, raw_found), dtype=np.float64, count=len(raw_found))

    return raw_values_of
