"""The heart of a stream: one pure step, ``(state, block) → (state, releases)``.

Streams in memory, on disk, in a service and on a cluster all wrap this one function.

A stream has a *warm-up*, the first ``lag`` observations, from which the clipping range is learned,
and *segments* after it.  One strategy runs through all segments in grid steps; the width of a
step may change from segment to segment, when the range is learned again at public times.

A leaf is an integer vector, as wide as the statistic needs.  Each of its columns runs through the
strategy with nodes and noise of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from rillet.errors import StreamEnded
from rillet.gather.grid import Grid
from rillet.layout import Layout, LookNoise, Segment
from rillet.noise import LAWS, FloatArray, IntArray, LatticeNoise, Secret
from rillet.release import NUMBERS, Column, Key, Release, Releases
from rillet.statistic import Range, Statistic, Totals
from rillet.strategy.base import Levels, State
from rillet.threshold import Look

#: One entry for each column of a leaf.
States: TypeAlias = tuple[State, ...]
#: For a part of some releases, the noise of each column.
UnitStds: TypeAlias = Callable[[slice], tuple[FloatArray, ...]]


@dataclass(frozen=True)
class Anchor:
    """From where a segment counts on: public, since it holds released numbers only.

    ``after`` observations had the totals ``sums`` and the decoded prefixes ``prefixes`` (lattice
    units), one for each column; clipping is estimated to have removed ``removed`` by then, and
    ``removed_each`` from every observation since.
    """

    range: Range
    after: int = 0
    sums: tuple[float, ...] = (0.0,)
    prefixes: tuple[float, ...] = (0.0,)
    removed: float = 0.0
    removed_each: float = 0.0
    clipped_share: float = float("nan")

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
    the decoders noisy values only.  ``looks`` are released measurements, ``weights`` the width
    of a grid step in each segment, for each column.

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
    weights: tuple[tuple[float, ...], ...] = ()
    encoders: States = field(default=(), repr=False)
    decoders: States = field(default=(), repr=False)
    processes: States = field(default=(), repr=False)
    ahead: Ahead | None = field(default=None, repr=False)
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
    width = layout.statistic.width
    state = StreamState(t=0, secret=secret, exact_partial=(0,) * width)
    if layout.declared_range is None:
        return state
    zero = (0.0,) * width
    return _begin_main(
        layout, state.but(anchor=Anchor(layout.declared_range, sums=zero, prefixes=zero))
    )


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
    return state, Releases.join(parts) if parts else no_releases(layout, key)


def step_parts(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray, at: int
) -> tuple[StreamState, list[Releases]]:
    """As :func:`step`, with the releases of each segment apart: those of many keys are joined once.

    **Privacy.** As :func:`step`.
    """
    if state.t + len(raw_block) > layout.length:
        raise stream_ended(layout, state.t + len(raw_block), key)
    parts: list[Releases] = []
    if state.t < layout.lag:
        raw_learning, raw_block = np.split(raw_block, [layout.lag - state.t])
        state = state.but(
            t=state.t + len(raw_learning),
            raw_buffer=(*state.raw_buffer, raw_learning.copy()),
        )
        if state.t == layout.lag:
            state, released = _finish_warm_up(layout, key, state, at)
            parts.append(released)
    while len(raw_block):
        raw_part, raw_block = np.split(raw_block, [layout.segment_at(state.t + 1).last - state.t])
        state, released = _run_segment(layout, key, state, raw_part, at)
        parts.append(released)
    return state, parts


def stream_ended(layout: Layout, found: int, key: Key = ()) -> StreamEnded:
    """What is raised when a block would bring a stream past its length."""
    of = f" for each key, and this block would bring key {key} to" if key else ", found"
    return StreamEnded(
        f"length: expected at most {layout.length:,} observations{of} {found:,}; nothing of the "
        "block was absorbed. Open a new stream, or plan with a larger length"
    )


# --- The warm-up: the first `lag` observations -------------------------------------------------


def _finish_warm_up(
    layout: Layout, key: Key, state: StreamState, at: int
) -> tuple[StreamState, Releases]:
    """Learn the range from the buffer, release its total, forget the buffer.

    **Privacy.** Costs each of the first ``lag`` observations the threshold's cost plus the
    warm-up's.  The total is clipped to the learned range too: unclipped it could move by the whole
    public range.
    """
    mechanism, statistic = layout.warm_up, layout.statistic
    assert mechanism is not None
    raw_values = np.concatenate(state.raw_buffer)
    look = layout.threshold.measure(
        raw_values, layout.bounds, layout.threshold_budget, layout.guarantee.delta, state.secret
    )
    state, anchor = _judge(layout, state, look, layout.lag)
    grid = Grid(anchor.range.lower, anchor.range.upper, mechanism.steps)
    zero = (0,) * statistic.width
    exact_leaves, _ = _group(
        statistic.contribute(raw_values, grid), zero, layout.warm_up_every, 0, last=True
    )
    strategy, leaves, count = mechanism.strategy, mechanism.leaves, len(exact_leaves[0])
    t = np.minimum(np.arange(1, count + 1) * layout.warm_up_every, layout.lag)
    sums = []
    for column, (exact_column, span) in enumerate(
        zip(exact_leaves, statistic.spans(anchor.range), strict=True)
    ):
        encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
        _, exact_nodes = encoder.encode(encoder.start(), 1, exact_column)
        process = strategy.noise_process(leaves)
        levels = mechanism.levels(state.secret, "warm-up", column=column)
        _, noise = process.draw(process.start(), levels, 1, len(exact_nodes))
        _, prefix = decoder.decode(decoder.start(), 1, exact_nodes + noise)
        sums.append(prefix * (span.width / grid.steps) + span.lower * t)
    unit_std = np.sqrt(mechanism.unit_variance(np.arange(1, count + 1)))
    anchor = replace(
        anchor,
        after=layout.lag,
        sums=tuple(float(total[-1]) for total in sums),
        prefixes=(0.0,) * statistic.width,
    )
    if anchor.removed:
        sums[0] = sums[0] + anchor.removed / layout.lag * t
    releases = _releases(
        layout, key, t, at, sums, lambda part: (unit_std[part],) * statistic.width, anchor
    )
    last = releases[-1:]
    state = state.but(
        raw_buffer=(),
        anchor=anchor,
        ranges=(anchor.range,),
        backfill=releases if layout.backfill else None,
        latest=Release(key, layout.lag, at, (lambda: last[-1].rows,)),
    )
    return _begin_main(layout, state), last


# --- Segments ------------------------------------------------------------------------------------


def _begin_main(layout: Layout, state: StreamState) -> StreamState:
    """Start encoders and decoders, and leave the warm-up's key behind."""
    secret = state.secret.ratchet()
    if layout.main is None:
        return state.but(secret=secret)
    strategy, leaves, width = layout.main.strategy, layout.main.leaves, layout.statistic.width
    state = state.but(
        secret=secret,
        encoders=(strategy.encoder(leaves).start(),) * width,
        decoders=(strategy.decoder(leaves).start(),) * width,
        processes=(strategy.noise_process(leaves).start(),) * width,
        levels=_levels(layout, secret),
    )
    return _begin_segment(layout, state, layout.segments[0])


