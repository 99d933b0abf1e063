"""The heart of a stream: one pure step, ``(state, block) → (state, releases)``.

:class:`rillet.Stream`, many keys, a service and a cluster all wrap this one function.

A stream has an *opening*, the first ``lag`` observations, from which the clipping range is learned,
and *epochs* after it.  One strategy runs through all epochs in lattice units; what a unit is worth
may change from epoch to epoch, when the range is learned again at public times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.errors import StreamEnded
from rillet.gather.grid import Grid
from rillet.layout import Epoch, Layout, LookNoise
from rillet.noise import LAWS, FloatArray, IntArray, LatticeNoise, Secret
from rillet.release import Key, Release, Releases
from rillet.strategy.base import Levels, State
from rillet.threshold import Look, Range, RefreshingThreshold


@dataclass(frozen=True)
class Segment:
    """From where an epoch counts on: public, since it holds released numbers only.

    ``after`` observations had the sum ``sum`` and the decoded prefix ``prefix`` (lattice units);
    clipping is estimated to have removed ``removed`` by then, and ``removed_each`` from every
    observation since.
    """

    range: Range
    after: int = 0
    sum: float = 0.0
    prefix: float = 0.0
    removed: float = 0.0
    removed_each: float = 0.0
    clipped_share: float = float("nan")


@dataclass(frozen=True)
class Ahead:
    """Noise up to the next ratchet step, drawn before its key was destroyed.

    ``nodes`` is the noise of the leaves from ``first_leaf`` on, ``looks`` that of the tallies of
    looks until then, by their time.
    """

    first_leaf: int
    nodes: IntArray = field(repr=False)
    looks: dict[int, IntArray] = field(repr=False)


@dataclass(frozen=True)
class StreamState:
    """All that a stream remembers.  Holds unreleased data: protect it as the data themselves.

    ``exact_partial`` is the sum of the leaf that is not complete yet, ``exact_tally`` the counts
    from which the range will be learned again; the encoder holds exact sums of open nodes only,
    the decoder noisy values only.  ``looks`` are the released tallies, ``centre`` the released
    point that they are taken around, ``weights`` what a lattice unit was worth in each epoch.

    ``ahead`` is set where the key in force has been destroyed already: the noise that was still to
    be drawn from it.  ``secret`` is then that of the next ratchet step, ``process`` the state that
    the noise process will have there.
    """

    t: int
    secret: Secret = field(repr=False)
    raw_buffer: tuple[FloatArray, ...] = field(default=(), repr=False)
    segment: Segment | None = None
    exact_partial: int = field(default=0, repr=False)
    exact_tally: IntArray | None = field(default=None, repr=False)
    looks: tuple[Look, ...] = field(default=(), repr=False)
    ranges: tuple[Range, ...] = ()
    centre: float | None = None
    weights: tuple[float, ...] = ()
    encoder: State = field(default=(), repr=False)
    decoder: State = field(default=(), repr=False)
    process: State = field(default=(), repr=False)
    ahead: Ahead | None = field(default=None, repr=False)
    latest: Release | None = None
    backfill: Releases | None = field(default=None, repr=False)
    #: Noise under the current key: derived from the secret, never stored.
    levels: Levels | None = field(default=None, repr=False, compare=False)

    def but(self, **changes: Any) -> StreamState:
        """As ``dataclasses.replace``, ten times faster: many keys change their states often."""
        changed = object.__new__(StreamState)
        changed.__dict__.update(self.__dict__, **changes)
        return changed


def start(layout: Layout, secret: Secret) -> StreamState:
    """State before the first observation.  ``secret`` is the stream's own."""
    state = StreamState(t=0, secret=secret)
    if layout.declared_range is None:
        return state
    return _begin_main(layout, state.but(segment=Segment(layout.declared_range)))


