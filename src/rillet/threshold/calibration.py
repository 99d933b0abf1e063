"""The constants (a, b) of smooth sensitivity, from public numbers alone.

A threshold learned by smooth sensitivity is

    τ = x̂ + (κ·S/a)·(Z + offset),

Z a standard Laplace or Gaussian variable and S a b-smooth upper bound on the local sensitivity of
the quantile x̂. Between neighbours the centre x̂ + κ·S·offset/a moves by at most κ·min(S, S′) and
the scale κ·S/a by a factor of at most e^b. In units of the smaller scale that is a shift of at
most a and a ratio of at most e^b, and what (a, b) costs is a question about two fixed laws. The
proofs are in ``docs/proofs/smooth.md``.

References
----------
Nissim, Raskhodnikova, Smith, "Smooth sensitivity and sampling in private data analysis", STOC
2007: the admissible pairs of the Laplace and the Gaussian law (section 2).
Perrier, Asghar, Kaafar, NDSS 2019 (PAK below), section IV-C: offset and κ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri, wrightomega

from rillet.errors import ParameterError
from rillet.precision import precision

__all__ = [
    "Calibration",
    "Kind",
    "Law",
    "calibrate",
    "exact_delta",
    "noise_quantile",
    "published_constants",
    "worst_pair_proved",
]

Kind = Literal["exact", "textbook", "paper", "paper-mixed"]
Law = Literal["laplace", "gaussian"]

_KINDS: Final = ("exact", "textbook", "paper", "paper-mixed")
_LAWS: Final = ("laplace", "gaussian")
#: 60 digits.
_PRECISION: Final = 203
# What the machine draws is within 2^-140 of its law, which costs (1 + e^ε)·2^-140; this share of δ
# is left for it (docs/proofs/smooth.md, section 5).
_DELTA_MARGIN: Final = 2.0**-30
_DRAW_BITS: Final = 110
#: Below this the share would not do for any ε worth asking for.
SMALLEST_DELTA: Final = 2.0**-108
_SEARCH_POINTS: Final = 1024


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of one smooth-sensitivity release.

    **Privacy.** Public numbers only. A release with these constants is (ε₁, δ)-private when
    ``releasable`` is true: the exact δ of the worst pair has then been compared with the nominal
    one in 60-digit arithmetic.

    Attributes
    ----------
    a : float
        Shift between neighbours, in units of the noise scale: the scale is κ·S/a.
    b : float
        Smoothing parameter of S.
    offset : float
        1 − β_lt quantile of the noise, added so that τ falls short with probability β_lt only.
    kappa : float
        Factor on S that hides the offset as well (PAK, eq. for κ), rounded up.
    kind, law : str
        Which calibration, for which noise.
    releasable : bool
        Whether the constants may be used for a release at the (ε, δ) they were made for.
    """

    a: float
    b: float
    offset: float
    kappa: float
    kind: Kind = "exact"
    law: Law = "laplace"
    releasable: bool = False

    @property
    def noise_per_sensitivity(self) -> float:
        """κ/a: the noise scale for one unit of smooth sensitivity."""
        return self.kappa / self.a

    @property
    def cost(self) -> float:
        """κ/(a·b), to which the noise is proportional where the data are dense: least is best."""
        return self.kappa / (self.a * self.b)

    def require_releasable(self) -> None:
        """Refuse constants that serve for tables only.

        Raises
        ------
        ParameterError
            Where ``releasable`` is false.
        """
        if not self.releasable:
            raise ParameterError(
                "calibration",
                "constants that keep the promised (epsilon, delta)",
                f"{self.kind} with {self.law} noise",
                'use calibration="exact"; this one serves to reproduce tables only',
            )


def noise_quantile(law: Law, beta: float) -> float:
    """G⁻¹(1 − β) of the standard Laplace or Gaussian law.

    **Privacy.** Public numbers only.

    Parameters
    ----------
    law : {"laplace", "gaussian"}
        The law, with scale 1 (Laplace) or standard deviation 1 (Gaussian).
    beta : float
        Upper tail, 0 < β < 1.

    Examples
    --------
    >>> round(noise_quantile("laplace", 0.006), 4)
    4.4228
    """
    if law == "laplace":
        return -math.log(2 * beta) if beta <= 0.5 else math.log(2 * (1 - beta))
    return -float(ndtri(beta))


