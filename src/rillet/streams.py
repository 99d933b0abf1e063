"""Streams of a plan over a store: in memory or on disk, one key or many.

Everything runs through one pure function, :func:`rillet.step.step`.  :class:`Streams` finds the
stream of each observation, steps it and commits to the store; :class:`Stream` is the view of one
key, with a faster form for one observation at a time in memory.

**Privacy.** Keys are declared, never learned from data.  An observation of a source whose key was
not declared is dropped, and nothing public depends on how many there were.  Each key has a secret
of its own and each observation belongs to one key: what the plan promises holds for every
observation of every key at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from rillet.errors import NotReady, ParameterError, StateError
from rillet.gather.clock import Clock, as_times
from rillet.gather.gate import NO_PERSONS, Persons, as_ids
from rillet.gather.observations import as_float, as_observations
from rillet.layout import Layout, SharedThreshold
from rillet.levels import Tree
from rillet.noise import FloatArray, IntArray, Secret
from rillet.release import NUMBERS, Key, Release, Releases
from rillet.scalar import ScalarRun
from rillet.state.base import Absorbed, Kept, MemoryStore, Pool, Progress, Store
from rillet.state.uses import POOL, Guard
from rillet.statistic import Range, Totals
from rillet.step import (
    Part,
    StreamState,
    advance_parts,
    constant_integer,
    counted,
    filled,
    in_order,
    no_releases,
    step,
    step_parts,
    stream_ended,
)
from rillet.threshold import Outlook
from rillet.times import moment, now

if TYPE_CHECKING:
    from rillet.privacy import Charges

#: Where the length is not known, a shared range is chosen for streams of this length.
_ASSUMED_LENGTH: Final = 2**16
#: Scalar updates that are still being learned from are handed on in blocks of this many.
_PENDING: Final = 4096
_PROTECT: Final = "to protect persons, plan with unit=Person(most=…)"


class _Single:
    """What must not exist twice: two copies would put the same noise on different data."""

    def __copy__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be copied: the same noise on other data would reveal the difference; "
            "open another stream, or take a snapshot()"
        )

    def __deepcopy__(self, _: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


class Streams(_Single):
    """A running stream for each declared key.

    Calls from several threads wait for each other.

    **Privacy.** ``update`` and ``update_many`` touch raw data; what they return is public.

    Get one from :meth:`rillet.Plan.open_many`; ``rillet run --state`` keeps the same on disk.

    Examples
    --------
    >>> import rillet
    >>> plan = rillet.Plan(epsilon=1.0, upper=60.0, length=1000, keys=["north", "south"])
    >>> streams = plan.open_many()
    >>> streams.update(12.5, key="north").t
    1
    >>> len(streams.update_many([3.0, 4.0], key=["south", "north"]))
    2
    >>> streams.rollup().t
    3
    """

    def __init__(
        self, layout: Layout, tree: Tree, store: Store, guard: Guard | None = None
    ) -> None:
        self.keys, self._tree = tree.keys, tree
        self._store = store
        self._planned = layout
        #: Of a secret that others may have; None for a fresh one.
        self._guard = guard
        self._lock = threading.RLock() if guard is None else guard.lock
        #: Observations that wait to be compared with what the secret was used for.
        self._late: tuple[IntArray, FloatArray] | None = None
        #: One for each key at most: two would go their own ways with the same noise.
        self._views: dict[int, Stream] = {}

    # --- absorbing -------------------------------------------------------------------------------

    def update(
        self,
        value: float,
        *,
        key: Key | str | int = (),
        at: object = None,
        person: object = ...,
    ) -> Release | None:
        """Absorb one observation of a key; return its latest release if there is a new one.

        By the clock ``at`` is its time (now, if none is given) and nothing is returned.  ``person``
        is whose it is, exactly where the plan protects persons.
        """
        index = self._index(key)
        if self._clock("at", at) is not None or person is not ...:
            self.update_many([value], key=key, at=at, person=person)
            return None
        with self._settled():
            before = self._read(index).state.latest
            self.absorb(np.array([as_float(value)]), np.array([index]))
            latest = self._read(index).state.latest
        return None if latest is before else latest

    def update_many(
        self,
        values: ArrayLike | Iterable[object],
        *,
        key: Sequence[Key | str | int] | Key | str | int = (),
        at: object = None,
        person: object = ...,
    ) -> Releases:
        """Absorb many observations, in order; return all releases in their order.

        ``key`` is the key of all of them, or has one key for each.  A key that was not declared is
        an error, and nothing is absorbed.

        By the clock ``at`` is the time of all of them, or has one for each (aware datetimes, ISO
        8601 with a zone, seconds since 1970, or arrays of these); without it they come now.  What
        has no time, or one outside the plan's, is left out.  Nothing is returned then: only
        :meth:`advance` releases.

        Where the plan protects persons, ``person`` is whose they are: one id for all of them, or
        one for each.  An id is text, bytes or an integer, and ``7`` is the same person as ``"7"``.
        What has none (None, NaN, an empty text) is left out, and so is what the gate does not let
        in; nothing tells how much that was.  No id is kept.
        """
        raw_values = as_observations(values)
        person_of = self._persons(person, len(raw_values))
        if not isinstance(key, tuple | str | int):
            key_of = np.array([self._index(one) for one in key], np.int64)
            if len(key_of) != len(raw_values):
                raise ParameterError(
                    "key", f"one key per value, {len(raw_values):,} in all", len(key_of)
                )
        else:
            key_of = one_key(self._index(key), len(raw_values))
        clock = self._clock("at", at)
        if clock is None:
            return self.absorb(raw_values, key_of)
        given = time() if at is None else at
        raw_ticks = clock.tick_of(as_times(given, len(raw_values), clock.zone))
        with self._settled():
            closed = self._store.progress.ticks
            tick_of = clock.entering(raw_ticks, closed + 1, closed + 1 + clock.ticks_of_grace)
            return self.absorb_ticks(raw_values, key_of, tick_of, closed, person_of=person_of)

    def _persons(self, person: object, count: int) -> Persons:
        """Pseudonyms of the persons that were given, exactly where the plan protects persons."""
        gate = self._store.gate
        if gate is None:
            if person is not None and person is not ...:
                raise ParameterError(
                    "person", "none: the plan protects single observations", "one", _PROTECT
                )
            return NO_PERSONS
        if person is ...:
            raise ParameterError("person", "whose each observation is", None)
        return gate.pseudonyms(as_ids(person, count))

    def advance(self, *, until: object = None) -> Releases:
        """By the clock: close all ticks that have ended by this time (now, if none is given).

        Each of them is released, for every key, empty or not.  Call it when the time has come,
        whatever has arrived until then.
        """
        clock = self._clock("until", ...)
        assert clock is not None
        reached = now() if until is None else moment(until, clock.zone, "until")
        with self._settled():
            closed = min(clock.closed_by(reached), self._planned.length)
            nothing = np.empty(0, np.int64)
            ticks = max(closed, self._store.progress.ticks)
            return self.absorb_ticks(np.empty(0), nothing, nothing, ticks)

    def _clock(self, name: str, given: object) -> Clock | None:
        clock = self._planned.clock
        if clock is None and given is not None:
            found = "a plan by count" if given is ... else given
            raise ParameterError(name, 'a plan by the clock, as with every="1h"', found)
        return clock

    def absorb(
        self,
        raw_values: FloatArray,
        key_of: IntArray,
        *,
        sequence: IntArray | None = None,
        absorbed: Absorbed | None = None,
    ) -> Releases:
        """Absorb a block: for each value the index of its key, -1 where none was declared.

        ``sequence`` has a number for each value that grows within a key (-1: none): a number that
        is not above the last one was absorbed before, and is left out.  ``absorbed`` says which
        part of a source this was.  Releases come in the order of the observations that completed
        them, however the input was cut into blocks, and have the time of this call.

        Under a secret that was used before, observations are compared with those of then, by whole
        chunks (:mod:`rillet.state.uses`): what is released again may come up to a chunk late.

        **Privacy.** As :func:`rillet.step.step`, for each key; while a shared range is learned,
        nothing is released.

        Raises
        ------
        StreamEnded
            If a key would have more observations than the plan's length; nothing is absorbed.
        StateError
            If the secret was used for other data; nothing is absorbed, now or later.
        """
        guard = self._guard
        key_of = self._tree.live(key_of)
        with self._settled(), nullcontext() if guard is None else guard.locked():
            sequences: dict[int, int] = {}
            if len(key_of) and (key_of[0] if _is_one(key_of) else key_of.min()) < 0:
                declared = key_of >= 0
                key_of, raw_values = key_of[declared], raw_values[declared]
                sequence = None if sequence is None else sequence[declared]
            if sequence is not None:
                new, sequences = self._unseen(key_of, sequence)
                raw_values, key_of = raw_values[new], key_of[new]
            before, pool = self._store.progress, self._store.pool
            layout, learned = self.layout, before.range
            arrived = len(raw_values)
            late = []
            if self._late is not None:
                key_of = np.concatenate([self._late[0], key_of])
                raw_values = np.concatenate([self._late[1], raw_values])
            if pool is not None:
                self._check_lengths(layout, np.concatenate([*pool.key_of, key_of]))
                if guard is not None and guard.guards(POOL):
                    assert layout.shared is not None
                    room = layout.shared.observations - pool.observations
                    count = guard.compare(POOL, raw_values[:room])
                    if count < min(room, len(raw_values)):
                        late.append((key_of[count:], raw_values[count:]))
                        key_of, raw_values = key_of[:count], raw_values[:count]
                pool, key_of, raw_values = _fill(layout.shared, pool, key_of, raw_values)
                if pool is None:
                    assert layout.shared is not None and self._store.pool is not None
                    full = layout.shared.observations
                    secret = self._store.pool.secret
                    learned = _learn_shared(layout, layout.shared, raw_values[:full], secret)
                    layout = layout.with_range(learned)
            if guard is not None:
                cleared = guard.compare_rows(rows_of_keys(key_of), raw_values)
                if cleared is not None:
                    late.append((key_of[~cleared], raw_values[~cleared]))
                    key_of, raw_values = key_of[cleared], raw_values[cleared]
            kept, releases = self._step_each(layout, key_of, raw_values, now())
            self._note_sequences(layout, kept, sequences)
            progress = Progress(
                before.batch + (len(releases) > 0),
                before.observations + arrived,
                learned,
                absorbed,
            )
            if guard is not None:
                guard.note()
            self._store.commit(progress, kept, pool, releases)
            self._late = late[0] if late else None
            return releases

    def absorb_ticks(
        self,
        raw_values: FloatArray,
        key_of: IntArray,
        tick_of: IntArray,
        until: int,
        *,
        person_of: Persons = NO_PERSONS,
        sequence: IntArray | None = None,
        absorbed: Absorbed | None = None,
    ) -> Releases:
        """By the clock: absorb values of ticks, and close all ticks up to ``until``.

        ``tick_of`` is the tick that each value enters, counted from 1
        (:meth:`rillet.gather.clock.Clock.entering`); what lies outside the plan's ticks, or in a
        closed one, is left out.  What enters a tick that is not open yet is held.  ``person_of``
        has the pseudonym of each value's person, where the plan protects persons.  The rest is as
        :meth:`absorb`.

        **Privacy.** As :func:`rillet.step.advance`, for each key.  Of a person the gate lets in
        what it may; what is left out for another reason does not count against it.
        """
        layout, key_of = self.layout, self._tree.live(key_of)
        assert layout.clock is not None
        assert self._guard is None  # a secret of one's own was refused when the stream was opened
        with self._settled():
            before = self._store.progress
            sequences: dict[int, int] = {}
            wanted = (key_of >= 0) & (tick_of > before.ticks) & (tick_of <= layout.length)
            if sequence is not None:
                declared = np.flatnonzero(key_of >= 0)
                new, sequences = self._unseen(key_of[declared], sequence[declared])
                seen = np.ones(len(wanted), bool)
                seen[declared[new]] = False
                wanted &= ~seen
            gate, entries = self._store.gate, None
            if gate is not None:
                assert len(person_of) == len(raw_values)
                if layout.setting.missing:
                    wanted &= ~np.isnan(raw_values)
                rows = np.flatnonzero(wanted)
                wanted[rows], entries = gate.decide(person_of[rows], tick_of[rows])
            if not wanted.all():
                raw_values, key_of, tick_of = raw_values[wanted], key_of[wanted], tick_of[wanted]
            fleet = self._store.fleet
            kept: dict[int, Kept] = {}
            if fleet is not None:
                releases = fleet.advance(key_of, raw_values, tick_of, until)
            else:
                kept, releases = self._advance_each(layout, key_of, tick_of, raw_values, until)
            self._note_sequences(layout, kept, sequences)
            batch = before.batch + (len(releases) > 0)
            source = before.absorbed if absorbed is None else absorbed
            progress = Progress(batch, 0, None, source, until)
            self._store.commit(progress, kept, None, releases, entries)
            return releases

    def _advance_each(
        self,
        layout: Layout,
        key_of: IntArray,
        tick_of: IntArray,
        raw_values: FloatArray,
        until: int,
    ) -> tuple[dict[int, Kept], Releases]:
        """Advance each key that occurs, and all of them where ticks are closed."""
        rows_of = dict(rows_of_keys(key_of))
        closes = until > self._store.progress.ticks
        kept: dict[int, Kept] = {}
        parts: list[Part] = []
        for index in self._tree.indices.values() if closes else rows_of:
            rows = rows_of.get(index, slice(0))
            # A key that was added later counts its ticks from there.
            before_it = int(self._tree.added_after[index])
            ticks = tick_of[rows] - before_it
            order = np.argsort(ticks, kind="stable")
            before = self._store.read(layout, index)
            after, own = advance_parts(
                layout,
                self.keys[index],
                before.state,
                filled(layout, raw_values[rows][order]),
                ticks[order],
                until - before_it,
            )
            kept[index] = Kept(after, before.sequence)
            parts += [part._replace(t=part.t + before_it) for part in own] if before_it else own
        releases = in_order(layout, parts, [part.t for part in parts])
        return self._with_latest(kept, releases), releases

    def _step_each(
        self, layout: Layout, key_of: IntArray, raw_values: FloatArray, at: int
    ) -> tuple[dict[int, Kept], Releases]:
        """Step each key that occurs; raises before any state has changed."""
        if layout.clock is not None:
            raise ParameterError("every", "a number of observations: this run counts", "a clock")
        crowd = self._store.crowd
        if crowd is not None:
            return {}, crowd.absorb(layout, key_of, raw_values, at)
        rows_of = dict(rows_of_keys(key_of))
        kept: dict[int, Kept] = {}
        parts: list[Part] = []
        arrivals: list[IntArray] = []
        for index, rows in rows_of.items():
            before, key = self._store.read(layout, index), self.keys[index]
            raw_own = filled(layout, raw_values[rows])
            if len(rows_of) == 1:
                state, releases = step(layout, key, before.state, raw_own, at)
                return {index: Kept(state, before.sequence)}, releases
            state, own = step_parts(layout, key, before.state, raw_own, at)
            kept[index] = Kept(state, before.sequence)
            parts += own
            # What was backfilled comes with the observation that ended the warm-up.
            arrivals += [rows[np.maximum(part.t, layout.lag) - before.state.t - 1] for part in own]
        releases = in_order(layout, parts, arrivals, at)
        return self._with_latest(kept, releases), releases

    def _with_latest(self, kept: dict[int, Kept], releases: Releases) -> dict[int, Kept]:
        """The same states with the last release of each."""
        latest = releases.latest()
        for index, own in kept.items():
            if (release := latest.get(self.keys[index])) is not None:
                kept[index] = Kept(own.state.but(latest=release), own.sequence)
        return kept

    def _check_lengths(self, layout: Layout, key_of: IntArray) -> None:
        """Refuse more observations in the pool than a key may have: later would be too late."""
        counts = np.bincount(key_of, minlength=1)
        if counts.max() > layout.length:
            index = int(counts.argmax())
            raise stream_ended(layout, int(counts[index]), self.keys[index])

    def _unseen(self, key_of: IntArray, sequence: IntArray) -> tuple[IntArray, dict[int, int]]:
        """Rows that were not absorbed before, and the last number of each key after them."""
        keep = np.ones(len(key_of), bool)
        last: dict[int, int] = {}
        for index, rows in rows_of_keys(key_of):
            numbers, before = sequence[rows], self._sequence(index)
            highest = np.maximum.accumulate(np.concatenate([[before], numbers]))
            keep[rows] = (numbers < 0) | (numbers > highest[:-1])
            last[index] = int(highest[-1])
        return np.flatnonzero(keep), last

    def _sequence(self, index: int) -> int:
        together = self._store.fleet or self._store.crowd
        return self._read(index).sequence if together is None else int(together.sequence[index])

    def _note_sequences(
        self, layout: Layout, kept: dict[int, Kept], sequences: Mapping[int, int]
    ) -> None:
        """The last number of each key that was absorbed."""
        together = self._store.fleet or self._store.crowd
        if together is not None:
            together.note_sequence(sequences)
            return
        for index, number in sequences.items():
            known = kept.get(index) or self._store.read(layout, index)
            kept[index] = replace(known, sequence=number)

    # --- reading ---------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The layout in force: of a plan whose keys share a range, with that range once known."""
        learned = self._store.progress.range
        return self._planned if learned is None else self._planned.with_range(learned)

    @property
    def store(self) -> Store:
        """Where the states live."""
        return self._store

    @property
    def observations(self) -> int:
        """Observations absorbed, of declared keys."""
        with self._settled():
            return self._store.progress.observations

    @property
    def absorbed(self) -> int:
        """How far the streams are, as far as that is public: in observations, or in ticks."""
        with self._settled():
            progress = self._store.progress
            return progress.observations if self._planned.clock is None else progress.ticks

    @property
    def waiting(self) -> int:
        """How many of them wait to be compared with what the secret was used for before."""
        return 0 if self._late is None else len(self._late[0])

    def latest(self, key: Key | str | int = ()) -> Release:
        """The latest release of a key or a total again, the very same numbers."""
        latest = self._latest(self._index(key, total=True))
        if latest is None:
            first = self._planned.first_release
            what = "observations" if self._planned.clock is None else "ticks"
            raise NotReady(
                f"no release yet: the first comes after {first:,} {what}, and {self.t(key):,} "
                "have been absorbed"
            )
        return latest

    def _latest(self, index: int) -> Release | None:
        with self._settled():
            fleet = self._store.fleet
            return self._read(index).state.latest if fleet is None else fleet.latest(index)

    def rollup(self) -> Release:
        """One release for all keys that have one: the sum of their latest ones.

        **Privacy.** Post-processing.  The noise of different keys is independent: variances add.
        Where the plan has levels it is the total of all keys, which is that sum and knows more.
        By the clock, means of very many keys have a small bias in common, which adds up: see
        docs/many-keys.md.
        """
        if self._tree.totals:
            return self.latest(())
        with self._settled():
            each = [self._latest(index) for index in self._tree.indices.values()]
        return roll_up(self._planned, [latest for latest in each if latest is not None])

    def t(self, key: Key | str | int = ()) -> int:
        """Number of observations of a key that its stream has absorbed; by the clock, of ticks."""
        index = self._index(key, total=True)
        with self._settled():
            if self._store.fleet is not None:
                return self._store.progress.ticks
            return self._read(index).state.t + int(self._tree.added_after[index])

    def times(self, indices: IntArray) -> IntArray:
        """:meth:`t` of several keys, by their indices."""
        with self._settled():
            if self._store.fleet is not None:
                return np.full(len(indices), self._store.progress.ticks)
            if self._store.crowd is not None:
                return self._store.crowd.t[indices]
            own = [self._read(index).state.t for index in indices.tolist()]
            return np.array(own, np.int64) + self._tree.added_after[indices]

    def charges(self, key: Key | str | int = ()) -> Charges:
        """What each observation of a key has been charged so far."""
        return self._planned.charges().after(self.t(key))

    def stream(self, key: Key | str | int = ()) -> Stream:
        """The view of one key; always the same object."""
        index = self._index(key)
        with self._lock:
            return self._views.setdefault(index, Stream(self, index))

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Streams: {len(self.keys):,} keys, {self._planned.guarantee}>"

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Within this the store has what single updates of views absorbed, and nobody adds any."""
        with self._lock:
            for view in self._views.values():
                view._settle()
            yield

    def _read(self, index: int) -> Kept:
        return self._store.read(self.layout, index)

    def _index(self, key: Key | str | int, *, total: bool = False) -> int:
        own = key if isinstance(key, tuple) else (key,)
        try:
            index = self._tree.indices[own]
            if index < len(self.keys) or total:
                return index
            raise KeyError
        except (KeyError, TypeError):
            raise self._undeclared(key, own) from None

    def _undeclared(self, key: object, own: tuple[object, ...]) -> ParameterError:
        """The error for a key that somebody typed."""

        def shown(declared: Key) -> str:
            return repr(declared[0] if len(declared) == 1 else declared)

        texts = tuple(map(str, own))
        same = next((known for known in self.keys if tuple(map(str, known)) == texts), None)
        hint = None
        if own in self.keys:
            hint = "it was retired"
        elif same is not None:
            hint = f"it was declared as {shown(same)}"
        elif len(own) > 1 == len(self.keys[0]):
            hint = "a tuple is one key of several parts; for a key of each value pass a list"
        live = self._tree.roster.live
        known = ", ".join(map(shown, live[:5])) + (", …" if len(live) > 5 else "")
        return ParameterError("key", f"one of the declared keys ({known})", key, hint)


class Stream(_Single):
    """A running stream: feed it observations, take releases.

    Calls from several threads wait for each other.

    **Privacy.** ``update`` and ``update_many`` touch raw data; what they return is public.  The
    object holds unreleased data and a secret; its ``repr`` shows public numbers only.

    Get one from :meth:`rillet.Plan.open`, :meth:`rillet.Plan.resume` or :meth:`Streams.stream`.
    """

    def __init__(self, streams: Streams, index: int = 0) -> None:
        self._streams, self._index = streams, index
        self._layout, self._lock = streams.layout, streams._lock
        # What is on disk is committed at once; in memory single updates may wait.
        store = streams._store
        self._quick = isinstance(store, MemoryStore) and store.crowd is None
        self._quick = self._quick and streams._planned.shared is None
        self._raw_pending: list[float] = []
        self._scalar: ScalarRun | None = None

    def update(self, value: float, *, at: object = None, person: object = ...) -> Release | None:
        """Absorb one observation; return the release that it completes, if any.

        Under a secret that was used before, it is the latest of those that have been compared.  By
        the clock ``at`` is its time (now, if none is given) and nothing is returned; ``person`` is
        as in :meth:`Streams.update`.
        """
        self._lock.acquire()  # with would take twice as long
        try:
            scalar = self._scalar
            if scalar is None or not scalar.room or at is not None or person is not ...:
                if self._layout.clock is not None or at is not None or person is not ...:
                    return self._streams.update(value, key=self.key, at=at, person=person)
                if not self._quick or self._streams.waiting:
                    return self._streams.update(value, key=self.key)
                scalar = self._next_scalar()
                if scalar is None:
                    return self._update_block(value)
            raw_value = value if type(value) is float else as_float(value)
            guard = self._streams._guard
            if guard is not None and not guard.take(self._index, raw_value):
                self._settle()
                return self._streams.update(raw_value, key=self.key)
            return scalar.absorb(raw_value, time())
        finally:
            self._lock.release()

    def update_many(
        self, values: ArrayLike | Iterable[object], *, at: object = None, person: object = ...
    ) -> Releases:
        """Absorb many observations, in order; return the releases that they complete.

        They are those of this key, as from the loop over :meth:`update`.  Only where keys share a
        range that is learned, the block that completes it completes releases of all keys that had
        to wait, and returns them all.  ``at`` and ``person`` are as in
        :meth:`Streams.update_many`.
        """
        if self._layout.clock is not None or at is not None or person is not ...:
            return self._streams.update_many(values, key=self.key, at=at, person=person)
        raw_block = as_observations(values)
        with self._lock:
            self._settle()
            return self._streams.absorb(raw_block, one_key(self._index, len(raw_block)))

    def advance(self, *, until: object = None) -> Releases:
        """As :meth:`Streams.advance`; other keys advance as well."""
        return self._streams.advance(until=until)

    def latest(self) -> Release:
        """The latest release again, the very same numbers."""
        with self._lock:
            if self._scalar is not None and self._scalar.latest is not None:
                return self._scalar.latest
            self._settle()
            return self._streams.latest(self.key)

    @property
    def t(self) -> int:
        """Number of observations absorbed."""
        if self._layout.fleet:
            return self._streams.t(self.key)
        waiting = len(self._raw_pending) if self._scalar is None else self._scalar.absorbed
        return self._kept().state.t + waiting

    @property
    def key(self) -> Key:
        """The stream's declared key."""
        return self._streams.keys[self._index]

    @property
    def secret(self) -> Secret:
        """The stream's own secret as it is now: :meth:`rillet.Plan.resume` takes it."""
        if self._layout.fleet:
            raise StateError("secret: keys that tick together have one secret, which is not shown")
        return self._state().secret

    @property
    def charges(self) -> Charges:
        """What each observation has been charged so far."""
        return self._layout.charges().after(self.t)

    @property
    def backfill(self) -> Releases | None:
        """Releases for the first ``lag`` observations, when the plan has ``backfill=True``."""
        return None if self._layout.fleet else self._kept().state.backfill

    def snapshot(self) -> bytes:
        """The whole state, sealed under the stream's secret, for :meth:`rillet.Plan.resume`.

        From now on what the stream absorbs is remembered, so that another one that goes on from
        the snapshot in this process cannot go another way.
        """
        from rillet.state.snapshot import seal_state

        if not isinstance(self._streams._store, MemoryStore):
            raise StateError(
                "snapshot: this stream is kept in a folder, which is its snapshot; to copy it, use "
                "rillet state DIR --backup"
            )
        if self._layout.gate is not None:
            # It would be without the gate, which is of all keys: persons could come in again.
            raise StateError(
                "snapshot: a stream that protects persons is kept in a folder; use open_folder(), "
                "or rillet run --state DIR"
            )
        if self._layout.fleet:
            raise StateError(
                "snapshot: keys that tick together are kept in a folder; use open_folder(), or "
                "rillet run --state DIR"
            )
        with self._lock:
            state = self._state()
            return seal_state(self._streams.layout, self.key, state, self._guarded(state))

    def _guarded(self, state: StreamState) -> bytes:
        """What the guard needs to go on with this stream; nothing for a secret of tests."""
        streams = self._streams
        if state.secret.for_tests_only:
            return b""
        if streams.layout.clock is not None:
            raise StateError(
                "snapshot: by the clock a stream is kept in a folder; use open_folder(), or "
                "rillet run --state DIR"
            )
        if streams.waiting:
            raise StateError(
                f"snapshot: {streams.waiting:,} observations wait to be compared with what the "
                "secret was used for; absorb more of them first"
            )
        if streams._guard is None:
            streams._guard = Guard.fresh(streams.keys)
        if not streams._guard.guards(self._index):
            streams._guard.start(self._index, state.t)
        return streams._guard.to_bytes(self._index)

    def __repr__(self) -> str:
        name = f" {self.key}" if self.key else ""
        return f"<Stream{name}: t={self.t:,}, {self._layout.guarantee}>"

    def _next_scalar(self) -> ScalarRun | None:
        """A run of single updates; None where only a block will do."""
        state = self._kept().state
        if self._scalar is None and state.t + len(self._raw_pending) < self._layout.lag:
            return None
        self._settle()
        self._scalar = ScalarRun.begin(self._layout, self.key, self._kept().state)
        return self._scalar

    def _update_block(self, value: float) -> Release | None:
        """An observation that no run takes: it waits while the range is being learned."""
        pending, state = self._raw_pending, self._kept().state
        pending.append(as_float(value))
        if len(pending) < _PENDING and state.t + len(pending) < self._layout.lag:
            return None
        try:
            self._settle()
        except BaseException:
            pending.clear()  # the stream is full: this one was not absorbed
            raise
        latest = self._kept().state.latest
        return None if latest is state.latest else latest

    def _kept(self) -> Kept:
        return self._streams._read(self._index)

    def _state(self) -> StreamState:
        with self._lock:
            self._settle()
            return self._kept().state

    def _settle(self) -> None:
        """Bring the store up to date with what single updates absorbed."""
        if self._raw_pending:
            raw_pending, self._raw_pending = self._raw_pending, []
            raw_block = np.array(raw_pending)
            try:
                self._streams.absorb(raw_block, one_key(self._index, len(raw_block)))
            except BaseException:
                self._raw_pending = raw_pending
                raise
        if self._scalar is not None:
            store, scalar = self._streams._store, self._scalar
            self._scalar = None
            kept = replace(self._kept(), state=scalar.finish())
            progress = replace(
                store.progress, observations=store.progress.observations + scalar.absorbed
            )
            store.commit(progress, {self._index: kept}, store.pool, no_releases(self._layout))