def step(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray
) -> tuple[StreamState, Releases]:
    """Absorb a block of observations; return the new state and what it releases.

    **Privacy.** All blocks of a stream together give what ``layout.guarantee`` promises, for
    inputs that may be chosen adaptively.  Pure: the same state and block give the same result, so
    a replay gives the same releases.  Nothing depends on the values before the noise.
    """
    if state.t + len(raw_block) > layout.length:
        raise StreamEnded(
            f"length: this plan promises at most {layout.length:,} observations, and this block "
            f"would bring {state.t + len(raw_block):,}; nothing of the block was absorbed. "
            "Open a new stream, or plan with a larger length"
        )
    parts: list[Releases] = []
    if state.t < layout.lag:
        raw_learning, raw_block = np.split(raw_block, [layout.lag - state.t])
        state = state.but(
            t=state.t + len(raw_learning),
            raw_buffer=(*state.raw_buffer, raw_learning.copy()),
        )
        if state.t == layout.lag:
            state, released = _finish_opening(layout, key, state)
            parts.append(released)
    while len(raw_block):
        raw_part, raw_block = np.split(raw_block, [layout.epoch_at(state.t + 1).last - state.t])
        state, released = _run_epoch(layout, key, state, raw_part)
        parts.append(released)
    releases = Releases.join(parts) if parts else _no_releases(layout, key)
    if len(releases):
        state = state.but(latest=releases[-1])
    return state, releases


# --- The opening: the first `lag` observations -------------------------------------------------


def _finish_opening(layout: Layout, key: Key, state: StreamState) -> tuple[StreamState, Releases]:
    """Learn the range from the buffer, release its sum, forget the buffer.

    **Privacy.** Costs each of the first ``lag`` observations the threshold's cost plus the
    opening's.  The sum is clipped to the learned range too: unclipped it could move by the whole
    public range.
    """
    opening = layout.opening
    assert opening is not None
    raw_values = np.concatenate(state.raw_buffer)
    if isinstance(layout.threshold, RefreshingThreshold):
        bounds, centre = layout.bounds, None
        if layout.centre_budget:
            centre = layout.threshold.find_centre(
                raw_values, bounds, layout.centre_budget, state.secret
            )
        exact_tally = layout.threshold.tally(raw_values, bounds, centre)
        state = state.but(centre=centre, exact_tally=exact_tally)
        state, learned, segment = _look(layout, state, layout.lag)
    else:
        learned = layout.threshold.learn(
            raw_values, layout.bounds, layout.threshold_budget, layout.guarantee.delta, state.secret
        )
        segment = Segment(learned)
    grid = Grid(learned.lower, learned.upper, opening.steps)
    exact_leaves, _ = _group(grid.quantise(raw_values), 0, layout.opening_every, 0, last=True)
    strategy, leaves = opening.strategy, opening.leaves
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    _, exact_nodes = encoder.encode(encoder.start(), 1, exact_leaves)
    process, levels = strategy.noise_process(leaves), opening.levels(state.secret, "opening")
    _, noise = process.draw(process.start(), levels, 1, len(exact_nodes))
    noisy = exact_nodes + noise
    _, prefix = decoder.decode(decoder.start(), 1, noisy)

    t = np.minimum(np.arange(1, len(prefix) + 1) * layout.opening_every, layout.lag)
    sums = prefix * grid.step + learned.lower * t
    unit_std = np.sqrt(opening.unit_variance(np.arange(1, len(prefix) + 1)))
    segment = replace(segment, after=layout.lag, sum=float(sums[-1]))
    corrected = sums + segment.removed / layout.lag * t if segment.removed else sums
    releases = _releases(layout, key, t, corrected, unit_std, segment)
    state = state.but(
        raw_buffer=(),
        segment=segment,
        ranges=(learned,),
        backfill=releases if layout.backfill else None,
    )
    return _begin_main(layout, state), releases[-1:]


# --- Epochs --------------------------------------------------------------------------------------


