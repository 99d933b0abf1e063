"""Releases as a dataset of Parquet files; needs pyarrow, ``rillet[parquet]``.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rillet.errors import OutputError
from rillet.extras import import_extra
from rillet.release import FIELDS, NUMBERS, Releases
from rillet.sink.base import Position, conflict, lost, position_number
from rillet.sink.file import (
    FileOptions,
    FileSink,
    failed,
    lock_file,
    open_file,
    sync_folder,
)

__all__ = ["ParquetSink", "latest_time"]

#: The rows of a file, numbered through the dataset: the first, and the one behind the last.
_NAME = re.compile(r"(\d{12,})-(\d{12,})\.parquet")
#: What is being written has a name that no reader of a dataset looks at.
_UNFINISHED = ".unfinished"
#: As fast as none, and known to every reader.
_COMPRESSION = "snappy"
#: Columns in which few texts repeat.
_REPEATING = [field.name for field in FIELDS if field.kind == "text"]


class ParquetSink(FileSink):
    """A folder with one Parquet file for each delivery, which others may read meanwhile.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t, name), as long as the folder is opened at the
    position of the last acknowledgement. A file is written under another name, brought to the disk
    and renamed, so that a reader sees all of a delivery or nothing of it, also after a power cut;
    no file is changed afterwards. Its name has the numbers of its rows: what stands behind the
    position must be, but for ``at``, the beginning of what is delivered next. It is compared and
    left as it is, and the rest becomes the next file. Anything else is refused. The folder is
    locked.
    """

    class Options(FileOptions, frozen=True, tag="parquet"):
        """``[[sink]]`` with ``kind = "parquet"``."""

    counts = ("rows", "records")

    _folder: int

    def __init__(self, options: Any, *, key_columns: Sequence[str] = ()) -> None:
        super().__init__(options, key_columns=key_columns)
        self._arrow, self._parquet = _pyarrow()

    def position(self) -> Position:
        """How many records have been delivered."""
        return {"rows": self._rows}

    def _open(self, position: Position | None) -> None:
        rows = position_number(position, self.name, "rows")
        if self.path.is_symlink():
            raise OutputError(
                f"{self.name}: expected a folder, found a symbolic link; name the folder that it "
                "points to"
            )
        with self._failing():
            if not self.path.exists():
                self.path.mkdir(0o755 if self.readers is None else 0o700)
                sync_folder(self.path.parent)
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with self._failing():
                lock_file(self._folder, self.name)
                (self.path / _UNFINISHED).unlink(missing_ok=True)
                self._ends = self._listed()
                if self.readers is not None:
                    for ends in self._ends.items():
                        self.readers.give(self._path(*ends))
                    self.readers.give(self._folder, folder=5)
            stored = max(self._ends.values(), default=0)
            if stored < rows:
                raise lost(self.name, f"{rows:,} records", f"{stored:,}")
        except BaseException:
            os.close(self._folder)
            raise
        self._rows = rows

    def _listed(self) -> dict[int, int]:
        """The files that follow each other: behind its last row for each by its first one."""
        ends: dict[int, int] = {}
        for path in self.path.glob("*.parquet"):
            name = _NAME.fullmatch(path.name)
            if name is None:
                raise OutputError(
                    f"{self.name}: expected a folder of releases, found {path.name} in it; name "
                    "another folder"
                )
            ends[int(name[1])] = int(name[2])
        row = 0
        for first in sorted(ends):
            if first != row:
                raise OutputError(
                    f"{self.name}: expected files that follow each other, found none that begins "
                    f"at row {row:,}; restore it from a backup, or name another folder"
                )
            row = ends[first]
        return ends

    def _deliver(self, releases: Releases) -> None:
        rows = len(releases) * len(releases.names)
        with self._failing():
            table = self._table(releases)
            known = 0
            while known < rows and (stored := self._stored(self._rows + known)) is not None:
                found = stored.slice(0, rows - known)
                self._compare(releases, table, known, found)
                known += len(found)
            if known < rows:
                self._write(releases, table.slice(known))
        self._rows += rows

    def _table(self, releases: Releases) -> Any:
        """The records; keys as text, whatever they are: all files have one schema."""
        table = releases.to_arrow()
        column = table.column_names.index("key")
        return table.set_column(column, "key", table["key"].cast(self._arrow.string()))

    def _stored(self, row: int) -> Any:
        """The rows from this one to the end of its file; None if there are none yet."""
        first = max((first for first in self._ends if first <= row), default=0)
        if self._ends.get(first, 0) <= row:
            return None
        with self._path(first, self._ends[first]).open("rb") as file:
            stored = self._parquet.read_table(file)
        if len(stored) != self._ends[first] - first:
            raise lost(self.name, f"{self._ends[first]:,} records", f"{first + len(stored):,}")
        return stored.slice(row - first)

    def _compare(self, releases: Releases, table: Any, start: int, found: Any) -> None:
        """Refuse rows other than those that are there; when they were released may differ."""

        def same(first: int, last: int) -> bool:
            one = expected.slice(first, last - first)
            return bool(one.equals(found.slice(first, last - first)))

        first, last = 0, len(found)
        found = found.drop_columns(["at"])
        expected = table.slice(start, last).drop_columns(["at"])
        if same(first, last):
            return
        while last - first > 1:  # the first one that differs
            middle = (first + last) // 2
            first, last = (first, middle) if not same(first, middle) else (middle, last)
        release = releases[(start + first) // len(releases.names)]
        raise conflict(self.name, release.key, release.t)

    def _write(self, releases: Releases, table: Any) -> None:
        """Add a file, whole or not at all."""
        first = max(self._ends.values(), default=0)
        end = first + len(table)
        unfinished = self.path / _UNFINISHED
        descriptor = open_file(str(unfinished), os.O_WRONLY | os.O_TRUNC, self.readers)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - it is open
                self._parquet.write_table(
                    table,
                    file,
                    compression=_COMPRESSION,
                    use_dictionary=_repeating(releases),
                    write_statistics=["t", "at"],
                )
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._path(first, end))
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        self._ends[first] = end
        os.fsync(self._folder)

    def _path(self, first: int, end: int) -> Path:
        return self.path / f"{first:012d}-{end:012d}.parquet"

    def _close(self) -> None:
        os.close(self._folder)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise failed(self.name, error, "folder of files") from error
        except self._arrow.ArrowException as error:
            raise OutputError(
                f"{self.name}: expected the files that were written before, found a damaged one; "
                "restore it from a backup, or name another folder"
            ) from error


def _repeating(releases: Releases) -> list[str]:
    """Columns whose values repeat: an index into a dictionary takes next to nothing then."""
    constant = [name for name in ("t", "at", *NUMBERS) if _is_constant(releases.rows(name))]
    keys = ["key"] if len(releases) > 2 * len(releases.keys) else []
    return [*constant, *keys, *_REPEATING, "post_processing.list.element"]


def _is_constant(column: np.ndarray[Any, Any]) -> bool:
    bits = column.view(np.int64)
    return bool(bits[0] == bits[-1]) and (bits.strides == (0,) or bool((bits == bits[0]).all()))


def _pyarrow() -> tuple[Any, Any]:
    arrow, parquet = (
        import_extra(module, package="pyarrow", extra="parquet", purpose="to write Parquet")
        for module in ("pyarrow", "pyarrow.parquet")
    )
    return arrow, parquet


def latest_time(folder: Path) -> int:
    """The largest ``t`` in a folder of releases, from the statistics of its files; 0 if none."""
    arrow, parquet = _pyarrow()
    latest = 0
    try:
        for path in folder.glob("*.parquet"):
            with path.open("rb") as file:
                metadata = parquet.read_metadata(file)
            column = metadata.schema.names.index("t")
            for group in range(metadata.num_row_groups):
                latest = max(latest, metadata.row_group(group).column(column).statistics.max)
    except (OSError, ValueError, arrow.ArrowException):
        raise OutputError(f"{folder}: expected a folder of releases, found other files") from None
    return latest
