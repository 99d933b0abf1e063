"""Choose r, λ, p, ε₁/ε and the split of β for the least bound on the error (PAK, section VI-A).

The objective is α of `rillet.paper.bounds.alpha_light_tailed` (PAK eq. 16) with τ_max (eq. 13) put
in for τ; the constraints are PAK's: p ≤ p_max, λ ≤ 1, r ≥ 1, κ > 0, and g(λ, p, m) plus the other
β's within β. Truncated Newton (SciPy's TNC) runs from a fixed set of starts on a smooth model of
the objective (`rillet.paper.search`); the result is judged by the objective itself, at whole ranks.

**Privacy.** Nothing here may see the stream that is to be protected: see
`rillet.paper.prediction`.
"""

from __future__ import annotations

import math
from typing import Final

from numpy.typing import ArrayLike

from rillet.errors import ParameterError
from rillet.paper.bounds import ErrorBound, decimal_fraction, underestimate_probability
from rillet.paper.prediction import (
    FloatArray,
    LocalParameters,
    Prediction,
    Setting,
    predict,
    public_tail,
)
from rillet.paper.search import Search, divide

__all__ = ["LocalParameters", "Prediction", "Setting", "optimise", "predict", "public_tail"]

_DIGITS: Final = 4


def optimise(
    setting: Setting,
    *,
    public_sample: ArrayLike | None = None,
    public_guess: float | None = None,
) -> Prediction:
    """The local parameters with the least bound, and what they lead to.

    **Privacy.** See the module: the arguments are public by the caller's word. Deterministic.

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
    search = Search(setting, tail)
    _, point = min((search.descend(start) for start in search.starts()), key=lambda item: item[0])
    best: Prediction | None = None
    for above in search.candidates(point):
        _, settled = search.descend_at(above, point)
        found = _judge(search, above, settled)
        if best is None or found.bound.total < best.bound.total:
            best = found
    assert best is not None  # there is always a candidate
    return best


def _judge(search: Search, above: int, point: FloatArray) -> Prediction:
    """Round a point of the model to parameters a person can read, and judge them in earnest."""
    setting = search.setting
    multiplier, quantile, share, weights = search.decode(point)
    quantile = min(_rounded(quantile), setting.largest_quantile)
    multiplier, share = max(1.0, _rounded(multiplier)), _rounded(share)
    factor = _factor_for(above, quantile, setting.lag)
    if factor is not None:
        g = underestimate_probability(factor, quantile, setting.lag)
        if g < setting.beta:
            shares = divide(g, (setting.beta - g) * weights, setting.form)
            parameters = LocalParameters(quantile, factor, multiplier, share, shares)
            try:
                return predict(setting, parameters, search.tail)
            except ParameterError:  # no κ for this β_lt
                pass
    # Nothing feasible: the lag is too short for any threshold, so there is no gain.
    shares = divide(0.0, setting.beta * weights, setting.form)
    parameters = LocalParameters(quantile, factor or 1.0, multiplier, share, shares)
    nothing = ErrorBound(math.inf, 0.0)
    return Prediction(parameters, nothing, setting.width, setting.baseline, setting.width)


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
