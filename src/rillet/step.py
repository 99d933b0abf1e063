"""The heart of a stream: one pure step, ``(state, block) → (state, releases)``.

Streams in memory, on disk, in a service and on a cluster all wrap it: :func:`step` for observations
that are counted, :func:`advance` for the ticks of a clock.  They differ only in how observations
are grouped into leaves; ``t`` is the number of observations in the one and of ticks in the other.

A stream has a *warm-up*, the first ``lag`` observations (ticks), from which the clipping range is
learned, and *segments* after it.  One strategy runs through all segments in grid steps; what a step
is worth may change from segment to segment, when the range is learned again at public times.

A leaf is an integer vector, as wide as the statistic needs.  Each of its columns runs through the
strategy with nodes and noise of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.errors import StreamEnded
from rillet.gather.grid import LARGEST_SUM, Grid
from rillet.layout import MANY_KEYS, Layout, LookNoise, Margins, Segment, Worth, dot
from rillet.noise import LAWS, FloatArray, IntArray, LatticeNoise, Secret
from rillet.release import NUMBERS, Column, Key, Release, Releases, Rows, renumbered
from rillet.sane import MENDED, mend
from rillet.statistic import Margin, Range, Totals, Units
from rillet.strategy.base import Levels, State
from rillet.threshold import Look

#: One entry for each column of a leaf.
States: TypeAlias = tuple[State, ...]
#: Gives for two readings the covariance of their noise at some releases.
Covariance: TypeAlias = Callable[[int, int], FloatArray]
#: Contributions are worked out for so many observations at a time.
_AT_A_TIME: Final = 2**15
#: A part of the buffer of a warm-up with fewer observations takes further ones.
_SHORT_PART: Final = 2**12
#: So many deviations of noise explain a number of missing values that is taken for none.
EXPLAINED: Final = 2.5


@dataclass(frozen=True)
class Anchor:
    """From where a segment counts on: public, since it holds released numbers only.

    ``after`` observations (ticks) had the readings ``sums`` and the decoded prefixes ``prefixes``
    (lattice units), one for each column; clipping is estimated to have removed ``removed`` by then,
    and ``removed_each`` from every observation since.  ``margins`` is how far that may be off for
    an observation: after so many, and up to the next, a margin.
    """

    range: Range
    after: int = 0
    sums: tuple[float, ...] = ()
    prefixes: tuple[float, ...] = ()
    removed: float = 0.0
    removed_each: float = 0.0
    clipped_share: float = float("nan")
    margins: Margins = ()

    @property
    def corrects(self) -> bool:
        """Whether there is mass to add back."""
        return bool(self.removed or self.removed_each)


@dataclass(frozen=True)
class Ahead:
    """Noise up to the next ratchet step, drawn before its key was destroyed.

    ``nodes`` is the noise of the leaves from ``first_leaf`` on, for each column; ``looks`` that of
    the counts of looks until then, by their time.
    """

    first_leaf: int
    nodes: tuple[IntArray, ...] = field(repr=False)
    looks: dict[int, IntArray] = field(repr=False)


@dataclass(frozen=True)
class StreamState:
    """All that a stream remembers.  Holds unreleased data: protect it as the data themselves.

    ``exact_partial`` is the sum of the leaf that is not complete yet, ``exact_counts`` the counts
    from which the range will be learned again; the encoders hold exact sums of open nodes only,
    the decoders noisy values only.  ``looks`` are released measurements, ``worth`` what lattice
    units have been worth, as far as it is still felt, and ``warm_up_units`` in the warm-up; ``cut``
    are the steps of the lattice in force, and what an observation counts on it.  ``complete`` says
    whether no value is taken to be missing.  ``before`` are the running readings at the last leaves
    of a window, the earliest first.  ``floor`` is the greatest sum that was released, for each row,
    where sums are kept from falling.  By the clock ``raw_held`` are values of ticks that are not
    open yet, and their ticks.

    ``ahead`` is set where the key in force has been destroyed already: the noise that was still to
    be drawn from it.  ``secret`` is then that of the next ratchet step, ``processes`` the states
    that the noise processes will have there.
    """

    t: int
    secret: Secret = field(repr=False)
    raw_buffer: tuple[FloatArray, ...] = field(default=(), repr=False)
    anchor: Anchor | None = None
    exact_partial: tuple[int, ...] = field(default=(0,), repr=False)
    exact_counts: IntArray | None = field(default=None, repr=False)
    looks: tuple[Look, ...] = field(default=(), repr=False)
    ranges: tuple[Range, ...] = ()
    worth: tuple[Worth, ...] = ()
    warm_up_units: Units = ()
    cut: tuple[int, int] = (1, 0)
    complete: bool = True
    before: FloatArray | None = field(default=None, repr=False)
    raw_held: tuple[FloatArray, IntArray] | None = field(default=None, repr=False)
    encoders: States = field(default=(), repr=False)
    decoders: States = field(default=(), repr=False)
    processes: States = field(default=(), repr=False)
    ahead: Ahead | None = field(default=None, repr=False)
    floor: FloatArray | None = None
    latest: Release | None = None
    backfill: Releases | None = field(default=None, repr=False)
    #: Noise under the current key, by column: derived from the secret, never stored.
    levels: tuple[Levels, ...] | None = field(default=None, repr=False, compare=False)

    def but(self, **changes: Any) -> StreamState:
        """As ``dataclasses.replace``, ten times faster: many keys change their states often."""
        changed = object.__new__(StreamState)
        changed.__dict__.update(self.__dict__, **changes)
        return changed


def start(layout: Layout, secret: Secret) -> StreamState:
    """State before the first observation.  ``secret`` is the stream's own."""
    width = layout.leaf.width
    state = StreamState(t=0, secret=secret, exact_partial=(0,) * width)
    if layout.declared_range is None:
        return state
    anchor = Anchor(layout.declared_range, prefixes=(0.0,) * width)
    return _begin_main(layout, state.but(anchor=anchor))


def step(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray, at: int
) -> tuple[StreamState, Releases]:
    """Absorb a block of observations; return the new state and what it releases.

    ``at`` is the time of these releases, in microseconds since 1970 UTC.

    **Privacy.** All blocks of a stream together give what ``layout.guarantee`` promises, for
    inputs that may be chosen adaptively.  Pure: the same state and block give the same result, so
    a replay gives the same releases.  Nothing depends on the values before the noise.
    """
    state, parts = step_parts(layout, key, state, raw_block, at)
    return _released(layout, key, state, parts, at)


