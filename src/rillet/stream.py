"""One stream: learn the threshold, release the first block, then release for ever.

Everything runs through one pure function, :func:`step`: ``(state, block) → (state, releases)``.
:class:`Stream` wraps it for a program that calls ``update``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.errors import NotReady, ParameterError, StreamEnded
from rillet.grid import Grid
from rillet.layout import Layout
from rillet.noise import CHUNK, FloatArray, IntArray, Secret
from rillet.privacy import Ledger
from rillet.release import Key, Release, Releases
from rillet.strategy import Mechanism
from rillet.strategy.base import Levels, State
from rillet.threshold import Range

#: The secret moves on, one way, after this many leaves; a multiple of CHUNK.
RATCHET_EVERY: Final = 2**16
#: Scalar updates that are still being learned from are handed on in blocks of this many.
_PENDING: Final = 4096
#: Noise is read ahead for this many scalar updates at a time.
_READ_AHEAD: Final = 1024


@dataclass(frozen=True)
class StreamState:
    """All that a stream remembers.  Holds unreleased data: protect it as the data themselves.

    ``exact_partial`` is the sum of the leaf that is not complete yet, in lattice units; the
    encoder holds exact sums of open nodes only, the decoder noisy values only.
    """

    t: int
    secret: Secret = field(repr=False)
    raw_buffer: tuple[FloatArray, ...] = field(default=(), repr=False)
    range: Range | None = None
    opening_sum: float = 0.0
    exact_partial: int = field(default=0, repr=False)
    encoder: State = field(default=(), repr=False)
    decoder: State = field(default=(), repr=False)
    process: State = field(default=(), repr=False)
    latest: Release | None = None
    backfill: Releases | None = field(default=None, repr=False)
    #: Noise under the current key: derived from the secret, never stored.
    levels: Levels | None = field(default=None, repr=False, compare=False)


def start(layout: Layout, secret: Secret) -> StreamState:
    """State before the first observation.  ``secret`` is the stream's own."""
    state = StreamState(t=0, secret=secret)
    if layout.declared_range is None:
        return state
    return _begin_main(layout, replace(state, range=layout.declared_range))


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
        state = replace(
            state,
            t=state.t + len(raw_learning),
            raw_buffer=(*state.raw_buffer, raw_learning.copy()),
        )
        if state.t == layout.lag:
            state, released = _finish_opening(layout, key, state)
            parts.append(released)
    if len(raw_block):
        state, released = _run_main(layout, key, state, raw_block)
        parts.append(released)
    releases = Releases.join(parts) if parts else _no_releases(layout, key)
    if len(releases):
        state = replace(state, latest=releases[-1])
    return state, releases


# --- The opening: the first `lag` observations -------------------------------------------------


def _finish_opening(layout: Layout, key: Key, state: StreamState) -> tuple[StreamState, Releases]:
    """Learn the range from the buffer, release its sum, forget the buffer.

    **Privacy.** Costs each of the first ``lag`` observations the threshold's cost plus the
    opening's.  The sum is clipped to the learned range too: unclipped it could move by the whole
    public range.
    """
    assert layout.opening is not None
    raw_values = np.concatenate(state.raw_buffer)
    learned = layout.threshold.learn(
        raw_values, layout.bounds, layout.threshold_budget, layout.guarantee.delta, state.secret
    )
    opening = layout.opening
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
    releases = _releases(layout, key, t, sums, unit_std, learned)
    state = replace(
        state,
        raw_buffer=(),
        range=learned,
        opening_sum=float(sums[-1]),
        backfill=releases if layout.backfill else None,
    )
    return _begin_main(layout, state), releases[-1:]


# --- The main mechanism ------------------------------------------------------------------------


def _begin_main(layout: Layout, state: StreamState) -> StreamState:
    """Start encoder and decoder, and leave the opening's key behind."""
    if layout.main is None:
        return replace(state, secret=state.secret.ratchet())
    strategy, leaves = layout.main.strategy, layout.main.leaves
    secret = state.secret.ratchet()
    return replace(
        state,
        secret=secret,
        encoder=strategy.encoder(leaves).start(),
        decoder=strategy.decoder(leaves).start(),
        process=strategy.noise_process(leaves).start(),
        levels=layout.main.levels(secret, "main"),
    )


def epoch_after(leaf: int) -> int:
    """Ratchet steps a stream has taken once ``leaf`` leaves are complete (a public time)."""
    return 1 + leaf // RATCHET_EVERY


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