def one_key(index: int, count: int) -> IntArray:
    """The same key for so many observations: one number in memory, however many they are."""
    return constant_integer(index, count)


def _is_one(key_of: IntArray) -> bool:
    """Whether this is :func:`one_key`, without looking at all of it."""
    return key_of.strides == (0,)


def rows_of_keys(key_of: IntArray) -> Iterator[tuple[int, Any]]:
    """The rows of each key that occurs, in order."""
    if not len(key_of):
        return
    if _is_one(key_of) or (key_of == key_of[0]).all():
        yield int(key_of[0]), slice(None)
        return
    order = np.argsort(key_of, kind="stable")
    sorted_keys = key_of[order]
    starts = np.flatnonzero(np.diff(sorted_keys, prepend=-1))
    rows_of_each = np.split(order, starts[1:])
    yield from zip(sorted_keys[starts].tolist(), rows_of_each, strict=True)


# --- a range that keys share -----------------------------------------------------------------


def _fill(
    shared: SharedThreshold | None, pool: Pool, key_of: IntArray, raw_values: FloatArray
) -> tuple[Pool | None, IntArray, FloatArray]:
    """Put observations into the pool; once it is full, all of it and the rest come back."""
    assert shared is not None
    room = shared.observations - pool.observations
    pool = replace(
        pool,
        key_of=(*pool.key_of, key_of[:room].copy()),
        raw_values=(*pool.raw_values, raw_values[:room].copy()),
    )
    if pool.observations < shared.observations:
        return pool, key_of[:0], raw_values[:0]
    return (
        None,
        np.concatenate([*pool.key_of, key_of[room:]]),
        np.concatenate([*pool.raw_values, raw_values[room:]]),
    )


