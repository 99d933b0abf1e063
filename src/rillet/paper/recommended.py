"""The parameters of PAK's mechanism: those of section VI, and those of its optimiser.

The lag follows PAK's two criteria with the plan's own constants: exact ones, of which the second
criterion asks for less than half of what it asks for with PAK's.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rillet.errors import ParameterError
from rillet.paper.bounds import ErrorShares, underestimate_probability
from rillet.paper.lag import suggest_lag
from rillet.privacy import Guarantee
from rillet.statistic import Range
from rillet.threshold import SmoothQuantile, Threshold

if TYPE_CHECKING:
    from rillet.paper.optimise import Prediction, Setting

__all__ = ["CRITERIA", "RECOMMENDED", "THRESHOLD_SHARE", "predicted", "recommended_lag", "tuned"]

#: ε₁ between 0.8 and 0.9 of ε, p at most 0.005, r between 1 and 2, λ close to 1; the tables give
#: β_lt about 0.2 of β = 0.02.
THRESHOLD_SHARE: Final = 0.85
RECOMMENDED: Final[dict[str, float]] = {
    "quantile": 0.005,
    "rank_factor": 0.85,
    "multiplier": 1.5,
    "beta_lt": 0.004,
}
#: Whose the lag is: the paper's own constants would ask for more.
CRITERIA: Final = "the paper's two criteria, with this plan's constants and λ,"
#: With a longer lag tuning gains little and takes long.
_LONGEST_TUNED: Final = 1 << 20


def recommended_lag(threshold: Threshold, guarantee: Guarantee, share: float) -> int:
    """The larger of the paper's two lag criteria, for this threshold's own constants."""
    if not isinstance(threshold, SmoothQuantile):
        raise ParameterError("lag", "a whole number for this kind of threshold", "auto")
    return suggest_lag(
        guarantee.epsilon * share,
        guarantee.delta,
        quantile=threshold.quantile,
        rank_factor=threshold.rank_factor,
        calibration=threshold.calibration,
        law=threshold.law,
    )


@lru_cache(maxsize=16)
def tuned(
    threshold: SmoothQuantile,
    guarantee: Guarantee,
    bounds: Range,
    length: int | None,
    lag: int,
    public_guess: float,
) -> Prediction:
    """The parameters of PAK's optimiser for a public guess of the scale, and what they lead to."""
    from rillet.paper.optimise import optimise

    if lag > _LONGEST_TUNED:
        raise ParameterError("lag", f"at most {_LONGEST_TUNED:,} for tuning", lag)
    return optimise(_setting(threshold, guarantee, bounds, length, lag), public_guess=public_guess)


def predicted(
    threshold: SmoothQuantile,
    guarantee: Guarantee,
    bounds: Range,
    length: int | None,
    lag: int,
    share: float,
    public_guess: float,
) -> Prediction:
    """What given parameters lead to; what β_qt and β_lt leave of β is divided equally.

    Raises
    ------
    ParameterError
        Where the lag is too short for the quantile, so that nothing is left of β.
    """
    from rillet.paper.optimise import LocalParameters, predict, public_tail

    setting = _setting(threshold, guarantee, bounds, length, lag)
    g = underestimate_probability(threshold.rank_factor, threshold.quantile, lag)
    rest = (setting.beta - g - threshold.beta_lt) / 4
    if rest <= 0:
        expected = f"g(lambda, p, m) below beta = {setting.beta:g}"
        raise ParameterError("rank_factor", expected, g, "lower rank_factor or raise lag")
    parameters = LocalParameters(
        threshold.quantile,
        threshold.rank_factor,
        threshold.multiplier,
        share,
        ErrorShares(g, threshold.beta_lt, rest, rest, rest, rest),
    )
    return predict(setting, parameters, public_tail(setting, public_guess=public_guess))


def _setting(
    threshold: SmoothQuantile, guarantee: Guarantee, bounds: Range, length: int | None, lag: int
) -> Setting:
    from rillet.paper.optimise import Setting

    if length is None:
        raise ParameterError("length", "a known length, which the paper's bound is for", None)
    return Setting(
        guarantee.epsilon,
        guarantee.delta,
        bounds.upper,
        length,
        lag,
        lower=bounds.lower,
        calibration=threshold.calibration,
        law=threshold.law,
    )
