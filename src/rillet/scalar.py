"""Updates one observation at a time, in plain numbers, with noise read ahead.

The same integers and floats as the block form of :mod:`rillet.step`, bit for bit: the same
operations in the same order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rillet.layout import Layout
from rillet.release import Key, Release, Rows
from rillet.step import StreamState, draw_nodes, release_rows, segment_grid

#: Noise is read ahead for this many scalar updates at a time.
READ_AHEAD: Final = 1024


class _Now(Release):
    """A release with the nanoseconds of the clock: dividing them costs as much as asking it."""

    __slots__ = ()

    @property
    def at_microseconds(self) -> int:
        """The time of the release, in microseconds since 1970 UTC."""
        return self._at // 1000


class ScalarRun:
    """Some observations of one segment under one key; :meth:`finish` gives the block's state."""

    def __init__(self, layout: Layout, key: Key, state: StreamState, count: int) -> None:
        mechanism, anchor = layout.main, state.anchor
        assert mechanism is not None and anchor is not None
        self._layout, self._key, self._begun, self._anchor = layout, key, state, anchor
        grid = segment_grid(state, layout.segment_at(state.t + 1))
        self._contribute = layout.statistic.contributor(grid)
        (span,) = layout.statistic.spans(anchor.range)
        self._lower, self._unit = span.lower, state.weights[-1][0]
        (self._prefix,), (self._sum,) = anchor.prefixes, anchor.sums
        self._corrects = anchor.corrects
        self._first_leaf = layout.leaf_of(state.t + 1)
        _, (draws,) = draw_nodes(layout, state, self._first_leaf, count)
        self._draws: list[int] = draws.tolist()
        leaves = np.arange(self._first_leaf, self._first_leaf + count)
        weights = tuple(weight for (weight,) in state.weights)
        self._unit_std: list[float] = layout.unit_std(leaves, weights).tolist()
        stepper = mechanism.strategy.stepper(
            mechanism.leaves, self._first_leaf - 1, state.encoders[0], state.decoders[0]
        )
        assert stepper is not None
        self._stepper = stepper
        self._in_leaf = (state.t - layout.lag) % layout.every
        (self._exact_partial,) = state.exact_partial
        self._raw_counted: list[float] | None = None if state.exact_counts is None else []
        self._t = state.t
        self._done = 0
        self.room = min(count * layout.every - self._in_leaf, _last_scalar(layout, state) - state.t)
        self.latest = state.latest

    @classmethod
    def begin(cls, layout: Layout, key: Key, state: StreamState) -> ScalarRun | None:
        """Begin a run that ends with the chunk; None when only blocks will do."""
        if layout.main is None or state.t >= _last_scalar(layout, state):
            return None
        if layout.statistic.width > 1:
            return None
        strategy, leaves = layout.main.strategy, layout.main.leaves
        leaf = layout.leaf_of(state.t + 1)
        if strategy.stepper(leaves, leaf - 1, state.encoders[0], state.decoders[0]) is None:
            return None
        every = layout.ratchet_every
        until_ratchet = every - (leaf - 1) % every
        return cls(layout, key, state, min(until_ratchet, READ_AHEAD, leaves - leaf + 1))

    @property
    def absorbed(self) -> int:
        """Observations absorbed in this run."""
        return self._t - self._begun.t

    def absorb(self, raw_value: float, at_nanoseconds: int) -> Release | None:
        """One observation.  **Privacy.** Touches raw data; see :func:`rillet.step.step`."""
        if self._raw_counted is not None:
            self._raw_counted.append(raw_value)
        exact_units = self._contribute(raw_value)
        self._t = t = self._t + 1
        self.room -= 1
        layout = self._layout
        if layout.every > 1:
            self._exact_partial = exact_units = self._exact_partial + exact_units
            self._in_leaf += 1
            if self._in_leaf < layout.every and t < layout.length:
                return None
            self._in_leaf = self._exact_partial = 0
        done, anchor = self._done, self._anchor
        # The same operations in the same order as rillet.step.decode_sums.
        total = (self._stepper.step(exact_units, self._draws[done]) - self._prefix) * self._unit
        total += self._sum
        if self._lower:
            total += self._lower * (t - anchor.after)
        if self._corrects:
            total += anchor.removed + anchor.removed_each * (t - anchor.after)
        self.latest = release = _Now(
            self._key,
            t,
            at_nanoseconds,
            (self._rows, t, total, self._unit_std[done]),
        )
        self._done = done + 1
        return release

    def _rows(self, t: int, total: float, unit_std: float) -> Rows:
        return release_rows(self._layout, self._anchor, t, (total,), (unit_std,))

    def finish(self) -> StreamState:
        """The state that the block form would have reached."""
        encoder, decoder = self._stepper.states()
        drawn, _ = draw_nodes(self._layout, self._begun, self._first_leaf, self._done)
        exact_counts = self._begun.exact_counts
        if self._raw_counted and exact_counts is not None:
            raw_values, centre = np.array(self._raw_counted), self._begun.looks[0].centre
            exact_counts = exact_counts + self._layout.threshold.count(
                raw_values, self._layout.bounds, centre
            )
        return drawn.but(
            t=self._t,
            exact_partial=(self._exact_partial,),
            exact_counts=exact_counts,
            encoders=(encoder,),
            decoders=(decoder,),
            latest=self.latest,
        )


def _last_scalar(layout: Layout, state: StreamState) -> int:
    """Last observation of this segment that may come alone: one that ends in a look may not."""
    if state.t >= layout.length:
        return state.t
    segment = layout.segment_at(state.t + 1)
    return segment.last if segment.look is None else segment.last - 1