def calibrate(kind: Kind, law: Law, epsilon: float, delta: float, beta_lt: float) -> Calibration:
    """Choose (a, b), the offset and κ for one smooth-sensitivity release.

    **Privacy.** Public numbers only; see `Calibration` for what they promise.

    Parameters
    ----------
    kind : {"exact", "textbook", "paper", "paper-mixed"}
        *exact*: the pair with least κ/(a·b) whose exact δ stays within the promise.
        *textbook*: Nissim, Raskhodnikova and Smith (2007).
        *paper*: PAK, section IV-C; its Gaussian form is not private and serves tables only.
        *paper-mixed*: PAK, section VI-B: the Gaussian a with Laplace noise; tables only.
    law : {"laplace", "gaussian"}
        The noise.
    epsilon, delta : float
        What the threshold may cost: ε₁ and δ, both positive.
    beta_lt : float
        Probability with which τ may fall below the quantile, 0 < β_lt < 0.5.

    Raises
    ------
    ParameterError
        For values out of range, and where (e^b − 1)·offset ≥ a: no κ exists then.

    Examples
    --------
    >>> found = calibrate("exact", "laplace", 0.8, 2**-20, 0.006)
    >>> round(found.a, 3), round(found.b, 4)
    (0.547, 0.0289)
    """
    if kind not in _KINDS:
        raise ParameterError("calibration", f"one of {', '.join(_KINDS)}", kind)
    if law not in _LAWS:
        raise ParameterError("law", "laplace or gaussian", law)
    if not 0 < epsilon < math.inf:
        raise ParameterError("epsilon", "a positive finite number", epsilon)
    if not 0 < delta < 1:
        raise ParameterError(
            "delta",
            "a number between 0 and 1, both excluded",
            delta,
            "for delta = 0 use the exponential threshold, which is pure",
        )
    if delta < SMALLEST_DELTA:
        raise ParameterError(
            "delta",
            "at least 2^-108, so that the error of a draw in 256 bits is within it",
            delta,
            "use a larger delta, or the exponential threshold, which is pure",
        )
    if not 0 < beta_lt < 0.5:
        raise ParameterError("beta_lt", "a number between 0 and 0.5, both excluded", beta_lt)
    if kind == "paper-mixed" and law != "laplace":
        raise ParameterError("law", "laplace, the only noise of paper-mixed", law)
    # What is private for a smaller ε is so for a larger one, and the draw costs e^ε.
    largest = math.log(math.ldexp(delta, _DRAW_BITS) - 1)
    return _calibrate(kind, law, min(float(epsilon), largest), float(delta), float(beta_lt))


@lru_cache(maxsize=4096)
def _calibrate(kind: Kind, law: Law, epsilon: float, delta: float, beta_lt: float) -> Calibration:
    offset = noise_quantile(law, beta_lt)
    if kind == "exact":
        a, b = _exact_constants(law, epsilon, delta, offset)
    else:
        a, b = published_constants(kind, law, epsilon, delta)
    kappa = _kappa(a, b, offset)
    if kappa is None:
        raise ParameterError(
            "beta_lt",
            f"a value with (e^b - 1)*offset < a = {a:.4g}, so that kappa exists",
            beta_lt,
            f"(e^b - 1)*offset = {math.expm1(b) * offset:.4g}; raise beta_lt or delta, "
            'or use calibration="exact"',
        )
    releasable = kind != "paper-mixed" and _within(law, a, b, epsilon, delta)
    return Calibration(a, b, offset, kappa, kind, law, releasable)


def published_constants(kind: Kind, law: Law, epsilon: float, delta: float) -> tuple[float, float]:
    """(a, b) as published, unchecked: see `calibrate` for what they are worth.

    **Privacy.** Public numbers only.

    References
    ----------
    Textbook: Nissim, Raskhodnikova, Smith (2007), section 2, admissible noise in one dimension.
    Paper: PAK, section IV-C ("Warm"); paper-mixed: section VI-B, second criterion.
    """
    if kind == "textbook":
        log_term = math.log(2 / delta)
        if law == "laplace":
            return epsilon / 2, epsilon / (2 * log_term)
        return epsilon / (5 * math.sqrt(2 * log_term)), epsilon / (4 * (1 + log_term))
    log_term = -math.log(delta)
    b = epsilon / (2 * log_term)
    if kind == "paper-mixed":
        return epsilon / math.sqrt(log_term), min(1.0, b)
    return epsilon / (2 if law == "laplace" else math.sqrt(log_term)), b


def _kappa(a: float, b: float, offset: float) -> float | None:
    """κ = 1/(1 − (e^b − 1)·offset/a) rounded up (PAK, eq. for κ); None where it does not exist."""
    with precision(_PRECISION) as mp:
        rest = 1 - mp.expm1(mp.mpf(b)) * mp.mpf(offset) / mp.mpf(a)
        return None if rest <= 0 else math.nextafter(float(1 / rest), math.inf)


