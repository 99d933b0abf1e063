"""What an event costs an observation, how costs compose, and the noise that a cost allows.

Costs compose by proved closed forms (docs/proofs/charges.md), in exact rationals where the form is
rational and otherwise in 200-bit arithmetic rounded outward: a charge may be overstated by a
relative 2^-150, and is never understated.

**Privacy.** Everything here is a function of public numbers.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, TypeAlias

import mpmath

from rillet.errors import ParameterError
from rillet.precision import precision
from rillet.privacy.guarantee import Guarantee, check_delta, check_epsilon, plain_number

Number: TypeAlias = int | float | Fraction

_PRECISION: Final = 200
_OUTWARD: Final = 2.0**-150
_HUGE: Final = Fraction(2**200)


# --- Rounding ------------------------------------------------------------------------------------


def round_up(value: Fraction) -> float:
    """Smallest float that is at least ``value``; infinite beyond the largest."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -sys.float_info.max
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """Largest float that is at most ``value``."""
    return -round_up(-value)


def root_up(value: Fraction) -> float:
    """A float that is at least the square root of ``value``, and next to it."""
    with precision(_PRECISION) as mp:
        nearest = float(mp.sqrt(mp.mpf(value.numerator) / value.denominator))
    while Fraction(nearest) ** 2 < value:
        nearest = math.nextafter(nearest, math.inf)
    return nearest


def root_down(value: Fraction) -> float:
    """A float that is at most the square root of ``value``, and next to it."""
    root = root_up(value)
    return root if Fraction(root) ** 2 == value else math.nextafter(root, 0.0)


def _mpf(mp: Any, value: Number) -> mpmath.mpf:
    exact = Fraction(value)
    return mp.mpf(exact.numerator) / exact.denominator


def float_up(value: mpmath.mpf) -> float:
    """Smallest float that is at least ``value``."""
    nearest = float(value)
    return nearest if value <= nearest else math.nextafter(nearest, math.inf)