def _learn_shared(
    layout: Layout, shared: SharedThreshold, raw_values: FloatArray, secret: Secret
) -> Range:
    """Release the range that all keys will share.

    **Privacy.** Costs each of the values ``shared.cost``.
    """
    assert layout.main is not None
    threshold, bounds = shared.threshold, shared.bounds
    look = threshold.measure(
        counted(layout, filled(layout, raw_values)),
        bounds,
        shared.budget,
        layout.guarantee.delta,
        secret,
        layout.setting,
    )
    look = replace(look, observations=shared.observations)  # public, whatever is missing
    length = layout.length if layout.length_is_known else _ASSUMED_LENGTH
    leaf = max(1, min(length // layout.every, layout.main.leaves) - 1)
    outlook = Outlook(
        length=length,
        after=0,
        until=length,
        noise_per_unit=float(layout.main.unit_variance(leaf)[0]) ** 0.5,
    )
    return threshold.judge(bounds, (look,), (), outlook).range


def roll_up(layout: Layout, latest: Sequence[Release]) -> Release:
    """One release for several keys together: the sum of their latest ones.

    **Privacy.** Post-processing.
    """
    if not latest:
        raise NotReady("no release yet: none of the keys has one")
    first = latest[0]
    if any(np.isnan(release.sum) for release in latest):
        raise ParameterError("statistic", "one with a sum, which adds up over keys", first.name)
    clipping = Range(
        min(release.clip_lower for release in latest),
        max(release.clip_upper for release in latest),
    )
    t = max(release.t for release in latest)
    row = {
        **dict.fromkeys(NUMBERS, float("nan")),
        "name": first.name,
        **_added_up(layout, latest, clipping),
        "clip_lower": clipping.lower,
        "clip_upper": clipping.upper,
        **_clipping_added_up(layout, latest),
        **layout.common,
        "post_processing": (*first.post_processing, f"added up over {len(latest):,} keys"),
    }
    if layout.clock is None:
        t = sum(release.t for release in latest)
    return Release((), t, max(release.at_microseconds for release in latest), [row])


def _clipping_added_up(layout: Layout, latest: Sequence[Release]) -> dict[str, float]:
    """How far clipping may be off in a total: keys may have one tail, so that it adds up."""
    weights = [1.0 if layout.statistic.name == "sum" else release.count for release in latest]
    whole = 1.0 if layout.statistic.name == "sum" else sum(weights)
    return {
        name: sum(weight * getattr(one, name) for weight, one in zip(weights, latest, strict=True))
        / whole
        for name in ("clipping_below", "clipping_above")
    }


def _added_up(layout: Layout, latest: Sequence[Release], clipping: Range) -> dict[str, float]:
    """The numbers of a total: readings add up, and so do the variances of independent noise."""
    sums = sum(release.sum for release in latest), sum(release.count for release in latest)
    covariances = np.zeros((2, 2))
    for release in latest:
        covariances[0, 0] += release.sum_noise_std**2
        if layout.leaf.count_reading is None or release.count == release.t:
            continue
        # Var(S − M·N) is that of the mean's noise times the count squared.
        counted, mean = release.count_noise_std**2, release.mean
        between = counted * clipping.middle
        if abs(mean) > 0:
            of_mean = (release.mean_noise_std * release.count) ** 2
            between = (release.sum_noise_std**2 + mean**2 * counted - of_mean) / (2 * mean)
        covariances += [[0.0, between], [between, counted]]
    readings = 1 if layout.leaf.count_reading is None else 2
    totals = Totals(
        sums[1], sums[:readings], lambda one, other: float(covariances[one, other]), clipping
    )
    return {name: float(number()) for name, number in layout.statistic.numbers(totals).items()}
