"""Streams of many keys by count, whose range is known: arrays with a row for each key.

Keys are at observations of their own.  A block is absorbed in rounds, each with the next
observation of every key that has one left: the same arithmetic as :mod:`rillet.step`, key by key.
Each key has its own secret, and noise drawn up to its next ratchet step.

**Privacy.** Touches raw data; as :func:`rillet.step.step`, for each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rillet.fleet import Whole, rows_of_state
from rillet.gather.grid import Grid
from rillet.layout import Layout, Worth
from rillet.noise import FloatArray, IntArray, Secret
from rillet.release import Key, Release, Releases
from rillet.statistic import Range, Units
from rillet.step import (
    EXPLAINED,
    Ahead,
    Anchor,
    StreamState,
    clipping_fields,
    filled,
    no_releases,
    ranges,
    read,
    rows_again,
    stream_ended,
    values_of,
)


class _Lattice(NamedTuple):
    """What is the same for all keys: the lattice, and what its units are worth."""

    grid: Grid
    anchor: Anchor
    units: Units
    worth: tuple[Worth, ...]
    offsets: tuple[float, ...]


class _Round(NamedTuple):
    """Releases of different keys: the observations that completed them, keys, leaves, readings."""

    arrival: IntArray
    rows: IntArray
    leaf: IntArray
    t: IntArray
    sums: list[FloatArray]
    complete: NDArray[np.bool_] | None


class Block(NamedTuple):
    """What a block contributes, for each observation and column, and when it came.

    ``noisy`` are the nodes that it completed, as they were released, in the order of rounds.
    """

    key_of: IntArray
    exact_units: IntArray
    at: int
    noisy: IntArray | None = None


class _Nodes:
    """Nodes that were released, round after round."""

    def __init__(self, noisy: IntArray) -> None:
        self._noisy, self._used = noisy, 0

    def next(self, count: int) -> IntArray:
        self._used += count
        return self._noisy[:, self._used - count : self._used]


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
        names = (*layout.numbers, *clipping_fields(layout, Range(0.0, 1.0), 0.0))
        rows = count, len(layout.statistic.names)
        self._latest = {name: np.full(rows, np.nan) for name in names}
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
        counts = np.bincount(key_of, minlength=len(self.keys))
        lattice, nodes = self._lattice(layout), None if noisy is None else _Nodes(noisy)
        released: list[IntArray] = []
        order = np.argsort(key_of, kind="stable")
        ends = np.cumsum(counts)
        # How many of its key come before each in the block.
        rank = np.arange(len(key_of)) - (ends - counts)[key_of[order]]
        by_rank = order[np.argsort(rank, kind="stable")]
        rounds, begin = [], 0
        for end in np.cumsum(np.bincount(rank)).tolist():
            arrival = by_rank[begin:end]
            begin = end
            rows, exact = key_of[arrival], exact_units[arrival]
            done = self._round(layout, lattice, arrival, rows, exact, nodes, released)
            if done is not None:
                rounds.append(done)
        if noisy is None:
            none = np.empty((len(self._ahead), 0), np.int64)
            self.changed = block._replace(noisy=np.concatenate([none, *released], axis=1))
        return self._released(layout, lattice, rounds, at)

    def _lattice(self, layout: Layout) -> _Lattice:
        clipping, segment = layout.declared_range, layout.segments[0]
        assert clipping is not None and len(layout.segments) == 1
        grid = layout.grid(clipping, segment, 0.5)
        units = layout.leaf.units(grid)
        nothing = (0.0,) * len(units), (0.0,) * layout.leaf.width
        anchor = Anchor(clipping, 0, *nothing)
        return _Lattice(grid, anchor, units, ((0, units),), layout.leaf.offsets(clipping))

    def _round(
        self,
        layout: Layout,
        lattice: _Lattice,
        arrival: IntArray,
        rows: IntArray,
        exact_units: IntArray,
        nodes: _Nodes | None,
        released: list[IntArray],
    ) -> _Round | None:
        """The next observation of some keys; what their leaves release, where they are complete."""
        mechanism = layout.main
        assert mechanism is not None
        self.t[rows] += 1
        t = self.t[rows]
        exact_leaves = list(exact_units.T)
        if layout.every > 1:
            for exact_partial, exact_column in zip(self._exact_partial, exact_leaves, strict=True):
                exact_partial[rows] += exact_column
            done = (t % layout.every == 0) | (t == layout.length)
            arrival, rows, t = arrival[done], rows[done], t[done]
            if not len(rows):
                return None
            exact_leaves = [exact_partial[rows] for exact_partial in self._exact_partial]
            for exact_partial in self._exact_partial:
                exact_partial[rows] = 0
        leaf = -(-t // layout.every)
        noise = self._noise(layout, rows, leaf) if nodes is None else []
        encoder = mechanism.strategy.encoder(mechanism.leaves)
        decoder = mechanism.strategy.decoder(mechanism.leaves)
        prefixes, noisy_nodes = [], None if nodes is None else nodes.next(len(rows))
        for column, exact in enumerate(exact_leaves):
            exact_nodes = encoder.encode_each(self._encoders[column], rows, leaf, exact)
            if noisy_nodes is None:
                noise[column] += exact_nodes
                noisy = noise[column]
            else:
                noisy = noisy_nodes[column]
            prefix = decoder.decode_each(self._decoders[column], rows, leaf, noisy)
            prefixes.append(prefix * 1.0)
        released.append(np.array(noise))
        sums = read(layout, lattice.anchor, lattice.units, lattice.offsets, t, prefixes)
        if self._before is not None:
            place = leaf % self._before.shape[2]
            running = np.array(sums)
            sums = list(running - self._before[:, rows, place])
            self._before[:, rows, place] = running
        complete = None
        if layout.leaf.may_be_complete:
            complete = self._completed(layout, lattice, rows, leaf, t, sums)
        return _Round(arrival, rows, leaf, t, sums, complete)

    def _noise(self, layout: Layout, rows: IntArray, leaf: IntArray) -> list[IntArray]:
        """Noise of the next leaf of some keys; drawn up to the next ratchet step where it ends."""
        empty = rows[leaf > self._drawn[rows]]
        # Most often all of them come from the same step, or from two.
        for drawn in np.unique(self._drawn[empty]).tolist() if len(empty) else ():
            self._draw(layout, empty[self._drawn[empty] == drawn], drawn)
        place = (leaf - 1) % layout.ratchet_every
        return [ahead[rows, place] for ahead in self._ahead]

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

    def _completed(
        self,
        layout: Layout,
        lattice: _Lattice,
        rows: IntArray,
        leaf: IntArray,
        t: IntArray,
        sums: list[FloatArray],
    ) -> NDArray[np.bool_]:
        """Whether no value is taken to be missing: as the step decides it."""
        chosen = slice(None)
        decides: Any = chosen if layout.memory.forgets else (leaf & (leaf - 1)) == 0
        if layout.memory.forgets or decides.any():
            variance = layout.covariances(leaf[decides], lattice.worth)(1, 1)
            missed = np.abs(layout.remembered(t[decides]) - sums[1][decides])
            self._complete[rows[decides]] = missed <= EXPLAINED * np.sqrt(variance)
        return self._complete[rows]

    # --- releasing -------------------------------------------------------------------------------

    def _released(
        self, layout: Layout, lattice: _Lattice, rounds: list[_Round], at: int
    ) -> Releases:
        """The releases of a block, in the order of the observations that completed them."""
        if not rounds:
            return no_releases(layout)
        order = np.argsort(np.concatenate([one.arrival for one in rounds]))
        rows, leaf, t = (
            np.concatenate([getattr(one, name) for one in rounds])[order]
            for name in ("rows", "leaf", "t")
        )
        sums = [
            np.concatenate(each)[order] for each in zip(*(one.sums for one in rounds), strict=True)
        ]
        complete = None
        if layout.leaf.may_be_complete:
            complete = np.concatenate([one.complete for one in rounds])[order]
        clipping = lattice.anchor.range
        ends = ranges(*(np.full(len(t), end) for end in (clipping.lower, clipping.upper)))
        covariance = layout.covariances(leaf, lattice.worth)
        columns = values_of(layout, t, sums, covariance, ends, (), complete)
        width = len(layout.statistic.names)
        for name, number in clipping_fields(layout, clipping, float("nan")).items():
            columns.setdefault(name, np.full(len(t) * width, number))
        times = np.full(len(t), at)
        self._keep_latest(rows, t, times, columns, width)
        used, first = np.unique(rows, return_index=True)
        by_appearance = np.argsort(first)
        number_of = np.empty(len(used), np.int64)
        number_of[by_appearance] = np.arange(len(used))
        return Releases(
            tuple(self.keys[index] for index in used[by_appearance].tolist()),
            number_of[np.searchsorted(used, rows)],
            t,
            times,
            layout.statistic.names,
            columns,
            **layout.common,
        )

    def _keep_latest(
        self,
        rows: IntArray,
        t: IntArray,
        at: IntArray,
        columns: Mapping[str, FloatArray],
        width: int,
    ) -> None:
        backwards = rows[::-1]
        last_rows, place = np.unique(backwards, return_index=True)
        last = len(rows) - 1 - place
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
