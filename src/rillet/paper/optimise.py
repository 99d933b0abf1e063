"""Choose r, λ, p, ε₁/ε and the split of β for the least bound on the error (PAK, section VI-A).

The objective is α of `rillet.paper.bounds.alpha_light_tailed` (PAK eq. 16) with τ_max (eq. 13) put
in for τ; the constraints are PAK's: p ≤ p_max, λ ≤ 1, r ≥ 1, κ > 0, and g(λ, p, m) plus the other
β's within β.

The objective depends on the data through two numbers, x̂ and S, and on the rank of x̂ in steps. So
truncated Newton (SciPy's TNC) runs from a fixed set of starts on a smooth model, which knows both
numbers at some ranks: a first search moves between ranks by interpolation; a second keeps a rank
and moves everything else, which is smooth as it stands. The result is judged by the objective
itself, at whole ranks.

**Privacy.** Nothing here may see the stream that is to be protected. How large values are enters
through data that the caller declares public (``public_sample``) or through a public guess of the
scale (``public_guess``). Parameters chosen on the stream itself would tell about it, and PAK's
tables, which are made so, are not a private procedure (they say so in section VI-B).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import bdtrik, betainc

from rillet.errors import ParameterError
from rillet.paper.bounds import (
    ErrorBound,
    ErrorShares,
    Form,
    alpha_light_tailed,
    alpha_tree,
    alpha_worst_case,
    decimal_fraction,
    threshold_bound,
    underestimate_probability,
)
from rillet.threshold.calibration import (
    Calibration,
    Kind,
    Law,
    calibrate,
    noise_quantile,
    published_constants,
)
from rillet.threshold.smooth_sensitivity import (
    largest_gaps,
    quantile_rank,
    sensitivity_terms,
    smooth_sensitivity,
)

__all__ = ["LocalParameters", "Prediction", "Setting", "optimise", "predict", "public_tail"]

FloatArray = NDArray[np.float64]

#: Digits of the parameters that are found.
_DIGITS: Final = 4
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


# --- What parameters lead to ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """The public facts that the local parameters are chosen for (PAK's global parameters).

    Attributes
    ----------
    epsilon, delta : float
        The promise.
    upper, lower : float
        B and A.
    length, lag : int
        n and m.
    beta : float
        Probability with which the bound may fail; 0.02 in PAK.
    largest_quantile : float
        p_max: beyond this quantile the stream is taken to be light-tailed; 0.005 in PAK.
    calibration, law : str
        As in `rillet.threshold.calibration.calibrate`.
    form : {"corrected", "paper"}
        As in `rillet.paper.bounds`.
    """

    epsilon: float
    delta: float
    upper: float
    length: int
    lag: int
    lower: float = 0.0
    beta: float = 0.02
    largest_quantile: float = 0.005
    calibration: Kind = "exact"
    law: Law = "laplace"
    form: Form = "corrected"

    def __post_init__(self) -> None:
        if not 0 < self.beta < 0.5:
            raise ParameterError("beta", "a number between 0 and 0.5, both excluded", self.beta)
        if not 0 < self.largest_quantile < 0.5:
            raise ParameterError(
                "largest_quantile", "a number between 0 and 0.5", self.largest_quantile
            )
        if not 1 <= self.lag < self.length:
            raise ParameterError("lag", f"an integer from 1 to {self.length - 1}", self.lag)
        if not 0 < self.upper - self.lower < math.inf:
            raise ParameterError("upper", f"a finite number above {self.lower!r}", self.upper)

    @property
    def width(self) -> float:
        """B − A."""
        return self.upper - self.lower

    @property
    def baseline(self) -> float:
        """α of the plain binary tree at B (PAK eq. 3)."""
        return alpha_tree(self.epsilon, self.width, self.length, self.beta, self.form)


@dataclass(frozen=True, slots=True)
class LocalParameters:
    """What the optimiser chooses.

    **Privacy.** Public, as long as they come from public data or a guess.
    """

    quantile: float
    rank_factor: float
    multiplier: float
    threshold_share: float
    shares: ErrorShares


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a set of parameters leads to on a public sample or a guess.

    Attributes
    ----------
    setting : Setting
        The public facts it is for.
    parameters : LocalParameters
        The parameters it is for.
    bound : ErrorBound
        α by cause.
    quantile_value : float
        x̂, the λp-quantile of the public tail, above A.
    threshold_max : float
        r·τ_max, the clipping range that is exceeded with probability β_rt only, above A.
    """

    setting: Setting
    parameters: LocalParameters
    bound: ErrorBound
    quantile_value: float
    threshold_max: float

    @property
    def baseline(self) -> float:
        """α of the plain binary tree."""
        return self.setting.baseline

    @property
    def improvement_factor(self) -> float:
        """IF: α of the plain binary tree over α."""
        return self.baseline / self.bound.total

    @property
    def worst_case(self) -> ErrorBound:
        """α if the tail is not light: a share p of the values may lie at B (PAK eq. 14)."""
        return alpha_worst_case(
            epsilon=self.setting.epsilon,
            threshold_share=self.parameters.threshold_share,
            length=self.setting.length,
            lag=self.setting.lag,
            upper=self.setting.width,
            quantile=self.parameters.quantile,
            threshold_min=min(self.quantile_value, self.setting.width),
            threshold_max=min(self.threshold_max, self.setting.width),
            shares=self.parameters.shares,
            form=self.setting.form,
        )

    @property
    def gain(self) -> bool:
        """Whether the bound beats plain BT. If not, PAK run plain BT from the first observation.

        A threshold that may end at B gains nothing by itself: what is left of an improvement
        then comes from the shorter tree after the lag.
        """
        return self.improvement_factor > 1 and self.threshold_max < self.setting.width


def public_tail(
    setting: Setting,
    *,
    public_sample: ArrayLike | None = None,
    public_guess: float | None = None,
) -> FloatArray:
    """The m sorted values, above A and within B − A, that a plan may look at.

    **Privacy.** The caller answers for the data being public.

    Parameters
    ----------
    setting : Setting
        Gives the lag m and the bounds.
    public_sample : array-like, optional
        Values that the caller declares public, in time order: an earlier period that was
        published, a similar data set. Of more than m values the first m are taken; fewer are
        stretched to m by their quantiles.
    public_guess : float, optional
        Scale θ of an exponential tail above A: its mean. From a guessed quantile x with upper
        tail q it is (x − A)/ln(1/q), from a median (x − A)/ln 2.

    Raises
    ------
    ParameterError
        Unless exactly one of the two is given, and it is usable.
    """
    if (public_sample is None) == (public_guess is None):
        raise ParameterError(
            "public_sample",
            "either public_sample or public_guess",
            "both" if public_guess is not None else "neither",
            "plan on data that may be public, never on the stream that is to be protected",
        )
    middles = (np.arange(setting.lag) + 0.5) / setting.lag
    if public_guess is not None:
        if not 0 < public_guess < math.inf:
            raise ParameterError("public_guess", "a positive finite number", public_guess)
        values = -public_guess * np.log1p(-middles)
    else:
        values = np.asarray(public_sample, dtype=np.float64).ravel()[: setting.lag]
        values = values[np.isfinite(values)] - setting.lower
        if values.size < 2:
            raise ParameterError("public_sample", "at least two finite values", values.size)
        values = np.sort(values)
        if values.size < setting.lag:
            values = np.quantile(values, middles)
    return np.asarray(np.clip(values, 0.0, setting.width))


def predict(setting: Setting, parameters: LocalParameters, tail: FloatArray) -> Prediction:
    """The bound that given parameters lead to.

    **Privacy.** Public numbers, where ``tail`` comes from `public_tail`.

    Raises
    ------
    ParameterError
        Where κ does not exist, or g(λ, p, m) exceeds its share of β.
    """
    g = underestimate_probability(parameters.rank_factor, parameters.quantile, setting.lag)
    if g > parameters.shares.quantile:
        raise ParameterError(
            "rank_factor",
            f"g(lambda, p, m) at most beta_qt = {parameters.shares.quantile:.3g}",
            f"{g:.3g}",
            "lower rank_factor or raise lag",
        )
    constants = calibrate(
        setting.calibration,
        setting.law,
        setting.epsilon * parameters.threshold_share,
        setting.delta,
        parameters.shares.low,
    )
    share_above = decimal_fraction(parameters.rank_factor) * decimal_fraction(parameters.quantile)
    rank = quantile_rank(setting.lag, share_above)
    sensitivity = smooth_sensitivity(tail, rank, 0.0, setting.width, constants.b)
    value = float(tail[rank - 1])
    highest = threshold_bound(value, sensitivity, constants, parameters.shares.high)
    if setting.form == "corrected":
        # The stream clips r·τ to [A, B]; the paper's formula does not know that.
        highest = min(highest, setting.width / parameters.multiplier)
    return _assemble(setting, parameters, value, highest)


def _assemble(
    setting: Setting, parameters: LocalParameters, value: float, highest: float
) -> Prediction:
    """The bound for a quantile x̂ and a highest threshold τ_max, both above A."""
    bound = alpha_light_tailed(
        epsilon=setting.epsilon,
        threshold_share=parameters.threshold_share,
        length=setting.length,
        lag=setting.lag,
        quantile=parameters.quantile,
        multiplier=parameters.multiplier,
        quantile_value=value,
        threshold_max=highest,
        shares=parameters.shares,
        form=setting.form,
    )
    clip = parameters.multiplier * highest
    return Prediction(setting, parameters, bound, value, clip)


# --- The optimum ----------------------------------------------------------------------------------


def optimise(
    setting: Setting,
    *,
    public_sample: ArrayLike | None = None,
    public_guess: float | None = None,
) -> Prediction:
    """The local parameters with the least bound, and what they lead to.

    **Privacy.** The arguments are public by the caller's word. Deterministic.

    Parameters
    ----------
    setting : Setting
        The global parameters.
    public_sample, public_guess
        As in `public_tail`; exactly one of them.

    Returns
    -------
    Prediction
        With ``gain`` false where plain BT is predicted to be as good: fall back to it then.

    Examples
    --------
    >>> setting = Setting(epsilon=1.0, delta=2**-20, upper=3000.0, length=150_000, lag=50_000)
    >>> found = optimise(setting, public_guess=40.0)
    >>> found.gain, found.parameters.quantile <= 0.005
    (True, True)
    """
    tail = public_tail(setting, public_sample=public_sample, public_guess=public_guess)
    search = _Search(setting, tail)
    _, point = min((search.descend(start) for start in search.starts()), key=lambda item: item[0])
    best: Prediction | None = None
    for above in search.candidates(point):
        _, settled = search.descend_at(above, point)
        found = _judge(search, above, settled)
        if best is None or found.bound.total < best.bound.total:
            best = found
    assert best is not None  # there is always a candidate
    return best


def _judge(search: _Search, above: int, point: FloatArray) -> Prediction:
    """Round a point of the model to parameters a person can read, and judge them in earnest."""
    setting = search.setting
    multiplier, quantile, share, weights = search.decode(point)
    quantile = min(_rounded(quantile), setting.largest_quantile)
    multiplier, share = max(1.0, _rounded(multiplier)), _rounded(share)
    factor = _factor_for(above, quantile, setting.lag)
    if factor is not None:
        g = underestimate_probability(factor, quantile, setting.lag)
        if g < setting.beta:
            shares = _divide(g, (setting.beta - g) * weights, setting.form)
            parameters = LocalParameters(quantile, factor, multiplier, share, shares)
            try:
                return predict(setting, parameters, search.tail)
            except ParameterError:  # no κ for this β_lt
                pass
    # Nothing feasible: the lag is too short for any threshold, so there is no gain.
    shares = _divide(0.0, setting.beta * weights, setting.form)
    parameters = LocalParameters(quantile, factor or 1.0, multiplier, share, shares)
    nothing = ErrorBound(math.inf, 0.0)
    return Prediction(setting, parameters, nothing, 0.0, setting.width)


def _rounded(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def _factor_for(above: int, quantile: float, lag: int) -> float | None:
    """A λ ≤ 1 with few digits and ⌊λ·p·m⌋ = above, if there is one."""
    product = quantile * lag
    for digits in range(_DIGITS, 13):
        factor = min(1.0, _rounded((above + 0.5) / product, digits))
        if math.floor(decimal_fraction(factor) * decimal_fraction(quantile) * lag) == above:
            return factor if factor > 0 else None
    return None


# --- The smooth model -----------------------------------------------------------------------------


def _divide(quantile: float, others: FloatArray, form: Form) -> ErrorShares:
    """The shares of β, from g and the rest in the order low, high, noise, outlier, first."""
    low, high, noise, outlier = (float(x) for x in others[:4])
    first = float(others[4]) if form == "corrected" else 0.0
    return ErrorShares(quantile, low, high, noise, outlier, first)


class _Search:
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
        position = min(math.log1p(above), float(self._nodes[-1]))
        if len(self._ranks) == 1:
            return self._objective(point, above, [(self._ranks[0], 1.0)])
        right = min(max(int(np.searchsorted(self._nodes, position)), 1), len(self._ranks) - 1)
        low, high = float(self._nodes[right - 1]), float(self._nodes[right])
        part = max(0.0, (position - low) / (high - low))
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
        shares = _divide(g, (setting.beta - g) * weights, setting.form)
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
        prediction = _assemble(setting, parameters, value, highest)
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