def step_parts(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray, at: int
) -> tuple[StreamState, list[Part]]:
    """As :func:`step`, for :func:`in_order`; who puts the parts together sets ``latest``.

    **Privacy.** As :func:`step`.
    """
    assert layout.clock is None  # a tick is not an observation
    if state.t + len(raw_block) > layout.length:
        raise stream_ended(layout, state.t + len(raw_block), key)
    parts: list[Part] = []
    if state.t < layout.lag:
        raw_learning, raw_block = np.split(raw_block, [layout.lag - state.t])
        state = state.but(
            t=state.t + len(raw_learning),
            raw_buffer=(*state.raw_buffer, raw_learning.copy()),
        )
        if state.t == layout.lag:
            state, released = _finish_warm_up(layout, key, state, at)
            parts += released
    while len(raw_block):
        room = layout.segment_at(state.t + 1).last - state.t
        raw_part, raw_block = raw_block[:room], raw_block[room:]
        state, released = _run_segment(layout, key, state, raw_part)
        parts += released
    return state, parts


def advance(
    layout: Layout,
    key: Key,
    state: StreamState,
    raw_values: FloatArray,
    tick_of: IntArray,
    until: int,
) -> tuple[StreamState, Releases]:
    """As :func:`advance_parts`, with the releases."""
    state, parts = advance_parts(layout, key, state, raw_values, tick_of, until)
    return _released(layout, key, state, parts, 0)


def advance_parts(
    layout: Layout,
    key: Key,
    state: StreamState,
    raw_values: FloatArray,
    tick_of: IntArray,
    until: int,
) -> tuple[StreamState, list[Part]]:
    """Absorb values of a clock's ticks and close all ticks up to ``until``, empty or not.

    ``tick_of`` does not fall, and has no closed tick; what belongs to a tick after the one that is
    open at the end is held until its tick opens.

    **Privacy.** As :func:`step`, where one observation is added or removed.  A tick's leaf
    saturates at a public number, which is 1-Lipschitz.
    """
    assert state.t <= until <= layout.length
    parts: list[Part] = []
    if state.raw_held is not None:
        raw_values = np.concatenate([state.raw_held[0], raw_values])
        tick_of = np.concatenate([state.raw_held[1], tick_of])
        order = np.argsort(tick_of, kind="stable")
        raw_values, tick_of, state = raw_values[order], tick_of[order], state.but(raw_held=None)
    now = int(np.searchsorted(tick_of, until + 1, side="right"))
    if now < len(tick_of):
        state = state.but(raw_held=(raw_values[now:].copy(), tick_of[now:].copy()))
        raw_values, tick_of = raw_values[:now], tick_of[:now]
    while state.t < until or len(raw_values):
        learning = state.t < layout.lag
        last = layout.lag if learning else layout.segment_at(state.t + 1).last
        # Values of the tick that stays open come with the last part.
        closed = min(until, last)
        here = int(np.searchsorted(tick_of, min(until + 1, last), side="right"))
        raw_part, ticks = raw_values[:here], tick_of[:here]
        raw_values, tick_of = raw_values[here:], tick_of[here:]
        if learning:
            state = state.but(t=closed, raw_buffer=_buffered(state.raw_buffer, raw_part))
            if closed == layout.lag:
                state, released = _finish_warm_up(layout, key, state)
                parts += released
            continue
        state, released = _run_segment(layout, key, state, raw_part, ticks, closed)
        parts += released
    return state, parts


def _buffered(raw_buffer: tuple[FloatArray, ...], raw_part: FloatArray) -> tuple[FloatArray, ...]:
    """With one more part; a short last one grows, however many small blocks a warm-up has."""
    if not len(raw_part):
        return raw_buffer
    if raw_buffer and len(raw_buffer[-1]) < _SHORT_PART:
        return (*raw_buffer[:-1], np.concatenate([raw_buffer[-1], raw_part]))
    return (*raw_buffer, raw_part.copy())


def stream_ended(layout: Layout, found: int, key: Key = ()) -> StreamEnded:
    """What is raised when a block would bring a stream past its length."""
    of = f" for each key, and this block would bring key {key} to" if key else ", found"
    return StreamEnded(
        f"length: expected at most {layout.length:,} observations{of} {found:,}; nothing of the "
        "block was absorbed. Open a new stream, or plan with a larger length"
    )


# --- The warm-up: the first `lag` observations -------------------------------------------------


def _finish_warm_up(
    layout: Layout, key: Key, state: StreamState, at: int = 0
) -> tuple[StreamState, list[Part]]:
    """Learn the range from the buffer, release its total, forget the buffer.

    **Privacy.** Costs each of the first ``lag`` observations the threshold's cost plus the
    warm-up's.  The total is clipped to the learned range too: unclipped it could move by the whole
    public range.
    """
    raw_values = np.concatenate([np.empty(0), *state.raw_buffer])
    look, rate = first_look(layout, state.secret, counted(layout, raw_values)), None
    if layout.clock is None:
        look = replace(look, observations=layout.lag)  # public, whatever is missing
    else:
        rate = look.observations / layout.lag
    state, anchor = _judge(layout, state, look, layout.lag, rate)
    state = state.but(raw_buffer=(), anchor=anchor, ranges=(anchor.range,))
    mechanism, leaf = layout.warm_up, layout.warm_up_leaf
    if mechanism is None:
        anchor = replace(anchor, after=layout.lag, prefixes=(0.0,) * leaf.width)
        return _begin_main(layout, state.but(anchor=anchor)), []
    grid = Grid(anchor.range.lower, anchor.range.upper, *leaf.cut(mechanism.steps))
    zero = (0,) * leaf.width
    every = layout.lag if layout.clock is not None else layout.warm_up_every
    if layout.clock is None:
        exact_leaves, _ = _group(leaf.contribute(raw_values, grid), zero, every, 0, last=True)
    else:
        exact_sums = _sum_up(lambda raw_part: leaf.contribute(raw_part, grid), raw_values, zero)
        most = LARGEST_SUM
        exact_leaves = [np.array([min(max(total, -most), most)]) for total in exact_sums]
    strategy, leaves, count = mechanism.strategy, mechanism.leaves, len(exact_leaves[0])
    t = np.minimum(np.arange(1, count + 1) * every, layout.lag)
    prefixes = []
    for column, exact_column in enumerate(exact_leaves):
        encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
        _, exact_nodes = encoder.encode(encoder.start(), 1, exact_column)
        process = strategy.noise_process(leaves)
        levels = mechanism.levels(state.secret, "warm-up", column=column)
        _, noise = process.draw(process.start(), levels, 1, len(exact_nodes))
        prefixes.append(decoder.decode(decoder.start(), 1, exact_nodes + noise)[1])
    units, offsets = leaf.units(grid), leaf.offsets(anchor.range)
    nothing = replace(anchor, sums=(0.0,) * len(units), prefixes=(0.0,) * leaf.width)
    sums = read(layout, nothing, units, offsets, t, [prefix * 1.0 for prefix in prefixes])
    variance = strategy.weights(leaves, np.arange(1, count + 1)) * mechanism.node_variance

    def covariance(one: int, other: int) -> FloatArray:
        return np.asarray(variance * dot(units[one], units[other]))

    anchor = replace(
        anchor,
        after=layout.lag,
        sums=tuple(float(total[-1]) for total in sums),
        prefixes=(0.0,) * leaf.width,
    )
    if layout.clock is not None and leaf.count_reading is not None:
        # From now on: the sum of many noisy counts knows less about their number.
        counted_now = max(1, round(anchor.sums[leaf.count_reading]))
        state = state.but(looks=(replace(look, observations=counted_now),))
    complete = None
    if leaf.may_be_complete:
        complete = np.abs(t - sums[1]) <= EXPLAINED * np.sqrt(covariance(1, 1))
        state = state.but(complete=bool(complete[-1]))
    for reading, _ in leaf.corrected:
        sums[reading] = sums[reading] + anchor.removed / layout.lag * t
    part = Part(
        key, t, sums, lambda rows: lambda one, other: covariance(one, other)[rows], anchor, complete
    )
    state, part = _raised(layout, state, part)
    state = state.but(
        anchor=anchor,
        warm_up_units=units,
        backfill=_releases(layout, part, at) if layout.backfill else None,
    )
    return _begin_main(layout, state), [part]


