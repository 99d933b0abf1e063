"""Releases read back, from whatever sink keeps them.

**Privacy.** Post-processing: everything here was published.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from rillet.errors import InputError
from rillet.extras import import_extra
from rillet.release import (
    COMMON,
    FIELDS,
    NUMBERS,
    Key,
    Releases,
    key_from_shown,
    key_shown,
    time_text,
)
from rillet.sink.names import edges, share
from rillet.sink.sqlite import APPLICATION_ID, FORMAT_VERSION

__all__ = ["StoredReleases", "open_releases", "read_releases", "releases_in"]

_NUMBERS: Final = ", ".join(NUMBERS)
#: Seconds to wait for a writer that holds the file, as at its start and its end.
_BUSY: Final = 5.0
#: Evenly spaced releases come from at most so many files.
_FILES: Final = 1_000


class StoredReleases(ABC):
    """The releases of a run, opened to read; a run may add to them meanwhile.

    **Privacy.** Post-processing.
    """

    #: The numbers of each release; none before the first one.
    names: tuple[str, ...] = ()

    def __enter__(self) -> StoredReleases:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - files are opened when they are read
        """Let go of what is open."""

    @property
    @abstractmethod
    def keys(self) -> list[Key]:
        """The keys that have releases."""

    @abstractmethod
    def latest(self, newer_than: Mapping[Key, int] | None = None) -> Releases:
        """The last release of each key; only of keys that have moved on since ``newer_than``.

        That is what an earlier look found, the ``t`` of each key.
        """

    @abstractmethod
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

    @abstractmethod
    def everything(self) -> Releases:
        """All releases of all keys."""

    @abstractmethod
    def rollup(self) -> list[dict[str, Any]]:
        """All keys together, by name, where sums add up."""


class ReleaseDatabase(StoredReleases):
    """The database of releases of a run.

    **Privacy.** Post-processing.

    Parameters
    ----------
    path : path
        ``releases.db``.

    Raises
    ------
    InputError
        If there is no such file, or it is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=_BUSY,
                check_same_thread=False,
            )
            (application,) = self._connection.execute("PRAGMA application_id").fetchone()
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                plan = None
            elif version != FORMAT_VERSION:
                raise InputError(
                    f"{path}: expected version {FORMAT_VERSION} of the database of releases, found "
                    f"{version}; read it with the version of rillet that wrote it"
                )
            else:
                plan = self._connection.execute(
                    f"SELECT names, {', '.join(COMMON)} FROM plan"  # noqa: S608
                ).fetchone()
        except sqlite3.Error as error:
            raise InputError(
                f"{path}: expected a database of releases, found: {error}; name releases.db or "
                "the folder of a state, whose run says who may read it (--readers)"
            ) from None
        if plan is not None:
            self.names = tuple(json.loads(plan[0]))
        self._common: dict[str, Any] = {}
        if plan is not None:
            found = dict(zip(COMMON, plan[1:], strict=True))
            self._common = {**found, "post_processing": tuple(json.loads(found["post_processing"]))}

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def keys(self) -> list[Key]:
        """The keys that have releases, in the order of their first ones."""
        if not self.names:
            return []
        rows = self._connection.execute("SELECT key, min(id) FROM series GROUP BY key ORDER BY 2")
        return [key_from_shown(key) for key, _ in rows]

    def latest(self, newer_than: Mapping[Key, int] | None = None) -> Releases:
        """As :meth:`StoredReleases.latest`."""
        if not self.names:
            return _none()
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
        """As :meth:`StoredReleases.read`."""
        if not self.names:
            return _none()
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
        """As :meth:`StoredReleases.rollup`."""
        if not self.names:
            return []
        cursor = self._connection.execute("SELECT * FROM rollup")
        titles = [column[0] for column in cursor.description]
        return [dict(zip(titles, row, strict=True)) for row in cursor]

    def everything(self) -> Releases:
        """As :meth:`StoredReleases.everything`."""
        parts = [self.read(key) for key in self.keys]
        return Releases.join(parts) if parts else _none()

    def _releases(
        self, key_of: Sequence[Key], columns: Sequence[Sequence[tuple[Any, ...]]]
    ) -> Releases:
        """From (t, at, numbers) of each release, for each name, in the same order."""
        if not key_of:
            return _none()
        numbers = np.array([[row[2:] for row in rows] for rows in columns], np.float64)
        return _made(
            key_of,
            [row[0] for row in columns[0]],
            [row[1].rstrip("Z") for row in columns[0]],
            self.names,
            {
                name: np.ascontiguousarray(numbers[:, :, index].T).reshape(-1)
                for index, name in enumerate(NUMBERS)
            },
            self._common,
        )


