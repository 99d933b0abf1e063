"""Releases read back: from a database of releases, or from a file of JSON lines.

**Privacy.** Post-processing: everything here was published.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rillet.errors import InputError
from rillet.release import FIELDS, NUMBERS, Key, Releases, key_from_shown, key_shown
from rillet.sink.sqlite import APPLICATION_ID, FORMAT_VERSION

__all__ = ["ReleaseDatabase", "read_releases"]

_NUMBERS: Final = ", ".join(NUMBERS)
#: Seconds to wait for a writer that holds the file, as at its start and its end.
_BUSY: Final = 5.0


class ReleaseDatabase:
    """The database of releases of a run, opened to read; a run may write to it meanwhile.

    **Privacy.** Post-processing.

    Parameters
    ----------
    path : path
        ``releases.db``, or the folder of a state that has one.

    Raises
    ------
    InputError
        If there is no such file, or it is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = database_in(path)
        try:
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=_BUSY,
                check_same_thread=False,
            )
            (application,) = self._connection.execute("PRAGMA application_id").fetchone()
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            common = [field.name for field in FIELDS if field.common]
            if application != APPLICATION_ID:
                plan = None
            elif version != FORMAT_VERSION:
                raise InputError(
                    f"{path}: expected version {FORMAT_VERSION} of the database of releases, found "
                    f"{version}; read it with the version of rillet that wrote it"
                )
            else:
                plan = self._connection.execute(
                    f"SELECT names, {', '.join(common)} FROM plan"  # noqa: S608
                ).fetchone()
        except sqlite3.Error as error:
            raise InputError(
                f"{path}: expected a database of releases, found: {error}; name releases.db or "
                "the folder of a state"
            ) from None
        #: The numbers of each release; none before the first one.
        self.names: tuple[str, ...] = () if plan is None else tuple(json.loads(plan[0]))
        self._common: dict[str, Any] = {}
        if plan is not None:
            law, processing = plan[1:]
            self._common = {"noise_law": law, "post_processing": tuple(json.loads(processing))}

    def __enter__(self) -> ReleaseDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def keys(self) -> list[Key]:
        """The keys that have releases, in the order of their first ones."""
        if not self.names:
            return []
        rows = self._connection.execute("SELECT key, min(id) FROM series GROUP BY key ORDER BY 2")
        return [key_from_shown(key) for key, _ in rows]

    def latest(self, newer_than: dict[Key, int] | None = None) -> Releases:
        """The last release of each key; only of keys that have moved on since ``newer_than``."""
        if not self.names:
            return self._releases([], [])
        known = newer_than or {}
        ends = self._connection.execute(
            "SELECT s.key, (SELECT max(t) FROM release_rows WHERE series_id = s.id) AS t "
            "FROM series AS s WHERE name = ? ORDER BY s.id",
            (self.names[0],),
        ).fetchall()
        moved = {key_from_shown(key): t for key, t in ends}
        if newer_than is None:
            rows = self._connection.execute(
                f"SELECT key, name, t, at, {_NUMBERS} FROM latest"  # noqa: S608
            ).fetchall()
            return self._from_rows(moved, rows)
        moved = {key: t for key, t in moved.items() if t is not None and t > known.get(key, -1)}
        rows = []
        for key, t in moved.items():
            rows += self._connection.execute(
                f"SELECT key, name, t, at, {_NUMBERS} FROM releases "  # noqa: S608
                "WHERE key = ? AND t = ?",
                (key_shown(key), t),
            ).fetchall()
        return self._from_rows(moved, rows)

    def _from_rows(self, keys: dict[Key, int], rows: list[tuple[Any, ...]]) -> Releases:
        found = {(key_from_shown(row[0]), row[1]): row[2:] for row in rows}
        known = [key for key in keys if (key, self.names[0]) in found]
        return self._releases(known, [[found[key, name] for key in known] for name in self.names])

    def read(
        self,
        key: Key,
        *,
        after: int | None = None,
        since: str | None = None,
        until: str | None = None,
        most: int | None = None,
        thin: bool = False,
    ) -> Releases:
        """The releases of one key, in order.

        Parameters
        ----------
        key : tuple
            As declared.
        after : int, optional
            Only those with a larger ``t``.
        since, until : str, optional
            Only those released from a time on, and before another, as
            :func:`rillet.release.time_text` writes them.
        most : int, optional
            At most so many: the last ones, or, if ``thin``, evenly spaced ones, the last among
            them.
        """
        if not self.names:
            return self._releases([], [])
        conditions, values = ["key = ?"], [key_shown(key)]
        for condition, value in (("t > ?", after), ("at >= ?", since), ("at < ?", until)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        where = " AND ".join(conditions)
        if thin and most is not None:
            count, first, last = self._connection.execute(
                f"SELECT count(*), min(t), max(t) FROM releases WHERE {where} AND name = ?",  # noqa: S608
                (*values, self.names[0]),
            ).fetchone()
            if count > most:
                # Releases are evenly spaced but for the first: every so many of them, by t.
                apart = max(1, round((last - first) / (count - 1)))
                where += " AND (? - t) % ? = 0"
                values += [last, apart * math.ceil(count / most)]
        limit = -1 if most is None else most
        columns = []
        for name in self.names:
            rows = self._connection.execute(
                f"SELECT t, at, {_NUMBERS} FROM releases "  # noqa: S608
                f"WHERE {where} AND name = ? ORDER BY t DESC LIMIT ?",
                (*values, name, limit),
            ).fetchall()
            columns.append(rows[::-1])
        # A run may have written between two of these queries.
        shortest = min(map(len, columns))
        return self._releases([key] * shortest, [rows[:shortest] for rows in columns])

    def rollup(self) -> list[dict[str, Any]]:
        """All keys together, by name, where sums add up."""
        if not self.names:
            return []
        cursor = self._connection.execute("SELECT * FROM rollup")
        titles = [column[0] for column in cursor.description]
        return [dict(zip(titles, row, strict=True)) for row in cursor]

    def _releases(
        self, key_of: Sequence[Key], columns: Sequence[Sequence[tuple[Any, ...]]]
    ) -> Releases:
        """From (t, at, numbers) of each release, for each name, in the same order."""
        if not key_of:
            common = self._common or {"noise_law": "gaussian"}
            none = np.empty(0, np.int64)
            return Releases((), none, none, none, self.names or ("value",), {}, **common)
        indices: dict[Key, int] = {}
        for key in key_of:
            indices.setdefault(key, len(indices))
        width, count = len(self.names), len(key_of)
        t = np.array([row[0] for row in columns[0]], np.int64)
        at = np.array([row[1].rstrip("Z") for row in columns[0]], "M8[us]")
        numbers = np.array([[row[2:] for row in rows] for rows in columns], np.float64)
        by_name = {
            name: np.ascontiguousarray(numbers[:, :, index].T).reshape(width * count)
            for index, name in enumerate(NUMBERS)
        }
        return Releases(
            tuple(indices),
            np.array([indices[key] for key in key_of], np.int64),
            t,
            at,
            self.names,
            by_name,
            **self._common,
        )


def database_in(path: str | os.PathLike[str]) -> Path:
    """The file ``releases.db`` in a folder, or the file itself."""
    found = Path(path)
    return found / "releases.db" if found.is_dir() else found


def read_releases(path: str | os.PathLike[str]) -> Releases:
    """All releases of a sink that can be read back: SQLite, or JSON lines as ``rillet run`` writes.

    **Privacy.** Post-processing.

    Raises
    ------
    InputError
        If it cannot be read, or is something else.
    """
    try:
        with database_in(path).open("rb") as stream:
            is_database = stream.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise InputError(
            f"{path}: expected releases, found: {error.strerror}; name releases.db, a folder with "
            "one, or a file of JSON lines"
        ) from None
    if not is_database:
        return _from_lines(Path(path))
    with ReleaseDatabase(path) as database:
        parts = [database.read(key) for key in database.keys]
        return Releases.join(parts) if parts else database.latest()


def _from_lines(path: Path) -> Releases:
    try:
        with path.open(encoding="utf-8") as stream:
            records = [json.loads(line) for line in stream if line.strip()]
        names = tuple(dict.fromkeys(record["name"] for record in records))
        indices: dict[Key, int] = {}
        rows = records[:: max(len(names), 1)]
        key_of = [indices.setdefault(tuple(row["key"]), len(indices)) for row in rows]
        columns = {name: np.array([row[name] for row in records], np.float64) for name in NUMBERS}
        return Releases(
            tuple(indices),
            np.array(key_of, np.int64),
            np.array([row["t"] for row in rows], np.int64),
            np.array([row["at"].rstrip("Z") for row in rows], "M8[us]"),
            names or ("value",),
            columns,
            records[0]["noise_law"] if records else "gaussian",
            tuple(records[0]["post_processing"]) if records else (),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise InputError(
            f"{path}: expected JSON lines of releases, as `rillet run --out` writes them, found "
            "something else"
        ) from None
