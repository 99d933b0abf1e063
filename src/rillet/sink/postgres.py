"""Releases in a table of PostgreSQL.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rillet.errors import OutputError, ParameterError
from rillet.extras import import_extra
from rillet.release import FIELDS, NUMBERS, Field, Releases, key_shown
from rillet.sink.base import Position, Seconds, Sink, SinkOptions, Text, conflict

__all__ = ["PostgresSink"]

#: Seconds for one attempt to connect, and between attempts at first and at most.
_CONNECT = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
log = logging.getLogger("rillet.sink")

#: Seconds that a server has, beyond our patience, to say itself that a statement took too long.
_GRACE = 1.0
#: Releases to a statement, so that each is short; and rows to a message.
_RELEASES, _ROWS = 50_000, 8192

_TYPES = {
    "key": "text",
    "integer": "bigint",
    "time": "timestamptz",
    "number": "double precision",
    "text": "text",
    "texts": "text[]",
}
_NAMES = [field.name for field in FIELDS]
_COLUMNS = ", ".join(
    f"{field.name} {_TYPES[field.kind]}{'' if field.optional else ' NOT NULL'}" for field in FIELDS
)

_EPOCH = np.datetime64("2000-01-01", "us")

#: Part of PostgreSQL's binary format of COPY: signature, flags, no extension; the end.
_HEAD, _TAIL = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
#: What is copied: the indices of key and name in place of their texts, and no common fields.
_COPIED = {
    "key_of": (">i4", "integer"),
    "name_of": (">i4", "integer"),
    "t": (">i8", "bigint"),
    "at": (">i8", "timestamptz"),  # microseconds since the epoch of PostgreSQL
    **dict.fromkeys(NUMBERS, (">f8", "double precision")),
}
#: One row of it: the number of fields, then the length and the content of each.
_ROW = np.dtype(
    [("fields", ">i2")]
    + [
        part
        for name, (kind, _) in _COPIED.items()
        for part in ((f"{name}_length", ">i4"), (name, kind))
    ]
)


def _new_column(field: Field) -> str:
    if field.common:
        return f"%({field.name})s::{_TYPES[field.kind]} AS {field.name}"
    return f"NULLIF({field.name}, 'NaN') AS {field.name}" if field.optional else field.name


#: What was copied, as rows of the table.
_NEW = f"""
SELECT key_of, {", ".join(map(_new_column, FIELDS))}
FROM rillet_new
JOIN unnest(%(keys)s::text[]) WITH ORDINALITY AS keys(key, key_at) ON key_at = key_of + 1
JOIN unnest(%(names)s::text[]) WITH ORDINALITY AS names(name, name_at) ON name_at = name_of + 1
"""  # noqa: S608 - all parts stand here


#: What is found at the end of the primary key of each (key, name), without looking at the rest.
_LATEST = """
WITH RECURSIVE series AS (
    (SELECT key FROM {1} ORDER BY key LIMIT 1)
    UNION ALL
    SELECT (SELECT r.key FROM {1} AS r WHERE r.key > s.key ORDER BY r.key LIMIT 1)
    FROM series AS s WHERE s.key IS NOT NULL
)
SELECT r.* FROM series AS s CROSS JOIN LATERAL (
    SELECT * FROM {1} AS r
    WHERE r.key = s.key AND r.t = (SELECT max(t) FROM {1} AS m WHERE m.key = s.key)
) AS r WHERE s.key IS NOT NULL
"""
_TOGETHER = """
name, max(at) AS at, count(*) AS keys, sum(count) AS count, sum(sum) AS sum,
    sqrt(sum(sum_noise_std ^ 2)) AS sum_noise_std, sum(sum) / nullif(sum(count), 0) AS mean,
    CASE count(*) WHEN 1 THEN max(mean_noise_std)
        ELSE sqrt(sum(sum_noise_std ^ 2)) / nullif(sum(count), 0) END AS mean_noise_std
"""
#: By the end of their names. A key of several parts is a JSON array: its first part is its level.
#: Where the total of a level, or of all keys ([]), was released itself, it stands for its parts.
_VIEWS = {
    "latest": _LATEST,
    "levels": f"""
