"""The value of a given rank, on a public grid, by the exponential mechanism in exact integers.

The *distance* of a grid point from the data is the number of values that would have to be replaced
for the value of rank ``T`` to fall into the point's cell, the grid points being the upper ends of
their cells.  With ``L`` values below the cell and ``R`` in it or below, that is
``max(0, T − R, L + 1 − T)``; in an empty cell it is Smith's ``|rank − T|`` (2011) up to a half.  A
point at distance d has the weight ``W(d)``, an integer for ``e^(−ε·d/2)``.

Where a neighbour has one value more, and the rank is the middle, ``T = (m + 1)/2``, adding it moves
``T − R`` and ``L + 1 − T`` by a half only: each value then counts two, ``2·T`` is the rank, and the
weights fall twice as fast.

**Privacy.** Pure ε (docs/proofs/exponential.md): a replaced value moves ``L``, ``R`` and so every
distance by at most 1, as does an added one (docs/proofs/clock.md, Lemmas 4 and 5), and
``W(d + 1) ≤ W(d) ≤ e^(ε/2)·W(d + 1)`` holds for the integers themselves.

References
----------
McSherry, Talwar (2007), Theorem 6.  Smith (2011), Algorithm 2.  Asi, Duchi (2020): the distance is
their inverse sensitivity.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Final

import numpy as np

from rillet.noise import IntArray, KeyPart, Secret, uniform_below
from rillet.precision import precision

#: The largest weight: no point of the grid has less than 2^-128 of it.
_LARGEST_WEIGHT: Final = 2**128
#: e^(ε/2) is rounded down to this many bits behind the point, and not taken beyond e^100.
_RATIO_BITS: Final = 192
_LARGEST_EXPONENT: Final = 100


@lru_cache(maxsize=64)
def weight_ratio(budget: Fraction) -> Fraction:
    """A rational from 1 to ``e^(budget/2)``, and next to it: what one step of distance costs.

    **Privacy.** Public numbers only.
    """
    exponent = min(budget / 2, Fraction(_LARGEST_EXPONENT))
    with precision(2 * _RATIO_BITS + 256) as mp:
        ratio = mp.exp(mp.mpf(exponent.numerator) / exponent.denominator)
        # One less than the floor: more than mpmath could be wrong by.
        scaled = int(mp.floor(mp.ldexp(ratio, _RATIO_BITS))) - 1
    return max(Fraction(1), Fraction(scaled, 2**_RATIO_BITS))


@lru_cache(maxsize=64)
def weight_table(budget: Fraction, most: int) -> tuple[int, ...]:
    """Weights of the distances 0, 1, … as far as ``most``, or until they no longer fall.

    Rounding up keeps ``W(d) ≤ ratio·W(d + 1)`` exactly, and no weight is ever 0.

    **Privacy.** Public numbers only.
    """
    ratio = weight_ratio(budget)
    weights = [_LARGEST_WEIGHT]
    for _ in range(most):
        weights.append(-(-weights[-1] * ratio.denominator // ratio.numerator))
        if weights[-1] == weights[-2]:
            break
    return tuple(weights)


@dataclass(frozen=True, eq=False)
class Cells:
    """Runs of grid points at one distance, in order: private, never to be shown."""

    exact_first: IntArray = field(repr=False)
    exact_count: IntArray = field(repr=False)
    exact_distance: IntArray = field(repr=False)
    #: Points in the first cell, which all stand for one place; public.
    in_first: int = 1

    def draw(
        self, budget: Fraction, secret: Secret, purpose: tuple[KeyPart, ...], index: int = 0
    ) -> int:
        """Release one grid point, by the number of its cell.

        **Privacy.** Pure ``budget`` for each of the values, once; another ``index`` or secret costs
        as much again.
        """
        weights = weight_table(budget, len(self.exact_count) // 2 + 1)
        exact_distance = np.minimum(self.exact_distance, len(weights) - 1).tolist()
        exact_weight = [weights[distance] for distance in exact_distance]
        exact_ends = list(accumulate(map(mul, self.exact_count.tolist(), exact_weight)))
        drawn = uniform_below(exact_ends[-1], secret, ("rank", *purpose), index)
        cell = bisect_right(exact_ends, drawn)
        from_end = (exact_ends[cell] - 1 - drawn) // exact_weight[cell]
        point = int(self.exact_first[cell]) + int(self.exact_count[cell]) - 1 - int(from_end)
        return max(0, point - (self.in_first - 1))


def cells(exact_points: IntArray, size: int, rank: int, in_first: int = 1, worth: int = 1) -> Cells:
    """Distances of all grid points, in ``2·m + 1`` runs whatever the values are.

    A value counts ``worth`` in the distance and in the ``rank``.

    Each of the ``size`` cells has one point, but the first has ``in_first`` of them: as many times
    the weight, for a place where many values may be equal.

    **Privacy.** Touches raw data: ``exact_points`` are the numbers, 0 to ``size − 1``, of the cells
    that the m values lie in.  Total, also for m = 0.
    """
    count = len(exact_points)
    exact_sorted = np.sort(exact_points) + (in_first - 1)
    below = np.searchsorted(exact_sorted, exact_sorted, side="left")
    reached = np.searchsorted(exact_sorted, exact_sorted, side="right")
    ranks = np.arange(count + 1)
    edges = np.concatenate(([-1], exact_sorted, [size + in_first - 1]))
    exact_first = np.empty(2 * count + 1, np.int64)
    exact_count, exact_distance = np.empty_like(exact_first), np.empty_like(exact_first)
    # Gaps between one value and the next; no points in it where they are in one cell.
    exact_first[::2] = edges[:-1] + 1
    exact_count[::2] = np.maximum(np.diff(edges) - 1, 0)
    exact_distance[::2] = np.maximum(rank - worth * ranks, worth * (ranks + 1) - rank)
    # Cells that hold values: the first of equal ones stands for all.
    exact_first[1::2] = exact_sorted
    exact_count[1::2] = below == np.arange(count)
    exact_distance[1::2] = np.maximum(
        np.maximum(rank - worth * reached, worth * (below + 1) - rank), 0
    )
    if count:  # the other points of the first cell are as far as the one that values are put on
        exact_held = exact_sorted[0] == in_first - 1
        exact_distance[0] = np.where(exact_held, exact_distance[1], exact_distance[0])
    return Cells(exact_first, exact_count, exact_distance, in_first)
