"""A public centre for values that do not start at the lower bound, and ranges around it.

The centre is a private median on a public grid.  Between bounds the grid is even, 2^34 steps, and
the ends of a range around the centre lie on it too.  Where a bound is missing it is logarithmic,
from 2^-44 to 2^64 away from the other bound, or on both sides of 0.

**Privacy.** Only :func:`find_centre` touches raw data; the rest is post-processing of the centre.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from rillet.noise import FloatArray, IntArray, Secret
from rillet.statistic import OPEN_END, Range
from rillet.threshold.base import SMALLEST_PART, SMALLEST_WIDTH, clip_to_bounds, smallest_width
from rillet.threshold.rank import Cells, cells
from rillet.threshold.tail_model import OCTAVES, OPEN_OCTAVES, knots

#: Steps of the even grid: as fine as the smallest range that may be learned.
STEPS: Final = 2**34
assert SMALLEST_PART * STEPS == 1


#: Points in an octave of the logarithmic grid: levels are told apart to seven digits.
_IN_OCTAVE: Final = 2**23
#: The grid's first octave is that of the smallest range, the last ends where values are cut off.
_FIRST_OCTAVE: Final = round(math.log2(SMALLEST_WIDTH))
_FARTHEST: Final = (round(math.log2(OPEN_END)) - _FIRST_OCTAVE) * _IN_OCTAVE


def _inner(bounds: Range) -> tuple[int, int]:
    """First and last number of the points that a centre may be: there is room on both sides."""
    if not bounds.is_open:
        return 1, STEPS - 1
    return (
        -_FARTHEST if bounds.lower == -OPEN_END else 1,
        _FARTHEST if bounds.upper == OPEN_END else -1,
    )


def grid_point(bounds: Range, number: int) -> float:
    """Point of the grid; of the even one 0 and ``STEPS`` are the bounds themselves.  Public."""
    if bounds.is_open:
        if not number:
            return bounds.origin
        octave, part = divmod(abs(number) - 1, _IN_OCTAVE)
        distance = math.ldexp(1 + part / _IN_OCTAVE, octave + _FIRST_OCTAVE)
        return bounds.origin + math.copysign(distance, number)
    if number >= STEPS:
        return bounds.upper
    return bounds.lower + max(number, 0) / STEPS * bounds.width


def grid_number(bounds: Range, point: float) -> int:
    """Number of a point of the grid: undoes :func:`grid_point`, as far as floats can tell."""
    if bounds.is_open:
        return int(_signed_numbers(np.array([point - bounds.origin]))[0])
    return round((point - bounds.lower) / bounds.width * STEPS)


def _signed_numbers(raw_distance: FloatArray) -> IntArray:
    """Numbers on the logarithmic grid, towards 0: in order.  **Privacy.** One by one; total."""
    mantissa, exponent = np.frexp(np.abs(raw_distance))
    octave = exponent.astype(np.int64) - 1 - _FIRST_OCTAVE
    part = np.floor((2 * mantissa - 1) * _IN_OCTAVE).astype(np.int64)
    number = np.where(mantissa > 0, octave * _IN_OCTAVE + part + 1, 0)
    signed: IntArray = np.where(raw_distance < 0, -1, 1) * np.clip(number, 0, _FARTHEST)
    return signed


def inner_point(bounds: Range, point: float) -> float:
    """The nearest point of the grid that leaves room on both sides."""
    first, last = _inner(bounds)
    return grid_point(bounds, min(max(grid_number(bounds, point), first), last))


def find_centre(
    raw_values: FloatArray,
    bounds: Range,
    budget: Fraction,
    secret: Secret,
    index: int = 0,
    *,
    added: bool = False,
) -> float:
    """Release a median, on the even grid and inside the bounds.

    **Privacy.** Pure ``budget`` for each of the values (docs/proofs/exponential.md), when one is
    replaced, or ``added`` or removed; total.
    """
    return draw_centre(centre_cells(raw_values, bounds, added=added), bounds, budget, secret, index)


def centre_cells(raw_values: FloatArray, bounds: Range, *, added: bool = False) -> Cells:
    """The values, sorted: simulations on public data sort once and draw often.

    **Privacy.** Touches raw data.  Where a value is ``added`` or removed it moves the distance from
    the middle of all by a half, so that a value counts two (docs/proofs/clock.md, Lemma 5).
    Between bounds there are so few points that it is as well without.
    """
    raw_part = clip_to_bounds(raw_values, bounds)
    first, last = _inner(bounds)
    if bounds.is_open:
        exact_numbers = _signed_numbers(raw_part - bounds.origin)
    else:
        raw_part -= bounds.lower
        raw_part /= bounds.width
        exact_numbers = np.ceil(raw_part * STEPS).astype(np.int64)
    exact_points = np.clip(exact_numbers, first, last) - first
    size = last - first + 1
    # Many values may be 0: where none is negative the lowest point weighs as much as all others,
    # or a gap of millions of them would be taken for the median in its place.
    in_first = size if bounds.lower >= 0 else 1
    if added and bounds.is_open:
        return cells(exact_points, size, len(raw_part) + 1, in_first, worth=2)
    return cells(exact_points, size, (len(raw_part) + 1) // 2, in_first)


def draw_centre(
    unreleased: Cells, bounds: Range, budget: Fraction, secret: Secret, index: int = 0
) -> float:
    """Release the median.  **Privacy.** Pure ``budget`` for each of the values."""
    first, _ = _inner(bounds)
    return grid_point(bounds, first + unreleased.draw(budget, secret, ("centre",), index))


def precision(bounds: Range, centre: float) -> float:
    """How far from a centre values may lie that are equal to it: two steps of the grid."""
    number = grid_number(bounds, centre)
    return grid_point(bounds, number + 1) - grid_point(bounds, number - 1)


def side_widths(bounds: Range, centre: float) -> tuple[float, float]:
    """Room above and below the centre; far from 0 a difference can round to 0, a room cannot."""
    smallest = smallest_width(bounds)
    return max(bounds.upper - centre, smallest), max(centre - bounds.lower, smallest)


def octaves_of(bounds: Range) -> int:
    """Octaves that counts are taken in on each side."""
    return OPEN_OCTAVES if bounds.is_open else OCTAVES


@lru_cache(maxsize=64)
def knots_around(bounds: Range, centre: float) -> FloatArray:
    """Logarithmic knots on both sides of the centre, relative to it, rising; 0 is shared."""
    above, below = side_widths(bounds, centre)
    octaves = octaves_of(bounds)
    places = np.concatenate((-knots(below, octaves)[:0:-1], knots(above, octaves)))
    places.flags.writeable = False
    return places


def range_around(bounds: Range, centre: float, above: float, below: float) -> Range:
    """The range from ``below`` under the centre to ``above`` over it, out to an even grid.

    ``above`` and ``below`` are parts of the public width.  **Privacy.** Post-processing.
    """
    middle = grid_number(bounds, centre)
    if bounds.is_open:
        lower = min(centre - below * bounds.width, grid_point(bounds, middle - 1))
        upper = max(centre + above * bounds.width, grid_point(bounds, middle + 1))
        lower = max(lower, bounds.lower)
    else:
        lower = grid_point(bounds, middle - max(1, math.ceil(below * STEPS)))
        upper = grid_point(bounds, middle + max(1, math.ceil(above * STEPS)))
    # Far from 0 the ends can round together: a range must keep some width.
    upper = min(max(upper, math.nextafter(lower, math.inf)), bounds.upper)
    return Range(min(lower, math.nextafter(upper, -math.inf)), upper)
