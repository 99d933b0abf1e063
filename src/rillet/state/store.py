"""The durable store: ``state.db``, everything unreleased, encrypted, in one SQLite database.

One transaction moves observations, states and outbox forward together, so that a kill at any
instant leaves either all of a block or nothing of it.

**Privacy.** Every content is sealed (AES-256-GCM) under a key that is not in the database; only
table names, row numbers and sizes are in the clear, and they are public.  States are kept without
the noise key in force (:func:`rillet.step.without_key`), deleted content is overwritten
(``secure_delete``), and the write-ahead log is cut to nothing at every start and stop and every few
seconds between, so that earlier states, and with them earlier noise keys, do not stay behind.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag

from rillet.errors import OutputError, RilletError, StateError
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.state import encoding
from rillet.step import StreamState, start

log = logging.getLogger("rillet.store")

#: ``PRAGMA application_id``: "rlls".
APPLICATION: Final = 0x726C6C73
#: ``PRAGMA user_version``: raised with every change of the schema or of what is sealed in it.
VERSION: Final = 2
#: Seconds after which the write-ahead log is cut, with earlier states in it.
_LOG_SECONDS: Final = 10.0
#: Bytes of the sealed progress, whatever it says: numbers of 19 digits leave a quarter of them.
_PROGRESS_SIZE: Final = 1024

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (only INTEGER PRIMARY KEY CHECK (only = 0), sealed BLOB NOT NULL);
CREATE TABLE streams (place INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE learning (
    place INTEGER NOT NULL, part INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (place, part)
) WITHOUT ROWID;
CREATE TABLE outbox (batch INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE sinks (only INTEGER PRIMARY KEY CHECK (only = 0), sealed BLOB NOT NULL);
"""
_HEAD = struct.Struct("<BHq")
#: What a store says about itself in the clear.
_FACTS: Final = {"identity", "plan", "run", "keys"}


@dataclass(frozen=True)
class Kept:
    """One key's stream as the store has it, without its noise key (``rillet.step.without_key``).

    ``sequence`` is the last sequence number that was absorbed, ``parts`` how many parts of the
    learning buffer are on disk already.  A stream that has not ``begun`` is kept as its first
    secret alone.
    """

    state: StreamState
    sequence: int = -1
    parts: int = 0
    begun: bool = True
    first: Secret | None = field(default=None, repr=False)


@dataclass
class Change:
    """What one transaction writes; see :meth:`Store.commit`."""

    progress: dict[str, Any] = field(repr=False)
    streams: dict[int, Kept] = field(default_factory=dict, repr=False)
    #: Parts appended to learning buffers, by (place, part), and places whose buffer is done with.
    learning: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)
    learned: list[int] = field(default_factory=list)
    outbox: bytes | None = field(default=None, repr=False)


