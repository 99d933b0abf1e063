"""What every way of choosing the clipping range must offer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import mpmath
import numpy as np

from rillet.noise import FloatArray, IntArray, Secret
from rillet.privacy import Cost

#: Significant binary digits of a learned bound: fine enough to lose nothing, and public.
GRID_BITS = 24
#: A learned range is at least this part of the public one.
SMALLEST_PART = 2.0**-34


@dataclass(frozen=True)
class Range:
    """The clipping range in force: public, since it was declared or released."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        """What one observation can move a sum by."""
        return self.upper - self.lower


class Threshold(ABC):
    """A public, frozen description; the subclasses are frozen dataclasses.

    **Privacy.** :meth:`learn` touches raw data and costs each of them :meth:`cost`, once.
    """

    #: Tag in JSON.
    name: ClassVar[str]
    #: Whether the range is learned from data (and so needs a lag).
    learns: ClassVar[bool] = True

    @abstractmethod
    def cost(self, budget: Fraction, delta: float) -> Cost:
        """What learning costs each observation, when it may spend ``budget`` (ε) and ``delta``."""

    @abstractmethod
    def learn(
        self, raw_values: FloatArray, bounds: Range, budget: Fraction, delta: float, secret: Secret
    ) -> Range:
        """Release a clipping range inside the public ``bounds``.

        Values beyond the bounds, NaN and infinities are clipped first, as the lattice
        does; nothing raises because of a value.
        """


@dataclass(frozen=True, eq=False)
class Look:
    """A released tally: exact counts of ``observations`` values plus integer noise.  Public."""

    noisy: IntArray
    observations: int
    scale: float
    law: str


@dataclass(frozen=True)
class Outlook:
    """What is still to come after a look: public numbers that the next range is chosen for.

    ``noise_per_unit`` is the noise std of the last sum per unit of clipping range; ``until`` is the
    observation at which the range may change again.
    """

    length: int
    after: int
    until: int
    noise_per_unit: float


@dataclass(frozen=True)
class Finding:
    """What the looks so far say: the next range, and what clipping removes (all public).

    ``removed`` estimates the mass clipped so far, ``removed_each`` the mass clipped from each
    observation to come, ``clipped_share`` the share of values beyond the range.
    """

    range: Range
    removed: float = 0.0
    removed_each: float = 0.0
    clipped_share: float = float("nan")


class RefreshingThreshold(Threshold):
    """A threshold that is learned again at public times, from additive integer tallies.

    **Privacy.** :meth:`tally` touches raw data: one replaced observation moves a tally by at most
    :meth:`tally_sensitivity`.  Tallies are released with integer noise (a :class:`Look`), and
    :meth:`judge` sees nothing else.
    """

    #: Whether an estimate of the clipped mass is added back.
    corrects: ClassVar[bool] = False

    @property
    def centre_share(self) -> Fraction:
        """Share of the opening's budget that :meth:`find_centre` takes; 0: there is no centre."""
        return Fraction(0)

    def find_centre(
        self, raw_values: FloatArray, bounds: Range, budget: Fraction, secret: Secret
    ) -> float | None:
        """Release a point that values lie around, for the tallies; None: the lower bound will do.

        **Privacy.** Pure ``budget`` for each of the values, where there is a centre.
        """
        return None

    @abstractmethod
    def epoch_ends(self, lag: int, length: int, every: int) -> tuple[int, ...]:
        """Observation numbers after ``lag`` at which an epoch ends; the last is ``length``."""

    @abstractmethod
    def look_share(self, end: int, length: int) -> Fraction:
        """Share of the budget (of μ² or of ε) that the look at ``end`` takes; 0 for no look."""

    @abstractmethod
    def tally(self, raw_values: FloatArray, bounds: Range, centre: float | None = None) -> IntArray:
        """Exact counts of these values: additive, total, of one fixed size."""

    @abstractmethod
    def tally_sensitivity(self, law: str) -> Fraction:
        """L1 sensitivity of a tally for Laplace noise, squared L2 sensitivity for Gaussian."""

    @abstractmethod
    def judge(
        self,
        bounds: Range,
        looks: tuple[Look, ...],
        ranges: tuple[Range, ...],
        outlook: Outlook,
        centre: float | None = None,
    ) -> Finding:
        """The next range from all looks so far; ``ranges`` were in force in each epoch so far."""


def land_on_grid(distance: mpmath.mpf | float, largest: float) -> float:
    """Round a released distance up to the public grid: ``GRID_BITS`` significant bits.

    **Privacy.** Post-processing.  The grid is public (floats with few digits), which hides the low
    digits of a high-precision draw; the result is never 0, so that a range always has a width.
    """
    smallest = largest * SMALLEST_PART
    if distance <= smallest:
        return smallest
    if distance >= largest:
        return largest
    with mpmath.workprec(256):
        mantissa, exponent = mpmath.frexp(distance)
        coarse = mpmath.ceil(mpmath.ldexp(mantissa, GRID_BITS))
        return min(float(mpmath.ldexp(coarse, int(exponent) - GRID_BITS)), largest)


def learned_range(bounds: Range, distance: mpmath.mpf | float) -> Range:
    """The range that reaches ``distance`` above the lower bound, on the public grid.

    **Privacy.** Post-processing.
    """
    upper = bounds.lower + land_on_grid(distance, bounds.width)
    # Far from 0 the sum can round back to the lower bound: a range must keep some width.
    return Range(bounds.lower, max(upper, math.nextafter(bounds.lower, math.inf)))


def clip_to_bounds(raw_values: FloatArray, bounds: Range) -> FloatArray:
    """Clip to the public bounds, NaN to the lower one.  **Privacy.** Touches raw data; total."""
    # Not fmax: it hands on a signalling NaN, which would then land on the upper bound, while the
    # lattice sends it to the lower one.
    with np.errstate(invalid="ignore"):
        return np.where(
            raw_values >= bounds.lower, np.minimum(raw_values, bounds.upper), bounds.lower
        )