WITH latest AS ({_LATEST}), each AS (
    SELECT *, CASE WHEN key LIKE '[%' THEN key::jsonb ->> 0 ELSE key END AS level,
        key IN (SELECT key::jsonb ->> 0 FROM latest WHERE key LIKE '[%' AND key <> '[]') AS is_total
    FROM latest WHERE sum IS NOT NULL
)
SELECT level, {_TOGETHER} FROM each
WHERE key <> '[]' AND (is_total OR level NOT IN (SELECT level FROM each WHERE is_total))
GROUP BY level, name
UNION ALL
SELECT NULL, {_TOGETHER} FROM each
WHERE CASE WHEN EXISTS (SELECT FROM each WHERE key = '[]') THEN key = '[]' ELSE NOT is_total END
GROUP BY name
""",  # noqa: S608 - all parts stand here
}


class PostgresSink(Sink):
    """One row for each record in a table with the names of the record, made if absent.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t, name), which is the primary key: all of a delivery
    or, if anything fails, nothing of it, in one transaction, committed as durably as the server is
    set up to (``synchronous_commit``). A connection that was lost is made again, for ``patience``
    seconds; a server that says nothing for as long is given up. Then `deliver` fails, and may be
    called again.
    """

    class Options(SinkOptions, frozen=True, tag="postgres"):
        """``[[sink]]`` with ``kind = "postgres"``.

        Parameters
        ----------
        dsn : str
            How to connect, as libpq understands it; what it leaves out comes from the environment
            (``PGHOST``, ``PGPASSFILE``, …). A password belongs in a password file. It is never
            shown. ``sslmode`` is libpq's too: ``verify-full`` for a server elsewhere.
        table : str
            The name of the table, with or without that of its schema: ``"live.releases"``.
        patience : float
            Seconds to go on trying when the connection is lost, and to wait for an answer.
        """

        dsn: str = ""
        table: Text = "releases"
        patience: Seconds = 30.0

    def __init__(self, options: Any, *, key_columns: Sequence[str] = ()) -> None:
        super().__init__(options, key_columns=key_columns)
        self._psycopg, self._sql, self._conninfo = (
            import_extra(
                module, package="psycopg", extra="postgres", purpose="to write to PostgreSQL"
            )
            for module in ("psycopg", "psycopg.sql", "psycopg.conninfo")
        )
        parts = options.table.split(".")
        if not 1 <= len(parts) <= 2 or not all(parts):
            raise ParameterError("table", 'a name, as "releases" or "live.releases"', options.table)
        self._table = self._sql.Identifier(*parts)
        self._known = self._parse(options.dsn)
        self._password = str(self._known.get("password") or "")
        database, host, port = (
            self._known.get(word) or os.environ.get(variable) or default
            for word, variable, default in (
                ("dbname", "PGDATABASE", "the default database"),
                ("host" if self._known.get("host") else "hostaddr", "PGHOST", "the default host"),
                ("port", "PGPORT", "5432"),
            )
        )
        self.name = f"table {options.table} of {database} on {host}:{port}"
        self._connection: Any = None
        self._keep_table = True
        #: When an answer must have come.
        self._until = 0.0

    def check(self, position: Position | None = None) -> None:
        """As `Sink.check`: a table is made and taken back."""
        self._keep_table = False
        try:
            super().check(position)
        finally:
            self._keep_table = True

    def _open(self, position: Position | None) -> None:
        self._no_position(position)
        with self._failing(), self._watched():
            self._connect()

    def _deliver(self, releases: Releases) -> None:
        releases = releases.compact()
        keys = [str(key_shown(key)) for key in releases.keys]
        if len(set(keys)) < len(keys):
            raise OutputError(
                f"{self.name}: expected keys that differ as text, found one number and one text "
                "that do not; declare one of them"
            )
        with self._failing(), self._watched():
            self._keep_trying(lambda: self._insert(releases, keys))

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(self._psycopg.Error):
                self._connection.close()

    # --- the connection --------------------------------------------------------------------------

    def _parse(self, dsn: str) -> dict[str, Any]:
        try:
            known: dict[str, Any] = self._conninfo.conninfo_to_dict(dsn)
        except (self._psycopg.Error, TypeError):
            # Neither the text nor libpq's remark about it: both may hold a password.
            raise ParameterError(
                "dsn",
                'a connection string of PostgreSQL, as "host=127.0.0.1 dbname=live"',
                "one that cannot be read",
                "it is not shown, as it may hold a password",
            ) from None
        return known

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (self._psycopg.Error, OSError) as error:
            text = " ".join(str(error).split())
            if time.monotonic() > self._until:
                text = f"no answer in {self.options.patience:g} s ({text})"
            if self._password:
                text = text.replace(self._password, "***")
            raise OutputError(
                f"{self.name}: expected a table that can be written, found: {text}"
            ) from None

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Hang up if nothing comes for longer than our patience: libpq would wait for ever."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(max(self._until + _GRACE - time.monotonic(), 0)):
                if time.monotonic() >= self._until + _GRACE:
                    self._break_off()
                    return

        self._progress()
        watcher = threading.Thread(target=watch, name="rillet-postgres", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _progress(self) -> None:
        """Our patience begins anew."""
        self._until = time.monotonic() + self.options.patience

    def _break_off(self) -> None:
        with (
            contextlib.suppress(self._psycopg.Error, OSError, AttributeError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> None:
        milliseconds = int(1000 * self.options.patience)
        defaults = {
            "application_name": "rillet",
            "connect_timeout": max(1, min(_CONNECT, round(self.options.patience))),
            "tcp_user_timeout": milliseconds,
        }
        self._connection = self._psycopg.connect(
            self._conninfo.make_conninfo(**{**defaults, **self._known})
        )
        try:
            self._connection.execute(f"SET statement_timeout = {max(1, milliseconds)}")
            self._connection.commit()
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._connection.transaction(force_rollback=not self._keep_table):
            # Two that start at once would both make it: let one wait.
            self._execute("SELECT pg_advisory_xact_lock(hashtext('rillet.releases'))")
            self._connection.execute("SET LOCAL client_min_messages = warning")
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {{}} ({_COLUMNS}, PRIMARY KEY (key, t, name))"
            )
            self._make_views()
            description = self._execute("SELECT * FROM {} LIMIT 0").description
        found = {column.name for column in description}
        if not set(_NAMES) <= found:
            missing = ", ".join(name for name in _NAMES if name not in found)
            raise OutputError(
                f"{self.name}: expected a table of releases, found one without {missing}; name "
                "another, it is made if it does not exist"
            )

    def _make_views(self) -> None:
        """Views for dashboards beside the table: the latest release of each key, and all together.

        Where they may not be made, or something else has the name, they are left out.
        """
        *schema, name = self.options.table.split(".")
        for view, query in _VIEWS.items():
            target = self._sql.Identifier(*schema, f"{name}_{view}")
            statement = self._sql.SQL(f"CREATE OR REPLACE VIEW {{0}} AS {query}")
            with contextlib.suppress(self._psycopg.Error), self._connection.transaction():
                self._connection.execute(statement.format(target, self._table))

    def _keep_trying(self, work: Callable[[], None]) -> None:
        pause, end = _FIRST_PAUSE, None
        while True:
            try:
                if self._connection.closed:
                    self._connect()
                    if end is not None:
                        log.info("%s: connected again", self.name)
                work()
            except self._psycopg.OperationalError:
                # Lost, or not there yet: all of the transaction is undone, and done again.
                now = time.monotonic()
                if end is None:
                    end = now + self.options.patience
                    wait = f"{self.options.patience:g} s"
                    log.info("%s: connection lost, trying again for %s", self.name, wait)
                hopeless = now > self._until or now + pause > end or self._closing
                if hopeless or not self._connection.closed:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._progress()
            else:
                return

    def _execute(self, statement: str, values: dict[str, Any] | None = None) -> Any:
        """Run a statement whose gap, if it has one, is the table."""
        return self._connection.execute(self._sql.SQL(statement).format(self._table), values)

    # --- one transaction -------------------------------------------------------------------------

    def _insert(self, releases: Releases, keys: list[str]) -> None:
        values = {"keys": keys, "names": list(releases.names)} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in releases.common.items()
        }
        with self._connection.transaction():
            columns = ", ".join(f"{name} {kind}" for name, (_, kind) in _COPIED.items())
            self._connection.execute(
                f"CREATE TEMPORARY TABLE rillet_new ({columns}) ON COMMIT DROP"
            )
            for first in range(0, len(releases), _RELEASES):
                if first:
                    self._connection.execute("TRUNCATE rillet_new")
                self._insert_part(releases[first : first + _RELEASES], values)
                self._progress()

    def _insert_part(self, releases: Releases, values: dict[str, Any]) -> None:
        step = max(_ROWS // len(releases.names), 1)
        copying = "COPY rillet_new FROM STDIN (FORMAT binary)"
        with self._connection.cursor().copy(copying) as copy:
            copy.write(_HEAD)
            for first in range(0, len(releases), step):
                copy.write(_binary(releases[first : first + step]))
            copy.write(_TAIL)
        columns = ", ".join(_NAMES)
        inserted = self._execute(
            f"INSERT INTO {{}} ({columns}) SELECT {columns} FROM ({_NEW}) AS new "  # noqa: S608
            "ON CONFLICT (key, t, name) DO NOTHING",
            values,
        ).rowcount
        if inserted < len(releases) * len(releases.names):
            # Released again, by a state that was restored, it has another time.
            names = [name for name in _NAMES if name != "at"]
            one, other = (", ".join(f"{part}.{name}" for name in names) for part in ("new", "old"))
            found = self._execute(
                f"SELECT new.key_of, new.t FROM ({_NEW}) AS new "  # noqa: S608
                f"JOIN {{}} AS old USING (key, t, name) WHERE ({one}) IS DISTINCT FROM ({other}) "
                "ORDER BY new.t, new.key_of LIMIT 1",
                values,
            ).fetchone()
            if found is not None:
                raise conflict(self.name, releases.keys[found[0]], found[1])


def _binary(releases: Releases) -> bytes:
    """Rows in the binary format of COPY: exact doubles, and no text to make or to read."""
    width = len(releases.names)
    rows = np.empty(len(releases) * width, _ROW)
    rows["fields"] = len(_COPIED)
    for name, (kind, _) in _COPIED.items():
        rows[f"{name}_length"] = np.dtype(kind).itemsize
    rows["key_of"] = np.repeat(releases.key_of, width)
    rows["name_of"] = np.tile(np.arange(width), len(releases))
    rows["t"] = releases.rows("t")
    rows["at"] = (releases.rows("at") - _EPOCH).view(np.int64)
    for name in NUMBERS:
        column = releases.rows(name)
        rows[name] = np.where(np.isfinite(column), column, np.nan)
    return rows.tobytes()
