"""Releases in an SQLite database, the file that a dashboard opens.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rillet.errors import OutputError, ParameterError
from rillet.release import Key
from rillet.sink.base import Place, check_place, conflict, lost
from rillet.sink.spelling import key_text
from rillet.table import ReleaseTable

__all__ = ["APPLICATION_ID", "FORMAT_VERSION", "SqliteSink", "Synchronous", "latest_times"]

Synchronous = Literal["normal", "full"]

#: Says whose database it is, in its header (PRAGMA application_id): "rllt".
APPLICATION_ID = 0x726C6C74
#: PRAGMA user_version, and ``version`` in the table ``meta``.
FORMAT_VERSION = 1

#: Rows to a statement: a call for each costs twice as much, and more gain nothing.
_ROWS = 50
#: Seconds to wait for another writer.
_BUSY = 10.0

# Base columns only: the views work out the others, by the same operations in the same order as
# rillet.Release, so that they are the same doubles. Clipping ranges rarely change.
_COLUMNS = """
    key, t,
    CASE statistic WHEN 'mean' THEN sum / t ELSE sum END AS value,
    CASE statistic WHEN 'mean' THEN unit_std / t * (threshold - clip_lower)
        ELSE unit_std * (threshold - clip_lower) END AS noise_std,
    sum, unit_std * (threshold - clip_lower) AS sum_noise_std,
    sum / t AS mean, unit_std / t * (threshold - clip_lower) AS mean_noise_std,
    threshold, clip_lower, clipped_share, statistic, noise_law, post_processing
"""
_SCHEMA = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE keys(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE ranges(
    id INTEGER PRIMARY KEY, threshold REAL NOT NULL, clip_lower REAL NOT NULL, clipped_share REAL
);
CREATE TABLE release_rows(
    key_id INTEGER NOT NULL REFERENCES keys, t INTEGER NOT NULL,
    sum REAL NOT NULL, unit_std REAL NOT NULL, range_id INTEGER NOT NULL REFERENCES ranges,
    PRIMARY KEY(key_id, t)
) WITHOUT ROWID;
CREATE TABLE plan(
    one INTEGER PRIMARY KEY CHECK (one = 1),
    statistic TEXT NOT NULL, noise_law TEXT NOT NULL, post_processing TEXT NOT NULL
);
CREATE VIEW releases AS SELECT {_COLUMNS.strip()}
    FROM release_rows AS r
    JOIN keys AS k ON k.id = r.key_id JOIN ranges AS g ON g.id = r.range_id
    JOIN plan ON one = 1;
CREATE VIEW latest AS SELECT {_COLUMNS.strip()}
    FROM keys AS k
    -- CROSS: in this order, one look at the end of each key's rows
    CROSS JOIN release_rows AS r ON r.key_id = k.id
        AND r.t = (SELECT max(t) FROM release_rows WHERE key_id = k.id)
    JOIN ranges AS g ON g.id = r.range_id
    JOIN plan ON one = 1;
CREATE VIEW rollup AS SELECT
    keys, t,
    CASE statistic WHEN 'mean' THEN sum / t ELSE sum END AS value,
    CASE statistic WHEN 'mean' THEN sum_noise_std / t ELSE sum_noise_std END AS noise_std,
    sum, sum_noise_std, sum / t AS mean, sum_noise_std / t AS mean_noise_std,
    statistic, noise_law, post_processing
    FROM (
        SELECT count(*) AS keys, sum(t) AS t, total(sum) AS sum,
            sqrt(total(sum_noise_std * sum_noise_std)) AS sum_noise_std,
            statistic, noise_law, post_processing
        FROM latest
    ) WHERE keys > 0;
"""  # noqa: S608 - both parts stand here


