"""What a secret was used for: the guard against the same noise on other data.

Noise is a function of the secret, the mechanism, the run, the key and the node.  The same noise on
the same observations gives the same releases again and costs nothing; on others the difference of
two releases would be bare.  So whoever gives a secret explicitly has its uses remembered: in the
process, and in a file if one is named.

Each observation has a *tag*, AES of its index and its 64 bits under a key derived from the secret,
cut to 64 bits.  A record of a stream of noise keeps the tags of the last, open chunk of
:data:`CHUNK` observations, and of each chunk before it the exclusive or of its tags.  So an
observation is compared at once where tags are kept, and with its whole chunk before that; chunks
lie at fixed indices, so that it does not matter how blocks are cut.

A stream that is kept in a folder absorbs what cannot be foreseen: its state *owns* its noise, and
the record says no more than that.

**Privacy.** Touches raw data.  A tag says nothing to anybody who has not the secret; whoever has
it can undo the noise anyway.  Refusing tells that observations are others than before, no more.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import struct
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from rillet.errors import OutputError, RilletError, StateError
from rillet.noise import FloatArray, random_name
from rillet.release import Key

#: Observations of a chunk.  A record has 8 bytes for each, and for each observation of the last.
CHUNK: Final = 4096
#: Stands for the pool of a shared range where streams are numbered.
POOL: Final = -1
#: Observations whose tags are made at a time: their blocks stay in the cache.
_AT_ONCE: Final = 8192
_NAN: Final = np.uint64(0x7FF8_0000_0000_0000)
_CHECKSUM: Final = 8
_BLOCK: Final = struct.Struct("<Qd")
#: A file of uses is written anew, without what is superseded, when it has grown to this size.
_COMPACT: Final = 2**20

Tags: TypeAlias = NDArray[np.uint64]


def _digests(start: int, before: int, tags: Tags) -> Tags:
    """Digest of each chunk that these tags, from index ``start`` on, complete.

    ``before`` is the digest of the first one up to ``start``.
    """
    first = min(-start % CHUNK, len(tags))
    whole = (len(tags) - first) // CHUNK
    digests: Tags = np.bitwise_xor.reduce(
        tags[first : first + whole * CHUNK].reshape(whole, CHUNK), axis=1
    )
    if start % CHUNK and (start + first) % CHUNK == 0:
        opened = np.bitwise_xor.reduce(tags[:first]) ^ np.uint64(before)
        digests = np.concatenate([[opened], digests])
    return digests


@dataclass(frozen=True)
class _Entry:
    """What is added to a record: digests of the chunks it completes, tags of the one it opens.

    ``start`` is the number of observations before.  A record that ``begins`` knows nothing of
    those before ``start`` but ``base``, the digest of their open chunk.
    """

    address: bytes
    start: int
    digests: Tags = field(default_factory=lambda: np.empty(0, np.uint64))
    tags: Tags = field(default_factory=lambda: np.empty(0, np.uint64))
    begins: bool = False
    base: int = 0
    owner: bytes = b""

    _HEAD = struct.Struct("<16s16s?7xQQII")

    def to_bytes(self) -> bytes:
        numbers = (self.begins, self.start, self.base, len(self.digests), len(self.tags))
        head = self._HEAD.pack(self.address, self.owner, *numbers)
        return head + self.digests.astype("<u8").tobytes() + self.tags.astype("<u8").tobytes()

    @classmethod
    def parse(cls, content: bytes) -> Iterator[_Entry]:
        at = 0
        while at < len(content):
            address, owner, begins, start, base, chunks, tags = cls._HEAD.unpack_from(content, at)
            at += cls._HEAD.size
            words = np.frombuffer(content, "<u8", chunks + tags, at).astype(np.uint64)
            at += words.nbytes
            owner = owner if any(owner) else b""
            yield cls(address, start, words[:chunks], words[chunks:], begins, base, owner)


class _Record:
    """Uses of one stream of noise, of the observations ``first`` to ``n - 1``.

    ``digests`` are those of complete chunks, from that of ``first`` on; ``tags`` and ``digest``
    belong to the open one.  ``base`` is the digest of the chunk of ``first`` up to it.
    """

    __slots__ = ("base", "digest", "digests", "first", "n", "owner", "tags")

    def __init__(self, first: int = 0, base: int = 0, owner: bytes = b"") -> None:
        self.first, self.n, self.base, self.owner = first, first, base, owner
        self.digests, self.tags, self.digest = array("Q"), array("Q"), base

    def waits(self, t: int, count: int) -> bool:
        """Whether ``count`` observations from ``t`` on are too few for a chunk to be compared."""
        return t < self.n - self.n % CHUNK and (t + count) // CHUNK == t // CHUNK

    def compare(self, t: int, digest: int, tags: Tags) -> int | None:
        """How many of these observations may be stepped; None: they are others than before.

        ``t`` is the index of the first and ``digest`` that of its chunk so far.
        """
        if t >= self.n:
            return len(tags) if t > self.n or digest == self.digest else None
        opened, end = self.n - self.n % CHUNK, t + len(tags)
        start = self.n - len(self.tags)
        if self.waits(t, len(tags)):
            return 0
        if t < opened:
            whole = min(end, opened) // CHUNK * CHUNK
            at = t // CHUNK - self.first // CHUNK
            found = _digests(t, digest, tags[: whole - t])
            if not np.array_equal(found, _words(self.digests[at : at + len(found)])):
                return None
            if whole < opened:
                return whole - t
        elif digest != self._digest_at(t):
            return None
        since, until = max(t, start), min(end, self.n)
        known = _words(self.tags[since - start : until - start])
        return len(tags) if np.array_equal(tags[since - t : until - t], known) else None

    def _digest_at(self, t: int) -> int:
        """Digest of the open chunk up to observation ``t``, which lies in it."""
        start = self.n - len(self.tags)
        before = self.base if start == self.first else 0
        return before ^ int(np.bitwise_xor.reduce(_words(self.tags[: t - start])))

    def extension(self, address: bytes, t: int, digest: int, tags: Tags) -> _Entry | None:
        """What these observations, which were compared, add."""
        if t > self.n:
            # What came between went another way: nothing before may be repeated.
            entry = _Record(t, digest).extension(address, t, digest, tags)
            return None if entry is None else replace(entry, begins=True, base=digest)
        new = tags[self.n - t :]
        if not len(new):
            return None
        digests = _digests(self.n, self.digest, new)
        if len(digests):
            new = new[len(new) - (self.n + len(new)) % CHUNK :]
        return _Entry(address, self.n, digests, new)

    def apply(self, entry: _Entry) -> None:
        """Take over an entry of this record."""
        if len(entry.digests):
            self.digests.frombytes(entry.digests.tobytes())
            self.n = (self.n // CHUNK + len(entry.digests)) * CHUNK
            self.tags, self.digest = array("Q"), 0
        self.tags.frombytes(entry.tags.tobytes())
        self.n += len(entry.tags)
        self.digest ^= int(np.bitwise_xor.reduce(entry.tags))

    def entry(self, address: bytes) -> _Entry:
        """All of it as one entry."""
        digests, tags = _words(self.digests), _words(self.tags)
        return _Entry(address, self.first, digests, tags, True, self.base, self.owner)


def _words(words: array[int]) -> Tags:
    return np.array(words, np.uint64)


class Uses:
    """Records by the address of their stream of noise, in memory."""

    def __init__(self) -> None:
        self._records: dict[bytes, _Record] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Compare and add within this; no other stream can meanwhile."""
        yield

    def get(self, address: bytes) -> _Record:
        """The record of a stream of noise; an empty one if it was never used."""
        return self._records.get(address) or _Record()

    def add(self, entries: Iterable[_Entry]) -> None:
        """Remember these uses, in this order."""
        for entry in entries:
            record = self._records.get(entry.address)
            if record is None or entry.begins:
                fresh = _Record(entry.start, entry.base, entry.owner)
                record = self._records[entry.address] = fresh
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
        """Lock the file and read what is new."""
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
            self._records.clear()
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
        entries = [record.entry(address) for address, record in self._records.items()]
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


