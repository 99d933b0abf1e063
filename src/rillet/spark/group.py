"""A group of keys: its streams as sealed parts, and one step with all that came for them.

Spark is elsewhere: a processor gives the parts that it kept and the rows that came, and takes
back the parts that changed and what was released.

**Privacy.** Touches raw data.  Rows are sealed on their way to their group, and so is every part of
its state: neither says anything to anybody who has not the secret.  The number of parts and their
sizes are public, but for values that wait for their tick and for rows on their way.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from pyspark import SparkFiles

from rillet.crowd import Crowd
from rillet.errors import StateError
from rillet.fleet import PAGE, Fleet
from rillet.gather.gate import Entries
from rillet.layout import Layout
from rillet.levels import Tree
from rillet.noise import FloatArray, IntArray, Secret
from rillet.plan import Plan
from rillet.release import Key, Releases
from rillet.source import DeclaredKeys
from rillet.spark.shipped import Setup
from rillet.state.base import Kept, MemoryStore, Pool, Progress
from rillet.state.encoding import decode_state, encode_state
from rillet.state.fleets import (
    Change,
    decode_common,
    decode_page,
    encode_common,
    encode_learned,
    encode_page,
    pack,
    repeat,
    unpack,
)
from rillet.step import without_key
from rillet.streams import Streams, rows_of_keys

#: Raised with every change of what is sealed here.
VERSION: Final = 3
#: Fewest and most keys of a group: by the clock, by count, and where each key is stepped alone.
_BY_CLOCK, _BY_COUNT, _ALONE = (256, PAGE), (256, 2**11), (16, 2**8)
#: Ticks, or batches, that are kept as they happened until their page is written anew.
_TICKS: Final = 16
#: Bytes of groups that a process has at hand for the next batch, about.
_AT_HAND: Final = 2**28
#: Keys whose noise is one part.
_NOISE: Final = 64
#: Releases that are held in memory at a time, about.
_RELEASES: Final = 2**18
PROGRESS: Final = "progress"
_32: Final = 2**32 - 1
#: Bytes of the tag with which a sealed content ends.
_TAG: Final = 16
#: Parts of a fleet that are written with every batch.
_COMMON: Final = ("common", "learned")
#: Gives a part by its name.
Read: TypeAlias = Callable[[str], bytes]


@lru_cache(maxsize=4)
def open_setup(setup: Setup) -> Opened:
    """The plan and the secret; made once in each process."""
    path = Path(setup.plan)
    if not path.is_absolute():
        path = Path(SparkFiles.get(setup.plan))
    plan = _plan(path, path.stat().st_mtime_ns)
    secret = load_secret(setup.secret)
    if check_of(plan, secret, setup.identity) != setup.check:
        raise StateError(
            f"secret: {setup.secret} on this worker is not the secret that the driver has; copy "
            "the same file to all of them"
        )
    return Opened(plan, secret, setup)


@lru_cache(maxsize=4)
def _plan(path: Path, _modified: int) -> Plan:
    """A plan as it was written then; queries of one process that share it read it once."""
    return Plan.from_json(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=4)
def _declared(plan: Plan, columns: tuple[str, ...]) -> DeclaredKeys:
    """Finds the keys of a plan; as with the plan, once for all queries that share it."""
    return DeclaredKeys(plan.keys, columns)


def load_secret(path: str) -> Secret:
    """The secret in a file that its owner alone can read."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise StateError(
            f"secret: expected the file {path} on this machine, found: {error.strerror}; driver "
            "and workers need the same file"
        ) from None
    if mode & 0o077:
        raise StateError(
            f"secret: expected a file that its owner alone can read, found mode {mode & 0o777:o}; "
            f"type: chmod 600 {path}"
        )
    return Secret.load(path)


def check_of(plan: Plan, secret: Secret, identity: str) -> str:
    """Tells one secret from another, and nothing else of it."""
    stream = secret.keystream("spark check", plan.layout.digest, identity)
    return f"{stream.integer(0, 128):032x}"