def _levels(layout: Layout, secret: Secret) -> tuple[Levels, ...]:
    assert layout.main is not None
    return tuple(
        layout.main.levels(secret, "main", column=column)
        for column in range(layout.statistic.width)
    )


def _begin_segment(layout: Layout, state: StreamState, segment: Segment) -> StreamState:
    """Note the width of a grid step from now on; start empty counts where they are wanted."""
    assert state.anchor is not None
    units = tuple(span.width / segment.steps for span in layout.statistic.spans(state.anchor.range))
    exact_counts = None
    if segment.look is not None:
        exact_counts = layout.threshold.count(np.empty(0), layout.bounds, _centre(state))
    return state.but(weights=(*state.weights, units), exact_counts=exact_counts)


def _centre(state: StreamState) -> float | None:
    """The released point that counts are taken around."""
    return state.looks[0].centre if state.looks else None


def segment_grid(state: StreamState, segment: Segment) -> Grid:
    """The lattice in force."""
    assert state.anchor is not None
    return Grid(state.anchor.range.lower, state.anchor.range.upper, segment.steps)


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


def _run_segment(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray, at: int
) -> tuple[StreamState, Releases]:
    """Clip, quantise, group into leaves, encode, add noise, decode; in cache-sized chunks.

    **Privacy.** Each observation is charged what its segment says, once.
    """
    anchor, segment = state.anchor, layout.segment_at(state.t + 1)
    assert anchor is not None
    grid, statistic = segment_grid(state, segment), layout.statistic
    first_leaf = layout.leaf_of(state.t + 1)
    count = layout.complete_leaves(state.t + len(raw_block)) - first_leaf + 1
    prefixes = [np.empty(count) for _ in range(statistic.width)]
    done = 0
    for raw_chunk in _chunks(layout, state.t, raw_block):
        exact_leaves, exact_partial = _group(
            statistic.contribute(raw_chunk, grid),
            state.exact_partial,
            layout.every,
            (state.t - layout.lag) % layout.every,
            last=state.t + len(raw_chunk) == layout.length,
        )
        exact_counts = state.exact_counts
        if exact_counts is not None:
            exact_counts = exact_counts + layout.threshold.count(
                raw_chunk, layout.bounds, _centre(state)
            )
        state = state.but(
            t=state.t + len(raw_chunk), exact_partial=exact_partial, exact_counts=exact_counts
        )
        added = len(exact_leaves[0])
        if added:
            state, decoded = _release_leaves(layout, state, first_leaf + done, exact_leaves)
            for prefix, part in zip(prefixes, decoded, strict=True):
                prefix[done : done + added] = part
            done += added
    last_prefixes = tuple(float(prefix[-1]) for prefix in prefixes) if done else ()
    t = layout.release_times(first_leaf, done)
    sums = decode_sums(anchor, statistic.spans(anchor.range), state.weights[-1], t, prefixes)
    plain_last = tuple(float(total[-1]) for total in sums) if done else ()
    if anchor.corrects:
        sums[0] += anchor.removed + anchor.removed_each * (t - anchor.after)
    weights = state.weights
    if state.t == segment.last and segment.look is not None:
        state = _finish_segment(layout, state, segment.look, plain_last, last_prefixes)
        if done and state.t == layout.length and state.anchor is not None:
            sums[0][-1] = plain_last[0] + state.anchor.removed
    unit_stds = partial(_unit_stds, layout, weights, first_leaf)
    releases = _releases(layout, key, t, at, sums, unit_stds, anchor)
    if done:
        last, last_sums = int(t[-1]), tuple(float(total[-1]) for total in sums)
        latest = _latest_rows, layout, anchor, last, last_sums, weights, first_leaf + done - 1
        state = state.but(latest=Release(key, last, at, latest))
    return state, releases


