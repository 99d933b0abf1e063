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

import functools
import os
import re
from collections.abc import Callable, Iterator

from rillet.errors import InputError, ParameterError
from rillet.source.block import (
    DEFAULT_BLOCK_ROWS,
    Block,
    FloatArray,
    Position,
    check_block_rows,
)
from rillet.source.lines import LineReader, blocks_of
from rillet.source.names import find_column
from rillet.source.number import numbers

__all__ = ["read_csv"]


def read_csv(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    delimiter: str = ",",
    block_rows: int = DEFAULT_BLOCK_ROWS,
    start: Position | None = None,
) -> Iterator[Block]:
    r"""Read a column of numbers from a CSV file, or from standard input for the path ``"-"``.

    **Privacy.** Touches raw data. The header is public, and so is the number of lines; no cell
    makes this raise, skip or add a row.

    **Delivery.** A file is read, never changed: continuing from the position of the last block that
    was absorbed gives each row exactly once, as long as the file only grows at its end. Standard
    input is delivered at most once: what was read and not absorbed is gone with the process, unless
    its writer sends everything again and ``start`` says how many rows to pass over.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"``.
    column : str, optional
        The name of the column; not needed if there is only one.
    delimiter : str
        One ASCII character between cells.
    block_rows : int
        At most so many rows to a block.
    start : Position, optional
        Continue behind a block read before.

    Returns
    -------
    iterator of Block
        The header has been checked when this returns.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, or lacks the column.
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
    return csv_blocks(
        LineReader(path), column, delimiter=delimiter, block_rows=block_rows, start=start
    )


def csv_blocks(
    reader: LineReader,
    column: str | None,
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
    cells = _cells(header, separator)
    names = [cell.decode("utf-8", "replace").strip() for cell in cells]
    index = find_column(reader.name, names, column)
    return blocks_of(
        reader,
        _raw_column(index, separator),
        block_rows=block_rows,
        start=reader.go_to(start or Position()),
    )


def check_delimiter(delimiter: object) -> None:
    """Raise `ParameterError` unless ``delimiter`` can part cells."""
    # Whatever can occur inside a number would cut numbers in two.
    usable = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
    if not usable or str(delimiter).isalnum() or str(delimiter) in '"\r\n\0.+-_':
        raise ParameterError(
            "delimiter", "one ASCII character that occurs in no number, such as ';'", delimiter
        )


def _raw_column(index: int, separator: bytes) -> Callable[[list[bytes]], FloatArray]:
    padding = separator * (index + 1)  # Gives short lines an empty cell without a branch.
    cuts = index + 1

    def raw_values_of(raw_lines: list[bytes]) -> FloatArray:
        if any(b'"' in line for line in raw_lines):
            raw_cells = [_raw_cell(line, index, separator) for line in raw_lines]
        else:
            raw_cells = [(line + padding).split(separator, cuts)[index] for line in raw_lines]
        return numbers(raw_cells)

    return raw_values_of


def _raw_cell(raw_line: bytes, index: int, separator: bytes) -> bytes:
    raw_cells = _cells(raw_line, separator)
    return raw_cells[index] if index < len(raw_cells) else b""


def _cells(raw_line: bytes, separator: bytes) -> list[bytes]:
    """Cut a line into cells; total."""
    if b'"' not in raw_line:
        return raw_line.split(separator)
    pattern = _cell_pattern(separator)
    raw_cells = []
    place = 0
    while True:
        match = pattern.match(raw_line, place)
        # The pattern matches everywhere: each of its parts may be empty.
        quoted, rest, end = match.groups(b"") if match else (b"", raw_line[place:], b"")
        raw_cells.append(quoted.replace(b'""', b'"') + rest)
        if not match or not end:
            return raw_cells
        place = match.end()


@functools.cache
def _cell_pattern(separator: bytes) -> re.Pattern[bytes]:
    part = re.escape(separator)
    # The possessive quantifiers keep the time linear in the line, whatever is in it.
    return re.compile(rb'(?:"((?:[^"]|"")*+)"?+)?+([^' + part + rb"]*+)(" + part + rb")?+")
