"""Updates one observation at a time, in plain numbers, with noise read ahead.

The same integers and floats as the block form of :mod:`rillet.step`, bit for bit: the same
operations in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from rillet.layout import Layout
from rillet.release import Key, Release
from rillet.step import StreamState, draw_nodes, epoch_grid
from rillet.threshold import RefreshingThreshold

#: Noise is read ahead for this many scalar updates at a time.
READ_AHEAD: Final = 1024


class ScalarRun:
    """Some observations of one epoch under one key; :meth:`finish` gives the block form's state."""

    def __init__(self, layout: Layout, key: Key, state: StreamState, count: int) -> None:
        mechanism, segment = layout.main, state.segment
        assert mechanism is not None and segment is not None
        epoch = layout.epoch_at(state.t + 1)
        self._layout, self._key, self._begun = layout, key, state
        self._segment = segment
        grid = epoch_grid(state, epoch)
        self._lower, self._upper = grid.lower, grid.upper
        self._per_unit, self._steps, self._unit = grid.per_unit, grid.steps, grid.step
        self._corrects = bool(segment.removed or segment.removed_each)
        self._first_leaf = layout.leaf_of(state.t + 1)
        self._draws: list[int] = draw_nodes(layout, state, self._first_leaf, count)[1].tolist()
        leaves = np.arange(self._first_leaf, self._first_leaf + count)
        self._unit_std: list[float] = layout.unit_std(leaves, state.weights).tolist()
        stepper = mechanism.strategy.stepper(
            mechanism.leaves, self._first_leaf - 1, state.encoder, state.decoder
        )
        assert stepper is not None
        self._stepper = stepper
        self._statistic, self._law = layout.statistic.name, layout.noise_law
        self._post_processing = layout.post_processing
        self._in_leaf = (state.t - layout.lag) % layout.every
        self._exact_partial = state.exact_partial
        self._raw_tallied: list[float] | None = None if state.exact_tally is None else []
        self._t = state.t
        self._done = 0
        self.room = min(count * layout.every - self._in_leaf, _last_scalar(layout, state) - state.t)
        self.latest = state.latest

    @classmethod
    def begin(cls, layout: Layout, key: Key, state: StreamState) -> ScalarRun | None:
        """Begin a run that ends with the chunk; None when only blocks will do."""
        if layout.main is None or state.t >= _last_scalar(layout, state):
            return None
        strategy, leaves = layout.main.strategy, layout.main.leaves
        leaf = layout.leaf_of(state.t + 1)
        if strategy.stepper(leaves, leaf - 1, state.encoder, state.decoder) is None:
            return None
        every = layout.ratchet_every
        until_ratchet = every - (leaf - 1) % every
        return cls(layout, key, state, min(until_ratchet, READ_AHEAD, leaves - leaf + 1))

    @property
    def absorbed(self) -> int:
        """Observations absorbed in this run."""
        return self._t - self._begun.t

    def absorb(self, raw_value: float) -> Release | None:
        """One observation.  **Privacy.** Touches raw data; see :func:`rillet.step.step`."""
        if self._raw_tallied is not None:
            self._raw_tallied.append(raw_value)
        lower = self._lower
        if not raw_value >= lower:  # also NaN
            raw_value = lower
        elif raw_value > self._upper:
            raw_value = self._upper
        # The same operations in the same order as Grid.quantise.
        exact_units = min(round((raw_value - lower) * self._per_unit), self._steps)
        self._t = t = self._t + 1
        self.room -= 1
        layout = self._layout
        if layout.every > 1:
            self._exact_partial = exact_units = self._exact_partial + exact_units
            self._in_leaf += 1
            if self._in_leaf < layout.every and t < layout.length:
                return None
            self._in_leaf = self._exact_partial = 0
        done, segment = self._done, self._segment
        prefix = self._stepper.step(exact_units, self._draws[done])
        total = (prefix - segment.prefix) * self._unit + segment.sum
        if lower:
            total += lower * (t - segment.after)
        if self._corrects:
            total += segment.removed + segment.removed_each * (t - segment.after)
        self.latest = release = Release(
            self._key,
            t,
            total,
            self._unit_std[done],
            self._upper,
            lower,
            segment.clipped_share,
            self._statistic,
            self._law,
            self._post_processing,
        )
        self._done = done + 1
        return release

    def finish(self) -> StreamState:
        """The state that the block form would have reached."""
        encoder, decoder = self._stepper.states()
        drawn, _ = draw_nodes(self._layout, self._begun, self._first_leaf, self._done)
        exact_tally, threshold = self._begun.exact_tally, self._layout.threshold
        if self._raw_tallied and exact_tally is not None:
            assert isinstance(threshold, RefreshingThreshold)
            raw_values = np.array(self._raw_tallied)
            exact_tally = exact_tally + threshold.tally(
                raw_values, self._layout.bounds, self._begun.centre
            )
        return replace(
            drawn,
            t=self._t,
            exact_partial=self._exact_partial,
            exact_tally=exact_tally,
            encoder=encoder,
            decoder=decoder,
            latest=self.latest,
        )


def _last_scalar(layout: Layout, state: StreamState) -> int:
    """Last observation of this epoch that may come alone; one that ends in a look takes a block."""
    if state.t >= layout.length:
        return state.t
    epoch = layout.epoch_at(state.t + 1)
    return epoch.last if epoch.look is None else epoch.last - 1