def worst_pair_proved(law: Law, a: float, b: float, epsilon: float) -> bool:
    """Whether Law(0, e^b) against Law(a, 1) is known to be the worst pair of neighbours.

    **Privacy.** Public numbers only. Sufficient conditions (``docs/proofs/smooth.md``): Laplace
    a ≤ ε and b + a·e^{−b} ≤ ε; Gaussian a² ≤ 2ε and (e^{2b} − 1)³ ≤ a²(a² + 2ε − 2b). At b = 0
    the pair is worst without any condition.
    """
    if b == 0:
        return True
    if law == "laplace":
        return a <= epsilon and b + a * math.exp(-b) <= epsilon
    room = a * a * (a * a + 2 * epsilon - 2 * b)
    return a * a <= 2 * epsilon and math.expm1(2 * b) ** 3 <= room


def exact_delta(law: Law, a: float, b: float, epsilon: float) -> float:
    """Least δ for which Law(0, e^b) is (ε, δ)-close to Law(a, 1), rounded up.

    **Privacy.** Public numbers only. Where `worst_pair_proved` holds, a release with constants
    (a, b) is (ε, δ)-private for this δ and for no smaller one that holds for every pair of laws
    with a shift of at most a and scales within e^b.

    Parameters
    ----------
    law : {"laplace", "gaussian"}
        The noise.
    a : float
        Shift in units of the smaller scale, not negative.
    b : float
        Logarithm of the ratio of the scales, not negative.
    epsilon : float
        The ε at which δ is asked for, not negative.

    Examples
    --------
    The Gaussian constants of PAK at ε = 1 and δ = 2^-20 cost 569 times their nominal δ.

    >>> log_term = 20 * math.log(2)
    >>> round(exact_delta("gaussian", log_term**-0.5, 0.5 / log_term, 1.0) * 2**20)
    569
    """
    if law not in _LAWS:
        raise ParameterError("law", "laplace or gaussian", law)
    for name, value in (("a", a), ("b", b), ("epsilon", epsilon)):
        if not 0 <= value < math.inf:
            raise ParameterError(name, "a finite number, not negative", value)
    return math.nextafter(float(_precise_delta(law, a, b, epsilon)), math.inf)


def _precise_delta(law: Law, a: float, b: float, epsilon: float) -> Any:
    """The δ of `exact_delta` as a 60-digit number."""
    delta = _laplace_delta if law == "laplace" else _gaussian_delta
    with precision(_PRECISION) as mp:
        return delta(mp, mp.mpf(a), mp.mpf(b), mp.mpf(epsilon))


def _laplace_delta(ctx: Any, shift: Any, log_ratio: Any, eps: Any) -> Any:
    """P(E) − e^ε·Q(E), E = {p > e^ε·q}, for P = Lap(0, e^b) and Q = Lap(a, 1)."""
    if log_ratio == 0:
        return 1 - ctx.exp((eps - shift) / 2) if shift > eps else ctx.mpf(0)
    grow = ctx.expm1(log_ratio)
    far = -ctx.expm1(-log_ratio) / 2 * ctx.exp(-(eps + shift + log_ratio) / grow)
    if shift <= eps + log_ratio:
        return far - ctx.expm1(-log_ratio) / 2 * ctx.exp(-(eps - shift + log_ratio) / grow)
    # E now reaches past 0, to the point between 0 and a where a − x − x·e^{−b} = ε + b.
    edge = (shift - eps - log_ratio) / (1 + ctx.exp(-log_ratio))
    inside = 1 - ctx.exp(-edge * ctx.exp(-log_ratio)) / 2
    return far + inside - ctx.exp(eps) * ctx.exp(edge - shift) / 2


def _gaussian_delta(ctx: Any, shift: Any, log_ratio: Any, eps: Any) -> Any:
    """P(E) − e^ε·Q(E), E = {p > e^ε·q}, for P = N(0, e^{2b}) and Q = N(a, 1)."""

    def below(x: Any) -> Any:
        return ctx.erfc(-x / ctx.sqrt(2)) / 2

    if log_ratio == 0:
        if shift == 0:
            return ctx.mpf(0)
        return below(shift / 2 - eps / shift) - ctx.exp(eps) * below(-shift / 2 - eps / shift)
    # E is the complement of the interval between the roots of curve·x² − 2·a·x + a² − 2(ε + b).
    curve = -ctx.expm1(-2 * log_ratio)
    reach = ctx.sqrt(shift**2 - curve * (shift**2 - 2 * (eps + log_ratio)))
    width = ctx.exp(log_ratio)
    low, high = (shift - reach) / curve, (shift + reach) / curve
    return (below(low / width) + below(-high / width)) - ctx.exp(eps) * (
        below(low - shift) + below(shift - high)
    )