class ReleaseFiles(StoredReleases):
    """A folder of Parquet files, as the sink of that kind writes them; needs pyarrow.

    Files are in the order in which they were delivered, so news are in the last ones.

    **Privacy.** Post-processing.

    Parameters
    ----------
    path : path
        The folder with the files.
    declared : iterable of key
        Keys as they were declared: files have them as text.

    Raises
    ------
    InputError
        If it has other files.
    """

    def __init__(self, path: str | os.PathLike[str], declared: Iterable[Key] = ()) -> None:
        self.path = Path(path)
        self._parquet, self._compute = (
            import_extra(module, package="pyarrow", extra="parquet", purpose="to read Parquet")
            for module in ("pyarrow.parquet", "pyarrow.compute")
        )
        self._declared = {str(key_shown(key)): key for key in declared}
        self._files = sorted(self.path.glob("*.parquet"))
        if self._files:
            head = self._table(self._files[0], rows=4096)
            rows = [head[name].to_pylist() for name in ("key", "t", "name")]
            (key, t, _), *_ = found = list(zip(*rows, strict=True))
            self.names = tuple(name for *release, name in found if release == [key, t])
            self._common: dict[str, Any] = {
                **{name: head[name][0].as_py() for name in COMMON},
                "post_processing": tuple(head["post_processing"][0].as_py()),
            }

    def _table(self, path: Path, *, rows: int | None = None, key: str | None = None) -> Any:
        """The records of a file, of one key if it is given; the first ones if ``rows`` is."""
        try:
            with path.open("rb") as file:
                if rows is not None:
                    return next(self._parquet.ParquetFile(file).iter_batches(rows))
                columns = ["key", "t", "at", "name", *NUMBERS]
                chosen = None if key is None else self._compute.field("key") == key
                return self._parquet.read_table(file, columns=columns, filters=chosen)
        except (OSError, ValueError, StopIteration):  # ArrowInvalid is a ValueError
            raise InputError(
                f"{self.path}: expected Parquet files of releases, found another file: {path.name}"
            ) from None

    def _key(self, text: str) -> Key:
        return self._declared.get(text) or key_from_shown(text)

    @property
    def keys(self) -> list[Key]:
        """As :attr:`StoredReleases.keys`."""
        return list(self.latest().keys)

    def latest(self, newer_than: Mapping[Key, int] | None = None) -> Releases:
        """As :meth:`StoredReleases.latest`."""
        known, seen, parts = newer_than or {}, set[Key](), []
        for path in reversed(self._files):
            table = self._table(path)
            width = len(self.names)
            keys = table["key"].combine_chunks().dictionary_encode()
            t = table["t"].to_numpy()[::width]
            last = np.zeros(len(keys.dictionary), np.int64)
            last[keys.indices.to_numpy()[::width]] = np.arange(len(t))  # the last one stays
            moved = {
                key: row
                for text, row in zip(keys.dictionary.to_pylist(), last.tolist(), strict=True)
                if t[row] > known.get(key := self._key(text), -1)
            }
            if known and not moved:
                break  # and what was delivered before is known too
            if new := [row for key, row in moved.items() if key not in seen]:
                rows = (np.array(sorted(new))[:, None] * width + np.arange(width)).reshape(-1)
                parts.append(self._from(table.take(rows)))
            seen.update(moved)
            if self._declared and len(seen) == len(self._declared):
                break
        return Releases.join(parts[::-1]) if parts else _none()

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
        """As :meth:`StoredReleases.read`."""
        files, parts, found = self._files[::-1], [], 0
        if thin and most is not None:
            files = files[:: max(1, math.ceil(len(files) / _FILES))]
        for path in files:
            part = self._from(self._table(path, key=str(key_shown(key))))
            if not len(part):
                continue
            first, at = int(part.t[0]), time_text(part.at)
            inside = np.array([(since or "") <= each < (until or "~") for each in at])
            inside &= part.t > (-1 if after is None else after)
            if inside.any():
                (rows,) = np.nonzero(inside)
                parts.append(part[int(rows[0]) : int(rows[-1]) + 1])
                found += len(parts[-1])
            enough = most is not None and not thin and found >= most
            if enough or (after is not None and first <= after) or (since and at[0] < since):
                break
        if not parts:
            return _none()
        whole = Releases.join(parts[::-1])
        if most is None or len(whole) <= most:
            return whole
        if not thin:
            return whole[len(whole) - most :]
        step = math.ceil(len(whole) / most)
        return whole[(len(whole) - 1) % step :: step]

    def everything(self) -> Releases:
        """As :meth:`StoredReleases.everything`."""
        parts = [self._from(self._table(path)) for path in self._files]
        return Releases.join(parts) if parts else _none()

    def rollup(self) -> list[dict[str, Any]]:
        """As :meth:`StoredReleases.rollup`."""
        latest = self.latest()
        total = [index for index, key in enumerate(latest.keys) if key == ()]
        found = []
        for name in latest.names if len(latest) else ():
            part = latest[name]
            rows = np.isfinite(part.sum) & (np.isin(part.key_of, total) if total else True)
            if not rows.any():
                continue
            count, value = float(part.count[rows].sum()), float(part.sum[rows].sum())
            std = float(np.sqrt((part.sum_noise_std[rows] ** 2).sum()))
            of_mean = std / count if count else None
            if rows.sum() == 1:
                of_mean = float(part.mean_noise_std[rows][0])
            found.append(
                {
                    "name": name,
                    "at": max(time_text(part.at[rows])),
                    "keys": int(rows.sum()),
                    "count": count,
                    "sum": value,
                    "sum_noise_std": std,
                    "mean": value / count if count else None,
                    "mean_noise_std": of_mean,
                }
            )
        return found

    def _from(self, table: Any) -> Releases:
        """The releases of a table of records."""
        if not len(table):
            return _none()
        width = len(self.names)
        keys = table["key"].combine_chunks().dictionary_encode()
        known = [self._key(text) for text in keys.dictionary.to_pylist()]
        columns = {name: table[name].to_numpy() for name in ("t", "at", *NUMBERS)}
        return Releases(
            tuple(known),
            keys.indices.to_numpy()[::width].astype(np.int64),
            np.ascontiguousarray(columns["t"][::width]),
            np.ascontiguousarray(columns["at"][::width].astype("M8[us]")),
            self.names,
            {name: columns[name].astype(np.float64) for name in NUMBERS},
            **self._common,
        )