def _unit_stds(
    layout: Layout, weights: tuple[tuple[float, ...], ...], first_leaf: int, part: slice
) -> tuple[FloatArray, ...]:
    """The noise of each column at some leaves from the first on; equal weights share it."""
    leaves = np.arange(first_leaf + part.start, first_leaf + part.stop)
    known: dict[tuple[float, ...], FloatArray] = {}
    columns = []
    for of_column in zip(*weights, strict=True):
        if of_column not in known:
            known[of_column] = layout.unit_std(leaves, of_column)
        columns.append(known[of_column])
    return tuple(columns)


def _latest_rows(
    layout: Layout,
    anchor: Anchor,
    t: int,
    sums: tuple[float, ...],
    weights: tuple[tuple[float, ...], ...],
    leaf: int,
) -> list[dict[str, Any]]:
    unit_stds = _unit_stds(layout, weights, leaf, slice(0, 1))
    return release_rows(layout, anchor, t, sums, tuple(float(std[0]) for std in unit_stds))


def decode_sums(
    anchor: Anchor,
    spans: tuple[Range, ...],
    units: tuple[float, ...],
    t: Any,
    prefixes: list[Any],
) -> list[Any]:
    """Totals in the data's unit from decoded prefixes, in place for arrays; also of numbers."""
    sums = []
    for column, prefix in enumerate(prefixes):
        total = prefix
        total -= anchor.prefixes[column]
        total *= units[column]
        total += anchor.sums[column]
        if spans[column].lower:
            total += spans[column].lower * (t - anchor.after)
        sums.append(total)
    return sums


