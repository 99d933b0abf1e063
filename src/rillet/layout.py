"""A plan worked out: everything a stream needs, from public numbers alone.

The first ``lag`` observations are the *warm-up*: they pay for learning the clipping range and are
released with what is left of the promise.  The others go through the *main* mechanism.  They hold
different observations, so the total is the worse of the two (PAK, section III).  Where the range is
learned again, the main part has several *segments*: an observation pays for the look at its
segment's end, and enters the main mechanism on fewer steps, so that both together keep the promise.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from rillet.errors import ParameterError
from rillet.gather.clock import Clock
from rillet.gather.gate import GateRule
from rillet.gather.grid import LARGEST_SUM, Grid
from rillet.noise import FloatArray, IntArray
from rillet.privacy import Charges, Cost, Event, Guarantee, Person
from rillet.statistic import Leaf, Margin, Memory, Range, Setting, Several, Statistic, Totals, Units
from rillet.strategy import Mechanism, Strategy
from rillet.threshold import FixedThreshold, Outlook, Threshold

#: From the leaf after this one on, what lattice units are worth.
Worth: TypeAlias = tuple[int, Units]
#: From the observation (tick) after this one on, how far clipping is off for each.
Margins: TypeAlias = tuple[tuple[int, Margin], ...]
#: So many covariances between ends of segments are kept at hand.
_MOST_KNOWN: Final = 4096
#: What the noise of a segment long ago still weighs, where it counts for nothing any more.
_FORGOTTEN: Final = 1e-9
#: Raised when anything in the noise package, in :mod:`rillet.step` or in the judgement of looks
#: changes what is released; a test pins releases of every mechanism under it.
MECHANISM_VERSION: Final = 3
#: Raised when a fleet releases something else: keys that learn alone, and when.
_FLEET_VERSION: Final = 2
#: A key of many learns its range alone from so many observations on, in deviations of the noise on
#: one count: the values of most keys lie in some ten counts, which then stand out.
_ENOUGH_TO_LEARN_ALONE: Final = 50.0
#: A stream's secret moves on, one way, after this many leaves; they also fit the cache.
RATCHET_EVERY: Final = 2**14
#: The same for each of many keys; with more than some thousand of them fewer, since stored state
#: holds the noise up to the next step for every key.
KEYED_RATCHET_EVERY: Final = 2**10
_LEAST_RATCHET_EVERY: Final = 2**6
_DRAWN_AHEAD_IN_ALL: Final = 2**20
#: By count, so many keys are stepped at once where they can be, and have small states.
MANY_KEYS: Final = 256
#: Where a leaf splits its budget, counting gets one of these shares of it: less than a fifth would
#: save little, and leave no count at all.
COUNT_SHARES: Final = tuple(Fraction(twentieths, 20) for twentieths in range(4, 19))


#: Half-way between two of them, rounded down: a float above it is above the middle itself.
_BETWEEN_SHARES: Final = tuple(
    math.nextafter(float(middle), 0.0) if Fraction(float(middle)) > middle else float(middle)
    for middle in ((one + other) / 2 for one, other in pairwise(COUNT_SHARES))
)


def nearest_share(count_share: Any) -> Any:
    """Which of the :data:`COUNT_SHARES` is nearest, the smaller of two; of a number or an array."""
    return np.searchsorted(_BETWEEN_SHARES, count_share, side="left")


@dataclass(frozen=True)
class LookNoise:
    """Noise on the counts of some observations, and what it costs each of them."""

    observations: int
    scale: float
    law: str
    cost: Cost


@dataclass(frozen=True)
class Segment:
    """Observations ``first … last``, with one clipping range cut into ``steps`` steps.

    ``cost`` is what the main mechanism costs each of them; ``look`` is what they pay besides.
    """

    first: int
    last: int
    steps: int
    cost: Cost
    look: LookNoise | None = None


@dataclass(frozen=True)
class LevelTotals:
    """The streams of one level of totals: the main mechanism on fewer steps.

    ``share`` is what they get of the budget, ``count`` how many of them there are, ``keys`` the
    most keys that one of them has.
    """

    name: str
    share: float
    segments: tuple[Segment, ...]
    warm_up: Mechanism | None
    count: int
    keys: int


@dataclass(frozen=True)
class SharedThreshold:
    """A clipping range that many keys learn together, from the first observations of any of them.

    Each of these pays ``cost``, and then enters its key's own stream like every other.
    """

    threshold: Threshold
    observations: int
    bounds: Range
    budget: Fraction
    cost: Cost


@dataclass(frozen=True)
class Layout:
    """The calibrated parts of a plan.

    **Privacy.** ``events`` says what each observation pays; :meth:`charges` refuses the layout as
    a whole when that is more than the promise.
    """

    guarantee: Guarantee
    bounds: Range
    length: int
    length_is_known: bool
    lag: int
    every: int
    backfill: bool
    threshold: Threshold
    threshold_budget: Fraction
    #: What the first look costs a unit.
    threshold_cost: Cost
    warm_up: Mechanism | None
    main: Mechanism | None
    segments: tuple[Segment, ...]
    statistic: Statistic
    #: Number of declared keys, each with a stream of this layout; 0 for a stream without a key.
    keys: int = 0
    shared: SharedThreshold | None = None
    #: What is public: the number of observations, or a clock.
    setting: Setting = field(default_factory=Setting)
    clock: Clock | None = None
    #: What stands in for a missing value, if anything is declared to.
    missing_value: float | None = None
    #: What is protected, if not a single observation, and in ticks what is used of each.
    unit: Person | None = None
    gate: GateRule | None = None
    memory: Memory = field(default_factory=Memory)
    #: Noise of the first look's rounds, where it is Gaussian: else the threshold adds its own.
    first_look: tuple[LookNoise, ...] = ()
    #: Whether segments like the last one follow each other up to ``length``.
    repeats: bool = False
    #: Whether all keys are stepped at once, and learn their ranges in groups.
    fleet: bool = False
    #: Groups of keys that share a range: an observation is in the looks of its own alone.
    groups: int = 1
    #: Totals of several keys, from that of all keys down: each observation is in one of each.
    levels: tuple[LevelTotals, ...] = ()
    #: Other promises, each with the first tick that it holds for.
    later: tuple[tuple[int, Guarantee], ...] = ()
    #: What intervals say of values beyond what is counted: a fitted tail, or up to the bounds.
    tail: Literal["fitted", "bound"] = "fitted"
    #: Whether numbers that no data could have are mended.
    sane: bool = False

    def __post_init__(self) -> None:
        if self.threshold.learns != (self.lag > 0):
            raise ParameterError(
                "lag", "a positive lag exactly when the threshold is learned", self.lag
            )

    @cached_property
    def declared_range(self) -> Range | None:
        """The clipping range, where it is public from the start."""
        if isinstance(self.threshold, FixedThreshold):
            return self.threshold.range_within(self.bounds)
        return None

    @property
    def crowd(self) -> bool:
        """Whether many keys are stepped at once by count: their range is known, and stays."""
        if self.clock is not None or self.keys < MANY_KEYS or self.lag or self.main is None:
            return False
        return len(self.segments) == 1

    def with_range(self, learned: Range) -> Layout:
        """The layout of each key's stream, once the shared range is known: the same mechanism."""
        known = replace(self, bounds=learned)
        known.__dict__["mechanism"] = self.mechanism
        return known

    def of_level(self, level: int | None) -> Layout:
        """The layout of a level's totals; that of the keys is this one."""
        if level is None:
            return self
        known: dict[int, Layout] = self.__dict__.setdefault("_of_levels", {})
        if level not in known:
            own = self.levels[level]
            known[level] = replace(self, segments=own.segments, warm_up=own.warm_up)
            known[level].__dict__["mechanism"] = self.mechanism
        return known[level]

    def levels_of(self, first: int, count: int) -> IntArray:
        """Of streams in a row, keys before totals: 0 for a key, 1 + its level for a total."""
        ends = np.cumsum([self.keys, *(level.count for level in self.levels)])
        return np.searchsorted(ends, np.arange(first, first + count), side="right")

    # --- leaves and their lattice --------------------------------------------------------------

    @cached_property
    def leaf(self) -> Leaf:
        """What an observation contributes in the main mechanism."""
        return self.statistic.leaf(self.setting)

    @cached_property
    def warm_up_leaf(self) -> Leaf:
        """The same in the warm-up, whose noise may have another law."""
        law = "laplace" if self.warm_up is None else self.warm_up.strategy.law
        return self.statistic.leaf(replace(self.setting, law=law))

    @cached_property
    def largest_leaf(self) -> int:
        """By the clock a column of a leaf saturates here, so that no sum can overflow: public."""
        return LARGEST_SUM // self.length

    @cached_property
    def fewest_to_saturate(self) -> int:
        """By the clock, so many observations always fit into a tick; with more it may saturate."""
        largest = 1
        for segment in self.segments:
            largest = max(largest, *(max(move) for move in self.leaf.moves(segment.steps)))
            for share in COUNT_SHARES if self.leaf.splits else ():
                steps, count = self._split(segment.steps, share)
                largest = max(largest, steps // 2, count)
        fit = self.largest_leaf // largest
        if self.warm_up is not None:
            most = max(max(move) for move in self.warm_up_leaf.moves(self.warm_up.steps))
            fit = min(fit, LARGEST_SUM // most // self.lag)
        return fit

    def grid(self, clipping: Range, segment: Segment, count_share: float) -> Grid:
        """The lattice of a segment; ``count_share`` is what counting should get of its budget.

        **Privacy.** Every share costs an observation at most what the segment says.
        """
        steps, count = self.cut(segment.steps, int(nearest_share(count_share)))
        return Grid(clipping.lower, clipping.upper, steps, count)

    def cut(self, steps: int, number: int) -> tuple[int, int]:
        """The lattice of so many steps, and what an observation counts on it.

        ``number`` is that of the :data:`COUNT_SHARES` that counting gets, where a leaf splits.
        """
        if not self.leaf.splits:
            return self.leaf.cut(steps)
        return self._split(steps, COUNT_SHARES[number])

    def _split(self, steps: int, share: Fraction) -> tuple[int, int]:
        known: dict[tuple[int, Fraction], tuple[int, int]] = self.__dict__.setdefault("_splits", {})
        if (steps, share) not in known:
            assert self.main is not None
            half, count = self.main.split(steps, share)
            known[steps, share] = 2 * half, count
        return known[steps, share]

    # --- which mechanism it is -----------------------------------------------------------------

    @cached_property
    def mechanism(self) -> dict[str, Any]:
        """Everything that determines a release, apart from data, secret and key: public, JSON.

        Whatever is changed here, in a calibration, a schedule, a constant or the version of a part,
        makes another mechanism, whose noise has nothing to do with this one's.
        """
        shared = self.shared
        return {
            "version": MECHANISM_VERSION,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "lower": self.bounds.lower,
            "upper": self.bounds.upper,
            "length": self.length,
            "every": self.every,
            "lag": self.lag,
            "backfill": self.backfill,
            "statistic": _identity(self.statistic),
            "setting": asdict(self.setting),
            "clock": None if self.clock is None else asdict(self.clock),
            "missing_value": self.missing_value,
            "memory": asdict(self.memory),
            "threshold": _identity(self.threshold),
            "threshold_budget": str(self.threshold_budget),
            "first_look": [part.scale for part in self.first_look],
            "warm_up": None if self.warm_up is None else _calibrated(self.warm_up),
            "main": None if self.main is None else _calibrated(self.main),
            "segments": [
                [part.last, part.steps, None if part.look is None else part.look.scale]
                for part in self.segments
            ],
            "repeats": self.repeats,
            "ratchet_every": self.ratchet_every,
            "shared": None
            if shared is None
            else [_identity(shared.threshold), shared.observations, str(shared.budget)],
            **({} if self.gate is None else {"gate": asdict(self.gate)}),
            **({"fleet": _FLEET_VERSION} if self.fleet else {}),
            **(
                {
                    "levels": [
                        [
                            part.steps
                            for part in (level.warm_up, *level.segments)
                            if part is not None
                        ]
                        for level in self.levels
                    ]
                }
                if self.levels
                else {}
            ),
        }

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of :attr:`mechanism`: the noise is keyed by it."""
        return hashlib.sha256(json.dumps(self.mechanism, sort_keys=True).encode()).digest()

    def amended(self, first: int, promise: Guarantee, other: Layout) -> Layout:
        """The same up to the tick before ``first``, and from there the segments of ``other``.

        ``other`` has the same noise, and its steps and looks are those of another promise.  It is
        the same mechanism to a state, which keeps what was changed beside it.
        """

        def both(mine: tuple[Segment, ...], theirs: tuple[Segment, ...]) -> tuple[Segment, ...]:
            before, after = replace(self, segments=mine), replace(other, segments=theirs)
            return (*before._between(self.lag + 1, first - 1), *after._from(first))

        changed = replace(
            self,
            segments=both(self.segments, other.segments),
            levels=tuple(
                replace(own, segments=both(own.segments, new.segments))
                for own, new in zip(self.levels, other.levels, strict=True)
            ),
            later=(*self.later, (first, promise)),
        )
        changed.__dict__["mechanism"] = self.mechanism
        return changed

    def _between(self, first: int, last: int) -> Iterator[Segment]:
        """The segments of these ticks, cut where they begin and end."""
        while first <= last:
            segment = self.segment_at(first)
            yield _cut(segment, first, min(segment.last, last))
            first = segment.last + 1

    def _from(self, first: int) -> Iterator[Segment]:
        """The segments from a tick on; where the last one repeats, it is the last one again."""
        last = self.segments[-1]
        if first > last.last:
            end = min(first + last.last - last.first, self.length)
            yield _cut(last, first, end)
            return
        yield from self._between(first, last.last)

    # --- what a release has ----------------------------------------------------------------------

    def _worked_out(self) -> Mapping[str, Callable[[], Any]]:
        """How each number of the statistic is worked out, of no releases."""
        nothing = (np.empty(0),) * self.leaf.readings
        complete = np.empty(0, bool) if self.leaf.may_be_complete else None
        margin = Margin if self.has_margins else None
        none = lambda *_: np.empty(0)  # noqa: E731
        count = np.empty(0) if self.clock is None else None
        totals = Totals(count, nothing, none, Range(0.0, 1.0), complete, margin)
        return self.statistic.numbers(totals)

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Which numbers of the record the statistic has."""
        ends = ("noise_lower", "noise_upper") if self.sane else ()
        return tuple(dict.fromkeys((*self._worked_out(), *ends)))

    @cached_property
    def synonyms(self) -> dict[str, str]:
        """Numbers that the record has under another name before, and that: ``sum`` of a sum."""
        if self.sane:  # numbers are mended by their names
            return {}
        first: dict[Any, str] = {}
        same = ((name, first.setdefault(own, name)) for name, own in self._worked_out().items())
        return {name: other for name, other in same if other != name}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Which columns its releases have: those numbers, and what is said of clipping."""
        return tuple(dict.fromkeys((*self.numbers, *self.of_clipping(Range(0.0, 1.0), 0.0))))

    def of_clipping(self, clipping: Range, clipped_share: Any) -> dict[str, Any]:
        """The clipping range of a record; unknown where nothing is clipped.

        What clipping may be off a statistic says itself; where nothing is clipped it is nothing.
        """
        clips, unknown = self.statistic.clips, float("nan")
        off = 0.0 if self.tail_assumed == "none" else unknown
        return {
            "clipping_below": off,
            "clipping_above": off,
            "clip_lower": clipping.lower if clips else unknown,
            "clip_upper": clipping.upper if clips else unknown,
            "clipped_share": clipped_share,
        }

    def completed(self, name: str, number: Any) -> Any:
        """A number of the record, with what a list leaves out where nothing is clipped."""
        if self.tail_assumed == "none" and name in ("clipping_below", "clipping_above"):
            return np.where(np.isnan(number), 0.0, number)
        return number

    def enough_to_learn_alone(self, segment: Segment) -> float | None:
        """How many observations in a segment a key needs to learn its range by itself.

        None where no key does: without a look, where keys share a range with their totals, and
        where counts are not released, which would say so.
        """
        look = segment.look
        if look is None or not self.fleet or self.levels or "count" not in self.numbers:
            return None
        unit = float(self.threshold.count_sensitivity("laplace", added=True))
        std = look.scale * (2**0.5 if look.law == "laplace" else 1.0)
        return _ENOUGH_TO_LEARN_ALONE * std / unit

    # --- public times ----------------------------------------------------------------------------

    @property
    def warm_up_every(self) -> int:
        """Observations in a leaf of the warm-up: all of them, unless they are backfilled."""
        return self.every if self.backfill else self.lag

    def leaf_of(self, t: int) -> int:
        """Leaf of the main mechanism that observation ``t`` (counted from 1) belongs to."""
        return -(-(t - self.lag) // self.every)

    def complete_leaves(self, t: int) -> int:
        """Leaves of the main mechanism that ``t`` observations complete; the last may be short."""
        return self.leaf_of(t) if t == self.length else (t - self.lag) // self.every

    def release_times(self, first_leaf: int, count: int) -> IntArray:
        """Observation numbers at which these leaves of the main mechanism are complete."""
        first = self.lag + first_leaf * self.every
        ends = np.arange(first, first + count * self.every, self.every, dtype=np.int64)
        # Only the last leaf of all may be short.
        np.minimum(ends[-1:], self.length, out=ends[-1:])
        return ends

    @property
    def ratchet_every(self) -> int:
        """Leaves of the main mechanism under one key."""
        if self.fleet:
            return 1
        if not self.keys:
            return RATCHET_EVERY
        each = max(_LEAST_RATCHET_EVERY, _DRAWN_AHEAD_IN_ALL // self.keys)
        return min(KEYED_RATCHET_EVERY, 1 << each.bit_length() - 1)

    def last_under_key(self, leaf: int) -> int:
        """The last leaf of the main mechanism whose noise comes from the same key as this one's."""
        assert self.main is not None
        return min(self.main.leaves, -(-leaf // self.ratchet_every) * self.ratchet_every)

    def ratchet_steps(self, leaf: int) -> int:
        """Steps that the secret has taken once ``leaf`` leaves are complete.

        One at the end of the warm-up, one after each ``ratchet_every`` leaves, one at the end.
        """
        every = self.ratchet_every
        ended = self.main is not None and leaf == self.main.leaves and leaf % every > 0
        return 1 + leaf // every + ended

    @cached_property
    def _segment_ends(self) -> tuple[int, ...]:
        return tuple(segment.last for segment in self.segments)

    def segment_at(self, t: int) -> Segment:
        """Segment that observation ``t`` (after the lag) belongs to."""
        last = self.segments[-1]
        if t <= last.last or not self.repeats:
            return self.segments[bisect_left(self._segment_ends, t)]
        span = last.last - last.first + 1
        first = t - (t - last.first) % span
        return _cut(last, first, min(first + span - 1, self.length))

    def looks_between(self, t: int, last: int) -> Iterator[tuple[int, LookNoise]]:
        """The looks after ``t`` observations and before ``last`` leaves are complete."""
        while t < self.length:
            segment = self.segment_at(t + 1)
            t = segment.last
            if self.complete_leaves(t) >= last:
                return
            if segment.look is not None:
                yield t, segment.look

    def outlook(self, t: int, rate: float | None = None) -> Outlook:
        """What is still to come after the look at ``t``: public numbers for the next range.

        A range is chosen for the stream's end; where no end is known, for four times the next
        look, when it will have been chosen again twice; and for a window or a half-life, for what
        they look back on.  By the clock ``rate`` is the released number of observations in a tick,
        and as many are expected in those to come.
        """
        until = self.length if t >= self.length else self.segment_at(t + 1).last
        horizon = self.length if self.length_is_known else min(self.length, 4 * until)
        variance = 0.0
        if self.main is not None and self.memory.forgets:
            variance = typical_variance(self.main, self.memory)
        elif self.main is not None and self.length_is_known:
            variance = self.main.typical_unit_variance
        elif self.main is not None:
            leaf = max(1, self.complete_leaves(horizon) - 1)  # not a round number
            variance = float(self.main.unit_variance(leaf)[0])
        last_steps = self.segments[-1].steps if self.segments else 1
        whole_steps = last_steps if self.main is None else self.main.steps
        noise = variance**0.5 * whole_steps / last_steps * self.leaf.noise_factor

        def observations(time: float) -> int:
            return int(time) if rate is None else max(1, round(rate * time))

        if self.memory.forgets:
            span = float(self.remembered(self.length))
            return Outlook(
                length=observations(span),
                until=observations(min(until - t, span)),
                after=0,
                noise_per_unit=noise,
                forgets=True,
                assumes=self.tail != "bound",
            )
        return Outlook(
            length=observations(horizon),
            until=observations(until),
            after=observations(t),
            noise_per_unit=noise,
            assumes=self.tail != "bound",
            noise_form=self._noise_form(t, until, horizon, variance),
        )

    def _noise_form(
        self, t: int, until: int, horizon: int, variance: float
    ) -> tuple[tuple[float, ...], ...]:
        """Noise of the sum at the horizon by the widths of all ranges: see `Outlook`.

        With E(t) the prefix noise in lattice units and w = width/steps the worth of one, the error
        is Σ_j (w_j − w_{j+1})·E(T_j), T_j the last observation of segment j; the warm-up has its
        own.  ``variance`` stands for that of the last E: a tree's is not typical at every leaf.
        """
        if self.main is None or t >= self.length or self.repeats:
            return ()
        known: dict[int, tuple[tuple[float, ...], ...]] = self.__dict__.setdefault("_forms", {})
        if t not in known:
            ends = [end for end in self._segment_ends if end <= until]
            steps = [segment.steps for segment in self.segments[: len(ends)]]
            if until < horizon:
                ends, steps = [*ends, horizon], [*steps, self.segments[-1].steps]
            leaves = np.array([max(1, self.complete_leaves(end)) for end in ends])
            noise = self.main.node_variance * self.main.strategy.covariance(
                self.main.leaves, np.minimum.outer(leaves, leaves), np.maximum.outer(leaves, leaves)
            )
            noise[-1, -1] = variance * float(self.main.steps) ** 2
            worth = np.diag(1 / np.array(steps, float))
            changes = worth - np.vstack((worth[1:], np.zeros(len(ends))))
            form = changes.T @ noise @ changes
            form[0, 0] += self.warm_up_unit_variance
            unit = variance * (self.main.steps / self.segments[-1].steps) ** 2
            known[t] = tuple(map(tuple, (form / unit).tolist()))
        return known[t]

    # --- what a statistic looks back on ---------------------------------------------------------

    @cached_property
    def discount(self) -> float:
        """What a leaf still counts one leaf later: 1 but for a half-life."""
        return 1.0 if self.main is None else self.main.strategy.discount(self.main.leaves)

    def remembered(self, t: Any, after: int | None = None) -> Any:
        """How many observations (ticks) a release at ``t`` looks back on, each with its weight.

        ``after``: only those after so many.  Of a number or of an array.
        """
        memory = self.memory
        if not memory.forgets:
            return t if after is None else t - after
        begin = self.lag if after is None else after
        leaves = -(-(t - begin) // self.every)
        if memory.window is not None:
            if after is not None:
                return t - after
            return t - begin - np.maximum(0, leaves - memory.window) * self.every
        theta = self.discount
        in_last = t - begin - (leaves - 1) * self.every
        before = theta * -np.expm1((leaves - 1) * np.log(theta)) / (1 - theta)
        return np.where(leaves > 0, in_last + self.every * before, 0.0)

    def kept(self, t: Any, after: int) -> Any:
        """What a total that stood after ``after`` observations still counts at ``t``."""
        if self.memory.half_life is None:
            return 1.0
        return self.discount ** (self.leaf_of(t) - self.leaf_of(after) * 1.0)

    def margin(self, margins: Margins, t: Any, clipping: Range) -> Margin:
        """How far clipping is off for an observation, on average over what ``t`` looks back on.

        By the clock over ticks.  Of a number or of an array.
        """
        if not margins:  # nothing was counted: whatever is clipped may lie at the bounds
            outer = self.bounds if self.shared is None else self.shared.bounds
            return Margin(clipping.lower - outer.lower, outer.upper - clipping.upper)
        begin = self.lag if self.memory.forgets else 0
        whole = self.remembered(t, begin)
        if self.memory.window is not None:
            whole = self.remembered(t)
        found, before = margins[0][1], margins[0][1]
        for after, margin in margins[1:]:
            since = np.clip(self.remembered(t, max(after, begin)), 0.0, whole)
            found = found.plus(margin.plus(before, -1.0), since / whole)
            before = margin
        return found

    def margins_felt(self, margins: Margins, t: int) -> Margins:
        """Those that releases after ``t`` still depend on, where the statistic forgets."""
        leaves = [(self.leaf_of(max(after, self.lag)), ()) for after, _ in margins]
        return margins[-len(self.still_felt(leaves, self.leaf_of(t))) :]

    def still_felt(self, worth: Sequence[Worth], leaf: int) -> tuple[Worth, ...]:
        """Those of the worths so far that leaves after ``leaf`` still depend on."""
        oldest = leaf
        if self.memory.window is not None:
            oldest = leaf - self.memory.window
        elif self.memory.half_life is not None:
            oldest = leaf - math.ceil(math.log(_FORGOTTEN) / math.log(self.discount))
        else:
            return tuple(worth)
        ended = sum(following <= oldest for following, _ in worth[1:])
        return tuple(worth[ended:])

    # --- accuracy --------------------------------------------------------------------------------

    @cached_property
    def warm_up_unit_variance(self) -> float:
        """Noise variance of the sum of the first ``lag``, per unit of clipping range squared."""
        if self.warm_up is None:
            return 0.0
        return float(self.warm_up.unit_variance(self.warm_up.leaves)[0])

    def covariances(
        self, leaves: IntArray, worth: Sequence[Worth], warm_up: Units = ()
    ) -> Callable[[int, int], FloatArray]:
        """Covariance of the noise of two readings at leaves of one segment, as a function of them.

        ``worth`` says what lattice units have been worth, the leaves' own last, and ``warm_up`` in
        the warm-up.  With E_c(t) the noise of column c's prefix and θ the discount, the error of a
        running reading is Σ_c w_c,J·E_c(t) + Σ_j (w_c,j − w_c,j+1)·θ^(t − T_j)·E_c(T_j), T_j the
        last leaf with the worth w_c,j and J the last; that of a window is the difference of two.
        """
        terms = _Terms(self, np.asarray(leaves), worth)

        def covariance(one: int, other: int) -> FloatArray:
            found = terms.covariance(one, other)
            if warm_up:
                found = found + dot(warm_up[one], warm_up[other]) * self._warm_up_node_variance
            return found

        return covariance

    @cached_property
    def _warm_up_node_variance(self) -> float:
        """Noise variance of a column's total after the warm-up, in its lattice units squared."""
        if self.warm_up is None:
            return 0.0
        leaves = self.warm_up.leaves
        weight = self.warm_up.strategy.weights(leaves, np.array([leaves]))
        return float(weight[0]) * self.warm_up.node_variance

    def unit_std(self, leaves: IntArray, weights: tuple[float, ...] = ()) -> FloatArray:
        """Noise std of the first reading at leaves of one segment, per unit of clipping range.

        ``weights`` is the width of a grid step in each segment so far, the leaves' own last;
        with fewer than two the range has not changed and they are not needed.  Counting is left
        aside: exact for a leaf of one column.
        """
        steps = [segment.steps for segment in self.segments]
        weights = weights or (1 / steps[0],)
        begins = (0, *(self.complete_leaves(end) for end in self._segment_ends))
        unit = weights[-1] * steps[len(weights) - 1]
        warm_up: Units = ()
        if self.warm_up is not None:
            warm_up = ((weights[0] * steps[0] / self.warm_up.steps,),)
        worth = [(begin, ((weight,),)) for begin, weight in zip(begins, weights, strict=False)]
        found = self.covariances(leaves, worth, warm_up)(0, 0)
        return np.sqrt(np.maximum(found, 0.0)) / unit

    def unit_std_at(self, t: Any) -> Any:
        """Noise std of the running total released at ``t`` or last before it, per unit of range.

        Where the range may change, as if it did not.  Of a number or of an array.
        """
        leaves = self._leaves_released_by(t)
        unit = np.full(leaves.shape, np.sqrt(self.warm_up_unit_variance))
        if leaves.any():
            unit[leaves > 0] = self.unit_std(leaves[leaves > 0])
        return unit if unit.ndim else float(unit)

    def _leaves_released_by(self, t: Any) -> IntArray:
        """Leaves of the main mechanism that are released at ``t``; 0 where the warm-up is the last.

        Refuses what is no time of a release, or comes before the first.
        """
        times = np.asarray(t)
        first = min(self.first_release, self.length)
        if times.dtype.kind not in "iu" or not np.all((first <= times) & (times <= self.length)):
            what = "an observation number" if self.clock is None else "a tick"
            raise ParameterError(
                "t", f"{what} from {first:,}, the first release, to {self.length:,}", t
            )
        complete = (times - self.lag) // self.every
        return np.where(times == self.length, self.leaf_of(self.length), complete)

    @property
    def first_release(self) -> int:
        """``t`` of the first release: of the warm-up, where its sum is released."""
        if self.lag and self.warm_up is not None:
            return self.lag
        return min(self.lag + self.every, self.length)

    def expected_noise(
        self, t: Any, clipping: Range, rate: float | None = None, mean: float | None = None
    ) -> dict[str, Any]:
        """Noise std at ``t`` by the names of a record, as if the clipping range never changed.

        ``noise_std`` is that of the statistic's first number; ``mean_noise_std`` and others are
        there if a release has them.  Of a number or of an array.

        By the clock ``rate`` is a guess of the observations in a tick: without one, what depends on
        it is NaN.  ``mean`` is a guess of theirs: without one they are taken to lie at the lower
        end, where counting costs most.  Where a count would be lost in noise there is no mean, and
        its noise is NaN.
        """
        times = np.asarray(t)
        leaves = self._leaves_released_by(times).ravel()
        mean = clipping.lower if mean is None else min(max(mean, clipping.lower), clipping.upper)
        remembered = self.remembered(times.ravel())
        observations = remembered * (1.0 if self.clock is None else rate or np.nan)
        warm_up = self._warm_up_units(clipping)
        units = self._expected_units(clipping, mean)
        # What stands at a time was released in the segment of its last leaf; 0 is the warm-up.
        released = np.minimum(self.lag + leaves * self.every, self.length)
        segment_of = 1 + np.searchsorted(self._segment_ends[:-1], released)
        segment_of = np.where(leaves, segment_of, 0)
        found: dict[str, FloatArray] = {}
        for number in np.unique(segment_of).tolist():
            here = segment_of == number
            if number:
                covariance = self.covariances(leaves[here], units[:number], warm_up)
            else:
                covariance = self.covariances_of_warm_up(int(here.sum()), warm_up)
            leaf = self.leaf if number else self.warm_up_leaf
            totals = Totals(
                remembered[here] if self.clock is None else None,
                leaf.totals(observations[here], mean, len(units[0][1] if number else warm_up)),
                covariance,
                clipping,
                np.ones(int(here.sum()), bool) if leaf.may_be_complete else None,
            )
            for name, work_out in self.statistic.numbers(totals).items():
                if name.endswith("noise_std"):
                    rows = np.ravel(work_out())[:: len(self.statistic.names)]
                    found.setdefault(name, np.empty(times.size))[here] = rows
        if times.ndim:
            return {name: stds.reshape(times.shape) for name, stds in found.items()}
        return {name: float(stds[0]) for name, stds in found.items()}

    def _expected_units(self, clipping: Range, mean: float) -> list[Worth]:
        """What lattice units are worth in each segment, if the mean is this one."""
        share = self.statistic.count_share((mean, 1.0), clipping)
        shares = [share] * len(self.segments)
        if self.warm_up is None:
            shares[:1] = [0.5]  # nothing is released yet that could tell
        return [
            (self.leaf_of(segment.first) - 1, self.leaf.units(self.grid(clipping, segment, share)))
            for segment, share in zip(self.segments, shares, strict=True)
        ]

    def _warm_up_units(self, clipping: Range) -> Units:
        if self.warm_up is None:
            return ()
        steps, count = self.warm_up_leaf.cut(self.warm_up.steps)
        return self.warm_up_leaf.units(Grid(clipping.lower, clipping.upper, steps, count))

    def covariances_of_warm_up(self, count: int, units: Units) -> Callable[[int, int], FloatArray]:
        """The same of the warm-up's sum, for so many releases of it."""
        return lambda one, other: np.full(
            count, dot(units[one], units[other]) * self._warm_up_node_variance
        )

    @cached_property
    def noise_law(self) -> str:
        """``"gaussian"`` when all noise is, else ``"laplace"``."""
        parts = [part for part in (self.warm_up, self.main) if part is not None]
        return "gaussian" if all(p.strategy.law == "gaussian" for p in parts) else "laplace"

    @cached_property
    def tail_assumed(self) -> str:
        """The tail that intervals assume of values beyond the clipping range.

        ``"none"`` where nothing is clipped that lies within the bounds, ``"unknown"`` where nothing
        says how much is.
        """
        everything = self.shared is None and self.declared_range == self.bounds
        if not self.leaf.corrected or everything:
            return "none"
        if self.tail == "bound":
            return "bound"
        return "weibull" if self.threshold.corrects else "unknown"

    @property
    def has_margins(self) -> bool:
        """Whether something says how far clipping is off."""
        return self.tail_assumed not in ("none", "unknown")

    @property
    def common(self) -> dict[str, Any]:
        """What all rows of all records have in common, by name."""
        return {
            "noise_law": self.noise_law,
            "post_processing": self.post_processing,
            "tail": self.tail_assumed,
        }

    @cached_property
    def post_processing(self) -> tuple[str, ...]:
        """What is done to decoded sums."""
        corrects = self.threshold.corrects and self.leaf.corrected
        return (
            *(("estimated clipped mass added back",) if corrects else ()),
            *(("made consistent with totals",) if self.levels else ()),
            *self.statistic.post_processing,
            *self._mended,
        )

    @cached_property
    def sums_rise(self) -> bool:
        """Whether released sums are kept from falling: of all so far, where no value is negative.

        That takes the greatest sum so far, which keys that are stepped together do not keep.
        """
        rises = self.bounds.lower >= 0 and not self.memory.forgets
        together = self.fleet or self.crowd
        return self.sane and rises and not together and "sum" in self._summed

    @property
    def _summed(self) -> set[str]:
        """What a record has of sums, means and counts."""
        kinds = set(self.statistic.kinds)
        return kinds | ({"sum", "count"} if kinds & {"sum", "mean"} else set())

    @property
    def _mended(self) -> tuple[str, ...]:
        """What sane output does."""
        rules = {"mean": "kept within its range", "count": "kept at 0 or above"}
        if self.bounds.lower >= 0:
            rules["sum"] = "kept from falling" if self.sums_rise else "kept at 0 or above"
        found = (f"{kind} {rule}" for kind, rule in rules.items() if kind in self._summed)
        return tuple(found) if self.sane else ()

    # --- what it costs ---------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Everything that is charged, with the observations that pay for it.

        Observations of the warm-up are charged when the last of them arrives, before anything is
        drawn; those of a segment when its first arrives, for the whole segment at once.
        """
        events = []
        lag = self.lag
        if self.shared is not None:
            # Which observations of a key were among the first of all is not followed up: all pay.
            label = f"threshold of all keys ({self.shared.threshold.name})"
            events.append(Event(label, self.shared.cost, 1, None))
        if lag:
            label = f"threshold ({self.threshold.name})"
            events.append(Event(label, self.threshold_cost, 1, lag, lag))
        if self.warm_up is not None:
            first = f"{lag:,}" if self.clock is None else f"{lag:,} ticks"
            label = f"sum of the first {first} ({self._describe(self.warm_up)})"
            events.append(Event(label, self.warm_up.cost, 1, lag, lag))
        for segment in self.segments:
            assert self.main is not None
            last: int | None = segment.last
            if segment is self.segments[-1]:
                last = self.length if self.length_is_known else None
            label = f"sums ({self._describe(self.main)})"
            events.append(Event(label, segment.cost, segment.first, last))
            if segment.look is not None:
                events.append(Event("threshold again", segment.look.cost, segment.first, last))
        for level in self.levels:
            assert self.main is not None
            label = f"totals, {level.name} ({self._describe(self.main)})"
            if level.warm_up is not None:
                of = f"totals, {level.name}, first {lag:,} ticks ({self._describe(level.warm_up)})"
                events.append(Event(of, level.warm_up.cost, 1, lag, lag))
            last = self.length if self.length_is_known else None
            for cost, alike in groupby(reversed(level.segments), lambda segment: segment.cost):
                *_, earliest = alike
                events.append(Event(label, cost, earliest.first, last))
                last = earliest.first - 1
        return events

    @staticmethod
    def _describe(mechanism: Mechanism) -> str:
        if mechanism.leaves == 1:
            return mechanism.strategy.law
        return f"{mechanism.strategy.name}, {mechanism.strategy.law}"

    def charges(self) -> Charges:
        """What each observation pays; refuses a layout that breaks its promise."""
        unit = "observations" if self.clock is None else "ticks"
        return Charges(self.guarantee, tuple(self.events()), unit, self.later)

    def worst_cost(self) -> Cost:
        """What the worst-off observation pays."""
        worst = self.charges().worst()
        return Cost() if worst is None else worst.cost


def _cut(segment: Segment, first: int, last: int) -> Segment:
    """The same segment for other ticks."""
    look = segment.look and replace(segment.look, observations=last - first + 1)
    return replace(segment, first=first, last=last, look=look)


def typical_variance(mechanism: Mechanism, memory: Memory) -> float:
    """Noise variance of a sum that is looked back on, per unit of clipping range squared.

    Over the second half of the stream, or over the last window.
    """
    window, leaves = memory.window, mechanism.leaves
    if window is None or window >= leaves:
        return mechanism.typical_unit_variance
    # In trees the noise goes up and down with the place in a window.
    last = leaves - np.arange(0, min(window, leaves - window), -(-window // 64))
    weight = mechanism.strategy.weights(leaves, last)
    weight = weight + mechanism.strategy.weights(leaves, last - window)
    weight = weight - 2 * mechanism.strategy.covariance(leaves, last - window, last)
    return float(np.mean(weight)) * mechanism.node_variance / float(mechanism.steps) ** 2


class _Terms:
    """The noise of readings at some leaves, as a sum of prefix noises at other leaves.

    Some of these are fixed, the last ones before the worth of lattice units changed; others move
    with the leaf of the reading: that leaf itself, and for a window the last one before it.  What
    each column's prefix noise counts for each reading is a number, or an array with one for each
    leaf; all is done leaf by leaf, so that nothing depends on which others are asked for beside it.
    """

    def __init__(self, layout: Layout, leaves: IntArray, worth: Sequence[Worth]) -> None:
        assert layout.main is not None
        self._main = layout.main
        self._known: dict[tuple[int, int], Any] = layout.__dict__.setdefault("_among_ends", {})
        units = [each for _, each in worth]
        window, theta = layout.memory.window, layout.discount
        changed = [j for j in range(1, len(worth)) if not _equal(units[j - 1], units[j])]
        if window is not None and len(leaves):
            oldest = leaves.min() - window
            changed = [j for j in changed if worth[j][0] >= oldest]
        self._ends = [worth[j][0] for j in changed]
        self._changes = [_difference(units[j - 1], units[j]) for j in changed]
        self._felt: list[Any] = [1.0] * len(changed)
        if window is not None:
            self._felt = [(leaves - window <= end) * 1.0 for end in self._ends]
        elif theta != 1.0:
            self._felt = [np.power(theta, (leaves - end) * 1.0) for end in self._ends]
        self._now, self._units = leaves, units[-1]
        self._before: IntArray | None = None
        if window is not None and len(leaves) and leaves.max() > window:
            self._before = leaves - window
            begins = [begin for begin, _ in worth]
            in_force = np.maximum(np.searchsorted(begins, self._before, side="left") - 1, 0)
            self._units_before = _picked(units, in_force)
        else:
            self._units_before = units[-1]

    def _covariance(self, earlier: Any, later: Any) -> Any:
        """Covariance of the prefix noises at some leaves; before the first there is none.

        Leaf by leaf the same, however many are asked for at once.
        """
        strategy, leaves = self._main.strategy, self._main.leaves
        if earlier is later:
            return strategy.weights(leaves, earlier) * self._main.node_variance
        begun = np.broadcast_to(np.asarray(earlier) > 0, np.shape(later - earlier))
        if begun.all():
            return strategy.covariance(leaves, earlier, later) * self._main.node_variance
        found = np.zeros(begun.shape)
        if begun.any():
            both = (time[begun] if np.ndim(time) else time for time in (earlier, later))
            found[begun] = strategy.covariance(leaves, *both)
        return found * self._main.node_variance

    @cached_property
    def _of_now(self) -> Any:
        return self._covariance(self._now, self._now)

    @cached_property
    def _of_before(self) -> tuple[Any, Any]:
        """Of what a window leaves out: with the leaf itself, and alone."""
        before = self._before
        assert before is not None
        begun = np.maximum(before, 1)  # what is before the first leaf counts nothing
        alone = np.where(before > 0, self._covariance(begun, begun), 0.0)
        return self._covariance(before, self._now), alone

    @cached_property
    def _with_ends(self) -> list[tuple[Any, Any]]:
        """Of each end with the leaf, and with the last one before a window, which may precede."""
        before = self._before
        return [
            (
                self._covariance(end, self._now),
                None if before is None else self._covariance(np.minimum(before, end), end),
            )
            for end in self._ends
        ]

    @cached_property
    def _among_ends(self) -> list[tuple[int, int, Any]]:
        # They stay the same, release after release: each is worked out once.
        ends, known = self._ends, self._known
        if len(known) > _MOST_KNOWN:
            known.clear()
        for pair in {(min(a, b), max(a, b)) for a in ends for b in ends} - known.keys():
            known[pair] = self._covariance(*map(np.int64, pair))
        return [
            (i, j, known[min(ends[i], ends[j]), max(ends[i], ends[j])])
            for i in range(len(ends))
            for j in range(i + 1)
        ]

    def covariance(self, one: int, other: int) -> FloatArray:
        """Covariance of the noise of two readings."""
        units, past, before = self._units, self._units_before, self._before
        found: FloatArray = dot(units[one], units[other]) * self._of_now
        if before is not None:
            between, alone = self._of_before
            both = dot(units[one], past[other]) + dot(units[other], past[one])
            found = found - both * between + dot(past[one], past[other]) * alone
        for change, felt, (now, then) in zip(
            self._changes, self._felt, self._with_ends, strict=True
        ):
            both = dot(units[one], change[other]) + dot(units[other], change[one])
            added = both * now
            if then is not None:
                both = dot(past[one], change[other]) + dot(past[other], change[one])
                added = added - both * then
            found = found + added * felt
        rest: Any = 0.0
        for i, j, between in self._among_ends:
            both = dot(self._changes[i][one], self._changes[j][other])
            if i != j:
                both = both + dot(self._changes[i][other], self._changes[j][one])
            rest = rest + both * between * (self._felt[i] * self._felt[j])
        return np.asarray(found + rest)


def _equal(one: Units, other: Units) -> bool:
    """Whether nothing has changed, as far as that can be told without looking at many keys."""
    pairs = zip(_flat(one), _flat(other), strict=True)
    return all(a is b or (np.ndim(a) == 0 == np.ndim(b) and a == b) for a, b in pairs)


def _flat(units: Units) -> list[Any]:
    return [each for reading in units for each in reading]


def _difference(one: Units, other: Units) -> Units:
    return tuple(
        tuple(a - b for a, b in zip(first, second, strict=True))
        for first, second in zip(one, other, strict=True)
    )


def dot(one: Sequence[Any], other: Sequence[Any]) -> Any:
    """Columns have independent noise: a sum over them, in their order."""
    total = one[0] * other[0]
    for a, b in zip(one[1:], other[1:], strict=True):
        total = total + a * b
    return total


def _picked(units: Sequence[Units], numbers: IntArray) -> Units:
    """For each leaf those of a number."""
    if len(numbers) == 1:
        return units[int(numbers[0])]
    place = np.arange(len(numbers))

    def picked(each: list[Any]) -> Any:
        if any(map(np.ndim, each)):
            return np.array([np.broadcast_to(one, len(numbers)) for one in each])[numbers, place]
        return np.array(each)[numbers]

    return tuple(
        tuple(picked([one[r][c] for one in units]) for c in range(len(units[0][r])))
        for r in range(len(units[0]))
    )


def _identity(part: Statistic | Threshold | Strategy) -> dict[str, Any]:
    """A part of another package is known by its class, and by the version that it declares."""
    kind = type(part)
    known = {
        "kind": part.name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "version": part.version,
    }
    if isinstance(part, Several):
        return {**known, "parts": [_identity(each) for each in part.parts], "shares": part.shares}
    options: dict[str, Any] = asdict(part)  # type: ignore[call-overload]
    if isinstance(part, Statistic):
        options.pop("share", None)  # alone it has all
    return {**known, **options}


def _calibrated(mechanism: Mechanism) -> dict[str, Any]:
    return {
        "strategy": _identity(mechanism.strategy),
        "constants": list(mechanism.strategy.constants(mechanism.leaves)),
        "leaves": mechanism.leaves,
        "steps": mechanism.steps,
        "scale": mechanism.scale,
        "width": mechanism.width,
    }


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two mechanisms, in words; at most three things."""
    found = []
    for name in dict.fromkeys([*was, *now]):
        before, after = was.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict) and before != after:
            inner = differences(before, after).split("; ")
            found += [f"{name}.{part}" for part in inner]
        elif before != after:
            shown = [
                "something else" if isinstance(value, list | dict) else value
                for value in (before, after)
            ]
            found.append(f"{name} was {shown[0]}, is {shown[1]}")
    return "; ".join(found[:3])