# --- which one it is -----------------------------------------------------------------------------


def releases_in(path: str | os.PathLike[str]) -> Path:
    """Where the releases of a run are: ``releases.db`` or ``releases`` in its folder, or itself."""
    found = Path(path)
    if not _is_folder(found) or any(found.glob("*.parquet")):
        return found
    dataset = found / "releases"
    return dataset if _is_folder(dataset) else found / "releases.db"


def _is_folder(path: Path) -> bool:
    """Whether it is one, as far as this account may know."""
    try:
        return path.is_dir()
    except PermissionError:
        return False


def public_file(path: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """A public file of the run, beside its releases; None if there is none."""
    try:
        text = releases_in(path).with_name(name).read_text(encoding="utf-8")
        content: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return None
    return content


def open_releases(path: str | os.PathLike[str]) -> StoredReleases:
    """The releases of a run, in whichever form it keeps them.

    Parameters
    ----------
    path : path
        The folder of a state, ``releases.db``, or a folder of Parquet files.

    Raises
    ------
    InputError
        If there are none, or it is something else.
    """
    found = releases_in(path)
    if _is_folder(found):
        declared = (public_file(path, "about.json") or {}).get("keys", [])
        return ReleaseFiles(found, map(key_from_shown, declared))
    return ReleaseDatabase(found)


def read_releases(path: str | os.PathLike[str], *, table: str = "releases") -> Releases:
    """All releases of a sink that can be read back, or of a CSV file with them.

    **Privacy.** Post-processing.

    Parameters
    ----------
    path : path
        The folder of a run, a database of SQLite, a folder of Parquet files, a file of JSON lines
        or CSV; or how to connect to PostgreSQL, as ``postgresql://host/database``.
    table : str
        Of PostgreSQL.

    Raises
    ------
    InputError
        If it cannot be read, or is something else.
    """
    if str(path).startswith(("postgres://", "postgresql://")):
        return _from_postgres(str(path), table)
    found = releases_in(path)
    if _is_folder(found):
        with open_releases(path) as stored:
            return stored.everything()
    try:
        with found.open("rb") as stream:
            first = stream.readline(1 << 16)
    except OSError as error:
        raise InputError(
            f"{path}: expected releases, found: {error.strerror}; name the folder of a run, "
            "releases.db, a folder of Parquet files, or a file of JSON lines or CSV"
        ) from None
    if first.startswith(b"SQLite format 3\0"):
        with open_releases(path) as stored:
            return stored.everything()
    with _understood(path, "JSON lines of releases, as `rillet run --out` writes them, or CSV"):
        if first.startswith(b"{") or not first:
            with found.open(encoding="utf-8") as stream:
                return _from_records([json.loads(line) for line in stream if line.strip()])
        with found.open(encoding="utf-8", newline="") as stream:
            table_rows = csv.DictReader(stream)
            missing = {"key", "t", "at", "name", "value"} - set(table_rows.fieldnames or ())
            if missing:
                raise KeyError(*missing)
            return _from_records(list(map(_from_cells, table_rows)))


@contextlib.contextmanager
def _understood(path: object, expected: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise InputError(f"{path}: expected {expected}, found something else") from None


def _from_cells(row: Mapping[str, str]) -> dict[str, Any]:
    """A record from a row of CSV, as the page and ``/api/releases`` write it.

    It need not have all fields: the ends of the interval stand for what it follows from.
    """
    record: dict[str, Any] = {name: float(row.get(name) or "nan") for name in NUMBERS}
    if row.get("low") and row.get("high"):
        record |= {"noise_lower": float(row["low"]), "noise_upper": float(row["high"])}
    return record | {
        "key": key_from_shown(row["key"]),
        "t": int(row["t"]),
        "at": _plain_time(datetime.fromisoformat(row["at"])),
        "name": row["name"],
        "noise_law": row.get("noise_law") or "gaussian",
        "post_processing": (),
        "tail": "unknown",  # or clipping would be in the ends twice
    }


def _from_postgres(address: str, table: str) -> Releases:
    """The rows of a table, in the order of keys."""
    from rillet.sink import make_sink

    fields = [field.name for field in FIELDS]
    psycopg, sql, conninfo = (
        import_extra(module, package="psycopg", extra="postgres", purpose="to read PostgreSQL")
        for module in ("psycopg", "psycopg.sql", "psycopg.conninfo")
    )
    shown = make_sink({"kind": "postgres", "dsn": address, "table": table}).name  # no password
    query = sql.SQL("SELECT {} FROM {} ORDER BY key, t").format(
        sql.SQL(", ").join(map(sql.Identifier, fields)), sql.Identifier(*table.split("."))
    )
    try:
        with psycopg.connect(address, connect_timeout=10) as connection:
            rows = connection.execute(query).fetchall()
    except psycopg.Error as error:
        password = str(conninfo.conninfo_to_dict(address).get("password") or "\0")
        reason = " ".join(str(error).split()).replace(password, "***")
        raise InputError(f"{shown}: expected a table of releases, found: {reason}") from None
    records = [dict(zip(fields, row, strict=True)) for row in rows]
    records.sort(key=lambda record: (record["key"], record["t"], _rank(record["name"])))
    for record in records:
        record |= {"key": key_from_shown(record["key"]), "at": _plain_time(record["at"])}
    return _from_records(records)


def _plain_time(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat()


def _rank(name: str) -> tuple[float, float, str]:
    """Bins by their edges, quantiles by their shares, everything else by name."""
    ends = edges(name) or (share(name) or 0.0,) * 2
    return (*ends, name)


def _from_records(records: Sequence[Mapping[str, Any]]) -> Releases:
    """Of records in order, all names of a release beside each other."""
    if not records:
        return _none()
    names = tuple(dict.fromkeys(record["name"] for record in records))
    rows = records[:: len(names)]
    return _made(
        [tuple(row["key"]) for row in rows],
        [row["t"] for row in rows],
        [row["at"].rstrip("Z") for row in rows],
        names,
        {name: np.array([row[name] for row in records], np.float64) for name in NUMBERS},
        {
            **{name: records[0][name] for name in COMMON},
            "post_processing": tuple(records[0]["post_processing"]),
        },
    )


def _made(
    key_of: Sequence[Key],
    t: Sequence[int],
    at: Sequence[str],
    names: tuple[str, ...],
    columns: Mapping[str, np.ndarray[Any, Any]],
    common: Mapping[str, Any],
) -> Releases:
    indices: dict[Key, int] = {}
    numbers = [indices.setdefault(key, len(indices)) for key in key_of]
    return Releases(
        tuple(indices),
        np.array(numbers, np.int64),
        np.array(t, np.int64),
        np.array(at, "M8[us]"),
        names,
        columns,
        **common,
    )


def _none() -> Releases:
    none = np.empty(0, np.int64)
    return Releases((), none, none, none, ("value",), {}, "gaussian")
