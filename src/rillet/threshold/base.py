"""What every way of choosing the clipping range must offer: a schedule of looks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import mpmath
import numpy as np

from rillet.noise import FloatArray, IntArray, Secret
from rillet.options import settle
from rillet.precision import precision
from rillet.privacy import Cost
from rillet.statistic import EXACT, Margin, Range, Setting

#: Significant binary digits of a learned bound: fine enough to lose nothing, and public.
GRID_BITS = 24
#: A learned range is at least this part of the public one, and where that is open at least this.
SMALLEST_PART = 2.0**-34
SMALLEST_WIDTH = 2.0**-44
#: A statistic that forgets chooses its range by the last so many looks.
LOOKS_KEPT = 16


@dataclass(frozen=True, eq=False)
class Look:
    """A released measurement of ``observations`` values: public.

    Either ``noisy`` counts (exact ones plus integer noise of this ``scale`` and ``law``), taken
    around a ``centre`` if there is one, or a single released ``point`` on the public grid.
    """

    observations: int
    noisy: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    scale: float = 0.0
    law: str = "laplace"
    centre: float | None = None
    point: float | None = None


@dataclass(frozen=True)
class Outlook:
    """What is still to come after a look: public numbers that the next range is chosen for.

    ``length``, ``after`` and ``until`` count observations, by the clock expected ones;
    ``noise_per_unit`` is the noise std of the last sum per unit of clipping range; ``until`` is the
    observation at which the range may change again.  Where the statistic ``forgets``, they count
    what it looks back on instead: ``length`` of them, ``until`` under the next range.  ``assumes``
    says whether a tail may be assumed where counts are lost in noise.

    ``noise_form`` is the variance of the last sum's noise, over the square of ``noise_per_unit``,
    as a quadratic form of the widths of all ranges so far, of the next one and, where the range may
    change after that, of the later one.  Without it a change of range leaves its square.
    """

    length: int
    after: int
    until: int
    noise_per_unit: float
    forgets: bool = False
    assumes: bool = True
    noise_form: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Finding:
    """What the looks so far say: the next range, and what clipping removes (all public).

    ``removed`` estimates the mass clipped so far, ``removed_each`` the mass clipped from each
    observation to come, ``clipped_share`` the share of values beyond the range.  ``margin`` is how
    far the first may be off, for each observation so far, and ``margin_each`` the second.
    """

    range: Range
    removed: float = 0.0
    removed_each: float = 0.0
    clipped_share: float = float("nan")
    margin: Margin = EXACT
    margin_each: Margin = EXACT


class Threshold(ABC):
    """A way to choose the clipping range: a public schedule of looks, none, one or many.

    The first look is :meth:`measure` on the values of the warm-up.  A threshold that looks again
    counts the values of each later segment (:meth:`count`), and integer noise is added to the
    counts at its end.  After every look :meth:`judge`, which sees released looks only, gives the
    next range.  A public, frozen description; the subclasses are frozen dataclasses.

    **Privacy.** :meth:`measure` and :meth:`count` touch raw data: the first costs each of the
    values :meth:`cost`, once; one replaced observation moves counts by :meth:`count_sensitivity`.
    """

    #: Tag in JSON and TOML.
    name: ClassVar[str]
    #: Raised when anything about the measurement, its noise or the judgement changes.
    version: ClassVar[int] = 1
    #: Whether the range is learned from data (and so needs a warm-up).
    learns: ClassVar[bool] = True
    #: Whether an estimate of the clipped mass is added back.
    corrects: ClassVar[bool] = False
    #: Whether it protects how many values it learns from, also when one is added or removed.
    hides_count: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self)

    @property
    def first_counts(self) -> tuple[Fraction, ...]:
        """Shares of the rounds of counts that the first look may be, so that its noise is Gaussian.

        Persons need that.  Each round but the first is taken around :meth:`centre_of` the one
        before it, and the last is the look; empty where the first look is something else.
        """
        return ()

    # --- the schedule: public --------------------------------------------------------------------

    def segment_ends(self, lag: int, length: int, every: int) -> tuple[int, ...]:
        """Observation numbers after ``lag`` at which a segment ends; the last is ``length``."""
        return (length,)

    def look_share(self, end: int, length: int) -> Fraction:
        """Share of the budget (of μ² or of ε) that the look at ``end`` takes; 0 for no look."""
        return Fraction(0)

    # --- measuring: touches raw data -------------------------------------------------------------

    @abstractmethod
    def cost(self, budget: Fraction, delta: float) -> Cost:
        """What the first look costs each value, when it may spend ``budget`` (ε) and ``delta``."""

    @abstractmethod
    def measure(
        self,
        raw_values: FloatArray,
        bounds: Range,
        budget: Fraction,
        delta: float,
        secret: Secret,
        setting: Setting,
    ) -> Look:
        """Release the first look.

        Values beyond the bounds and infinities are clipped first, as the lattice does; nothing
        raises because of a value.  Where ``setting`` hides how many values there are, missing ones
        have been left out, and the look says by itself how many it was made from.
        """

    def count(self, raw_values: FloatArray, bounds: Range, centre: float | None) -> IntArray:
        """Exact counts of these values for a later look: additive, total, of one fixed size."""
        raise NotImplementedError(f"{type(self).__name__} looks once")

    def count_sensitivity(self, law: str, *, added: bool = False) -> Fraction:
        """L1 sensitivity of the counts for Laplace noise, squared L2 sensitivity for Gaussian.

        When one observation is replaced, or ``added`` or removed.
        """
        raise NotImplementedError(f"{type(self).__name__} looks once")

    # --- judging: post-processing ----------------------------------------------------------------

    def observed(self, noisy: IntArray) -> int:
        """How many values noisy counts were made from, as far as they tell; at least 1."""
        raise NotImplementedError(f"{type(self).__name__} looks once")

    def centre_of(self, bounds: Range, look: Look) -> float:
        """The point to take the next counts around."""
        raise NotImplementedError(f"{type(self).__name__} looks once")

    def looks_kept(self, looks: tuple[Look, ...]) -> int:
        """How many of the last looks, at least one, a statistic that forgets goes by."""
        return LOOKS_KEPT

    def judge(
        self, bounds: Range, looks: tuple[Look, ...], ranges: tuple[Range, ...], outlook: Outlook
    ) -> Finding:
        """The next range from all looks so far; ``ranges`` were in force in each segment so far.

        By default the range up to the released point of the last look.
        """
        point = looks[-1].point
        assert point is not None
        return Finding(Range(bounds.lower, point))

    # --- alone -----------------------------------------------------------------------------------

    def learn(
        self, raw_values: FloatArray, bounds: Range, budget: Fraction, delta: float, secret: Secret
    ) -> Range:
        """Release a clipping range, without a stream.  **Privacy.** As :meth:`measure`."""
        look = self.measure(raw_values, bounds, budget, delta, secret, Setting())
        count = max(1, look.observations)
        alone = Outlook(length=count, after=count, until=count, noise_per_unit=10.0)
        return self.judge(bounds, (look,), (), alone).range


def smallest_width(bounds: Range) -> float:
    """The width that a learned range has at least: public."""
    return SMALLEST_WIDTH if bounds.is_open else bounds.width * SMALLEST_PART


def land_on_grid(
    distance: mpmath.mpf | float, largest: float, smallest: float | None = None
) -> float:
    """Round a released distance up to the public grid: ``GRID_BITS`` significant bits.

    **Privacy.** Post-processing.  The grid is public (floats with few digits), which hides the low
    digits of a high-precision draw; the result is never 0, so that a range always has a width.
    """
    smallest = largest * SMALLEST_PART if smallest is None else smallest
    if distance <= smallest:
        return smallest
    if distance >= largest:
        return largest
    with precision(256) as mp:
        mantissa, exponent = mp.frexp(distance)
        coarse = mp.ceil(mp.ldexp(mantissa, GRID_BITS))
        return min(float(mp.ldexp(coarse, int(exponent) - GRID_BITS)), largest)


def learned_range(bounds: Range, distance: mpmath.mpf | float) -> Range:
    """The range that reaches ``distance`` above the lower bound, on the public grid.

    **Privacy.** Post-processing.
    """
    upper = bounds.lower + land_on_grid(distance, bounds.width, smallest_width(bounds))
    # Far from 0 the sum can round beyond the bounds, or back to the lower one: a range must keep
    # some width.
    upper = min(max(upper, math.nextafter(bounds.lower, math.inf)), bounds.upper)
    return Range(bounds.lower, upper)


def clip_to_bounds(raw_values: FloatArray, bounds: Range) -> FloatArray:
    """Clip to the public bounds, NaN to the middle, or to where an open range begins.

    **Privacy.** Touches raw data; total.
    """
    # Not fmax: it hands on a signalling NaN.
    with np.errstate(invalid="ignore"):
        raw_clipped = np.clip(raw_values, bounds.lower, bounds.upper)
    stand_in = bounds.origin if bounds.is_open else bounds.middle
    np.copyto(raw_clipped, stand_in, where=np.isnan(raw_clipped))
    return raw_clipped
