r"""Lines of a file or of standard input, with the byte where each run of lines ends.

A line ends with ``\n`` (a ``\r`` before it counts as white space) or with the file. Nothing in a
line can change where the next one starts, so no value can swallow or split another observation.

**Privacy.** Touches raw data: lines are unreleased. Errors name paths and positions only.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import cast

from rillet.errors import InputError, ParameterError
from rillet.source.block import Block, Position
from rillet.source.keys import RawRows
from rillet.source.raw_buffer import RawBuffer, RawRun

__all__ = ["STANDARD_INPUT", "LineReader", "blocks_of"]

STANDARD_INPUT = "-"

CHUNK_BYTES = 1 << 20
# A line that never ends must not fill the memory. Longer lines count as one row without a number.
LONGEST_LINE = 1 << 20
# Many lines of nearly that length must not fill it either.
MOST_BYTES = 1 << 25
# How long to wait before looking again whether a file has grown.
POLL_SECONDS = 0.1

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


class LineReader:
    """Reads lines of a file, or of standard input for the path ``"-"``.

    **Privacy.** Touches raw data; ``repr`` shows the name only.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"``.
    follow : bool
        At the end wait for more, and take no line without its line end.
    stop : threading.Event, optional
        Ends the waiting.

    Raises
    ------
    InputError
        If the file cannot be opened or read.
    ParameterError
        If something is to be followed that is no regular file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        standard = os.fspath(path) == STANDARD_INPUT
        self.name = "standard input" if standard else os.fspath(path)
        self.size: int | None = None
        self.offset = 0
        self._raw = RawBuffer()
        self._given = 0
        self._rows_to_skip = 0
        self._dropped = 0
        self._ended = False
        self._closes = not standard
        self._follow = follow
        self._stop = stop
        try:
            # The reader itself is the context manager.
            self._stream = _standard_input() if standard else Path(path).open("rb")  # noqa: SIM115
            if not standard and self._stream.seekable():
                self.size = os.fstat(self._stream.fileno()).st_size
        except OSError as error:
            raise self._failed(error) from error
        if follow and self.size is None:
            self.close()
            raise ParameterError(
                "follow", "a regular file to follow", self.name, "a pipe is followed by itself"
            )

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
        raw = self._raw
        while not raw.lines and raw.size <= LONGEST_LINE:
            if not self._fill() and not (self._follow and self._wait()):
                break
        if not raw.lines and raw.size <= LONGEST_LINE and (self._follow or self.is_stopped()):
            raise InputError(
                f"{self.name}: expected a first line with names or a record, found none that is "
                "complete before the stop"
            )
        if raw.startswith(_WIDE_MARKS):
            raise InputError(
                f"{self.name}: expected text in UTF-8, found UTF-16; convert it, for instance "
                "with iconv -f utf-16 -t utf-8"
            )
        if self.offset == 0 and raw.startswith(_BYTE_ORDER_MARK):
            raw.skip(len(_BYTE_ORDER_MARK))
            self.offset = len(_BYTE_ORDER_MARK)
        line, whole = raw.first_line(), bool(raw.lines)
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{self.name}: expected a first line of at most {LONGEST_LINE:,} bytes, found a "
                "longer one; is this a text file?"
            )
        if not line.strip():
            raise InputError(
                f"{self.name}: expected a first line with names or a record, found "
                f"{'an empty line' if whole else 'an empty file'}"
            )
        if consume:
            self.offset += len(raw.take(1)) + 1 if whole else len(raw.take_rest())
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

    def runs(self, block_rows: int) -> Iterator[RawRun]:
        """Yield runs of at most ``block_rows`` lines.

        A file gives runs of just that length, but for the last one and where lines are so long
        that they would fill the memory; from the same place the same runs come again. A pipe gives
        what it has, and so does the end of a file that is followed.

        **Privacy.** Touches raw data. The number of lines depends on line ends alone.
        """
        raw, self._given = self._raw, self.offset
        while True:
            if self._dropped and raw.lines:
                # Its tail goes the way of its beginning, and an empty line stands for it.
                tail = len(raw.first_line())
                raw.skip(tail)
                self.offset += self._dropped + tail
                self._dropped = 0
            self._skip()
            overlong = raw.rest > LONGEST_LINE
            at_once = self.size is None or overlong
            while rows := raw.fitting(block_rows, MOST_BYTES, LONGEST_LINE):
                if rows < block_rows and rows == raw.lines and not at_once:
                    break
                yield self._run(rows)
            if overlong:
                self._dropped += len(raw.take_rest())
            if self._fill():
                continue
            if not self._follow:
                break
            if raw.lines:  # The end for now: what is there must not wait.
                yield self._run(raw.lines)
            if not self._wait():
                break
        yield from self._last_run()

    def _run(self, rows: int) -> RawRun:
        raw_text, size = self._take(rows)
        return self._behind(raw_text, rows, size)

    def _take(self, rows: int) -> tuple[bytes, int]:
        overlong = len(self._raw.first_line()) > LONGEST_LINE  # Those behind it are not.
        raw_text = self._raw.take(rows)
        size = len(raw_text) + 1
        if overlong:
            raw_text = b"".join(raw_text.partition(b"\n")[1:])
        return raw_text, size

    def _behind(self, raw_text: bytes, rows: int, size: int) -> RawRun:
        before, self.offset = self._given, self.offset + size
        self._given = self.offset
        return RawRun(raw_text, rows, before, self.offset)

    def _last_run(self) -> Iterator[RawRun]:
        """Yield what is left at the end, with a last line that lacks its line end."""
        rows, size, raw_texts = self._raw.lines, self._dropped, []
        if rows:
            raw_text, size = self._take(rows)
            raw_texts.append(raw_text)
        # Whoever follows a file, or was stopped, cannot know that such a line is complete.
        if (self._raw.rest or self._dropped) and not self._follow and not self.is_stopped():
            raw_last = self._raw.take_rest()
            size += len(raw_last)
            if self._rows_to_skip:
                self._rows_to_skip -= 1
            else:
                raw_texts.append(b"" if self._dropped else raw_last)
                rows += 1
        if self._rows_to_skip and not self.is_stopped():
            raise InputError(
                f"{self.name}: expected {self._rows_to_skip:,} more rows before the place to "
                "continue from, found the end; give the same source again from its beginning"
            )
        if rows:
            yield self._behind(b"\n".join(raw_texts), rows, size)

    def fraction(self, offset: int) -> float | None:
        """Return how much of a file lies before a byte, if it has an end."""
        return None if self._follow or not self.size else min(1.0, offset / self.size)

    def is_stopped(self) -> bool:
        """Whether the reader was asked to stop."""
        return self._stop is not None and self._stop.is_set()

    def _fill(self) -> int:
        """Read a chunk and return its size: 0 at the end, or if the reader was stopped."""
        if self._ended:
            return 0
        try:
            if self.size is None and not self._wait_for_pipe():
                return 0
            # A pipe gives what it has; waiting for a full chunk would hold back live rows.
            chunk = self._stream.read1(CHUNK_BYTES)
        except OSError as error:
            raise self._failed(error) from error
        self._ended = not chunk and not self._follow
        self._raw.add(chunk)
        return len(chunk)

    def _wait_for_pipe(self) -> bool:
        """Wait until a pipe has something or has ended; False if the reader was stopped."""
        if self._stop is None:
            return True
        try:
            number = self._stream.fileno()
        except UnsupportedOperation:  # Standard input that a program has replaced by its own.
            return True
        while not self.is_stopped():
            if select.select([number], [], [], POLL_SECONDS)[0]:
                return True
        return False

    def _wait(self) -> bool:
        """Wait a moment for a file to grow; False if the reader was stopped.

        Raises
        ------
        InputError
            If the file shrinks, or if another one, or none, has its name.
        """
        if self._stop is None:
            time.sleep(POLL_SECONDS)
        elif self._stop.wait(POLL_SECONDS):
            return False
        try:
            own = os.fstat(self._stream.fileno())
            read_up_to = self._stream.tell()
            named = self._named()
        except OSError as error:
            raise self._failed(error) from error
        if own.st_size < read_up_to:
            raise InputError(
                f"{self.name}: expected a file that only grows, found it cut from {read_up_to:,} "
                f"to {own.st_size:,} bytes; start again with a new file and a new state"
            )
        # Lines that came in before the change of names are still read.
        if named != (own.st_dev, own.st_ino) and not self._fill():
            raise InputError(
                f"{self.name}: expected the file that was opened, found "
                f"{'another one' if named else 'none'} under its name, after {self.offset:,} "
                "bytes; a followed file must not be replaced or rotated"
            )
        return True

    def _named(self) -> tuple[int, int] | None:
        try:
            there = Path(self.name).stat()
        except FileNotFoundError:
            return None
        return there.st_dev, there.st_ino

    def _skip(self) -> None:
        rows = min(self._rows_to_skip, self._raw.lines)
        if rows:
            self.offset += len(self._raw.take(rows)) + 1
            self._rows_to_skip -= rows
            self._given = self.offset

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
        if before != b"\n" and (offset != size or self._follow):
            raise InputError(
                f"{self.name}: expected a line to start at byte {offset:,}, found the middle of "
                "one; the file has changed since it was read, or its last line has grown"
            )
        self._raw.clear()
        self._ended = False
        self.offset = offset

    def _failed(self, error: OSError) -> InputError:
        reason = error.strerror or type(error).__name__
        return InputError(f"{self.name}: expected a readable file, found: {reason}")


def blocks_of(
    reader: LineReader,
    raw_rows_of: Callable[[RawRun], RawRows],
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
    raw_rows_of : callable
        One number for each line of a run, with what else is wanted; must not raise.
    block_rows : int
        At most so many rows to a block.
    start : Position
        Where the reader stands.
    """
    rows = start.rows
    with reader:
        if reader.is_stopped():
            return
        for raw_run in reader.runs(block_rows):
            first, rows = rows, rows + raw_run.rows
            raw_values, key_of, sequence = raw_rows_of(raw_run)
            yield Block(
                raw_values,
                Position(rows, raw_run.behind),
                reader.fraction(raw_run.behind),
                Position(first, raw_run.before),
                key_of,
                sequence,
            )
            if reader.is_stopped():
                break


def _standard_input() -> BufferedReader:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input: expected an open one, found none; name a file instead")
    return cast(BufferedReader, stream)