# --- Costs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one event costs an observation: three numbers that compose exactly.

    ``epsilon`` and ``delta``: the event is (ε, δ)-private; pure when ``delta`` is 0.
    ``mu_squared``: besides, a Gaussian mechanism with (sensitivity / standard deviation)² at most
    this.  Use :meth:`pure`, :meth:`approximate` or :meth:`gaussian`.
    """

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    mu_squared: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "mu_squared"):
            value = getattr(self, name)
            if not 0 <= plain_number(value) < math.inf or (name == "delta" and value > 1):
                raise ParameterError(name, "a finite cost of at least 0", value)
            object.__setattr__(self, name, Fraction(value))

    @classmethod
    def pure(cls, epsilon: Number) -> Cost:
        """An ε-private event (Laplace, exponential mechanism)."""
        check_epsilon(epsilon)
        return cls(epsilon=Fraction(epsilon))

    @classmethod
    def approximate(cls, epsilon: Number, delta: Number) -> Cost:
        """An (ε, δ)-private event of which nothing more is known (smooth sensitivity)."""
        check_epsilon(epsilon)
        check_delta(delta)
        return cls(epsilon=Fraction(epsilon), delta=Fraction(delta))

    @classmethod
    def gaussian(cls, mu_squared: Number) -> Cost:
        """A Gaussian mechanism with squared sensitivity-to-noise ratio ``mu_squared``."""
        check_epsilon(mu_squared, "mu_squared")
        return cls(mu_squared=Fraction(mu_squared))

    def __add__(self, other: Cost) -> Cost:
        """Adaptive composition on the same observation."""
        return Cost(
            epsilon=self.epsilon + other.epsilon,
            delta=self.delta + other.delta - self.delta * other.delta,
            mu_squared=self.mu_squared + other.mu_squared,
        )

    def __str__(self) -> str:
        parts = []
        if self.epsilon:
            parts.append(f"ε = {float(self.epsilon):.6g}")
        if self.delta:
            parts.append(f"δ = {float(self.delta):.3g}")
        if self.mu_squared:
            parts.append(f"Gaussian μ = {math.sqrt(self.mu_squared):.6g}")
        return ", ".join(parts) or "nothing"

    def delta_at(self, epsilon: Number) -> mpmath.mpf:
        """Smallest δ for which this cost is (ε, δ)-private, rounded up."""
        return delta_at(epsilon, self)

    def within(self, guarantee: Guarantee) -> bool:
        """Whether this cost keeps the promise; exact for pure and approximate costs."""
        if not self.mu_squared and self.epsilon <= Fraction(guarantee.epsilon):
            return self.delta <= Fraction(guarantee.delta)
        # A float and an mpf compare exactly, whatever the precision in force.
        return bool(self.delta_at(guarantee.epsilon) <= guarantee.delta)


def _gaussian_delta(epsilon: mpmath.mpf, mu: mpmath.mpf, slack: mpmath.mpf) -> mpmath.mpf:
    """Hockey-stick divergence of N(μ, 1) from N(0, 1) at e^ε (Balle & Wang 2018, Theorem 8).

    Rounded up: the difference can cancel; ``slack`` bounds its error, relative to its first term.
    """
    mp = mu.context
    if mu == 0:
        return max(mp.mpf(0), -mp.expm1(epsilon))
    root_half = mp.sqrt(mp.mpf(1) / 2)

    def lower_tail(x: mpmath.mpf) -> mpmath.mpf:
        return mp.erfc(-x * root_half) / 2

    above = lower_tail(mu / 2 - epsilon / mu)
    below = mp.exp(epsilon) * lower_tail(-mu / 2 - epsilon / mu)
    return max(mp.mpf(0), above - below) + above * slack


@lru_cache(maxsize=1024)
def delta_at(epsilon: Number, cost: Cost) -> mpmath.mpf:
    """Smallest δ with which ``cost`` is (ε, δ)-private, rounded up.

    A pure ε₀ is dominated by randomised response with odds e^ε₀ (Kairouz, Oh, Viswanath 2015);
    composed with a Gaussian of ratio μ that gives
    ``δ = p·δ_G(ε − ε₀; μ) + (1 − p)·δ_G(ε + ε₀; μ)`` with ``p = e^ε₀/(1 + e^ε₀)``.
    """
    # Absurd numbers are moved to where the tails can be computed; δ only grows by that.
    target_epsilon, mu_squared = min(Fraction(epsilon), _HUGE), cost.mu_squared
    if mu_squared:
        mu_squared = max(mu_squared, 1 / _HUGE)
        if max(mu_squared, cost.epsilon) > _HUGE:
            with precision(_PRECISION) as mp:
                return mp.mpf(1)
    # Bits lost to cancellation, to tails far out and to a large exponent (docs/proofs/charges.md).
    far = abs(target_epsilon) + cost.epsilon
    cancelled = int((far + 1) / mu_squared).bit_length() if mu_squared else 0
    spread = mu_squared + 2 * far * far / mu_squared if mu_squared else far
    lost = cancelled + int(spread).bit_length() + int(far).bit_length()
    with precision(_PRECISION + lost + 8) as mp:
        target, pure = _mpf(mp, target_epsilon), _mpf(mp, cost.epsilon)
        mu = mp.sqrt(_mpf(mp, mu_squared))
        slack = mp.ldexp(mp.mpf(1), 10 - _PRECISION - cancelled)
        likely = 1 / (1 + mp.exp(-pure))
        inner = likely * _gaussian_delta(target - pure, mu, slack)
        inner += (1 - likely) * _gaussian_delta(target + pure, mu, slack)
        missing = _mpf(mp, cost.delta)
        return (missing + (1 - missing) * inner) * (1 + mp.mpf(_OUTWARD))


# --- Calibration ---------------------------------------------------------------------------------


def laplace_scale(sensitivity: Number, epsilon: Number) -> float:
    """Scale of Laplace noise that makes an L1 sensitivity ε-private, rounded up."""
    check_epsilon(epsilon)
    return round_up(Fraction(sensitivity) / Fraction(epsilon))


@lru_cache(maxsize=256)
def gaussian_mu(guarantee: Guarantee, already: Cost = Cost()) -> float:  # noqa: B008 - frozen
    """Largest ratio μ that keeps the promise beside what is ``already`` spent, rounded down.

    With nothing spent before, this is the analytic Gaussian calibration of Balle & Wang (2018).
    """
    if guarantee.delta <= float(already.delta):
        raise ParameterError(
            "delta",
            "a positive delta that is not spent already, since Gaussian noise is never pure",
            guarantee.delta,
            hint="give delta a positive value, or use Laplace noise",
        )

    def keeps(mu: float) -> bool:
        return (already + Cost.gaussian(Fraction(mu) ** 2)).within(guarantee)

    high = 1.0
    while keeps(high):
        high *= 2
    low = high / 2
    while not keeps(low):
        low /= 2
        if low < 1e-12:
            raise ParameterError("epsilon", "a budget with room for Gaussian noise", guarantee)
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def gaussian_std(sensitivity_squared: Number, mu: float) -> float:
    """Standard deviation that makes a squared L2 sensitivity cost less than μ, rounded up.

    One float more than would be enough: then the cost is below ``mu`` by more than the
    rounding of a charge, and a mechanism calibrated to exactly its promise is never refused.
    """
    return math.nextafter(root_up(Fraction(sensitivity_squared) / Fraction(mu) ** 2), math.inf)