class Store:
    """An open ``state.db``.

    **Privacy.** Touches raw data: what it writes is sealed, what it raises and shows is public.
    """

    def __init__(self, path: Path, key: Secret, connection: sqlite3.Connection) -> None:
        self._path, self._key, self._connection = path, key, connection
        self._log_cut = time.monotonic()
        with self._guarded("read"):
            self.facts: dict[str, str] = dict(connection.execute("SELECT name, value FROM facts"))
        self._identity = self.facts["identity"].encode()

    # --- making and opening ----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        key: Secret,
        *,
        facts: dict[str, str],
        secrets: Iterable[Secret],
        progress: dict[str, Any],
    ) -> Store:
        """Make a store in which every stream is at its beginning; all of it, or nothing."""
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        connection = _connect(new, "rwc")
        with _guarded(new, "write"):
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.executescript("BEGIN;" + _SCHEMA + "COMMIT;")
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
        store = cls(new, key, connection)
        with store._transaction():
            rows = ((at, store._seal_stream(at, own, None)) for at, own in enumerate(secrets))
            connection.executemany("INSERT INTO streams VALUES (?, ?)", rows)
            store._put_progress(progress)
            store._put_sinks({})
        store.close()
        try:
            new.rename(path)
        except OSError as error:
            raise OutputError(f"{path}: expected to write it, found: {error.strerror}") from None
        return cls.open(path, key)

    @classmethod
    def open(cls, path: Path, key: Secret) -> Store:
        """Open and check a store; nobody else can while it is open.

        Raises
        ------
        StateError
            If it is damaged, of an unknown version, in use, or sealed under another key.
        """
        if not path.exists():
            raise StateError(f"{path}: expected a state that was made before, found none")
        _check_header(path)
        connection = _connect(path, "rw")
        try:
            with _guarded(path, "read"):
                problems = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
                if problems != ["ok"]:
                    raise _damaged(path)
            store = cls(path, key, connection)
            if not _FACTS <= set(store.facts):
                raise _damaged(path)
            store.read_progress()
            store.cut_log()
        except KeyError:
            connection.close()
            raise _damaged(path) from None
        except BaseException:
            connection.close()
            raise
        return store

    def close(self) -> None:
        """Cut the log and close."""
        try:
            self.cut_log()
        finally:
            self._connection.close()

    def cut_log(self) -> None:
        """Move what is in the write-ahead log into the database, and empty the log."""
        with self._guarded("write"):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._log_cut = time.monotonic()

    # --- reading ---------------------------------------------------------------------------------

    def read_progress(self) -> dict[str, Any]:
        """What :attr:`Change.progress` held last."""
        sealed = self._one("SELECT sealed FROM progress")
        progress: dict[str, Any] = json.loads(self._open(sealed, "progress"))
        return progress

    def read_stream(self, layout: Layout, place: int) -> Kept:
        """One key's stream, with its learning buffer."""
        sealed = self._one("SELECT sealed FROM streams WHERE place = ?", place)
        content = self._open(sealed, "stream", place)
        version, size, sequence = _HEAD.unpack_from(content)
        if version != encoding.VERSION:
            raise StateError(f"{self._path}: expected a stream of version 2, found {version}")
        end = _HEAD.size + size
        secret = Secret.from_bytes(content[_HEAD.size : end])
        if end == len(content):
            return Kept(start(layout, secret), sequence, begun=False, first=secret)
        state = encoding.decode_state(content[end:], secret)
        parts = tuple(np.frombuffer(part) for part in self.read_learning(place))
        return Kept(state.but(raw_buffer=parts), sequence, len(parts))

    def read_learning(self, place: int) -> list[bytes]:
        """The parts of a learning buffer, in order."""
        with self._guarded("read"):
            rows = self._connection.execute(
                "SELECT part, sealed FROM learning WHERE place = ? ORDER BY part", (place,)
            ).fetchall()
        if [part for part, _ in rows] != list(range(len(rows))):
            raise _damaged(self._path)
        return [self._open(sealed, "learning", place, part) for part, sealed in rows]

    def outbox(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Batches of releases after this one, in order."""
        with self._guarded("read"):
            batches = self._connection.execute(
                "SELECT batch FROM outbox WHERE batch > ? ORDER BY batch", (after,)
            ).fetchall()
        for (batch,) in batches:
            sealed = self._one("SELECT sealed FROM outbox WHERE batch = ?", batch)
            yield batch, self._open(sealed, "outbox", batch)

    def sinks(self) -> dict[str, tuple[int, dict[str, int] | None]]:
        """For each sink the last batch that it has, and its place."""
        sinks = json.loads(self._open(self._one("SELECT sealed FROM sinks"), "sinks"))
        return {name: (batch, place) for name, (batch, place) in sinks.items()}

    # --- writing ---------------------------------------------------------------------------------

    def commit(self, change: Change, batch: int) -> None:
        """Write all of it, durably, or nothing; ``batch`` numbers what goes to the outbox."""
        streams = [
            (self._seal_stream(place, kept.first or kept.state.secret, kept), place)
            for place, kept in change.streams.items()
        ]
        learning = [
            (place, part, self._seal(raw, "learning", place, part))
            for (place, part), raw in change.learning.items()
        ]
        connection = self._connection
        with self._transaction():
            connection.executemany("UPDATE streams SET sealed = ? WHERE place = ?", streams)
            connection.executemany("INSERT INTO learning VALUES (?, ?, ?)", learning)
            done = [(place,) for place in change.learned]
            connection.executemany("DELETE FROM learning WHERE place = ?", done)
            if change.outbox is not None:
                sealed = self._seal(change.outbox, "outbox", batch)
                connection.execute("INSERT INTO outbox VALUES (?, ?)", (batch, sealed))
            self._put_progress(change.progress)
            log.debug("committing")
        if time.monotonic() - self._log_cut > _LOG_SECONDS:
            self.cut_log()

    def acknowledge(self, batch: int, places: Mapping[str, dict[str, int] | None]) -> None:
        """Note that these sinks, which are all there are, have everything up to ``batch``."""
        sinks = {**self.sinks(), **{name: (batch, place) for name, place in places.items()}}
        with self._transaction():
            self._put_sinks(sinks)
            self._connection.execute("DELETE FROM outbox WHERE batch <= ?", (batch,))

    def rotate_key(self, new: Secret) -> None:
        """Seal everything under another key."""
        connection, old = self._connection, self._key
        tables = {
            "progress": ("progress", "only", ()),
            "streams": ("stream", "place", ("place",)),
            "learning": ("learning", "place, part", ("place", "part")),
            "outbox": ("outbox", "batch", ("batch",)),
            "sinks": ("sinks", "only", ()),
        }
        with self._transaction():
            for table, (kind, identity, numbers) in tables.items():
                where = " AND ".join(f"{name} = ?" for name in identity.split(", "))
                names = connection.execute(f"SELECT {identity} FROM {table}").fetchall()  # noqa: S608
                for row in names:
                    address = row if numbers else ()
                    self._key = old
                    content = self._open(
                        self._one(f"SELECT sealed FROM {table} WHERE {where}", *row),  # noqa: S608
                        kind,
                        *address,
                    )
                    self._key = new
                    sealed = self._seal(content, kind, *address)
                    connection.execute(
                        f"UPDATE {table} SET sealed = ? WHERE {where}",  # noqa: S608
                        (sealed, *row),
                    )
        self.cut_log()

    def copy_to(self, path: Path) -> None:
        """Copy the database, sealed as it is."""
        with self._guarded("copy"):
            copy = sqlite3.connect(path)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()

    def _put_sinks(self, sinks: Mapping[str, tuple[int, dict[str, int] | None]]) -> None:
        # Public, but sealed: a place that was damaged would lose releases, or deliver them twice.
        sealed = self._seal(json.dumps(sinks).encode(), "sinks")
        self._connection.execute("INSERT OR REPLACE INTO sinks VALUES (0, ?)", (sealed,))

    def _put_progress(self, progress: dict[str, Any]) -> None:
        content = json.dumps(progress).encode()
        # The size is in the clear: padded to more than it can be, it tells nothing of the digits
        # of private counts.
        padded = content.ljust(_PROGRESS_SIZE)
        assert len(padded) == _PROGRESS_SIZE
        sealed = self._seal(padded, "progress")
        self._connection.execute("INSERT OR REPLACE INTO progress VALUES (0, ?)", (sealed,))

    def _seal_stream(self, place: int, secret: Secret, kept: Kept | None) -> bytes:
        state, sequence = b"", -1
        if kept is not None:
            sequence = kept.sequence
            state = encoding.encode_state(kept.state.but(raw_buffer=())) if kept.begun else b""
        own = secret.to_bytes()
        head = _HEAD.pack(encoding.VERSION, len(own), sequence)
        return self._seal(head + own + state, "stream", place)

    # --- sealing and errors ----------------------------------------------------------------------

    def _address(self, kind: str, numbers: tuple[int, ...]) -> bytes:
        """What a content is bound to: moved to another row, it does not open."""
        return json.dumps([kind, *numbers]).encode() + self._identity

    def _seal(self, content: bytes, kind: str, *numbers: int) -> bytes:
        return self._key.seal(content, associated=self._address(kind, numbers))

    def _open(self, sealed: bytes, kind: str, *numbers: int) -> bytes:
        try:
            return self._key.open_sealed(sealed, associated=self._address(kind, numbers))
        except (InvalidTag, ValueError, TypeError):
            raise StateError(
                f"{self._path}: it does not open with this key: another key file belongs to it, or "
                "it is damaged. Restore state and key from the same backup"
            ) from None

    def _one(self, query: str, *parameters: int) -> bytes:
        with self._guarded("read"):
            row = self._connection.execute(query, parameters).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise _damaged(self._path)
        return row[0]

    def _guarded(self, purpose: str) -> Any:
        return _guarded(self._path, purpose)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._guarded("write"):
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            with self._guarded("write"):
                yield
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _check_header(path: Path) -> None:
    """Whose file it is, from its own bytes: to open a database is to change it a little."""
    try:
        with path.open("rb") as stream:
            header = stream.read(100)
    except OSError as error:
        raise OutputError(f"{path}: expected to read it, found: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise OutputError(
            f"{path}: expected to write it, found a file or a disk that can only be read; nothing "
            "was released. Check the disk and who may write the folder"
        )
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    formats = header[18:20]  # of its pages; a higher one would make it read-only
    whole = header.startswith(b"SQLite format 3\0") and len(header) == 100 and max(formats) <= 2
    if not whole or application != APPLICATION:
        raise StateError(
            f"{path}: expected a state of rillet, found another file, or a damaged one; nothing "
            "was released from it. Restore state and key from the same backup"
        )
    if version != VERSION:
        raise StateError(
            f"{path}: expected version {VERSION}, found {version}; install the release "
            "of rillet that wrote it, or a newer one"
        )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _guarded(path, "open"):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=0.2
        )
        try:
            # Nobody else while it is open: two processes would use the same noise.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON").fetchall()
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path}: expected an undamaged state, found a damaged one; nothing was released from it. "
        "Restore state and key from the same backup"
    )


@contextmanager
def _guarded(path: Path, purpose: str) -> Iterator[None]:
    """SQLite's errors in the words of this library."""
    try:
        yield
    except RilletError:
        raise
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise StateError(
                f"{path}: another process has this state open; a state is run by one process only"
            ) from None
        if name.startswith("SQLITE_FULL"):
            raise OutputError(
                f"{path}: the disk is full; nothing of the last block was absorbed. Free some "
                "space and start again: it goes on where it stopped"
            ) from None
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM")):
            raise OutputError(
                f"{path}: expected to {purpose} it, found: {name.removeprefix('SQLITE_').lower()}; "
                "nothing was released. Check the disk and who may write the folder"
            ) from None
        raise _damaged(path) from None