def _run_main(
    layout: Layout, key: Key, state: StreamState, raw_block: FloatArray
) -> tuple[StreamState, Releases]:
    """Clip, quantise, group into leaves, encode, add noise, decode; in cache-sized chunks.

    **Privacy.** Each observation after the lag is charged ``layout.main.cost``, once.
    """
    clipped_to = state.range
    assert clipped_to is not None and layout.main is not None
    grid = Grid(clipped_to.lower, clipped_to.upper, layout.main.steps)
    first_leaf = layout.leaf_of(state.t + 1)
    absorbed = state.t + len(raw_block)
    complete = (
        layout.leaf_of(absorbed + 1) if absorbed < layout.length else layout.leaf_of(absorbed) + 1
    )
    prefix = np.empty(complete - first_leaf)
    exact_partial, done = state.exact_partial, 0
    for raw_chunk in _chunks(layout, state.t, raw_block):
        before = state.t - layout.lag
        exact_leaves, exact_partial = _group(
            grid.quantise(raw_chunk),
            exact_partial,
            layout.every,
            before % layout.every,
            last=state.t + len(raw_chunk) == layout.length,
        )
        state = replace(state, t=state.t + len(raw_chunk), exact_partial=exact_partial)
        if len(exact_leaves):
            state, noisy_prefix = _release_leaves(
                layout.main, state, first_leaf + done, exact_leaves
            )
            prefix[done : done + len(exact_leaves)] = noisy_prefix
            done += len(exact_leaves)
    t = layout.release_times(first_leaf, done)
    prefix *= grid.step
    prefix += state.opening_sum
    if grid.lower:
        prefix += grid.lower * (t - layout.lag)
    unit_std = layout.unit_std(np.arange(first_leaf, first_leaf + done))
    return state, _releases(layout, key, t, prefix, unit_std, clipped_to)


def _chunks(layout: Layout, absorbed: int, raw_block: FloatArray) -> list[FloatArray]:
    """Cut at multiples of CHUNK leaves, so that a chunk never crosses a ratchet."""
    size = CHUNK * layout.every if layout.every < CHUNK else layout.every
    offset = (absorbed - layout.lag) % size
    edges = range(size - offset, len(raw_block), size)
    return np.split(raw_block, edges) if edges else [raw_block]


def _release_leaves(
    mechanism: Mechanism, state: StreamState, first_leaf: int, exact_leaves: IntArray
) -> tuple[StreamState, NDArray[np.int64] | FloatArray]:
    """Encode, add noise, decode some leaves of one epoch; ratchet when the epoch ends."""
    strategy, leaves = mechanism.strategy, mechanism.leaves
    levels = state.levels or mechanism.levels(state.secret, "main")
    encoder_state, exact_nodes = strategy.encoder(leaves).encode(
        state.encoder, first_leaf, exact_leaves
    )
    process_state, noise = strategy.noise_process(leaves).draw(
        state.process, levels, first_leaf, len(exact_nodes)
    )
    noisy = exact_nodes + noise
    decoder_state, prefix = strategy.decoder(leaves).decode(state.decoder, first_leaf, noisy)
    secret = state.secret
    if epoch_after(first_leaf + len(exact_leaves) - 1) > secret.epoch:
        secret = secret.ratchet()
        levels = mechanism.levels(secret, "main")
    state = replace(
        state,
        secret=secret,
        encoder=encoder_state,
        decoder=decoder_state,
        process=process_state,
        levels=levels,
    )
    return state, prefix


def _releases(
    layout: Layout, key: Key, t: IntArray, sums: FloatArray, unit_std: FloatArray, range_: Range
) -> Releases:
    return Releases(
        key,
        t,
        sums,
        unit_std,
        np.broadcast_to(np.float64(range_.upper), len(t)),
        np.broadcast_to(np.float64(range_.lower), len(t)),
        layout.statistic.name,
        layout.noise_law,
    )


def _no_releases(layout: Layout, key: Key) -> Releases:
    empty = np.empty(0)
    return _releases(layout, key, np.empty(0, np.int64), empty, empty, Range(0.0, 0.0))


# --- For programs ------------------------------------------------------------------------------