def _begin_main(layout: Layout, state: StreamState) -> StreamState:
    """Start encoder and decoder, and leave the opening's key behind."""
    secret = state.secret.ratchet()
    if layout.main is None:
        return state.but(secret=secret)
    strategy, leaves = layout.main.strategy, layout.main.leaves
    state = state.but(
        secret=secret,
        encoder=strategy.encoder(leaves).start(),
        decoder=strategy.decoder(leaves).start(),
        process=strategy.noise_process(leaves).start(),
        levels=layout.main.levels(secret, "main"),
    )
    return _begin_epoch(layout, state, layout.epochs[0])


def _begin_epoch(layout: Layout, state: StreamState, epoch: Epoch) -> StreamState:
    """Note what a lattice unit is worth from now on; start an empty tally where one is wanted."""
    grid = epoch_grid(state, epoch)
    exact_tally = None
    if epoch.look is not None:
        assert isinstance(layout.threshold, RefreshingThreshold)
        exact_tally = layout.threshold.tally(np.empty(0), layout.bounds, state.centre)
    return state.but(weights=(*state.weights, grid.step), exact_tally=exact_tally)


def epoch_grid(state: StreamState, epoch: Epoch) -> Grid:
    """The lattice in force."""
    assert state.segment is not None
    return Grid(state.segment.range.lower, state.segment.range.upper, epoch.steps)


def _group(
    exact_units: IntArray, exact_partial: int, every: int, in_leaf: int, *, last: bool
) -> tuple[IntArray, int]:
    """Sum observations into leaves of ``every``; returns complete leaves and the open one's sum.

    ``in_leaf`` observations are in the open leaf already; ``last`` closes it however short.
    """
    if every == 1:
        return exact_units, 0
    edges = np.arange(every - in_leaf, len(exact_units) + 1, every)
    if last and (not len(edges) or edges[-1] != len(exact_units)):
        edges = np.append(edges, len(exact_units))
    exact_sums = np.cumsum(exact_units)
    exact_sums += exact_partial
    if not len(edges):
        return np.empty(0, np.int64), int(exact_sums[-1])
    exact_ends = exact_sums[edges - 1]
    return np.diff(exact_ends, prepend=0), int(exact_sums[-1] - exact_ends[-1])


def _run_epoch(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray
) -> tuple[StreamState, Releases]:
    """Clip, quantise, group into leaves, encode, add noise, decode; in cache-sized chunks.

    **Privacy.** Each observation is charged what its epoch says, once.
    """
    segment, epoch = state.segment, layout.epoch_at(state.t + 1)
    assert segment is not None
    grid = epoch_grid(state, epoch)
    first_leaf = layout.leaf_of(state.t + 1)
    prefix = np.empty(layout.complete_leaves(state.t + len(raw_block)) - first_leaf + 1)
    exact_partial, done = state.exact_partial, 0
    for raw_chunk in _chunks(layout, state.t, raw_block):
        exact_leaves, exact_partial = _group(
            grid.quantise(raw_chunk),
            exact_partial,
            layout.every,
            (state.t - layout.lag) % layout.every,
            last=state.t + len(raw_chunk) == layout.length,
        )
        exact_tally = state.exact_tally
        if exact_tally is not None:
            assert isinstance(layout.threshold, RefreshingThreshold)
            exact_tally = exact_tally + layout.threshold.tally(
                raw_chunk, layout.bounds, state.centre
            )
        state = state.but(
            t=state.t + len(raw_chunk), exact_partial=exact_partial, exact_tally=exact_tally
        )
        if len(exact_leaves):
            state, noisy_prefix = _release_leaves(layout, state, first_leaf + done, exact_leaves)
            prefix[done : done + len(exact_leaves)] = noisy_prefix
            done += len(exact_leaves)
    last_prefix = float(prefix[-1]) if done else 0.0
    t = layout.release_times(first_leaf, done)
    sums = _decode_sums(segment, grid.step, t, prefix)
    plain_last = float(sums[-1]) if done else 0.0
    if segment.removed or segment.removed_each:
        sums += segment.removed + segment.removed_each * (t - segment.after)
    weights = state.weights

    def unit_std(place: slice) -> FloatArray:
        return layout.unit_std(np.arange(first_leaf, first_leaf + done)[place], weights)

    if state.t == epoch.last and epoch.look is not None:
        state = _finish_epoch(layout, state, plain_last, last_prefix)
        if done and state.t == layout.length and state.segment is not None:
            sums[-1] = plain_last + state.segment.removed
    return state, _releases(layout, key, t, sums, unit_std, segment)


