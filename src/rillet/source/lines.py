r"""Lines of a file or of a pipe, with the byte where each run of lines ends.

A line ends with ``\n`` (a ``\r`` before it counts as white space) or with the file. Nothing in a
line can change where the next one starts, so no value can swallow or split another observation.

**Privacy.** Touches raw data: lines are unreleased. Errors name paths, and neither bytes nor where
in the file something is.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Iterator
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.source.base import IntArray, Position, is_integer
from rillet.times import now

__all__ = ["STANDARD_INPUT", "LineReader", "RawRun", "is_pipe"]

STANDARD_INPUT = "-"

CHUNK_BYTES = 1 << 20
# A line that never ends must not fill the memory. Longer lines count as one row without a number.
LONGEST_LINE = 1 << 20
# Many lines of nearly that length must not fill it either.
MOST_BYTES = 1 << 25
# How long to wait before looking again whether a file has grown.
POLL_SECONDS = 0.1
# So many bytes are compared to notice that a followed file was written anew.
TAIL_BYTES = 1 << 12

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


def is_pipe(path: str) -> bool:
    """Tell whether this is standard input, or something else that can be read only once."""
    if path == STANDARD_INPUT:
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


class RawRun(NamedTuple):
    """Consecutive whole lines. **Privacy.** Touches raw data.

    Parameters
    ----------
    raw_text : bytes
        The lines, parted by line ends, without the last line end.
    rows : int
        How many they are.
    before, behind : int
        The byte where the first of them starts, and the one where the next run starts.
    """

    raw_text: bytes
    rows: int
    before: int
    behind: int

    def raw_lines(self) -> list[bytes]:
        """Return the lines one by one."""
        return self.raw_text.split(b"\n")

    def __repr__(self) -> str:
        return f"RawRun({self.rows} rows)"


class _RawBuffer:
    """Bytes that have been read and not yet given on. **Privacy.** Touches raw data."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._raw_text = b""
        self._ends: IntArray = np.empty(0, dtype=np.int64)
        # The byte of the text where the first line starts, and how many line ends lie before it.
        self._first = self._taken = 0

    @property
    def lines(self) -> int:
        """How many whole lines there are."""
        return self._ends.size - self._taken

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self._raw_text) - self._first

    @property
    def rest(self) -> int:
        """How many bytes lie behind the last line end."""
        return len(self._raw_text) - (int(self._ends[-1]) + 1 if self.lines else self._first)

    def add(self, raw_chunk: bytes) -> None:
        """Put more bytes at the end."""
        raw_left = self._raw_text[self._first :]
        ends = np.flatnonzero(np.frombuffer(raw_chunk, np.uint8) == ord("\n")) + len(raw_left)
        self._ends = np.concatenate((self._ends[self._taken :] - self._first, ends))
        self._raw_text = raw_left + raw_chunk
        self._first = self._taken = 0

    def startswith(self, prefix: bytes | tuple[bytes, ...]) -> bool:
        """Tell whether these are the first bytes."""
        return self._raw_text.startswith(prefix, self._first)

    def skip(self, count: int) -> None:
        """Forget some bytes of the first line."""
        self._first += count

    def first_line(self) -> bytes:
        """Return the first line without its end, or all there is if none is whole."""
        end = int(self._ends[self._taken]) if self.lines else None
        return self._raw_text[self._first : end]

    def fitting(self, most_lines: int) -> int:
        """Return how many whole lines make a run.

        A run has at most ``most_lines`` lines and `MOST_BYTES` bytes, but at least one line, and a
        line that is longer than `LONGEST_LINE` only in front, where its bytes do not count. So a
        run is decided by where it starts and by the lines there, not by how they were read, and
        comes out the same again.
        """
        ends = self._ends[self._taken : self._taken + most_lines]
        if not ends.size:
            return 0
        overlong = np.flatnonzero(np.diff(ends) - 1 > LONGEST_LINE)
        first = int(ends[0]) if ends[0] - self._first > LONGEST_LINE else self._first
        lines = int(np.searchsorted(ends, first + MOST_BYTES, side="right"))
        return max(1, min(lines, int(overlong[0]) + 1 if overlong.size else lines))

    def take(self, count: int) -> bytes:
        """Take whole lines off the front and return them without the last line end."""
        self._taken += count
        end = int(self._ends[self._taken - 1])
        raw_lines = self._raw_text[self._first : end]
        self._first = end + 1
        return raw_lines

    def take_rest(self) -> bytes:
        """Take what lies behind the last line end, once all whole lines are taken."""
        raw_rest = self._raw_text[self._first :]
        self.clear()
        return raw_rest


