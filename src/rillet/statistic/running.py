"""Means, sums and counts of all so far, of a window or with a half-life, by count or the clock.

What an observation contributes depends on what is public:

===================  ===========================  ================================  ================
leaf                 columns                      one unit moves it by              serves
===================  ===========================  ================================  ================
:class:`_Values`     k, from 0 to K               K                                 by count
:class:`_Present`    k − K/2 and κ; 0, 0 if       (K, 0), or (K/2, κ) between       by count, with
                     missing                      a value and none                  missing values
:class:`_Pair`       k − K/2 and κ                (K/2, κ)                          clock, Gaussian
:class:`_Shares`     k and K − k                  K in L1, in any mixture           clock, pure ε
:class:`_Count`      κ; 0 if missing              κ                                 counts
===================  ===========================  ================================  ================

All but the first and the last have the readings *sum* and *count*; with missing values by count the
third is the sum as it is if nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import copysign, isfinite, isnan, isqrt, sqrt
from typing import Any, ClassVar

import numpy as np

from rillet.errors import ParameterError
from rillet.options import option
from rillet.statistic.base import (
    FloatArray,
    IntArray,
    Lattice,
    Leaf,
    Margin,
    Memory,
    Range,
    Setting,
    Statistic,
    Totals,
    Units,
)

#: Readings.
SUM, COUNT, SUM_IF_COMPLETE = range(3)
#: A count below so many deviations of its noise is lost in it: a mean would be a wild number.
LOST = 2.0


class _Values(Leaf):
    """One column: the clipped value in lattice steps; the number of observations is public.

    **Privacy.** Replacing an observation moves its leaf by at most ``steps``.
    """

    width = 1

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        return lattice.quantise(raw_values)

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        quantise_one = lattice.quantiser(-away)
        return lambda raw_value: (quantise_one(raw_value),)

    def contributor_of_one(self, lattice: Lattice, away: int = 0) -> Callable[[float], int]:
        return lattice.quantiser(-away)

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        return ((steps,),)

    def units(self, lattice: Lattice) -> Units:
        return (((lattice.upper - lattice.lower) / lattice.steps,),)

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        return (clipping.lower,)


class _Centred(Leaf):
    """Two columns: the value from the middle of the range, and a count.

    **Privacy.** A value contributes (k − K/2, κ) with 0 ≤ k ≤ K and K even, a missing one nothing,
    or (0, κ) where none is expected to be missing.
    """

    width = readings = 2
    count_reading = COUNT
    corrected: tuple[tuple[int, int | None], ...] = ((SUM, COUNT),)

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        exact_units = np.empty((len(raw_values), 2), np.int64)
        np.subtract(lattice.quantise(raw_values), lattice.steps // 2, out=exact_units[:, 0])
        exact_units[:, 1] = lattice.count
        if self._setting.missing:
            exact_units[np.isnan(raw_values), 1] = 0  # the middle is 0 already
        return exact_units

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        # The middle is 0 already.
        quantise_one = lattice.quantiser(lattice.steps // 2 - away)
        count = lattice.count + away
        of_missing = away if self._setting.missing else count

        def of_one(raw_value: float) -> tuple[int, ...]:
            # Picked by number, as in Grid.quantiser: it takes the same time for all.
            return quantise_one(raw_value), (count, of_missing)[isnan(raw_value)]

        return of_one

    def units(self, lattice: Lattice) -> Units:
        clipping = Range(lattice.lower, lattice.upper)
        each = 1 / lattice.count
        return ((clipping.width / lattice.steps, clipping.middle * each), (0.0, each))


class _Present(_Centred):
    """By count: one observation is replaced, and may be missing before or after.

    **Privacy.** From value to value the first column moves by at most K and the second not at all;
    between a value and none they move by at most (K/2, κ).  With κ² ≤ ¾K² (κ ≤ K/2 for Laplace
    noise) the second costs no more than the first: counting is free.
    """

    readings = 3
    corrected = ((SUM, COUNT), (SUM_IF_COMPLETE, None))
    may_be_complete = True

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        return ((steps, 0), (steps // 2, self.cut(steps)[1]))

    def cut(self, steps: int) -> tuple[int, int]:
        even = steps - steps % 2
        count = even // 2 if self._setting.law == "laplace" else isqrt(3 * even * even // 4)
        return even, max(count, 1)

    def units(self, lattice: Lattice) -> Units:
        of_sum, of_count = super().units(lattice)
        return (of_sum, of_count, (of_sum[0], 0.0))

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        return (0.0, 0.0, clipping.middle)


class _Pair(_Centred):
    """By the clock, Gaussian: one observation is added or removed.

    **Privacy.** It moves its leaf by at most (K/2, κ).  How μ² is divided between the two columns
    is chosen anew at public times, through K and κ.
    """

    #: Half of μ² each, at a mean that lies at the end of the range.
    noise_factor = typical_factor = sqrt(2.0)
    splits = True

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        half = max(steps // 2, 1)
        return ((half, half),)

    def cut(self, steps: int) -> tuple[int, int]:
        half = max(steps // 2, 1)
        return 2 * half, half


class _Shares(Leaf):
    """By the clock, pure: how far the value is from either end of the range.

    **Privacy.** An observation adds (k, K − k), 0 ≤ k ≤ K: it moves its leaf by exactly K in L1.
    """

    width = readings = 2
    count_reading = COUNT
    corrected = ((SUM, COUNT),)

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        exact_units = np.empty((len(raw_values), 2), np.int64)
        exact_units[:, 0] = lattice.quantise(raw_values)
        np.subtract(lattice.steps, exact_units[:, 0], out=exact_units[:, 1])
        if self._setting.missing:
            exact_units[np.isnan(raw_values)] = 0
        return exact_units

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        return ((steps, 0), (0, steps))

    def units(self, lattice: Lattice) -> Units:
        steps = lattice.steps
        return ((lattice.upper / steps, lattice.lower / steps), (1 / steps, 1 / steps))


class _Count(Leaf):
    """One column: how many values there are.

    **Privacy.** An observation adds κ = ``steps``, a missing one nothing.
    """

    width = 1
    corrected = ()

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        return np.where(np.isnan(raw_values), 0, lattice.steps)

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        one, none = (lattice.steps + away,), (away,)
        return lambda raw_value: (one, none)[isnan(raw_value)]

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        return ((steps,),)

    def units(self, lattice: Lattice) -> Units:
        return ((1 / lattice.steps,),)

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        return (0.0,)


@dataclass(frozen=True)
class _Above:
    """The lattice of a share: a value above the limit is 1, any other 0, in steps."""

    limit: float
    steps: Any
    count: Any
    lower: float = 0.0
    upper: float = 1.0

    def quantise(self, raw_values: Any) -> IntArray:
        exact_units = np.where(raw_values > self.limit, self.steps, 0)
        return np.where(np.isnan(raw_values), self.steps // 2, exact_units)

    def quantiser(self, zero: int = 0) -> Callable[[float], int]:
        limit, half, middle = float(self.limit), self.steps / 2, float(self.steps // 2)
        away, base = 2.0**52, 2**52 + zero  # a large integer is made first, as in Grid.quantiser

        def quantise_one(raw_value: float) -> int:
            # By its sign: a comparison takes longer where its outcome is not the usual one.
            exact_units = half - copysign(half, limit - raw_value)
            return int((exact_units, middle)[isnan(raw_value)] + away) - base

        return quantise_one

    def on(self, steps: int, count: int) -> _Above:
        return replace(self, steps=steps, count=count)


class _Shared(Leaf):
    """What is contributed to a share: what 0 and 1 contribute to a mean between 0 and 1.

    **Privacy.** As the leaf of that mean.
    """

    corrected = ()

    def __init__(self, of_mean: Leaf, limit: float) -> None:
        self._of_mean, self._limit = of_mean, limit
        self.width, self.readings = of_mean.width, of_mean.readings
        self.noise_factor, self.typical_factor = of_mean.noise_factor, of_mean.typical_factor
        self.splits, self.count_reading = of_mean.splits, of_mean.count_reading
        self.may_be_complete = of_mean.may_be_complete

    def _lattice(self, lattice: Lattice) -> Lattice:
        return _Above(self._limit, lattice.steps, lattice.count)

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        return self._of_mean.contribute(raw_values, self._lattice(lattice))

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        return self._of_mean.contributor(self._lattice(lattice), away)

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        return self._of_mean.moves(steps)

    def cut(self, steps: int) -> tuple[int, int]:
        return self._of_mean.cut(steps)

    def units(self, lattice: Lattice) -> Units:
        return self._of_mean.units(self._lattice(lattice))

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        return self._of_mean.offsets(Range(0.0, 1.0))

    def totals(self, observations: Any, mean: float, readings: int) -> tuple[Any, ...]:
        return self._of_mean.totals(observations, min(max(mean, 0.0), 1.0), readings)


@dataclass(frozen=True)
class Remembering(Statistic):
    """A statistic of all values so far, of a window of the last ones, or with a half-life.

    Parameters
    ----------
    window
        Only the last so many observations count, or by the clock those of a duration such as
        ``"7d"``; a whole number of release intervals.
    half_life
        An observation counts half as much after so many further ones, or after a duration such as
        ``"1d"``.
    share
        In a list of statistics, the public part of the promise that this one gets, of ε or, with
        Gaussian noise, of its square: noise grows with one over the share, or over its root.
    """

    window: int | str | None = option(
        "only the last so many observations count, or by the clock those of a duration such as 7d",
        default=None,
        metavar="W",
        ge=1,
    )
    half_life: int | str | None = option(
        "an observation counts half as much after so many others, or after a duration such as 1d",
        default=None,
        metavar="H",
        ge=1,
    )
    share: float | None = option(
        "in a list of statistics, the part of the promise that this one gets, of ε or of its "
        "square with Gaussian noise; none: as much as others that have none",
        default=None,
        metavar="SHARE",
        gt=0,
        lt=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and self.half_life is not None:
            raise ParameterError("half_life", "none beside a window", self.half_life)

    def memory(self, leaves: Callable[[str, Any], float]) -> Memory:
        """A window, a half-life, or all so far."""
        if self.window is not None:
            return Memory(window=int(leaves("window", self.window)))
        if self.half_life is not None:
            return Memory(half_life=leaves("half_life", self.half_life))
        return Memory()


class Running(Remembering):
    """Means and sums."""

    #: Which of the numbers is the value.
    _value: ClassVar[str]

    def leaf(self, setting: Setting) -> Leaf:
        """By the clock with a hidden count; by count with one where values may be missing."""
        if setting.by_clock:
            return _Pair(setting) if setting.law == "gaussian" else _Shares(setting)
        return _Present(setting) if setting.missing else _Values()

    @property
    def kinds(self) -> tuple[str, ...]:
        """A mean or a sum."""
        return (self._value,)

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """Sum, mean and count."""
        known = _running(totals, self._value)
        value, noise_std = known[self._value], known[f"{self._value}_noise_std"]
        if totals.margin is not None and self.clips:
            known |= _clipping(totals.margin, known["count"], whole=self._value == "sum")
        return {"value": value, "noise_std": noise_std, **known}


def _running(totals: Totals, value: str) -> dict[str, Callable[[], Any]]:
    if len(totals.sums) == 1:
        total, count = totals.sums[SUM], totals.count
        return {
            "sum": lambda: total,
            "sum_noise_std": totals.std,
            "mean": lambda: total / count,
            "mean_noise_std": lambda: totals.std() / count,
            "count": lambda: count * 1.0,
            "count_noise_std": lambda: count * 0.0,
        }
    ratio = _Ratio(totals)
    slack = {"mean": ratio.slack_of_mean, "sum": ratio.slack_of_sum}[value]
    return {
        **({} if totals.complete is None else {"noise_slack": slack}),
        "sum": ratio.sum,
        "sum_noise_std": ratio.sum_noise_std,
        "mean": ratio.mean,
        "mean_noise_std": ratio.mean_noise_std,
        "noise_covariance": ratio.noise_covariance,
        "count": ratio.count,
        "count_noise_std": ratio.count_noise_std,
    }


def _clipping(
    margin: Callable[[], Margin], count: Callable[[], Any], *, whole: bool
) -> dict[str, Callable[[], Any]]:
    """How far below and above clipping may be off, of a mean or of the whole sum."""

    def side(number: int) -> Any:
        observations = np.maximum(count(), 1.0)
        found = margin().of(observations)[number]
        return found * observations if whole else found

    return {"clipping_below": lambda: side(0), "clipping_above": lambda: side(1)}


class _Ratio:
    """A mean whose count is noisy too.  Where the count is lost in noise there is no mean yet."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._complete = False if totals.complete is None else totals.complete

    def _either(self, complete: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """One number where nothing is taken to be missing, another elsewhere."""
        if np.all(self._complete):
            return complete()
        if not np.any(self._complete):
            return other()
        return np.where(self._complete, complete(), other())

    def sum(self) -> Any:
        sums = self._totals.sums
        return self._either(lambda: sums[SUM_IF_COMPLETE], lambda: sums[SUM])

    def sum_noise_std(self) -> Any:
        return self._either(lambda: self._totals.std(SUM_IF_COMPLETE), self._totals.std)

    def count(self) -> Any:
        totals = self._totals
        return self._either(lambda: totals.count * 1.0, lambda: totals.sums[COUNT])

    def count_noise_std(self) -> Any:
        return self._totals.std(COUNT)

    def _divisor(self) -> Any:
        """The count, or NaN where it is lost in noise."""
        count = self._totals.sums[COUNT]
        return np.where(count > LOST * self.count_noise_std(), count, np.nan)

    def mean(self) -> Any:
        totals = self._totals
        return self._either(
            lambda: totals.sums[SUM_IF_COMPLETE] / totals.count,
            lambda: totals.sums[SUM] / self._divisor(),
        )

    def _noise_std(self) -> Any:
        totals, divisor = self._totals, self._divisor()
        mean = totals.sums[SUM] / divisor
        variance = (
            totals.covariance(SUM, SUM)
            - 2 * mean * totals.covariance(SUM, COUNT)
            + mean * mean * totals.covariance(COUNT, COUNT)  # a scalar's power is not its square
        )
        return np.sqrt(np.maximum(variance, 0.0)) / divisor

    def mean_noise_std(self) -> Any:
        totals = self._totals
        return self._either(lambda: totals.std(SUM_IF_COMPLETE) / totals.count, self._noise_std)

    def slack_of_mean(self) -> Any:
        """How far a deviation of the count would move a mean of which none is missing."""
        totals, middle = self._totals, self._totals.clipping.middle
        return self._either(
            lambda: abs(self.mean() - middle) * self.count_noise_std() / totals.count,
            lambda: totals.sums[COUNT] * 0.0,
        )

    def slack_of_sum(self) -> Any:
        """The same of a sum."""
        totals, middle = self._totals, abs(self._totals.clipping.middle)
        return self._either(
            lambda: middle * self.count_noise_std(), lambda: totals.sums[COUNT] * 0.0
        )

    def noise_covariance(self) -> Any:
        """Of the mean's noise and the count's, over the count."""
        totals, divisor = self._totals, self._divisor()
        mean = totals.sums[SUM] / divisor
        found = totals.covariance(SUM, COUNT) - mean * totals.covariance(COUNT, COUNT)
        return self._either(lambda: found * np.nan, lambda: found / (divisor * divisor))


@dataclass(frozen=True)
class Mean(Running):
    """The average."""

    name: ClassVar[str] = "mean"
    _value: ClassVar[str] = "mean"

    def count_share(self, sums: tuple[Any, ...], clipping: Range) -> Any:
        """D/(a + D), with D the distance of the mean from the middle and a half the width."""
        some = np.asarray(sums[COUNT]) > 0
        mean = np.where(some, sums[SUM] / np.where(some, sums[COUNT], 1.0), clipping.lower)
        mean = np.clip(mean, clipping.lower, clipping.upper)
        return _share(abs(mean - clipping.middle), clipping)


@dataclass(frozen=True)
class Sum(Running):
    """The sum."""

    name: ClassVar[str] = "sum"
    from_zero: ClassVar[bool] = True
    _value: ClassVar[str] = "sum"

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The value is the sum, which is no ratio."""
        known = dict(super().numbers(totals))
        known.pop("noise_covariance", None)
        return known

    def count_share(self, sums: tuple[Any, ...], clipping: Range) -> Any:
        """A sum is measured from 0: D is the distance of the middle from there."""
        return _share(abs(clipping.middle), clipping)


@dataclass(frozen=True, kw_only=True)
class Share(Running):
    """The share of values above a limit.

    Parameters
    ----------
    above
        The limit; a value that equals it is not above it.
    window, half_life, share
        As in :class:`Mean`.

    Examples
    --------
    >>> Share(above=60).names
    ('above 60',)
    """

    name: ClassVar[str] = "share"
    clips: ClassVar[bool] = False
    _value: ClassVar[str] = "mean"

    above: float = option("the limit above which values are counted", metavar="LIMIT")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isfinite(self.above):
            raise ParameterError("above", "a finite number", self.above)

    @property
    def names(self) -> tuple[str, ...]:
        """The limit."""
        return (f"above {self.above:.12g}",)

    def leaf(self, setting: Setting) -> Leaf:
        """That of a mean of zeros and ones."""
        return _Shared(super().leaf(setting), self.above)

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The share as the mean, how many there are above the limit as the sum, and the count."""
        of_mean = Totals(
            totals.count, totals.sums, totals.covariance, Range(0.0, 1.0), totals.complete
        )
        nothing = totals.sums[0] * 0.0
        ends = {"clip_lower": lambda: nothing, "clip_upper": lambda: nothing + 1.0}
        return {**super().numbers(of_mean), **ends}

    def count_share(self, sums: tuple[Any, ...], clipping: Range) -> Any:
        """As that of a mean between 0 and 1."""
        return Mean().count_share(sums, Range(0.0, 1.0))


@dataclass(frozen=True)
class Count(Remembering):
    """How many values there were."""

    name: ClassVar[str] = "count"
    clips: ClassVar[bool] = False

    def leaf(self, setting: Setting) -> Leaf:
        """One column."""
        return _Count()

    @property
    def kinds(self) -> tuple[str, ...]:
        """A count."""
        return ("count",)

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The count."""
        count = totals.sums[0]
        known = {"count": lambda: count, "count_noise_std": totals.std}
        return {"value": known["count"], "noise_std": totals.std, **known}


def _share(distance: Any, clipping: Range) -> Any:
    return distance / (clipping.width / 2 + distance)
