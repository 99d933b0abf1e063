"""Compiled forms of two loops of :mod:`rillet.rounding`; import only where Numba is installed.

They do the same floating-point operations on each number as the plain form (Numba does not fuse
them), and so give the same integers.

**Privacy.** No randomness and no data here: words of a keystream come in.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def uniforms(words: NDArray[np.uint64], uniform: NDArray[np.float64]) -> None:
    """The leading 63 bits of each word as a number below 1."""
    for place in range(len(words)):
        uniform[place] = np.float64(np.int64(words[place] >> np.uint64(1))) * 2.0**-63


@njit(cache=True)
def round_signed(
    words: NDArray[np.uint64],
    magnitude: NDArray[np.float64],
    scale: float,
    limit: float,
    smallest: np.uint64,
    likely: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Scale in place, round, and set the sign; ``likely`` where the common bound decides."""
    for place in range(len(words)):
        word = words[place]
        scaled = magnitude[place] * scale
        rounded = np.rint(scaled)
        magnitude[place] = scaled
        likely[place] = (abs(scaled - rounded) < limit) & (word >> np.uint64(1) >= smallest)
        sign = -np.int64(word & np.uint64(1))
        out[place] = (np.int64(rounded) ^ sign) - sign