def _within(law: Law, a: float, b: float, epsilon: float, delta: float) -> bool:
    """Whether (a, b) keeps (ε, δ), with proof, and leaves the draw its share of δ."""
    return worst_pair_proved(law, a, b, epsilon) and bool(
        _precise_delta(law, a, b, epsilon) <= delta * (1 - _DELTA_MARGIN)
    )


def _exact_constants(law: Law, epsilon: float, delta: float, offset: float) -> tuple[float, float]:
    """The pair with least κ/(a·b) among those whose exact δ stays within the promise.

    The search is over a fixed grid of a and runs in float64, the last word is 60-digit: b is cut
    to 30 bits and shrunk until the exact δ is within the promise.
    """
    target = delta * (1 - _DELTA_MARGIN)
    if law == "laplace":
        largest_shift = epsilon
    else:
        largest_shift = _largest_gaussian_shift(epsilon, math.log(target))
    shifts = largest_shift * np.arange(1, _SEARCH_POINTS) / _SEARCH_POINTS
    widest = _largest_log_ratio(law, shifts, epsilon, math.log(target))
    # Where δ leaves room, the best b is the stationary point of b·(a − (e^b − 1)·offset),
    # the reciprocal of a²·κ/(a·b): (1 + b)·e^{1+b} = e·(1 + a/offset).
    stationary = wrightomega(1 + np.log1p(shifts / offset)) - 1
    ratios = np.minimum(widest, stationary)
    merit = ratios * (shifts - np.expm1(ratios) * offset)
    best = int(np.argmax(merit))
    a, b = float(shifts[best]), _cut(float(ratios[best]))
    while not _within(law, a, b, epsilon, delta):
        b = _cut(b * (1 - 2.0**-28))
    return a, b


def _cut(value: float, bits: int = 30) -> float:
    """Round a positive number down to ``bits`` significant bits: equal on every machine."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits)


def _largest_gaussian_shift(epsilon: float, log_delta: float) -> float:
    """Largest a with N(0, 1) and N(a, 1) (ε, δ)-close (Balle & Wang 2018), at most √(2ε)."""
    low, high = 0.0, math.sqrt(2 * epsilon)
    for _ in range(80):
        middle = (low + high) / 2
        fits = _log_gaussian_delta(np.array([middle]), np.array([0.0]), epsilon)[0] <= log_delta
        low, high = (middle, high) if fits else (low, middle)
    return _cut(low)


def _largest_log_ratio(
    law: Law, shifts: NDArray[np.float64], epsilon: float, log_delta: float
) -> NDArray[np.float64]:
    """For each shift the largest b that keeps δ and the conditions of `worst_pair_proved`."""
    low = np.zeros_like(shifts)
    # Laplace: b ≤ ε − a implies b + a·e^{−b} ≤ ε. Gaussian: the condition without its −2b.
    square = shifts**2
    high = np.maximum(epsilon - shifts, 0.0)
    if law == "gaussian":
        high = np.log1p(np.cbrt(square * (square + 2 * epsilon))) / 2
    for _ in range(60):
        middle = (low + high) / 2
        if law == "laplace":
            fits = _log_laplace_delta(shifts, middle, epsilon) <= log_delta
        else:
            fits = _log_gaussian_delta(shifts, middle, epsilon) <= log_delta
            room = square * (square + 2 * epsilon - 2 * middle)
            fits &= np.expm1(2 * middle) ** 3 <= room
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def _log_laplace_delta(
    shifts: NDArray[np.float64], log_ratios: NDArray[np.float64], epsilon: float
) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # an infinite ratio costs nothing but its prefactor
        grow = np.expm1(log_ratios)
    near = -(epsilon - shifts + log_ratios) / grow
    far = -(epsilon + shifts + log_ratios) / grow
    return np.asarray(np.log(-np.expm1(-log_ratios) / 2) + np.logaddexp(near, far))


def _log_gaussian_delta(
    shifts: NDArray[np.float64], log_ratios: NDArray[np.float64], epsilon: float
) -> NDArray[np.float64]:
    """Logarithm of δ; −inf where float64 cannot tell δ from 0: the 60-digit check decides."""
    curve = -np.expm1(-2 * log_ratios)
    reach = np.sqrt(shifts**2 - curve * (shifts**2 - 2 * (epsilon + log_ratios)))
    width = np.exp(log_ratios)
    # The root near 0 in the form without cancellation; the far one is at infinity for b = 0.
    low = (shifts**2 - 2 * (epsilon + log_ratios)) / (shifts + reach)
    with np.errstate(divide="ignore"):
        high = (shifts + reach) / curve
        wide = np.logaddexp(log_ndtr(low / width), log_ndtr(-high / width))
        narrow = epsilon + np.logaddexp(log_ndtr(low - shifts), log_ndtr(shifts - high))
        return np.asarray(wide + np.log1p(-np.exp(np.minimum(narrow - wide, 0.0))))
