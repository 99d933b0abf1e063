"""Smooth sensitivity of an upper quantile, at a cost that does not depend on the values.

**Rank convention.** Of m sorted values x(1) ≤ … ≤ x(m), the q-quantile (q an upper tail, λp in the
mechanism) is the smallest element with at least a (1 − q) fraction of the values at or below it:
x(P) with P = m − ⌊q·m⌋, and at least x(1). With this convention x(P) lies below the true p-quantile
exactly when at most ⌊λpm⌋ of the m values reach it, the event whose probability PAK call g.

**Evaluation.** With k other values changed, the quantile can reach any x(P+i), and from there a
further change can move it to x(P−j), i + j = k + 1 (x(0) and below is A, x(m+1) and above is B):

    A_k = max_{i+j = k+1} x(P+i) − x(P−j),      S = max_{k<K} w_k·A_k  ∨  w_K·(B − A).

The weights stand for e^{−bk}. All that smoothness needs of them is w_k ≤ e^b·w_{k+1}, so they are
made to satisfy it in float64 with room for the rounding of the products: S as computed, not an
idealised S, is b-smooth (``docs/proofs/smooth.md``).

References
----------
Nissim, Raskhodnikova, Smith (2007), section 3.1 (median). PAK, section IV-C.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.precision import precision

__all__ = [
    "largest_gaps",
    "quantile_rank",
    "sensitivity_terms",
    "smooth_sensitivity",
    "smooth_weights",
]

# Terms beyond k = 20/b weigh less than e^{−20}; the floor stands in for them.
_REACH: Final = 20.0
# Bounds the work at K²/2 subtractions, half a second; met only for b < 0.0007.
_MOST_TERMS: Final = 1 << 15
# Within these no product of a weight and a difference can overflow, or underflow above the floor.
_NARROWEST, _WIDEST = 2.0**-900, 2.0**900
_BLOCK: Final = 1 << 18
# Six half-ulps: two for the rounding of products, one for that of the weight itself, and some.
_WEIGHT_MARGIN: Final = 2.0**-50


def quantile_rank(count: int, tail: Fraction) -> int:
    """Rank P, from 1 to ``count``, of the quantile with upper tail ``tail``.

    **Privacy.** Public numbers only.

    Parameters
    ----------
    count : int
        Number of values m, at least 1.
    tail : fractions.Fraction
        Upper tail q, 0 ≤ q ≤ 1: λp in the mechanism. A fraction, because in floats m − ⌊q·m⌋
        is off by one whenever q·m should be whole and falls short; `Fraction(repr(x))` is the
        decimal that was typed.

    Examples
    --------
    >>> quantile_rank(1000, Fraction("0.0035") * Fraction("0.8"))
    998
    """
    if count < 1:
        raise ParameterError("count", "a positive integer", count)
    if not 0 <= tail <= 1:
        raise ParameterError("tail", "a fraction from 0 to 1", float(tail))
    return max(1, count - math.floor(tail * count))


def sensitivity_terms(count: int, b: float) -> int:
    """Number K of terms of S: ⌈20/b⌉, but no more than ``count`` and than 2^15.

    **Privacy.** Public numbers only. Any K ≥ 1 keeps S b-smooth. From k = m on every term is
    (B − A)·e^{−bk}, so the floor at K = m is exact; at K = ⌈20/b⌉ it adds at most 2·10⁻⁹·(B − A).
    """
    if count < 1:
        raise ParameterError("count", "a positive integer", count)
    if not 0 < b <= _REACH:
        raise ParameterError("b", f"a positive number, at most {_REACH:g}", b)
    return max(1, min(math.ceil(min(_REACH / b, _MOST_TERMS)), count, _MOST_TERMS))


@lru_cache(maxsize=64)
def smooth_weights(b: float, terms: int) -> NDArray[np.float64]:
    """Weights w_0 … w_K with w_0 > 1 and w_k ≤ e^b·w_{k+1}, strictly enough for float products.

    **Privacy.** Public numbers only. Deterministic: multiplications in order, no library exp.
    """
    with precision(120) as mp:
        ratio = float(mp.exp(-mp.mpf(b)) * (1 + mp.mpf(_WEIGHT_MARGIN)))
    factors = np.full(terms + 1, math.nextafter(ratio, math.inf))
    factors[0] = 1.0 + _WEIGHT_MARGIN
    weights = np.asarray(np.multiply.accumulate(factors))
    weights.setflags(write=False)  # cached, so shared
    return weights


def smooth_sensitivity(
    raw_sorted: NDArray[np.float64], rank: int, lower: float, upper: float, b: float
) -> float:
    """Return a b-smooth upper bound on the local sensitivity of the value at ``rank``.

    **Privacy.** Touches raw data; the result is NOT private and must not leave the threshold.
    For neighbours (one value replaced) results S and S′ satisfy S ≤ e^b·S′ and both bound the
    change of the quantile, as the floats they are. The work, 2K + K²/2 operations, depends on
    (m, b) only. S is at least w_K·(B − A), never 0.

    Parameters
    ----------
    raw_sorted : numpy.ndarray
        The m values in ascending order, all within [lower, upper] (clipped before).
    rank : int
        Rank P of the quantile, 1 ≤ P ≤ m, from `quantile_rank`.
    lower, upper : float
        Public bounds A < B.
    b : float
        Smoothing parameter, from `rillet.threshold.calibration.calibrate`.

    Examples
    --------
    >>> smooth_sensitivity(np.array([1.0, 2.0, 3.0, 5.0]), 3, 0.0, 100.0, 5.0)
    2.0000000000000018
    """
    count = raw_sorted.size
    if not 1 <= rank <= count:
        raise ParameterError("rank", f"an integer from 1 to {count}", rank)
    if not _NARROWEST <= upper - lower <= _WIDEST:
        raise ParameterError(
            "upper", f"{_NARROWEST:.0e} to {_WIDEST:.0e} above lower = {lower!r}", upper
        )
    terms = sensitivity_terms(count, b)
    weights = smooth_weights(b, terms)
    exact_reach = largest_gaps(raw_sorted, rank, lower, upper, terms)
    floor = float(weights[terms] * (upper - lower))
    return max(float(np.max(weights[:terms] * exact_reach)), floor)


def largest_gaps(
    raw_sorted: NDArray[np.float64], rank: int, lower: float, upper: float, terms: int
) -> NDArray[np.float64]:
    """A_0 … A_{K−1}: for each k the largest local sensitivity within k changes.

    **Privacy.** Touches raw data; the result is NOT private.

    A_k is the largest of above[i] − below[k+1−i], 0 ≤ i ≤ k+1: anti-diagonals of a table of
    differences, taken in blocks of rows so that NumPy does the work. Padding `below` by +inf on
    the far side turns the ragged rows into full ones.

    Parameters
    ----------
    raw_sorted, rank, lower, upper
        As in `smooth_sensitivity`.
    terms : int
        K, at least 1.
    """
    raw_above, raw_below = _neighbourhood(raw_sorted, rank, lower, upper, terms)
    result = np.empty(terms)
    rows = max(1, _BLOCK // (terms + 1))
    for start in range(0, terms, rows):
        stop = min(start + rows, terms)
        # Position i of row k holds below[k+1−i]; where i > k+1 there is no such entry.
        padded = np.concatenate((raw_below[stop::-1], np.full(stop - start - 1, np.inf)))
        rows_up = np.lib.stride_tricks.sliding_window_view(padded, stop + 1)[::-1]
        np.max(raw_above[: stop + 1] - rows_up, axis=1, out=result[start:stop])
    return result


def _neighbourhood(
    raw_sorted: NDArray[np.float64], rank: int, lower: float, upper: float, terms: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x(P), x(P+1), … x(P+K) and x(P), x(P−1), … x(P−K), padded by B above and A below."""
    raw_above = np.full(terms + 1, upper)
    raw_below = np.full(terms + 1, lower)
    present = min(terms + 1, raw_sorted.size - rank + 1)
    raw_above[:present] = raw_sorted[rank - 1 : rank - 1 + present]
    present = min(terms + 1, rank)
    raw_below[:present] = raw_sorted[rank - present : rank][::-1]
    return raw_above, raw_below
