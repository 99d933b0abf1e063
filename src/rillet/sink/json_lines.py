"""Releases as JSON lines: one object to a line for each record, in a file or on standard output."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from rillet.errors import OutputError
from rillet.release import Releases
from rillet.sink.base import Position, Sink, SinkOptions, conflict, lost, position_number
from rillet.sink.file import FileOptions, FileSink, failed, lock_file, open_file, sync_folder
from rillet.sink.spelling import spell

__all__ = ["JsonLinesSink", "StandardOutputSink"]

#: The time in a line: no other text there is followed by a colon.
_TIME = re.compile(rb'"at":"([^"]*)"')


class JsonLinesSink(FileSink):
    """One JSON object to a line for each record, in a file that a later run continues.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t, name), as long as the file is opened at the
    position of the last acknowledgement. What stands behind that position must be, byte for byte
    but for ``at``, the beginning of what is delivered next: it is left as it is, a torn last line
    is completed, and the rest is appended. Anything else is refused and stays untouched. With
    ``fsync`` what was delivered is on disk when `deliver` returns; without, it survives the end of
    the process but perhaps not that of the machine, and then the next start says that content is
    missing. A write that fails, for instance on a full disk, leaves the file as it was before. The
    file is locked.

    ``existing`` says what happens, where there is no position, to a file that has content: it is
    compared with what is delivered ("continue"), refused, appended to, or replaced by the first
    delivery. Pipes and devices are written at least once, and not with "continue".
    """

    class Options(FileOptions, frozen=True, tag="jsonl"):
        """``[[sink]]`` with ``kind = "jsonl"``."""

        fsync: bool = False
        existing: Literal["continue", "refuse", "append", "replace"] = "continue"

    counts = ("offset", "bytes")

    _file: io.FileIO
    #: None: not a regular file, which has no offset to come back to.
    _offset: int | None
    _replace: bool

    def check(self, position: Position | None = None) -> None:
        """As `Sink.check`."""
        if not self.path.exists() or self.path.is_file():
            super().check(position)
        elif self.options.existing == "continue" or self.path.is_dir():
            raise self._not_regular()

    def position(self) -> Position | None:
        """How many bytes have been delivered."""
        return None if self._offset is None else {"offset": self._offset}

    def _open(self, position: Position | None) -> None:
        offset = position_number(position, self.name, "offset")
        new = not self.path.exists()
        mode = "a+b" if new or self.path.is_file() else "ab"
        try:
            # Append mode never moves what is there.
            self._file = io.FileIO(self.name, mode, opener=partial(open_file, readers=self.readers))
            try:
                self._begin(position, offset)
                if new and self.options.fsync:
                    sync_folder(self.path.parent)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise failed(self.name, error) from error

    def _begin(self, position: Position | None, offset: int) -> None:
        """Find where to go on, or refuse the file."""
        existing = "continue" if position is not None else self.options.existing
        self._replace, self._offset = False, None
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            if existing == "continue":
                raise self._not_regular()
            return
        lock_file(self._file.fileno(), self.name)
        size = self._size()
        if size < offset:
            raise lost(self.name, f"{offset:,} bytes", f"{size:,}")
        if existing == "refuse" and size:
            raise OutputError(
                f"{self.name}: expected a new or empty file, found {size:,} bytes; name another, "
                'or choose existing = "append" or "replace"'
            )
        if existing == "append":
            offset = size
        self._replace = existing == "replace" and size > 0
        if offset and os.pread(self._file.fileno(), 1, offset - 1) != b"\n":
            raise OutputError(
                f"{self.name}: expected a line to end at byte {offset:,}, found that none does; "
                "the file was torn or is not the one that was written before. Restore it, remove "
                "its last line, or name another"
            )
        self._offset = offset

    def _deliver(self, releases: Releases) -> None:
        try:
            if self._offset is None:
                for piece in spell(releases):
                    self._append(piece)
            else:
                self._continue(releases, self._offset)
        except OSError as error:
            raise failed(self.name, error) from error

    def _continue(self, releases: Releases, offset: int) -> None:
        """Compare with what is there, append the rest."""
        if self._replace:
            os.ftruncate(self._file.fileno(), 0)
            self._replace = False
        before = self._size()
        if before < offset:
            raise lost(self.name, f"{offset:,} bytes", f"{before:,}")
        row = 0
        try:
            for piece in spell(releases):
                known = min(len(piece), max(before - offset, 0))
                if known:
                    kept = self._compare(releases, row, piece, offset, known)
                    if kept < known:
                        known, before = kept, offset + kept
                        os.ftruncate(self._file.fileno(), before)
                    row += piece.count(b"\n")
                self._append(memoryview(piece)[known:])
                offset += len(piece)
            if self.options.fsync:
                os.fsync(self._file.fileno())
        except OSError:
            # Half a delivery, or half a line, would stand in the way of the next attempt.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), before)
            raise
        self._offset = offset

    def _append(self, text: bytes | memoryview) -> None:
        left = memoryview(text)
        while left:
            left = left[os.write(self._file.fileno(), left) :]

    def _compare(self, releases: Releases, row: int, piece: bytes, offset: int, known: int) -> int:
        """Hold the part of a piece that the file should have already to what it has.

        Released again, by a state that was restored, a record has another time, and keeps its
        first; one that was torn there is cut off before it.  Returns how much is kept.
        """
        found = bytearray()
        while len(found) < known:
            part = os.pread(self._file.fileno(), known - len(found), offset + len(found))
            if not part:
                break
            found += part
        expected = bytearray(piece)
        for match in _TIME.finditer(piece):
            begin, end = match.span(1)
            if end <= len(found):
                expected[begin:end] = found[begin:end]
            elif begin < len(found) == known and found[begin:] != expected[begin:known]:
                del found[begin:]
                known = begin
        if found != expected[:known]:
            pairs = enumerate(zip(found, expected, strict=False))
            same = next((i for i, (one, other) in pairs if one != other), len(found))
            release = releases[(row + piece[:same].count(b"\n")) // len(releases.names)]
            raise conflict(self.name, release.key, release.t)
        return known

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise failed(self.name, error) from error

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _not_regular(self) -> OutputError:
        return OutputError(
            f"{self.name}: expected a regular file, found something else; use standard output for "
            "pipes"
        )


class StandardOutputSink(Sink):
    """One JSON object to a line for each record, on standard output, which stays open.

    **Privacy.** Post-processing.

    **Delivery.** At least once: whoever reads gets a line again, the very same one, if the process
    was killed between writing it and remembering that it did. Nothing can be compared with what
    went out before.
    """

    class Options(SinkOptions, frozen=True, tag="stdout"):
        """``[[sink]]`` with ``kind = "stdout"``."""

    name = "standard output"

    def __init__(self, options: Any = None, *, key_columns: Sequence[str] = ()) -> None:
        super().__init__(options or self.Options(), key_columns=key_columns)

    def _open(self, position: Position | None) -> None:
        self._no_position(position)

    def _deliver(self, releases: Releases) -> None:
        try:
            for piece in spell(releases):
                sys.stdout.write(piece.decode("ascii"))
            sys.stdout.flush()
        except OSError as error:
            raise failed(self.name, error) from error

    def _close(self) -> None:
        pass
