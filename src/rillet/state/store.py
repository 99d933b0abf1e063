"""The durable store: ``state.db``, everything unreleased, encrypted, in one SQLite database.

One transaction moves observations, states and outbox forward together, so that a kill at any
instant leaves either all of a block or nothing of it.

**Privacy.** Every content is sealed (AES-256-GCM) under a key that is not in the database; only
table names, row numbers and sizes are in the clear, and they are public; only the size of the gate
tells roughly how many persons are in it, and the folder is its owner's alone.  States are kept
without the noise key in force (:func:`rillet.step.without_key`), deleted content is overwritten
(``secure_delete``; not that of the outbox, which is released), and the write-ahead log is cut to
nothing at every start and stop and every few seconds between, so that earlier states, and with them
earlier noise keys, do not stay behind.  SQLite does not overwrite what stays behind in a page when
it moves a row to another one.  So every content begins with zeros, as many as a row keeps in a page
that can be rearranged, and has a size for which all the rest lies in pages of its own, which are
overwritten when they are freed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag

from rillet.crowd import Crowd
from rillet.errors import OutputError, RilletError, StateError
from rillet.fleet import Fleet
from rillet.gather.gate import ENTRY, Entries, Gate, GateRule
from rillet.layout import Layout
from rillet.levels import Tree
from rillet.noise import Secret, random_name
from rillet.release import Key, Releases
from rillet.state import encoding, fleets
from rillet.state.base import POOL, Absorbed, Kept, Pool, Progress
from rillet.state.binding import Address, Binding, name_of
from rillet.statistic import Range
from rillet.step import start, without_key

log = logging.getLogger("rillet.store")

#: ``PRAGMA application_id``: "rlls"; of a copy "rllb", so that none is opened by mistake beside a
#: write-ahead log that is not its own.
APPLICATION: Final = 0x726C6C73
BACKUP: Final = 0x726C6C62
#: Where it is in the file.
APPLICATION_OFFSET: Final = 68
#: ``PRAGMA user_version``: raised with every change of the schema or of what is sealed in it.
VERSION: Final = 10
#: Seconds after which the write-ahead log is cut, with earlier states in it.
_LOG_SECONDS: Final = 10.0
#: Bytes of the sealed progress, whatever it says: numbers of 19 digits leave a quarter of them.
_PROGRESS_SIZE: Final = 1536
#: Size of a database page.  A row of P bytes keeps M = 232 of them in its tree when (P - M) modulo
#: 2044 is above 1781, and the rest in pages of its own (the SQLite file format, section 1.6).
#: The usual state of a stream fits into one such page.
_PAGE: Final = 2048
_IN_TREE, _OUTSIDE = 232, 2044
#: What rows are padded to: with room for the header of a row on either side.
_ROW_SIZE: Final = _IN_TREE + 1984
_LENGTH = struct.Struct("<I")
#: Bytes that sealing adds: salt, nonce and tag.
_SEAL: Final = 16 + 12 + 16

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (only INTEGER PRIMARY KEY CHECK (only = 0), sealed BLOB NOT NULL);
CREATE TABLE streams (key_index INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE learning (
    key_index INTEGER NOT NULL, part INTEGER NOT NULL, sealed BLOB NOT NULL,
    UNIQUE (key_index, part)
);
CREATE TABLE outbox (batch INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE sinks (only INTEGER PRIMARY KEY CHECK (only = 0), sealed BLOB NOT NULL);
CREATE TABLE gate (number INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE common (part INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE pages (number INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE changes (
    page INTEGER NOT NULL, number INTEGER NOT NULL, sealed BLOB NOT NULL, UNIQUE (page, number)
);
CREATE TABLE amendments (number INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
"""
#: The table of each kind of sealed row, and the columns of its address.
_TABLES: Final = {
    "progress": ("progress", ("only",)),
    "stream": ("streams", ("key_index",)),
    "learning": ("learning", ("key_index", "part")),
    "outbox": ("outbox", ("batch",)),
    "sinks": ("sinks", ("only",)),
    "gate": ("gate", ("number",)),
    "common": ("common", ("part",)),
    "page": ("pages", ("number",)),
    "change": ("changes", ("page", "number")),
    "amendment": ("amendments", ("number",)),
}
#: The gate's row 0 is its key; the others, in order, are what it noted of persons.
_PROGRESS, _SINKS, _GATE_KEY = ("progress", 0), ("sinks", 0), ("gate", 0)
_PUT: Final = {
    kind: f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * (len(columns) + 1))})"  # noqa: S608
    for kind, (table, columns) in _TABLES.items()
}
_WHERE: Final = {
    kind: " AND ".join(f"{column} = ?" for column in columns)
    for kind, (_, columns) in _TABLES.items()
}
_DELETE: Final = {
    kind: f"DELETE FROM {table} WHERE {_WHERE[kind]}"  # noqa: S608
    for kind, (table, _) in _TABLES.items()
}
_SELECT: Final = {
    kind: f"SELECT sealed FROM {table} WHERE {_WHERE[kind]}"  # noqa: S608
    for kind, (table, _) in _TABLES.items()
}
#: So many sealed rows are held in memory at once.
_ROWS_AT_ONCE: Final = 4096
_HEAD = struct.Struct("<BHq")
#: Persons in a row of the gate: at least and at most, and a power of two.
_FEWEST_IN_ROW, _MOST_IN_ROW = 64, 4096
#: The gate is written anew when its rows take twice what it needs, and so many bytes.
_GATE_SLACK: Final = 2**16
#: What a store says about itself in the clear.
_FACTS: Final = {"identity", "mechanism", "run", "source", "keys"}
#: States of this many keys are kept in memory; the others are read when they are needed.
CACHED_STATES: Final = 16_384


