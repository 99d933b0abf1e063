"""The gate: a bounded number of each person's observations enters, far enough apart, over all keys.

For each person in a block of time it knows the tick of the last observation that entered, and how
many did.  Whether an observation enters is a function of its tick, of that person's observations in
the same block that came before it, and of public numbers: no other person is touched, and no other
block.  So nothing is ever forgotten to make room; an entry goes when the clock has closed its whole
block.

**Privacy.** Touches raw data, and is private itself: who is in it, how many there are, and what was
dropped.  It must be as durable as the streams, since a lost gate would let a person in again.  Ids
are kept as keyed digests only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.noise import IntArray

__all__ = [
    "ENTRY",
    "NO_PERSONS",
    "Entries",
    "Gate",
    "GateRule",
    "Persons",
    "Pseudonyms",
    "as_ids",
    "id_text",
]

#: A person for each observation: the two halves of a keyed digest; zeros where there is no id.
Persons: TypeAlias = NDArray[np.uint64]
#: What the gate knows of some persons, one row for each block that somebody is in.
Entries: TypeAlias = NDArray[np.void]
ENTRY: Final = np.dtype([("low", "<u8"), ("high", "<u8"), ("last", "<i8"), ("used", "<i4")])

NO_PERSONS: Final[Persons] = np.empty((0, 2), np.uint64)
_NOBODY: Final = bytes(16)
#: So often the next observation of all persons is decided at once; what is then left, of few
#: persons with many observations each, is decided one by one.
_ROUNDS: Final = 32
#: Odd, and without a pattern.
_BLOCK_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
#: The table grows beyond this share of its slots, and never has fewer slots than so many.
_FULLEST: Final = 2 / 3
_LEAST_ROOM: Final = 63


@dataclass(frozen=True)
class GateRule:
    """Which observations of a person enter, in ticks: public.

    At most ``most`` in a block, at least ``apart`` ticks from one another.  Blocks have ``within``
    ticks and are counted from tick 1; None: one block for ever.
    """

    most: int
    apart: int = 1
    within: int | None = None

    def block_of(self, ticks: IntArray) -> IntArray:
        """The block of each tick, counted from 0."""
        return np.zeros_like(ticks) if self.within is None else (ticks - 1) // self.within

    def over(self, closed: int) -> int:
        """The last tick of the last block that is over when so many ticks are closed."""
        return 0 if self.within is None else closed // self.within * self.within


#: Python writes longer integers in decimal only where it is told to: an error would tell of them.
_LONGEST: Final = 1024


# --- Ids -----------------------------------------------------------------------------------------


def id_text(raw_id: object) -> bytes:
    """The text by which a person is known: text itself, integers in decimal; empty if it is no id.

    White space around it does not count.  A float that is a whole number counts as that number,
    since a column with gaps often makes floats of integers.

    **Privacy.** Touches raw data; total.

    Examples
    --------
    >>> [id_text(raw_id) for raw_id in (7, " 7", b"7", 7.0, "07", None, float("nan"), True)]
    [b'7', b'7', b'7', b'7', b'07', b'', b'', b'']
    """
    if isinstance(raw_id, str):
        return raw_id.encode("utf-8", "surrogatepass").strip()
    if isinstance(raw_id, bytes):
        return raw_id.strip()
    if isinstance(raw_id, bool | np.bool_ | np.timedelta64):
        return b""
    if isinstance(raw_id, int | np.integer):
        number = int(raw_id)
        return b"%d" % number if number.bit_length() <= _LONGEST else b"%#x" % number
    if isinstance(raw_id, float | np.floating):
        return b"%d" % int(raw_id) if float(raw_id).is_integer() else b""
    return str(raw_id).encode() if isinstance(raw_id, UUID) else b""


def as_ids(person: object, count: int) -> Sequence[bytes]:
    """The text of each observation's person: one id for all of them, or one for each.

    What kind of container a program passes, its shape and its length are public.

    **Privacy.** Touches raw data; nothing raises because of an id.
    """
    plain = getattr(person, "to_pylist", None) or getattr(person, "tolist", None)
    alone = isinstance(person, str | bytes | np.generic) or plain is None
    if alone and (isinstance(person, str | bytes) or not isinstance(person, Iterable)):
        return [id_text(person)] * count
    refused = isinstance(person, Set | Mapping | bytearray | memoryview)
    if refused or len(getattr(person, "shape", (1,))) != 1:
        raise ParameterError("person", "one id, or a sequence with one for each value", "another")
    # To plain Python objects: what an array yields otherwise may be no id.
    raw_ids: Any = list(person) if plain is None else plain()  # type: ignore[call-overload]
    if len(raw_ids) != count:
        raise ParameterError("person", f"one id for each value, {count:,} in all", len(raw_ids))
    return list(map(id_text, raw_ids))


class Pseudonyms:
    """Keyed 128-bit digests (BLAKE2b) that stand for persons.

    **Privacy.** Without the key a digest tells nothing of an id, and none can be computed; with it
    an id can be tried, but not read.  Two of n persons have the same digest with a probability
    below n²/2^129, 10^-27 for a million: they would share one quota.
    """

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=16, person=b"rillet gate")

    def __call__(self, raw_ids: Sequence[bytes]) -> Persons:
        """The digest of each id; zeros for an empty one.  No id is kept beyond this call."""
        digests = dict.fromkeys(raw_ids, _NOBODY)
        for raw_id in digests:
            raw_text = raw_id.strip()
            if raw_text:
                hashed = self._keyed.copy()
                hashed.update(raw_text)
                digests[raw_id] = hashed.digest()
        raw_digests = b"".join(map(digests.__getitem__, raw_ids))
        return np.frombuffer(raw_digests, "<u8").reshape(-1, 2)

    def __repr__(self) -> str:
        return "Pseudonyms(<hidden>)"

    def __reduce__(self) -> str:
        raise TypeError("Pseudonyms are not pickled: they hold a key")


# --- The gate ------------------------------------------------------------------------------------


class Gate:
    """Who entered when, in flat arrays: an open-addressed table, 28 bytes for each of its slots.

    **Privacy.** Touches raw data; shows nothing of it.

    Examples
    --------
    >>> gate = Gate(GateRule(most=2, apart=24), key=bytes(32))
    >>> persons = gate.pseudonyms([b"ann", b"ann", b"bob", b"", b"ann", b"ann"])
    >>> enters, entries = gate.decide(persons, np.array([1, 24, 24, 24, 25, 90]))
    >>> enters.tolist()
    [True, False, True, False, True, False]
    >>> gate.take_over(entries)
    >>> gate.decide(persons[:1], np.array([90]))[0].tolist()
    [False]
    """

    def __init__(self, rule: GateRule, key: bytes) -> None:
        self.rule, self.key, self.pseudonyms = rule, key, Pseudonyms(key)
        self._over = 0
        self._empty(0)

    def __repr__(self) -> str:
        return f"Gate({self.rule})"

    def __len__(self) -> int:
        """How many entries it has.  **Privacy.** Private."""
        return self._persons

    def decide(self, person_of: Persons, tick_of: IntArray) -> tuple[NDArray[np.bool_], Entries]:
        """Whether each observation enters, in the order given; and what that makes of the gate.

        ``tick_of`` is the tick that each would enter, which is not closed.  Nothing changes before
        the entries are taken over.

        **Privacy.** Touches raw data.  For each person in a block a function of that person's
        observations in it.
        """
        enters = np.zeros(len(tick_of), bool)
        rows = np.flatnonzero(person_of.any(axis=1))
        if not len(rows):
            return enters, np.empty(0, ENTRY)
        # A person in another block has another entry: half of the digest is moved on.
        blocks = self.rule.block_of(tick_of[rows]).astype(np.uint64)
        low, high = person_of[rows, 0] + blocks * _BLOCK_STEP, person_of[rows, 1]
        order = np.argsort(low, kind="stable")
        mixed = (np.diff(low[order]) == 0) & (np.diff(high[order]) != 0)
        if mixed.any():  # two entries share half a digest
            order = np.lexsort((high, low))
        rows, low, high = rows[order], low[order], high[order]
        first = np.ones(len(rows), bool)
        first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        entries = np.zeros(int(np.count_nonzero(first)), ENTRY)
        entries["low"], entries["high"] = low[first], high[first]
        slots = self._slots(entries)
        entries["last"], entries["used"] = self._last[slots], self._used[slots]
        who = np.cumsum(first) - 1
        chosen = self._choose(entries, who, tick_of[rows])
        enters[rows[chosen]] = True
        return enters, entries[np.unique(who[chosen])]

    def _choose(self, entries: Entries, who: IntArray, ticks: IntArray) -> IntArray:
        """The rows that enter, of rows grouped by their entry; ``entries`` follow.

        What does not enter now never will: the last tick and the number of an entry only grow.
        """
        most, apart = self.rule.most, self.rule.apart
        last, used = entries["last"].copy(), entries["used"].copy()
        chosen: list[IntArray] = []
        left = np.arange(len(ticks))
        for _ in range(_ROUNDS):
            own = who[left]
            fits = (used[own] == 0) | ((used[own] < most) & (ticks[left] >= last[own] + apart))
            left, own = left[fits], own[fits]
            if not len(left):
                break
            first = np.ones(len(left), bool)
            first[1:] = own[1:] != own[:-1]
            rows, own = left[first], own[first]
            used[own] += 1
            last[own] = ticks[rows]
            chosen.append(rows)
            left = left[~first]
        for row in left.tolist():
            own = who[row]
            if used[own] == 0 or (used[own] < most and ticks[row] >= last[own] + apart):
                used[own] += 1
                last[own] = ticks[row]
                chosen.append(np.array([row]))
        entries["last"], entries["used"] = last, used
        return np.concatenate(chosen) if chosen else np.empty(0, np.int64)

    def take_over(self, entries: Entries | None, closed: int = 0) -> None:
        """Note what :meth:`decide` made of persons, and that ``closed`` ticks are closed now.

        Persons of blocks that are over are forgotten: whatever is known of them, they may enter the
        next one.
        """
        if entries is not None:
            self._note(entries)
        over = self.rule.over(closed)
        if over > self._over:
            self._over, kept = over, self.entries(over)
            self._empty(len(kept))
            self._put(kept)

    def _note(self, entries: Entries) -> None:
        persons = self._persons + len(entries)
        if persons > _FULLEST * len(self._used):
            kept = self.entries()
            self._empty(persons)
            self._put(kept)
        self._put(entries)

    def entries(self, over: int = 0) -> Entries:
        """All that it knows of persons who entered after a tick."""
        taken = (self._used > 0) & (self._last > over)
        entries = np.empty(int(np.count_nonzero(taken)), ENTRY)
        entries["low"], entries["high"] = self._low[taken], self._high[taken]
        entries["last"], entries["used"] = self._last[taken], self._used[taken]
        return entries

    # --- the table: a person is in the first slot from its digest on that is not another's -------

    def _empty(self, persons: int) -> None:
        """Begin with room for so many persons."""
        room = 1 << int(max(persons / _FULLEST, _LEAST_ROOM)).bit_length()
        self._low, self._high = np.zeros(room, np.uint64), np.zeros(room, np.uint64)
        self._last, self._used = np.zeros(room, np.int64), np.zeros(room, np.int32)
        self._persons = 0

    def _slots(self, entries: Entries) -> IntArray:
        """Where each person is, or the empty slot at which the search ended."""
        low, high = entries["low"].copy(), entries["high"].copy()
        beyond = len(self._used) - 1
        slots = (low & np.uint64(beyond)).astype(np.int64)
        left = np.arange(len(slots))
        while len(left):
            at = slots[left]
            others = (self._low[at] != low[left]) | (self._high[at] != high[left])
            left = left[others & (self._used[at] > 0)]
            slots[left] = (slots[left] + 1) & beyond
        return slots

    def _put(self, entries: Entries) -> None:
        """Write entries of different persons, for which there is room."""
        left = np.arange(len(entries))
        while len(left):
            slots = self._slots(entries[left])
            # Several new persons may have found the same empty slot: the last one gets it.
            taken = self._used[slots] == 0
            self._low[slots[taken]] = entries["low"][left[taken]]
            self._high[slots[taken]] = entries["high"][left[taken]]
            lost = (self._low[slots] != entries["low"][left]) | (
                self._high[slots] != entries["high"][left]
            )
            slots, rows = slots[~lost], left[~lost]
            self._persons += int(np.count_nonzero(self._used[slots] == 0))
            self._last[slots], self._used[slots] = entries["last"][rows], entries["used"][rows]
            left = left[lost]
