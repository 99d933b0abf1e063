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
    before = _cell(separator, capture=False) + re.escape(separator)
    quoted = re.compile(rb"(?:%b){%d}%b" % (before, index, _cell(separator, capture=True)))

    def raw_quoted(raw_line: bytes) -> bytes:
        match = quoted.match(raw_line)
        return _unquoted(*match.groups(b"")) if match else b""

    def raw_values_of(raw_lines: list[bytes]) -> FloatArray:
        if b'"' in b"".join(raw_lines):
            return numbers(list(map(raw_quoted, raw_lines)))
        return numbers([(line + padding).split(separator, cuts)[index] for line in raw_lines])

    return raw_values_of


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
