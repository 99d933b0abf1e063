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

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.source.block import (
    DEFAULT_BLOCK_ROWS,
    Block,
    Position,
    check_block_rows,
)
from rillet.source.keys import DeclaredKeys, RawRows, Wanted, sequence_numbers
from rillet.source.lines import LineReader, blocks_of
from rillet.source.names import find_column
from rillet.source.number import numbers
from rillet.source.raw_buffer import RawRun

__all__ = ["read_csv"]


def read_csv(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    delimiter: str = ",",
    block_rows: int = DEFAULT_BLOCK_ROWS,
    start: Position | None = None,
    keys: DeclaredKeys | None = None,
    key_columns: Sequence[str] = (),
    sequence_column: str | None = None,
    follow: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[Block]:
    r"""Read a column of numbers from a CSV file, or from standard input for the path ``"-"``.

    **Privacy.** Touches raw data. The header is public, and so is the number of lines; no cell
    makes this raise, skip or add a row.

    **Delivery.** A file is read, never changed: continuing from the position of the last block that
    was absorbed gives each row exactly once, as long as the file only grows at its end. Standard
    input is delivered at most once: what was read and not absorbed is gone with the process, unless
    its writer sends everything again and ``start`` says how many rows to pass over.

    A file that is followed must only grow: if it shrinks, or another one takes its name, that is an
    error. One that is emptied and has grown beyond its old length before it is looked at again,
    within a tenth of a second, cannot be told from one that has only grown.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"``.
    column : str, optional
        The name of the column; not needed if there is only one.
    delimiter : str
        One ASCII character between cells.
    block_rows : int
        So many rows to a block; fewer at the end, from a pipe, or where lines are very long.
    start : Position, optional
        Continue behind a block read before.
    keys : DeclaredKeys, optional
        The declared keys, of which each row has one or none.
    key_columns : sequence of str
        The columns that hold the parts of a row's key, in the order of the parts.
    sequence_column : str, optional
        The column with a row's sequence number.
    follow : bool
        At the end of a file wait for it to grow, and take a last line only with its line end. The
        first line is waited for before this returns.
    stop : threading.Event, optional
        Once it is set, no further block comes.

    Returns
    -------
    iterator of Block
        The header has been checked when this returns.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, lacks a column, or is followed and did not only grow.
    ParameterError
        If a parameter is wrong.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "trips.csv")
    >>> _ = file.write_text("line,minutes\nnorth,12.5\nsouth,late\n")
    >>> [block.raw_values.tolist() for block in read_csv(file, "minutes")]
    [[12.5, nan]]
    """
    check_block_rows(block_rows)
    check_delimiter(delimiter)
    wanted = Wanted.checked(column, keys, key_columns, sequence_column)
    return csv_blocks(
        LineReader(path, follow=follow, stop=stop),
        wanted,
        delimiter=delimiter,
        block_rows=block_rows,
        start=start,
    )


def csv_blocks(
    reader: LineReader,
    wanted: Wanted,
    *,
    delimiter: str,
    block_rows: int,
    start: Position | None,
) -> Iterator[Block]:
    """Read the header from an open reader and return the blocks behind it; see `read_csv`."""
    separator = delimiter.encode("ascii")
    header = reader.first_line(consume=True).rstrip(b"\r")
    if b"\r" in header:
        raise InputError(
            f"{reader.name}: expected lines that end with a line feed, found carriage returns "
            "alone; convert the file, for instance with tr '\\r' '\\n'"
        )
    names = [cell.decode("utf-8", "replace").strip() for cell in _cells(header, separator)]
    return blocks_of(
        reader,
        _raw_rows(reader.name, names, wanted, separator),
        block_rows=block_rows,
        start=reader.go_to(start or Position()),
    )


def _raw_rows(
    source: str, names: list[str], wanted: Wanted, separator: bytes
) -> Callable[[RawRun], RawRows]:
    indexes = [find_column(source, names, wanted.column)]
    indexes += [find_column(source, names, name) for name in wanted.key_columns]
    if wanted.sequence_column is not None:
        indexes.append(find_column(source, names, wanted.sequence_column))
    raw_columns_of = _raw_columns(indexes, len(names), separator)
    keys, last_key = wanted.keys, 1 + len(wanted.key_columns)

    def raw_rows_of(raw_run: RawRun) -> RawRows:
        raw_columns = raw_columns_of(raw_run)
        plain = b"_" not in raw_run.raw_text
        return RawRows(
            numbers(raw_columns[0], plain=plain),
            None if keys is None else keys.places(*raw_columns[1:last_key]),
            None
            if wanted.sequence_column is None
            else sequence_numbers(raw_columns[last_key], plain=plain),
        )

    return raw_rows_of


def check_delimiter(delimiter: object) -> None:
    """Raise `ParameterError` unless ``delimiter`` can part cells."""
    # Whatever can occur inside a number would cut numbers in two.
    usable = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
    if not usable or str(delimiter).isalnum() or str(delimiter) in '"\r\n\0.+-_':
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
    """Tell whether every line has ``width`` cells: each so many cuts one is a line end."""
    raw_bytes = np.frombuffer(raw_run.raw_text, np.uint8)
    cuts = raw_bytes[(raw_bytes == ord("\n")) | (raw_bytes == ord(separator))]
    at_line_ends = cuts[width - 1 :: width]
    return cuts.size == raw_run.rows * width - 1 and bool(np.all(at_line_ends == ord("\n")))


def _cells(line: bytes, separator: bytes) -> list[bytes]:
    pattern = re.compile(_cell(separator, capture=True))
    cells: list[bytes] = []
    place = 0
    while (match := pattern.match(line, place)) and place <= len(line):
        cells.append(_unquoted(*match.groups(b"")))
        place = match.end() + len(separator)
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
