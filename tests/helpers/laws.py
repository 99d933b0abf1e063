"""Exact tails of sums of noise, by arguments of their own.

A sum of j Laplace variables is a difference of two Gamma(j) waiting times.  A race of two Poisson
processes gives its tail: ``X > x`` when the first process has fewer than j arrivals by time x plus
the j-th arrival of the second, and the number M of its arrivals before that is negative binomial:
``P(|X| > x) = 2 Σ_{i<j} e^{−x} x^i/i! · P(M ≤ j − 1 − i)``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath

PRECISION = 600


@lru_cache(maxsize=256)
def _arrivals(count: int) -> tuple[Any, ...]:
    """``P(M ≤ m)`` for m = 0 … count − 1."""
    with mpmath.workprec(PRECISION):
        total, cumulative = mpmath.mpf(0), []
        for m in range(count):
            total += mpmath.binomial(count - 1 + m, m) * mpmath.mpf(2) ** -(count + m)
            cumulative.append(total)
        return tuple(cumulative)


def _same_scale(count: int, x: Any) -> Any:
    at_most = _arrivals(count)
    term, total = mpmath.exp(-x), mpmath.mpf(0)
    for i in range(count):
        total += term * at_most[count - 1 - i]
        term *= x / (i + 1)
    return 2 * total


def laplace_tail(count: int, x: float, other: float | None = None) -> float:
    """``P(|Z₁ + … + Z_count + other·Z₀| > x)`` for Laplace variables of scale 1.

    With another scale c the characteristic function ``1/((1+t²)^k (1+c²t²))`` is split into partial
    fractions: a signed mixture of the laws with j ≤ k equal scales and of the other one alone.
    """
    with mpmath.workprec(PRECISION):
        point = mpmath.mpf(x)
        if other is None:
            return float(_same_scale(count, point))
        if other == 1:
            return float(_same_scale(count + 1, point))
        c = mpmath.mpf(other)
        if count == 0:
            return float(mpmath.exp(-point / c))
        d = 1 / c**2 - 1
        total = (-1 / d) ** count * mpmath.exp(-point / c)
        for j in range(1, count + 1):
            total += (-1) ** (count - j) / (c**2 * d ** (count - j + 1)) * _same_scale(j, point)
        return float(total)


def laplace_variance(count: int, other: float | None = None) -> float:
    """Variance of the same sum."""
    return 2.0 * count + (0.0 if other is None else 2.0 * other**2)


def gaussian_with_laplace_tail(std: float, x: float) -> float:
    """``P(|std·N + Z| > x)`` for a standard normal N and a Laplace variable Z of scale 1."""
    with mpmath.workprec(PRECISION):
        s, point = mpmath.mpf(std), mpmath.mpf(x)

        def upper(y: Any) -> Any:
            return mpmath.erfc(y / mpmath.sqrt(2)) / 2

        lift = mpmath.exp(s**2 / 2)
        near = mpmath.exp(-point) * upper(s - point / s)
        far = mpmath.exp(point) * upper(s + point / s)
        return float(2 * upper(point / s) + lift * (near - far))