def first_look(layout: Layout, secret: Secret, raw_values: FloatArray) -> Look:
    """Release the first look: the threshold's own, or counts with Gaussian noise.

    **Privacy.** Costs a unit ``layout.threshold_cost``.
    """
    threshold, centre = layout.threshold, None
    if not layout.first_look:
        return threshold.measure(
            raw_values,
            layout.bounds,
            layout.threshold_budget,
            layout.guarantee.delta,
            secret,
            layout.setting,
        )
    look = Look(0)
    for number, noise in enumerate(layout.first_look):
        if number:
            centre = threshold.centre_of(layout.bounds, look)
        exact_counts = threshold.count(raw_values, layout.bounds, centre)
        draws = look_noise(noise, secret.derive("round", number), layout.lag, len(exact_counts))
        look = later_look(noise, exact_counts, draws, centre)
    return replace(look, observations=threshold.observed(look.noisy))


def counted(layout: Layout, raw_values: FloatArray) -> FloatArray:
    """The values that enter counts: missing ones do not, where their number is protected."""
    return raw_values[~np.isnan(raw_values)] if layout.setting.hides_count else raw_values


def filled(layout: Layout, raw_values: FloatArray) -> FloatArray:
    """With what stands in for a missing value.  **Privacy.** Touches raw data; one by one."""
    if layout.missing_value is None:
        return raw_values
    return np.where(np.isnan(raw_values), layout.missing_value, raw_values)


def _sum_up(
    contribute: Callable[[FloatArray], IntArray], raw_values: FloatArray, start: tuple[int, ...]
) -> tuple[int, ...]:
    """Exact sums of the contributions of many observations, in flat memory."""
    exact_sums = list(start)
    for first in range(0, len(raw_values), _AT_A_TIME):
        exact_units = contribute(raw_values[first : first + _AT_A_TIME])
        exact_columns = [exact_units] if exact_units.ndim == 1 else list(exact_units.T)
        for column, exact_column in enumerate(exact_columns):
            exact_sums[column] += int(exact_column.sum())
    return tuple(exact_sums)


# --- Segments ------------------------------------------------------------------------------------


def _begin_main(layout: Layout, state: StreamState) -> StreamState:
    """Start encoders and decoders, and leave the warm-up's key behind."""
    secret = state.secret.ratchet()
    if layout.main is None:
        return state.but(secret=secret)
    strategy, leaves, width = layout.main.strategy, layout.main.leaves, layout.leaf.width
    state = state.but(
        secret=secret,
        encoders=(strategy.encoder(leaves).start(),) * width,
        decoders=(strategy.decoder(leaves).start(),) * width,
        processes=(strategy.noise_process(leaves).start(),) * width,
        levels=_levels(layout, secret, 1),
    )
    state = _begin_segment(layout, state, layout.segments[0])
    if layout.memory.window is not None:
        readings = len(state.worth[-1][1])
        state = state.but(before=np.zeros((readings, layout.memory.window)))
    return state


def _levels(layout: Layout, secret: Secret, leaf: int) -> tuple[Levels, ...]:
    """Where the noise of this leaf and of those after it under the same key comes from."""
    assert layout.main is not None
    # For each of many keys, draws ahead would take much memory.
    last = 0 if layout.keys >= MANY_KEYS else layout.last_under_key(leaf)
    return tuple(
        layout.main.levels(secret, "main", column=column, last=last)
        for column in range(layout.leaf.width)
    )


def _begin_segment(
    layout: Layout, state: StreamState, segment: Segment, latest: tuple[float, ...] = ()
) -> StreamState:
    """Choose the lattice from now on; start empty counts where they are wanted.

    ``latest`` are the last released readings, if there are any.
    """
    anchor = state.anchor
    assert anchor is not None
    latest, share = latest or anchor.sums, 0.5
    if layout.leaf.splits and latest:
        share = layout.statistic.count_share(latest, anchor.range)
    grid = layout.grid(anchor.range, segment, share)
    units = layout.leaf.units(grid)
    if not anchor.sums:
        state = state.but(anchor=replace(anchor, sums=(0.0,) * len(units)))
    exact_counts = None
    if segment.look is not None:
        exact_counts = layout.threshold.count(np.empty(0), layout.bounds, _centre(state))
    worth, leaf = state.worth, layout.leaf_of(segment.first) - 1
    if not worth or worth[-1][1] != units:
        worth = layout.still_felt((*worth, (leaf, units)), leaf)
    return state.but(worth=worth, cut=(grid.steps, grid.count), exact_counts=exact_counts)


def _centre(state: StreamState) -> float | None:
    """The released point that counts are taken around."""
    return state.looks[0].centre if state.looks else None


def grid_of(state: StreamState) -> Grid:
    """The lattice in force."""
    assert state.anchor is not None
    return _grid(state.anchor.range.lower, state.anchor.range.upper, *state.cut)


#: A lattice that is checked once, however many blocks use it.
_grid = lru_cache(maxsize=256)(Grid)


