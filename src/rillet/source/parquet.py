"""Numbers from a column of a Parquet file; needs pyarrow, ``rillet[parquet]``.

Integers, floats and decimals are themselves, rounded to float64; text is read as a CSV cell would
be; null is NaN. Times are timestamps, dates, numbers of seconds since 1970, or text as in CSV. A
column of any other type is refused, which the schema tells before any row.

**Privacy.** Touches raw data. The schema and the number of rows are public; no value makes a
function here raise, skip or add a row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.extras import import_extra
from rillet.gather.clock import as_times, read_times
from rillet.source.base import (
    DEFAULT_BLOCK_ROWS,
    Block,
    FloatArray,
    IntArray,
    Position,
    RawRows,
    is_integer,
)
from rillet.source.cells import find_column, numbers, text_of
from rillet.source.keys import RawTexts, Wanted

__all__ = ["arrow_columns", "arrow_rows", "check_parquet", "parquet_blocks"]


def check_parquet(path: str, wanted: Wanted) -> tuple[list[str], int]:
    """Check the schema; return the columns with the values and with `Wanted.names`, and the rows.

    Raises
    ------
    InputError
        If the file cannot be read, is not Parquet, or lacks a column.
    ParameterError
        If a column must be named, or a zone.
    MissingExtra
        If pyarrow is not installed.
    """
    arrow, parquet = _pyarrow()
    try:
        # Opened by Python, because pyarrow takes some names for addresses of remote files.
        with Path(path).open("rb") as stream:
            file = parquet.ParquetFile(stream)
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (OSError, arrow.ArrowException) as error:
        raise _failed(path, error) from None
    return arrow_columns(path, arrow, schema, wanted), rows


def arrow_columns(path: str, arrow: Any, schema: Any, wanted: Wanted) -> list[str]:
    """The columns with the values and with `Wanted.names`; errors as `check_parquet`."""
    columns: list[str] = []
    for name in (wanted.column, *wanted.names):
        field = schema.field(find_column(path, schema.names, name))
        kind = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
        if len(columns) > len(wanted.texts):
            _check_time(arrow, path, field.name, kind, wanted.zone)
            columns.append(field.name)
            continue
        expected = "text or integers" if columns else "numbers or text"
        if not (_is_text(arrow, kind) or _is_number(arrow, kind, integer=bool(columns))):
            raise InputError(
                f"{path}: expected {expected} in the column {field.name!r}, found the type "
                f"{field.type}; convert it first"
            )
        if name is None and _is_text(arrow, kind):
            raise ParameterError(
                "column",
                f"the name of the column of {path}, as it holds text",
                None,
                f"if its texts are numbers, name it: {field.name!r}",
            )
        columns.append(field.name)
    return columns


def parquet_blocks(
    path: str,
    wanted: Wanted,
    start: Position | None,
    *,
    block_rows: int,
    stop: threading.Event | None,
) -> Iterator[Block]:
    """Check the schema of a file and return its blocks; errors as `check_parquet`.

    **Privacy.** Touches raw data.
    """
    columns, total = check_parquet(path, wanted)
    rows = 0 if start is None else start.get("rows")
    if not is_integer(rows) or rows < 0:
        raise ParameterError("start", "a position of a Parquet file", type(start).__name__)
    if rows > total:
        raise InputError(
            f"{path}: expected at least {rows:,} rows, to continue behind them, found {total:,}; "
            "this is not the file that was read before"
        )
    return _blocks(path, columns, wanted, block_rows, rows, stop)


def _blocks(
    path: str,
    columns: list[str],
    wanted: Wanted,
    block_rows: int,
    rows: int,
    stop: threading.Event | None,
) -> Iterator[Block]:
    arrow, parquet = _pyarrow()
    try:
        with Path(path).open("rb") as stream:
            # As dictionaries, because pyarrow refuses some text that is not UTF-8 otherwise, but
            # for keys: of many keys a dictionary takes longer than all the rest.
            schema, keys = parquet.read_schema(stream), wanted.keys
            plain = columns[1 : 1 + keys.parts] if keys else []
            coded = [c for c in columns if c not in plain or schema.field(c).type != arrow.string()]
            file = parquet.ParquetFile(stream, pre_buffer=False, read_dictionary=coded)
            total = file.metadata.num_rows
            # Many small blocks are read at once: each batch has its price, whatever its size.
            batch_rows = max(block_rows, DEFAULT_BLOCK_ROWS)
            raw_parts = _raw_parts(arrow, file, columns, wanted, batch_rows, rows)
            for raw_rows in _recut(raw_parts, block_rows):
                if stop is not None and stop.is_set():
                    return
                start, rows = {"rows": rows}, rows + raw_rows.raw_values.size
                yield Block(
                    position={"rows": rows},
                    fraction=rows / total,
                    start=start,
                    **raw_rows._asdict(),
                )
    except (OSError, arrow.ArrowException) as error:
        raise _failed(path, error) from None


def _raw_parts(
    arrow: Any, file: Any, columns: list[str], wanted: Wanted, batch_rows: int, to_skip: int
) -> Iterator[RawRows]:
    """Yield the rows behind the first ``to_skip``, cut as the file has them."""
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    first_group = 0
    while first_group < len(sizes) and sizes[first_group] <= to_skip:
        to_skip -= sizes[first_group]
        first_group += 1
    groups = range(first_group, len(sizes))
    for batch in file.iter_batches(batch_rows, row_groups=groups, columns=sorted(set(columns))):
        raw_batch = batch[to_skip:]
        to_skip -= len(batch) - len(raw_batch)
        yield arrow_rows(arrow, raw_batch, columns, wanted)


def arrow_rows(arrow: Any, raw_batch: Any, columns: list[str], wanted: Wanted) -> RawRows:
    """What a record batch holds in columns that `arrow_columns` has checked; total.

    **Privacy.** Touches raw data.
    """
    raw_values, *raw_others = (raw_batch.column(column) for column in columns)
    raw_at = None if wanted.time is None else _raw_times(arrow, raw_others.pop(), wanted.zone)
    raw_key_of, keys = None, wanted.keys
    if keys is not None:
        raw_parts = [_raw_bytes(arrow, column) for column in raw_others[: keys.parts]]
        raw_key_of, raw_others = keys.find(*raw_parts), raw_others[keys.parts :]
    return wanted.raw_rows(
        _raw_numbers(arrow, raw_values),
        [_raw_texts(arrow, column) for column in raw_others],
        raw_at,
        raw_key_of=raw_key_of,
    )


def _recut(raw_parts: Iterator[RawRows], rows: int) -> Iterator[RawRows]:
    """Cut into blocks of exactly ``rows``, so that the same ones come again from any position."""
    raw_held = next(raw_parts, None)
    while raw_held is not None:
        while raw_held.raw_values.size < rows and (raw_more := next(raw_parts, None)) is not None:
            raw_held = raw_held.joined(raw_more)
        if raw_held.raw_values.size:
            yield raw_held.part(slice(rows))
        raw_held = raw_held.part(slice(rows, None))
        if not raw_held.raw_values.size:
            raw_held = next(raw_parts, None)


def _pyarrow() -> tuple[Any, Any]:
    arrow, parquet = (
        import_extra(module, package="pyarrow", extra="parquet", purpose="to read Parquet")
        for module in ("pyarrow", "pyarrow.parquet")
    )
    return arrow, parquet


def _is_number(arrow: Any, kind: Any, *, integer: bool) -> bool:
    types = arrow.types
    if types.is_integer(kind) or integer:
        return bool(types.is_integer(kind))
    return bool(types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind))


def _is_text(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _raw_cells(arrow: Any, raw_column: Any) -> Any:
    """Return a column without its dictionary, text as bytes, which need not be UTF-8."""
    if arrow.types.is_dictionary(raw_column.type):
        raw_column = raw_column.dictionary_decode()
    return raw_column.cast(arrow.binary()) if _is_text(arrow, raw_column.type) else raw_column


def _raw_numbers(arrow: Any, raw_column: Any) -> FloatArray:
    raw_column = _raw_cells(arrow, raw_column)
    if arrow.types.is_binary(raw_column.type):
        return numbers([text or b"" for text in raw_column.to_pylist()])
    # Not safe: integers beyond 2^53 are rounded instead of refused, since no value may raise.
    raw_floats = raw_column.cast(arrow.float64(), safe=False)
    return np.array(raw_floats.to_numpy(zero_copy_only=False), dtype=np.float64)


def _raw_bytes(arrow: Any, raw_column: Any) -> RawTexts:
    """Return the text of each member; an empty one where there is none."""
    raw_column = _raw_cells(arrow, raw_column)
    if not arrow.types.is_binary(raw_column.type):
        raw_column = raw_column.cast(arrow.string()).cast(arrow.binary())
    _, raw_offsets, raw_bytes = raw_column.buffers()
    offsets = np.frombuffer(raw_offsets, np.int32, len(raw_column) + 1, 4 * raw_column.offset)
    return RawTexts(
        offsets.astype(np.int64),
        np.frombuffer(b"" if raw_bytes is None else raw_bytes, np.uint8)[: offsets[-1]],
    )


def _raw_texts(arrow: Any, raw_column: Any) -> list[bytes]:
    """Return the text of each member as a cell: empty where there is none."""
    # Each text is made once and shared by the rows that have it.
    raw_parts = _raw_cells(arrow, raw_column).dictionary_encode()
    raw_texts = [*map(text_of, raw_parts.dictionary.to_pylist()), b""]
    raw_indexes = raw_parts.indices.fill_null(len(raw_texts) - 1).to_pylist()
    return list(map(raw_texts.__getitem__, raw_indexes))


def _check_time(arrow: Any, path: str, name: str, kind: Any, zone: str | None) -> None:
    """Refuse a column that holds no times, or times without a zone where none is declared."""
    naive = arrow.types.is_date(kind) or (arrow.types.is_timestamp(kind) and kind.tz is None)
    if naive and zone is None:
        raise ParameterError(
            "zone",
            f"the zone of the times in the column {name!r} of {path}",
            None,
            f'the type {kind} has none; declare it, such as "Europe/Berlin" or "UTC"',
        )
    usable = _is_text(arrow, kind) or _is_number(arrow, kind, integer=False)
    if not (naive or usable or arrow.types.is_timestamp(kind)):
        raise InputError(
            f"{path}: expected times, numbers or text in the column {name!r}, found the type "
            f"{kind}; convert it first"
        )


def _raw_times(arrow: Any, raw_column: Any, zone: str | None) -> IntArray:
    raw_column = _raw_cells(arrow, raw_column)
    if arrow.types.is_binary(raw_column.type):
        return read_times([text or b"" for text in raw_column.to_pylist()], zone)
    if arrow.types.is_timestamp(raw_column.type):
        return as_times(raw_column, len(raw_column), zone)
    if arrow.types.is_date(raw_column.type):
        raw_days = raw_column.cast(arrow.date32(), safe=False).to_numpy(zero_copy_only=False)
        return as_times(raw_days.astype("M8[D]"), len(raw_column), zone)
    return as_times(_raw_numbers(arrow, raw_column), len(raw_column), zone)


def _failed(path: str, error: Exception) -> InputError:
    # Not pyarrow's message, which may quote what it found inside the file.
    reason = getattr(error, "strerror", None) or "not a Parquet file, or a damaged one"
    return InputError(f"{path}: expected a readable Parquet file, found: {reason}")
