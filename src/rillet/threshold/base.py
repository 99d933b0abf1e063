"""What every way of choosing the clipping range must offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import mpmath
import numpy as np

from rillet.noise import FloatArray, Secret
from rillet.privacy import Cost

#: Significant binary digits of a learned bound: fine enough to lose nothing, and public.
GRID_BITS = 24


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

        Values beyond the bounds, NaN and infinities are clipped first, as :class:`rillet.grid.Grid`
        does; nothing raises because of a value.
        """


def land_on_grid(distance: mpmath.mpf, largest: float) -> float:
    """Round a released distance up to the public grid: ``GRID_BITS`` significant bits.

    **Privacy.** Post-processing.  The grid is public (floats with few digits), which hides the low
    digits of a high-precision draw; the result is never 0, so that a range always has a width.
    """
    smallest = largest * 2.0**-GRID_BITS
    if distance <= smallest:
        return smallest
    if distance >= largest:
        return largest
    with mpmath.workprec(256):
        mantissa, exponent = mpmath.frexp(distance)
        coarse = mpmath.ceil(mpmath.ldexp(mantissa, GRID_BITS))
        return min(float(mpmath.ldexp(coarse, int(exponent) - GRID_BITS)), largest)


def clip_to_bounds(raw_values: FloatArray, bounds: Range) -> FloatArray:
    """Clip to the public bounds, NaN to the lower one.  **Privacy.** Touches raw data; total."""
    return np.fmin(np.fmax(raw_values, bounds.lower), bounds.upper)
