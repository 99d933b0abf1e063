r"""Numbers from a column of a CSV file.

The dialect is small and the same everywhere:

- UTF-8, a header line with names, then one observation to each line, an empty line included.
- Cells are parted by ``delimiter``. A cell that starts with a quotation mark ends at the next
  single one; two in a row stand for one; delimiters between them belong to the cell.
- A quoted cell ends with its line at the latest. That differs from RFC 4180 on purpose: with line
  breaks inside quotes, one stray quotation mark in one record would swallow all records behind it,
  and one person's value would decide how many observations the stream has.
- A line that is too short has no number: NaN, like a cell that is none.

Python's own ``csv`` and pyarrow agree with neither the last two points nor each other, and a row
that one of them drops is an observation lost, so the lines are cut here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.gather.clock import read_times
from rillet.source.base import RawRows
from rillet.source.cells import find_column, number, numbers
from rillet.source.keys import Wanted
from rillet.source.lines import RawRun

__all__ = ["check_delimiter", "csv_rows"]

_USUAL_DELIMITERS = ";\t|,"


def csv_rows(
    source: str, header: bytes, wanted: Wanted, delimiter: str, decimal: str = "."
) -> Callable[[RawRun], RawRows]:
    r"""Find the columns in a header line; return a function from lines to rows, total.

    **Privacy.** The header is public, and so is the number of lines; no cell makes the function
    raise, skip or add a row.

    Raises
    ------
    InputError
        If there is no such column.
    ParameterError
        If a column must be named, or the delimiter does not fit the header.

    Examples
    --------
    >>> rows_of = csv_rows("trips.csv", b"line,minutes", Wanted("minutes"), ",")
    >>> rows_of(RawRun(b"north,12.5\nsouth,late", 2, 0, 0)).raw_values
    array([12.5,  nan])
    """
    separator = delimiter.encode("ascii")
    header = header.rstrip(b"\r")
    if b"\r" in header:
        raise InputError(
            f"{source}: expected lines that end with a line feed, found carriage returns "
            "alone; convert the file, for instance with tr '\\r' '\\n'"
        )
    names = [cell.decode("utf-8", "replace").strip() for cell in _cells(header, separator)]
    _check_header(source, names, wanted, delimiter)
    indexes = [
        find_column(source, names, name, declared=False) for name in (wanted.column, *wanted.names)
    ]
    raw_columns_of = _raw_columns(indexes, len(names), separator)

    def raw_rows_of(raw_run: RawRun) -> RawRows:
        raw_values, *raw_others = raw_columns_of(raw_run)
        if decimal == ",":
            raw_values = [raw_cell.replace(b",", b".") for raw_cell in raw_values]
        plain = b"_" not in raw_run.raw_text
        raw_at = None if wanted.time is None else read_times(raw_others.pop(), wanted.zone)
        return wanted.raw_rows(numbers(raw_values, plain=plain), raw_others, raw_at, plain=plain)

    return raw_rows_of


def _check_header(source: str, names: list[str], wanted: Wanted, delimiter: str) -> None:
    """Refuse a header that is one column where another delimiter would make it several."""
    if wanted.column is None and any(not math.isnan(number(name.encode())) for name in names):
        raise InputError(
            f"{source}: expected a header line with names, found numbers; put a name on the "
            'first line, or read bare numbers, one to a line, with format="jsonl"'
        )
    other = [mark for mark in _USUAL_DELIMITERS if mark != delimiter and mark in names[0]]
    if len(names) == 1 and other and wanted.column not in names:
        raise ParameterError(
            "delimiter",
            f"the character between the names in the first line of {source}",
            delimiter,
            f"it has {other[0]!r} in its only name: try that as the delimiter, or name the column",
        )


def check_delimiter(delimiter: str, decimal: str = ".") -> None:
    """Raise `ParameterError` unless ``delimiter`` can part cells, and numbers stay whole."""
    if delimiter == decimal:
        raise ParameterError("delimiter", "another character than decimal", delimiter)
    # Whatever can occur inside a number would cut numbers in two.
    usable = len(delimiter) == 1 and delimiter.isascii() and not delimiter.isalnum()
    if not usable or delimiter in '"\r\n\0.+-_':
        raise ParameterError(
            "delimiter", "one ASCII character that occurs in no number, such as ';'", delimiter
        )


def _raw_columns(
    indexes: list[int], width: int, separator: bytes
) -> Callable[[RawRun], list[list[bytes]]]:
    """Return a function from a run to the cells of some columns, one for each line; total."""
    padding = separator * (max(indexes) + 1)  # Gives short lines an empty cell without a branch.
    cuts = max(indexes) + 1
    quoted = [
        re.compile(rb"(?:%b){%d}%b" % (before, index, _cell(separator, capture=True)))
        for before in [_cell(separator, capture=False) + re.escape(separator)]
        for index in indexes
    ]
    # All cells in one cut take less time than one cut for each line, unless most are not wanted.
    narrow = width <= 2 * cuts + 6

    def raw_quoted(pattern: re.Pattern[bytes], raw_line: bytes) -> bytes:
        match = pattern.match(raw_line)
        return _unquoted(*match.groups(b"")) if match else b""

    def raw_columns_of(raw_run: RawRun) -> list[list[bytes]]:
        raw_text = raw_run.raw_text
        if b'"' in raw_text:
            raw_lines = raw_run.raw_lines()
            return [[raw_quoted(pattern, line) for line in raw_lines] for pattern in quoted]
        if narrow and _is_regular(raw_run, width, separator):
            raw_cells = raw_text.replace(b"\n", separator).split(separator)
            return [raw_cells[index::width] for index in indexes]
        raw_cut = [(line + padding).split(separator, cuts) for line in raw_run.raw_lines()]
        return [[raw_row[index] for raw_row in raw_cut] for index in indexes]

    return raw_columns_of


def _is_regular(raw_run: RawRun, width: int, separator: bytes) -> bool:
    """Tell whether every line has ``width`` cells: every width-th separator is a line end."""
    raw_bytes = np.frombuffer(raw_run.raw_text, np.uint8)
    cuts = raw_bytes[(raw_bytes == ord("\n")) | (raw_bytes == ord(separator))]
    at_line_ends = cuts[width - 1 :: width]
    return cuts.size == raw_run.rows * width - 1 and bool(np.all(at_line_ends == ord("\n")))


def _cells(line: bytes, separator: bytes) -> list[bytes]:
    pattern = re.compile(_cell(separator, capture=True))
    cells: list[bytes] = []
    index = 0
    while (match := pattern.match(line, index)) and index <= len(line):
        cells.append(_unquoted(*match.groups(b"")))
        index = match.end() + len(separator)
    return cells


def _cell(separator: bytes, *, capture: bool) -> bytes:
    """Return the pattern of a cell: what is inside quotation marks, and what is outside.

    It matches the empty cell too. The possessive quantifiers keep the time linear in the line,
    whatever is in it.
    """
    inside = rb'[^"]*+(?:""[^"]*+)*+'
    outside = rb"[^" + re.escape(separator) + rb"]*+"
    if capture:
        inside, outside = rb"(" + inside + rb")", rb"(" + outside + rb")"
    return rb'(?:"' + inside + rb'"?+)?+' + outside


def _unquoted(inside: bytes, outside: bytes) -> bytes:
    return inside.replace(b'""', b'"') + outside
