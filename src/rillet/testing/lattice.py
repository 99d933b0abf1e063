"""Exact probabilities of integer noise, computed apart from the code that draws it.

The references here use the *tail* functions ``P(|Z| > x)`` of the laws; :mod:`rillet.noise` uses
their inverses.  A test that compares the two cannot repeat one mistake on both sides.

**Privacy.** For tests and simulations only: touches no private data.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, TypeAlias

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.noise import Law
from rillet.precision import precision

__all__ = [
    "TAILS",
    "Tail",
    "cell_edges",
    "cell_probabilities",
    "count_cells",
    "laplace_sum_tail",
    "lattice_probability",
]

#: Precision of all references.
_BITS: Final = 200

Tail: TypeAlias = Callable[[mpmath.mpf], mpmath.mpf]


def _laplace_tail(x: mpmath.mpf) -> mpmath.mpf:
    return x.context.exp(-x)


def _gaussian_tail(x: mpmath.mpf) -> mpmath.mpf:
    return x.context.erfc(x / x.context.sqrt(2))


#: ``P(|Z| > x)`` of the laws of scale 1, for ``x ≥ 0``.
TAILS: Final[dict[str, Tail]] = {"laplace": _laplace_tail, "gaussian": _gaussian_tail}


def lattice_probability(tail: Tail, scale: float, value: int) -> mpmath.mpf:
    """``P(round(scale·Z) = value)``, to 200 bits, also far out."""
    k = abs(int(value))
    with precision(_BITS) as mp:
        half = mp.mpf(1) / 2
        beyond = tail((k + half) / mp.mpf(scale))
        if k == 0:
            return 1 - beyond
        return (tail((k - half) / mp.mpf(scale)) - beyond) / 2


def cell_edges(law: Law, scale: float, cells: int, *, smallest: float = 1e-4) -> NDArray[np.int64]:
    """Edges that cut the integers into about ``cells`` cells of similar probability.

    The cells are ``(−∞, e₁], (e₁, e₂], …, (e_n, ∞)``.  Two outermost cells on either side are
    thinner, down to probability ``smallest``, so that a wrong tail is seen.
    """
    inner = np.arange(1, cells) / cells
    upper = [float(u) for u in (*np.minimum(inner, 1 - inner), smallest, smallest * 10)]
    magnitudes = {round(scale * law.upper_quantile(u)) for u in upper}
    return np.array(sorted({-m - 1 for m in magnitudes} | magnitudes), np.int64)


def cell_probabilities(tail: Tail, scale: float, edges: ArrayLike) -> NDArray[np.float64]:
    """Exact probabilities of the cells ``(−∞, e₁], (e₁, e₂], …, (e_n, ∞)``, each to a float."""

    def above(edge: int) -> mpmath.mpf:  # P(round(scale Z) > edge)
        x = (2 * edge + 1) / (2 * mp.mpf(scale))
        return tail(x) / 2 if x >= 0 else 1 - tail(-x) / 2

    with precision(_BITS) as mp:
        survival = [mp.mpf(1), *(above(int(e)) for e in np.asarray(edges)), mp.mpf(0)]
        return np.array([float(high - low) for high, low in pairwise(survival)])


def count_cells(values: ArrayLike, edges: ArrayLike) -> NDArray[np.int64]:
    """How many values fall into each cell of :func:`cell_probabilities`."""
    cells = np.searchsorted(np.asarray(edges), np.asarray(values), side="left")
    return np.bincount(cells, minlength=np.size(edges) + 1).astype(np.int64)


def laplace_sum_tail(count: int, x: float) -> float:
    """``P(|Z₁ + … + Z_count| > x)`` for independent Laplace variables of scale 1, in closed form.

    The density of the sum at ``x ≥ 0`` is
    ``e^{−x}/((n−1)!·2ⁿ) Σ_k (n−1+k)!/(k!·(n−1−k)!)·x^{n−1−k}/2^k`` (a difference of two gamma
    variables); integrated term by term it gives incomplete gamma functions.
    """
    with precision(_BITS) as mp:
        n, point = count, mp.mpf(x)
        total = mp.mpf(0)
        for k in range(n):
            weight = mp.factorial(n - 1 + k) / (mp.factorial(k) * mp.mpf(2) ** k)
            # Γ(m, x)/(m−1)! for whole m is e^{-x} Σ_{j<m} x^j/j!
            m = n - k
            inner = mp.fsum(point**j / mp.factorial(j) for j in range(m))
            total += weight * inner
        return float(2 * mp.exp(-point) * total / (mp.factorial(n - 1) * mp.mpf(2) ** n))
