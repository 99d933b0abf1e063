"""What given parameters lead to, on data declared public or on a guess.

**Privacy.** How large values are enters through data that the caller declares public
(``public_sample``) or through a public guess of the scale (``public_guess``). Never pass the
stream that is to be protected: parameters chosen on it would tell about it, and PAK's tables,
which are made so, are not a private procedure (they say so in section VI-B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.errors import ParameterError
from rillet.paper.bounds import (
    ErrorBound,
    ErrorShares,
    Form,
    alpha_light_tailed,
    alpha_tree,
    decimal_fraction,
    threshold_bound,
    underestimate_probability,
)
from rillet.threshold.calibration import Kind, Law, calibrate
from rillet.threshold.smooth_sensitivity import quantile_rank, smooth_sensitivity

__all__ = ["LocalParameters", "Prediction", "Setting", "assemble", "predict", "public_tail"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """The public facts that the local parameters are chosen for (PAK's global parameters).

    **Privacy.** Public numbers only.

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
    parameters : LocalParameters
        The parameters it is for.
    bound : ErrorBound
        α by cause.
    threshold_max : float
        r·τ_max, the clipping range that is exceeded with probability β_rt only, above A.
    baseline : float
        α of the plain binary tree.
    width : float
        B − A.
    """

    parameters: LocalParameters
    bound: ErrorBound
    threshold_max: float
    baseline: float
    width: float

    @property
    def improvement_factor(self) -> float:
        """IF: α of the plain binary tree over α."""
        return self.baseline / self.bound.total

    @property
    def gain(self) -> bool:
        """Whether the bound beats plain BT. If not, PAK run plain BT from the first observation.

        A threshold that may end at B gains nothing by itself: what is left of an improvement
        then comes from the shorter tree after the lag.
        """
        return self.improvement_factor > 1 and self.threshold_max < self.width


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
    return assemble(setting, parameters, value, highest)


def assemble(
    setting: Setting, parameters: LocalParameters, value: float, highest: float
) -> Prediction:
    """The bound for a quantile x̂ and a highest threshold τ_max, both above A.

    **Privacy.** Public numbers only.
    """
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
    return Prediction(parameters, bound, clip, setting.baseline, setting.width)
