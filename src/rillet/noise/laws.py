"""Noise laws: symmetric continuous laws of scale 1, each given by its quantile function.

**Privacy.** No data and no randomness here: :mod:`rillet.noise` draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, TypeAlias

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

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
        """``x`` with ``P(|Z| > x) = u``, ``0 < u <= 1``, within ``(1 + x)·2^(20 − precision)``."""

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
        with mpmath.workprec(160):
            return float(self.quantile(2 * mpmath.mpf(beta)))


class LaplaceLaw(Law):
    """The Laplace law of scale 1: density ``exp(-|z|)/2``."""

    name = "laplace"
    log_slope = 1.0
    float_error = 2.0**-50

    def quantile(self, u: mpmath.mpf) -> mpmath.mpf:
        """``-ln u``."""
        return -mpmath.log(u)

    def float_quantile(self, v: FloatArray) -> FloatArray:
        """``-ln v``, taken to be within 2^-50 of its value (a test measures it)."""
        np.log(v, out=v)
        return np.negative(v, out=v)

    def variance(self, scale: float) -> float:
        """``cosh(h)/(2 sinh²(h))`` with ``h = 1/(2 scale)``: about ``2 scale² + 1/12``."""
        if scale < 2.0**-11:
            return 0.0  # below e^-1024, which is less than any float
        with mpmath.workprec(160):
            half = 1 / (2 * mpmath.mpf(scale))
            return float(mpmath.cosh(half) / (2 * mpmath.sinh(half) ** 2))


class GaussianLaw(Law):
    """The Gaussian law of standard deviation 1."""

    name = "gaussian"
    log_slope = 1.2533141373155003  # sqrt(pi/2): Mills' ratio is largest at 0
    float_error = 2.0**-48

    def quantile(self, u: mpmath.mpf) -> mpmath.mpf:
        """Solve ``erfc(x/√2) = u`` by Newton's method on the logarithm (concave: it converges)."""
        if u >= 1:
            return mpmath.mpf(0)
        x = -mpmath.mpf(float(ndtri(max(float(u / 2), 1e-300))))
        root_half = mpmath.sqrt(mpmath.mpf(1) / 2)
        log_u = mpmath.log(u)
        goal = mpmath.mpf(2) ** (-(mpmath.mp.prec // 2) - 4)
        for _ in range(64):
            tail = mpmath.erfc(x * root_half)
            slope = mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-x * x / 2) / tail
            step = (mpmath.log(tail) - log_u) / slope
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
        with mpmath.workprec(160):
            width = mpmath.sqrt(2) * mpmath.mpf(scale)
            # Var = Σ (2k-1) P(|round Z| ≥ k), and the sum is negligible beyond 16 deviations.
            terms = (
                (2 * k - 1) * mpmath.erfc((k - mpmath.mpf(1) / 2) / width)
                for k in range(1, 3 + int(16 * scale))
            )
            return float(mpmath.fsum(terms))


LAPLACE: Final = LaplaceLaw()
GAUSSIAN: Final = GaussianLaw()
LAWS: Final[dict[str, Law]] = {LAPLACE.name: LAPLACE, GAUSSIAN.name: GAUSSIAN}
