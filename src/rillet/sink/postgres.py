"""Releases in a table of PostgreSQL.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rillet.errors import OutputError, ParameterError
from rillet.extras import import_extra
from rillet.sink.base import Place, conflict
from rillet.sink.spelling import key_text
from rillet.table import ReleaseTable

__all__ = ["PostgresSink"]

#: Seconds for one attempt to connect, and between attempts at first and at most.
_CONNECT = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

_NUMBERS = (
    "value",
    "noise_std",
    "sum",
    "sum_noise_std",
    "mean",
    "mean_noise_std",
    "threshold",
    "clip_lower",
    "clipped_share",
)
_COLUMNS = {
    "key": "text NOT NULL",
    "t": "bigint NOT NULL",
    **dict.fromkeys(_NUMBERS, "double precision"),
    "statistic": "text NOT NULL",
    "noise_law": "text NOT NULL",
    "post_processing": "text[] NOT NULL",
}
#: Part of PostgreSQL's binary format of COPY: signature, flags, no extension; the end.
_HEAD, _TAIL = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
#: One row of it: the number of fields, then the length and the content of each.
_ROW = np.dtype(
    [("fields", ">i2"), ("key_length", ">i4"), ("key_of", ">i4"), ("t_length", ">i4"), ("t", ">i8")]
    + [part for name in _NUMBERS for part in ((f"{name}_length", ">i4"), (name, ">f8"))]
)
#: What was copied, as rows of the table; an unknown share is NULL.
_NEW = f"""
SELECT key_of, key, t, {", ".join(_NUMBERS[:-1])},
    NULLIF(clipped_share, 'NaN') AS clipped_share, %(statistic)s::text AS statistic,
    %(noise_law)s::text AS noise_law, %(post_processing)s::text[] AS post_processing
FROM rillet_new JOIN unnest(%(keys)s::text[]) WITH ORDINALITY AS known(key, place)
    ON place = key_of + 1