class LineReader:
    """Reads lines of a file, of a pipe, or of standard input for the path ``"-"``.

    **Privacy.** Touches raw data; ``repr`` shows the name only.

    Parameters
    ----------
    path : str
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
        self, path: str, *, follow: bool = False, stop: threading.Event | None = None
    ) -> None:
        standard = path == STANDARD_INPUT
        self.name = "standard input" if standard else path
        self.size: int | None = None
        self.offset = 0
        #: When bytes were read last: while a run is handed over, the last ones of that run.
        self.read_at = now()
        #: When no whole line was held back for the last time: what comes later is read later.
        self.heard_until = 0
        self._raw = _RawBuffer()
        self._raw_tail = b""
        self._given = 0
        self._rows_to_skip = 0
        self._dropped = 0
        self._ended = False
        self._closes = not standard
        self._follow = follow
        self._stop = threading.Event() if stop is None else stop
        try:
            self._stream = _standard_input() if standard else _opened(path)
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

    def __del__(self) -> None:
        # An iterator that is never started never runs its "finally".
        self.close()

    def close(self) -> None:
        """Close the file; standard input stays open."""
        stream = getattr(self, "_stream", None)
        if stream is not None and self._closes:
            stream.close()

    def is_empty(self) -> bool:
        """Tell whether there is no record, up to the end or, of a followed file, to the stop.

        **Privacy.** For formats without a header: that there are no records is no error, since by
        the clock their number is protected.
        """
        self._find_first_line()
        return not self._raw.lines and (self._follow or self.is_stopped() or not self._raw.size)

    def _find_first_line(self) -> None:
        raw = self._raw
        while not raw.lines and raw.size <= LONGEST_LINE:
            if not self._fill() and not (self._follow and self._wait()):
                break

    def first_line(self, *, consume: bool) -> bytes:
        """Return the first line without its end, or with ``consume=False`` only look at it.

        **Privacy.** The first line is a header, or shows the shape of the records; see the formats
        for what they take as public.

        Raises
        ------
        InputError
            If there is none, if it has no end, or if the file is not in UTF-8.
        """
        raw = self._raw
        self._find_first_line()
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

    def go_to(self, start: Position | None) -> int:
        """Move to a former position, or stay in front of the first row; return the rows before it.

        Without a byte to go to, as in a pipe, rows are skipped when `runs` comes to them.

        **Privacy.** Decides by public counts and by line ends alone.

        Raises
        ------
        InputError
            If the source has no such position.
        """
        if start is None:
            return 0
        rows, byte = start.get("rows"), start.get("byte", 0)
        if not is_integer(rows) or not is_integer(byte) or min(rows, byte) < 0:
            raise ParameterError("start", "a position in lines of text", type(start).__name__)
        if rows and byte and self.size is not None:
            self._seek(byte)
        else:
            self._rows_to_skip = rows
        return rows

    def runs(self, block_rows: int) -> Iterator[RawRun]:
        """Yield runs of at most ``block_rows`` lines.

        A file gives runs of just that length, but for the last one and where lines are so long
        that they would fill the memory; from the same position the same runs come again. A pipe
        gives what it has, and so does the end of a file that is followed.

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
            while rows := raw.fitting(block_rows):
                if rows < block_rows and rows == raw.lines and not at_once:
                    break
                yield self._run(*self._take(rows), rows)
            if overlong:
                self._dropped += len(raw.take_rest())
            if self._fill():
                continue
            if not self._follow:
                break
            if rows := raw.lines:  # The end for now: what is there must not wait.
                yield self._run(*self._take(rows), rows)
            if not self._wait():
                break
        yield from self._last_run()

    def _take(self, rows: int) -> tuple[bytes, int]:
        """Take lines off the front; return them, and how many bytes they are in the file."""
        overlong = len(self._raw.first_line()) > LONGEST_LINE  # Those behind it are not.
        raw_text = self._raw.take(rows)
        size = len(raw_text) + 1
        if overlong:
            raw_text = b"".join(raw_text.partition(b"\n")[1:])
        return raw_text, size

    def _run(self, raw_text: bytes, size: int, rows: int) -> RawRun:
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
                f"{self.name}: expected {self._rows_to_skip:,} more rows before the position to "
                "continue from, found the end; give the same source again from its beginning"
            )
        if rows:
            yield self._run(b"\n".join(raw_texts), size, rows)

    def fraction(self, offset: int) -> float | None:
        """Return how much of a file lies before a byte, if it has an end."""
        return None if self._follow or not self.size else min(1.0, offset / self.size)

    def is_stopped(self) -> bool:
        """Whether the reader was asked to stop."""
        return self._stop.is_set()

    def _fill(self) -> int:
        """Read a chunk and return its size: 0 at the end, or if the reader was stopped."""
        if self._ended:
            return 0
        try:
            if self.size is None and not self._wait_for_pipe():
                return 0
            # A pipe gives what it has; waiting for a full chunk would hold back live rows.
            chunk = self._stream.read1(CHUNK_BYTES)
            if chunk and self._follow:
                self._check_tail(chunk)
        except OSError as error:
            raise self._failed(error) from error
        self._ended = not chunk and not self._follow
        if chunk:
            self.read_at = now()
            self._raw.add(chunk)
        return len(chunk)

    def _check_tail(self, raw_chunk: bytes) -> None:
        """Compare what lies in front of this chunk with what was read there.

        **Privacy.** Touches raw data; notices that the file was changed, and nothing about values.
        """
        raw_tail, begins = self._raw_tail, self._stream.tell() - len(raw_chunk)
        raw_there = os.pread(self._stream.fileno(), len(raw_tail), begins - len(raw_tail))
        if raw_there != raw_tail:
            raise InputError(
                f"{self.name}: expected a file that only grows, found other content where it was "
                "read before; start again with a new file and a new state"
            )
        self._raw_tail = (raw_tail + raw_chunk[-TAIL_BYTES:])[-TAIL_BYTES:]

    def _wait_for_pipe(self) -> bool:
        """Wait until a pipe has something or has ended; False if the reader was stopped."""
        try:
            number = self._stream.fileno()
        except UnsupportedOperation:  # Standard input that a program has replaced by its own.
            return True
        poll = select.poll()
        poll.register(number, select.POLLIN)
        while not self.is_stopped():
            if poll.poll(POLL_SECONDS * 1000):
                if self._closes:  # The writer of a named pipe, who was not waited for, is there.
                    os.set_blocking(number, True)
                return True
        return False

    def _wait(self) -> bool:
        """Wait a moment for a file to grow; False if the reader was stopped.

        Raises
        ------
        InputError
            If the file shrinks, or if another one, or none, has its name.
        """
        self.heard_until = now()
        if self._stop.wait(POLL_SECONDS):
            return False
        try:
            own = os.fstat(self._stream.fileno())
            shrunk = own.st_size < self._stream.tell()
            named = self._named()
        except OSError as error:
            raise self._failed(error) from error
        if shrunk:
            raise InputError(
                f"{self.name}: expected a file that only grows, found it cut; start again with a "
                "new file and a new state"
            )
        # Lines that came in before the change of names are still read.
        if named != (own.st_dev, own.st_ino) and not self._fill():
            raise InputError(
                f"{self.name}: expected the file that was opened, found "
                f"{'another one' if named else 'none'} under its name; a followed file must not be "
                "replaced or rotated"
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

    def _seek(self, byte: int) -> None:
        size = self.size or 0
        if not self.offset < byte <= size:
            raise InputError(
                f"{self.name}: expected the file that was read before, to continue in it, found "
                "one that is too short; give the same file again"
            )
        try:
            self._stream.seek(byte - 1)
            before = self._stream.read(1)
        except OSError as error:
            raise self._failed(error) from error
        if before != b"\n" and (byte != size or self._follow):
            raise InputError(
                f"{self.name}: expected a line to start where the last block ended, found the "
                "middle of one; the file has changed since it was read, or its last line has grown"
            )
        self._raw.clear()
        self._raw_tail, self._ended, self.offset = b"", False, byte

    def _failed(self, error: OSError) -> InputError:
        reason = error.strerror or type(error).__name__
        return InputError(f"{self.name}: expected a readable file, found: {reason}")


def _opened(path: str) -> BufferedReader:
    # Opening a named pipe would wait for its writer, deaf to every stop.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _standard_input() -> BufferedReader:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input: expected an open one, found none; name a file instead")
    return cast(BufferedReader, stream)
