"""The expected error of the paper's mechanism at step n, by quadrature over the threshold's noise.

A mean over runs does not do: with a small probability the noise brings the threshold down so far
that nearly everything is clipped, and few such runs decide the mean. Given the threshold, the error
is what clipping takes plus noise in proportion to the range; the first is exact, the second has a
light tail and is known from runs. What is left is an integral over one draw of noise.

**Privacy.** Public and simulated data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.paper.bounds import decimal_fraction
from rillet.reproduce.paper_values import BETA, DELTA, EPSILON, PaperRow
from rillet.threshold.base import SMALLEST_PART
from rillet.threshold.calibration import Calibration, Kind, calibrate
from rillet.threshold.smooth_sensitivity import quantile_rank, smooth_sensitivity

__all__ = ["Expected", "Mass", "expected"]

FloatArray = NDArray[np.float64]

#: Points of the quadrature, and how far they reach: the rest has a probability of 1e-17.
_POINTS = 4001
_REACH = 40.0


class Mass:
    """How much of a sum lies beyond a threshold, from sorted values that stand for ``count``."""

    def __init__(self, ordered: FloatArray, count: int) -> None:
        self._ordered, self._weight = ordered, count / ordered.size
        self.count = count

    @cached_property
    def _above(self) -> FloatArray:
        """The sum of all values from each rank on."""
        above = np.zeros(self._ordered.size + 1)
        np.cumsum(self._ordered[::-1], out=above[1:])
        return above[::-1]

    def clipped(self, thresholds: FloatArray) -> FloatArray:
        """What clipping at each threshold takes from the sum."""
        first = np.searchsorted(self._ordered, thresholds, "right")
        beyond = self._ordered.size - first
        taken: FloatArray = (self._above[first] - beyond * thresholds) * self._weight
        return np.maximum(taken, 0.0)


@dataclass(frozen=True)
class Expected:
    """What to expect at step n; factors are the mean error of the plain tree over the mechanism's.

    ``factor`` is that of the expectations, ``median_factor`` that of a run whose threshold is the
    median one, ``disaster`` the probability that clipping alone takes more than the plain tree's
    mean error.
    """

    factor: float
    median_factor: float
    without_disasters: float
    disaster: float
    threshold: float

    def to_dict(self) -> Mapping[str, float]:
        """For JSON."""
        return vars(self) | {}


def expected(
    warm_up: FloatArray,
    mass: Mass,
    row: PaperRow,
    kind: Kind,
    upper: float,
    noise: Mapping[str, FloatArray],
) -> Expected:
    """Expected |error| of the sum at step n with a row's parameters and the constants of a kind.

    Parameters
    ----------
    warm_up
        The first m values.
    mass
        All values.
    row, kind, upper
        The parameters, the constants of smooth sensitivity, and B.
    noise
        Draws of the noise of the last sum per unit of range: of the ``"tree"`` at the bound, and of
        the ``"mechanism"`` after the lag.
    """
    constants = calibrate(kind, "laplace", EPSILON * row.threshold_share, DELTA, row.beta_lt * BETA)
    ordered = np.sort(np.clip(warm_up, 0.0, upper))
    tail = decimal_fraction(row.rank_factor) * decimal_fraction(row.quantile)
    rank = quantile_rank(ordered.size, tail)
    sensitivity = smooth_sensitivity(ordered, rank, 0.0, upper, constants.b)
    at = np.linspace(-_REACH, _REACH, _POINTS)
    weight = np.exp(-np.abs(at)) / 2 * (at[1] - at[0])
    weight /= weight.sum()
    ranges = _ranges(at, float(ordered[rank - 1]), sensitivity, constants, row.multiplier, upper)
    taken = mass.clipped(ranges)
    errors = np.array(
        [
            np.mean(np.abs(width * noise["mechanism"] - lost))
            for width, lost in zip(ranges, taken, strict=True)
        ]
    )
    tree = upper * float(np.mean(np.abs(noise["tree"])))
    disaster = taken > tree
    middle = _POINTS // 2
    return Expected(
        factor=tree / float(weight @ errors),
        median_factor=tree / float(errors[middle]),
        without_disasters=tree / float(np.average(errors[~disaster], weights=weight[~disaster])),
        disaster=float(weight[disaster].sum()),
        threshold=float(ranges[middle]),
    )


def _ranges(
    noise: Any,
    quantile: float,
    sensitivity: float,
    constants: Calibration,
    multiplier: float,
    upper: float,
) -> FloatArray:
    """The clipping range that each draw of the threshold's noise leads to."""
    learned = quantile + constants.kappa * sensitivity / constants.a * (noise + constants.offset)
    ranges: FloatArray = np.clip(multiplier * learned, upper * SMALLEST_PART, upper)
    return ranges
