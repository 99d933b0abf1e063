"""Compiled loops for :mod:`rillet.noise.sampling`; import only where Numba is installed.

Every operation is rounded by itself, as the proof supposes: Numba fuses none unless it is told to,
and a test looks at what it has made.  Integers that are certain are the same as in the plain form,
whichever float they were rounded from.

**Privacy.** No randomness and no data here: words of a keystream come in.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rillet.noise.laws import FIRST, INSIDE_BITS


@njit(cache=True)
def uniforms(words: NDArray[np.uint64], uniform: NDArray[np.float64]) -> None:
    """The leading 63 bits of each word as a number below 1."""
    for index in range(len(words)):
        uniform[index] = np.float64(np.int64(words[index] >> np.uint64(1))) * 2.0**-63


@njit(cache=True)
def evaluate(table: NDArray[np.float64], uniform: NDArray[np.float64]) -> None:
    """Replace numbers from 2^-20 to 1 by their quantiles, smaller ones by anything finite."""
    bits = uniform.view(np.int64)
    for index in range(len(uniform)):
        row = table[max((bits[index] >> INSIDE_BITS) - FIRST, 0)]
        left = np.float64((1 << INSIDE_BITS) - (bits[index] & ((1 << INSIDE_BITS) - 1)))
        value = row[7]
        for power in range(6, -1, -1):
            value = value * left + row[power]
        uniform[index] = value


@njit(cache=True)
def round_signed(
    words: NDArray[np.uint64],
    magnitude: NDArray[np.float64],
    scale: float,
    limit: float,
    smallest: np.uint64,
    out: NDArray[np.int64],
    unsure: NDArray[np.int64],
) -> int:
    """Scale, round, and set the sign; count and note the indices that the bound does not decide."""
    count = 0
    for index in range(len(words)):
        word = words[index]
        scaled = magnitude[index] * scale
        rounded = np.rint(scaled)
        sign = -np.int64(word & np.uint64(1))
        out[index] = (np.int64(rounded) ^ sign) - sign
        unsure[count] = index
        if not (abs(scaled - rounded) < limit) or word >> np.uint64(1) < smallest:
            count += 1
    return count
