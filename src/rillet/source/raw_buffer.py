"""Text that has been read and not yet given on, with its line ends.

**Privacy.** Touches raw data: holds unreleased lines; `repr` shows none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rillet.source.block import IntArray

__all__ = ["RawBuffer", "RawRun"]

_LINE_END = ord("\n")


class RawRun(NamedTuple):
    """A run of whole lines. Touches raw data.

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
        return f"RawRun({self.rows} rows, {self.before}, {self.behind})"


class RawBuffer:
    """Bytes from a file, of which whole lines are taken off the front.

    **Privacy.** Touches raw data.
    """

    def __init__(self) -> None:
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
        ends = np.flatnonzero(np.frombuffer(raw_chunk, np.uint8) == _LINE_END) + len(raw_left)
        self._ends = np.concatenate((self._ends[self._taken :] - self._first, ends))
        self._raw_text = raw_left + raw_chunk
        self._first = self._taken = 0

    def clear(self) -> None:
        """Forget everything."""
        self._raw_text, self._ends = b"", np.empty(0, dtype=np.int64)
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

    def fitting(self, most_lines: int, most_bytes: int, longest: int) -> int:
        """Return how many whole lines make a run.

        A run has at most so many lines and bytes, but at least one line, and a line that is longer
        than ``longest`` only in front, where its bytes do not count. So a run is decided by where
        it starts and by the lines there, not by how they were read, and comes out the same again.
        """
        ends = self._ends[self._taken : self._taken + most_lines]
        if not ends.size:
            return 0
        overlong = np.flatnonzero(np.diff(ends) - 1 > longest)
        first = int(ends[0]) if ends[0] - self._first > longest else self._first
        lines = int(np.searchsorted(ends, first + most_bytes, side="right"))
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
