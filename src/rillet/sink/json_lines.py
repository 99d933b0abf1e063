"""Releases as JSON lines: one object to a line, in a file or on standard output."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from io import FileIO
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from rillet.errors import OutputError, ParameterError
from rillet.release import Releases
from rillet.sink.spelling import spell
from rillet.table import ReleaseTable

__all__ = ["JsonLinesSink"]

STANDARD_OUTPUT = "-"

Existing = Literal["refuse", "append", "replace"]

# Records are joined before they are written: one call for many, in bounded memory.
_RECORDS_AT_ONCE = 4096


class JsonLinesSink:
    r"""Writes one JSON object to a line for each record.

    **Privacy.** Post-processing: takes public records, knows nothing else.

    **Delivery.** Records are handed to the operating system in order before `write` and
    `write_many` return, whole lines at a time; with ``fsync=True`` they are on disk by then. A
    write that fails, for instance on a full disk, leaves the file as it was before. After a crash
    the last line may be torn, and a file that ends so is refused, not continued. A record written
    twice stands there twice.

    Floats keep their shortest exact form, so reading a line gives the same doubles back. JSON has
    no NaN and no infinity: those become ``null``. Tuples become lists, and what is not ASCII is
    escaped.

    Parameters
    ----------
    path : str or path-like
        The file, or ``"-"`` for standard output.
    existing : {"refuse", "append", "replace"}
        What to do with a file that has something in it already. Published numbers are not
        overwritten by default.
    fsync : bool
        Wait for the disk after each write; ignored on standard output.

    Raises
    ------
    OutputError
        If the file cannot be opened or written.
    ParameterError
        If a parameter is wrong.

    Examples
    --------
    >>> with JsonLinesSink("-") as sink:
    ...     sink.write({"key": ("north",), "t": 1000, "value": 29.49, "noise_std": 0.125})
    {"key":["north"],"t":1000,"value":29.49,"noise_std":0.125}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        existing: Existing = "refuse",
        fsync: bool = False,
    ) -> None:
        if existing not in get_args(Existing):
            raise ParameterError("existing", f"one of {', '.join(get_args(Existing))}", existing)
        self._standard = os.fspath(path) == STANDARD_OUTPUT
        self.name = "standard output" if self._standard else os.fspath(path)
        self._fsync = fsync
        self._stream: FileIO | None = None
        if not self._standard:
            try:
                self._stream = self._open(Path(path), existing)
            except OSError as error:
                raise failed(self.name, error) from error

    def __repr__(self) -> str:
        return f"JsonLinesSink({self.name!r})"

    def __enter__(self) -> JsonLinesSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, record: Mapping[str, object]) -> None:
        """Write one record."""
        self._put(_line(record).encode("ascii"))

    def write_many(self, records: Iterable[Mapping[str, object]]) -> int:
        """Write records in order, taking them as they come, and return how many there were."""
        iterator = iter(records)
        count = 0
        while lines := list(map(_line, islice(iterator, _RECORDS_AT_ONCE))):
            self._put("".join(lines).encode("ascii"))
            count += len(lines)
        return count

    def write_releases(self, releases: Releases | ReleaseTable) -> int:
        """Write every release, in order, as `write_many` would, and return how many there were."""
        for piece in spell(releases):
            self._put(piece)
        return len(releases)

    def deliver(self, table: ReleaseTable) -> None:
        """As a `rillet.sink.base.Sink` of a run that is not durable: writes every release once."""
        self.write_releases(table)

    def place(self) -> None:
        """None: a file written this way is not gone back to."""

    def close(self) -> None:
        """Close the file; standard output stays open. Closing again does nothing."""
        if self._stream is not None:
            try:
                self._stream.close()
            except OSError as error:
                raise failed(self.name, error) from error

    def _open(self, path: Path, existing: Existing) -> FileIO:
        if existing == "replace":
            return path.open("wb", buffering=0)
        # Append mode never moves what is there, even if another process writes meanwhile.
        stream = path.open("ab", buffering=0)
        size = os.fstat(stream.fileno()).st_size
        problem = None
        if existing == "refuse" and size:
            problem = (
                f"{self.name}: expected a new or empty file, found {size:,} bytes; name another, "
                'or choose with existing="append" or existing="replace"'
            )
        elif size and not _ends_with_line(path):
            problem = (
                f"{self.name}: expected a file that ends with a whole line, found a torn one; "
                "look at it and remove its last line, or name another file"
            )
        if problem is not None:
            stream.close()
            raise OutputError(problem)
        return stream

    def _put(self, text: bytes) -> None:
        try:
            if self._standard:
                write_to_standard_output(text)
                return
            if self._stream is None or self._stream.closed:
                raise OutputError(f"{self.name}: expected an open sink, found it closed")
            append(self._stream, text)
            if self._fsync:
                os.fsync(self._stream.fileno())
        except OSError as error:
            raise failed(self.name, error) from error


def write_to_standard_output(text: bytes) -> None:
    """Write ASCII and hand it over at once."""
    sys.stdout.write(text.decode("ascii"))
    sys.stdout.flush()


def append(stream: FileIO, data: bytes | memoryview) -> None:
    """Write all of it at the end of a file, or raise `OSError` and leave the file as it was."""
    before = os.fstat(stream.fileno()).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[stream.write(left) or 0 :]
    except OSError:
        # Half a line would make the file useless for the next attempt.
        with contextlib.suppress(OSError):
            os.ftruncate(stream.fileno(), before)
        raise


def failed(name: str, error: OSError) -> OutputError:
    """The error of a sink whose file gave this one."""
    reason = error.strerror or type(error).__name__
    return OutputError(f"{name}: expected a writable file, found: {reason}")


def _line(record: Mapping[str, object]) -> str:
    try:
        return _encode(record if type(record) is dict else dict(record)) + "\n"
    except ValueError:
        return _encode(_with_null(dict(record))) + "\n"


def _with_null(value: object) -> object:
    """Replace what JSON has no number for by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _with_null(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(part) for part in value]
    return _with_null(_plain(value)) if hasattr(value, "tolist") else value


def _plain(value: object) -> Any:
    """Turn a NumPy scalar or array into what JSON knows."""
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    raise OutputError(
        f"record: expected numbers, text, lists and mappings, found {type(value).__name__}"
    )


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain).encode


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"