class Stream:
    """A running stream: feed it observations, take releases.

    **Privacy.** ``update`` and ``update_many`` touch raw data; what they return is public.  The
    object holds unreleased data and a secret; its ``repr`` shows public numbers only.

    Get one from :meth:`rillet.Plan.open` or :meth:`rillet.Plan.resume`.
    """

    def __init__(self, layout: Layout, key: Key, state: StreamState) -> None:
        self._layout = layout
        self._key = key
        self._state = state
        self._raw_pending: list[float] = []
        self._scalar: _ScalarRun | None = None

    def update(self, value: float) -> Release | None:
        """Absorb one observation; return the release that it completes, if any."""
        scalar = self._scalar
        if scalar is None:
            if self._state.t + len(self._raw_pending) < self._layout.lag:
                return self._learn_from(value)
            scalar = self._scalar = _ScalarRun.begin(self._layout, self._key, self._settled())
            if scalar is None:  # this strategy has no scalar form, or the stream is full
                return self._update_block(value)
        if scalar.room == 0:
            self._settled()
            return self.update(value)
        return scalar.absorb(_as_float(value))

    def update_many(self, values: ArrayLike | Iterable[object]) -> Releases:
        """Absorb many observations, in order: the same as the loop over :meth:`update`."""
        raw_block = as_observations(values)
        self._state, releases = step(self._layout, self._key, self._settled(), raw_block)
        return releases

    def release(self) -> Release:
        """The latest release again, the very same numbers."""
        latest = self._scalar.latest if self._scalar is not None else self._state.latest
        if latest is None:
            layout = self._layout
            first = layout.lag or min(layout.every, layout.length)
            raise NotReady(
                f"no release yet: the first comes after {first:,} observations, "
                f"and {self.t:,} have been absorbed"
            )
        return latest

    @property
    def t(self) -> int:
        """Number of observations absorbed."""
        ahead = len(self._raw_pending) if self._scalar is None else self._scalar.absorbed
        return self._state.t + ahead

    @property
    def key(self) -> Key:
        """The stream's declared key."""
        return self._key

    @property
    def secret(self) -> Secret:
        """The stream's own secret as it is now: :meth:`rillet.Plan.resume` takes it."""
        return self._settled().secret

    @property
    def ledger(self) -> Ledger:
        """What each observation has been charged so far."""
        return self._layout.ledger(self.t)

    @property
    def backfill(self) -> Releases | None:
        """Releases for the first ``lag`` observations, when the plan has ``backfill=True``."""
        return self._state.backfill

    def snapshot(self) -> bytes:
        """The whole state, sealed under the stream's secret, for :meth:`rillet.Plan.resume`."""
        from rillet.state.snapshot import seal_state

        return seal_state(self._layout, self._key, self._settled())

    def __repr__(self) -> str:
        name = f" {self._key}" if self._key else ""
        return f"<Stream{name}: t={self.t:,}, {self._layout.guarantee}>"

    def _learn_from(self, value: float) -> Release | None:
        pending = self._raw_pending
        pending.append(_as_float(value))
        if len(pending) < _PENDING and self._state.t + len(pending) < self._layout.lag:
            return None
        self._settled()
        return self._state.latest

    def _update_block(self, value: float) -> Release | None:
        before = self._state.latest
        raw_block = np.array([_as_float(value)])
        self._state, _ = step(self._layout, self._key, self._state, raw_block)
        return None if self._state.latest is before else self._state.latest

    def _settled(self) -> StreamState:
        """Bring the block state up to date with what scalar updates absorbed."""
        if self._raw_pending:
            raw_block = np.array(self._raw_pending)
            self._raw_pending = []
            self._state, _ = step(self._layout, self._key, self._state, raw_block)
        if self._scalar is not None:
            self._state = self._scalar.finish()
            self._scalar = None
        return self._state


def _as_float(value: object) -> float:
    """Any object becomes a float; what is not a real number becomes NaN, which is clipped later."""
    if isinstance(value, complex) or value is np.ma.masked:  # these would warn
        return float("nan")
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an object's own conversion; whether it fails is private
        return float("nan")


def as_observations(values: ArrayLike | Iterable[object]) -> FloatArray:
    """A flat float array with one entry an observation, each as :meth:`Stream.update` takes it.

    **Privacy.** Touches raw data; total: never raises or warns because of a value.  Sets and
    mappings are refused: they have no order, and which kind a program passes is public.
    """
    if isinstance(values, (Set, Mapping)):
        kind = type(values).__name__
        raise ParameterError("values", "a sequence, an array or an iterator", f"a {kind}")
    if isinstance(values, Iterator):
        values = list(values)
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(object), np.nan)
    try:
        raw = np.asarray(values)
        if raw.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # a wider float may become infinite
                return np.ascontiguousarray(raw, np.float64).reshape(-1)
        raw_objects = np.asarray(values, object).reshape(-1).tolist()
    except Exception:  # noqa: BLE001 - ragged, or an object's own conversion
        raw_objects = list(values)  # type: ignore[arg-type]
    return np.array([_as_float(value) for value in raw_objects], np.float64)


