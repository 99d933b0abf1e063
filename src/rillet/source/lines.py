r"""Lines of a file or of standard input, with the byte where each run of lines ends.

A line ends with ``\n`` (a ``\r`` before it counts as white space) or with the file. Nothing in a
line can change where the next one starts, so no value can swallow or split another observation.

**Privacy.** Touches raw data: lines are unreleased. Errors name paths and positions only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import cast

from rillet.errors import InputError
from rillet.source.block import Block, FloatArray, Position

__all__ = ["STANDARD_INPUT", "LineReader", "blocks_of"]

STANDARD_INPUT = "-"

CHUNK_BYTES = 1 << 20
# A line that never ends must not fill the memory. Longer lines count as one row without a number.
LONGEST_LINE = 1 << 20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


class LineReader:
    """Reads lines of a file, or of standard input for the path ``"-"``.

    **Privacy.** Touches raw data; ``repr`` shows the name only.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"``.

    Raises
    ------
    InputError
        If the file cannot be opened or read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        standard = os.fspath(path) == STANDARD_INPUT
        self.name = "standard input" if standard else os.fspath(path)
        self.size: int | None = None
        self.offset = 0
        self._raw_pending = b""
        self._rows_to_skip = 0
        self._dropped = 0
        self._ended = False
        self._closes = not standard
        try:
            # The reader itself is the context manager.
            self._stream = _standard_input() if standard else Path(path).open("rb")  # noqa: SIM115
            if not standard and self._stream.seekable():
                self.size = os.fstat(self._stream.fileno()).st_size
        except OSError as error:
            raise self._failed(error) from error

    def __repr__(self) -> str:
        return f"LineReader({self.name!r})"

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # An iterator that is never started never runs its "finally".
        self.close()

    def close(self) -> None:
        """Close the file; standard input stays open."""
        stream = getattr(self, "_stream", None)
        if stream is not None and self._closes:
            stream.close()

    def first_line(self, *, consume: bool) -> bytes:
        """Return the first line without its end, or with ``consume=False`` only look at it.

        **Privacy.** The first line is a header, or shows the shape of the records; see the sources
        for what they take as public.

        Raises
        ------
        InputError
            If there is none, if it has no end, or if the file is not in UTF-8.
        """
        while b"\n" not in self._raw_pending and len(self._raw_pending) <= LONGEST_LINE:
            if not self._fill():
                break
        if self._raw_pending.startswith(_WIDE_MARKS):
            raise InputError(
                f"{self.name}: expected text in UTF-8, found UTF-16; convert it, for instance "
                "with iconv -f utf-16 -t utf-8"
            )
        if self.offset == 0 and self._raw_pending.startswith(_BYTE_ORDER_MARK):
            self._raw_pending = self._raw_pending[len(_BYTE_ORDER_MARK) :]
            self.offset = len(_BYTE_ORDER_MARK)
        line, end, rest = self._raw_pending.partition(b"\n")
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{self.name}: expected a first line of at most {LONGEST_LINE:,} bytes, found a "
                "longer one; is this a text file?"
            )
        if not line.strip():
            raise InputError(
                f"{self.name}: expected a first line with names or a record, found "
                f"{'an empty line' if end else 'an empty file'}"
            )
        if consume:
            self._raw_pending = rest
            self.offset += len(line) + len(end)
        return line

    def go_to(self, start: Position) -> Position:
        """Move to a former position, or stay in front of the first row if it is the beginning.

        Where bytes cannot be addressed, the rows are skipped when `runs` comes to them.

        **Privacy.** Decides by public counts and by line ends alone.

        Raises
        ------
        InputError
            If the source has no such position.
        """
        if start.rows == 0:
            return Position(0, self.offset)
        if start.offset is None or self.size is None:
            self._rows_to_skip = start.rows
        else:
            self._seek(start.offset)
        return Position(start.rows, self.offset)

    def runs(self, block_rows: int) -> Iterator[tuple[list[bytes], int]]:
        """Yield lists of at most ``block_rows`` lines, each with the byte behind it.

        **Privacy.** Touches raw data. The number of lines depends on line ends alone.
        """
        while True:
            *raw_lines, self._raw_pending = self._raw_pending.split(b"\n")
            if self._dropped and raw_lines:
                self.offset += self._dropped + len(raw_lines[0])
                raw_lines[0] = b""
                self._dropped = 0
            self._skip(raw_lines)
            for first in range(0, len(raw_lines), block_rows):
                raw_run = raw_lines[first : first + block_rows]
                self.offset += sum(map(len, raw_run)) + len(raw_run)
                yield _without_overlong(raw_run), self.offset
            if len(self._raw_pending) > LONGEST_LINE:
                self._dropped += len(self._raw_pending)
                self._raw_pending = b""
            if not self._fill():
                break
        if self._raw_pending or self._dropped:
            raw_run = [b"" if self._dropped else self._raw_pending]
            self.offset += self._dropped + len(self._raw_pending)
            self._raw_pending, self._dropped = b"", 0
            if self._rows_to_skip:
                self._rows_to_skip -= 1
            else:
                yield _without_overlong(raw_run), self.offset
        if self._rows_to_skip:
            raise InputError(
                f"{self.name}: expected {self._rows_to_skip:,} more rows before the place to "
                "continue from, found the end; give the same source again from its beginning"
            )

    def _fill(self) -> bool:
        if self._ended:
            return False
        try:
            # A pipe gives what it has; waiting for a full chunk would hold back live rows.
            chunk = self._stream.read1(CHUNK_BYTES)
        except OSError as error:
            raise self._failed(error) from error
        self._ended = not chunk
        self._raw_pending += chunk
        return bool(chunk)

    def _skip(self, raw_lines: list[bytes]) -> None:
        raw_skipped = raw_lines[: self._rows_to_skip]
        self.offset += sum(map(len, raw_skipped)) + len(raw_skipped)
        self._rows_to_skip -= len(raw_skipped)
        del raw_lines[: len(raw_skipped)]

    def _seek(self, offset: int) -> None:
        size = self.size or 0
        if not self.offset < offset <= size:
            raise InputError(
                f"{self.name}: expected to continue at byte {offset:,}, found {size:,} bytes with "
                f"the first row at {self.offset:,}; this is not the file that was read before"
            )
        try:
            self._stream.seek(offset - 1)
            before = self._stream.read(1)
        except OSError as error:
            raise self._failed(error) from error
        if before != b"\n" and offset != size:
            raise InputError(
                f"{self.name}: expected a line to start at byte {offset:,}, found the middle of "
                "one; the file has changed since it was read, or its last line has grown"
            )
        self._raw_pending = b""
        self._ended = False
        self.offset = offset

    def _failed(self, error: OSError) -> InputError:
        reason = error.strerror or type(error).__name__
        return InputError(f"{self.name}: expected a readable file, found: {reason}")


def blocks_of(
    reader: LineReader,
    raw_values_of: Callable[[list[bytes]], FloatArray],
    *,
    block_rows: int,
    start: Position,
) -> Iterator[Block]:
    """Turn the lines of a reader into blocks and close the reader at the end.

    **Privacy.** Touches raw data.

    Parameters
    ----------
    reader : LineReader
        In front of the first row, or of the row behind ``start``.
    raw_values_of : callable
        One number for each line of a list; must not raise.
    block_rows : int
        At most so many rows to a block.
    start : Position
        Where the reader stands.
    """
    rows = start.rows
    with reader:
        for raw_lines, offset in reader.runs(block_rows):
            rows += len(raw_lines)
            fraction = min(1.0, offset / reader.size) if reader.size else None
            yield Block(raw_values_of(raw_lines), Position(rows, offset), fraction)


def _standard_input() -> BufferedReader:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input: expected an open one, found none; name a file instead")
    return cast(BufferedReader, stream)


def _without_overlong(raw_lines: list[bytes]) -> list[bytes]:
    if max(map(len, raw_lines)) <= LONGEST_LINE:
        return raw_lines
    return [line if len(line) <= LONGEST_LINE else b"" for line in raw_lines]
