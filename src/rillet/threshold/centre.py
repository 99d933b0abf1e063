"""A public centre for values that do not start at the lower bound, and ranges around it.

The centre is a private median on an even public grid of 2^34 steps over the bounds; the ends of a
range around it lie on the same grid.

**Privacy.** Only :func:`find_centre` touches raw data; the rest is post-processing of the centre.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from rillet.noise import FloatArray, Secret
from rillet.statistic import Range
from rillet.threshold.base import SMALLEST_PART, clip_to_bounds
from rillet.threshold.rank import Cells, cells
from rillet.threshold.tail_model import knots

#: Steps of the even grid: as fine as the smallest range that may be learned.
STEPS: Final = 2**34
assert SMALLEST_PART * STEPS == 1


def grid_point(bounds: Range, number: int) -> float:
    """Point of the even grid; 0 and ``STEPS`` are the bounds themselves.  Public."""
    if number >= STEPS:
        return bounds.upper
    return bounds.lower + max(number, 0) / STEPS * bounds.width


def grid_number(bounds: Range, point: float) -> int:
    """Number of a point of the grid: undoes :func:`grid_point`, as far as floats can tell."""
    return round((point - bounds.lower) / bounds.width * STEPS)


def inner_point(bounds: Range, point: float) -> float:
    """The nearest point of the grid that leaves room on both sides."""
    return grid_point(bounds, min(max(grid_number(bounds, point), 1), STEPS - 1))


def find_centre(
    raw_values: FloatArray, bounds: Range, budget: Fraction, secret: Secret, index: int = 0
) -> float:
    """Release a median, on the even grid and inside the bounds.

    **Privacy.** Pure ``budget`` for each of the values (docs/proofs/exponential.md); total.
    """
    return draw_centre(centre_cells(raw_values, bounds), bounds, budget, secret, index)


def centre_cells(raw_values: FloatArray, bounds: Range) -> Cells:
    """The values, sorted: simulations on public data sort once and draw often.

    **Privacy.** Touches raw data.
    """
    raw_part = clip_to_bounds(raw_values, bounds)
    raw_part -= bounds.lower
    raw_part /= bounds.width
    # The bounds themselves are left out, so that there is room on both sides.
    exact_points = np.clip(np.ceil(raw_part * STEPS), 1, STEPS - 1).astype(np.int64) - 1
    return cells(exact_points, STEPS - 1, (len(raw_part) + 1) // 2)


def draw_centre(
    unreleased: Cells, bounds: Range, budget: Fraction, secret: Secret, index: int = 0
) -> float:
    """Release the median.  **Privacy.** Pure ``budget`` for each of the values."""
    return grid_point(bounds, 1 + unreleased.draw(budget, secret, ("centre",), index))


def side_widths(bounds: Range, centre: float) -> tuple[float, float]:
    """Room above and below the centre; far from 0 a difference can round to 0, a room cannot."""
    smallest = bounds.width * SMALLEST_PART
    return max(bounds.upper - centre, smallest), max(centre - bounds.lower, smallest)


@lru_cache(maxsize=64)
def knots_around(bounds: Range, centre: float) -> FloatArray:
    """Logarithmic knots on both sides of the centre, relative to it, rising; 0 is shared."""
    above, below = side_widths(bounds, centre)
    places = np.concatenate((-knots(below)[:0:-1], knots(above)))
    places.flags.writeable = False
    return places


def range_around(bounds: Range, centre: float, above: float, below: float) -> Range:
    """The range from ``below`` under the centre to ``above`` over it, out to the even grid.

    ``above`` and ``below`` are parts of the public width.  **Privacy.** Post-processing.
    """
    middle = grid_number(bounds, centre)
    lower = grid_point(bounds, middle - max(1, math.ceil(below * STEPS)))
    upper = grid_point(bounds, middle + max(1, math.ceil(above * STEPS)))
    # Far from 0 the ends can round together: a range must keep some width.
    upper = min(max(upper, math.nextafter(lower, math.inf)), bounds.upper)
    return Range(min(lower, math.nextafter(upper, -math.inf)), upper)
