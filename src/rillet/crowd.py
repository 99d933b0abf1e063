"""Streams of many keys by count, whose range is known: arrays with a row for each key.

Keys are at observations of their own.  A block is absorbed in rounds, each with the next
observation of every key that has one left: the same arithmetic as :mod:`rillet.step`, key by key.
Each key has its own secret, and noise drawn up to its next ratchet step.

**Privacy.** Touches raw data; as :func:`rillet.step.step`, for each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rillet.fleet import Whole, rows_of_state
from rillet.gather.grid import Grid
from rillet.layout import Layout, Worth
from rillet.noise import FloatArray, IntArray, Secret
from rillet.release import Key, Release, Releases, renumbered
from rillet.statistic import Units
from rillet.step import (
    EXPLAINED,
    Ahead,
    Anchor,
    StreamState,
    filled,
    no_releases,
    ranges,
    read,
    rows_again,
    stream_ended,
    values_of,
)
from rillet.strategy.base import Rounds


class _Lattice(NamedTuple):
    """What is the same for all keys: the lattice, and what its units are worth."""

    grid: Grid
    anchor: Anchor
    units: Units
    worth: tuple[Worth, ...]
    offsets: tuple[float, ...]


class _Leaves(NamedTuple):
    """Leaves that are complete: the observations that completed them, their keys, their numbers."""

    arrival: IntArray
    rows: IntArray
    t: IntArray
    exact: IntArray

    def at(self, places: NDArray[Any]) -> _Leaves:
        """Some of them, in another order."""
        return _Leaves(*(part[places] for part in self))


class Block(NamedTuple):
    """What a block contributes, for each observation and column, and when it came.

    ``noisy`` are the nodes that it completed, as they were released, in the order of rounds.
    """

    key_of: IntArray
    exact_units: IntArray
    at: int
    noisy: IntArray | None = None


class Crowd(Whole):
    """The streams of a plan by count, all keys at once."""

    def __init__(self, layout: Layout, keys: tuple[Key, ...], secrets: Iterable[Secret]) -> None:
        main, width, count = layout.main, layout.leaf.width, len(keys)
        assert layout.crowd and main is not None
        self.keys = keys
        self.t = np.zeros(count, np.int64)
        self.sequence = np.full(count, -1)
        # The warm-up, which has nothing, is left behind at once.
        self._secrets = [secret.ratchet() for secret in secrets]
        self._exact_partial = [np.zeros(count, np.int64) for _ in range(width)]
        self._encoders = [
            rows_of_state(main.strategy.encoder(main.leaves).start(), count) for _ in range(width)
        ]
        self._decoders = [
            rows_of_state(main.strategy.decoder(main.leaves).start(), count) for _ in range(width)
        ]
        self._processes = [
            rows_of_state(main.strategy.noise_process(main.leaves).start(), count)
            for _ in range(width)
        ]
        self._drawn = np.zeros(count, np.int64)
        self._ahead = [np.zeros((count, layout.ratchet_every), np.int64) for _ in range(width)]
        self._complete = np.ones(count, bool)
        self._before: Any = None
        if layout.memory.window is not None:
            readings = len(layout.leaf.units(Grid(0.0, 1.0, *layout.leaf.cut(2))))
            self._before = np.zeros((readings, count, layout.memory.window))
        #: What the last call did, and whose noise it drew; None and empty once it is kept.
        self.changed: Block | None = None
        self.drew: set[int] = set()
        self.numbered: dict[int, int] = {}
        rows = count, len(layout.statistic.names)
        self._latest = {name: np.full(rows, np.nan) for name in layout.columns}
        self._latest_t, self._latest_at = np.zeros((2, count), np.int64)

    # --- absorbing -------------------------------------------------------------------------------

    def absorb(self, layout: Layout, key_of: IntArray, raw_values: FloatArray, at: int) -> Releases:
        """Absorb a block; ``key_of`` has the number of each value's key.

        **Privacy.** As :func:`rillet.step.step`, for each key.  Raises before anything has changed.
        """
        self.check_whole()
        counts = np.bincount(key_of, minlength=len(self.keys))
        full = self.t + counts > layout.length
        if full.any():
            index = int(full.argmax())
            raise stream_ended(layout, int(self.t[index] + counts[index]), self.keys[index])
        if not len(key_of):
            return no_releases(layout)
        self._whole = False
        grid = self._lattice(layout).grid
        exact_units = layout.leaf.contribute(filled(layout, raw_values), grid)
        return self.add(layout, Block(key_of, exact_units.reshape(len(key_of), -1), at))

    def add(self, layout: Layout, block: Block) -> Releases:
        """Add contributions to the leaves of their keys, and release those that are complete.

        The noisy nodes of a block that was added before are released again, and nothing is drawn.
        """
        key_of, exact_units, at, noisy = block
        mechanism, lattice = layout.main, self._lattice(layout)
        assert mechanism is not None
        leaves = self._leaves(layout, key_of, exact_units)
        leaves, rounds = _in_rounds(leaves)
        rows, t, leaf = leaves.rows, leaves.t, -(-leaves.t // layout.every)
        encoder = mechanism.strategy.encoder(mechanism.leaves)
        decoder = mechanism.strategy.decoder(mechanism.leaves)
        drawn = self._noise(layout, rows, leaf) if noisy is None else None
        released, prefixes = [], []
        for column, exact in enumerate(leaves.exact.T):
            exact_nodes = encoder.encode_rounds(self._encoders[column], rounds, rows, leaf, exact)
            released.append(exact_nodes + drawn[column] if drawn else cast("Any", noisy)[column])
            prefix = decoder.decode_rounds(
                self._decoders[column], rounds, rows, leaf, released[column]
            )
            prefixes.append(prefix * 1.0)
        if noisy is None:
            self.changed = block._replace(noisy=np.array(released))
        sums = read(layout, lattice.anchor, lattice.units, lattice.offsets, t, prefixes)
        if self._before is not None:
            sums = self._remembered(rounds, rows, leaf, np.array(sums))
        complete = None
        if layout.leaf.may_be_complete:
            complete = self._completed(layout, lattice, rounds, rows, leaf, t, sums)
        return self._released(layout, lattice, leaves, leaf, sums, complete, at)

    def _leaves(self, layout: Layout, key_of: IntArray, exact_units: IntArray) -> _Leaves:
        """Add observations to the open leaves of their keys; those that they complete, by key."""
        order = _by_number(key_of, len(self.keys))
        rows = key_of[order]
        t = self.t[rows] + _rank(rows) + 1
        self.t += np.bincount(key_of, minlength=len(self.keys))
        leaves = _Leaves(order, rows, t, exact_units[order])
        if layout.every == 1 or not len(rows):
            return leaves
        numbers = np.stack([rows, -(-t // layout.every)])
        first = np.flatnonzero(np.diff(numbers, prepend=-1).any(axis=0))
        ends = np.append(first[1:], len(rows))
        leaves = leaves.at(ends - 1)._replace(exact=np.add.reduceat(leaves.exact, first, axis=0))
        rows, t, exact = leaves.rows, leaves.t, leaves.exact
        opened = np.diff(rows, prepend=-1) != 0
        done = (t % layout.every == 0) | (t == layout.length)
        for column, exact_partial in enumerate(self._exact_partial):
            exact[opened, column] += exact_partial[rows[opened]]
            exact_partial[rows[opened]] = 0
            exact_partial[rows[~done]] = exact[~done, column]
        return leaves.at(done)

    def _lattice(self, layout: Layout) -> _Lattice:
        clipping, segment = layout.declared_range, layout.segments[0]
        assert clipping is not None and len(layout.segments) == 1
        grid = layout.grid(clipping, segment, 0.5)
        units = layout.leaf.units(grid)
        nothing = (0.0,) * len(units), (0.0,) * layout.leaf.width
        anchor = Anchor(clipping, 0, *nothing)
        return _Lattice(grid, anchor, units, ((0, units),), layout.leaf.offsets(clipping))

    def _noise(self, layout: Layout, rows: IntArray, leaf: IntArray) -> list[IntArray]:
        """Noise of the next leaves of some keys; drawn up to a ratchet step where it ends."""
        place = (leaf - 1) % layout.ratchet_every
        noise = [np.empty(len(rows), np.int64) for _ in self._ahead]
        left = np.arange(len(rows))
        while True:
            ready = leaf[left] <= self._drawn[rows[left]]
            now, left = left[ready], left[~ready]
            for own, ahead in zip(noise, self._ahead, strict=True):
                own[now] = ahead[rows[now], place[now]]
            if not len(left):
                return noise
            empty = np.unique(rows[left])
            # Most often all of them come from the same step, or from two.
            drawn_of = self._drawn[empty]
            for drawn in np.unique(drawn_of).tolist():
                self._draw(layout, empty[drawn_of == drawn], drawn)

    def _draw(self, layout: Layout, rows: IntArray, drawn: int) -> None:
        """Draw the noise of keys up to their next ratchet step, and destroy their secrets."""
        mechanism = layout.main
        assert mechanism is not None
        process = mechanism.strategy.noise_process(mechanism.leaves)
        secrets = [self._secrets[row] for row in rows.tolist()]
        count = min(layout.ratchet_every, mechanism.leaves - drawn)
        for column, (ahead, states) in enumerate(zip(self._ahead, self._processes, strict=True)):
            levels = mechanism.levels_each(secrets, "main", column=column)
            own = tuple(part[rows] for part in states)
            after, noise = process.draw(own, levels, drawn + 1, count)
            ahead[rows, :count] = noise
            for part, new in zip(states, after, strict=True):
                part[rows] = new
        self._drawn[rows] += count
        self.drew.update(rows.tolist())
        for row, secret in zip(rows.tolist(), secrets, strict=True):
            self._secrets[row] = secret.ratchet()

    def _remembered(
        self, rounds: Rounds, rows: IntArray, leaf: IntArray, running: FloatArray
    ) -> list[FloatArray]:
        """Running sums without what has left the window."""
        place, sums = leaf % self._before.shape[2], np.empty_like(running)
        for part in rounds:
            own = rows[part], place[part]
            sums[:, part] = running[:, part] - self._before[:, *own]
            self._before[:, *own] = running[:, part]
        return list(sums)

    def _completed(
        self,
        layout: Layout,
        lattice: _Lattice,
        rounds: Rounds,
        rows: IntArray,
        leaf: IntArray,
        t: IntArray,
        sums: list[FloatArray],
    ) -> NDArray[np.bool_]:
        """Whether no value is taken to be missing: as the step decides it."""
        decides = np.full(len(rows), layout.memory.forgets) | ((leaf & (leaf - 1)) == 0)
        complete = np.zeros(len(rows), bool)
        variance = layout.covariances(leaf[decides], lattice.worth)(1, 1)
        missed = np.abs(layout.remembered(t[decides]) - sums[1][decides])
        complete[decides] = missed <= EXPLAINED * np.sqrt(variance)
        for part in rounds:
            own = rows[part]
            self._complete[own[decides[part]]] = complete[part][decides[part]]
            complete[part] = self._complete[own]
        return complete

    # --- releasing -------------------------------------------------------------------------------

    def _released(
        self,
        layout: Layout,
        lattice: _Lattice,
        leaves: _Leaves,
        leaf: IntArray,
        sums: list[FloatArray],
        complete: NDArray[np.bool_] | None,
        at: int,
    ) -> Releases:
        """The releases of a block, in the order of the observations that completed them."""
        if not len(leaf):
            return no_releases(layout)
        order = _inverse(leaves.arrival)
        rows, t, leaf = leaves.rows[order], leaves.t[order], leaf[order]
        sums = [own[order] for own in sums]
        complete = None if complete is None else complete[order]
        clipping = lattice.anchor.range
        ends = ranges(*(np.full(len(t), end) for end in (clipping.lower, clipping.upper)))
        covariance = layout.covariances(leaf, lattice.worth)
        columns = values_of(layout, t, sums, covariance, ends, (), complete)
        width = len(layout.statistic.names)
        for name, number in layout.of_clipping(clipping, float("nan")).items():
            columns.setdefault(name, np.full(len(t) * width, number))
        times = np.full(len(t), at)
        self._keep_latest(rows, t, times, columns, width)
        own = renumbered(self.keys, rows)
        return Releases(*own, t, times, layout.statistic.names, columns, **layout.common)

    def _keep_latest(
        self,
        rows: IntArray,
        t: IntArray,
        at: IntArray,
        columns: Mapping[str, FloatArray],
        width: int,
    ) -> None:
        last = np.full(len(self.keys), -1)
        last[rows] = np.arange(len(rows))  # the last assignment stays
        last_rows = np.flatnonzero(last >= 0)
        last = last[last_rows]
        self._latest_t[last_rows], self._latest_at[last_rows] = t[last], at[last]
        for name, column in columns.items():
            self._latest[name][last_rows] = column.reshape(-1, width)[last]

    # --- reading ---------------------------------------------------------------------------------

    def latest(self, layout: Layout, index: int) -> Release | None:
        """The last release of a key."""
        self.check_whole()
        t = int(self._latest_t[index])
        if not t:
            return None
        rows = rows_again(layout, {number: one[index] for number, one in self._latest.items()})
        return Release(self.keys[index], t, int(self._latest_at[index]), rows)

    def state(self, layout: Layout, index: int) -> StreamState:
        """One key's stream as it is, without the key in force."""
        lattice = self._lattice(layout)
        done = layout.complete_leaves(int(self.t[index])) if self.t[index] else 0
        ahead, drawn = None, int(self._drawn[index])
        if done < drawn:
            used = done % layout.ratchet_every
            left = slice(used, used + drawn - done)
            ahead = Ahead(done + 1, tuple(own[index, left].copy() for own in self._ahead), {})
        before = None
        if self._before is not None:
            before = np.roll(self._before[:, index], -(done + 1), axis=1)
        return StreamState(
            t=int(self.t[index]),
            secret=self._secrets[index],
            anchor=lattice.anchor,
            exact_partial=tuple(int(partial[index]) for partial in self._exact_partial),
            worth=lattice.worth,
            cut=(lattice.grid.steps, lattice.grid.count),
            complete=bool(self._complete[index]),
            before=before,
            encoders=tuple(tuple(part[index].copy() for part in own) for own in self._encoders),
            decoders=tuple(tuple(part[index].copy() for part in own) for own in self._decoders),
            processes=tuple(tuple(part[index].copy() for part in own) for own in self._processes),
            ahead=ahead,
            latest=self.latest(layout, index),
        )

    def forget_changes(self) -> None:
        """What happened has been committed."""
        self.changed, self.drew, self.numbered = None, set(), {}
        self._whole = True

    # --- as arrays, to be kept -------------------------------------------------------------------

    def noise_of(self, row: int) -> tuple[Secret, list[Any]]:
        """The secret of a key's next ratchet step, and what is drawn up to it."""
        states = [part[row] for own in self._processes for part in own]
        return self._secrets[row], [
            int(self._drawn[row]),
            [own[row] for own in self._ahead],
            states,
        ]

    def set_noise(
        self, row: int, secret: Secret, drawn: int, ahead: list[IntArray], states: list[Any]
    ) -> None:
        """Undo :meth:`noise_of`."""
        self._secrets[row], self._drawn[row] = secret, drawn
        kept = (*self._ahead, *(part for own in self._processes for part in own))
        for part, was in zip(kept, (*ahead, *states), strict=True):
            part[row] = was

    def noise_of_many(self, rows: slice) -> tuple[list[Secret], list[NDArray[Any]]]:
        """As :meth:`noise_of`, of several keys: their secrets, and arrays to be read or set."""
        states = (part for own in self._processes for part in own)
        return self._secrets[rows], [part[rows] for part in (self._drawn, *self._ahead, *states)]

    def set_noise_of_many(
        self, rows: slice, secrets: list[Secret], arrays: list[NDArray[Any]]
    ) -> None:
        """Undo :meth:`noise_of_many`."""
        self._secrets[rows] = secrets
        for part, was in zip(self.noise_of_many(rows)[1], arrays, strict=True):
            part[...] = was

    def arrays(self, keys: slice) -> list[NDArray[Any]]:
        """All else of some keys, in a fixed order; changed, they change the streams."""
        states = (*self._encoders, *self._decoders)
        before = [] if self._before is None else list(self._before)
        return [
            part[keys]
            for part in (
                *(self.t, self.sequence, self._complete, self._latest_t, self._latest_at),
                *self._exact_partial,
                *(part for own in states for part in own),
                *before,
                *self._latest.values(),
            )
        ]

    def note_sequence(self, numbers: Mapping[int, int]) -> None:
        """The last sequence number of some keys that was absorbed."""
        for index, number in numbers.items():
            self.sequence[index] = number
        self.numbered.update(numbers)


def _by_number(numbers: IntArray, count: int) -> IntArray:
    """Where to find numbers below ``count`` in their order, equal ones as they come."""
    # Short ones are sorted digit by digit, which takes a quarter of the time.
    short = numbers.astype(np.uint16) if count <= 1 << 16 else numbers
    return np.argsort(short, kind="stable")


def _inverse(places: IntArray) -> IntArray:
    """Where to find different places in their order."""
    found = np.full(int(places.max()) + 1, -1)
    found[places] = np.arange(len(places))
    return found[found >= 0]


def _rank(rows: IntArray) -> IntArray:
    """How many of the same row come before each; equal rows are next to each other."""
    counts = np.bincount(rows)
    return np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]


def _in_rounds(leaves: _Leaves) -> tuple[_Leaves, Rounds]:
    """The first leaf of every key, then the second of those that have one, and so on."""
    rank = _rank(leaves.rows)
    ends = np.cumsum(np.bincount(rank)).tolist()
    order = _by_number(rank, len(ends))
    return leaves.at(order), [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
