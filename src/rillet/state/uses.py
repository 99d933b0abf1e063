"""What a secret was used for: the guard against the same noise on other data.

Noise is a function of the secret, the mechanism, the run, the key and the node.  The same noise on
the same observations gives the same releases again and costs nothing; on others the difference of
two releases would be bare.  So whoever gives a secret explicitly has its uses remembered: in the
process, and in a file if one is named.

A *digest* belongs to an index: 128 bits that say what the observations of its chunk of
:data:`CHUNK` are up to there, an AES-GMAC of their bits (zeros for those still to come) under a key
derived from the secret, with the index in the nonce.  Others have the same digest with a
probability of at most 2^-116.  A record of a stream of noise has the digest of each complete chunk;
of the last, open chunk it has in a file the digest at the end of each block, in the process the
observations themselves.  Chunks lie at fixed indices, so that it does not matter how blocks are
cut: observations are compared at the last of their indices that is known, and the rest waits.

A stream that is kept in a folder absorbs what cannot be foreseen: its state *owns* its noise, and
the record says no more than that.

**Privacy.** Touches raw data.  A digest says nothing to anybody who has not the secret; whoever has
it can undo the noise anyway.  Refusing tells that observations are others than before, no more.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from rillet.errors import OutputError, RilletError, StateError
from rillet.noise import FloatArray, random_name
from rillet.release import Key

#: Observations of a chunk: 16 bytes of a record for each, and 8 for each observation of the last.
CHUNK: Final = 4096
#: Stands for the pool of a shared range where streams are numbered.
POOL: Final = -1
_SIZE: Final = 16
_NAN: Final = float("nan")
_CHECKSUM: Final = 8
#: A file of uses is written anew, without what is superseded, when it has grown to this size.
_COMPACT: Final = 2**20


def _settle(raw_values: FloatArray, out: FloatArray) -> None:
    """Write observations so that the same ones have the same bits: one NaN, one zero."""
    np.add(raw_values, 0.0, out=out)
    np.copyto(out, _NAN, where=np.isnan(raw_values))


def _bits(raw_values: FloatArray) -> bytes:
    raw_settled = np.empty(len(raw_values), "<f8")
    _settle(raw_values, raw_settled)
    return raw_settled.tobytes()


class _Open:
    """Observations of a chunk that is not complete, from ``start`` on.

    ``base`` is what those before ``start``, which are not here, add to each digest.  Streams and
    the record of the process share one; who is at ``t`` looks no further.
    """

    __slots__ = ("base", "raw_values", "start")

    def __init__(self, start: int, base: int = 0, raw_values: Iterable[float] = ()) -> None:
        self.start, self.base, self.raw_values = start, base, array("d", raw_values)

    def between(self, since: int, until: int) -> FloatArray:
        """The observations from index ``since`` to ``until``."""
        # Copied: an array that is looked at cannot grow.
        return np.frombuffer(self.raw_values)[since - self.start : until - self.start].copy()


@dataclass(frozen=True)
class _Entry:
    """What is added to a record in a file: digests of chunks it completes, and in the open one.

    ``start`` is the number of observations before; a record that ``begins`` knows nothing of them
    but the digest there.
    """

    address: bytes
    start: int
    digests: bytes = b""
    marks: dict[int, bytes] = field(default_factory=dict)
    begins: bool = False
    owner: bytes = b""

    _HEAD = struct.Struct("<16s16s?7xQII")
    _MARK = struct.Struct("<Q16s")

    def to_bytes(self) -> bytes:
        numbers = (self.begins, self.start, len(self.digests) // _SIZE, len(self.marks))
        head = self._HEAD.pack(self.address, self.owner, *numbers)
        return head + self.digests + b"".join(self._MARK.pack(*mark) for mark in self.marks.items())

    @classmethod
    def parse(cls, content: bytes) -> Iterator[_Entry]:
        at = 0
        while at < len(content):
            address, owner, begins, start, chunks, marks = cls._HEAD.unpack_from(content, at)
            at += cls._HEAD.size
            digests = content[at : at + chunks * _SIZE]
            at += len(digests)
            end = at + marks * cls._MARK.size
            known = dict(cls._MARK.iter_unpack(content[at:end]))
            at = end
            yield cls(address, start, digests, known, begins, owner if any(owner) else b"")


class _Record:
    """Uses of one stream of noise, of the observations ``first`` to ``n - 1``.

    ``digests`` are those of complete chunks, from that of ``first`` on.  Of the last one there is
    ``opened``, in the process, or there are ``marks``, digests by their index.
    """

    __slots__ = ("digests", "first", "marks", "n", "opened", "owner")

    def __init__(self, first: int = 0, owner: bytes = b"", opened: _Open | None = None) -> None:
        self.first, self.n, self.owner = first, first, owner
        self.digests, self.opened, self.marks = bytearray(), opened, dict[int, bytes]()

    def waits(self, t: int, count: int) -> bool:
        """Whether ``count`` observations from ``t`` on are too few for a chunk to be compared."""
        return t < self.n - self.n % CHUNK and (t + count) // CHUNK == t // CHUNK

    def last_known(self, t: int) -> int:
        """The last index up to ``t`` of the open chunk at which observations can be compared."""
        if self.opened is not None:
            return t
        return max((mark for mark in self.marks if mark <= t), default=self.n - self.n % CHUNK)

    def complete(self, digests: bytes) -> None:
        """Add digests of complete chunks."""
        if digests:
            self.digests += digests
            self.n = (self.n // CHUNK + len(digests) // _SIZE) * CHUNK
            self.marks.clear()

    def apply(self, entry: _Entry) -> None:
        """Take over an entry of this record."""
        self.complete(entry.digests)
        self.marks.update(entry.marks)
        self.n = max(self.n, *entry.marks, 0)

    def entry(self, address: bytes) -> _Entry:
        """All of it as one entry."""
        return _Entry(address, self.first, bytes(self.digests), self.marks, True, self.owner)


class Uses:
    """Records by the address of their stream of noise, in memory."""

    def __init__(self) -> None:
        self.records: dict[bytes, _Record] = {}

    def get(self, address: bytes) -> _Record:
        """The record of a stream of noise; an empty one if it was never used."""
        return self.records.get(address) or _Record()

    def add(self, entries: Iterable[_Entry]) -> None:
        """Remember these uses, in this order."""
        for entry in entries:
            record = self.records.get(entry.address)
            if record is None or entry.begins:
                record = self.records[entry.address] = _Record(entry.start, entry.owner)
            record.apply(entry)


class UsesFile(Uses):
    """Records in a file: batches of entries, appended, each with a chained checksum.

    Several processes may share it: each reads what the others have added before it compares.  A
    batch that a crash cut short was never followed by a release, and is dropped.
    """

    _MAGIC = b"rillet-uses-1\n"
    #: Length of a batch, and its checksum: a damaged length must not look like a batch cut short.
    _HEAD = 4 + _CHECKSUM

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._inode, self._end, self._checksum = 0, 0, b""
        self._descriptor, self._limit = -1, _COMPACT

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Compare and add within this: the file is locked, and what is new in it is read."""
        if self._end and not self._path.exists():
            raise StateError(
                f"secret: {self._path} is gone, so it is not known what else this secret was used "
                "for; put it back, or use a new secret"
            )
        self._open()
        try:
            with self._writable():
                self._catch_up()
            yield
        finally:
            os.close(self._descriptor)

    def _open(self) -> None:
        """Open and lock the file; again, if another process replaced it while this one waited."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._writable():
            while True:
                self._descriptor = os.open(self._path, flags, 0o600)
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                    if os.fstat(self._descriptor).st_ino == self._path.stat().st_ino:
                        return
                except FileNotFoundError:
                    pass
                except BaseException:
                    os.close(self._descriptor)
                    raise
                os.close(self._descriptor)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except RilletError:
            raise
        except OSError as error:
            raise OutputError(
                f"{self._path}: expected a file that can be written, to note what the secret is "
                f"used for, found: {error.strerror}"
            ) from None

    def _catch_up(self) -> None:
        status = os.fstat(self._descriptor)
        if status.st_ino != self._inode:
            self.records.clear()
            self._inode, self._end, self._checksum = status.st_ino, 0, b""
        if status.st_size < self._end:
            raise self._damaged()
        if status.st_size == self._end and self._end:
            return
        content = os.pread(self._descriptor, status.st_size - self._end, self._end)
        at = 0
        if not self._end:
            if not content:
                self._write(self._MAGIC)
                _sync_folder(self._path.parent)
                return
            if not content.startswith(self._MAGIC):
                raise self._damaged()
            self._end = at = len(self._MAGIC)
        self._read(content, at)
        if self._end < status.st_size:
            os.ftruncate(self._descriptor, self._end)

    def _read(self, content: bytes, at: int) -> None:
        """Take over the batches in what follows, up to one that was cut short."""
        offset = self._end - at
        while len(content) - at >= self._HEAD:
            head = content[at : at + 4]
            body, length = at + self._HEAD, int.from_bytes(head, "little")
            if content[at + 4 : body] != self._check(head):
                raise self._damaged()
            after = body + length + _CHECKSUM
            if after > len(content):
                break
            batch = content[body : body + length]
            checksum = self._check(head + batch)
            if checksum != content[body + length : after]:
                raise self._damaged()
            try:
                super().add(_Entry.parse(batch))
            except (struct.error, ValueError):
                raise self._damaged() from None
            at, self._end, self._checksum = after, offset + after, checksum

    def add(self, entries: Iterable[_Entry]) -> None:
        """Write them to the disk, then remember them."""
        entries = list(entries)
        if not entries:
            return
        content, checksum = self._batch(entries)
        with self._writable():
            self._write(content)
        self._checksum = checksum
        super().add(entries)
        if self._end > self._limit:
            self._compact()

    def _compact(self) -> None:
        """Write the file anew, each record as one entry."""
        entries = [record.entry(address) for address, record in self.records.items()]
        new = self._path.with_name(self._path.name + ".new")
        with self._writable():
            new.unlink(missing_ok=True)
            old, end, checksum = self._descriptor, self._end, self._checksum
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(new, flags, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                self._end, self._checksum = 0, b""
                content, self._checksum = self._batch(entries)
                self._write(self._MAGIC + content)
                new.replace(self._path)
                _sync_folder(self._path.parent)
            except BaseException:
                os.close(self._descriptor)
                self._descriptor, self._end, self._checksum = old, end, checksum
                raise
            os.close(old)
        self._inode = os.fstat(self._descriptor).st_ino
        self._limit = max(_COMPACT, 4 * self._end)

    def _write(self, content: bytes) -> None:
        left, at = memoryview(content), self._end
        while left:
            written = os.pwrite(self._descriptor, left, at)
            left, at = left[written:], at + written
        os.fsync(self._descriptor)
        self._end = at

    def _batch(self, entries: list[_Entry]) -> tuple[bytes, bytes]:
        """A batch as it stands in the file, and its checksum."""
        body = b"".join(entry.to_bytes() for entry in entries)
        head = len(body).to_bytes(4, "little")
        checksum = self._check(head + body)
        return head + self._check(head) + body + checksum, checksum

    def _check(self, content: bytes) -> bytes:
        return hashlib.blake2b(self._checksum + content, digest_size=_CHECKSUM).digest()

    def _damaged(self) -> StateError:
        return StateError(
            f"secret: {self._path} is damaged, so it is not known what this secret was used for; "
            "put back an undamaged copy, or use a new secret"
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: What secrets were used for in this process.
_IN_PROCESS: Final = Uses()
_FILES: Final[dict[Path, UsesFile]] = {}
_LOCK: Final = threading.RLock()


def _file(path: str | os.PathLike[str]) -> UsesFile:
    resolved = Path(path).absolute()
    return _FILES.setdefault(resolved, UsesFile(resolved))


@dataclass(slots=True)
class _Cursor:
    """How far one stream is: observations, those of its open chunk, where it is recorded."""

    address: bytes
    nonces: int
    t: int = 0
    opened: _Open = field(default_factory=lambda: _Open(0))

    def nonce(self, end: int) -> bytes:
        """Of the digest at ``end``: another one for the same index of another stream."""
        return (self.nonces + end).to_bytes(12, "little")


class Guard:
    """Compares what streams of one secret, mechanism and run absorb with what it was used for.

    Parameters
    ----------
    key
        Sixteen bytes, for digests and addresses; derived from the secret.
    keys
        Of the streams.
    path
        A file that remembers; without one only this process does.
    only
        Indices of the streams that are guarded; all of them by default.
    """

    def __init__(
        self,
        key: bytes,
        keys: tuple[Key, ...],
        path: str | os.PathLike[str] | None = None,
        only: set[int] | None = None,
    ) -> None:
        self.key, self._keys, self.only = key, keys, only
        self._process, self._file = _IN_PROCESS, None if path is None else _file(path)
        self._books = (_IN_PROCESS,) if self._file is None else (_IN_PROCESS, self._file)
        self._gmac = AESGCM(key)
        self._cursors: dict[int, _Cursor] = {}
        self._refused: str | None = None
        self._uses: list[tuple[_Cursor, FloatArray, list[bytes]]] = []
        #: Compare and note one observation; False if it has to wait for the rest of its chunk.
        #: Who guards all streams holds the lock already.
        self.take = self._take if only is None else self._take_alone

    @classmethod
    def fresh(cls, keys: tuple[Key, ...]) -> Guard:
        """A guard for streams whose secret is fresh; it guards none so far."""
        return cls(bytes.fromhex(random_name(16)), keys, only=set())

    # --- comparing, then noting ------------------------------------------------------------------

    #: One for all that is guarded in the process; streams that are guarded from the beginning have
    #: no other.
    lock: Final = _LOCK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Compare, step and note within this: no other stream can come between."""
        with self.lock, nullcontext() if self._file is None else self._file.locked():
            if self._refused is not None:
                raise StateError(self._refused)
            self._uses.clear()
            yield

    def compare(self, index: int, raw_values: FloatArray) -> int:
        """How many of these observations of one stream, from the first on, may be stepped.

        The others have to wait for the rest of their chunk.

        Raises
        ------
        StateError
            If they are others than those that the secret was used for.
        """
        cursor = self._cursor(index)
        records = [book.get(cursor.address) for book in self._books]
        count, t = len(raw_values), cursor.t
        for record in records:
            if record.waits(t, count):
                return 0
        digests = self._chunk_digests(cursor, raw_values)
        for record in records:
            if record.n == t and record.opened is cursor.opened:
                continue  # All of it goes beyond what is recorded.
            self._check(record, t)
            with np.errstate(all="ignore"):
                found = self._compared(record, cursor, raw_values, digests)
            if found is None:
                self._refuse("it was used for other data")
            count = min(count, found)
        whole = (t + count) // CHUNK - t // CHUNK
        self._uses.append((cursor, raw_values[:count], digests[:whole]))
        return count

    def compare_rows(
        self, rows_of: Iterable[tuple[int, Any]], raw_values: FloatArray
    ) -> NDArray[np.bool_] | None:
        """The same for the rows of several streams: which may be stepped; None for all of them."""
        cleared = None
        for index, rows in rows_of:
            if not self.guards(index):
                continue
            raw_part = raw_values[rows]
            count = self.compare(index, raw_part)
            if count < len(raw_part):
                if cleared is None:
                    cleared = np.ones(len(raw_values), bool)
                late = np.arange(len(raw_values))[rows][count:]
                cleared[late] = False
        return cleared

    def _check(self, record: _Record, t: int) -> None:
        if record.owner:
            self._refuse("it serves a state that is kept in a folder, and nothing else")
        if t < record.first:
            self._refuse(
                f"it was used for the first {record.first:,} observations of this stream, and "
                "there is no record of them"
            )

    def _compared(
        self, record: _Record, cursor: _Cursor, raw_values: FloatArray, digests: list[bytes]
    ) -> int | None:
        """How many of these observations may be stepped; None: they are others than before."""
        t, end = cursor.t, cursor.t + len(raw_values)
        if t > record.n:
            return len(raw_values)
        last_chunk = record.n - record.n % CHUNK
        whole = min(end, last_chunk) // CHUNK - t // CHUNK
        if whole > 0:
            at = (t // CHUNK - record.first // CHUNK) * _SIZE
            if record.digests[at : at + whole * _SIZE] != b"".join(digests[:whole]):
                return None
        if end < last_chunk:
            return end - end % CHUNK - t
        known = record.last_known(min(end, record.n))
        if known < t:
            return 0
        if not self._agrees(record, cursor, raw_values, known):
            return None
        return len(raw_values) if known == record.n else known - t

    def _agrees(self, record: _Record, cursor: _Cursor, raw_values: FloatArray, known: int) -> bool:
        """Whether a record has the same observations in its open chunk, up to index ``known``."""
        if known % CHUNK == 0:
            return True
        opened = record.opened
        if opened is None:
            return record.marks[known] == self._digest(cursor, raw_values, known)
        if opened is cursor.opened:
            if known == cursor.t:
                return True
            raw_known = opened.between(cursor.t, known)
            return _bits(raw_known) == _bits(raw_values[: known - cursor.t])
        there = _Cursor(cursor.address, cursor.nonces, known, opened)
        return self._digest(there, raw_values[:0], known) == self._digest(cursor, raw_values, known)

    def _refuse(self, why: str) -> NoReturn:
        self._refused = (
            f"secret: {why}; the same noise on other data would reveal the difference. Nothing "
            "more is released here: use a new secret"
        )
        raise StateError(self._refused)

    def note(self) -> None:
        """Remember what was compared and stepped; before anything of it is released."""
        if self._file is not None:  # It can fail, so it comes first.
            with np.errstate(all="ignore"):
                get = self._file.get
                entries = [self._entry(get(use[0].address), *use) for use in self._uses]
            self._file.add(entry for entry in entries if entry is not None)
        for use in self._uses:
            self._note_in_process(*use)
        self._uses.clear()

    def _entry(
        self, record: _Record, cursor: _Cursor, raw_values: FloatArray, digests: list[bytes]
    ) -> _Entry | None:
        """What these observations, which were compared, add to a record in a file."""
        t, end = cursor.t, cursor.t + len(raw_values)
        begins, start = t > record.n, max(t, record.n)
        if end <= start:
            return None
        # Before a record that begins, all went another way: nothing there may be repeated.
        marks = {at: self._digest(cursor, raw_values, at) for at in {t, end} if at % CHUNK}
        if not begins or digests:
            marks.pop(t, None)
        new = b"".join(digests[start // CHUNK - t // CHUNK :])
        return _Entry(cursor.address, start, new, marks, begins)

    def _note_in_process(
        self, cursor: _Cursor, raw_values: FloatArray, digests: list[bytes]
    ) -> None:
        t, end = cursor.t, cursor.t + len(raw_values)
        record = self._process.get(cursor.address)
        if record.opened is None or t > record.n:
            before = cursor.opened
            raw_known = before.between(before.start, t)
            record = _Record(t, opened=_Open(before.start, before.base, raw_known))
            self._process.records[cursor.address] = record
        assert record.opened is not None
        if end > record.n:
            new = digests[record.n // CHUNK - t // CHUNK :]
            if new:
                record.complete(b"".join(new))
                record.opened = _Open(record.n)
            record.opened.raw_values.frombytes(raw_values[record.n - t :].tobytes())
            record.n = end
        cursor.t = end
        # Where a record goes on in a later chunk, only complete chunks are compared.
        cursor.opened = record.opened if record.opened.start <= end else _Open(end)

    def _take(self, index: int, raw_value: float) -> bool:
        cursor = self._cursors.get(index)
        if cursor is not None and self._file is None and self._refused is None:
            # In plain numbers, where one observation goes beyond what is recorded.
            record, t = self._process.records.get(cursor.address), cursor.t
            if record and record.opened is cursor.opened and record.n == t and (t + 1) % CHUNK:
                cursor.opened.raw_values.append(raw_value)
                cursor.t = record.n = t + 1
                return True
        with self.locked():
            if self.compare(index, np.array([raw_value])):
                self.note()
                return True
            return False

    def _take_alone(self, index: int, raw_value: float) -> bool:
        if not self.guards(index):
            return True
        with self.lock:
            return self._take(index, raw_value)

    # --- states ----------------------------------------------------------------------------------

    def own(self, identity: str) -> None:
        """Give the noise of all streams to the state with this identity, for good.

        Raises
        ------
        StateError
            If it was used for anything else.
        """
        owner = bytes.fromhex(identity)
        with self.locked():
            self._check_unused(owner)
            for book in reversed(self._books):
                book.add(
                    _Entry(address, 0, begins=True, owner=owner)
                    for address in self._addresses()
                    if not book.get(address).owner
                )

    def check_unused(self, identity: str) -> None:
        """Whether :meth:`own` would do it."""
        with self.locked():
            self._check_unused(bytes.fromhex(identity))

    def _check_unused(self, owner: bytes) -> None:
        for book in self._books:
            records = [book.get(address) for address in self._addresses()]
            if any(record.owner not in (b"", owner) for record in records):
                self._refuse("it serves another state; a secret serves one")
            if any(record.n for record in records):
                self._refuse("it was used without this state; a state needs one of its own")

    def _addresses(self) -> Iterator[bytes]:
        return (self._cursor(index).address for index in (POOL, *range(len(self._keys))))

    # --- snapshots -------------------------------------------------------------------------------

    def guards(self, index: int) -> bool:
        """Whether this stream is guarded."""
        return self.only is None or index in self.only

    def start(self, index: int, t: int, before: bytes = b"") -> None:
        """Guard a stream from observation ``t`` on; ``before`` is from :meth:`to_bytes`."""
        if self.only is not None:
            self.only.add(index)
        cursor = self._cursor(index)
        cursor.t, cursor.opened = t, _Open(t, int.from_bytes(before, "little"))

    def to_bytes(self, index: int) -> bytes:
        """What a stream needs to be guarded elsewhere.  **Privacy.** Seal it."""
        cursor = self._cursor(index)
        with self.lock, np.errstate(all="ignore"):
            before = self._digest(cursor, np.empty(0), cursor.t) if cursor.t % CHUNK else b""
        # A GMAC is linear: this is what the chunk so far adds to the digest of the rest.
        none = self._gmac.encrypt(cursor.nonce(cursor.t), b"", bytes(8 * CHUNK))
        return self.key + (_xor(before, int.from_bytes(none, "little")) if before else b"")

    # --- digests ---------------------------------------------------------------------------------

    def _cursor(self, index: int) -> _Cursor:
        cursor = self._cursors.get(index)
        if cursor is None:
            name = "pool" if index == POOL else repr(self._keys[index])
            digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=self.key).digest()
            # Of 95 bits: no index makes it overflow.
            cursor = _Cursor(digest[:16], int.from_bytes(digest[16:28], "little") >> 1)
            self._cursors[index] = cursor
        return cursor

    def _chunk_digests(self, cursor: _Cursor, raw_values: FloatArray) -> list[bytes]:
        """Digest of each chunk that these observations complete."""
        t, end = cursor.t, cursor.t + len(raw_values)
        ends = range(t - t % CHUNK + CHUNK, end + 1, CHUNK)
        if not ends:
            return []
        digests = []
        raw_chunk = np.empty(CHUNK, "<f8")
        with np.errstate(all="ignore"):
            for at in ends:
                if at - CHUNK < t:
                    digests.append(self._digest(cursor, raw_values, at))
                    continue
                _settle(raw_values[at - CHUNK - t : at - t], raw_chunk)
                digests.append(self._gmac.encrypt(cursor.nonce(at), b"", raw_chunk.data.cast("B")))
        return digests

    def _digest(self, cursor: _Cursor, raw_values: FloatArray, end: int) -> bytes:
        """Digest at ``end``, where these observations follow those of the cursor."""
        t, opened = cursor.t, cursor.opened
        start = (end - 1) // CHUNK * CHUNK
        raw_chunk, base = np.zeros(CHUNK, "<f8"), 0
        if start < t:
            base = opened.base
            _settle(opened.between(opened.start, t), raw_chunk[opened.start - start : t - start])
        since = max(start, t)
        _settle(raw_values[since - t : end - t], raw_chunk[since - start : end - start])
        return _xor(self._gmac.encrypt(cursor.nonce(end), b"", raw_chunk.data.cast("B")), base)


def _xor(digest: bytes, other: int) -> bytes:
    return (int.from_bytes(digest, "little") ^ other).to_bytes(_SIZE, "little")


def guard_of_state(content: bytes, key: Key, t: int, path: Any = None) -> Guard | None:
    """The guard of a stream that goes on at ``t``, from :meth:`Guard.to_bytes`."""
    if not content:
        return None
    guard = Guard(content[:16], (key,), path)
    guard.start(0, t, content[16:])
    return guard


__all__ = ["CHUNK", "POOL", "Guard", "Uses", "UsesFile", "guard_of_state"]