@dataclass(frozen=True)
class Opened:
    """Which start of this state was the last, and which one the folder may still show.

    Beside the state a mark says the same: a copy of the state is behind in one of the two.
    """

    number: int = 0
    name: str = "-"
    before: tuple[str, int, str] | None = None


@dataclass(frozen=True)
class _Stored:
    """What the store has of one key: how many parts of its learning buffer, and whether it began.

    A stream that has not begun is stored as its first secret alone.
    """

    kept: Kept
    parts: int = 0
    begun: bool = True
    first: Secret | None = field(default=None, repr=False)


class SqliteStore:
    """An open ``state.db``: a :class:`rillet.state.base.Store` that survives the process.

    **Privacy.** Touches raw data: what it writes is sealed, what it raises and shows is public.
    """

    def __init__(
        self, path: Path, key: Secret, connection: sqlite3.Connection, layout: Layout | None
    ) -> None:
        self._path, self._key, self._connection, self._layout = path, key, connection, layout
        self._cached: OrderedDict[int, _Stored] = OrderedDict()
        #: Read for the block under way, however many they are: none is read twice.  What has not
        #: begun depends on the layout, which may change.
        self._working: dict[int, tuple[Layout, _Stored]] = {}
        #: Called before the first commit since the start.
        self.before_first_commit: Callable[[], None] | None = None
        #: What must be let go of with the store.
        self.lock: IO[bytes] | None = None
        self._log_cut, self._closed = time.monotonic(), False
        self.gate: Gate | None = None
        self._kept_fleet: fleets.KeptFleet | None = None
        self._kept_crowd: fleets.KeptCrowd | None = None
        #: What sinks have, once it was asked for, and rows that are not needed since: written with
        #: the next commit.
        self._sinks: dict[str, tuple[int, Any]] | None = None
        self._delivered: tuple[Address, ...] | None = None
        #: Whether a commit may return before it is on disk; :meth:`wait` waits for it, and so does
        #: whatever touches the database next.
        self.commits_later = False
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="rillet-committer")
        self._committing: Future[Any] | None = None
        #: Bytes in each row of the gate.
        self._gate_rows: dict[Address, int] = {}
        with self._guarded("read"):
            self.facts: dict[str, str] = dict(connection.execute("SELECT name, value FROM facts"))
        if set(self.facts) != _FACTS or not all(isinstance(v, str) for v in self.facts.values()):
            raise _damaged(path)
        self._identity = self.facts["identity"].encode()

    # --- making and opening ----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        key: Secret,
        layout: Layout,
        *,
        facts: dict[str, str],
        secrets: Iterable[Secret],
        shared: Secret | None,
        gate: Gate | None,
        opened: Opened,
        fleet: Fleet | None = None,
    ) -> SqliteStore:
        """Make a store in which every stream is at its beginning; all of it, or nothing."""
        new = path.with_name(path.name + ".new")
        make_private(new)

        def rows() -> Iterator[tuple[Address, bytes]]:
            yield _SINKS, b"{}"
            if gate is not None:
                yield _GATE_KEY, gate.key
            if fleet is not None:
                yield fleets.COMMON, fleets.encode_common(fleet.common)
                yield fleets.LEARNED, fleets.encode_learned(fleet.common)
                return
            for index, own in enumerate(secrets):
                yield ("stream", index), _stream_content(own, -1, b"")

        with closing(_connect(new, "rw")) as connection:
            with _guarded(new, "write"):
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.executescript("BEGIN;" + _SCHEMA + "COMMIT;")
                connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            store = cls(new, key, connection, layout)
            store.opened, store.commits = opened, 0
            store._bind(random_name(32))
            store._write(rows(), (), Progress(), None if shared is None else Pool(shared))
            store.close()
        try:
            new.rename(path)
        except OSError as error:
            raise OutputError(f"{path}: expected to write it, found: {error.strerror}") from None
        return cls.open(path, key, layout)

    @classmethod
    def open(cls, path: Path, key: Secret, layout: Layout | None = None) -> SqliteStore:
        """Open and check a store; no other process can while it is open.

        Raises
        ------
        StateError
            If it is damaged, of an unknown version, in use, or sealed under another key.
        """
        if not path.exists():
            raise StateError(f"{path}: expected a state that was made before, found none")
        check_header(path)
        connection = _connect(path, "rw")
        try:
            with _guarded(path, "read"):
                problems = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
                if problems != ["ok"]:
                    raise _damaged(path)
            _check_schema(path, connection)
            store = cls(path, key, connection, layout)
            store._load()
            store.cut_log()
        except BaseException:
            connection.close()
            raise
        return store

    def close(self) -> None:
        """Cut the log and close; once more does nothing."""
        if self._closed:
            return
        try:
            self.settle()
            self.cut_log()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._committer.shutdown()
        self._connection.close()
        if self.lock is not None:
            self.lock.close()

    def wait(self) -> None:
        """Until the last commit is on disk.

        Raises
        ------
        OutputError
            If it could not be written.  What is in memory is ahead then, and the state is closed.
        """
        if self._committing is not None:
            try:
                with _guarded(self._path, "write"):
                    self._committing.result()
            except RilletError:
                self._committing = None
                self._let_go()
                raise
            self._committing = None
            self.safe_batch = self.progress.batch

    def cut_log(self) -> None:
        """Move what is in the write-ahead log into the database, and empty the log."""
        with self._guarded("write"):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._log_cut = time.monotonic()

    # --- reading ---------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read how far the streams are, and the pool of a shared range; check all rows."""
        fields = json.loads(self._read(_PROGRESS))
        absorbed, learned, pool = fields["absorbed"], fields["range"], fields["pool"]
        self.progress = Progress(
            fields["batch"],
            fields["observations"],
            None if learned is None else Range(*learned),
            None if absorbed is None else Absorbed(*absorbed),
            fields["ticks"],
        )
        self.safe_batch = self.progress.batch
        number, name, before = fields["opened"]
        self.opened = Opened(number, name, None if before is None else tuple(before))
        self.commits: int = fields["commits"]
        self._bind(fields["digest"])
        if f"{self._binding.sum:x}" != fields["rows"]:
            raise _mixed(self._path)
        self.pool: Pool | None = None
        if pool is not None:
            parts = [np.frombuffer(raw) for raw in self.read_learning(POOL)]
            self.pool = Pool(
                Secret.from_bytes(pool.encode("ascii")),
                tuple(part[: len(part) // 2].view(np.int64) for part in parts),
                tuple(part[len(part) // 2 :] for part in parts),
            )

        # A state of another plan has none, and is refused for that.
        if self._layout is not None and self._layout.gate and _GATE_KEY in self._binding:
            self.gate = self._read_gate(self._layout.gate)

    def _read_gate(self, rule: GateRule) -> Gate:
        """The gate, as its rows made it."""
        gate = Gate(rule, self._read(_GATE_KEY))
        query = "SELECT number, sealed FROM gate WHERE number > 0 ORDER BY number"
        with self._guarded("read"):
            for number, sealed in self._connection.execute(query):
                content = self._unsealed(("gate", number), sealed)
                entries = np.frombuffer(content, ENTRY)
                gate.take_over(entries[entries["used"] > 0])
                self._gate_rows["gate", number] = len(content)
        gate.take_over(None, self.progress.ticks)
        return gate

    @property
    def gate_bytes(self) -> int:
        """What the gate takes on disk, as the database tells anybody who has it."""
        with self._guarded("read"):
            (size,) = self._connection.execute("SELECT sum(length(sealed)) FROM gate").fetchone()
        return size or 0

    def _bind(self, key: str) -> None:
        """Take the shares of the rows that there are, and of what is in the clear beside them."""
        # Not derived from the key of the state, which may change.
        self._digest_key = key
        binding = self._binding = Binding(bytes.fromhex(key))
        shares: dict[Address, int] = {}
        for name, value in self.facts.items():
            shares["facts", name] = binding.share(("facts", name), value.encode())
        for kind, (table, columns) in _TABLES.items():
            if kind == "progress":
                continue
            query = f"SELECT {', '.join(columns)}, sealed FROM {table}"  # noqa: S608
            with self._guarded("read"):
                for *numbers, sealed in self._connection.execute(query):
                    if not isinstance(sealed, bytes):
                        raise _damaged(self._path)
                    address = (kind, *numbers)
                    shares[address] = binding.share(address, sealed)
        binding.take_over(shares, (), binding.sum_with(shares, ()))

    def digest(self, *raw_parts: bytes | memoryview) -> str:
        """Keyed digest of a block.  **Privacy.** Touches raw data; kept sealed."""
        digest = hashlib.blake2b(key=bytes.fromhex(self._digest_key), digest_size=16)
        for raw_part in raw_parts:
            digest.update(raw_part)
        return digest.hexdigest()

    def read(self, layout: Layout, index: int) -> Kept:
        """One key's stream, with its learning buffer."""
        if self.crowd is not None:
            return Kept(self.crowd.state(layout, index), int(self.crowd.sequence[index]))
        return self._stored(layout, index).kept

    def _stored(self, layout: Layout, index: int) -> _Stored:
        found = self._cached.get(index)
        if found is not None:
            return found
        under, stored = self._working.get(index, (None, None))
        if stored is None or (under is not layout and not stored.begun):
            stored = self._read_stream(layout, index)
            self._working[index] = layout, stored
        return stored

    def _read_stream(self, layout: Layout, index: int) -> _Stored:
        content = self._read(("stream", index))
        version, size, sequence = _HEAD.unpack_from(content)
        if version != encoding.VERSION:
            raise StateError(
                f"{self._path}: expected streams of version {encoding.VERSION}, found {version}"
            )
        end = _HEAD.size + size
        secret = Secret.from_bytes(content[_HEAD.size : end])
        if end == len(content):
            return _Stored(Kept(start(layout, secret), sequence), begun=False, first=secret)
        state = encoding.decode_state(content[end:], secret)
        parts = tuple(np.frombuffer(part) for part in self.read_learning(index))
        return _Stored(Kept(state.but(raw_buffer=parts), sequence), len(parts))

    def read_learning(self, index: int) -> list[bytes]:
        """The parts of a learning buffer, in order."""
        # One query for all: there may be a row for each of many thousand observations.
        query = "SELECT part, sealed FROM learning WHERE key_index = ? ORDER BY part"
        with self._guarded("read"):
            rows = self._connection.execute(query, (index,))
            return [self._unsealed(("learning", index, part), sealed) for part, sealed in rows]

    def outbox(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Batches of releases after this one, in order."""
        with self._guarded("read"):
            batches = self._connection.execute(
                "SELECT batch FROM outbox WHERE batch > ? ORDER BY batch", (after,)
            ).fetchall()
        for (batch,) in batches:
            yield batch, self._read(("outbox", batch))

    def sinks(self) -> dict[str, tuple[int, Any]]:
        """For each sink the last batch that it has, and its position."""
        if self._sinks is None:
            sinks = json.loads(self._read(_SINKS))
            self._sinks = {name: (batch, position) for name, (batch, position) in sinks.items()}
        return self._sinks

    def undelivered(self) -> list[tuple[int, Releases]]:
        """Batches of releases that were committed and not acknowledged."""
        acknowledged = max((batch for batch, _ in self.sinks().values()), default=0)
        waiting = {batch: Releases.from_bytes(part) for batch, part in self.outbox(acknowledged)}
        if self._kept_fleet is not None:
            waiting |= self._kept_fleet.undelivered(acknowledged)
        expected = list(range(acknowledged + 1, self.progress.batch + 1))
        if sorted(waiting) != expected:
            raise StateError(
                f"{self._path}: expected every batch of releases that was not delivered, found "
                "some of them; the state is damaged. Restore state and key from the same backup"
            )
        return sorted(waiting.items(), key=lambda one: one[0])

    # --- writing ---------------------------------------------------------------------------------

    def commit(
        self,
        progress: Progress,
        kept: Mapping[int, Kept],
        pool: Pool | None,
        releases: Releases,
        entries: Entries | None = None,
    ) -> None:
        """Write all of it, durably, or nothing."""
        if self.before_first_commit is not None:
            count_opening, self.before_first_commit = self.before_first_commit, None
            count_opening()
        stored: dict[int, _Stored] = {}
        if self._kept_fleet is not None:
            released = releases if progress.batch > self.progress.batch else None
            rows, gone = self._kept_fleet.changed(self.commits, progress.batch, released)
        else:
            written, gone, stored = self._stream_rows(kept, pool)
            if progress.batch > self.progress.batch:
                written["outbox", progress.batch] = releases.to_bytes()
            rows = iter(written.items())
        if self._kept_crowd is not None:
            more, replaced, noise = self._kept_crowd.changed(self.commits)
            drawn = (
                (("stream", row), _stream_content(own, -1, c)) for row, (own, c) in noise.items()
            )
            rows, gone = chain(rows, more, drawn), [*gone, *replaced]
        added, replaced = self._gate_change(entries, progress.ticks)
        rows, gone = chain(rows, added.items()), [*gone, *replaced]
        self._write(rows, gone, progress, pool, later=self.commits_later)
        self._take_over(stored)
        for together in (self._kept_fleet, self._kept_crowd):
            if together is not None:
                together.take_over()
        if self.gate is not None:
            self.gate.take_over(entries, progress.ticks)
            self._note_gate_rows(added, replaced)
        if time.monotonic() - self._log_cut > _LOG_SECONDS:
            self.cut_log()

    def _stream_rows(
        self, kept: Mapping[int, Kept], pool: Pool | None
    ) -> tuple[dict[Address, bytes], list[Address], dict[int, _Stored]]:
        """Rows of streams that changed, rows that are not needed any more, and what is stored."""
        assert self._layout is not None
        written: dict[Address, bytes] = {}
        gone: list[Address] = []
        stored: dict[int, _Stored] = {}
        for index, new in kept.items():
            before = self._cached.get(index) or self._working[index][1]
            parts, known = new.state.raw_buffer, before.parts
            if parts and known and parts[known - 1] is not before.kept.state.raw_buffer[known - 1]:
                known -= 1  # it has grown
            for part in range(known, len(parts)):
                written["learning", index, part] = parts[part].tobytes()
            if not parts:
                gone += [("learning", index, part) for part in range(before.parts)]
            if new.state is before.kept.state:  # a sequence number alone
                stored[index] = replace(before, kept=new)
            else:
                keyless = without_key(self._layout, new.state)
                stored[index] = _Stored(replace(new, state=keyless), len(parts))
            written["stream", index] = _content(stored[index])
        known = 0 if self.pool is None else len(self.pool.raw_values)
        if pool is None:
            gone += [("learning", POOL, part) for part in range(known)]
        else:
            for part in range(known, len(pool.raw_values)):
                raw = pool.key_of[part].tobytes() + pool.raw_values[part].tobytes()
                written["learning", POOL, part] = raw
        return written, gone, stored

    def amendments(self) -> list[dict[str, Any]]:
        """What was changed since the state began, in order."""
        with self._guarded("read"):
            rows = self._connection.execute("SELECT number FROM amendments ORDER BY number")
            numbers = [number for (number,) in rows.fetchall()]
        return [json.loads(self._read(("amendment", number))) for number in numbers]

    def amend(
        self,
        record: dict[str, Any],
        name: str,
        layout: Layout,
        tree: Tree,
        secrets: Iterable[Secret],
    ) -> None:
        """Note an amendment, and begin the streams of keys that it adds; all of it, or nothing.

        ``name`` is that of all amendments up to this one, ``secrets`` are those of the new keys
        where each has one.
        """
        assert self._layout is not None
        address: Address = ("amendment", len(self.amendments()))
        rows: Iterable[tuple[Address, bytes]] = [(address, json.dumps(record).encode())]
        gone: list[Address] = []
        if self._kept_fleet is not None:
            self._kept_fleet.amend(layout, tree, name)
            more, gone = self._kept_fleet.changed(
                self.commits, self.progress.batch, None, whole=True
            )
            rows = chain(rows, more)
        elif new := [one for one in tree.roster.added if one.name == name]:
            first, count, *_ = new[0]
            own = zip(range(first, first + count), secrets, strict=True)
            begun = ((("stream", index), _stream_content(each, -1, b"")) for index, each in own)
            rows = chain(rows, begun)
        absorbed = self.progress.absorbed
        if absorbed is not None:
            # What the source gave then cannot be compared any more: other keys would be found.
            absorbed = Absorbed(absorbed.end, absorbed.end, 0, "")
        self._write(rows, gone, replace(self.progress, absorbed=absorbed), self.pool)
        if self._kept_fleet is not None:
            self._kept_fleet.take_over()

    def load_fleet(self, tree: Tree) -> None:
        """Read all keys, and do again what happened to them since their pages were written."""
        assert self._layout is not None
        delivered = max((batch for batch, _ in self.sinks().values()), default=0)
        delivered = max([delivered, *(batch for batch, _ in self.outbox(delivered))])
        self._kept_fleet = fleets.KeptFleet(
            self._layout, tree, self, range(delivered + 1, self.progress.batch + 1)
        )

    @property
    def crowd(self) -> Crowd | None:
        """All streams at once by count, where their range is known."""
        return None if self._kept_crowd is None else self._kept_crowd.crowd

    def load_crowd(self, keys: tuple[Key, ...]) -> None:
        """Read all keys, and do again what happened to them since their pages were written."""
        layout, learned = self._layout, self.progress.range
        assert layout is not None
        known = layout if learned is None else layout.with_range(learned)
        noise = (self._noise_of(index) for index in range(len(keys)))
        self._kept_crowd = fleets.KeptCrowd(known, keys, self, noise)

    def _noise_of(self, index: int) -> tuple[Secret, bytes]:
        content = self._read(("stream", index))
        _, size, _ = _HEAD.unpack_from(content)
        end = _HEAD.size + size
        return Secret.from_bytes(content[_HEAD.size : end]), content[end:]

    @property
    def fleet(self) -> Fleet | None:
        """All streams at once, where keys tick together."""
        return None if self._kept_fleet is None else self._kept_fleet.fleet

    def has(self, address: Address) -> bool:
        """Whether there is such a row."""
        return address in self._binding

    def read_row(self, address: Address) -> bytes:
        """The content of a row."""
        return self._read(address)

    def numbers_of_changes(self, page: int) -> list[int]:
        """The numbers of what happened to a page since it was written, in order."""
        query = "SELECT number FROM changes WHERE page = ? ORDER BY number"
        with self._guarded("read"):
            return [number for (number,) in self._connection.execute(query, (page,))]

    def _gate_change(
        self, entries: Entries | None, closed: int
    ) -> tuple[dict[Address, bytes], list[Address]]:
        """Rows of the gate to add, with what it decided, and rows that they replace.

        Most often one is added.  All of them are written anew when a block is over, so that who was
        in it is gone from the disk as well, and when what they repeat takes more than it needs.
        """
        gate, rows = self.gate, self._gate_rows
        if gate is None:
            return {}, []
        over = gate.rule.over(closed)
        entries = np.empty(0, ENTRY) if entries is None else entries[entries["last"] > over]
        added = list(_gate_contents(entries))
        needed = ENTRY.itemsize * max(len(gate), len(entries))
        size = sum(rows.values()) + sum(map(len, added))
        replaced: list[Address] = []
        if over > gate.rule.over(self.progress.ticks) or size > 2 * needed + _GATE_SLACK:
            replaced = list(rows)
            added = [*_gate_contents(gate.entries(over)), *added]
        first = int(max(rows, default=_GATE_KEY)[1]) + 1
        return {("gate", first + more): content for more, content in enumerate(added)}, replaced

    def _note_gate_rows(self, added: Mapping[Address, bytes], replaced: Iterable[Address]) -> None:
        self._gate_rows |= {address: len(content) for address, content in added.items()}
        for address in replaced:
            del self._gate_rows[address]

    def _write(
        self,
        rows: Iterable[tuple[Address, bytes]],
        gone: Iterable[Address],
        progress: Progress,
        pool: Pool | None,
        *,
        later: bool = False,
    ) -> None:
        """Seal and write these rows, delete others, and move progress on: all or nothing.

        With ``later`` it may not be on disk yet when this returns (:meth:`wait`).
        """
        gone, delivered = tuple(gone), self._delivered
        if delivered is not None:
            rows = chain(rows, [(_SINKS, json.dumps(self._sinks).encode())])
            gone += delivered
        shares: dict[Address, int] = {}
        sealed: dict[str, list[tuple[str | int | bytes, ...]]] = {kind: [] for kind in _TABLES}
        with self._transaction(later=later):
            for address, content in rows:
                row = self._seal(content, address)
                shares[address] = self._binding.share(address, row)
                sealed[str(address[0])].append((*address[1:], row))
                if len(shares) % _ROWS_AT_ONCE == 0:
                    self._put(sealed)
            self._put(sealed)
            self._delete(gone)
            bound = self._binding.sum_with(shares, gone)
            content = self._progress_content(progress, pool, bound)
            self._put({"progress": [(0, self._seal(content, _PROGRESS))]})
            log.debug("committing")
        # From here on nothing can fail: memory follows the disk.
        self._binding.take_over(shares, gone, bound)
        self._delivered = None
        self.progress, self.pool, self.commits = progress, pool, self.commits + 1
        if self._committing is None:
            self.safe_batch = progress.batch

    def _put(self, sealed: dict[str, list[tuple[str | int | bytes, ...]]]) -> None:
        """Write sealed rows, by their kind, and forget them."""
        for kind, rows in sealed.items():
            if rows:
                self._connection.executemany(_PUT[kind], rows)
                rows.clear()

    def _delete(self, gone: Iterable[Address]) -> None:
        """Delete rows; what they held is overwritten, but for releases, which are public."""
        released: list[Address] = []
        for address in gone:
            if address[0] == "outbox":
                released.append(address)
            else:
                self._connection.execute(_DELETE[str(address[0])], address[1:])
        if released:
            self._connection.execute("PRAGMA secure_delete = OFF").fetchall()
            try:
                for address in released:
                    self._connection.execute(_DELETE["outbox"], address[1:])
            finally:
                self._connection.execute("PRAGMA secure_delete = ON").fetchall()

    def _take_over(self, stored: Mapping[int, _Stored]) -> None:
        self._working.clear()
        for index, one in stored.items():
            if one.begun:
                self._cached[index] = one
                self._cached.move_to_end(index)
        while len(self._cached) > CACHED_STATES:
            self._cached.popitem(last=False)

    def note_opening(self, opened: Opened) -> None:
        """Count a start of this state."""
        self.opened = opened
        self._write((), (), self.progress, self.pool)

    def acknowledge(self, batch: int, positions: Mapping[str, Any]) -> None:
        """Note that these sinks, which are all there are, have everything up to ``batch``.

        It goes to the disk with the next commit, or with :meth:`settle`: after a crash before that,
        sinks are given again what they have, as after one before this call.
        """
        sinks = self.sinks()
        before = max((last for last, _ in sinks.values()), default=0)
        released: Iterable[Address] = (("outbox", n) for n in range(before + 1, batch + 1))
        # Public, but sealed: a damaged position would lose releases, or deliver them twice.
        self._sinks = {**sinks, **{name: (batch, at) for name, at in positions.items()}}
        self._delivered = (*(self._delivered or ()), *filter(self.has, released))
        if self._kept_fleet is not None:
            self._kept_fleet.acknowledge(batch)

    def settle(self) -> None:
        """Bring to the disk what was acknowledged."""
        if self._delivered is not None and not self._closed:
            self._write((), (), self.progress, self.pool)

    def rotate_key(self, new: Secret) -> None:
        """Seal everything under another key."""
        old = self._key
        rows = ((at, self._read(at, old)) for at in self._addresses() if at != _PROGRESS)
        self._key = new
        try:
            self._write(rows, (), self.progress, self.pool)
        except BaseException:
            self._key = old
            raise
        self.cut_log()

    def copy_to(self, path: Path) -> None:
        """Copy the database, sealed as it is, and mark it as a copy."""
        make_private(path)
        with self._guarded("copy"):
            copy = sqlite3.connect(path)
            try:
                self._connection.backup(copy)
                copy.execute(f"PRAGMA application_id = {BACKUP}")
            finally:
                copy.close()

    def _progress_content(self, progress: Progress, pool: Pool | None, rows: int) -> bytes:
        learned, absorbed = progress.range, progress.absorbed
        fields = {
            "batch": progress.batch,
            "observations": progress.observations,
            "range": None if learned is None else [learned.lower, learned.upper],
            "absorbed": None if absorbed is None else astuple(absorbed),
            "ticks": progress.ticks,
            "pool": None if pool is None else pool.secret.to_bytes().decode("ascii"),
            "opened": [self.opened.number, self.opened.name, self.opened.before],
            "digest": self._digest_key,
            "commits": self.commits + 1,
            "rows": f"{rows:x}",
        }
        # The size is in the clear: padded to more than it can be, it tells nothing of the digits
        # of private counts.
        content = json.dumps(fields).encode().ljust(_PROGRESS_SIZE)
        assert len(content) == _PROGRESS_SIZE
        return content

    # --- sealing and errors ----------------------------------------------------------------------

    def _associated(self, address: Address) -> bytes:
        """What a content is bound to: moved to another row, it does not open."""
        return name_of(address) + b" of " + self._identity

    def _seal(self, content: bytes, address: Address) -> bytes:
        length = _LENGTH.pack(len(content))
        missing = (_ROW_SIZE - _SEAL - _IN_TREE - len(length) - len(content)) % _OUTSIDE
        padded = b"".join((bytes(_IN_TREE), length, content, bytes(missing)))
        return self._key.seal(padded, associated=self._associated(address))

    def _read(self, address: Address, key: Secret | None = None) -> bytes:
        """Open the row at an address."""
        return self._unsealed(address, self._sealed_at(address), key)

    def _unsealed(self, address: Address, sealed: Any, key: Secret | None = None) -> bytes:
        """The content of a row that was read."""
        if not isinstance(sealed, bytes):
            raise _damaged(self._path)
        if address != _PROGRESS and not self._binding.has(address, sealed):
            raise _mixed(self._path)
        try:
            padded = (key or self._key).open_sealed(sealed, associated=self._associated(address))
            (length,) = _LENGTH.unpack_from(padded, _IN_TREE)
            start = _IN_TREE + _LENGTH.size
            return padded[start : start + length]
        except (InvalidTag, ValueError, TypeError):
            raise StateError(
                f"{self._path}: it does not open with this key: another key file belongs to it, or "
                "it is damaged. Restore state and key from the same backup"
            ) from None

    def _sealed_at(self, address: Address) -> Any:
        with self._guarded("read"):
            row = self._connection.execute(_SELECT[str(address[0])], address[1:]).fetchone()
        if row is None:
            raise _damaged(self._path)
        return row[0]

    def _addresses(self) -> Iterator[Address]:
        """Where there is a sealed row."""
        for kind, (table, columns) in _TABLES.items():
            with self._guarded("read"):
                rows = self._connection.execute(
                    f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608
                ).fetchall()
            for numbers in rows:
                yield kind, *numbers

    def _guarded(self, purpose: str) -> Any:
        if self._closed:
            raise StateError(f"{self._path}: this state was closed; open it again to go on")
        self.wait()
        return _guarded(self._path, purpose)

    @contextmanager
    def _transaction(self, *, later: bool) -> Iterator[None]:
        with self._guarded("write"):
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            with self._guarded("write"):
                yield
                if later:
                    self._committing = self._committer.submit(self._connection.execute, "COMMIT")
                else:
                    self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _content(stored: _Stored) -> bytes:
    """What is sealed of one key."""
    state, sequence = stored.kept.state, stored.kept.sequence
    if not stored.begun:
        assert stored.first is not None
        return _stream_content(stored.first, sequence, b"")
    content = encoding.encode_state(state.but(raw_buffer=()))
    return _stream_content(state.secret, sequence, content)


def _stream_content(secret: Secret, sequence: int, state: bytes) -> bytes:
    own = secret.to_bytes()
    return _HEAD.pack(encoding.VERSION, len(own), sequence) + own + state


def _gate_contents(entries: Entries) -> Iterator[bytes]:
    """What is sealed of persons: filled up, so that its size tells no more than a power of two."""
    for first in range(0, len(entries), _MOST_IN_ROW):
        part = entries[first : first + _MOST_IN_ROW]
        room = max(_FEWEST_IN_ROW, 1 << (len(part) - 1).bit_length())
        yield part.tobytes().ljust(room * ENTRY.itemsize, b"\0")


def _schema(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    """Tables, indexes, views and triggers."""
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a trigger that would keep what is overwritten, and pages that would."""
    with closing(sqlite3.connect(":memory:")) as expected, _guarded(path, "read"):
        expected.executescript(_SCHEMA)
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        (vacuum,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        if _schema(connection) != _schema(expected) or (page, vacuum) != (_PAGE, 0):
            raise StateError(
                f"{path}: expected the tables of a state and nothing else, found others, or a "
                "trigger; somebody has written to it. Restore state and key from the same backup"
            )


def make_private(path: Path) -> None:
    """Make an empty file that its owner alone can read, in place of what has this name."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError as error:
        raise OutputError(f"{path}: expected to write it, found: {error.strerror}") from None


def check_header(path: Path, *, backup: bool = False) -> None:
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
    version, application = (
        int.from_bytes(header[at : at + 4], "big") for at in (60, APPLICATION_OFFSET)
    )
    formats = header[18:20]  # of its pages; a higher one would make it read-only
    whole = header.startswith(b"SQLite format 3\0") and len(header) == 100 and max(formats) <= 2
    if whole and application == BACKUP and not backup:
        raise StateError(
            f"{path}: expected a state, found a backup, which was put here by hand; nothing was "
            "done with it. Type: rillet state restore BACKUP FOLDER"
        )
    if not whole or application != (BACKUP if backup else APPLICATION):
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
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=0.2,
            check_same_thread=False,  # a commit may have a thread of its own, one at a time
        )
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE}")
            # One process at a time: two would use the same noise.
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


def _mixed(path: Path) -> StateError:
    return StateError(
        f"{path}: expected all rows of the last commit, found some that were put back, taken away "
        "or added: it is damaged, and nothing was released from it. Restore state and key from the "
        "same backup"
    )


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