def _finish_segment(
    layout: Layout,
    state: StreamState,
    noise: LookNoise,
    last_sums: tuple[float, ...],
    last_prefixes: tuple[float, ...],
) -> StreamState:
    """Look at the counts, learn the range again, count on from here.

    **Privacy.** Costs the observations of the segment what the look says.
    """
    exact_counts = state.exact_counts
    assert exact_counts is not None
    if state.ahead is not None and state.t in state.ahead.looks:
        draws = state.ahead.looks[state.t]
    else:
        draws = look_noise(noise, state.secret, state.t, len(exact_counts))
    look = later_look(noise, exact_counts, draws, _centre(state))
    state, anchor = _judge(layout, state.but(exact_counts=None), look, state.t)
    state = state.but(
        anchor=replace(anchor, after=state.t, sums=last_sums, prefixes=last_prefixes),
        ranges=(*state.ranges, anchor.range),
    )
    if state.t == layout.length:
        return state
    return _begin_segment(layout, state, layout.segment_at(state.t + 1))


def _judge(layout: Layout, state: StreamState, look: Look, t: int) -> tuple[StreamState, Anchor]:
    """Choose a range from all looks, and estimate what clipping removes.

    **Privacy.** Post-processing of released looks.
    """
    looks = (*state.looks, look)
    finding = layout.threshold.judge(layout.bounds, looks, state.ranges, layout.outlook(t))
    anchor = Anchor(
        finding.range,
        removed=finding.removed if layout.statistic.clips else 0.0,
        removed_each=finding.removed_each if layout.statistic.clips else 0.0,
        clipped_share=finding.clipped_share,
    )
    return state.but(looks=looks), anchor


