"""Releases in an SQLite database, the file that a dashboard opens.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.errors import OutputError
from rillet.release import FIELDS, NUMBERS, Key, Releases, key_from_shown, key_shown, origins
from rillet.sink.base import Position, conflict, lost, position_number
from rillet.sink.file import FileOptions, FileSink, failed, open_file

__all__ = ["APPLICATION_ID", "FORMAT_VERSION", "SqliteSink", "latest_times"]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

#: Says whose database it is, in its header (PRAGMA application_id): "rllt".
APPLICATION_ID = 0x726C6C74
#: PRAGMA user_version, and ``version`` in the table ``meta``.
FORMAT_VERSION = 2

#: Rows to a statement: a call for each costs twice as much, and more gain nothing.
_ROWS = 50
#: Rows that are plain numbers at once, in several times the memory of their columns.
_PLAIN_ROWS = 200 * _ROWS
#: Seconds to wait for another writer.
_BUSY = 10.0

_COMMON = [field.name for field in FIELDS if field.common]
_STEADY = [field.name for field in FIELDS if field.steady]
_VARYING = [name for name in NUMBERS if name not in _STEADY]
#: What many rows share: the steady numbers, and where to find each of the varying ones.
_SHARED = [*_STEADY, *(f"{name}_at" for name in _VARYING)]

#: Where a number is that is 0 in every row.
_ZERO = 999
#: Microseconds from the year 1 to 1970: counted from there, no time is negative.
_YEAR_1 = 62_135_596_800_000_000

# A varying number often equals another, or t, or another divided by t: a row holds n1, n2, … that
# are left, and `shared` says for each number where it is: k is nk, -k is nk / t, 0 is t itself, 999
# is the number 0, and NULL is unknown.
_TABLES = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE plan(one INTEGER PRIMARY KEY CHECK (one = 1), names TEXT NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL" for name in _COMMON)});
CREATE TABLE series(id INTEGER PRIMARY KEY, key NOT NULL, name TEXT NOT NULL, UNIQUE(key, name));
CREATE TABLE shared(id INTEGER PRIMARY KEY, {", ".join(_SHARED)});
CREATE TABLE release_rows(
    series_id INTEGER NOT NULL REFERENCES series, t INTEGER NOT NULL, at INTEGER NOT NULL,
    shared_id INTEGER NOT NULL REFERENCES shared, n1 REAL,
    PRIMARY KEY(series_id, t)
) WITHOUT ROWID;
"""


def _views(width: int) -> str:
    """The views over rows of ``width`` numbers."""
    places = [(str(k), f"r.n{k}") for k in range(1, width + 1)]
    places += [(f"-{k}", f"r.n{k} / r.t") for k in range(1, width + 1)]
    places.append((str(_ZERO), "0.0"))
    cases = " ".join(f"WHEN {code} THEN {what}" for code, what in places)
    columns = {
        **{
            name: f"CASE g.{name}_at WHEN 0 THEN CAST(r.t AS REAL) {cases} END" for name in _VARYING
        },
        **{name: f"g.{name}" for name in _STEADY},
        **{name: f"plan.{name}" for name in _COMMON},
        "key": "s.key",
        "name": "s.name",
        "t": "r.t",
        "at": f"strftime('%Y-%m-%dT%H:%M:%S', (r.at + {_YEAR_1}) / 1000000 - {_YEAR_1} / 1000000, "
        f"'unixepoch') || printf('.%06dZ', (r.at + {_YEAR_1}) % 1000000)",
    }
    record = ", ".join(f"{columns[field.name]} AS {field.name}" for field in FIELDS)
    rest = "JOIN shared AS g ON g.id = r.shared_id JOIN plan ON one = 1"
    return f"""
CREATE VIEW releases AS SELECT {record}
    FROM release_rows AS r JOIN series AS s ON s.id = r.series_id {rest};
-- CROSS: in this order, one look at the end of each series
CREATE VIEW latest AS SELECT {record}
    FROM series AS s CROSS JOIN release_rows AS r ON r.series_id = s.id
        AND r.t = (SELECT max(t) FROM release_rows WHERE series_id = s.id) {rest};
-- the key [] is that of the total of all keys, where there is one
CREATE VIEW rollup AS SELECT name, at, keys, count, sum, sum_noise_std, sum / count AS mean,
    CASE keys WHEN 1 THEN mean_noise_std ELSE sum_noise_std / count END AS mean_noise_std
    FROM (
        SELECT name, max(at) AS at, count(*) AS keys, total(count) AS count, total(sum) AS sum,
            sqrt(total(sum_noise_std * sum_noise_std)) AS sum_noise_std,
            max(mean_noise_std) AS mean_noise_std
        FROM latest WHERE sum IS NOT NULL
            AND (key = '[]' OR NOT EXISTS (SELECT 1 FROM series WHERE key = '[]'))
        GROUP BY name
    );
"""  # noqa: S608 - all parts stand here


