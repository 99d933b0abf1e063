"""Clipping and quantising: from a real value to an integer of the lattice.

**Privacy.** Touches raw data.  The map is total (NaN and infinities have a fixed image) and its
image is the integers ``0 … steps``, so one replaced observation moves the result by at most
``steps`` whatever rounding the floats do: the sensitivity is exact by construction.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from rillet.errors import ParameterError
from rillet.noise import LARGEST_SCALE, IntArray
from rillet.statistic import Range

#: Exact sums stay below this, which leaves room for the noise in a signed 64-bit integer.
LARGEST_SUM: Final = 2**61
#: The coarsest lattice worth using, and the finest.
FEWEST_STEPS: Final = 2**10
USUAL_STEPS: Final = 2**20
#: Declared bounds lie within this, and at least its inverse apart: what is computed of them, up to
#: fourth powers of a range and squares of sums, is then within the range of floats.
LARGEST_BOUND: Final = 2.0**200
#: Public cap on the number of observations of a stream whose length is not known.
UNKNOWN_LENGTH_CAP: Final = 2**40


@dataclass(frozen=True)
class Grid:
    """A clipping range cut into ``steps`` equal steps.

    Parameters
    ----------
    lower, upper
        The clipping range, ``lower < upper``, both finite.
    steps
        How many steps: the largest integer a value can become.
    count
        What an observation adds to a column that counts, in units of its own.

    Examples
    --------
    >>> grid = Grid(0.0, 10.0, steps=1000)
    >>> grid.quantise([2.5, -3.0, 99.0, float("nan")]).tolist()
    [250, 0, 1000, 500]
    """

    lower: float
    upper: float
    steps: int
    count: int = 0
    #: Steps in one unit of value: the factor that :meth:`quantise` multiplies by.
    per_unit: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lower, upper = check_range(self.lower, self.upper, learned=True)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if not _is_whole(self.steps) or not 1 <= self.steps < LARGEST_SUM:
            raise ParameterError("steps", "an integer from 1 to 2^61", self.steps)
        object.__setattr__(self, "steps", int(self.steps))
        object.__setattr__(self, "per_unit", self.steps / self.width)

    @property
    def width(self) -> float:
        """Length of the clipping range."""
        return self.upper - self.lower

    @property
    def sensitivity(self) -> int:
        """By how much one replaced observation can move its integer: exactly ``steps``."""
        return self.steps

    def quantise(self, raw_values: ArrayLike) -> IntArray:
        """Clip to the range and round to the lattice.

        **Privacy.** Touches raw data; total: never raises because of a value.  -inf becomes 0,
        +inf becomes ``steps``, NaN the middle, ``steps // 2``.
        """
        return _quantise(raw_values, self.lower, self.width, self.per_unit, self.steps)

    def quantiser(self, zero: int = 0) -> Callable[[float], int]:
        """What quantises one float: the same integer as :meth:`quantise` less ``zero``, no array.

        Whatever the value, the same operations, so that its time tells next to nothing of it: what
        stands in for a value is picked by a number, and no step is left out.  What is no number
        compares as if it were below, and half of the steps are added to it.  Python keeps small
        integers at hand and takes less time for them.  So a large one is made first: where floats
        have no more room for fractions, adding rounds as ``rint`` does, and what is multiplied
        cannot come out above ``steps``.
        """
        if self.steps > 2**50 or self.per_unit > 2.0**900:  # no lattice of a plan
            return lambda raw_value: int(self.quantise([raw_value])[0]) - zero

        def quantise_one(
            raw_value: float,
            # Arguments are found faster than what is around a function.
            lower: float = float(self.lower),
            upper: float = float(self.upper),
            # Objects of their own: one that is used twice in a row takes a nanosecond longer.
            bottom: float = 1.0 * float(self.lower),
            top: float = 1.0 * float(self.upper),
            factor: float = self.per_unit,
            # Far less than a step of any lattice: subnormal numbers take longer to multiply.
            tiny: float = 2.0**-960,
            away: float = 2.0**52,
            nothing: float = 0.0,
            middle: float = float(self.steps // 2),
            isnan: Callable[[float], bool] = math.isnan,
            zero: int = 2**52 + zero,
        ) -> int:
            raw_clipped = (bottom, raw_value, top)[(raw_value >= lower) + (raw_value > upper)]
            raw_scaled = (raw_clipped - lower + tiny) * factor
            return int(raw_scaled + (nothing, middle)[isnan(raw_value)] + away) - zero

        return quantise_one

    def on(self, steps: int, count: int) -> Grid:
        """The same range in other steps."""
        return Grid(self.lower, self.upper, steps, count)

    @property
    def step(self) -> float:
        """Width of a grid step (post-processing)."""
        return self.width / self.steps


class Grids:
    """A lattice for each of many values: those of keys whose ranges or steps differ."""

    def __init__(self, clipping: Range, steps: IntArray, count: IntArray) -> None:
        self.lower, self.upper = clipping.lower, clipping.upper
        self.steps, self.count = steps, count
        self._width = clipping.width
        self._per_unit = steps / self._width

    def quantise(self, raw_values: ArrayLike) -> IntArray:
        """As :meth:`Grid.quantise`, each value on its own lattice."""
        return _quantise(raw_values, self.lower, self._width, self._per_unit, self.steps)

    def quantiser(self, zero: int = 0) -> Callable[[float], int]:
        """Not here: no value comes alone."""
        raise NotImplementedError

    def on(self, steps: int, count: int) -> Grids:
        """The same ranges in other steps, for all values alike."""
        return Grids(Range(self.lower, self.upper), np.array([steps]), np.array([count]))


def _quantise(raw_values: ArrayLike, lower: Any, width: Any, per_unit: Any, steps: Any) -> IntArray:
    raw = np.asarray(raw_values, np.float64)
    # Subtracting first turns a signalling NaN, which fmax would hand on, into a quiet one; as it is
    # monotone, clipping afterwards gives the same floats.  It may overflow to infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.subtract(raw, lower, out=np.empty_like(raw))
    missing = np.isnan(scaled)
    # fmax returns the number when the other argument is NaN.
    np.fmax(scaled, 0.0, out=scaled)
    np.fmin(scaled, width, out=scaled)
    scaled *= per_unit
    np.rint(scaled, out=scaled)
    units: IntArray = scaled.astype(np.int64)
    np.minimum(units, steps, out=units)
    # A missing value is 0 by now.  As a float the middle could be another one; to copy it where it
    # is wanted would take longer, the more of them are missing.
    units += np.multiply(missing, steps // 2, out=scaled.view(np.int64))
    return units


def check_range(lower: float, upper: float, *, learned: bool = False) -> tuple[float, float]:
    """Refuse bounds that are not a finite range of usable width.

    A declared range must leave room for all that is computed from it, since nothing can be refused
    once data have been seen: for sums of as many observations as there may be, for a ``learned``
    part of it as small as :data:`rillet.threshold.base.SMALLEST_PART`, and for squares of both.
    """
    for name, value in (("lower", lower), ("upper", upper)):
        number = isinstance(value, (int, float, np.integer, np.floating))
        # An integer beyond the largest float is as unusable as infinity, and isfinite would raise.
        if not number or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
            raise ParameterError(name, "a finite number", value)
    lower, upper = float(lower), float(upper)
    if not lower < upper:
        raise ParameterError("upper", f"a number above lower ({lower:g})", upper)
    width = upper - lower
    found = f"[{lower:g}, {upper:g}]"
    if not math.isfinite(width) or not math.isfinite(LARGEST_SUM / width):
        raise ParameterError("upper", "a range that floats can divide", found)
    if not learned and (max(-lower, upper) > LARGEST_BOUND or width < 1 / LARGEST_BOUND):
        raise ParameterError(
            "upper",
            f"bounds within ±{LARGEST_BOUND:.2g}, at least {1 / LARGEST_BOUND:.2g} apart",
            found,
            hint="give values and bounds in another unit",
        )
    return lower, upper


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def choose_steps(length: int, scale_per_step: float) -> int:
    """Choose the lattice for a stream of ``length`` observations, from public numbers alone.

    Parameters
    ----------
    length
        Largest number of observations that will be summed.
    scale_per_step
        Noise scale in lattice units when a value spans one step: the noise will have scale
        ``steps · scale_per_step``.

    Returns
    -------
    int
        A power of two: ``max(2^20, length)`` rounded up (quantising then moves a sum by at most
        half the clipping range), or less where the sum or the noise would not fit; refused when
        even the coarsest lattice would overflow.
    """
    if not _is_whole(length) or length < 1:
        raise ParameterError("length", "a whole number of at least 1", length)
    wanted = max(USUAL_STEPS, 1 << (length - 1).bit_length())
    room = LARGEST_SUM // length
    loudest = int(min(LARGEST_SCALE / scale_per_step, 2.0**61))
    largest = min(wanted, room, loudest)
    if largest < FEWEST_STEPS:
        if room < FEWEST_STEPS:
            raise ParameterError("length", f"at most {LARGEST_SUM // FEWEST_STEPS:,}", length)
        raise noise_too_large(scale_per_step)
    return 1 << (largest.bit_length() - 1)


def noise_too_large(scale_per_step: float) -> ParameterError:
    """What is raised when noise of this scale does not fit even a coarse lattice."""
    return ParameterError(
        "epsilon",
        "a budget whose noise fits the lattice",
        f"noise of {scale_per_step:.3g} times the range for each draw",
        hint="use a larger epsilon, a shorter length or a longer cadence (every=…)",
    )