def _decode_sums(segment: Segment, unit: float, t: IntArray, prefix: FloatArray) -> FloatArray:
    """Sums in the data's unit from decoded prefixes; the scalar form does the same operations."""
    prefix -= segment.prefix
    prefix *= unit
    prefix += segment.sum
    if segment.range.lower:
        prefix += segment.range.lower * (t - segment.after)
    return prefix


def _finish_epoch(
    layout: Layout, state: StreamState, last_sum: float, last_prefix: float
) -> StreamState:
    """Look at the tally, learn the range again, count on from here."""
    state, learned, segment = _look(layout, state, state.t)
    state = state.but(
        segment=replace(segment, after=state.t, sum=last_sum, prefix=last_prefix),
        ranges=(*state.ranges, learned),
    )
    if state.t == layout.length:
        return state.but(exact_tally=None)
    return _begin_epoch(layout, state, layout.epoch_at(state.t + 1))


def _look(layout: Layout, state: StreamState, t: int) -> tuple[StreamState, Range, Segment]:
    """Release the tally with noise; choose a range and estimate what clipping removes.

    **Privacy.** Costs the observations of the tally what the look says; the choice is
    post-processing of released tallies.
    """
    threshold, noise = layout.threshold, layout.look_at(t)
    assert isinstance(threshold, RefreshingThreshold) and state.exact_tally is not None
    if state.ahead is not None and t in state.ahead.looks:
        draws = state.ahead.looks[t]
    else:
        draws = _look_noise(noise, state.secret, t, len(state.exact_tally))
    noisy = state.exact_tally + draws
    look = Look(noisy, noise.observations, noise.scale, noise.law)
    looks = (*state.looks, look)
    state = state.but(looks=looks, exact_tally=None)
    outlook = layout.outlook(t)
    finding = threshold.judge(layout.bounds, looks, state.ranges, outlook, state.centre)
    segment = Segment(
        finding.range,
        removed=finding.removed,
        removed_each=finding.removed_each,
        clipped_share=finding.clipped_share,
    )
    return state, finding.range, segment


def _look_noise(noise: LookNoise, secret: Secret, t: int, count: int) -> IntArray:
    return LatticeNoise(LAWS[noise.law], noise.scale, secret, ("look", t)).draw(0, count)


def _chunks(layout: Layout, absorbed: int, raw_block: FloatArray) -> list[FloatArray]:
    """Cut where the secret moves on, at multiples of a number of leaves that fits the cache."""
    leaves = layout.ratchet_every
    size = leaves * layout.every if layout.every < leaves else layout.every
    offset = (absorbed - layout.lag) % size
    edges = range(size - offset, len(raw_block), size)
    return np.split(raw_block, edges) if edges else [raw_block]


def _release_leaves(
    layout: Layout, state: StreamState, first_leaf: int, exact_leaves: IntArray
) -> tuple[StreamState, NDArray[np.int64] | FloatArray]:
    """Encode, add noise, decode some leaves under one key; ratchet when its time is over."""
    mechanism = layout.main
    assert mechanism is not None
    strategy, leaves = mechanism.strategy, mechanism.leaves
    encoder_state, exact_nodes = strategy.encoder(leaves).encode(
        state.encoder, first_leaf, exact_leaves
    )
    state, noise = draw_nodes(layout, state, first_leaf, len(exact_nodes))
    noisy = exact_nodes + noise
    decoder_state, prefix = strategy.decoder(leaves).decode(state.decoder, first_leaf, noisy)
    return state.but(encoder=encoder_state, decoder=decoder_state), prefix


