"""Updates one observation at a time, in plain numbers, with noise read ahead.

The same integers and floats as the block form of :mod:`rillet.step`, bit for bit: the same
operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Final, TypeAlias

import numpy as np

from rillet.layout import Layout
from rillet.release import Key, Release, Rows
from rillet.step import (
    StreamState,
    add_back,
    counted,
    draw_nodes,
    grid_of,
    is_complete,
    read,
    release_rows,
)
from rillet.strategy.base import AWAY

#: Noise is read ahead for this many scalar updates at a time.
READ_AHEAD: Final = 1024
Absorb: TypeAlias = Callable[[float, float], Release | None]


class _Now(Release):
    """A release with the seconds of the clock: turning them into others costs as much as asking."""

    __slots__ = ()

    @property
    def at_microseconds(self) -> int:
        """The time of the release, in microseconds since 1970 UTC."""
        return int(self._at * 1e6)


class ScalarRun:
    """Some observations of one segment under one key; :meth:`finish` gives the block's state."""

    def __init__(self, layout: Layout, key: Key, state: StreamState, count: int) -> None:
        mechanism, anchor = layout.main, state.anchor
        assert mechanism is not None and anchor is not None
        self._layout, self._key, self._begun, self._anchor = layout, key, state, anchor
        leaf = layout.leaf
        self._contribute = leaf.contributor(grid_of(state), AWAY)
        self._units, self._offsets = state.worth[-1][1], leaf.offsets(anchor.range)
        self._corrects = bool(leaf.corrected) and anchor.corrects
        self._complete = state.complete if leaf.may_be_complete else None
        self._first_leaf = layout.leaf_of(state.t + 1)
        _, draws = draw_nodes(layout, state, self._first_leaf, count)
        self._draws: list[list[int]] = [(nodes - AWAY).tolist() for nodes in draws]
        leaves = np.arange(self._first_leaf, self._first_leaf + count)
        self._covariances = layout.covariances(leaves, state.worth, state.warm_up_units)
        self._known: dict[tuple[int, int], list[float]] = {}
        steppers = [
            mechanism.strategy.stepper(mechanism.leaves, self._first_leaf - 1, encoder, decoder)
            for encoder, decoder in zip(state.encoders, state.decoders, strict=True)
        ]
        self._steppers = [stepper for stepper in steppers if stepper is not None]
        assert len(self._steppers) == len(steppers)
        self._in_leaf = (state.t - layout.lag) % layout.every
        self._exact_partial = tuple(units + AWAY for units in state.exact_partial)
        self._raw_counted: list[float] | None = None if state.exact_counts is None else []
        self._nothing = (AWAY,) * leaf.width
        self._missing_value = layout.missing_value
        self._done = 0
        self.room = min(count * layout.every - self._in_leaf, _last_scalar(layout, state) - state.t)
        self._last = state.t + self.room
        self.latest = state.latest
        one = leaf.contributor_of_one(grid_of(state), AWAY)
        asked = self._missing_value, self._complete, self._raw_counted
        alone = one is not None and layout.every == 1 and asked == (None, None, None)
        #: Absorbs one observation at a time in seconds since 1970.
        self.absorb = self._absorb if one is None or not alone else self._absorb_alone(one)

    @classmethod
    def begin(cls, layout: Layout, key: Key, state: StreamState) -> ScalarRun | None:
        """Begin a run that ends with the chunk; None when only blocks will do."""
        if layout.main is None or layout.clock is not None or layout.memory.forgets or layout.sane:
            return None
        if state.t >= _last_scalar(layout, state):
            return None
        strategy, leaves = layout.main.strategy, layout.main.leaves
        leaf = layout.leaf_of(state.t + 1)
        if strategy.stepper(leaves, leaf - 1, state.encoders[0], state.decoders[0]) is None:
            return None
        return cls(layout, key, state, min(layout.last_under_key(leaf) - leaf + 1, READ_AHEAD))

    @property
    def absorbed(self) -> int:
        """Observations absorbed in this run."""
        return self._last - self.room - self._begun.t

    def _absorb(self, raw_value: float, at: float) -> Release | None:
        """One observation.  **Privacy.** Touches raw data; see :func:`rillet.step.step`."""
        if self._missing_value is not None and isnan(raw_value):
            raw_value = self._missing_value
        if self._raw_counted is not None:
            self._raw_counted.append(raw_value)
        exact_units = self._contribute(raw_value)
        self.room -= 1
        t, layout = self._last - self.room, self._layout
        if layout.every > 1:
            together = zip(self._exact_partial, exact_units, strict=True)
            exact_units = tuple(before + units - AWAY for before, units in together)
            self._in_leaf += 1
            if self._in_leaf < layout.every and t < layout.length:
                self._exact_partial = exact_units
                return None
            self._in_leaf, self._exact_partial = 0, self._nothing
        done = self._done
        sums = self._decode(exact_units, done, t)
        if self._complete is not None:
            leaf = self._first_leaf + done
            if leaf & (leaf - 1) == 0:
                self._complete = is_complete(layout, self._begun, leaf, t, sums[1])
        rows = (self._rows, t, sums, done, self._complete)
        self.latest = release = _Now(self._key, t, 0, rows)
        release._at = at
        self._done = done + 1
        return release

    def _decode(self, exact_units: tuple[int, ...], done: int, t: int) -> list[float]:
        """Encode a leaf, add its noise, decode and read."""
        prefixes = [
            stepper.step(units, draws[done])
            for stepper, units, draws in zip(self._steppers, exact_units, self._draws, strict=True)
        ]
        sums = read(self._layout, self._anchor, self._units, self._offsets, t, prefixes)
        add_back(self._layout, self._anchor, t, sums)
        return sums

    def _absorb_alone(self, contribute: Callable[[float], int]) -> Absorb:
        """The same where each observation is a leaf of one column, in the same order.

        A function of its own numbers: looking them up took a fifth of the time.
        """
        key, anchor, first, last = self._key, self._anchor, self._begun.t + 1, self._last
        step, draws, rows = self._steppers[0].step, self._draws[0], self._rows
        before, unit, total_before = anchor.prefixes[0], self._units[0][0], anchor.sums[0]
        offset = self._offsets[0] if self._offsets else 0.0
        after, corrects, new = anchor.after, self._corrects, Release.__new__
        removed, removed_each = anchor.removed, anchor.removed_each

        def absorb(raw_value: float, at: float) -> Release:
            self.room = room = self.room - 1
            t = last - room
            done = t - first
            total = (step(contribute(raw_value), draws[done]) - before) * unit + total_before
            if offset:
                total += offset * (t - after)
            if corrects:
                total += removed + removed_each * (t - after)
            self.latest = release = new(_Now)
            release.key, release.t, release._at = key, t, at
            release._rows = rows, t, (total,), done, None
            return release

        return absorb

    def _rows(self, t: int, sums: Sequence[float], done: int, complete: bool | None) -> Rows:
        def covariance(one: int, other: int) -> float:
            known = self._known.get((one, other))
            if known is None:
                known = self._known[one, other] = self._covariances(one, other).tolist()
            return known[done]

        return release_rows(self._layout, self._anchor, t, tuple(sums), covariance, complete)

    def finish(self) -> StreamState:
        """The state that the block form would have reached."""
        states = [stepper.states() for stepper in self._steppers]
        t = self._last - self.room
        done = self._layout.complete_leaves(t) - self._first_leaf + 1
        drawn, _ = draw_nodes(self._layout, self._begun, self._first_leaf, done)
        exact_counts = self._begun.exact_counts
        if self._raw_counted and exact_counts is not None:
            raw_values, centre = np.array(self._raw_counted), self._begun.looks[0].centre
            exact_counts = exact_counts + self._layout.threshold.count(
                counted(self._layout, raw_values), self._layout.bounds, centre
            )
        return drawn.but(
            t=t,
            exact_partial=tuple(units - AWAY for units in self._exact_partial),
            exact_counts=exact_counts,
            encoders=tuple(encoder for encoder, _ in states),
            decoders=tuple(decoder for _, decoder in states),
            complete=self._begun.complete if self._complete is None else self._complete,
            latest=self.latest,
        )


def _last_scalar(layout: Layout, state: StreamState) -> int:
    """Last observation of this segment that may come alone: one that ends in a look may not."""
    if state.t >= layout.length:
        return state.t
    segment = layout.segment_at(state.t + 1)
    return segment.last if segment.look is None else segment.last - 1
