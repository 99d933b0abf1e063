"""Observations from a file or a pipe: CSV, JSON lines or Parquet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct, structs

from rillet.errors import InputError, ParameterError
from rillet.source.base import (
    DEFAULT_BLOCK_ROWS,
    Block,
    Position,
    RawRows,
    Source,
    rows_to_a_block,
)
from rillet.source.delimited import check_delimiter, csv_rows
from rillet.source.json_lines import check_record, json_rows
from rillet.source.keys import DeclaredKeys, Wanted
from rillet.source.lines import STANDARD_INPUT, LineReader, RawRun, is_pipe
from rillet.source.parquet import check_parquet, parquet_blocks
from rillet.times import time_zone

__all__ = ["FileOptions", "FileSource"]

#: Formats by the end of a name.
SUFFIXES: dict[str, Literal["csv", "jsonl", "parquet"]] = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class FileOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="file"
):
    """Options of a `FileSource`.

    Parameters
    ----------
    path : str
        The file, or ``"-"`` for standard input.
    column : str, optional
        The column or field with the values. Not needed if there is only one column, or if each
        line of JSON is a bare number.
    format : {"auto", "csv", "jsonl", "parquet"}
        ``"auto"`` goes by the end of the name; a pipe is JSON lines if its first line starts with a
        brace, else CSV.
    delimiter : str
        One ASCII character between the cells of CSV.
    decimal : {".", ","}
        What parts the digits of numbers in CSV: with a point ``1,5`` is no number, with a comma
        ``1.234,5`` is none.
    sequence : str, optional
        The column with a number that grows with each row of a key.
    time : str, optional
        The column with the time of each row; see :mod:`rillet.gather.clock` for what is read.
    zone : str, optional
        The zone of times that name none, such as ``"Europe/Berlin"``.
    person : str, optional
        The column with the id of the person whose each row is: text or integers, compared as text.
    follow : bool
        At the end of a file wait for it to grow, and take a last line only with its line end.
    block_rows : int, optional
        So many rows to a block; fewer at the end, from a pipe, or where lines are very long.
    """

    path: Annotated[str, Meta(min_length=1)]
    column: str | None = None
    format: Literal["auto", "csv", "jsonl", "parquet"] = "auto"
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    sequence: str | None = None
    time: str | None = None
    zone: str | None = None
    person: str | None = None
    follow: bool = False
    block_rows: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        check_delimiter(self.delimiter, self.decimal)
        time_zone(self.zone)
        suffix = Path(self.path).suffix.lower()
        if self.format != "parquet" and (self.format, suffix) not in _PARQUET_NAMES:
            return
        if self.path == STANDARD_INPUT:
            hint = "write Parquet to a file first"
            raise ParameterError("format", "csv or jsonl on standard input", "parquet", hint)
        if self.follow:
            hint = "a Parquet file is written once and never grows"
            raise ParameterError("follow", "false for Parquet", True, hint)


_PARQUET_NAMES = {("auto", suffix) for suffix, name in SUFFIXES.items() if name == "parquet"}


class FileSource(Source):
    r"""Rows of a file, of a named pipe or of standard input.

    **Privacy.** Touches raw data. The header of CSV, the shape of the first record of JSON lines,
    the schema of Parquet and the number of rows are public; no cell makes this raise, skip or add a
    row.

    **Delivery.** A file is read, never changed: continuing from the position of the last block that
    was absorbed gives each row exactly once, as long as the file only grows at its end. A pipe is
    delivered at most once: what was read and not absorbed is gone with the process, unless its
    writer sends everything again; then the rows before ``start`` are passed over. Rows of a pipe,
    and of a file that is followed, arrive when they are read.

    A file that is followed must only grow: if it shrinks, if other content comes to stand where it
    was read before, or if another file takes its name, that is an error.

    Parameters
    ----------
    options : FileOptions
        What to read.
    keys : DeclaredKeys, optional
        The declared keys, of which each row has one or none, with the columns that hold them.
    stop : threading.Event, optional
        Once it is set, no further block comes.

    Examples
    --------
    >>> file = Path("trips.csv")
    >>> _ = file.write_text("line,minutes\nnorth,12.5\nsouth,late\n")
    >>> source = FileSource(FileOptions(path="trips.csv", column="minutes"))
    >>> [block.raw_values.tolist() for block in source.blocks()]
    [[12.5, nan]]
    """

    Options: ClassVar[type[Struct]] = FileOptions

    def __init__(
        self,
        options: FileOptions,
        *,
        keys: DeclaredKeys | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        if keys is not None and not keys.columns:
            raise keys.wrong_columns()
        self._options, self._stop = options, stop
        # Each block costs something for each key in it, so many keys want large ones.
        self._block_rows = options.block_rows or DEFAULT_BLOCK_ROWS << (2 if keys else 0)
        self._wanted = Wanted(
            options.column, keys, options.sequence, options.time, options.zone, options.person
        )
        self._reader: LineReader | None = None
        standard = options.path == STANDARD_INPUT
        self.name = "standard input" if standard else options.path
        self.identity = f"{Path(options.path).name}:{options.column or ''}"
        self.replayable = not is_pipe(options.path)
        self.redelivers = options.follow or options.sequence is not None
        self.live = options.follow

    def check(self) -> None:
        """Read the header, the first record or the schema, but nothing of a pipe; see `Source`."""
        options = self._options
        if self._format() == "parquet":
            check_parquet(options.path, self._wanted)
        elif self.replayable:
            # What is followed may have no first line yet.
            if options.follow and not _has_line(options.path):
                LineReader(options.path, follow=True).close()
                return
            reader = LineReader(options.path)
            with contextlib.closing(reader):
                self._raw_rows_of(reader)

    def blocks(
        self, start: Position | None = None, *, block_rows: int | None = None
    ) -> Iterator[Block]:
        """Open the file, check its first line or schema, and return the blocks; see `Source`.

        **Privacy.** Touches raw data.
        """
        options = self._options
        rows = rows_to_a_block(block_rows, self._block_rows)
        if self._format() == "parquet":
            return parquet_blocks(
                options.path, self._wanted, start, block_rows=rows, stop=self._stop
            )
        self.close()
        reader = self._reader = LineReader(options.path, follow=options.follow, stop=self._stop)
        raw_rows_of = self._raw_rows_of(reader)
        live = options.follow or not self.replayable
        return _blocks(reader, raw_rows_of, reader.go_to(start), rows, live=live)

    def replay(self, start: Position | None, rows: int) -> Iterator[Block]:
        """Return again what was read behind a position; see `Source`.

        **Privacy.** Touches raw data.
        """
        if self._options.follow:
            once = structs.replace(self._options, follow=False)
            return FileSource(once, keys=self._wanted.keys).replay(start, rows)
        return super().replay(start, rows)

    @property
    def heard_until(self) -> int:
        """Before which nothing is held back; see `Source`."""
        return 0 if self._reader is None else self._reader.heard_until

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._reader is not None:
            self._reader.close()

    def _format(self) -> Literal["auto", "csv", "jsonl", "parquet"]:
        """Return the format; "auto" for a pipe, of which the first line decides."""
        suffix = Path(self._options.path).suffix.lower()
        if self._options.format != "auto" or (suffix not in SUFFIXES and not self.replayable):
            return self._options.format
        if suffix not in SUFFIXES:
            raise InputError(
                f"{self.name}: expected a name that ends with {', '.join(SUFFIXES)}, found "
                f"{suffix or 'no ending'!r}; say which it is with format"
            )
        return SUFFIXES[suffix]

    def _raw_rows_of(self, reader: LineReader) -> Callable[[RawRun], RawRows]:
        """Check the first line; return what turns lines into rows."""
        kind = self._format()
        if kind == "auto":
            is_object = reader.is_empty() or _is_object(reader.first_line(consume=False))
            kind = "jsonl" if is_object else "csv"
        if kind == "csv":
            header = reader.first_line(consume=True)
            options = self._options
            return csv_rows(reader.name, header, self._wanted, options.delimiter, options.decimal)
        if not reader.is_empty():
            check_record(reader.name, reader.first_line(consume=False), self._wanted)
        raw_rows_of = json_rows(self._wanted)
        return lambda raw_run: raw_rows_of(raw_run.raw_lines())


def _is_object(first: bytes) -> bool:
    return first.lstrip().startswith(b"{")


def _has_line(path: str) -> bool:
    try:
        with Path(path).open("rb") as stream:
            return stream.readline(1 << 20).endswith(b"\n")
    except OSError:
        return True  # whoever opens it next says what is wrong


def _blocks(
    reader: LineReader,
    raw_rows_of: Callable[[RawRun], RawRows],
    rows: int,
    block_rows: int,
    *,
    live: bool,
) -> Iterator[Block]:
    """Turn the lines of a reader into blocks and close the reader at the end.

    **Privacy.** Touches raw data.
    """
    with contextlib.closing(reader):
        if reader.is_stopped():
            return
        for raw_run in reader.runs(block_rows):
            start = {"rows": rows, "byte": raw_run.before}
            rows += raw_run.rows
            position = {"rows": rows, "byte": raw_run.behind}
            yield Block(
                position=position,
                fraction=reader.fraction(raw_run.behind),
                start=start,
                arrived=np.full(raw_run.rows, reader.read_at) if live else None,
                **raw_rows_of(raw_run)._asdict(),
            )
            if reader.is_stopped():
                return