"""  # noqa: S608 - both parts stand here
#: Rows to a message.
_ROWS = 8192


class PostgresSink:
    """One row for each release in a table with the names of the record, made if absent.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** Exactly once for each (key, t), which is the primary key: all of a table or, if
    anything fails, nothing of it, in one transaction, committed as durably as the server is set
    up to (``synchronous_commit``). A connection that was lost is made again, for ``patience``
    seconds; then `deliver` fails, and may be called again.

    Parameters
    ----------
    dsn : str
        How to connect, as libpq understands it; what it leaves out comes from the environment
        (``PGHOST``, ``PGPASSFILE``, …). A password belongs in a password file. It is never shown.
    table : str
        The name of the table, with or without that of its schema: ``"live.releases"``.
    patience : float
        Seconds to go on trying when the connection is lost.
    place : None
        PostgreSQL needs none.
    keep_table : bool
        False: make the table only to see whether that works, and take it back.

    Raises
    ------
    MissingExtra
        If psycopg is not installed.
    OutputError
        If the server cannot be reached, or the table is another one.
    ParameterError
        If ``dsn`` or ``table`` is wrong.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        table: str = "releases",
        patience: float = 30.0,
        place: Place | None = None,
        keep_table: bool = True,
    ) -> None:
        self._psycopg = import_extra(
            "psycopg", package="psycopg", extra="postgres", purpose="to write to PostgreSQL"
        )
        self._sql = import_extra(
            "psycopg.sql", package="psycopg", extra="postgres", purpose="to write to PostgreSQL"
        )
        parts = table.split(".")
        if not 1 <= len(parts) <= 2 or not all(parts):
            raise ParameterError("table", 'a name, as "releases" or "live.releases"', table)
        self._table = self._sql.Identifier(*parts)
        known = self._parse(dsn)
        self._dsn, self._password = dsn, str(known.get("password") or "")
        where = known.get("host") or known.get("hostaddr") or "the default host"
        self.name = f"table {table} of {known.get('dbname') or 'the default database'} on {where}"
        if place is not None:
            raise OutputError(f"{self.name}: expected no place, found {dict(place)}")
        self._patience, self._keep_table = patience, keep_table
        self._connection: Any = None
        self._closed = False
        with self._failing():
            self._connect()

    def __repr__(self) -> str:
        return f"PostgresSink({self.name!r})"

    def deliver(self, table: ReleaseTable) -> None:
        """Insert what is new in one transaction; see the class for what is promised."""
        if self._closed:
            raise OutputError(f"{self.name}: expected an open sink, found it closed")
        if len(table):
            with self._failing():
                self._keep_trying(lambda: self._insert(table.compact()))

    def place(self) -> None:
        """PostgreSQL needs none."""

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._connection is not None:
            with contextlib.suppress(self._psycopg.Error):
                self._connection.close()

    # --- the connection ------------------------------------------------------------------------

    def _parse(self, dsn: str) -> dict[str, Any]:
        conninfo = import_extra(
            "psycopg.conninfo", package="psycopg", extra="postgres", purpose="for PostgreSQL"
        )
        try:
            known: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
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
            if self._password:
                text = text.replace(self._password, "***")
            raise OutputError(
                f"{self.name}: expected a table that can be written, found: {text}"
            ) from None

    def _connect(self) -> None:
        self._connection = self._psycopg.connect(
            self._dsn, connect_timeout=_CONNECT, application_name="rillet"
        )
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._connection.transaction(force_rollback=not self._keep_table):
            columns = self._sql.SQL(", ").join(
                self._sql.SQL("{} " + kind).format(self._sql.Identifier(name))
                for name, kind in _COLUMNS.items()
            )
            # Two that start at once would both make it: let one wait.
            self._execute("SELECT pg_advisory_xact_lock(hashtext('rillet.releases'))")
            self._connection.execute("SET LOCAL client_min_messages = warning")
            self._execute("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY (key, t))", columns)
            found = [
                column.name for column in self._execute("SELECT * FROM {} LIMIT 0").description
            ]
        if not set(_COLUMNS) <= set(found):
            missing = ", ".join(name for name in _COLUMNS if name not in found)
            raise OutputError(
                f"{self.name}: expected a table of releases, found one without {missing}; name "
                "another, it is made if it does not exist"
            )

    def _keep_trying(self, work: Callable[[], None]) -> None:
        end = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        while True:
            try:
                if self._connection.closed:
                    self._connect()
                work()
            except self._psycopg.OperationalError:
                # Lost, or not there yet: all of the transaction is undone, and done again.
                if not self._connection.closed or time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return

    def _execute(self, statement: str, *parts: Any, values: dict[str, Any] | None = None) -> Any:
        """Run a statement whose first gap is the table."""
        composed = self._sql.SQL(statement).format(self._table, *parts)
        return self._connection.execute(composed, values)

    # --- one transaction -----------------------------------------------------------------------

    def _insert(self, table: ReleaseTable) -> None:
        names = self._sql.SQL(", ").join(map(self._sql.Identifier, _COLUMNS))
        values = {
            "keys": [key_text(key) for key in table.keys],
            "statistic": table.statistic,
            "noise_law": table.noise_law,
            "post_processing": list(table.post_processing),
        }
        with self._connection.transaction():
            numbers = ", ".join(f"{name} double precision" for name in _NUMBERS)
            self._connection.execute(
                f"CREATE TEMPORARY TABLE rillet_new (key_of integer, t bigint, {numbers}) "
                "ON COMMIT DROP"
            )
            with self._connection.cursor().copy(
                "COPY rillet_new FROM STDIN (FORMAT binary)"
            ) as copy:
                copy.write(_HEAD)
                for first in range(0, len(table), _ROWS):
                    copy.write(_binary(table[first : first + _ROWS]))
                copy.write(_TAIL)
            inserted = self._execute(
                "INSERT INTO {0} ({1}) SELECT {1} FROM ({2}) AS new "
                "ON CONFLICT (key, t) DO NOTHING",
                names,
                self._sql.SQL(_NEW),
                values=values,
            ).rowcount
            if inserted < len(table):
                other = self._execute(
                    "SELECT new.key_of, new.t FROM ({1}) AS new JOIN {0} AS old USING (key, t) "
                    "WHERE ({2}) IS DISTINCT FROM ({3}) ORDER BY new.t, new.key_of LIMIT 1",
                    self._sql.SQL(_NEW),
                    self._columns_of("new"),
                    self._columns_of("old"),
                    values=values,
                ).fetchone()
                if other is not None:
                    raise conflict(self.name, table.keys[other[0]], other[1])

    def _columns_of(self, part: str) -> Any:
        names = [self._sql.Identifier(part, name) for name in _COLUMNS]
        return self._sql.SQL(", ").join(names)


def _binary(table: ReleaseTable) -> bytes:
    """Rows in the binary format of COPY: exact doubles, and no text to make or to read."""
    rows = np.empty(len(table), _ROW)
    rows["fields"] = 2 + len(_NUMBERS)
    rows["key_length"] = 4
    rows["t_length"] = 8
    for name in _NUMBERS:
        rows[f"{name}_length"] = 8
    for name in ("key_of", "t", *_NUMBERS):
        rows[name] = getattr(table, name)
    return rows.tobytes()