class SqliteSink:
    """Tables and views of releases in one SQLite file, which others may read meanwhile.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t): all of a table or, if anything fails, nothing of
    it, in one transaction. The database is in WAL mode. With ``synchronous="normal"`` what was
    delivered survives the end of the process, and the file survives a power cut, but may then lack
    the last tables, which the next start notices; with ``"full"`` each `deliver` waits for the
    disk and a power cut takes nothing back.

    Parameters
    ----------
    path : str or path-like
        The database; made if it does not exist.
    place : mapping, optional
        ``{"rows": number}``, from :meth:`place` of an earlier sink.
    synchronous : {"normal", "full"}
        What `deliver` waits for.

    Raises
    ------
    OutputError
        If it cannot be opened, is not such a database, has another version, or has lost content.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        place: Place | None = None,
        synchronous: Synchronous = "normal",
    ) -> None:
        if synchronous not in get_args(Synchronous):
            raise ParameterError("synchronous", "normal or full", synchronous)
        self.name = os.fspath(path)
        expected = check_place(place, self.name, "rows")
        self._key_ids: dict[Key, int] = {}
        self._range_ids: dict[tuple[float | None, ...], int] = {}
        self._plan: tuple[str, ...] | None = None
        self._rows = 0
        self._data_version = 0
        with self._failing():
            self._connection = sqlite3.connect(
                self.name, timeout=_BUSY, isolation_level=None, check_same_thread=False
            )
        try:
            with self._failing():
                self._prepare(synchronous)
                self._load()
            if self._rows < expected:
                raise lost(self.name, f"{expected:,} releases", f"{self._rows:,}")
        except BaseException:
            self._connection.close()
            raise

    def __repr__(self) -> str:
        return f"SqliteSink({self.name!r})"

    def deliver(self, table: ReleaseTable) -> None:
        """Insert what is new in one transaction; see the class for what is promised."""
        if not len(table):
            return
        with self._failing(), self._transaction():
            self._load_again()
            self._same_plan(table)
            # Neighbours in the file beside each other: several times as fast as in order of time.
            order = np.lexsort((table.t, table.key_of))
            columns = {
                name: getattr(table, name)[order]
                for name in ("t", "sum", "unit_std", "threshold", "clip_lower", "clipped_share")
            }
            key_of = table.key_of[order]
            ids = self._ids_of_keys(table.keys, key_of)[key_of]
            ranges = self._ids_of_ranges(columns)
            inserted = self._insert(ids, columns["t"], columns["sum"], columns["unit_std"], ranges)
            if inserted < len(table):
                self._compare(table, key_of, ids, columns)
            rows = self._rows + inserted
            self._execute("UPDATE meta SET value = ? WHERE name = 'rows'", (rows,))
        self._rows = rows

    def place(self) -> dict[str, int]:
        """How many releases the database has."""
        return {"rows": self._rows}

    def close(self) -> None:
        """Close the database."""
        with self._failing():
            self._connection.close()

    # --- opening -------------------------------------------------------------------------------

    def _prepare(self, synchronous: Synchronous) -> None:
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
        self._execute("PRAGMA page_size = 8192")
        self._execute("PRAGMA journal_mode = WAL")
        self._execute(f"PRAGMA synchronous = {synchronous}")
        self._execute("PRAGMA cache_size = -32768")
        self._execute("PRAGMA journal_size_limit = 67108864")
        if tables:
            return
        with self._transaction():
            # Somebody else may have made it while we waited for the lock.
            if self._execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._execute(statement)
                known = [("version", FORMAT_VERSION), ("rows", 0)]
                self._connection.executemany("INSERT INTO meta VALUES (?, ?)", known)
                self._execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _load(self) -> None:
        (self._rows,) = self._execute("SELECT value FROM meta WHERE name = 'rows'").fetchone()
        self._key_ids = {
            tuple(json.loads(key)): key_id
            for key_id, key in self._execute("SELECT id, key FROM keys")
        }
        found = self._execute("SELECT threshold, clip_lower, clipped_share, id FROM ranges")
        self._range_ids = {tuple(limits): range_id for *limits, range_id in found}
        self._plan = self._execute(
            "SELECT statistic, noise_law, post_processing FROM plan"
        ).fetchone()

    # --- one transaction -----------------------------------------------------------------------

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
            with contextlib.suppress(sqlite3.Error, TypeError):
                self._load()
            raise

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(
                f"{self.name}: expected a database that can be written, found: {error}"
            ) from error

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _load_again(self) -> None:
        """Read what another connection has numbered since we last looked."""
        version = self._execute("PRAGMA data_version").fetchone()[0]
        if version != self._data_version:
            self._load()
            self._data_version = version

    def _same_plan(self, table: ReleaseTable) -> None:
        plan = (table.statistic, table.noise_law, json.dumps(table.post_processing))
        if self._plan is None:
            self._execute("INSERT INTO plan VALUES (1, ?, ?, ?)", plan)
            self._plan = plan
        elif self._plan != plan:
            raise OutputError(
                f"{self.name}: expected releases of {self._plan}, as it has them, found "
                f"{plan}; name another file for another plan"
            )

    def _ids_of_keys(self, keys: tuple[Key, ...], key_of: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each key of a table that has rows; key_of is sorted."""
        places = key_of[np.flatnonzero(np.diff(key_of, prepend=-1))].tolist()
        new = [keys[place] for place in places if keys[place] not in self._key_ids]
        for key in new:
            cursor = self._execute("INSERT INTO keys(key) VALUES (?)", (key_text(key),))
            assert cursor.lastrowid is not None
            self._key_ids[key] = cursor.lastrowid
        ids = np.zeros(len(keys), np.int64)
        ids[places] = [self._key_ids[keys[place]] for place in places]
        return ids

    def _ids_of_ranges(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        limits = [columns[name] for name in ("threshold", "clip_lower", "clipped_share")]
        changes = np.zeros(len(limits[0]), bool)
        changes[:1] = True
        for column in limits:
            bits = column.view(np.uint64)
            changes[1:] |= bits[1:] != bits[:-1]
        starts = np.flatnonzero(changes)
        ids = []
        for threshold, lower, share in zip(
            *(column[starts].tolist() for column in limits), strict=True
        ):
            found = (threshold, lower, None if isnan(share) else share)
            if found not in self._range_ids:
                cursor = self._execute(
                    "INSERT INTO ranges(threshold, clip_lower, clipped_share) VALUES (?, ?, ?)",
                    found,
                )
                assert cursor.lastrowid is not None
                self._range_ids[found] = cursor.lastrowid
            ids.append(self._range_ids[found])
        return np.repeat(np.array(ids), np.diff(starts, append=len(changes)))

    def _insert(self, *columns: NDArray[Any]) -> int:
        """Insert the rows whose (key, t) is new and return how many were."""
        before = self._connection.total_changes
        width, count = len(columns), len(columns[0])
        flat: list[Any] = [None] * (width * count)
        for place, column in enumerate(columns):
            flat[place::width] = column.tolist()
        whole = _insertion(width, _ROWS)
        for first in range(0, count, _ROWS):
            rows = min(_ROWS, count - first)
            part = flat[width * first : width * (first + rows)]
            self._execute(whole if rows == _ROWS else _insertion(width, rows), part)
        return self._connection.total_changes - before

    def _compare(
        self,
        table: ReleaseTable,
        key_of: NDArray[np.int64],
        ids: NDArray[np.int64],
        columns: dict[str, NDArray[Any]],
    ) -> None:
        """Refuse a value other than the one that is there."""
        starts = np.flatnonzero(np.diff(key_of, prepend=-1)).tolist()
        for first, last in zip(starts, [*starts[1:], len(key_of)], strict=True):
            t = columns["t"][first:last].tolist()
            found = {
                row[0]: row[1:]
                for row in self._execute(
                    "SELECT t, sum, unit_std, threshold, clip_lower, clipped_share "
                    "FROM release_rows JOIN ranges ON id = range_id "
                    "WHERE key_id = ? AND t BETWEEN ? AND ?",
                    (int(ids[first]), t[0], t[-1]),
                )
            }
            names = ("sum", "unit_std", "threshold", "clip_lower", "clipped_share")
            rows = zip(*(columns[name][first:last].tolist() for name in names), strict=True)
            for step, (*numbers, share) in zip(t, rows, strict=True):
                if found.get(step) != (*numbers, None if isnan(share) else share):
                    raise conflict(self.name, table.keys[key_of[first]], step)


def _insertion(width: int, rows: int) -> str:
    row = f"({','.join('?' * width)})"
    return f"INSERT OR IGNORE INTO release_rows VALUES {','.join([row] * rows)}"  # noqa: S608


def latest_times(path: str | os.PathLike[str]) -> dict[Key, int]:
    """For each key that has a release, the observation number of its latest one.

    Reads beside a run that writes; none where the file does not exist yet.
    """
    if not Path(path).exists():
        return {}
    try:
        connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(connection):
            rows = connection.execute("SELECT key, t FROM latest").fetchall()
        return {tuple(json.loads(key)): int(t) for key, t in rows}
    except (sqlite3.Error, ValueError):
        raise OutputError(
            f"{os.fspath(path)}: expected the releases of a durable run, found another file"
        ) from None
