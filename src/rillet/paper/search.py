"""A smooth model of the planning objective, on which truncated Newton can run.

The objective depends on the data through two numbers, x̂ and S, and on the rank of x̂ in steps. The
model knows both at some ranks. A first search moves between ranks by interpolation; a second keeps
a rank and moves everything else, which is smooth as it stands.

**Privacy.** Works on what `rillet.paper.prediction.public_tail` returns: public by the caller's
word.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import bdtrik, betainc

from rillet.paper.bounds import ErrorShares, Form, threshold_bound
from rillet.paper.prediction import FloatArray, LocalParameters, Setting, assemble
from rillet.threshold.calibration import (
    Calibration,
    calibrate,
    noise_quantile,
    published_constants,
)
from rillet.threshold.smooth_sensitivity import largest_gaps, sensitivity_terms

__all__ = ["Search", "divide"]

_SMALLEST_SHARE: Final = 0.2
_LARGEST_SHARE: Final = 0.98
_LARGEST_MULTIPLIER: Final = 6.0
_SMALLEST_RANK_FACTOR: Final = 0.05
# The smallest p tried, as a share of p_max: below it a lag cannot show the quantile.
_SMALLEST_QUANTILE: Final = 0.02
# How many ranks the model knows: spread out in the first pass, near the best in the second.
_NODES: Final = 20
_NEAR_NODES: Final = 41
_NEAR: Final = 0.2
# Terms of S beyond these are covered by its floor, as in the mechanism.
_SEARCH_TERMS: Final = 2048
_LOGIT: Final = 4.0
_STEP: Final = 1e-7


def divide(quantile: float, others: FloatArray, form: Form) -> ErrorShares:
    """The shares of β, from g and the rest in the order low, high, noise, outlier, first.

    **Privacy.** Public numbers only.
    """
    low, high, noise, outlier = (float(x) for x in others[:4])
    first = float(others[4]) if form == "corrected" else 0.0
    return ErrorShares(quantile, low, high, noise, outlier, first)


class Search:
    """The model for one setting and one public tail.

    A point lies in a unit box: r, p, ε₁/ε, the division of β, and last λ, which a search at a
    fixed rank leaves out.
    """

    def __init__(self, setting: Setting, tail: FloatArray) -> None:
        self.setting = setting
        self.tail = tail
        self._parts = 5 if setting.form == "corrected" else 4
        self.size = 3 + self._parts
        self._constants = _Constants(setting)
        smallest = self._constants.at(setting.epsilon * 0.5, setting.beta / 2)[1]
        self._terms = min(sensitivity_terms(setting.lag, smallest), _SEARCH_TERMS)
        self._steps = np.arange(self._terms, dtype=np.float64)
        self._most = max(1, math.floor(setting.largest_quantile * setting.lag))
        self._gaps: dict[int, FloatArray] = {}
        spread = np.geomspace(1, min(self._most, setting.lag - 1) + 1, _NODES)
        self._ranks = [int(k) for k in np.unique(np.rint(spread)) - 1]
        self._nodes = np.log1p(self._ranks)

    def starts(self) -> list[FloatArray]:
        """A fixed set of points from which TNC sets out."""
        points = []
        for multiplier, quantile, share in itertools.product((0.02, 0.2), (1.0, 0.8), (0.75,)):
            p = self._quantile(quantile)
            # λ where g is a fifth of β: inside the feasible set whenever there is one.
            above = float(bdtrik(self.setting.beta / 5, self.setting.lag, p))
            factor = above / (p * self.setting.lag) if above > 0 else 0.0
            start = np.full(self.size, 0.5)
            start[:3] = multiplier, quantile, share
            start[-1] = max(0.0, (factor - _SMALLEST_RANK_FACTOR) / (1 - _SMALLEST_RANK_FACTOR))
            points.append(start)
        return points

    def descend(self, start: FloatArray) -> tuple[float, FloatArray]:
        """Run TNC between ranks."""
        return _truncated_newton(self.objective, start, 60)

    def descend_at(self, above: int, start: FloatArray) -> tuple[float, FloatArray]:
        """Run TNC with ``above`` values above the quantile."""
        return _truncated_newton(lambda point: self.objective_at(above, point), start[:-1], 60)

    def candidates(self, point: FloatArray, count: int = 3) -> list[int]:
        """Whole ranks near a point with the least objective, best first."""
        middle = self.rank_factor(point) * self.quantile(point) * self.setting.lag
        low, high = math.floor(middle * (1 - _NEAR)), math.ceil(middle * (1 + _NEAR)) + 1
        ranks = np.unique(np.rint(np.linspace(max(0, low), min(self._most, high), _NEAR_NODES)))
        judged = []
        for above in (int(k) for k in ranks if k < self.setting.lag):
            # Keep λ rather than p, else g would pay for the move.
            quantile = above / (self.rank_factor(point) * self.setting.lag)
            moved = point[:-1].copy()
            moved[1] = self._unquantile(quantile)
            judged.append((self.objective_at(above, moved), above))
        return [above for _, above in sorted(judged)[:count]]

    def quantile(self, point: FloatArray) -> float:
        """The p of a point."""
        return self._quantile(float(point[1]))

    def rank_factor(self, point: FloatArray) -> float:
        """The λ of a point."""
        return _SMALLEST_RANK_FACTOR + float(point[-1]) * (1 - _SMALLEST_RANK_FACTOR)

    def _quantile(self, unit: float) -> float:
        return self.setting.largest_quantile * math.pow(_SMALLEST_QUANTILE, 1.0 - unit)

    def _unquantile(self, quantile: float) -> float:
        if quantile <= 0:
            return 0.0
        share = math.log(quantile / self.setting.largest_quantile)
        return min(1.0, max(0.0, 1 - share / math.log(_SMALLEST_QUANTILE)))

    def decode(self, point: FloatArray) -> tuple[float, float, float, FloatArray]:
        """From the unit box to r, p, ε₁/ε and the division of what g leaves of β."""
        multiplier = 1 + float(point[0]) * (_LARGEST_MULTIPLIER - 1)
        share = _SMALLEST_SHARE + float(point[2]) * (_LARGEST_SHARE - _SMALLEST_SHARE)
        logits = np.zeros(self._parts)
        free = (2 * point[3 : 2 + self._parts] - 1) * _LOGIT
        logits[:2], logits[3:] = free[:2], free[2:]
        weights = np.exp(logits)
        return multiplier, self.quantile(point), share, weights / weights.sum()

    def objective(self, point: FloatArray) -> float:
        """Logarithm of α over that of plain BT, at a rank that need not be whole."""
        above = self.rank_factor(point) * self.quantile(point) * self.setting.lag
        place = min(math.log1p(above), float(self._nodes[-1]))
        if len(self._ranks) == 1:
            return self._objective(point, above, [(self._ranks[0], 1.0)])
        right = min(max(int(np.searchsorted(self._nodes, place)), 1), len(self._ranks) - 1)
        low, high = float(self._nodes[right - 1]), float(self._nodes[right])
        part = max(0.0, (place - low) / (high - low))
        pair = [(self._ranks[right - 1], 1 - part), (self._ranks[right], part)]
        return self._objective(point, above, pair)

    def objective_at(self, above: int, point: FloatArray) -> float:
        """Logarithm of α over that of plain BT, at a whole rank."""
        return self._objective(point, above, [(above, 1.0)])

    def _objective(
        self, point: FloatArray, above: float, mixture: list[tuple[int, float]]
    ) -> float:
        """The objective with x̂ and S mixed (in logarithms) from ranks; above 5 where it fails."""
        setting = self.setting
        multiplier, quantile, share, weights = self.decode(point)
        factor = above / (quantile * setting.lag)
        if factor > 1:
            return 20.0 + factor
        # The incomplete beta function: the binomial at whole ranks, an upper bound between them.
        g = float(betainc(setting.lag - above, above + 1, 1 - quantile))
        if g >= 0.999 * setting.beta:
            return 10.0 + math.log(g / setting.beta)
        shares = divide(g, (setting.beta - g) * weights, setting.form)
        offset = noise_quantile(setting.law, shares.low)
        a, b = self._constants.at(setting.epsilon * share, shares.low)
        taken = math.expm1(b) * offset / a
        if taken >= 0.999:
            return 5.0 + taken
        constants = Calibration(a, b, offset, 1 / (1 - taken), law=setting.law)
        value = math.exp(sum(part * self._log_value(k) for k, part in mixture))
        sensitivity = math.exp(sum(part * self._log_sensitivity(k, b) for k, part in mixture))
        highest = threshold_bound(value, sensitivity, constants, shares.high)
        parameters = LocalParameters(quantile, factor, multiplier, share, shares)
        # Not capped at B, as a prediction is: a plateau would hold the search for ever.
        prediction = assemble(setting, parameters, value, highest)
        return math.log(prediction.bound.total / prediction.baseline)

    def _log_value(self, above: int) -> float:
        value = float(self.tail[self.setting.lag - 1 - above])
        return math.log(max(value, self.setting.width * 1e-12))

    def _log_sensitivity(self, above: int, b: float) -> float:
        gaps = self._gaps.get(above)
        if gaps is None:
            rank, width = self.setting.lag - above, self.setting.width
            found = largest_gaps(self.tail, rank, 0.0, width, self._terms)
            gaps = self._gaps[above] = np.log(np.maximum(found, width * 1e-300))
        floor = math.log(self.setting.width) - b * self._terms
        return max(float((gaps - b * self._steps).max()), floor)


def _truncated_newton(
    objective: Callable[[FloatArray], float], start: FloatArray, most: int
) -> tuple[float, FloatArray]:
    def with_slope(point: FloatArray) -> tuple[float, FloatArray]:
        # Forward differences, backward at the upper edge: the box is never left.
        value = objective(point)
        slope = np.empty(point.size)
        for i in range(point.size):
            step = _STEP if point[i] + _STEP <= 1 else -_STEP
            moved = point.copy()
            moved[i] += step
            slope[i] = (objective(moved) - value) / step
        return value, slope

    found = minimize(
        with_slope,
        np.clip(start, 0.0, 1.0),
        jac=True,
        method="TNC",
        bounds=[(0.0, 1.0)] * start.size,
        options={"maxfun": most, "ftol": 1e-6},
    )
    return float(found.fun), np.clip(np.asarray(found.x, dtype=np.float64), 0.0, 1.0)


class _Constants:
    """(a, b) as a smooth function of (ε₁, β_lt): a cubic in their logarithms where exact."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._cubics: list[NDArray[np.float64]] = []
        if setting.calibration != "exact":
            return
        epsilons = setting.epsilon * np.geomspace(_SMALLEST_SHARE, _LARGEST_SHARE, 4)
        betas = setting.beta * np.geomspace(math.exp(-2 * _LOGIT) / 4, 1.0, 5)
        grid = [(float(e), float(t)) for e in epsilons for t in betas]
        found = [calibrate("exact", setting.law, e, setting.delta, t) for e, t in grid]
        logs = np.log(np.array(grid))
        powers = np.polynomial.polynomial.polyvander2d(logs[:, 0], logs[:, 1], [3, 3])
        for targets in ([c.a for c in found], [c.b for c in found]):
            solution = np.linalg.lstsq(powers, np.log(np.array(targets)), rcond=None)[0]
            self._cubics.append(solution.reshape(4, 4))

    def at(self, epsilon: float, beta_lt: float) -> tuple[float, float]:
        setting = self._setting
        if not self._cubics:
            return published_constants(setting.calibration, setting.law, epsilon, setting.delta)
        x, y = math.log(epsilon), math.log(beta_lt)
        left, right = np.array([1, x, x * x, x**3]), np.array([1, y, y * y, y**3])
        a, b = (math.exp(float(left @ cubic @ right)) for cubic in self._cubics)
        return a, b
