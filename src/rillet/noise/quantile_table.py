"""The Gaussian quantile in pieces: a table of polynomials for the compiled loop.

Between 2^-20 and 1 every octave of ``v`` is cut into 64 pieces.  A piece ends on its right at
``c``, and there ``Q(c − h) = a_0 + a_1 h + … + a_7 h^7 + …`` with no coefficient below 0, so that
nothing cancels when it is summed up: the relative error is below 2^-49 (docs/proofs/noise.md).

**Privacy.** No data and no randomness here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import mpmath
import numpy as np
from numpy.polynomial import Polynomial

from rillet.noise.laws import GAUSSIAN, FloatArray

#: Octaves below 1 that the table covers, and pieces of each as a power of two.
OCTAVES: Final = 20
PIECE_BITS: Final = 6
TERMS: Final = 8
#: Bits of a float that tell the place in its piece.
PLACE_BITS: Final = 52 - PIECE_BITS
#: The first bits of the float 2^-20, where the table begins.
FIRST: Final = (1023 - OCTAVES) << PIECE_BITS


@lru_cache(maxsize=1)
def gaussian_table() -> FloatArray:
    """Rows are pieces in the order of ``v``, after them ``v = 1``; columns are powers.

    The variable is the distance to the right end in units of the last place of the piece, so the
    rows are multiplied by powers of two.
    """
    pieces = OCTAVES << PIECE_BITS
    octave, piece = np.divmod(np.arange(pieces), 1 << PIECE_BITS)
    exponent = octave - OCTAVES
    right = np.ldexp(1 + (piece + 1) / (1 << PIECE_BITS), exponent)
    with mpmath.workprec(100):
        value = [GAUSSIAN.quantile(mpmath.mpf(end)) for end in right.tolist()]
        slope = [mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(x * x / 2) for x in value]
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
    last_place = exponent[:, None] - 52
    table[:-1] = np.ldexp(table[:-1], last_place * np.arange(TERMS))
    return table