def _group(
    exact_units: IntArray, exact_partial: tuple[int, ...], every: int, in_leaf: int, *, last: bool
) -> tuple[list[IntArray], tuple[int, ...]]:
    """Sum observations into leaves of ``every``; returns complete leaves and the open one's sum.

    Both for each column.  ``in_leaf`` observations are in the open leaf already; ``last`` closes
    it however short.
    """
    exact_columns = [exact_units] if exact_units.ndim == 1 else list(exact_units.T)
    if every == 1:
        return exact_columns, exact_partial
    count = len(exact_units)
    edges = np.arange(every - in_leaf, count + 1, every)
    if last and (not len(edges) or edges[-1] != count):
        edges = np.append(edges, count)
    exact_leaves, open_sums = [], []
    for exact_column, before in zip(exact_columns, exact_partial, strict=True):
        exact_sums = np.cumsum(exact_column)
        exact_sums += before
        if not len(edges):
            exact_leaves.append(np.empty(0, np.int64))
            open_sums.append(int(exact_sums[-1]))
            continue
        exact_ends = exact_sums[edges - 1]
        exact_leaves.append(np.diff(exact_ends, prepend=0))
        open_sums.append(int(exact_sums[-1] - exact_ends[-1]))
    return exact_leaves, tuple(open_sums)


class _Chunk(NamedTuple):
    """Some observations under one key of the secret, and the leaves that they complete.

    ``t`` is the time after them, ``exact_partial`` the leaf that is open then.
    """

    raw_values: FloatArray
    exact_leaves: list[IntArray]
    exact_partial: tuple[int, ...]
    t: int


