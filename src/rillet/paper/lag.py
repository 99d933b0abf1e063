"""How many observations to learn the threshold from: the two criteria of PAK, section VI-B.

Both are answered for any parameters. With PAK's own (β = 0.02, δ = 2⁻²⁰, ε = 1, p = 0.005) the
second asks for m > 82,422.2; they say 80,000. The first holds from m = 3,231 on; they say 20,000,
which fits λ = 0.8 (20,766) and not the λ = 0.5 of their text.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np
from scipy.special import bdtr

from rillet.errors import ParameterError
from rillet.paper.bounds import decimal_fraction
from rillet.threshold.calibration import Kind, Law, calibrate

__all__ = ["criterion_quantile", "criterion_sensitivity", "suggest_lag"]

_MOST_BLOCKS: Final = 10_000_000


def criterion_quantile(
    quantile: float = 0.005, beta: float = 0.02, rank_factor: float = 0.5
) -> int:
    """Smallest M with g(λ, p, m) < β for every m ≥ M: PAK's first criterion.

    g falls with m as long as ⌊λpm⌋ stays the same and jumps up when it grows, so "the smallest m
    with g < β" would not do: larger ones can fail again. Exact: beyond
    m = 2·ln(1/β)/(p(1−λ)²) Chernoff's bound rules failures out, below it every jump is looked at.

    Parameters
    ----------
    quantile : float
        p, the largest tail for which the stream is taken to be light-tailed.
    beta : float
        Probability with which the quantile may be underestimated.
    rank_factor : float
        λ < 1.

    Examples
    --------
    >>> criterion_quantile(), criterion_quantile(rank_factor=0.8)
    (3231, 20766)
    """
    p, factor = decimal_fraction(quantile), decimal_fraction(rank_factor)
    if not 0 < p < 1:
        raise ParameterError("quantile", "a number between 0 and 1, both excluded", quantile)
    if not 0 < factor < 1:
        raise ParameterError("rank_factor", "a number between 0 and 1, both excluded", rank_factor)
    if not 0 < beta < 1:
        raise ParameterError("beta", "a number between 0 and 1, both excluded", beta)
    tail = factor * p
    beyond = math.ceil(2 * math.log(1 / beta) / (float(p) * float(1 - factor) ** 2)) + 1
    blocks = math.floor(tail * beyond) + 1
    if blocks > _MOST_BLOCKS:
        raise ParameterError("rank_factor", "a value further below 1", rank_factor)
    # The first m of each block, on which ⌊λpm⌋ = k is constant, has the largest g of the block.
    starts = _block_starts(tail, blocks)
    ranks = np.arange(blocks)
    failing = np.flatnonzero(bdtr(ranks, np.maximum(starts, 1), float(p)) >= beta)
    if failing.size == 0:
        return 1
    last = int(failing[-1])
    low, high = int(max(starts[last], 1)), math.ceil((last + 1) / tail)
    while high - low > 1:  # g ≥ β at low; at high, the next block or the answer
        middle = (low + high) // 2
        low, high = (middle, high) if bdtr(last, middle, float(p)) >= beta else (low, middle)
    return high


def _block_starts(tail: Fraction, blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """⌈k/(λp)⌉ for k = 0, 1, …: in integers, since floats would be one off where it is whole."""
    ranks = range(blocks)
    return np.array([-(-k * tail.denominator // tail.numerator) for k in ranks], dtype=np.int64)


def criterion_sensitivity(
    epsilon: float,
    delta: float,
    quantile: float = 0.005,
    beta: float = 0.02,
    *,
    calibration: Kind = "paper-mixed",
    law: Law = "laplace",
    fraction: float = 0.1,
) -> int:
    """Smallest m for which the threshold's noise is predicted within a fraction of B.

    PAK's second criterion, for any calibration: κ·S/a·G⁻¹(1−β) ≤ fraction·B with the tail taken
    as exponential with its p-quantile at B. There, neighbouring observations lie B/(−m·p·ln p)
    apart, so that S = max_k k·e^{−bk} spacings ≤ 1/(e·b) spacings. (PAK call the reciprocal of the
    spacing d and write d·k where k/d is meant; their final formula is right.)

    Parameters
    ----------
    epsilon, delta : float
        What learning the threshold may spend. PAK insert the whole ε.
    quantile, beta : float
        p and β.
    calibration, law : str
        As in `rillet.threshold.calibration.calibrate`. PAK use ``"paper-mixed"``.
    fraction : float
        Largest noise wanted, as a share of B; a tenth in PAK.

    Examples
    --------
    >>> criterion_sensitivity(1.0, 2**-20)
    82423
    """
    if not 0 < quantile < 1:
        raise ParameterError("quantile", "a number between 0 and 1, both excluded", quantile)
    if not 0 < fraction:
        raise ParameterError("fraction", "a positive number", fraction)
    constants = calibrate(calibration, law, epsilon, delta, beta)
    density = -quantile * math.log(quantile)
    return math.ceil(constants.cost * constants.offset / (math.e * fraction * density))


def suggest_lag(
    epsilon: float,
    delta: float,
    *,
    quantile: float = 0.005,
    beta: float = 0.02,
    rank_factor: float = 0.5,
    calibration: Kind = "paper-mixed",
    law: Law = "laplace",
) -> int:
    """The larger of both criteria, as PAK advise.

    Parameters
    ----------
    epsilon, delta : float
        What learning the threshold may spend.
    quantile, beta, rank_factor : float
        p, β and λ of the criteria.
    calibration, law : str
        The constants that will be used; ``"exact"`` needs fewer observations.

    Examples
    --------
    >>> suggest_lag(1.0, 2**-20)
    82423
    >>> suggest_lag(1.0, 2**-20, calibration="exact")
    22165
    """
    return max(
        criterion_quantile(quantile, beta, rank_factor),
        criterion_sensitivity(epsilon, delta, quantile, beta, calibration=calibration, law=law),
    )