def draw_nodes(
    layout: Layout, state: StreamState, first_leaf: int, count: int
) -> tuple[StreamState, IntArray]:
    """Noise of the nodes of some leaves under one key; ratchet when its time is over."""
    mechanism, ahead = layout.main, state.ahead
    assert mechanism is not None
    last = first_leaf + count - 1
    if ahead is not None:
        begin = first_leaf - ahead.first_leaf
        noise = ahead.nodes[begin : begin + count]
        if begin + count >= len(ahead.nodes):
            state = state.but(ahead=None)
        if len(noise) == count:
            return state, noise
        # Stored by a release with shorter steps of the ratchet: the rest is under the next key.
        state, rest = draw_nodes(layout, state, first_leaf + len(noise), count - len(noise))
        return state, np.concatenate([noise, rest])
    levels = state.levels or mechanism.levels(state.secret, "main")
    process = mechanism.strategy.noise_process(mechanism.leaves)
    process_state, noise = process.draw(state.process, levels, first_leaf, count)
    secret = state.secret
    if layout.ratchet_steps(last) > layout.ratchet_steps(first_leaf - 1):
        secret = secret.ratchet()
        levels = mechanism.levels(secret, "main")
    return state.but(secret=secret, process=process_state, levels=levels), noise


def without_key(layout: Layout, state: StreamState) -> StreamState:
    """The same state without the key in force, with the noise that is still to come from it.

    **Privacy.** From the result and all releases, the noise of no node that was completed before
    can be computed again; it goes on exactly as ``state`` would.
    """
    mechanism = layout.main
    done = layout.complete_leaves(state.t) if state.t > layout.lag else 0
    if state.segment is None:  # Nothing has been drawn yet.
        return state
    if mechanism is None or done == mechanism.leaves:  # Nothing will be drawn any more.
        return state.but(secret=state.secret.ratchet(), levels=None)
    if state.ahead is not None:
        used = done + 1 - state.ahead.first_leaf
        looks = {t: draws for t, draws in state.ahead.looks.items() if t > state.t}
        return state.but(ahead=Ahead(done + 1, state.ahead.nodes[used:].copy(), looks), levels=None)
    every = layout.ratchet_every
    last = min(mechanism.leaves, (done // every + 1) * every)
    looks = {}
    for epoch in layout.epochs:
        # A look after the last leaf of a key comes under the next one.
        soon = state.t < epoch.last and layout.complete_leaves(epoch.last) < last
        if soon and epoch.look is not None and state.exact_tally is not None:
            count = len(state.exact_tally)
            looks[epoch.last] = _look_noise(epoch.look, state.secret, epoch.last, count)
    state, nodes = draw_nodes(layout, state, done + 1, last - done)
    return state.but(ahead=Ahead(done + 1, nodes, looks), levels=None)


def _releases(
    layout: Layout,
    key: Key,
    t: IntArray,
    sums: FloatArray,
    unit_std: FloatArray | Callable[[slice], FloatArray],
    segment: Segment,
) -> Releases:
    return Releases(
        key,
        t,
        sums,
        unit_std,
        _constant(segment.range.upper, len(t)),
        _constant(segment.range.lower, len(t)),
        _constant(segment.clipped_share, len(t)),
        layout.statistic.name,
        layout.noise_law,
        layout.post_processing,
    )


def _constant(value: float, count: int) -> FloatArray:
    """One number, many times: as ``np.broadcast_to``, whose checks outlast a short step."""
    return np.ndarray((count,), np.float64, np.float64(value).tobytes(), strides=(0,))


def _no_releases(layout: Layout, key: Key) -> Releases:
    empty = np.empty(0)
    return _releases(layout, key, np.empty(0, np.int64), empty, empty, Segment(Range(0.0, 0.0)))
