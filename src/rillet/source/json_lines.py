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
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.source.block import (
    DEFAULT_BLOCK_ROWS,
    Block,
    Position,
    check_block_rows,
    is_integer,
)
from rillet.source.keys import DeclaredKeys, RawRows, Wanted, sequence_numbers, text_of
from rillet.source.lines import LineReader, blocks_of
from rillet.source.names import find_column, listed
from rillet.source.number import number, numbers

__all__ = ["read_json_lines"]

_LONG_INTEGER = 40


def _integer(text: str) -> int | float:
    """Read an integer; a long one becomes a float at once, for Python refuses 4,300 digits."""
    return int(text) if len(text) < _LONG_INTEGER else float(text)


_decode: Callable[[str], Any] = json.JSONDecoder(parse_int=_integer).decode

_NO_VALUE = object()


def read_json_lines(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    block_rows: int = DEFAULT_BLOCK_ROWS,
    start: Position | None = None,
    keys: DeclaredKeys | None = None,
    key_columns: Sequence[str] = (),
    sequence_column: str | None = None,
    follow: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[Block]:
    r"""Read a field of numbers from JSON lines, or from standard input for the path ``"-"``.

    **Privacy.** Touches raw data. The number of lines is public, and so is the shape of the first
    record, which stands in for a header: a number or an object, and the names of its fields. Beyond
    that no line makes this raise, skip or add a row.

    **Delivery.** As `rillet.source.read_csv`: a file exactly once from the position of the last
    absorbed block, followed or not, standard input at most once.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"``.
    column : str, optional
        The name of the field; None if each line is a bare number.
    block_rows : int
        So many rows to a block; fewer at the end, from a pipe, or where lines are very long.
    start : Position, optional
        Continue behind a block read before.
    keys : DeclaredKeys, optional
        The declared keys, of which each record has one or none.
    key_columns : sequence of str
        The fields that hold the parts of a record's key, text or integers, in the order of the
        parts.
    sequence_column : str, optional
        The field with a record's sequence number.
    follow : bool
        At the end of a file wait for it to grow, and take a last line only with its line end. The
        first line is waited for before this returns.
    stop : threading.Event, optional
        Once it is set, no further block comes.

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
    wanted = Wanted.checked(column, keys, key_columns, sequence_column)
    reader = LineReader(path, follow=follow, stop=stop)
    return json_blocks(reader, wanted, block_rows=block_rows, start=start)


def json_blocks(
    reader: LineReader, wanted: Wanted, *, block_rows: int, start: Position | None
) -> Iterator[Block]:
    """Check the first record of an open reader and return all blocks; see `read_json_lines`."""
    _check_shape(reader.name, reader.first_line(consume=False), wanted)
    raw_rows_of = raw_fields(wanted)
    return blocks_of(
        reader,
        lambda raw_run: raw_rows_of(raw_run.raw_lines()),
        block_rows=block_rows,
        start=reader.go_to(start or Position()),
    )


def _check_shape(source: str, first: bytes, wanted: Wanted) -> None:
    record = _record(first)
    if isinstance(record, dict):
        # Even a single field must be named: lines may lack it, and those are NaN, not an error.
        if wanted.column is None:
            raise ParameterError("column", f"one of {listed(list(record))}", None)
        for name in (wanted.column, *wanted.key_columns, wanted.sequence_column):
            if name is not None:
                find_column(source, list(record), name)
    elif wanted.column is not None:
        raise InputError(
            f"{source}: expected a JSON object on the first line, since a column is named, found "
            'something else; is this JSON lines? CSV needs format="csv"'
        )
    elif isinstance(record, list) or (record is _NO_VALUE and math.isnan(number(first))):
        raise InputError(
            f"{source}: expected a number on the first line, since no column is named, found "
            'something else; is this JSON lines? CSV needs format="csv"'
        )
    elif not wanted.only_values:
        raise ParameterError(
            "column",
            "the name of a field, since keys and sequence numbers are read from fields",
            None,
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


def raw_fields(wanted: Wanted) -> Callable[[list[bytes]], RawRows]:
    """Return a function from lines to what is wanted of each; total.

    **Privacy.** Touches raw data. Without ``wanted.column`` each line is a bare number.
    """
    column, sequence_column, keys = wanted.column, wanted.sequence_column, wanted.keys
    if column is None:
        return lambda raw_lines: RawRows(numbers(raw_lines))

    def raw_rows_of(raw_lines: list[bytes]) -> RawRows:
        raw_records = [
            record if isinstance(record, dict) else {} for record in _raw_records(raw_lines)
        ]
        raw_found = map(_number, [record.get(column) for record in raw_records])
        raw_values = np.fromiter(raw_found, dtype=np.float64, count=len(raw_records))
        key_of = sequence = None
        if keys is not None:
            key_of = keys.places(
                *(
                    [text_of(record.get(name)) for record in raw_records]
                    for name in wanted.key_columns
                )
            )
        if sequence_column is not None:
            sequence = sequence_numbers(
                [text_of(record.get(sequence_column)) for record in raw_records]
            )
        return RawRows(raw_values, key_of, sequence)

    return raw_rows_of
