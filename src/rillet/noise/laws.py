"""Noise laws: symmetric continuous laws of scale 1, each given by its quantile function.

**Privacy.** No data and no randomness here: :mod:`rillet.noise` draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import mpmath
import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy.special import ndtri

from rillet.precision import precision

FloatArray: TypeAlias = NDArray[np.float64]


class Law(ABC):
    """A symmetric continuous noise law with scale 1, given by the quantile function of ``|Z|``.

    ``quantile`` maps the upper tail probability ``u = P(|Z| > x)`` to ``x`` in multiple precision;
    nothing else is needed.  A law may add ``float_quantile`` with proved or measured error bounds,
    which lets most draws be made in floats.
    """

    #: Name in JSON.
    name: str
    #: Upper bound on ``|d quantile / d ln u|`` over (0, 1); infinite when unknown.
    log_slope: float = float("inf")
    #: Bound on the relative error of ``float_quantile``.
    float_error: float = float("inf")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def quantile(self, u: mpmath.mpf) -> mpmath.mpf:
        """``x`` with ``P(|Z| > x) = u``, ``0 < u <= 1``, within ``(1 + x)·2^(20 − precision)``.

        Computes in the mpmath context of its argument, ``u.context``, whose precision is in force
        for this thread alone; functions of mpmath itself have a precision that any thread may set.
        """

    @abstractmethod
    def variance(self, scale: float) -> float:
        """Variance of ``round(scale · Z)``, the rounded law."""

    def float_quantile(self, v: FloatArray) -> FloatArray:
        """``quantile`` in floats; may overwrite its argument."""
        raise NotImplementedError

    def upper_quantile(self, beta: float) -> float:
        """``x`` with ``P(Z > x) = beta``, for ``0 < beta < 1``, correctly to about one ulp."""
        if beta > 0.5:
            return -self.upper_quantile(1.0 - beta)
        with precision(160) as mp:
            return float(self.quantile(2 * mp.mpf(beta)))


class LaplaceLaw(Law):
    """The Laplace law of scale 1: density ``exp(-|z|)/2``."""

    name = "laplace"
    log_slope = 1.0
    float_error = 2.0**-50

    def quantile(self, u: mpmath.mpf) -> mpmath.mpf:
        """``-ln u``."""
        return -u.context.log(u)

    def float_quantile(self, v: FloatArray) -> FloatArray:
        """``-ln v``, taken to be within 2^-50 of its value (a test measures it)."""
        np.log(v, out=v)
        return np.negative(v, out=v)

    def variance(self, scale: float) -> float:
        """``cosh(h)/(2 sinh²(h))`` with ``h = 1/(2 scale)``: about ``2 scale² + 1/12``."""
        if scale < 2.0**-11:
            return 0.0  # below e^-1024, which is less than any float
        with precision(160) as mp:
            half = 1 / (2 * mp.mpf(scale))
            return float(mp.cosh(half) / (2 * mp.sinh(half) ** 2))


class GaussianLaw(Law):
    """The Gaussian law of standard deviation 1."""

    name = "gaussian"
    log_slope = 1.2533141373155003  # sqrt(pi/2): Mills' ratio is largest at 0
    float_error = 2.0**-48

    def quantile(self, u: mpmath.mpf) -> mpmath.mpf:
        """Solve ``erfc(x/√2) = u`` by Newton's method on the logarithm (concave: it converges)."""
        mp = u.context
        if u >= 1:
            return mp.mpf(0)
        x = -mp.mpf(float(ndtri(max(float(u / 2), 1e-300))))
        root_half = mp.sqrt(mp.mpf(1) / 2)
        log_u = mp.log(u)
        goal = mp.mpf(2) ** (-(mp.prec // 2) - 4)
        for _ in range(64):
            tail = mp.erfc(x * root_half)
            slope = mp.sqrt(2 / mp.pi) * mp.exp(-x * x / 2) / tail
            step = (mp.log(tail) - log_u) / slope
            x += step
            if abs(step) < goal:  # the error after a step is of the order of its square
                break
        return x

    def float_quantile(self, v: FloatArray) -> FloatArray:
        """``-ndtri(v/2)``, taken to be within 2^-48 of its value (a test measures it)."""
        np.multiply(v, 0.5, out=v)
        ndtri(v, out=v)
        return np.negative(v, out=v)

    def variance(self, scale: float) -> float:
        """``scale² + 1/12`` up to terms below 2^-50 for scale ≥ 2; summed exactly below."""
        if scale >= 2:
            return scale * scale + 1 / 12
        if scale < 2.0**-7:
            return 0.0  # below e^-2048, which is less than any float
        with precision(160) as mp:
            width = mp.sqrt(2) * mp.mpf(scale)
            # Var = Σ (2k-1) P(|round Z| ≥ k), and the sum is negligible beyond 16 deviations.
            terms = (
                (2 * k - 1) * mp.erfc((k - mp.mpf(1) / 2) / width)
                for k in range(1, 3 + int(16 * scale))
            )
            return float(mp.fsum(terms))


LawName: TypeAlias = Literal["laplace", "gaussian"]
LAPLACE: Final = LaplaceLaw()
GAUSSIAN: Final = GaussianLaw()
LAWS: Final[dict[str, Law]] = {LAPLACE.name: LAPLACE, GAUSSIAN.name: GAUSSIAN}


# --- The Gaussian quantile in pieces -------------------------------------------------------------

# A table of polynomials for the compiled loop.  Between 2^-20 and 1 every octave of ``v`` is cut
# into 64 pieces.  A piece ends on its right at ``c``, and there ``Q(c − h) = a_0 + a_1 h + … +
# a_7 h^7 + …`` with no coefficient below 0, so that nothing cancels when it is summed up: the
# relative error is below 2^-49 (docs/proofs/noise.md).

#: Octaves below 1 that the table covers, and pieces of each as a power of two.
OCTAVES: Final = 20
PIECE_BITS: Final = 6
TERMS: Final = 8
#: Bits of a float that tell how far it lies inside its piece.
INSIDE_BITS: Final = 52 - PIECE_BITS
#: The first bits of the float 2^-20, where the table begins.
FIRST: Final = (1023 - OCTAVES) << PIECE_BITS


@lru_cache(maxsize=1)
def gaussian_table() -> FloatArray:
    """Rows are pieces in the order of ``v``, after them ``v = 1``; columns are powers.

    The variable is the distance to the right end in units of the last bit of the piece, so the
    rows are multiplied by powers of two.
    """
    pieces = OCTAVES << PIECE_BITS
    octave, piece = np.divmod(np.arange(pieces), 1 << PIECE_BITS)
    exponent = octave - OCTAVES
    right = np.ldexp(1 + (piece + 1) / (1 << PIECE_BITS), exponent)
    with precision(100) as mp:
        value = [GAUSSIAN.quantile(mp.mpf(end)) for end in right.tolist()]
        slope = [mp.sqrt(mp.pi / 2) * mp.exp(x * x / 2) for x in value]
    at_end, power_of_slope = np.array(value, float), np.array(slope, float)
    table = np.zeros((pieces + 1, TERMS))
    table[:-1, 0], table[:-1, 1] = at_end, power_of_slope
    derivative, factorial = Polynomial([1]), 1
    for power in range(2, TERMS):
        # The k-th derivative is Q′^k·P_k(Q), and P_{k+1} = k x P_k + P_k′, because Q″ = Q Q′².
        derivative = (power - 1) * Polynomial([0, 1]) * derivative + derivative.deriv()
        power_of_slope = power_of_slope * table[:-1, 1]
        factorial *= power
        table[:-1, power] = power_of_slope * derivative(at_end) / factorial
    last_bit = exponent[:, None] - 52
    table[:-1] = np.ldexp(table[:-1], last_bit * np.arange(TERMS))
    return table
