"""Many streams under one plan, one for each declared key.

Each key has a secret of its own, derived from the master secret, and each observation belongs to
one key: what the plan promises holds for every observation of every key at once.

**Privacy.** Keys are declared, never learned from data.  An observation whose key was not declared
is dropped, and nothing public depends on how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rillet.errors import NotReady, ParameterError
from rillet.layout import Layout, SharedThreshold
from rillet.noise import LAWS, FloatArray, IntArray, LatticeNoise, Secret
from rillet.privacy import Charges
from rillet.release import Key, Release, Releases
from rillet.step import StreamState, start, step
from rillet.stream import as_observations
from rillet.table import ReleaseTable
from rillet.threshold import Look, Outlook, Range, RefreshingThreshold

#: The state of a key by its place, begun under a layout if it has not begun before.
StateOf: TypeAlias = Callable[[Layout, int], StreamState]

#: Where the length is not known, a shared range is chosen for streams of this length.
_ASSUMED_LENGTH: Final = 2**16


@dataclass(frozen=True)
class Pool:
    """The first observations of all keys together, from which they learn one clipping range.

    **Privacy.** Holds raw data until the range is released.
    """

    secret: Secret = field(repr=False)
    key_of: tuple[IntArray, ...] = field(default=(), repr=False)
    raw_values: tuple[FloatArray, ...] = field(default=(), repr=False)

    @property
    def observations(self) -> int:
        """How many there are so far: public, as the number of observations of a stream is."""
        return sum(map(len, self.raw_values))


def learn_shared(layout: Layout, shared: SharedThreshold, raw: FloatArray, secret: Secret) -> Range:
    """Release the range that all keys will share.

    **Privacy.** Costs each of the values ``shared.cost``.
    """
    threshold, bounds = shared.threshold, shared.bounds
    if not isinstance(threshold, RefreshingThreshold):
        return threshold.learn(raw, bounds, shared.budget, layout.guarantee.delta, secret)
    assert shared.look is not None and layout.main is not None
    centre = None
    if shared.centre_budget:
        centre = threshold.find_centre(raw, bounds, shared.centre_budget, secret)
    exact_tally = threshold.tally(raw, bounds, centre)
    noise = LatticeNoise(LAWS[shared.look.law], shared.look.scale, secret, ("look", "shared"))
    noisy = exact_tally + noise.draw(0, len(exact_tally))
    look = Look(noisy, shared.observations, shared.look.scale, shared.look.law)
    length = layout.length if layout.length_is_known else _ASSUMED_LENGTH
    leaf = max(1, min(length // layout.every, layout.main.leaves) - 1)
    outlook = Outlook(
        length=length,
        after=0,
        until=length,
        noise_per_unit=float(layout.main.unit_variance(leaf)[0]) ** 0.5,
    )
    return threshold.judge(bounds, (look,), (), outlook, centre).range


def step_many(
    layout: Layout,
    keys: Sequence[Key],
    state_of: StateOf,
    key_of: IntArray,
    raw_values: FloatArray,
) -> tuple[dict[int, StreamState], ReleaseTable | None]:
    """Absorb observations of many keys; return the states that changed, and the releases.

    ``key_of`` is the place of each observation's key in ``keys``.  Releases come in the order of
    the observations that completed them, however the input was cut into blocks; None if there are
    none.  Observations beyond a key's length are left out.

    **Privacy.** As :func:`rillet.step.step`, for each key.
    """
    changed: dict[int, StreamState] = {}
    parts: list[Releases] = []
    arrivals: list[IntArray] = []
    for place, all_rows in rows_of_keys(key_of):
        state = state_of(layout, place)
        rows = all_rows[: layout.length - state.t]
        if not len(rows):
            continue
        after, releases = step(layout, keys[place], state, raw_values[rows])
        changed[place] = after
        if state.t < layout.lag <= after.t and after.backfill is not None:
            early = after.backfill[:-1]  # Its last one is the first of `releases`.
            parts.append(early)
            arrivals.append(np.full(len(early), rows[layout.lag - state.t - 1]))
        if len(releases):
            parts.append(releases)
            arrivals.append(rows[releases.t - state.t - 1])
    return changed, ReleaseTable.merge(parts, arrivals) if parts else None


def rows_of_keys(key_of: IntArray) -> Iterator[tuple[int, IntArray]]:
    """The rows of each key that occurs, in order."""
    order = np.argsort(key_of, kind="stable")
    sorted_keys = key_of[order]
    starts = np.flatnonzero(np.diff(sorted_keys, prepend=-1))
    rows_of_each = np.split(order, starts[1:])
    yield from zip(sorted_keys[starts].tolist(), rows_of_each, strict=False)


@dataclass(frozen=True)
class KeyedState:
    """All that the streams of a plan remember: each key's state, and the pool while there is one.

    ``layout`` is the one in force: of a plan whose keys share a range, with that range once it is
    known.
    """

    layout: Layout
    pool: Pool | None = None

    def absorb(
        self,
        keys: Sequence[Key],
        state_of: StateOf,
        key_of: IntArray,
        raw_values: FloatArray,
    ) -> tuple[KeyedState, dict[int, StreamState], ReleaseTable | None]:
        """Absorb observations; return what comes after them, and the releases.

        ``state_of(layout, place)`` is the state of a key, begun under the layout if it has not
        begun before; asked for only where it is needed.

        **Privacy.** As :func:`step_many`; while the pool fills, nothing is released.
        """
        declared = key_of >= 0
        if not declared.all():
            key_of, raw_values = key_of[declared], raw_values[declared]
        pool, shared = self.pool, self.layout.shared
        if pool is None:
            changed, table = step_many(self.layout, keys, state_of, key_of, raw_values)
            return self, changed, table
        assert shared is not None
        room = shared.observations - pool.observations
        pool = replace(
            pool,
            key_of=(*pool.key_of, key_of[:room].copy()),
            raw_values=(*pool.raw_values, raw_values[:room].copy()),
        )
        if pool.observations < shared.observations:
            return replace(self, pool=pool), {}, None
        raw_pool = np.concatenate(pool.raw_values)
        layout = self.layout.with_range(learn_shared(self.layout, shared, raw_pool, pool.secret))
        changed, table = step_many(
            layout,
            keys,
            state_of,
            np.concatenate([*pool.key_of, key_of[room:]]),
            np.concatenate([raw_pool, raw_values[room:]]),
        )
        return KeyedState(layout), changed, table

    def growth(
        self,
        after: KeyedState,
        before: StateOf,
        changed: Mapping[int, StreamState],
    ) -> int:
        """How many observations streams and pool have absorbed more than before."""
        layout = after.layout
        grown = sum(state.t - before(layout, place).t for place, state in changed.items())
        for sign, pool in ((1, after.pool), (-1, self.pool)):
            grown += 0 if pool is None else sign * pool.observations
        return grown


def roll_up(latest: Iterable[Release]) -> Release:
    """One release for all keys together: the sum of their latest ones.

    **Privacy.** Post-processing.  The noise of different keys is independent: variances add.
    """
    releases = list(latest)
    if not releases:
        raise NotReady("no release yet: none of the keys has one")
    first = releases[0]
    upper = max(release.threshold for release in releases)
    lower = min(release.clip_lower for release in releases)
    std = sum(release.sum_noise_std**2 for release in releases) ** 0.5
    return Release(
        key=(),
        t=sum(release.t for release in releases),
        sum=sum(release.sum for release in releases),
        unit_std=std / (upper - lower),
        threshold=upper,
        clip_lower=lower,
        clipped_share=float("nan"),
        statistic=first.statistic,
        noise_law=first.noise_law,
        post_processing=(*first.post_processing, f"added up over {len(releases):,} keys"),
    )


class KeyedStreams:
    """A running stream for each declared key, in memory.

    **Privacy.** ``update`` and ``update_many`` touch raw data; what they return is public.

    Get one from :meth:`rillet.Plan.open_many`; ``rillet run --state`` keeps the same on disk.

    Examples
    --------
    >>> import rillet
    >>> plan = rillet.Plan(epsilon=1.0, upper=60.0, length=1000, keys=[("north",), ("south",)])
    >>> streams = plan.open_many()
    >>> streams.update(("north",), 12.5).t
    1
    >>> streams.update(("west",), 12.5) is None  # not declared: dropped
    True
    >>> len(streams.update_many([("south",), ("north",)], [3.0, 4.0]))
    2
    >>> streams.rollup().t
    3
    """

    def __init__(
        self,
        layout: Layout,
        keys: tuple[Key, ...],
        secrets: Iterable[Secret],
        shared_secret: Secret | None = None,
    ) -> None:
        self.keys = keys
        self.observations = 0
        self._places = {key: place for place, key in enumerate(keys)}
        self._keyed = KeyedState(layout, None if shared_secret is None else Pool(shared_secret))
        # A secret is needed until its stream has begun, then it is in the state, and moves on.
        self._secrets = dict(enumerate(secrets))
        self._states: dict[int, StreamState] = {}

    def update(self, key: Key, value: float) -> Release | None:
        """Absorb one observation of a key; return its latest release if there is a new one."""
        place = self._places.get(key, -1)
        before = self._latest(place)
        self.absorb(np.array([place]), as_observations([value]))
        latest = self._latest(place)
        return None if latest is before else latest

    def update_many(
        self, keys: Sequence[Key] | IntArray, values: ArrayLike | Iterable[object]
    ) -> ReleaseTable | None:
        """Absorb many observations, in order; return all releases in their order, None if none.

        ``keys`` has the key of each observation, or its place among the declared ones as an
        integer array.
        """
        raw_values = as_observations(values)
        if isinstance(keys, np.ndarray):
            key_of = np.where(keys < len(self.keys), keys, -1).astype(np.int64)
        else:
            key_of = np.array([self._places.get(key, -1) for key in keys], np.int64)
        if len(key_of) != len(raw_values):
            raise ParameterError("keys", f"{len(raw_values):,} keys, one a value", len(key_of))
        return self.absorb(key_of, raw_values)

    def release(self, key: Key) -> Release:
        """The latest release of a key again, the very same numbers."""
        latest = self._latest(self._place(key))
        if latest is None:
            raise NotReady(f"no release of {key} yet: it is still learning, or between two")
        return latest

    def rollup(self) -> Release:
        """One release for all keys that have one.  **Privacy.** Post-processing."""
        return roll_up(state.latest for state in self._states.values() if state.latest is not None)

    def t(self, key: Key) -> int:
        """Number of observations of a key that its stream has absorbed."""
        state = self._states.get(self._place(key))
        return 0 if state is None else state.t

    def charges(self, key: Key) -> Charges:
        """What each observation of a key has been charged so far."""
        return self._keyed.layout.charges().after(self.t(key))

    def absorb(self, key_of: IntArray, raw_values: FloatArray) -> ReleaseTable | None:
        """As :meth:`update_many`, of places (-1: undeclared) and floats.

        **Privacy.** Touches raw data; what it returns is public.
        """
        before = self._keyed
        self._keyed, changed, table = before.absorb(self.keys, self._of, key_of, raw_values)
        self.observations += before.growth(self._keyed, self._of, changed)
        self._states.update(changed)
        for place in changed:
            self._secrets.pop(place, None)
        return table

    def __repr__(self) -> str:
        return f"<KeyedStreams: {len(self.keys):,} keys, {self._keyed.layout.guarantee}>"

    def _of(self, layout: Layout, place: int) -> StreamState:
        state = self._states.get(place)
        return start(layout, self._secrets[place]) if state is None else state

    def _latest(self, place: int) -> Release | None:
        state = self._states.get(place)
        return None if state is None else state.latest

    def _place(self, key: Key) -> int:
        if key not in self._places:
            raise ParameterError("key", "one of the declared keys", key)
        return self._places[key]
