"""Releases of a durable run as JSON lines: in a file that is continued, or on standard output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from io import FileIO
from pathlib import Path

from rillet.errors import OutputError
from rillet.sink.base import Place, check_place, conflict, lost
from rillet.sink.json_lines import append, failed, write_to_standard_output
from rillet.sink.spelling import spell
from rillet.table import ReleaseTable

__all__ = ["FileSink", "StandardOutputSink"]


class FileSink:
    """One JSON object to a line for each release, in a file that a later run continues.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t), as long as the file is opened at the place of the
    last acknowledgement. What stands behind that place must be, byte for byte, the beginning of
    what is delivered next: it is left as it is, a torn last line is completed, and the rest is
    appended. Anything else is refused and stays untouched. With ``fsync=True`` what was delivered
    is on disk when `deliver` returns; without, it survives the end of the process but perhaps not
    that of the machine, and then the next start says that content is missing. A write that fails,
    for instance on a full disk, leaves the file as it was before.

    Parameters
    ----------
    path : str or path-like
        A regular file; made if it does not exist.
    place : mapping, optional
        ``{"offset": bytes}``, from :meth:`place` of an earlier sink; none: from the beginning.
    fsync : bool
        Wait for the disk in each `deliver`.

    Raises
    ------
    OutputError
        If the file cannot be opened, has lost content, or is being written by another process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        place: Place | None = None,
        fsync: bool = False,
    ) -> None:
        self.name = os.fspath(path)
        self._fsync = fsync
        self._offset = check_place(place, self.name, "offset")
        try:
            self._stream = self._open(Path(path))
        except OSError as error:
            raise failed(self.name, error) from error
        try:
            self._check()
        except BaseException:
            self._stream.close()
            raise

    def __repr__(self) -> str:
        return f"FileSink({self.name!r})"

    def deliver(self, table: ReleaseTable) -> None:
        """Compare with what is there, append the rest; see the class for what is promised."""
        if self._stream.closed:
            raise OutputError(f"{self.name}: expected an open sink, found it closed")
        start = self._offset
        before = end = self._size()
        if before < start:
            raise lost(self.name, f"{start:,} bytes", f"{before:,}")
        place, row = start, 0
        try:
            for piece in spell(table):
                new = memoryview(piece)
                known = min(len(piece), max(before - place, 0))
                if known:
                    self._compare(table, row, piece, place, known)
                    row += piece.count(b"\n")
                append(self._stream, new[known:])
                place += len(piece)
                end = max(before, place)
            if self._fsync:
                os.fsync(self._stream.fileno())
        except OSError as error:
            if end > before:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._stream.fileno(), before)
            raise failed(self.name, error) from error
        self._offset = place

    def place(self) -> dict[str, int]:
        """How many bytes have been delivered."""
        return {"offset": self._offset}

    def close(self) -> None:
        """Close the file."""
        try:
            self._stream.close()
        except OSError as error:
            raise failed(self.name, error) from error

    def _open(self, path: Path) -> FileIO:
        new = not path.exists()
        # Append mode never moves what is there.
        stream = path.open("a+b", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise OutputError(
                    f"{self.name}: expected a regular file, found something else; use standard "
                    "output for pipes"
                )
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(
                    f"{self.name}: expected to be the only one who writes, found another process "
                    "that does; stop it, or name another file"
                ) from None
            if new and self._fsync:  # the name itself must survive too
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except BaseException:
            stream.close()
            raise
        return stream

    def _check(self) -> None:
        size = self._size()
        if size < self._offset:
            raise lost(self.name, f"{self._offset:,} bytes", f"{size:,}")
        if self._offset and os.pread(self._stream.fileno(), 1, self._offset - 1) != b"\n":
            raise OutputError(
                f"{self.name}: expected a line to end at byte {self._offset:,}, found that none "
                "does; this is not the file that was written before. Restore it, or name another"
            )

    def _size(self) -> int:
        return os.fstat(self._stream.fileno()).st_size

    def _compare(self, table: ReleaseTable, row: int, piece: bytes, place: int, known: int) -> None:
        """Hold the part of a piece that the file should have already to what it has."""
        found = bytearray()
        while len(found) < known:
            part = os.pread(self._stream.fileno(), known - len(found), place + len(found))
            if not part:
                break
            found += part
        if found != memoryview(piece)[:known]:
            pairs = enumerate(zip(found, piece, strict=False))
            same = next((i for i, (one, other) in pairs if one != other), len(found))
            release = table[row + piece[:same].count(b"\n")]
            raise conflict(self.name, release.key, release.t)


class StandardOutputSink:
    """One JSON object to a line for each release, on standard output.

    **Privacy.** Post-processing.

    **Delivery.** At least once: whoever reads gets a line again, the very same one, if the process
    was killed between writing it and remembering that it did. Nothing can be compared with what
    went out before.
    """

    name = "standard output"

    def __repr__(self) -> str:
        return "StandardOutputSink()"

    def deliver(self, table: ReleaseTable) -> None:
        """Write all lines and hand them to the operating system."""
        try:
            for piece in spell(table):
                write_to_standard_output(piece)
        except OSError as error:
            raise failed(self.name, error) from error

    def place(self) -> None:
        """Standard output has none."""

    def close(self) -> None:
        """Standard output stays open."""