def later_look(
    noise: LookNoise, exact_counts: IntArray, draws: IntArray, centre: float | None
) -> Look:
    """Release counts.  **Privacy.** Costs each observation that was counted ``noise.cost``."""
    return Look(noise.observations, exact_counts + draws, noise.scale, noise.law, centre)


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
    levels = state.levels or _levels(layout, state.secret)
    process = mechanism.strategy.noise_process(mechanism.leaves)
    drawn = [
        process.draw(own, level, first_leaf, count)
        for own, level in zip(state.processes, levels, strict=True)
    ]
    secret = state.secret
    if layout.ratchet_steps(last) > layout.ratchet_steps(first_leaf - 1):
        secret = secret.ratchet()
        levels = _levels(layout, secret)
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
    every = layout.ratchet_every
    last = min(mechanism.leaves, (done // every + 1) * every)
    looks = {}
    for segment in layout.segments:
        # A look after the last leaf of a key comes under the next one.
        soon = state.t < segment.last and layout.complete_leaves(segment.last) < last
        if soon and segment.look is not None and state.exact_counts is not None:
            count = len(state.exact_counts)
            looks[segment.last] = look_noise(segment.look, state.secret, segment.last, count)
    state, nodes = draw_nodes(layout, state, done + 1, last - done)
    return state.but(ahead=Ahead(done + 1, nodes, looks), levels=None)


# --- Releases: post-processing ---------------------------------------------------------------


def _releases(
    layout: Layout,
    key: Key,
    t: IntArray,
    at: int,
    sums: list[FloatArray],
    unit_stds: UnitStds,
    anchor: Anchor,
) -> Releases:
    statistic, rows = layout.statistic, len(t) * len(layout.statistic.names)
    numbers = _Numbers(statistic, t, sums, unit_stds, anchor.range)
    columns: dict[str, Column] = dict.fromkeys(_numbers_of(statistic), numbers)
    for name, value in _clipping(layout, anchor).items():
        columns[name] = _constant(value, rows)
    return Releases(
        (key,),
        _constant_integer(0, len(t)),
        t,
        _constant_integer(at, len(t)),
        statistic.names,
        columns,
        layout.noise_law,
        layout.post_processing,
    )


class _Numbers:
    """The statistic's numbers of some releases, each worked out when it is asked for.

    Of the part asked for last they are remembered: several are wanted, and some are the same.
    (Objects and no closures: each key of a block has its own, and a closure is many objects.)
    """

    __slots__ = ("asked", "known", "numbers", "statistic", "sums", "t", "unit_stds", "widths")

    def __init__(
        self,
        statistic: Statistic,
        t: IntArray,
        sums: list[FloatArray],
        unit_stds: UnitStds,
        clipping: Range,
    ) -> None:
        self.statistic, self.t, self.sums, self.unit_stds = statistic, t, sums, unit_stds
        self.widths = _widths(statistic, clipping)
        self.asked: tuple[int, int] | None = None

    def __call__(self, name: str, part: slice) -> FloatArray:
        if self.asked != (part.start, part.stop):
            self.asked = part.start, part.stop
            names = len(self.statistic.names)
            self.numbers = self.statistic.numbers(
                self._totals(slice(part.start // names, part.stop // names))
            )
            self.known: dict[Callable[[], Any], FloatArray] = {}
        number = self.numbers[name]
        if number not in self.known:
            self.known[number] = np.asarray(number(), np.float64)
        return self.known[number]

    def _totals(self, part: slice) -> Totals:
        unit_stds = cache(partial(self.unit_stds, part))
        return Totals(
            self.t[part], tuple(total[part] for total in self.sums), unit_stds, self.widths
        )


@cache
def _numbers_of(statistic: Statistic) -> tuple[str, ...]:
    """Which numbers of the record a statistic has."""
    nothing = (np.empty(0),) * statistic.width
    ones = (1.0,) * statistic.width
    return tuple(statistic.numbers(Totals(nothing[0], nothing, lambda: nothing, ones)))


def release_rows(
    layout: Layout,
    anchor: Anchor,
    t: int,
    sums: tuple[float, ...],
    unit_stds: tuple[float, ...],
) -> list[dict[str, Any]]:
    """The rows of one release."""
    statistic = layout.statistic
    totals = Totals(t, sums, lambda: unit_stds, _widths(statistic, anchor.range))
    numbers = {name: number() for name, number in statistic.numbers(totals).items()}
    shared = {
        **_clipping(layout, anchor),
        "noise_law": layout.noise_law,
        "post_processing": layout.post_processing,
    }
    unknown = dict.fromkeys(NUMBERS, float("nan"))
    if len(statistic.names) == 1:
        return [{**unknown, "name": statistic.names[0], **numbers, **shared}]
    return [
        {**unknown, "name": name, **{n: float(v[row]) for n, v in numbers.items()}, **shared}
        for row, name in enumerate(statistic.names)
    ]


def _widths(statistic: Statistic, clipping: Range) -> tuple[float, ...]:
    return tuple(span.width for span in statistic.spans(clipping))


def _clipping(layout: Layout, anchor: Anchor) -> dict[str, float]:
    """The clipping range of a record; unknown where nothing is clipped."""
    clips = layout.statistic.clips
    return {
        "clip_lower": anchor.range.lower if clips else float("nan"),
        "clip_upper": anchor.range.upper if clips else float("nan"),
        "clipped_share": anchor.clipped_share,
    }


def _constant(value: float, count: int) -> FloatArray:
    """One number, many times: as ``np.broadcast_to``, whose checks outlast a short step."""
    return np.ndarray((count,), np.float64, np.float64(value).tobytes(), strides=(0,))


def _constant_integer(value: int, count: int) -> IntArray:
    return np.ndarray((count,), np.int64, np.int64(value).tobytes(), strides=(0,))


def no_releases(layout: Layout, key: Key = ()) -> Releases:
    """An empty table of a plan's releases."""
    empty = np.empty(0)
    width = layout.statistic.width
    nothing = Anchor(Range(0.0, 0.0))
    return _releases(
        layout, key, np.empty(0, np.int64), 0, [empty] * width, lambda _: (empty,) * width, nothing
    )