def _gather(
    layout: Layout,
    state: StreamState,
    raw_block: FloatArray,
    tick_of: IntArray | None,
    until: int,
) -> Iterator[_Chunk]:
    """Group observations into leaves: of ``every``, or of ticks up to ``until`` and the open one.

    In chunks that end where the secret moves on.  **Privacy.** Touches raw data.
    """
    leaf, grid, t, exact_partial = layout.leaf, grid_of(state), state.t, state.exact_partial
    if tick_of is None:
        for raw_chunk in _chunks(layout, t, raw_block):
            parts: list[list[IntArray]] = []
            for first in range(0, len(raw_chunk), _AT_A_TIME):
                raw_part = raw_chunk[first : first + _AT_A_TIME]
                in_leaf = (t - layout.lag) % layout.every
                t += len(raw_part)
                exact_units = leaf.contribute(raw_part, grid)
                exact_leaves, exact_partial = _group(
                    exact_units, exact_partial, layout.every, in_leaf, last=t == layout.length
                )
                parts.append(exact_leaves)
            together = [
                exact_columns[0] if len(parts) == 1 else np.concatenate(exact_columns)
                for exact_columns in zip(*parts, strict=True)
            ]
            yield _Chunk(raw_chunk, together, exact_partial, t)
        return
    every = layout.ratchet_every
    while t < until or len(raw_block):
        end = min(until, layout.lag + ((t - layout.lag) // every + 1) * every)
        here = len(raw_block) if end == until else int(np.searchsorted(tick_of, end, "right"))
        raw_chunk, ticks = raw_block[:here], tick_of[:here]
        raw_block, tick_of = raw_block[here:], tick_of[here:]
        exact_leaves, exact_partial = _group_ticks(
            layout, grid, raw_chunk, ticks - (t + 1), end - t, exact_partial
        )
        t = end
        yield _Chunk(raw_chunk, exact_leaves, exact_partial, t)


def _group_ticks(
    layout: Layout,
    grid: Grid,
    raw_values: FloatArray,
    place: IntArray,
    ticks: int,
    exact_partial: tuple[int, ...],
) -> tuple[list[IntArray], tuple[int, ...]]:
    """Sum observations into the leaves of ``ticks`` ticks and of the open one behind them.

    ``place`` counts ticks from 0 and does not fall.  **Privacy.** Touches raw data; a leaf
    saturates.
    """
    exact_sums = np.zeros((layout.leaf.width, ticks + 1), np.int64)
    exact_sums[:, 0] = exact_partial
    for start in range(0, len(raw_values), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        exact_units = layout.leaf.contribute(raw_values[part], grid)
        first, last = int(place[part][0]), int(place[part][-1])
        ends = np.searchsorted(place[part], np.arange(first, last + 1), side="right")
        exact_running = np.zeros((len(exact_units) + 1, layout.leaf.width), np.int64)
        np.cumsum(exact_units.reshape(len(exact_units), -1), axis=0, out=exact_running[1:])
        exact_part = exact_sums[:, first : last + 1]
        exact_part += np.diff(exact_running[ends], axis=0, prepend=0).T
        # Whatever comes in one tick, 64 bits hold it: far beyond where a leaf saturates.
        np.clip(exact_part, -2 * LARGEST_SUM, 2 * LARGEST_SUM, out=exact_part)
    most = layout.largest_leaf
    exact_leaves = list(np.clip(exact_sums[:, :ticks], -most, most))
    return exact_leaves, tuple(exact_sums[:, ticks].tolist())


def _run_segment(
    layout: Layout,
    key: Key,
    state: StreamState,
    raw_block: FloatArray,
    tick_of: IntArray | None = None,
    until: int = 0,
) -> tuple[StreamState, list[Part]]:
    """Clip, quantise, group into leaves, encode, add noise, decode; in cache-sized chunks.

    What is released is one part, or none.

    **Privacy.** Each observation is charged what its segment says, once.
    """
    anchor, segment = state.anchor, layout.segment_at(state.t + 1)
    assert anchor is not None
    leaf = layout.leaf
    end = state.t + len(raw_block) if tick_of is None else until
    first_leaf = layout.leaf_of(state.t + 1)
    prefixes = [
        np.empty(max(0, layout.complete_leaves(end) - first_leaf + 1)) for _ in range(leaf.width)
    ]
    done = 0
    for chunk in _gather(layout, state, raw_block, tick_of, until):
        exact_counts = state.exact_counts
        if exact_counts is not None:
            raw_counted = counted(layout, chunk.raw_values)
            exact_counts = exact_counts + layout.threshold.count(
                raw_counted, layout.bounds, _centre(state)
            )
        state = state.but(t=chunk.t, exact_partial=chunk.exact_partial, exact_counts=exact_counts)
        added = len(chunk.exact_leaves[0])
        if added:
            state, decoded = _release_leaves(layout, state, first_leaf + done, chunk.exact_leaves)
            for prefix, part in zip(prefixes, decoded, strict=True):
                prefix[done : done + added] = part
            done += added
    if not done:
        return state, []
    last_prefixes = tuple(float(prefix[-1]) for prefix in prefixes)
    t = layout.release_times(first_leaf, done)
    worth, warm_up = state.worth, state.warm_up_units
    sums = read(layout, anchor, worth[-1][1], leaf.offsets(anchor.range), t, prefixes)
    plain_last = tuple(float(total[-1]) for total in sums)
    add_back(layout, anchor, t, sums)
    if state.before is not None:
        state, sums = _windows(state, sums)
    complete = None
    if leaf.may_be_complete:
        complete = _taken_for_complete(layout, state, worth, first_leaf, t, sums)
        state = state.but(complete=bool(complete[-1]))
    last_is_judged = False
    if state.t == segment.last and (segment.look is not None or state.t < layout.length):
        latest_sums = tuple(float(total[-1]) for total in sums)
        state = _finish_segment(layout, state, segment, plain_last, last_prefixes, latest_sums)
        ends_here = state.t == layout.length and not layout.memory.forgets
        if ends_here and segment.look is not None:
            assert state.anchor is not None
            last_is_judged = True
            for reading, _ in leaf.corrected:
                sums[reading][-1] = plain_last[reading] + state.anchor.removed
    covariance = partial(_covariances, layout, worth, warm_up, first_leaf)
    state, released = _raised(layout, state, Part(key, t, sums, covariance, anchor, complete))
    if state.anchor is None or not last_is_judged:
        return state, [released]
    # The last one is judged by the look at its own segment.
    last = released.last()._replace(anchor=replace(anchor, margins=state.anchor.margins))
    return state, [released.before_last(), last] if done > 1 else [last]


def _covariances(
    layout: Layout, worth: tuple[Worth, ...], warm_up: Units, first_leaf: int, part: slice
) -> Covariance:
    """Covariances at some leaves of one segment, counted from the first; when asked for."""

    @cache
    def known() -> Covariance:
        leaves = np.arange(first_leaf + part.start, first_leaf + part.stop)
        return layout.covariances(leaves, worth, warm_up)

    def covariance(one: int, other: int) -> Any:
        return known()(one, other)

    return covariance


def _windows(state: StreamState, sums: list[FloatArray]) -> tuple[StreamState, list[FloatArray]]:
    """Readings of a window from running ones, a window apart.  **Privacy.** Post-processing."""
    before = state.before
    assert before is not None
    running = np.concatenate([before, sums], axis=1)
    count = len(sums[0])
    windows = running[:, -count:] - running[:, :count]
    return state.but(before=running[:, count:].copy()), list(windows)


def read(
    layout: Layout,
    anchor: Anchor,
    units: Units,
    offsets: tuple[float, ...],
    t: Any,
    prefixes: list[Any],
) -> list[Any]:
    """Readings from decoded prefixes, which are used up; of arrays or of numbers alike.

    All so far, or with the half-life.
    """
    kept = layout.kept(t, anchor.after)
    for column, before in enumerate(anchor.prefixes):
        if type(before) is not float or before:
            prefixes[column] -= before * kept
    sums = []
    for reading, worth in enumerate(units):
        total = prefixes[0]
        if reading < len(units) - 1:
            total = total * worth[0]
        else:  # nobody wants the prefix any more
            total *= worth[0]
        for prefix, each in zip(prefixes[1:], worth[1:], strict=True):
            if type(each) is not float or each:
                total += prefix * each
        if type(anchor.sums[reading]) is not float or anchor.sums[reading]:
            total += anchor.sums[reading] * kept
        if offsets and (type(offsets[reading]) is not float or offsets[reading]):
            total += offsets[reading] * layout.remembered(t, anchor.after)
        sums.append(total)
    return sums


def add_back(layout: Layout, anchor: Anchor, t: Any, sums: list[Any]) -> None:
    """Add the mass that clipping is estimated to have removed, in place."""
    if anchor.corrects:
        for reading, count in layout.leaf.corrected:
            sums[reading] += removed_by(layout, anchor, count, t, sums)


def removed_by(
    layout: Layout, anchor: Anchor, count: int | None, t: Any, sums: Sequence[Any]
) -> Any:
    """The mass that clipping is estimated to have removed by ``t``, or by a released count."""
    kept = layout.kept(t, anchor.after)
    if count is None:
        since = layout.remembered(t, anchor.after)
    else:
        since = sums[count] - anchor.sums[count] * kept
    return anchor.removed * kept + anchor.removed_each * since


def _taken_for_complete(
    layout: Layout,
    state: StreamState,
    worth: tuple[Worth, ...],
    first_leaf: int,
    t: IntArray,
    sums: list[FloatArray],
) -> NDArray[np.bool_]:
    """Whether no value is taken to be missing, decided at leaves that are powers of two.

    In a window or with a half-life it is decided anew at each.  **Privacy.** Post-processing of
    released counts.
    """
    if layout.memory.forgets:
        leaves = np.arange(first_leaf, first_leaf + len(t))
        variance = layout.covariances(leaves, worth)(1, 1)
        explained: NDArray[np.bool_] = np.abs(
            layout.remembered(t) - sums[1]
        ) <= EXPLAINED * np.sqrt(variance)
        return explained
    complete = np.full(len(t), state.complete)
    power = 1 << (first_leaf - 1).bit_length()
    while power < first_leaf + len(t):
        place = power - first_leaf
        complete[place:] = is_complete(layout, state, power, int(t[place]), float(sums[1][place]))
        power *= 2
    return complete


def is_complete(layout: Layout, state: StreamState, leaf: int, t: int, count: float) -> bool:
    """Whether a released count of ``t`` observations is all of them, as far as noise can tell."""
    variance = layout.covariances(np.array([leaf]), state.worth, state.warm_up_units)(1, 1)
    return bool(abs(t - count) <= EXPLAINED * math.sqrt(float(variance[0])))


def _finish_segment(
    layout: Layout,
    state: StreamState,
    segment: Segment,
    last_sums: tuple[float, ...],
    last_prefixes: tuple[float, ...],
    released: tuple[float, ...],
) -> StreamState:
    """Look at the counts, learn the range again, count on from here.

    ``last_sums`` are the readings without what clipping removed, all so far or with the half-life;
    ``released`` those of the last release.

    **Privacy.** Costs the observations of the segment what the look says.
    """
    anchor, exact_counts, noise = state.anchor, state.exact_counts, segment.look
    assert anchor is not None
    removed, margins = anchor.removed, anchor.margins
    if layout.leaf.corrected:
        count = layout.leaf.corrected[0][1]
        removed = float(removed_by(layout, anchor, count, state.t, last_sums))
    if noise is not None:
        assert exact_counts is not None
        if state.ahead is not None and state.t in state.ahead.looks:
            draws = state.ahead.looks[state.t]
        else:
            draws = look_noise(noise, state.secret, state.t, len(exact_counts))
        values, rate = _counted_by(layout, state, anchor, segment, last_sums, released)
        look = later_look(noise, exact_counts, draws, _centre(state), values)
        state, anchor = _judge(layout, state.but(exact_counts=None), look, state.t, rate)
        state = state.but(ranges=(*state.ranges, anchor.range))
        if layout.memory.forgets:
            # What was added back stays as it was estimated then: windows are differences.
            anchor = replace(
                anchor,
                removed=removed,
                margins=layout.margins_felt((*margins, *anchor.margins[1:]), state.t),
            )
            kept = layout.threshold.looks_kept(state.looks)
            state = state.but(looks=state.looks[-kept:], ranges=state.ranges[-kept:])
    else:
        anchor = replace(anchor, removed=removed)
    state = state.but(anchor=replace(anchor, after=state.t, sums=last_sums, prefixes=last_prefixes))
    if state.t == layout.length:
        return state
    return _begin_segment(layout, state, layout.segment_at(state.t + 1), released)


def _counted_by(
    layout: Layout,
    state: StreamState,
    anchor: Anchor,
    segment: Segment,
    last_sums: tuple[float, ...],
    released: tuple[float, ...],
) -> tuple[int | None, float | None]:
    """How many values a segment had, and by the clock how many a tick has: from releases.

    None where their number is public.
    """
    count, by_clock = layout.leaf.count_reading, layout.setting.by_clock
    if count is None or (state.complete and not by_clock):
        return None, None
    rate = released[count] / float(layout.remembered(state.t))
    values = last_sums[count] - anchor.sums[count]
    if layout.memory.half_life is not None:
        values = rate * (segment.last - segment.first + 1)
    return max(1, round(values)), rate if by_clock else None


def _judge(
    layout: Layout, state: StreamState, look: Look, t: int, rate: float | None
) -> tuple[StreamState, Anchor]:
    """Choose a range from all looks, and estimate what clipping removes.

    ``rate`` is the released number of observations in a tick, by the clock.  **Privacy.**
    Post-processing of released looks.
    """
    looks = (*state.looks, look)
    outlook = layout.outlook(t, rate)
    finding = layout.threshold.judge(layout.bounds, looks, state.ranges, outlook)
    anchor = Anchor(
        finding.range,
        removed=finding.removed if layout.statistic.clips else 0.0,
        removed_each=finding.removed_each if layout.statistic.clips else 0.0,
        clipped_share=finding.clipped_share,
        margins=((0, finding.margin), (t, finding.margin_each)),
    )
    return state.but(looks=looks), anchor


def later_look(
    noise: LookNoise,
    exact_counts: IntArray,
    draws: IntArray,
    centre: float | None,
    observations: int | None = None,
) -> Look:
    """Release counts.  **Privacy.** Costs each observation that was counted ``noise.cost``.

    ``observations`` is the released number of them, where it is not public.
    """
    return Look(
        noise.observations if observations is None else observations,
        exact_counts + draws,
        noise.scale,
        noise.law,
        centre,
    )


def look_noise(noise: LookNoise, secret: Secret, t: int, count: int) -> IntArray:
    """The noise of the look after ``t`` observations."""
    return LatticeNoise(LAWS[noise.law], noise.scale, secret, ("look", t)).draw(0, count)


def _chunks(layout: Layout, absorbed: int, raw_block: FloatArray) -> list[FloatArray]:
    """Cut where the secret moves on, at multiples of a number of leaves that fits the cache."""
    leaves = layout.ratchet_every
    size = leaves * layout.every if layout.every < leaves else layout.every
    offset = (absorbed - layout.lag) % size
    edges = range(size - offset, len(raw_block), size)
    return np.split(raw_block, edges) if edges else [raw_block]


def _release_leaves(
    layout: Layout, state: StreamState, first_leaf: int, exact_leaves: list[IntArray]
) -> tuple[StreamState, list[FloatArray]]:
    """Encode, add noise, decode some leaves under one key; ratchet when its time is over."""
    mechanism = layout.main
    assert mechanism is not None
    strategy, leaves, count = mechanism.strategy, mechanism.leaves, len(exact_leaves[0])
    state, noise = draw_nodes(layout, state, first_leaf, count)
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    encoders, decoders, prefixes = [], [], []
    for column, exact_column in enumerate(exact_leaves):
        encoded, exact_nodes = encoder.encode(state.encoders[column], first_leaf, exact_column)
        decoded, prefix = decoder.decode(
            state.decoders[column], first_leaf, exact_nodes + noise[column]
        )
        encoders.append(encoded)
        decoders.append(decoded)
        prefixes.append(prefix)
    return state.but(encoders=tuple(encoders), decoders=tuple(decoders)), prefixes


def draw_nodes(
    layout: Layout, state: StreamState, first_leaf: int, count: int
) -> tuple[StreamState, tuple[IntArray, ...]]:
    """Noise of the nodes of some leaves under one key; ratchet when its time is over."""
    mechanism, ahead = layout.main, state.ahead
    assert mechanism is not None
    last = first_leaf + count - 1
    if ahead is not None:
        begin = first_leaf - ahead.first_leaf
        noise = tuple(nodes[begin : begin + count] for nodes in ahead.nodes)
        if begin + count >= len(ahead.nodes[0]):
            state = state.but(ahead=None)
        assert len(noise[0]) == count  # blocks are cut where the secret moves on
        return state, noise
    levels = state.levels or _levels(layout, state.secret, first_leaf)
    process = mechanism.strategy.noise_process(mechanism.leaves)
    drawn = [
        process.draw(own, level, first_leaf, count)
        for own, level in zip(state.processes, levels, strict=True)
    ]
    secret = state.secret
    if layout.ratchet_steps(last) > layout.ratchet_steps(first_leaf - 1):
        secret = secret.ratchet()
        levels = _levels(layout, secret, last + 1)
    state = state.but(secret=secret, processes=tuple(own for own, _ in drawn), levels=levels)
    return state, tuple(noise for _, noise in drawn)


def without_key(layout: Layout, state: StreamState) -> StreamState:
    """The same state without the key in force, with the noise that is still to come from it.

    **Privacy.** From the result and all releases, the noise of no node that was completed before
    can be computed again; it goes on exactly as ``state`` would.
    """
    mechanism = layout.main
    done = layout.complete_leaves(state.t) if state.t > layout.lag else 0
    if state.anchor is None:  # Nothing has been drawn yet.
        return state
    if mechanism is None or done == mechanism.leaves:  # Nothing will be drawn any more.
        return state.but(secret=state.secret.ratchet(), levels=None)
    if state.ahead is not None:
        used = done + 1 - state.ahead.first_leaf
        looks = {t: draws for t, draws in state.ahead.looks.items() if t > state.t}
        nodes = tuple(column[used:].copy() for column in state.ahead.nodes)
        return state.but(ahead=Ahead(done + 1, nodes, looks), levels=None)
    last = layout.last_under_key(done + 1)
    looks = {}
    if state.exact_counts is not None:
        # A look after the last leaf of a key comes under the next one.
        for t, noise in layout.looks_between(state.t, last):
            looks[t] = look_noise(noise, state.secret, t, len(state.exact_counts))
    state, nodes = draw_nodes(layout, state, done + 1, last - done)
    return state.but(ahead=Ahead(done + 1, nodes, looks), levels=None)


# --- Releases: post-processing ---------------------------------------------------------------


class Part(NamedTuple):
    """Releases of one key in one segment, as readings: numbers are worked out for many at once."""

    key: Key
    t: IntArray
    sums: list[FloatArray]
    covariance: Callable[[slice], Covariance]
    anchor: Anchor
    complete: NDArray[np.bool_] | None
    #: Where sums are kept from falling, the greatest so far, for each release and row.
    floor: FloatArray | None = None

    def last(self) -> Part:
        """The last one alone; holds nothing of the others."""
        covariance, end = self.covariance, len(self.t)
        return Part(
            self.key,
            self.t[-1:].copy(),
            [total[-1:].copy() for total in self.sums],
            lambda _: covariance(slice(end - 1, end)),
            self.anchor,
            None if self.complete is None else self.complete[-1:].copy(),
            None if self.floor is None else self.floor[-1:].copy(),
        )

    def before_last(self) -> Part:
        """All but the last one."""
        return self._replace(
            t=self.t[:-1],
            sums=[total[:-1] for total in self.sums],
            complete=None if self.complete is None else self.complete[:-1],
            floor=None if self.floor is None else self.floor[:-1],
        )


def _raised(layout: Layout, state: StreamState, part: Part) -> tuple[StreamState, Part]:
    """With the greatest sum so far, where sums are kept from falling."""
    if not layout.sums_rise:
        return state, part
    names = len(layout.statistic.names)
    lower, upper = part.anchor.range.lower, part.anchor.range.upper
    clipping = ranges(_constant(lower, len(part.t)), _constant(upper, len(part.t)))
    numbers = _Numbers(layout, part.t, part.sums, part.covariance, clipping, part.complete)
    sums = numbers.decoded("sum", slice(0, len(part.t) * names)).reshape(-1, names)
    before = np.zeros(names) if state.floor is None else state.floor
    greatest = np.fmax.accumulate(np.vstack([before, sums]))[1:]
    floor = np.where(np.isnan(sums), np.nan, greatest)  # a row without a sum has none
    return state.but(floor=greatest[-1]), part._replace(floor=floor)


def _released(
    layout: Layout, key: Key, state: StreamState, parts: list[Part], at: int
) -> tuple[StreamState, Releases]:
    """The releases of one key, whose numbers are worked out when they are asked for."""
    if not parts:
        return state, no_releases(layout, key)
    last = parts[-1].last()
    t = int(last.t[0])
    last_at = at if layout.clock is None else int(times_of(layout, last.t, at)[0])
    latest = Release(key, t, last_at, (_rows_of, layout, last))
    return state.but(latest=latest), Releases.join([_releases(layout, part, at) for part in parts])


def _rows_of(layout: Layout, last: Part) -> Rows:
    return _releases(layout, last, 0)[0].rows


def in_order(layout: Layout, parts: list[Part], arrivals: list[IntArray], at: int = 0) -> Releases:
    """The releases of many keys in the order of ``arrivals``, as :meth:`Releases.join` has it.

    Their numbers are worked out, for all of them at once.
    """
    if not parts:
        return no_releases(layout)
    order = np.argsort(np.concatenate(arrivals), kind="stable")
    part_of = np.repeat(np.arange(len(parts)), [len(part.t) for part in parts])[order]
    indices: dict[Key, int] = {}
    key_of = np.array([indices.setdefault(part.key, len(indices)) for part in parts])[part_of]
    covariances = [part.covariance(slice(0, len(part.t))) for part in parts]
    complete = [part.complete for part in parts if part.complete is not None]
    whole = parts[0]._replace(
        t=np.concatenate([part.t for part in parts])[order],
        sums=[np.concatenate(each)[order] for each in zip(*(p.sums for p in parts), strict=True)],
        covariance=lambda _: (
            lambda one, other: np.concatenate([each(one, other) for each in covariances])[order]
        ),
        complete=np.concatenate(complete)[order] if complete else None,
        floor=np.concatenate([p.floor for p in parts if p.floor is not None])[order]
        if layout.sums_rise
        else None,
    )
    anchors = [part.anchor for part in parts]
    margin = None
    if layout.has_margins:
        margins = [_margin(layout, part, slice(None)) for part in parts]
        margin = Margin(*(np.concatenate(each)[order] for each in zip(*margins, strict=True)))
    lower, upper, share = np.array(
        [(anchor.range.lower, anchor.range.upper, anchor.clipped_share) for anchor in anchors]
    ).T
    keys, key_of = renumbered(tuple(indices), key_of)
    clipping = ranges(lower[part_of], upper[part_of])
    releases = _table(
        *(layout, keys, key_of, whole, clipping, share[part_of]),
        lambda part: Margin(*(each[part] for each in margin or ())),
        at,
    )
    for name in layout.columns:
        releases.rows(name)
    return releases


def _releases(layout: Layout, part: Part, at: int) -> Releases:
    """The releases of one part, whose numbers are worked out when they are asked for."""
    anchor, count = part.anchor, len(part.t)
    clipping = ranges(_constant(anchor.range.lower, count), _constant(anchor.range.upper, count))
    share = _constant(anchor.clipped_share, count)
    margin, none = partial(_margin, layout, part), constant_integer(0, count)
    return _table(layout, (part.key,), none, part, clipping, share, margin, at)


def _margin(layout: Layout, part: Part, rows: slice) -> Margin:
    """How far clipping is off at some releases of a part."""
    t, anchor = part.t[rows], part.anchor
    found = layout.margin(anchor.margins, t, anchor.range)
    return Margin(*(np.broadcast_to(each, len(t)) for each in found))


def ranges(lower: Any, upper: Any) -> Range:
    """The ranges of many releases, or of many keys."""
    return Range(lower, upper)


def _table(
    layout: Layout,
    keys: tuple[Key, ...],
    key_of: IntArray,
    part: Part,
    clipping: Range,
    clipped_share: FloatArray,
    margin: Callable[[slice], Margin],
    at: int,
) -> Releases:
    numbers = _Numbers(
        *(layout, part.t, part.sums, part.covariance, clipping, part.complete),
        *(margin, part.floor, clipped_share),
    )
    columns: dict[str, Column] = dict.fromkeys(layout.columns, numbers)
    at_of = times_of(layout, part.t, at)
    return Releases(keys, key_of, part.t, at_of, layout.statistic.names, columns, **layout.common)


class _Numbers:
    """The statistic's numbers of some releases, each worked out when it is asked for.

    Of the part asked for last they are remembered: several are wanted, and some are the same.
    (Objects and no closures: each key of a block has its own, and a closure is many objects.)
    """

    __slots__ = (
        *("clipped_share", "clipping", "complete", "covariance", "floor", "layout", "margin"),
        *("sums", "t", "worked_out"),
    )

    def __init__(
        self,
        layout: Layout,
        t: IntArray,
        sums: list[FloatArray],
        covariance: Callable[[slice], Covariance],
        clipping: Any,
        complete: NDArray[np.bool_] | None,
        margin: Callable[[slice], Margin] = lambda _: Margin(),
        floor: FloatArray | None = None,
        clipped_share: Any = np.nan,
    ) -> None:
        self.layout, self.t, self.sums, self.covariance = layout, t, sums, covariance
        self.clipping, self.complete, self.margin, self.floor = clipping, complete, margin, floor
        self.clipped_share = clipped_share
        self.worked_out: tuple[Any, ...] | None = None

    def __call__(self, name: str, part: slice) -> FloatArray:
        if name not in self.layout.numbers:
            return self._of_clipping(name, part)
        if not (self.layout.sane and name in MENDED):
            return self.decoded(name, part)
        names = len(self.layout.statistic.names)
        rows = slice(part.start // names, part.stop // names)

        def raw(number: str) -> FloatArray:
            if number in ("clip_lower", "clip_upper") and number not in self._known(part):
                end = self.clipping.lower if number == "clip_lower" else self.clipping.upper
                return np.repeat(end[rows], names)
            return self.decoded(number, part)

        floor = None if self.floor is None else self.floor[rows].reshape(-1)
        return np.asarray(mend(self.layout, name, raw, floor))

    def _of_clipping(self, name: str, part: slice) -> FloatArray:
        """What the clipping range says where the statistic says nothing."""
        names = len(self.layout.statistic.names)
        rows = slice(part.start // names, part.stop // names)
        found = self.layout.of_clipping(self.clipping, self.clipped_share)[name]
        if not isinstance(found, np.ndarray):
            return _constant(found, part.stop - part.start)
        return found[rows] if names == 1 else np.repeat(found[rows], names)

    def _known(self, part: slice) -> Mapping[str, Any]:
        self.decoded("value", part)
        assert self.worked_out is not None
        known: Mapping[str, Any] = self.worked_out[1]
        return known

    def decoded(self, name: str, part: slice) -> FloatArray:
        """A number before anything is mended; NaN where the statistic has none."""
        worked_out, asked = self.worked_out, (part.start, part.stop)
        if worked_out is None or worked_out[0] != asked:
            statistic = self.layout.statistic
            names = len(statistic.names)
            numbers = statistic.numbers(
                self._totals(slice(part.start // names, part.stop // names))
            )
            # All at once: several threads may ask.
            worked_out = self.worked_out = asked, numbers, {}
        _, numbers, known = worked_out
        if name not in numbers:
            return np.full(part.stop - part.start, np.nan)
        number = numbers[name]
        if number not in known:
            known[number] = self.layout.completed(name, np.asarray(number(), np.float64))
        found: FloatArray = known[number]
        return found

    def _totals(self, part: slice) -> Totals:
        return Totals(
            None if self.layout.setting.by_clock else self.layout.remembered(self.t[part]),
            tuple(total[part] for total in self.sums),
            cache(self.covariance(part)),
            ranges(self.clipping.lower[part], self.clipping.upper[part]),
            None if self.complete is None else self.complete[part],
            cache(partial(self.margin, part)) if self.layout.has_margins else None,
        )


def values_of(
    layout: Layout,
    t: IntArray,
    sums: list[FloatArray],
    covariance: Covariance,
    clipping: Range,
    margins: Margins,
    complete: NDArray[np.bool_] | None = None,
) -> dict[str, FloatArray]:
    """The statistic's numbers of some releases, by name."""

    def margin(_: slice) -> Margin:
        return layout.margin(margins, t, clipping)

    numbers = _Numbers(layout, t, sums, lambda _: covariance, clipping, complete, margin)
    whole = slice(0, len(t) * len(layout.statistic.names))
    return {name: numbers(name, whole) for name in layout.numbers}


def release_rows(
    layout: Layout,
    anchor: Anchor,
    t: int,
    sums: tuple[float, ...],
    covariance: Callable[[int, int], float],
    complete: bool | None = None,
) -> list[dict[str, Any]]:
    """The rows of one release."""
    statistic = layout.statistic
    count = None if layout.setting.by_clock else layout.remembered(t)
    margin = partial(layout.margin, anchor.margins, t, anchor.range)
    known = cache(margin) if layout.has_margins else None
    totals = Totals(count, sums, covariance, anchor.range, complete, known)
    found = {
        name: layout.completed(name, number()) for name, number in statistic.numbers(totals).items()
    }
    shared = {
        **dict.fromkeys(NUMBERS, float("nan")),
        **layout.of_clipping(anchor.range, anchor.clipped_share),
        **layout.common,
    }
    if len(statistic.names) == 1:
        numbers = {name: float(number) for name, number in found.items()}
        return [{**shared, "name": statistic.names[0], **numbers}]
    return [
        {**shared, "name": name, **{n: float(v[row]) for n, v in found.items()}}
        for row, name in enumerate(statistic.names)
    ]


def rows_again(layout: Layout, numbers: Mapping[str, FloatArray]) -> Rows:
    """The rows of one release from their numbers, each with an entry for each row."""
    return [
        {
            **dict.fromkeys(NUMBERS, float("nan")),
            "name": name,
            **{number: float(own[row]) for number, own in numbers.items()},
            **layout.common,
        }
        for row, name in enumerate(layout.statistic.names)
    ]


def times_of(layout: Layout, t: IntArray, at: int) -> IntArray:
    """When releases come: at the end of their ticks, or all of them now."""
    return constant_integer(at, len(t)) if layout.clock is None else layout.clock.end_of(t)


def _constant(value: float, count: int) -> FloatArray:
    """One number, many times: as ``np.broadcast_to``, whose checks outlast a short step."""
    return np.ndarray((count,), np.float64, np.float64(value).tobytes(), strides=(0,))


def constant_integer(value: int, count: int) -> IntArray:
    """The same for an integer."""
    return np.ndarray((count,), np.int64, np.int64(value).tobytes(), strides=(0,))


def no_releases(layout: Layout, key: Key = ()) -> Releases:
    """An empty table of a plan's releases."""
    nothing = [np.empty(0)] * layout.leaf.readings
    complete = np.empty(0, bool) if layout.leaf.may_be_complete else None
    part = Part(
        key,
        np.empty(0, np.int64),
        nothing,
        lambda _: lambda *_: np.empty(0),
        Anchor(Range(0.0, 0.0)),
        complete,
    )
    return _releases(layout, part, 0)
