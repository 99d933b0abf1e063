"""How far apart two laws are: the exact δ at an ε, and the least ε at a δ.

**Privacy.** For audits and tests: public numbers, and made-up streams.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from rillet.privacy import Cost
from rillet.threshold.smooth import Unreleased

__all__ = ["epsilon_at", "hockey_stick", "smooth_delta"]

#: Cells of the sum over a continuous law: points out to so many scales, denser near the middle.
_POINTS: Final = 4001
_REACH: Final = {"laplace": 60.0, "gaussian": 12.0}
#: ε is looked for up to here, and to this precision.
_LARGEST: Final = 64.0
_PRECISION: Final = 1e-6


def hockey_stick(p: ArrayLike, q: ArrayLike, epsilon: float) -> float:
    """``Σ max(0, p − e^ε·q)``: the δ that the pair of laws needs at ε, one way."""
    beyond = np.asarray(p, np.float64) - math.exp(epsilon) * np.asarray(q, np.float64)
    return float(np.maximum(beyond, 0.0).sum())


def smooth_delta(law: str, one: Unreleased, two: Unreleased, epsilon: float) -> float:
    """The δ at ε of a quantile released with its smooth sensitivity, on a pair of neighbours.

    The two laws are summed over cells that are dense around both centres, to some 10⁻³ of δ;
    multiplying and rounding afterwards can only bring them closer.
    """
    laws = []
    for each in (one, two):
        scale = each.constants.kappa * each.exact_sensitivity / each.constants.a
        laws.append((each.exact_quantile + scale * each.constants.offset, scale))
    if not all(scale > 0 for _, scale in laws):
        return 0.0 if laws[0] == laws[1] else 1.0  # a bare quantile
    reach = np.sinh(np.linspace(-1.0, 1.0, _POINTS) * np.arcsinh(_REACH[law]))
    edges = np.unique(np.concatenate([centre + scale * reach for centre, scale in laws]))
    p, q = (_cells(law, (edges - centre) / scale) for centre, scale in laws)
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def _cells(law: str, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of the cells between edges, and of what is beyond them, without cancelling."""
    below, above = (_tail(law, sign * edges) for sign in (-1.0, 1.0))
    inner = np.where(edges[1:] <= 0, np.diff(below), -np.diff(above))
    return np.concatenate([below[:1], inner, above[-1:]])


def _tail(law: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``P(Z > x)``."""
    if law == "gaussian":
        return np.asarray(ndtr(-x))
    half = 0.5 * np.exp(-np.abs(x))
    return np.where(x >= 0, half, 1.0 - half)


def epsilon_at(cost: Cost, delta: float) -> float:
    """The least ε at which a cost is (ε, δ)-private; infinite where there is none."""
    if not cost.mu_squared:
        return float(cost.epsilon) if float(cost.delta) <= delta else math.inf
    if cost.delta_at(_LARGEST) > delta:
        return math.inf
    low, high = 0.0, _LARGEST
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if cost.delta_at(middle) <= delta else (middle, high)
    return high