def _books(path: str | os.PathLike[str] | None) -> tuple[Uses, ...]:
    if path is None:
        return (_IN_PROCESS,)
    resolved = Path(path).absolute()
    return _IN_PROCESS, _FILES.setdefault(resolved, UsesFile(resolved))


@dataclass
class _Cursor:
    """How far one stream is: observations, digest of its open chunk, where it is recorded."""

    address: bytes
    mask: int
    t: int = 0
    digest: int = 0

    def addresses(self, count: int) -> Tags:
        """What stands for the next indices in tags: the same index of another stream differs."""
        start = self.mask + self.t
        return np.arange(start, start + count, dtype=np.uint64)


class Guard:
    """Compares what streams of one secret, mechanism and run absorb with what it was used for.

    Parameters
    ----------
    key
        Sixteen bytes, from which tags and addresses are derived; itself derived from the secret.
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
        self._books = _books(path)
        # A block that never comes twice under one key: its index is in it.
        self._encryptor = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305
        self._cursors: dict[int, _Cursor] = {}
        self._refused: str | None = None
        self._uses: list[tuple[_Cursor, Tags]] = []

    @classmethod
    def fresh(cls, keys: tuple[Key, ...]) -> Guard:
        """A guard for streams whose secret is fresh; it guards none so far."""
        return cls(bytes.fromhex(random_name(16)), keys, only=set())

    # --- comparing, then noting ------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Compare, step and note within this: no other stream can come between."""
        with _LOCK, ExitStack() as stack:
            if self._refused is not None:
                raise StateError(self._refused)
            for book in self._books:
                stack.enter_context(book.locked())
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
        if self._waits(cursor, len(raw_values)):
            return 0
        return self._compare(cursor, self._tags(cursor.addresses(len(raw_values)), raw_values))

    def compare_rows(
        self, rows_of: Iterable[tuple[int, Any]], raw_values: FloatArray
    ) -> NDArray[np.bool_] | None:
        """The same for the rows of several streams: which may be stepped; None for all of them."""
        streams = [(index, rows) for index, rows in rows_of if self.guards(index)]
        if len(streams) == 1 and isinstance(streams[0][1], slice):
            count = self.compare(streams[0][0], raw_values)
            return None if count == len(raw_values) else np.arange(len(raw_values)) < count
        cleared = np.ones(len(raw_values), bool)
        addresses = np.zeros(len(raw_values), np.uint64)
        ready = []
        for index, rows in streams:
            cursor = self._cursor(index)
            if self._waits(cursor, len(rows)):
                cleared[rows] = False
            else:
                addresses[rows] = cursor.addresses(len(rows))
                ready.append((cursor, rows))
        tags = self._tags(addresses, raw_values) if ready else addresses
        for cursor, rows in ready:
            count = self._compare(cursor, tags[rows])
            cleared[rows[count:]] = False
        return None if cleared.all() else cleared

    def _waits(self, cursor: _Cursor, count: int) -> bool:
        return any(book.get(cursor.address).waits(cursor.t, count) for book in self._books)

    def _compare(self, cursor: _Cursor, tags: Tags) -> int:
        count = len(tags)
        for book in self._books:
            record = book.get(cursor.address)
            if record.owner:
                self._refuse("it serves a state that is kept in a folder, and nothing else")
            if cursor.t < record.first:
                self._refuse(
                    f"it was used for the first {record.first:,} observations of this stream, and "
                    "there is no record of them"
                )
            found = record.compare(cursor.t, cursor.digest, tags)
            if found is None:
                self._refuse("it was used for other data")
            count = min(count, found)
        self._uses.append((cursor, tags[:count]))
        return count

    def _refuse(self, why: str) -> NoReturn:
        self._refused = (
            f"secret: {why}; the same noise on other data would reveal the difference. Nothing "
            "more is released here: use a new secret"
        )
        raise StateError(self._refused)

    def note(self) -> None:
        """Remember what was compared and stepped; before anything of it is released."""
        for book in reversed(self._books):  # the one that can fail comes first
            entries = (
                book.get(cursor.address).extension(cursor.address, cursor.t, cursor.digest, tags)
                for cursor, tags in self._uses
            )
            book.add([entry for entry in entries if entry is not None])
        for cursor, tags in self._uses:
            end = cursor.t + len(tags)
            opened = end - end % CHUNK
            if opened > cursor.t:
                cursor.t, cursor.digest = opened, 0
            cursor.digest ^= int(np.bitwise_xor.reduce(tags[len(tags) - (end - cursor.t) :]))
            cursor.t = end
        self._uses.clear()

    def take(self, index: int, raw_value: float) -> bool:
        """Compare and note one observation; False if it has to wait for the rest of its chunk."""
        if not self.guards(index):
            return True
        if len(self._books) == 1 and self._append(index, raw_value):
            return True
        with self.locked():
            if self.compare(index, np.array([raw_value])):
                self.note()
                return True
            return False

    def _append(self, index: int, raw_value: float) -> bool:
        """The same in plain numbers, where one observation goes beyond what is recorded."""
        with _LOCK:
            cursor = self._cursor(index)
            t = cursor.t
            record = self._books[0].get(cursor.address)
            if record.n != t or record.digest != cursor.digest or (t + 1) % CHUNK == 0:
                return False
            if not record.tags or record.owner or self._refused is not None:
                return False  # It may be a record that is not kept yet.
            value = math.nan if math.isnan(raw_value) else raw_value + 0.0
            block = self._encryptor.update(_BLOCK.pack(cursor.mask + t, value))
            tag = int.from_bytes(block[:8], "little")
            record.tags.append(tag)
            record.n = cursor.t = t + 1
            record.digest = cursor.digest = cursor.digest ^ tag
            return True

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

    def start(self, index: int, t: int, digest: int = 0) -> None:
        """Guard a stream from observation ``t`` on."""
        if self.only is not None:
            self.only.add(index)
        cursor = self._cursor(index)
        cursor.t, cursor.digest = t, digest

    def to_bytes(self, index: int) -> bytes:
        """What a stream needs to be guarded elsewhere.  **Privacy.** Seal it."""
        return self.key + self._cursor(index).digest.to_bytes(8, "little")

    # --- tags ------------------------------------------------------------------------------------

    def _cursor(self, index: int) -> _Cursor:
        cursor = self._cursors.get(index)
        if cursor is None:
            name = "pool" if index == POOL else repr(self._keys[index])
            digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=self.key)
            address, mask = digest.digest()[:16], digest.digest()[16:24]
            # Of 62 bits: no index makes it overflow.
            cursor = _Cursor(address, int.from_bytes(mask, "little") >> 2)
            self._cursors[index] = cursor
        return cursor

    def _tags(self, addresses: Tags, raw_values: FloatArray) -> Tags:
        """The tag of each observation: AES of what stands for its index, and of its bits.

        Every NaN is the same observation, and so are the two zeros.
        """
        tags = np.empty(len(raw_values), np.uint64)
        size = min(_AT_ONCE, len(raw_values))
        blocks, output = np.empty((size, 2), "<u8"), bytearray(16 * size + 16)
        encrypted, values = np.frombuffer(output, "<u8"), blocks.view("<f8")
        for start in range(0, len(raw_values), _AT_ONCE):
            raw_part = raw_values[start : start + _AT_ONCE]
            count = len(raw_part)
            blocks[:count, 0] = addresses[start : start + count]
            with np.errstate(all="ignore"):
                np.add(raw_part, 0.0, out=values[:count, 1])
            np.copyto(blocks[:count, 1], _NAN, where=np.isnan(raw_part))
            self._encryptor.update_into(blocks[:count].data.cast("B"), output)
            tags[start : start + count] = encrypted[: 2 * count : 2]
        return tags


def guard_of_state(content: bytes, key: Key, t: int, path: Any = None) -> Guard | None:
    """The guard of a stream that goes on at ``t``, from :meth:`Guard.to_bytes`."""
    if not content:
        return None
    guard = Guard(content[:16], (key,), path)
    guard.start(0, t, int.from_bytes(content[16:], "little"))
    return guard


__all__ = ["CHUNK", "POOL", "Guard", "Uses", "UsesFile", "guard_of_state"]