class _ScalarRun:
    """Updates one at a time within one chunk of leaves, with noise read ahead.

    The same integers as the block form; ``finish`` gives the state that the block form would have.
    """

    def __init__(self, layout: Layout, key: Key, state: StreamState, count: int) -> None:
        assert layout.main is not None and state.range is not None
        mechanism = layout.main
        self._layout, self._key, self._begun = layout, key, state
        self._mechanism = mechanism
        grid = Grid(state.range.lower, state.range.upper, mechanism.steps)
        self._lower, self._upper = grid.lower, grid.upper
        self._per_unit, self._steps, self._unit = grid.per_unit, grid.steps, grid.step
        self._first_leaf = layout.leaf_of(state.t + 1)
        self._levels = state.levels or mechanism.levels(state.secret, "main")
        self._draws: list[int] = self._draw(count)[1].tolist()
        leaves = np.arange(self._first_leaf, self._first_leaf + count)
        self._unit_std: list[float] = layout.unit_std(leaves).tolist()
        stepper = mechanism.strategy.stepper(
            mechanism.leaves, self._first_leaf - 1, state.encoder, state.decoder
        )
        assert stepper is not None
        self._stepper = stepper
        self._statistic, self._law = layout.statistic.name, layout.noise_law
        self._in_leaf = (state.t - layout.lag) % layout.every
        self._exact_partial = state.exact_partial
        self._t = state.t
        self._done = 0
        self.room = min(count * layout.every - self._in_leaf, layout.length - state.t)
        self.latest = state.latest

    @classmethod
    def begin(cls, layout: Layout, key: Key, state: StreamState) -> _ScalarRun | None:
        """Begin a run that ends with the chunk; None when only blocks will do."""
        if state.t == layout.length or layout.main is None:
            return None
        strategy, leaves = layout.main.strategy, layout.main.leaves
        if strategy.stepper(leaves, 0, *_fresh_states(layout.main)) is None:
            return None
        leaf = layout.leaf_of(state.t + 1)
        until_chunk_ends = CHUNK - (leaf - 1) % CHUNK
        return cls(layout, key, state, min(until_chunk_ends, _READ_AHEAD, leaves - leaf + 1))

    def _draw(self, count: int) -> tuple[State, IntArray]:
        """Noise of the first ``count`` leaves of the run, and the noise process after them."""
        process = self._mechanism.strategy.noise_process(self._mechanism.leaves)
        return process.draw(self._begun.process, self._levels, self._first_leaf, count)

    @property
    def absorbed(self) -> int:
        """Observations absorbed in this run."""
        return self._t - self._begun.t

    def absorb(self, raw_value: float) -> Release | None:
        """One observation.  **Privacy.** Touches raw data; see :func:`step`."""
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
        done = self._done
        prefix = self._stepper.step(exact_units, self._draws[done])
        total = prefix * self._unit + self._begun.opening_sum
        if lower:
            total += lower * (t - layout.lag)
        self.latest = release = Release(
            self._key,
            t,
            total,
            self._unit_std[done],
            self._upper,
            lower,
            self._statistic,
            self._law,
        )
        self._done = done + 1
        return release

    def finish(self) -> StreamState:
        """The state that :func:`step` would have reached."""
        encoder, decoder = self._stepper.states()
        process, _ = self._draw(self._done)
        secret, levels = self._begun.secret, self._levels
        if epoch_after(self._first_leaf + self._done - 1) > secret.epoch:
            secret = secret.ratchet()
            levels = self._mechanism.levels(secret, "main")
        return replace(
            self._begun,
            t=self._t,
            secret=secret,
            exact_partial=self._exact_partial,
            encoder=encoder,
            decoder=decoder,
            process=process,
            latest=self.latest,
            levels=levels,
        )


def _fresh_states(mechanism: Mechanism) -> tuple[State, State]:
    strategy, leaves = mechanism.strategy, mechanism.leaves
    return strategy.encoder(leaves).start(), strategy.decoder(leaves).start()
