"""Numbers from a column of a Parquet file.

Integers, floats and decimals are themselves, rounded to float64; text is read as a CSV cell would
be; null is NaN. A column of any other type is refused, which the schema tells before any row.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rillet.errors import InputError
from rillet.extras import import_extra
from rillet.source.block import (
    DEFAULT_BLOCK_ROWS,
    Block,
    FloatArray,
    Position,
    check_block_rows,
)
from rillet.source.keys import DeclaredKeys, RawRows, Wanted, sequence_numbers, text_of
from rillet.source.names import find_column
from rillet.source.number import numbers

__all__ = ["read_parquet"]


def read_parquet(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    block_rows: int = DEFAULT_BLOCK_ROWS,
    start: Position | None = None,
    keys: DeclaredKeys | None = None,
    key_columns: Sequence[str] = (),
    sequence_column: str | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Block]:
    """Read a column of numbers from a Parquet file; needs pyarrow, ``rillet[parquet]``.

    **Privacy.** Touches raw data. The schema and the number of rows are public; no value makes this
    raise, skip or add a row.

    **Delivery.** The file is read, never changed: continuing from the position of the last block
    that was absorbed gives each row exactly once, as long as the file stays the same.

    Parameters
    ----------
    path : str or path-like
        The file.
    column : str, optional
        The name of the column; not needed if there is only one.
    block_rows : int
        So many rows to a block; fewer at the end.
    start : Position, optional
        Continue behind a block read before.
    keys : DeclaredKeys, optional
        The declared keys, of which each row has one or none.
    key_columns : sequence of str
        The columns of text or integers that hold the parts of a row's key, in the order of the
        parts.
    sequence_column : str, optional
        The column with a row's sequence number.
    stop : threading.Event, optional
        Once it is set, no further block comes.

    Returns
    -------
    iterator of Block
        The schema has been checked when this returns.

    Raises
    ------
    InputError
        If the file cannot be read, is not Parquet, or lacks the column.
    MissingExtra
        If pyarrow is not installed.
    ParameterError
        If a parameter is wrong.
    """
    check_block_rows(block_rows)
    wanted = Wanted.checked(column, keys, key_columns, sequence_column)
    return parquet_blocks(path, wanted, block_rows=block_rows, start=start, stop=stop)


def parquet_blocks(
    path: str | os.PathLike[str],
    wanted: Wanted,
    *,
    block_rows: int,
    start: Position | None,
    stop: threading.Event | None,
) -> Iterator[Block]:
    """Check the schema of a file and return its blocks; see `read_parquet`."""
    arrow = import_extra("pyarrow", package="pyarrow", extra="parquet", purpose="to read Parquet")
    parquet = import_extra(
        "pyarrow.parquet", package="pyarrow", extra="parquet", purpose="to read Parquet"
    )
    name = os.fspath(path)
    try:
        # Opened by Python, because pyarrow takes some names for addresses of remote files.
        with Path(path).open("rb") as stream:
            file = parquet.ParquetFile(stream)
            schema, rows_total = file.schema_arrow, file.metadata.num_rows
    except (OSError, arrow.ArrowException) as error:
        raise _failed(name, error) from None
    field = schema.field(find_column(name, schema.names, wanted.column))
    if not _is_numeric(arrow, field.type):
        raise InputError(
            f"{name}: expected numbers or text in the column {field.name!r}, found the type "
            f"{field.type}; convert it first"
        )
    columns = [field.name]
    for other in (*wanted.key_columns, wanted.sequence_column):
        if other is not None:
            field = schema.field(find_column(name, schema.names, other))
            if not _is_name(arrow, field.type):
                raise InputError(
                    f"{name}: expected text or integers in the column {field.name!r}, found the "
                    f"type {field.type}; convert it first"
                )
            columns.append(field.name)
    rows = (start or Position()).rows
    if rows > rows_total:
        raise InputError(
            f"{name}: expected at least {rows:,} rows, to continue behind them, found "
            f"{rows_total:,}; this is not the file that was read before"
        )
    return _blocks(path, columns, wanted, block_rows, rows, stop)


def _blocks(
    path: str | os.PathLike[str],
    columns: list[str],
    wanted: Wanted,
    block_rows: int,
    rows_before: int,
    stop: threading.Event | None,
) -> Iterator[Block]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with Path(path).open("rb") as stream:
            file = ParquetFile(stream, pre_buffer=False)
            total = file.metadata.num_rows
            first_group, rows = 0, 0
            while (
                first_group < file.num_row_groups
                and rows + file.metadata.row_group(first_group).num_rows <= rows_before
            ):
                rows += file.metadata.row_group(first_group).num_rows
                first_group += 1
            to_skip = rows_before - rows
            rows = rows_before
            groups = range(first_group, file.num_row_groups)
            for batch in file.iter_batches(
                block_rows, row_groups=groups, columns=sorted(set(columns))
            ):
                if stop is not None and stop.is_set():
                    return
                raw_batch = batch[to_skip:]
                to_skip -= len(batch) - len(raw_batch)
                if len(raw_batch):
                    before, rows = Position(rows), rows + len(raw_batch)
                    raw_columns = [raw_batch.column(column) for column in columns]
                    raw_values, key_of, sequence = _raw_rows(pa, raw_columns, wanted)
                    position, fraction = Position(rows), rows / total
                    yield Block(raw_values, position, fraction, before, key_of, sequence)
    except (OSError, pa.ArrowException) as error:
        raise _failed(os.fspath(path), error) from None


def _raw_rows(arrow: Any, raw_columns: list[Any], wanted: Wanted) -> RawRows:
    keys, last_key = wanted.keys, 1 + len(wanted.key_columns)
    return RawRows(
        _raw_values(arrow, raw_columns[0]),
        None
        if keys is None
        else keys.places(*(_raw_texts(arrow, column) for column in raw_columns[1:last_key])),
        None
        if wanted.sequence_column is None
        else sequence_numbers(_raw_texts(arrow, raw_columns[last_key])),
    )


def _is_numeric(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
        or _is_text(arrow, kind)
    )


def _is_name(arrow: Any, kind: Any) -> bool:
    if arrow.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(arrow.types.is_integer(kind) or _is_text(arrow, kind))


def _is_text(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _raw_values(arrow: Any, raw_column: Any) -> FloatArray:
    if arrow.types.is_dictionary(raw_column.type):
        raw_column = raw_column.dictionary_decode()
    if _is_text(arrow, raw_column.type):
        return numbers([(text or "").encode() for text in raw_column.to_pylist()])
    # Not safe: integers beyond 2^53 are rounded instead of refused, since no value may raise.
    raw_floats = raw_column.cast(arrow.float64(), safe=False)
    return np.array(raw_floats.to_numpy(zero_copy_only=False), dtype=np.float64)


def _raw_texts(arrow: Any, raw_column: Any) -> list[bytes]:
    """Return the text of each member as a cell: empty where there is none."""
    if arrow.types.is_dictionary(raw_column.type):
        raw_column = raw_column.dictionary_decode()
    # Each text is made once and shared by the rows that have it.
    raw_parts = raw_column.dictionary_encode()
    raw_texts = [*map(text_of, raw_parts.dictionary.to_pylist()), b""]
    raw_places = raw_parts.indices.fill_null(len(raw_texts) - 1).to_pylist()
    return list(map(raw_texts.__getitem__, raw_places))


def _failed(name: str, error: Exception) -> InputError:
    # Not pyarrow's message, which may quote what it found inside the file.
    reason = getattr(error, "strerror", None) or "not a Parquet file, or a damaged one"
    return InputError(f"{name}: expected a readable Parquet file, found: {reason}")