class SqliteSink(FileSink):
    """Tables and views of releases in one SQLite file, which others may read meanwhile.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t, name): all of a delivery or, if anything fails,
    nothing of it, in one transaction. While it is open the database is in WAL mode; closed, it is a
    single file that can be read without the right to write beside it. With
    ``synchronous = "normal"`` what was delivered survives the end of the process, and the file
    survives a power cut, but may then lack the last deliveries, which the next start notices; with
    ``"full"`` each delivery waits for the disk and a power cut takes nothing back.
    """

    class Options(FileOptions, frozen=True, tag="sqlite"):
        """``[[sink]]`` with ``kind = "sqlite"``."""

        synchronous: Literal["normal", "full"] = "normal"

    counts = ("rows", "records")

    _connection: sqlite3.Connection

    def position(self) -> Position:
        """How many records the database has."""
        return {"rows": self._rows}

    def _open(self, position: Position | None) -> None:
        expected = position_number(position, self.name, "rows")
        try:
            # Made here for its mode. Never opened if it exists: closing it again would end locks
            # that another connection of this process holds.
            if not self.path.exists() or self.path.is_symlink():
                os.close(open_file(self.name, os.O_WRONLY, self.readers))
            self._give()
        except OSError as error:
            raise failed(self.name, error) from error
        with self._failing():
            self._connection = sqlite3.connect(
                self.name, timeout=_BUSY, isolation_level=None, check_same_thread=False
            )
        self._data_version, self._writing = 0, False
        try:
            with self._failing():
                if not self._has_tables():
                    self._prepare()
                self._load()
                self._give()  # a log that was left behind is open again
            if self._rows < expected:
                raise lost(self.name, f"{expected:,} records", f"{self._rows:,}")
        except BaseException:
            self._connection.close()
            raise

    def _has_tables(self) -> bool:
        """Whether there are tables, which must be those of releases."""
        (tables,) = self._execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application,) = self._execute("PRAGMA application_id").fetchone()
        (version,) = self._execute("PRAGMA user_version").fetchone()
        if tables and application != APPLICATION_ID:
            raise OutputError(
                f"{self.name}: expected a new file or a database of releases, found a database of "
                "something else; name another file"
            )
        if tables and version != FORMAT_VERSION:
            raise OutputError(
                f"{self.name}: expected version {FORMAT_VERSION} of the database of releases, "
                f"found {version}; use the version of rillet that wrote it, or a later one"
            )
        return bool(tables)

    def _prepare(self) -> None:
        """Get ready to write; until then a database stays, byte for byte, what it is."""
        self._writing = True
        self._execute("PRAGMA page_size = 8192")
        self._execute("PRAGMA journal_mode = WAL")
        self._execute(f"PRAGMA synchronous = {self.options.synchronous}")
        self._execute("PRAGMA cache_size = -32768")
        self._execute("PRAGMA journal_size_limit = 67108864")
        with self._transaction():
            # Somebody else may have made it while we waited for the lock.
            if self._execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
                self._run(_TABLES + _views(1))
                known = [("version", FORMAT_VERSION), ("rows", 0), ("width", 1)]
                self._connection.executemany("INSERT INTO meta VALUES (?, ?)", known)
                self._execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        self._give()

    def _give(self) -> None:
        """Let its readers read the database and, while it is written, the files beside it."""
        if self.readers is None:
            return
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.readers.give(self.path.with_name(self.path.name + suffix))

    def _load(self) -> None:
        meta = dict(self._execute("SELECT name, value FROM meta").fetchall())
        self._rows: int = meta["rows"]
        #: How many numbers a row has room for.
        self._width: int = meta["width"]
        series = self._execute("SELECT key, name, id FROM series")
        self._series_ids = {(key_from_shown(key), name): number for key, name, number in series}
        shared = self._execute(f"SELECT {', '.join(_SHARED)}, id FROM shared")  # noqa: S608
        self._shared_ids = {tuple(found): number for *found, number in shared}
        plan = f"SELECT names, {', '.join(_COMMON)} FROM plan"  # noqa: S608
        self._plan: tuple[str, ...] | None = self._execute(plan).fetchone()

    def _close(self) -> None:
        with self._failing():
            if self._writing:
                with contextlib.suppress(sqlite3.Error):  # not while somebody reads
                    self._execute("PRAGMA busy_timeout = 0")
                    self._execute("PRAGMA journal_mode = DELETE")
            self._connection.close()

    def _break_off(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.interrupt()

    # --- one transaction -------------------------------------------------------------------------

    def _deliver(self, releases: Releases) -> None:
        releases = releases.compact()
        with self._failing():
            if not self._writing:
                self._prepare()
        with self._failing(), self._transaction():
            version = self._execute("PRAGMA data_version").fetchone()[0]
            if version != self._data_version:  # another connection has numbered something
                self._load()
                self._data_version = version
            self._same_plan(releases)
            rows = self._rows
            for name in releases.names:
                rows += self._insert(releases if len(releases.names) == 1 else releases[name])
            self._execute("UPDATE meta SET value = ? WHERE name = 'rows'", (rows,))
        self._rows = rows

    def _same_plan(self, releases: Releases) -> None:
        common = (releases.common[name] for name in _COMMON)
        texts = (value if isinstance(value, str) else json.dumps(value) for value in common)
        plan = (json.dumps(releases.names), *texts)
        if self._plan is None:
            self._execute(f"INSERT INTO plan VALUES (1{', ?' * len(plan)})", plan)  # noqa: S608
            self._plan = plan
        elif self._plan != plan:
            raise OutputError(
                f"{self.name}: expected releases of {self._plan}, as it has them, found "
                f"{plan}; name another file for another plan"
            )

    def _insert(self, releases: Releases) -> int:
        """Insert the records, of one name, that are new, and return how many were."""
        # Neighbours in the file beside each other: several times as fast as in order of time.
        key_of = releases.key_of
        order = np.argsort(
            key_of.astype(np.min_scalar_type(len(releases.keys))),  # short: sorted by radix
            kind="stable",
        )
        key_of, t, at = key_of[order], releases.t[order], releases.at.view(np.int64)[order]
        places, stored = _places(releases)
        if len(stored) > self._width:
            self._widen(len(stored))
        series = self._ids_of_series(releases)[key_of]
        shared = self._ids_of_shared(
            [releases.rows(name)[order] for name in _STEADY], tuple(places[n] for n in _VARYING)
        )
        inserted = self._insert_rows([series, t, at, shared, *(column[order] for column in stored)])
        if inserted < len(releases):
            self._compare(releases, order, series)
        return inserted

    def _widen(self, width: int) -> None:
        for k in range(self._width + 1, width + 1):
            self._execute(f"ALTER TABLE release_rows ADD COLUMN n{k} REAL")
        self._run("DROP VIEW rollup; DROP VIEW latest; DROP VIEW releases;" + _views(width))
        self._execute("UPDATE meta SET value = ? WHERE name = 'width'", (width,))
        self._width = width

    def _ids_of_series(self, releases: Releases) -> IntArray:
        """The number of each key's series."""
        (name,) = releases.names
        for key in releases.keys:
            if (key, name) not in self._series_ids:
                self._series_ids[key, name] = self._numbered(
                    "INSERT INTO series(key, name) VALUES (?, ?)", (key_shown(key), name)
                )
        return np.array([self._series_ids[key, name] for key in releases.keys])

    def _ids_of_shared(self, steady: list[FloatArray], places: tuple[int | None, ...]) -> IntArray:
        """For each row the number of what it shares with others."""
        changes = np.zeros(len(steady[0]), bool)
        changes[:1] = True
        for column in steady:
            bits = column.view(np.uint64)
            changes[1:] |= bits[1:] != bits[:-1]
        starts = np.flatnonzero(changes)
        ids = []
        for numbers in zip(*(_plain(column[starts]) for column in steady), strict=True):
            found = (*numbers, *places)
            if found not in self._shared_ids:
                self._shared_ids[found] = self._numbered(
                    f"INSERT INTO shared({', '.join(_SHARED)}) "  # noqa: S608
                    f"VALUES ({', '.join('?' * len(found))})",
                    found,
                )
            ids.append(self._shared_ids[found])
        return np.repeat(np.array(ids), np.diff(starts, append=len(changes)))

    def _numbered(self, statement: str, values: Sequence[Any]) -> int:
        number = self._execute(statement, values).lastrowid
        assert number is not None
        return number

    def _insert_rows(self, columns: list[NDArray[Any]]) -> int:
        before = self._connection.total_changes
        width, count = len(columns), len(columns[0])
        for start in range(0, count, _PLAIN_ROWS):
            flat: list[Any] = [None] * (width * min(_PLAIN_ROWS, count - start))
            for index, column in enumerate(columns):
                # SQLite takes NaN for NULL
                flat[index::width] = column[start : start + _PLAIN_ROWS].tolist()
            for first in range(0, len(flat), width * _ROWS):
                values = flat[first : first + width * _ROWS]
                self._execute(_insertion(width, len(values) // width), values)
        return self._connection.total_changes - before

    def _compare(self, releases: Releases, order: IntArray, series: IntArray) -> None:
        """Refuse a value other than the one that is there."""
        starts = np.flatnonzero(np.diff(series, prepend=-1)).tolist()
        for first, last in zip(starts, [*starts[1:], len(series)], strict=True):
            rows = order[first:last]
            key, t = releases.keys[releases.key_of[rows[0]]], releases.t[rows]
            found = {
                row[0]: row[1:]
                for row in self._execute(
                    f"SELECT t, {', '.join(NUMBERS)} FROM releases "  # noqa: S608
                    "WHERE key = ? AND name = ? AND t BETWEEN ? AND ?",
                    (key_shown(key), releases.names[0], int(t.min()), int(t.max())),
                )
            }
            numbers = zip(*(_plain(releases.rows(name)[rows]) for name in NUMBERS), strict=True)
            for step, expected in zip(t.tolist(), numbers, strict=True):
                if found.get(step) != expected:
                    raise conflict(self.name, key, step)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
            # What was numbered in it is gone.
            with contextlib.suppress(sqlite3.Error, KeyError):
                self._load()
            raise

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise failed(self.name, error) from error
        except (sqlite3.Error, KeyError) as error:  # KeyError: a table that lacks a row
            raise OutputError(
                f"{self.name}: expected a database that can be written, found: {error}"
            ) from error

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _run(self, script: str) -> None:
        for statement in filter(str.strip, script.split(";")):
            self._execute(statement)


@cache
def _insertion(width: int, rows: int) -> str:
    names = ["series_id", "t", "at", "shared_id", *(f"n{k}" for k in range(1, width - 3))]
    row = f"({','.join('?' * width)})"
    return (
        f"INSERT OR IGNORE INTO release_rows({','.join(names)}) "  # noqa: S608
        f"VALUES {','.join([row] * rows)}"
    )


def _plain(column: FloatArray) -> list[float | None]:
    """As SQL has them: what is not known is NULL."""
    return [number if isfinite(number) else None for number in column.tolist()]


def _places(releases: Releases) -> tuple[Mapping[str, int | None], list[FloatArray]]:
    """Where each varying number is found, and the columns to store: see `_TABLES`."""
    places: dict[str, int | None] = dict.fromkeys(_VARYING)
    known: dict[str, FloatArray] = {}
    for name in _VARYING:
        column = releases.rows(name)
        finite = np.isfinite(column)
        if not column.view(np.uint64).any():
            places[name] = _ZERO
        elif finite.any():
            known[name] = column if finite.all() else np.where(finite, column, np.nan)
    found = origins(known, releases.t)
    stored = [name for name in known if found[name][0] == name]
    codes = {"t": 0} | {name: 1 + index for index, name in enumerate(stored)}
    for name, (origin, divided) in found.items():
        places[name] = -codes[origin] if divided else codes[origin]
    return places, [known[name] for name in stored]


def latest_times(path: str | os.PathLike[str]) -> dict[Key, int]:
    """For each key that has a release, the ``t`` of its latest one.

    Reads beside a run that writes; none where the file does not exist yet.
    """
    if not Path(path).exists():
        return {}
    try:
        connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(connection):
            rows = connection.execute("SELECT key, t FROM latest").fetchall()
        return {key_from_shown(key): int(t) for key, t in rows}
    except (sqlite3.Error, ValueError):
        raise OutputError(
            f"{os.fspath(path)}: expected the releases of a durable run, found another file"
        ) from None
