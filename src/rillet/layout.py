"""A plan worked out: everything a stream needs, from public numbers alone.

The first ``lag`` observations are the *opening*: they pay for the threshold and are released with
what is left of the promise.  The others go through the *main* mechanism.  They hold different
observations, so the total is the worse of the two (PAK, section III).  Where the threshold is
learned again, the main part has several *epochs*: an observation pays for the look at its epoch's
end, and enters the main mechanism on fewer steps, so that both together keep the promise.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray
from rillet.privacy import Charges, Cost, Event, Guarantee
from rillet.statistic import Statistic
from rillet.strategy import Mechanism
from rillet.threshold import FixedThreshold, Outlook, Range, RefreshingThreshold, Threshold

#: A stream's secret moves on, one way, after this many leaves; they also fit the cache.
RATCHET_EVERY: Final = 2**14
#: The same for each of many keys; with more than some thousand of them fewer, since stored state
#: holds the noise up to the next step for every key.
KEYED_RATCHET_EVERY: Final = 2**10
_LEAST_RATCHET_EVERY: Final = 2**6
_DRAWN_AHEAD_IN_ALL: Final = 2**20


@dataclass(frozen=True)
class LookNoise:
    """Noise on the tally of some observations, and what it costs each of them."""

    observations: int
    scale: float
    law: str
    cost: Cost


@dataclass(frozen=True)
class Epoch:
    """Observations ``first … last``, with one clipping range cut into ``steps`` steps.

    ``cost`` is what the main mechanism costs each of them; ``look`` is what they pay besides.
    """

    first: int
    last: int
    steps: int
    cost: Cost
    look: LookNoise | None = None


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
    look: LookNoise | None = None

    @property
    def centre_budget(self) -> Fraction:
        """What finding the centre of a range with two sides takes of the budget."""
        if isinstance(self.threshold, RefreshingThreshold):
            return self.budget * self.threshold.centre_share
        return Fraction(0)


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
    opening: Mechanism | None
    opening_look: LookNoise | None
    main: Mechanism | None
    epochs: tuple[Epoch, ...]
    statistic: Statistic
    digest: bytes = field(repr=False)
    #: Number of declared keys, each with a stream of this layout; 0 for a stream without a key.
    keys: int = 0
    shared: SharedThreshold | None = None

    def __post_init__(self) -> None:
        if self.threshold.learns != (self.lag > 0):
            raise ParameterError(
                "lag", "a positive lag exactly when the threshold is learned", self.lag
            )

    @property
    def declared_range(self) -> Range | None:
        """The clipping range, where it is public from the start."""
        if isinstance(self.threshold, FixedThreshold):
            return self.threshold.range_within(self.bounds)
        return None

    def with_range(self, learned: Range) -> Layout:
        """The layout of each key's stream, once the shared range is known."""
        return replace(self, bounds=learned)

    @property
    def centre_budget(self) -> Fraction:
        """What finding the centre of a range with two sides takes of the threshold's budget."""
        if isinstance(self.threshold, RefreshingThreshold):
            return self.threshold_budget * self.threshold.centre_share
        return Fraction(0)

    # --- public times ----------------------------------------------------------------------------

    @property
    def opening_every(self) -> int:
        """Observations in a leaf of the opening: all of them, unless they are backfilled."""
        return self.every if self.backfill else self.lag

    def leaf_of(self, t: int) -> int:
        """Leaf of the main mechanism that observation ``t`` (counted from 1) belongs to."""
        return -(-(t - self.lag) // self.every)

    def complete_leaves(self, t: int) -> int:
        """Leaves of the main mechanism that ``t`` observations complete; the last may be short."""
        return self.leaf_of(t) if t == self.length else (t - self.lag) // self.every

    def release_times(self, first_leaf: int, count: int) -> IntArray:
        """Observation numbers at which these leaves of the main mechanism are complete."""
        ends = np.arange(first_leaf, first_leaf + count, dtype=np.int64)
        ends *= self.every
        ends += self.lag
        return np.minimum(ends, self.length, out=ends)

    @property
    def ratchet_every(self) -> int:
        """Leaves of the main mechanism under one key."""
        if not self.keys:
            return RATCHET_EVERY
        each = max(_LEAST_RATCHET_EVERY, _DRAWN_AHEAD_IN_ALL // self.keys)
        return min(KEYED_RATCHET_EVERY, 1 << each.bit_length() - 1)

    def ratchet_steps(self, leaf: int) -> int:
        """Steps that the secret has taken once ``leaf`` leaves are complete.

        One at the end of the opening, one after each ``ratchet_every`` leaves, one at the end.
        """
        every = self.ratchet_every
        ended = self.main is not None and leaf == self.main.leaves and leaf % every > 0
        return 1 + leaf // every + ended

    @cached_property
    def _epoch_ends(self) -> tuple[int, ...]:
        return tuple(epoch.last for epoch in self.epochs)

    def epoch_at(self, t: int) -> Epoch:
        """Epoch that observation ``t`` (after the lag) belongs to."""
        return self.epochs[bisect_left(self._epoch_ends, t)]

    def look_at(self, t: int) -> LookNoise:
        """The look after observation ``t``."""
        look = self.opening_look if t == self.lag else self.epoch_at(t).look
        assert look is not None
        return look

    def outlook(self, t: int) -> Outlook:
        """What is still to come after the look at ``t``: public numbers for the next range.

        A range is chosen for the stream's end; where no end is known, for four times the next
        look, when it will have been chosen again twice.
        """
        until = self.length if t >= self.length else self.epoch_at(t + 1).last
        horizon = self.length if self.length_is_known else min(self.length, 4 * until)
        variance = 0.0
        if self.main is not None and self.length_is_known:
            variance = self.main.typical_unit_variance
        elif self.main is not None:
            leaf = max(1, self.complete_leaves(horizon) - 1)  # not a round number
            variance = float(self.main.unit_variance(leaf)[0])
        last_steps = self.epochs[-1].steps if self.epochs else 1
        whole_steps = last_steps if self.main is None else self.main.steps
        return Outlook(
            length=horizon,
            until=until,
            after=t,
            noise_per_unit=variance**0.5 * whole_steps / last_steps,
        )

    # --- accuracy --------------------------------------------------------------------------------

    @cached_property
    def opening_unit_variance(self) -> float:
        """Noise variance of the sum of the first ``lag``, per unit of clipping range squared."""
        if self.opening is None:
            return 0.0
        return float(self.opening.unit_variance(self.opening.leaves)[0])

    def unit_std(self, leaves: IntArray, weights: tuple[float, ...] = ()) -> FloatArray:
        """Noise std of the running sum at leaves of one epoch, per unit of its clipping range.

        ``weights`` is what a lattice unit was worth in each epoch so far, the leaves' own last;
        with fewer than two the range has not changed and they are not needed.
        """
        main = self.main
        assert main is not None
        if len(weights) < 2:
            finer = (main.steps / self.epochs[0].steps) ** 2
            variance = main.unit_variance(leaves)
            variance *= finer
            variance += self.opening_unit_variance
            return np.sqrt(variance, out=variance)
        return self._changing_unit_std(main, leaves, weights)

    def _changing_unit_std(
        self, main: Mechanism, leaves: IntArray, weights: tuple[float, ...]
    ) -> FloatArray:
        """Error = w_J·E(t) + Σ_j (w_j − w_{j+1})·E(T_j), T_j the last leaf of epoch j."""
        now = len(weights) - 1
        ends = np.array([self.complete_leaves(self.epochs[j].last) for j in range(now)])
        change = np.array(weights[:-1]) - np.array(weights[1:])
        covariance, count = main.strategy.covariance, main.leaves
        variance = weights[-1] ** 2 * main.strategy.weights(count, leaves)
        for end, difference in zip(ends, change, strict=True):
            variance += 2 * weights[-1] * difference * covariance(count, end, leaves)
        among = covariance(count, np.minimum.outer(ends, ends), np.maximum.outer(ends, ends))
        variance += change @ among @ change
        variance *= main.node_variance
        opening_width = weights[0] * self.epochs[0].steps
        variance += self.opening_unit_variance * opening_width**2
        return np.sqrt(np.maximum(variance, 0.0)) / (weights[-1] * self.epochs[now].steps)

    def unit_std_at(self, t: int) -> float:
        """Noise std of the running sum released at ``t`` or last before it, per unit of range.

        Where the range may change, as if it did not.
        """
        if not 1 <= t <= self.length:
            raise ParameterError("t", f"an observation number from 1 to {self.length:,}", t)
        if t < self.lag + (self.every if not self.lag else 0) and t != self.length:
            first = self.lag or self.every
            raise ParameterError("t", f"at least {first:,}, where the first release is", t)
        leaf = self.complete_leaves(t) if t > self.lag else 0
        if leaf == 0:
            return float(np.sqrt(self.opening_unit_variance))
        return float(self.unit_std(np.array([leaf]))[0])

    @property
    def noise_law(self) -> str:
        """``"gaussian"`` when all noise is, else ``"laplace"``."""
        parts = [part for part in (self.opening, self.main) if part is not None]
        return "gaussian" if all(p.strategy.law == "gaussian" for p in parts) else "laplace"

    @property
    def post_processing(self) -> tuple[str, ...]:
        """What is done to a decoded sum."""
        if isinstance(self.threshold, RefreshingThreshold) and self.threshold.corrects:
            return ("estimated clipped mass added back",)
        return ()

    # --- what it costs ---------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Everything that is charged, with the observations that pay for it.

        Observations of the opening are charged when the last of them arrives, before anything is
        drawn; those of an epoch when its first arrives, for the whole epoch at once.
        """
        events = []
        lag = self.lag
        if self.shared is not None:
            # Which observations of a key were among the first of all is not followed up: all pay.
            label = f"threshold of all keys ({self.shared.threshold.name})"
            events.append(Event(label, self.shared.cost, 1, None))
        if self.centre_budget:
            events.append(Event("centre of the range", Cost.pure(self.centre_budget), 1, lag, lag))
        if self.opening_look is not None:
            label = f"threshold ({self.threshold.name})"
            events.append(Event(label, self.opening_look.cost, 1, lag, lag))
        elif lag:
            cost = self.threshold.cost(self.threshold_budget, self.guarantee.delta)
            events.append(Event(f"threshold ({self.threshold.name})", cost, 1, lag, lag))
        if self.opening is not None:
            label = f"sum of the first {lag:,} ({self._describe(self.opening)})"
            events.append(Event(label, self.opening.cost, 1, lag, lag))
        for epoch in self.epochs:
            assert self.main is not None
            known = self.length_is_known or epoch is not self.epochs[-1]
            last = epoch.last if known else None
            label = f"running sum ({self._describe(self.main)})"
            events.append(Event(label, epoch.cost, epoch.first, last))
            if epoch.look is not None:
                events.append(Event("threshold again", epoch.look.cost, epoch.first, last))
        return events

    @staticmethod
    def _describe(mechanism: Mechanism) -> str:
        if mechanism.leaves == 1:
            return mechanism.strategy.law
        return f"{mechanism.strategy.name}, {mechanism.strategy.law}"

    def charges(self) -> Charges:
        """What each observation pays; refuses a layout that breaks its promise."""
        return Charges(self.guarantee, tuple(self.events()))

    def worst_cost(self) -> Cost:
        """What the worst-off observation pays."""
        worst = self.charges().worst()
        return Cost() if worst is None else worst.cost
