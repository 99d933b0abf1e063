"""A fleet as bytes: what all keys have in common, pages of keys, and what happened since.

A page is written rarely, as a whole; in between, what each tick added to it is: its leaves and its
noisy nodes.  From them the page is made again, and so are its releases, which are post-processing:
none has to be kept until it is delivered.

**Privacy.** The bytes hold unreleased data and must be sealed before they are kept.  Their length
depends on public numbers only, but for values that wait for their tick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rillet.crowd import Block, Crowd
from rillet.fleet import (
    PAGE,
    Closed,
    Common,
    Fleet,
    Found,
    Page,
    Table,
    begin_main,
    close_tick,
    new_page,
    spans,
)
from rillet.layout import Layout
from rillet.levels import Tree
from rillet.noise import IntArray, Secret
from rillet.release import Key, Releases
from rillet.state.base import POOL
from rillet.state.binding import Address
from rillet.statistic import Range
from rillet.threshold import Look

COMMON: Final[Address] = ("common", 0)
#: What all keys have learned, which changes at the ends of segments.
LEARNED: Final[Address] = ("common", 1)
#: What happened is kept up to as much as the pages take, and this many bytes.
_FEWEST_CHANGES: Final = 2**20


def pack(fields: Any) -> bytes:
    """A header in JSON, then the arrays that it names, little-endian."""
    content: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            kind = value.dtype.newbyteorder("<")
            content.append(np.ascontiguousarray(value, kind).tobytes())
            return {"array": [kind.str, *value.shape]}
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    header = json.dumps(plain(fields), separators=(",", ":")).encode()
    return b"".join((len(header).to_bytes(4, "big"), header, *content))


def unpack(content: bytes) -> Any:
    """What :func:`pack` wrote."""
    offset = 4 + int.from_bytes(content[:4], "big")

    def read(fields: dict[str, Any]) -> Any:
        # Objects are read in the order in which they were written, and so are the arrays.
        nonlocal offset
        if "array" not in fields:
            return fields
        kind, *shape = fields["array"]
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(content, np.dtype(kind), count, offset)
        offset += values.nbytes
        return values.astype(values.dtype.newbyteorder("="), copy=True).reshape(shape)

    return json.loads(content[4:offset], object_hook=read)


def encode_common(common: Common) -> bytes:
    """Everything but the values of the warm-up, and :func:`encode_learned`."""
    return pack(
        {
            "secret": common.secret.to_bytes().decode("ascii"),
            "t": common.t,
            "raw_held": common.raw_held,
            "exact_counts": common.exact_counts,
        }
    )


def encode_learned(common: Common) -> bytes:
    """What was learned: released, or public."""
    return pack(
        {
            "looks": [
                [
                    [one.observations, one.noisy, one.scale, one.law, one.centre, one.point]
                    for one in looks
                ]
                for looks in common.looks
            ],
            "ranges": [[[one.lower, one.upper] for one in own] for own in common.ranges],
            "found": [list(found) for found in common.found],
            "centres": common.centres,
            "own": common.own,
        }
    )


def decode_common(content: bytes, learned: bytes) -> Common:
    """What :func:`encode_common` and :func:`encode_learned` wrote."""
    fields = {**unpack(content), **unpack(learned)}
    held = fields["raw_held"]
    return Common(
        Secret.from_bytes(fields["secret"].encode("ascii")),
        fields["t"],
        [],
        None if held is None else (held[0], held[1], held[2]),
        fields["exact_counts"],
        [tuple(Look(*one) for one in looks) for looks in fields["looks"]],
        [tuple(Range(*one) for one in own) for own in fields["ranges"]],
        [Found(*found) for found in fields["found"]],
        fields["centres"],
        fields["own"],
    )


def encode_page(page: Page, sequence: IntArray) -> bytes:
    """All of a page."""
    return pack({**vars(page), "units": None, "sequence": sequence})


def decode_page(layout: Layout, content: bytes, found: list[Found]) -> tuple[Page, IntArray]:
    """What :func:`encode_page` wrote, and the sequence numbers of its keys."""
    fields = unpack(content)
    sequence = fields.pop("sequence")
    for name in ("encoders", "decoders", "processes"):
        fields[name] = [tuple(np.asfortranarray(part) for part in own) for own in fields[name]]
    page = Page(**{**fields, "units": ()})
    return page.with_units(layout, found), sequence


class Change(NamedTuple):
    """What one commit did to a page: ticks that were closed, and the open one then."""

    batch: int
    closed: list[Closed]
    exact_partial: list[IntArray] | None
    sequence: IntArray | None

    def to_bytes(self) -> bytes:
        """To be sealed."""
        return pack([self.batch, [list(one) for one in self.closed], *self[2:]])

    @classmethod
    def from_bytes(cls, content: bytes) -> Change:
        """What :meth:`to_bytes` gave."""
        batch, closed, *rest = unpack(content)
        return cls(batch, [Closed(*one) for one in closed], *rest)


def repeat(
    layout: Layout, page: Page, change: Change, found: list[Found], tables: dict[int, Table]
) -> None:
    """Do to a page again what a commit did; ``tables`` by their ticks take its releases."""
    for closed in change.closed:
        if page.t < layout.lag:
            page.t = layout.lag
            begin_main(layout, page, found, closed.noisy, tables.get(page.t))
            continue
        table = tables.get(page.t + 1)
        close_tick(layout, page, closed.exact_leaves, [], table, found, closed.noisy)
        for exact_partial in page.exact_partial:
            exact_partial[:] = 0
    if change.exact_partial is not None:
        page.exact_partial = change.exact_partial


def page_at_beginning(layout: Layout, first: int, group: IntArray, found: list[Found]) -> Page:
    """A page that was never written."""
    page = new_page(layout, first, group)
    if layout.declared_range is not None:
        begin_main(layout, page, found, ())
    return page


class Rows(Protocol):
    """The rows of a store."""

    def has(self, address: Address) -> bool:
        """Whether there is such a row."""

    def read_row(self, address: Address) -> bytes:
        """Its content."""

    def read_learning(self, index: int) -> list[bytes]:
        """The parts of a learning buffer, in order."""

    def numbers_of_changes(self, page: int) -> list[int]:
        """The numbers of what happened to a page since it was written, in order."""


class KeptFleet:
    """A fleet, and what of it is on disk.

    ``undelivered`` batches are not in the outbox: their releases are made again.
    """

    def __init__(self, layout: Layout, tree: Tree, rows: Rows, undelivered: range) -> None:
        common = decode_common(rows.read_row(COMMON), rows.read_row(LEARNED))
        for raw_part in rows.read_learning(POOL):
            half = len(raw_part) // 2
            key_of, raw_values = np.frombuffer(raw_part[:half], np.int64), raw_part[half:]
            common.raw_buffer.append((key_of, np.frombuffer(raw_values)))
        self.fleet, self._segments_learned = Fleet(layout, tree, common, []), len(common.found)
        #: Parts of the warm-up's buffer that are on disk.
        self._buffered = len(common.raw_buffer)
        #: Bytes of what happened to each page since it was written, by its number.
        self._changes: dict[int, dict[int, int]] = {}
        #: Releases that were not delivered and are not in the outbox, by batch.
        self._waiting: dict[int, Releases] = {}
        #: What a commit is about to write; set while it has not been written.
        self._writing: Callable[[], None] | None = None
        tables: dict[int, Table] = {}
        batch_of: dict[int, int] = {}
        for number, (first, count, *_) in enumerate(spans(tree)):
            keys = slice(first, first + count)
            page = self._read_page(rows, number, keys)
            for name in rows.numbers_of_changes(number):
                content = rows.read_row(("change", number, name))
                change = Change.from_bytes(content)
                self._changes.setdefault(number, {})[name] = len(content)
                begin = max(page.t + 1, layout.lag)
                for t in range(begin, begin + len(change.closed)):
                    batch_of[t] = change.batch
                    if t == common.t or change.batch in undelivered:
                        tables.setdefault(t, Table(layout, tree, t))
                repeat(layout, page, change, common.found, tables)
                if change.sequence is not None:
                    self.fleet.sequence[keys] = change.sequence
            self.fleet.pages.append(page)
        for batch in undelivered:
            again = [table.releases() for t, table in tables.items() if batch_of[t] == batch]
            self._waiting[batch] = Releases.join([one for one in again if len(one)])

    def _read_page(self, rows: Rows, number: int, keys: slice) -> Page:
        fleet, found = self.fleet, self.fleet.common.found
        if not rows.has(("page", number)):
            return page_at_beginning(fleet.layout, keys.start, fleet.group_of[keys], found)
        content = rows.read_row(("page", number))
        page, fleet.sequence[keys] = decode_page(fleet.layout, content, found)
        page.group = fleet.group_of[keys]  # as it is now: it had the ranges of its former group
        return page

    def amend(self, layout: Layout, tree: Tree, name: str) -> None:
        """Take over what was amended."""
        self.fleet = self.fleet.amended(layout, tree, name)

    # --- delivery --------------------------------------------------------------------------------

    def undelivered(self, acknowledged: int) -> dict[int, Releases]:
        """Batches after this one that are not in the outbox."""
        return {batch: one for batch, one in self._waiting.items() if batch > acknowledged}

    def acknowledge(self, batch: int) -> None:
        """Everything up to this batch has been delivered."""
        self._waiting = self.undelivered(batch)

    # --- committing ------------------------------------------------------------------------------

    def changed(
        self, number: int, batch: int, releases: Releases | None, *, whole: bool = False
    ) -> tuple[Iterator[tuple[Address, bytes]], list[Address]]:
        """Rows to write since the last commit, and rows that are not needed any more.

        What happened is written page by page, until that takes as much as the pages themselves;
        then they are, or when ``whole`` asks for it.
        """
        fleet, parts, buffered = self.fleet, self.fleet.common.raw_buffer, self._buffered
        if releases is not None:
            self._waiting[batch] = releases
        changes = {
            page: self._change_of(page, batch).to_bytes()
            for page in sorted(fleet.touched | fleet.closed.keys())
        }
        written = sum(sum(sizes.values()) for sizes in self._changes.values())
        written += sum(map(len, changes.values()))
        # Noise that later leaves need does not follow from what was released.
        remembers = any(map(len, fleet.pages[0].processes))
        whole = whole or remembers or written > max(_FEWEST_CHANGES, fleet.bytes_of_pages)
        gone: list[Address] = []
        if not parts:
            gone += [("learning", POOL, part) for part in range(buffered)]
        if whole:
            gone += [("change", page, one) for page, own in self._changes.items() for one in own]

        def written_over() -> None:
            self._buffered, self._segments_learned = len(parts), len(fleet.common.found)
            if whole:
                self._changes, self._waiting = {}, {}
                return
            for page, content in changes.items():
                self._changes.setdefault(page, {})[number] = len(content)

        self._writing = written_over
        learned = (
            (("learning", POOL, part), b"".join(column.tobytes() for column in parts[part]))
            for part in range(buffered, len(parts))
        )
        common = [(COMMON, encode_common(fleet.common))]
        if len(fleet.common.found) > self._segments_learned:
            common.append((LEARNED, encode_learned(fleet.common)))
        if whole:
            return chain(common, learned, self._all_rows()), gone
        return chain(
            common, learned, ((("change", page, number), one) for page, one in changes.items())
        ), gone

    def _change_of(self, page: int, batch: int) -> Change:
        fleet, own = self.fleet, self.fleet.pages[page]
        sequence = fleet.sequence[own.first : own.first + len(own)]
        return Change(
            batch,
            fleet.closed.get(page, []),
            own.exact_partial if page in fleet.touched else None,
            sequence if (sequence >= 0).any() else None,
        )

    def _all_rows(self) -> Iterator[tuple[Address, bytes]]:
        """All pages as they are, and what is still to be delivered."""
        for number, page in enumerate(self.fleet.pages):
            sequence = self.fleet.sequence[page.first : page.first + len(page)]
            yield ("page", number), encode_page(page, sequence)
        for batch, waiting in self._waiting.items():
            yield ("outbox", batch), waiting.to_bytes()

    def take_over(self) -> None:
        """All of it was written."""
        assert self._writing is not None
        self._writing()
        self._writing = None
        self.fleet.forget_changes()


class KeptCrowd:
    """Keys that are stepped together by count, and what of them is on disk.

    Their noise is kept key by key, whenever some is drawn; the rest in pages, now and then, with
    the blocks that came since.
    """

    def __init__(
        self,
        layout: Layout,
        keys: tuple[Key, ...],
        rows: Rows,
        noise_of: Iterable[tuple[Secret, bytes]],
    ) -> None:
        read = list(noise_of)
        self.crowd = Crowd(layout, keys, (secret for secret, _ in read))
        for row, (secret, content) in enumerate(read):
            if content:
                self.crowd.set_noise(row, secret, *unpack(content))
        for number, page in enumerate(self._pages):
            if rows.has(("page", number)):
                kept = unpack(rows.read_row(("page", number)))
                for part, was in zip(self.crowd.arrays(page), kept, strict=True):
                    part[: len(was)] = was  # keys may have been added since
        #: Bytes of each block since the pages were written.
        self._blocks: dict[int, int] = {}
        for number in rows.numbers_of_changes(0):
            content = rows.read_row(("change", 0, number))
            key_of, exact_units, at, noisy, sequence = unpack(content)
            self.crowd.add(layout, Block(key_of, exact_units, at, noisy))
            self.crowd.note_sequence(dict(sequence))
            self._blocks[number] = len(content)
        self.crowd.forget_changes()  # all of it is on disk
        self._written: Callable[[], None] | None = None

    @property
    def _pages(self) -> Iterator[slice]:
        for first in range(0, len(self.crowd.keys), PAGE):
            yield slice(first, first + PAGE)

    def changed(
        self, number: int
    ) -> tuple[Iterator[tuple[Address, bytes]], list[Address], dict[int, tuple[Secret, bytes]]]:
        """Rows to write since the last commit, rows to delete, and noise that was drawn."""
        crowd, block, sequences = self.crowd, self.crowd.changed, self.crowd.numbered
        noise = {}
        for row in sorted(crowd.drew):
            secret, drawn = crowd.noise_of(row)
            noise[row] = secret, pack(drawn)
        content = b""
        if block is not None or sequences:
            none = np.empty((0, 0), np.int64)
            key_of = np.empty(0, np.int64)
            block = block or Block(key_of, none, 0, none)
            content = pack([*block, [list(one) for one in sequences.items()]])
        size = sum(self._blocks.values()) + len(content)
        whole = size > max(_FEWEST_CHANGES, sum(part.nbytes for part in crowd.arrays(slice(None))))

        def written_over() -> None:
            if whole:
                self._blocks = {}
            elif content:
                self._blocks[number] = len(content)
            crowd.forget_changes()

        self._written = written_over
        if whole:
            pages = enumerate(self._pages)
            rows = ((("page", at), pack(crowd.arrays(page))) for at, page in pages)
            return iter(rows), [("change", 0, one) for one in self._blocks], noise
        return iter([(("change", 0, number), content)] if content else []), [], noise

    def take_over(self) -> None:
        """All of it was written."""
        assert self._written is not None
        self._written()
        self._written = None
