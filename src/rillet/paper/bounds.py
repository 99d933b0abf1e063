"""What the error will be, with what probability: the bounds of PAK, section V, piece by piece.

Each function is one formula and says which (PAK's equation numbers count in order of appearance:
binary tree 3, g 5, κ 11, τ_max 13, worst case 14, light tail 16). Two forms exist:

``"paper"``
    As printed: log₂ n levels, ln(1/β), no term for the first block. For tables.
``"corrected"``
    n.bit_length() levels, as many as a node path really has; ln(2/β) for the two sides of the
    noise (Chan, Shi, Song 2011, corollary 2.9); and the noise of the first block, which PAK's
    bound leaves out, with a sixth β.

All thresholds and quantiles are distances above the lower bound A, all bounds are on the error of
the sum at one step.

**Privacy.** Public numbers only, throughout. A quantile or a smooth sensitivity passed in must
come from public data or from a guess: see `rillet.paper.optimise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from scipy.special import bdtr

from rillet.errors import ParameterError
from rillet.threshold.calibration import Calibration, noise_quantile

__all__ = [
    "ErrorBound",
    "ErrorShares",
    "Form",
    "alpha_first_block",
    "alpha_light_tailed",
    "alpha_outlier_light_tailed",
    "alpha_outlier_worst_case",
    "alpha_tree",
    "alpha_worst_case",
    "decimal_fraction",
    "kappa",
    "threshold_bound",
    "underestimate_probability",
]

Form = Literal["paper", "corrected"]


@dataclass(frozen=True, slots=True)
class ErrorShares:
    """How the failure probability β is divided among what can go wrong."""

    #: β_qt: the empirical quantile lies below the true one.
    quantile: float
    #: β_lt: the noise brings the threshold below the quantile.
    low: float
    #: β_rt: the noise brings the threshold above τ_max.
    high: float
    #: β_Lap: the noise of the tree exceeds its bound.
    noise: float
    #: β_out: the clipped excess exceeds its bound.
    outlier: float
    #: The noise of the first block exceeds its bound; 0 in the paper's form.
    first: float = 0.0

    @property
    def total(self) -> float:
        """β: the bound holds with probability at least 1 − β."""
        return self.quantile + self.low + self.high + self.noise + self.outlier + self.first


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """A bound on the error of the sum, by cause."""

    noise: float
    outlier: float
    first_block: float = 0.0

    @property
    def total(self) -> float:
        """α: the sum of all parts."""
        return self.noise + self.outlier + self.first_block


def decimal_fraction(value: float | Fraction) -> Fraction:
    """The decimal that was typed, exactly: 0.005 means 1/200, not the nearest double.

    Examples
    --------
    >>> decimal_fraction(0.005)
    Fraction(1, 200)
    """
    return value if isinstance(value, Fraction) else Fraction(repr(float(value)))


def alpha_tree(
    epsilon: float, sensitivity: float, count: int, beta: float, form: Form = "corrected"
) -> float:
    """α of the binary tree (PAK eq. 3; first summand of eq. 14 and 16).

    At any step the sum is made of at most L nodes with noise Lap(L·Δ/ε) each. Corrected form: L
    is ``count.bit_length()``, and with probability 1 − β the noise is below
    (L·Δ/ε)·√(8 ln(2/β))·max(√L, √ln(2/β)) (Chan, Shi, Song 2011, corollary 2.9).

    Parameters
    ----------
    epsilon : float
        ε of the tree.
    sensitivity : float
        Δ, the clipping range: B for plain BT, r·τ after the threshold.
    count : int
        Number of leaves, at least 1.
    beta : float
        Probability with which the bound may fail.
    form : {"corrected", "paper"}
        See the module.

    Examples
    --------
    >>> round(alpha_tree(1.0, 3000.0, 150_000, 0.02, form="paper"))
    1196617
    """
    if count < 1:
        raise ParameterError("count", "a positive integer", count)
    if form == "paper":
        spread = math.sqrt(8 * math.log(1 / beta)) * math.pow(math.log2(count), 1.5)
        return sensitivity / epsilon * spread
    levels, log_term = count.bit_length(), math.log(2 / beta)
    spread = math.sqrt(8 * log_term) * levels * math.sqrt(max(levels, log_term))
    return sensitivity / epsilon * spread


def underestimate_probability(
    rank_factor: float | Fraction, quantile: float | Fraction, lag: int
) -> float:
    """g(λ, p, m): probability that the empirical λp-quantile lies below x_p (PAK eq. 5).

    The quantile has rank m − ⌊λpm⌋ (`rillet.threshold.smooth_sensitivity.quantile_rank`), so it
    lies below x_p exactly when at most ⌊λpm⌋ of the m values reach x_p: a binomial probability
    for a continuous law, and an upper bound for any other.

    Examples
    --------
    >>> [round(underestimate_probability(0.5, 0.005, m), 5) for m in (3199, 3200, 3230, 3231)]
    [0.0099, 0.02175, 0.02003, 0.01997]
    """
    tail = decimal_fraction(rank_factor) * decimal_fraction(quantile)
    return float(bdtr(math.floor(tail * lag), lag, float(quantile)))


def kappa(a: float, b: float, offset: float) -> float:
    """κ = 1/(1 − (e^b − 1)·offset/a) (PAK eq. 11).

    Raises
    ------
    ParameterError
        Where (e^b − 1)·offset ≥ a: no κ hides the offset then.
    """
    ratio = math.expm1(b) * offset / a
    if ratio >= 1:
        raise ParameterError(
            "offset", f"a value below a/(e^b - 1) = {a / math.expm1(b):.4g}", offset
        )
    return 1 / (1 - ratio)


def threshold_bound(
    quantile_value: float, sensitivity: float, calibration: Calibration, beta_rt: float
) -> float:
    """τ_max: what τ exceeds with probability β_rt at most (PAK eq. 13).

    Parameters
    ----------
    quantile_value : float
        The empirical λp-quantile, as a distance above A.
    sensitivity : float
        Its smooth sensitivity.
    calibration : Calibration
        a, offset and κ.
    beta_rt : float
        Probability of exceeding the bound.
    """
    reach = calibration.offset + noise_quantile(calibration.law, beta_rt)
    return quantile_value + calibration.kappa * sensitivity / calibration.a * reach


def alpha_outlier_worst_case(
    excess: float, quantile: float, count: int, beta: float, form: Form = "corrected"
) -> float:
    """Clipped excess where every value above the threshold may be B (second summand of PAK eq. 14).

    With N ~ Bin(n, p) values cut by B − τ each. Paper: pn(B − τ)(ln(1/β) + 1), a bound once
    pn ≥ 1. Corrected: Chernoff's bound with the best exponent, n·q·(B − τ) where q ≥ p solves
    n·KL(q‖p) = ln(1/β), or q = 1 if none does.

    Parameters
    ----------
    excess : float
        B − τ.
    quantile : float
        p, the probability of a value above the threshold.
    count : int
        n, the number of values that are clipped.
    beta : float
        Probability with which the bound may fail.
    """
    log_term = math.log(1 / beta)
    if form == "paper":
        return quantile * count * excess * (log_term + 1)

    def surplus(q: float) -> float:
        rest = (1 - q) * (math.log1p(-q) - math.log1p(-quantile)) if q < 1 else 0.0
        return count * (q * math.log(q / quantile) + rest) - log_term

    if surplus(1.0) <= 0:
        return count * excess
    from scipy.optimize import brentq  # Half a second of every start, and rarely needed.

    return count * excess * float(brentq(surplus, quantile, 1.0, xtol=1e-15, rtol=1e-12))


def alpha_outlier_light_tailed(
    quantile_value: float, quantile: float, multiplier: float, count: int, beta: float
) -> float:
    """Clipped excess of a light tail cut at r·x̂ (second summand of PAK eq. 16).

    (x̂/−ln p)·(√(p^r·n) + √ln(1/β))². It needs x̂ ≥ x_p and a law that is light-tailed beyond x_p.

    Parameters
    ----------
    quantile_value : float
        x̂, as a distance above A.
    quantile : float
        p.
    multiplier : float
        r ≥ 1.
    count : int
        n, the number of values that are clipped.
    beta : float
        Probability with which the bound may fail.
    """
    spread = math.sqrt(quantile**multiplier * count) + math.sqrt(math.log(1 / beta))
    return quantile_value / -math.log(quantile) * spread * spread


def alpha_first_block(sensitivity: float, epsilon: float, beta: float) -> float:
    """Noise of the sum of the first m values, Lap(r·τ/ε₂): missing from PAK's α.

    P(|Lap(s)| > x) = e^{−x/s}, so s·ln(1/β) is exact.
    """
    return sensitivity / epsilon * math.log(1 / beta)


def alpha_light_tailed(
    *,
    epsilon: float,
    threshold_share: float,
    length: int,
    lag: int,
    quantile: float,
    multiplier: float,
    quantile_value: float,
    threshold_max: float,
    shares: ErrorShares,
    form: Form = "corrected",
) -> ErrorBound:
    """α on a light-tailed stream at step n (PAK eq. 16), with the first block where corrected.

    Parameters
    ----------
    epsilon : float
        ε, all of which the tree after the lag may spend.
    threshold_share : float
        ε₁/ε; the first block has ε₂ = ε − ε₁.
    length, lag : int
        n and m.
    quantile, multiplier : float
        p and r.
    quantile_value, threshold_max : float
        x̂ and τ_max (eq. 13), distances above A.
    shares : ErrorShares
        The β's.
    form : {"corrected", "paper"}
        See the module.
    """
    clip = multiplier * threshold_max
    noise = alpha_tree(epsilon, clip, length - lag, shares.noise, form)
    outlier = alpha_outlier_light_tailed(
        quantile_value, quantile, multiplier, length, shares.outlier
    )
    if form == "paper":
        return ErrorBound(noise, outlier)
    first = alpha_first_block(clip, epsilon * (1 - threshold_share), shares.first)
    return ErrorBound(noise, outlier, first)


def alpha_worst_case(
    *,
    epsilon: float,
    threshold_share: float,
    length: int,
    lag: int,
    upper: float,
    quantile: float,
    threshold_min: float,
    threshold_max: float,
    shares: ErrorShares,
    form: Form = "corrected",
) -> ErrorBound:
    """α at step n whatever the tail, of which a share p may sit at B (PAK eq. 14).

    PAK write one τ; the noise needs its upper bound and the clipped excess its lower one.

    Parameters
    ----------
    upper : float
        B − A.
    threshold_min, threshold_max : float
        Bounds on the clipping range r·τ, distances above A. 0 is always a lower one.
    epsilon, threshold_share, length, lag, quantile, shares, form
        As in `alpha_light_tailed`.
    """
    noise = alpha_tree(epsilon, threshold_max, length - lag, shares.noise, form)
    excess = max(0.0, upper - threshold_min)
    outlier = alpha_outlier_worst_case(excess, quantile, length, shares.outlier, form)
    if form == "paper":
        return ErrorBound(noise, outlier)
    first = alpha_first_block(threshold_max, epsilon * (1 - threshold_share), shares.first)
    return ErrorBound(noise, outlier, first)