def usual_keys_in_group(layout: Layout, partitions: int) -> int:
    """How many keys a group has unless somebody says otherwise: as many groups for each partition.

    All keys of a group take one step, so that few large groups cost less than many small ones.
    """
    fewest, most = _BY_CLOCK if layout.fleet else _BY_COUNT if layout.crowd else _ALONE
    groups = partitions * max(1, -(-layout.keys // (partitions * most)))
    return max(fewest, -(-layout.keys // groups))


def labels_of(groups: int, partitions: int) -> list[int]:
    """What Spark knows groups by: numbers that it spreads evenly over so many partitions.

    It takes the hash of a group's label; of groups that were counted through, one partition would
    have several times as many as another.
    """
    found: list[int] = []
    waiting: list[list[int]] = [[] for _ in range(partitions)]
    number = 0
    for group in range(groups):
        own = waiting[group % partitions]
        while not own:
            waiting[_hash(number) % partitions].append(number)
            number += 1
        found.append(own.pop(0))
    return found


def _hash(number: int) -> int:
    """Murmur3 of an INT, as Spark has it."""
    mixed = number * 0xCC9E2D51 & _32
    mixed = _rotated(mixed, 15) * 0x1B873593 & _32
    found = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & _32 ^ 4
    found = (found ^ found >> 16) * 0x85EBCA6B & _32
    found = (found ^ found >> 13) * 0xC2B2AE35 & _32
    found ^= found >> 16
    return found - (found >> 31 << 32)  # with a sign


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> 32 - by) & _32


class Opened:
    """A plan and its secret in one process, cut into groups of keys."""

    def __init__(self, plan: Plan, secret: Secret, setup: Setup) -> None:
        self.plan, self.secret, self.setup = plan, secret, setup
        self.keys: tuple[Key, ...] = plan.keys or ((),)
        self._seals = secret.derive("spark", plan.layout.digest, setup.run, setup.identity)
        self._at_hand: OrderedDict[int, Group] = OrderedDict()
        self._trees: dict[int, Tree] = {}

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return -(-len(self.keys) // self.setup.keys_in_group)

    @cached_property
    def labels(self) -> list[int]:
        """The label of each group."""
        return labels_of(self.groups, self.setup.partitions)

    @cached_property
    def number_of(self) -> dict[int, int]:
        """The group of each label."""
        return {label: number for number, label in enumerate(self.labels)}

    def tree(self, number: int) -> Tree:
        """The keys of a group, the same whenever it is asked for."""
        first = number * self.setup.keys_in_group
        if number not in self._trees:
            self._trees[number] = Tree(self.keys[first : first + self.setup.keys_in_group])
        return self._trees[number]

    def take(self, number: int, progress: bytes | None, read: Read | None = None) -> Group | None:
        """A group from a batch before, if it is what was kept: with this sealed progress.

        With ``read``, which gives a sealed part, it does what other processes did to it since.  It
        is gone from here then: who fails with it half done reads it anew.
        """
        group = self._at_hand.pop(number, None)
        if group is None or group.progress == progress:
            return group
        caught_up = progress is not None and read is not None and group.catch_up(progress, read)
        return group if caught_up else None

    def keep(self, number: int, group: Group) -> None:
        """Have a group at hand, whose parts were all written."""
        self._at_hand[number] = group
        while sum(own.size for own in self._at_hand.values()) > _AT_HAND:
            self._at_hand.popitem(last=False)

    @cached_property
    def declared(self) -> DeclaredKeys | None:
        """Finds declared keys in cells."""
        return _declared(self.plan, self.setup.columns.key) if self.plan.keys else None

    def seal(self, content: bytes, *address: str | int) -> bytes:
        """Encrypt; only the same address opens it."""
        return self._seals.seal(content, associated=json.dumps(address).encode())

    def unseal(self, sealed: bytes, *address: str | int) -> bytes:
        """Undo :meth:`seal`."""
        try:
            return self._seals.open_sealed(sealed, associated=json.dumps(address).encode())
        except (InvalidTag, ValueError):
            raise StateError(
                f"checkpoint: {address[0]} of group {address[1]} does not open with this secret: "
                "it was damaged, or sealed under another one"
            ) from None


# --- rows on their way to their group --------------------------------------------------------


class Rows(NamedTuple):
    """Observations with the indices of their keys; their numbers and times, where they have any."""

    raw_values: FloatArray
    key_of: IntArray
    sequence: IntArray | None
    raw_at: IntArray | None

    def part(self, rows: Any) -> Rows:
        """Some of them."""
        columns: Any = (None if column is None else column[rows] for column in self)
        return Rows(*columns)


def by_group(opened: Opened, rows: Rows, now: int) -> Iterator[tuple[int, bytes]]:
    """Seal rows for their groups; those of no declared key, or without a place, are left out.

    ``now`` is the time of the batch.  **Privacy.** Touches raw data.
    """
    wanted = rows.key_of >= 0
    if opened.plan.clock is None and rows.sequence is not None:
        wanted &= rows.sequence >= 0
    if not wanted.all():
        rows = rows.part(wanted)
    size = opened.setup.keys_in_group
    for group, own in rows_of_keys(rows.key_of // size):
        raw_values, key_of, *rest = rows.part(own)
        assert key_of is not None
        within = (key_of - group * size).astype(np.int32)
        yield group, opened.seal(pack([now, raw_values, within, *rest]), "rows", group)


def _gathered(opened: Opened, group: int, sealed: list[bytes]) -> tuple[Rows, int]:
    """All rows of a group in the order of their numbers, and the time of the batch."""
    parts = [unpack(opened.unseal(one, "rows", group)) for one in sealed]
    now = max((part[0] for part in parts), default=0)
    columns = zip(*(part[1:] for part in parts), strict=True)
    joined: Any = (None if column[0] is None else np.concatenate(column) for column in columns)
    rows = Rows(*joined)
    if rows.sequence is not None:
        rows = rows.part(np.argsort(rows.sequence, kind="stable"))
    return rows._replace(key_of=rows.key_of.astype(np.int64)), now


# --- the streams of a group ------------------------------------------------------------------


class _Store(MemoryStore):
    """Streams in memory that can go on from elsewhere, and remember which of them changed."""

    def __init__(self, begun: MemoryStore) -> None:
        self.__dict__.update(vars(begun))
        self.changed: set[int] = set()

    def go_on(self, progress: Progress, kept: Mapping[int, Kept]) -> None:
        """From there."""
        self.progress = progress
        self._kept.update(kept)

    def commit(
        self,
        progress: Progress,
        kept: Mapping[int, Kept],
        pool: Pool | None,
        releases: Releases,
        entries: Entries | None = None,
    ) -> None:
        """Take over all of it; what happened to a fleet is known until it is forgotten."""
        self.changed |= kept.keys()
        if self.crowd is not None:
            self.changed |= self.crowd.drew
        fleet = self.fleet
        happened = None if fleet is None else (fleet.closed, fleet.touched)
        super().commit(progress, kept, pool, releases, entries)
        if fleet is not None and happened is not None:
            fleet.closed, fleet.touched = happened

    def forget_changes(self) -> None:
        """All parts were given out."""
        self.changed = set()
        if self.fleet is not None:
            self.fleet.forget_changes()


class Group:
    """The streams of a group, from the parts that were kept of it; none: at their beginning."""

    def __init__(self, opened: Opened, number: int, parts: Mapping[str, bytes]) -> None:
        self._opened, self._number = opened, number
        self._tree, offset = opened.tree(number), number * opened.setup.keys_in_group
        plan, run = opened.plan, opened.setup.run
        self._store = _Store(plan.memory_store(self._tree, opened.secret, run, offset))
        self._tags: dict[str, str] = {}
        #: The sealed progress as it was kept last, which no other time has.
        self.progress = parts.get(PROGRESS)
        #: Ticks that were closed since the pages were written, and batches.
        self._ticks = self._changes = 0
        self._sizes = {name: len(content) for name, content in parts.items()}
        if parts:
            self._load(parts)
        self._streams = Streams(plan.layout, self._tree, self._store)

    def absorb(self, sealed: list[bytes], until: int | None) -> Iterator[Releases]:
        """Absorb rows, and by the clock close all ticks that were over at the time ``until``.

        By the clock the rows come first: who tells the time has waited for them.  Behind it stand
        rows of ticks that the clock has not reached, which are early.

        **Privacy.** As :meth:`rillet.Streams.absorb` and :meth:`rillet.Streams.absorb_ticks`.
        """
        streams, clock = self._streams, self._opened.plan.clock
        none: Any = np.empty(0, np.int64)
        rows, now = Rows(np.empty(0), none, None, none), 0
        if sealed:
            rows, now = _gathered(self._opened, self._number, sealed)
        if clock is None:
            releases = streams.absorb(rows.raw_values, rows.key_of, sequence=rows.sequence)
            # The time of the batch, which is the same when it is done again.
            releases.at = np.full(len(releases), now).view("M8[us]")
            yield releases
            return
        assert rows.raw_at is not None
        closed = self._store.progress.ticks
        last = closed if until is None else max(closed, clock.closed_by(until))
        last = min(last, self._opened.plan.last_t)
        tick_of = clock.entering(
            clock.tick_of(rows.raw_at), closed + 1, last + 1 + clock.ticks_of_grace
        )
        while True:
            part = min(last, closed + max(1, _RELEASES // len(self._tree.keys)))
            yield streams.absorb_ticks(
                rows.raw_values, rows.key_of, tick_of, part, sequence=rows.sequence
            )
            if part == last:
                return
            rows, tick_of, closed = Rows(np.empty(0), none, None, none), none, part

    # --- as parts ----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How much memory it takes, about."""
        fleet = self._store.fleet
        return sum(self._sizes.values()) if fleet is None else fleet.bytes_of_pages

    def changed(self) -> Iterator[tuple[str, bytes | None]]:
        """The parts that changed, sealed, or None for one that is gone.

        The last of them binds all others to each other.
        """
        for name, content in self._contents():
            if content is None:
                del self._tags[name], self._sizes[name]
                yield name, None
                continue
            sealed = self._opened.seal(content, name, self._number)
            self._tags[name], self._sizes[name] = sealed[-_TAG:].hex(), len(sealed)
            yield name, sealed
        progress = self._store.progress
        since = self._ticks, self._changes
        content = pack([VERSION, progress.ticks, progress.observations, since, self._tags])
        self.progress = self._opened.seal(content, PROGRESS, self._number)
        self._store.forget_changes()
        yield PROGRESS, self.progress

    def _contents(self) -> Iterator[tuple[str, bytes | None]]:
        store, layout = self._store, self._opened.plan.layout
        fleet, crowd = store.fleet, store.crowd
        if fleet is not None:
            yield "common", encode_common(fleet.common)
            yield "learned", encode_learned(fleet.common)
            yield from self._pages(fleet)
        elif crowd is not None:
            yield "crowd", pack(crowd.arrays(slice(None)))
            for block in sorted({row // _NOISE for row in store.changed}):
                secrets, arrays = crowd.noise_of_many(_block(block))
                yield f"noise {block}", pack([_texts(secrets), arrays])
        else:
            for index in sorted(store.changed):
                kept = store.read(layout, index)
                state = without_key(layout, kept.state)
                secret = state.secret.to_bytes().decode("ascii")
                content = np.frombuffer(encode_state(state), np.uint8)
                yield f"key {index}", pack([secret, kept.sequence, content])

    def _pages(self, fleet: Fleet) -> Iterator[tuple[str, bytes | None]]:
        """What happened to each page, or all of it once that is much to repeat."""
        self._ticks += max(map(len, fleet.closed.values()), default=0)
        self._changes += 1
        # Noise that later leaves need does not follow from what was released.
        remembers = any(map(len, fleet.pages[0].processes))
        whole = remembers or max(self._ticks, self._changes) > _TICKS
        if whole:
            self._ticks = self._changes = 0
            yield from [(name, None) for name in self._tags if name.startswith("change ")]
        for number, page in enumerate(fleet.pages):
            sequence = fleet.sequence[page.first : page.first + len(page)]
            if whole:
                page.latest = {}  # nobody asks for it again here
                yield f"page {number}", encode_page(page, sequence)
            else:
                numbers = sequence if (sequence >= 0).any() else None
                change = Change(0, fleet.closed.get(number, []), page.exact_partial, numbers)
                yield f"change {number} {self._changes}", change.to_bytes()

    def _unsealed(self, sealed: bytes) -> tuple[int, int, tuple[int, int], dict[str, str]]:
        """The progress: ticks, observations, both since pages were written, the tags of parts."""
        version, *rest = unpack(self._opened.unseal(sealed, PROGRESS, self._number))
        if version != VERSION:
            raise StateError(
                f"checkpoint: expected groups of version {VERSION}, found {version}; go on with "
                "the release of rillet that began it"
            )
        ticks, observations, since, tags = rest
        return ticks, observations, since, tags

    def catch_up(self, progress: bytes, read: Read) -> bool:
        """Do what other processes did since, if they only went on from here; whether they did.

        That is so if all that this group was made of is still kept.  What was learned is not
        repeated here.
        """
        fleet, changes = self._store.fleet, self._changes
        if fleet is None or fleet.layout.declared_range is None:
            return False
        ticks, observations, since, tags = self._unsealed(progress)
        if any(tags.get(name) != tag for name, tag in self._tags.items() if name not in _COMMON):
            return False

        def unsealed(name: str) -> bytes:
            sealed = read(name)
            if sealed[-_TAG:].hex() != tags.get(name):
                raise self._mixed()
            self._sizes[name] = len(sealed)
            return self._opened.unseal(sealed, name, self._number)

        (self._ticks, self._changes), self._tags, self.progress = since, tags, progress
        self._load_fleet(fleet, unsealed, changes)
        self._store.go_on(Progress(observations=observations, ticks=ticks), {})
        return True

    def _load(self, parts: Mapping[str, bytes]) -> None:
        opened, store = self._opened, self._store
        if PROGRESS not in parts:
            raise self._mixed()
        ticks, observations, since, self._tags = self._unsealed(parts[PROGRESS])
        self._ticks, self._changes = since
        found = {name: sealed[-_TAG:].hex() for name, sealed in parts.items() if name != PROGRESS}
        if found != self._tags:
            raise self._mixed()

        def read(name: str) -> bytes:
            return opened.unseal(parts[name], name, self._number)

        kept = {}
        if store.fleet is not None:
            self._load_fleet(store.fleet, read)
        elif store.crowd is not None:
            self._load_crowd(store.crowd, read)
        else:
            for name in self._tags:
                secret, sequence, content = unpack(read(name))
                state = decode_state(content.tobytes(), Secret.from_bytes(secret.encode("ascii")))
                kept[int(name.removeprefix("key "))] = Kept(state, sequence)
        store.go_on(Progress(observations=observations, ticks=ticks), kept)

    def _load_fleet(self, fleet: Fleet, read: Read, known: int | None = None) -> None:
        """From its parts; ``known``: it is at so many changes since its pages were written."""
        layout, common = fleet.layout, decode_common(read("common"), read("learned"))
        fleet.common = common
        for number, begun in enumerate(fleet.pages):
            page, own = begun, slice(begun.first, begun.first + len(begun))
            if known is None and f"page {number}" in self._tags:
                content = read(f"page {number}")
                page, fleet.sequence[own] = decode_page(layout, content, common.found)
                fleet.pages[number] = page
            for count in range((known or 0) + 1, self._changes + 1):
                change = Change.from_bytes(read(f"change {number} {count}"))
                repeat(layout, page, change, common.found, {})
                if change.sequence is not None:
                    fleet.sequence[own] = change.sequence

    def _load_crowd(self, crowd: Crowd, read: Read) -> None:
        if "crowd" in self._tags:
            for part, was in zip(crowd.arrays(slice(None)), unpack(read("crowd")), strict=True):
                part[...] = was
        for name in self._tags:
            if name.startswith("noise "):
                secrets, arrays = unpack(read(name))
                rows = _block(int(name.removeprefix("noise ")))
                own = [Secret.from_bytes(line.encode("ascii")) for line in secrets.splitlines()]
                crowd.set_noise_of_many(rows, own, arrays)

    def _mixed(self) -> StateError:
        return StateError(
            f"checkpoint: the parts of group {self._number} are not of one time; restore the whole "
            "checkpoint from one backup"
        )


def _block(number: int) -> slice:
    return slice(number * _NOISE, (number + 1) * _NOISE)


def _texts(secrets: list[Secret]) -> str:
    return "".join(secret.to_bytes().decode("ascii") for secret in secrets)
