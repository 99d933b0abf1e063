"""One door to all sources: the format from the name, or as told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rillet.errors import InputError, ParameterError
from rillet.source.block import DEFAULT_BLOCK_ROWS, Block, Position, check_block_rows
from rillet.source.delimited import check_delimiter, csv_blocks
from rillet.source.json_lines import json_blocks
from rillet.source.keys import DeclaredKeys, Wanted
from rillet.source.lines import STANDARD_INPUT, LineReader
from rillet.source.parquet import parquet_blocks

__all__ = ["FORMATS", "read"]

FORMATS = ("auto", "csv", "jsonl", "parquet")

_SUFFIXES = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def read(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    format: str = "auto",  # noqa: A002 - the word that users look for
    delimiter: str = ",",
    block_rows: int = DEFAULT_BLOCK_ROWS,
    start: Position | None = None,
    keys: DeclaredKeys | None = None,
    key_columns: Sequence[str] = (),
    sequence_column: str | None = None,
    follow: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[Block]:
    """Read a column of numbers from CSV, JSON lines or Parquet, or from standard input.

    **Privacy.** Touches raw data; see `read_csv`, `read_json_lines` and `read_parquet` for what
    counts as public.

    **Delivery.** A file exactly once from the position of the last absorbed block; standard input
    at most once.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"`` for standard input.
    column : str, optional
        The name of the column or field; see the three readers for when it may be left out.
    format : str
        ``"csv"``, ``"jsonl"`` or ``"parquet"``; ``"auto"`` goes by the end of the name, and on
        standard input takes JSON lines if the first line starts with a brace, else CSV.
    delimiter : str
        Between the cells of CSV; ignored elsewhere.
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
        At the end of a file wait for it to grow; not for Parquet.
    stop : threading.Event, optional
        Once it is set, no further block comes.

    Returns
    -------
    iterator of Block
        What is public about the source has been checked when this returns.

    Raises
    ------
    InputError
        If the source cannot be read, or lacks the column.
    MissingExtra
        If the format needs a package that is not installed.
    ParameterError
        If a parameter is wrong.
    """
    if format not in FORMATS:
        raise ParameterError("format", f"one of {', '.join(FORMATS)}", format)
    check_block_rows(block_rows)
    check_delimiter(delimiter)
    wanted = Wanted.checked(column, keys, key_columns, sequence_column)
    standard = os.fspath(path) == STANDARD_INPUT
    if format == "auto" and not standard:
        format = _format_of(path)  # noqa: A001
    if format == "parquet":
        _check_parquet(standard=standard, follow=follow)
        return parquet_blocks(path, wanted, block_rows=block_rows, start=start, stop=stop)
    reader = LineReader(path, follow=follow, stop=stop)
    if format == "jsonl" or (
        format == "auto" and reader.first_line(consume=False).lstrip().startswith(b"{")
    ):
        return json_blocks(reader, wanted, block_rows=block_rows, start=start)
    return csv_blocks(reader, wanted, delimiter=delimiter, block_rows=block_rows, start=start)


def _check_parquet(*, standard: bool, follow: bool) -> None:
    if standard:
        raise ParameterError(
            "format", "csv or jsonl on standard input", "parquet", "write Parquet to a file first"
        )
    if follow:
        raise ParameterError(
            "follow", "False for Parquet", follow, "a Parquet file is written once and never grows"
        )


def _format_of(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{os.fspath(path)}: expected a name that ends with {', '.join(_SUFFIXES)}, found "
            f"{suffix or 'no ending'!r}; say which it is with format"
        )
    return _SUFFIXES[suffix]
