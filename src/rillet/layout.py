"""A plan worked out: everything a stream needs, from public numbers alone.

The first ``lag`` observations are the *opening*: they pay for the threshold and are released with
what is left of the promise.  The others go through the *main* mechanism with the whole promise.
The two hold different observations, so the total is the worse of the two (PAK, section III).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray
from rillet.privacy import Cost, Event, Guarantee, Ledger
from rillet.statistic import Statistic
from rillet.strategy import Mechanism
from rillet.threshold import FixedThreshold, Range, Threshold


@dataclass(frozen=True)
class Layout:
    """The calibrated parts of a plan.

    **Privacy.** ``events`` says what each observation pays; :meth:`ledger` refuses the layout as a
    whole when that is more than the promise.
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
    main: Mechanism | None
    statistic: Statistic
    digest: bytes = field(repr=False)

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

    @property
    def opening_every(self) -> int:
        """Observations in a leaf of the opening: all of them, unless they are backfilled."""
        return self.every if self.backfill else self.lag

    def leaf_of(self, t: int) -> int:
        """Leaf of the main mechanism that observation ``t`` (counted from 1) belongs to."""
        return -(-(t - self.lag) // self.every)

    def release_times(self, first_leaf: int, count: int) -> IntArray:
        """Observation numbers at which these leaves of the main mechanism are complete."""
        ends = np.arange(first_leaf, first_leaf + count, dtype=np.int64)
        ends *= self.every
        ends += self.lag
        return np.minimum(ends, self.length, out=ends)

    @cached_property
    def opening_unit_variance(self) -> float:
        """Noise variance of the sum of the first ``lag``, per unit of clipping range squared."""
        if self.opening is None:
            return 0.0
        return float(self.opening.unit_variance(self.opening.leaves)[0])

    def unit_std(self, leaves: IntArray) -> FloatArray:
        """Noise std of the running sum at leaves of the main mechanism, per unit of range."""
        assert self.main is not None
        variance = self.main.unit_variance(leaves)
        variance += self.opening_unit_variance
        return np.sqrt(variance, out=variance)

    def unit_std_at(self, t: int) -> float:
        """Noise std of the running sum released at ``t`` or last before it, per unit of range."""
        if not 1 <= t <= self.length:
            raise ParameterError("t", f"an observation number from 1 to {self.length:,}", t)
        if t < self.lag + (self.every if not self.lag else 0) and t != self.length:
            first = self.lag or self.every
            raise ParameterError("t", f"at least {first:,}, where the first release is", t)
        leaf = (t - self.lag) // self.every if t < self.length else self.leaf_of(t)
        if leaf == 0:
            return float(np.sqrt(self.opening_unit_variance))
        return float(self.unit_std(np.array([leaf]))[0])

    @property
    def noise_law(self) -> str:
        """``"gaussian"`` when all noise is, else ``"laplace"``."""
        parts = [part for part in (self.opening, self.main) if part is not None]
        return "gaussian" if all(p.strategy.law == "gaussian" for p in parts) else "laplace"

    # --- what it costs ---------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Every spend of the plan, with the observations that pay for it."""
        events = []
        if self.lag:
            cost = self.threshold.cost(self.threshold_budget, self.guarantee.delta)
            label = f"threshold ({self.threshold.name})"
            events.append(Event(label, cost, 1, self.lag))
        if self.opening is not None:
            label = f"sum of the first {self.lag:,} ({self._describe(self.opening)})"
            events.append(Event(label, self.opening.cost, 1, self.lag))
        if self.main is not None:
            last = self.length if self.length_is_known else None
            label = f"running sum ({self._describe(self.main)})"
            events.append(Event(label, self.main.cost, self.lag + 1, last))
        return events

    @staticmethod
    def _describe(mechanism: Mechanism) -> str:
        if mechanism.leaves == 1:
            return mechanism.strategy.law
        return f"{mechanism.strategy.name}, {mechanism.strategy.law}"

    def ledger(self, t: int | None = None) -> Ledger:
        """The ledger after ``t`` observations (all of the plan by default).

        Observations of the opening are charged when the last of them arrives, before anything is
        drawn; those after it when the first of them arrives, for the whole stream at once.
        """
        ledger = Ledger(self.guarantee)
        for event in self.events():
            begins = self.lag if event.first == 1 and self.lag else event.first
            if t is None or t >= begins:
                ledger.spend(event)
        return ledger

    def worst_cost(self) -> Cost:
        """What the worst-off observation pays."""
        worst = self.ledger().worst()
        return Cost() if worst is None else worst.cost
