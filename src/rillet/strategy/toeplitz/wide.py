"""Integers of up to 126 bits in NumPy, for exact fixed-point sums.

An array of wide integers has a leading axis.  Either of two parts: ``high·2^63 + low`` with
``0 ≤ low < 2^63``; or of five limbs of 21 bits, lowest first, of which the last one holds the sign
and all the rest.  Limbs may be larger than 21 bits before they are carried.

**Privacy.** Exact integer arithmetic; decides nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rillet.noise import IntArray

LIMB: Final = 21
LIMBS: Final = 5
MASK: Final = (1 << LIMB) - 1
LOW: Final = (1 << 63) - 1


def split(wide: IntArray) -> IntArray:
    """The five limbs of wide integers."""
    high, low = wide
    limbs = np.empty((LIMBS, *high.shape), np.int64)
    np.bitwise_and(low, MASK, out=limbs[0])
    np.right_shift(low, LIMB, out=limbs[1])
    limbs[1] &= MASK
    np.right_shift(low, 2 * LIMB, out=limbs[2])
    np.bitwise_and(high, MASK, out=limbs[3])
    np.right_shift(high, LIMB, out=limbs[4])
    return limbs


def join(limbs: IntArray) -> IntArray:
    """Carry limbs, each below 2^62 in size, into wide integers; the limbs are used up."""
    _carry(limbs)
    wide = np.empty((2, *limbs.shape[1:]), np.int64)
    wide[0] = limbs[4] << LIMB | limbs[3]
    wide[1] = limbs[0] | limbs[1] << LIMB | limbs[2] << 2 * LIMB
    return wide


def join_shifted(limbs: IntArray, shift: IntArray) -> IntArray:
    """``⌊Σ limbs_l·2^(21 l) / 2^shift⌋`` for ``21 ≤ shift < 84``; the limbs are used up."""
    _carry(limbs)
    rest = shift - LIMB
    high = limbs[4]
    low = limbs[1] | limbs[2] << LIMB | limbs[3] << 2 * LIMB
    low >>= rest
    low |= (high & ((1 << rest) - 1)) << (63 - rest)
    return np.stack([high >> rest, low])


def _carry(limbs: IntArray) -> None:
    for number in range(LIMBS - 1):
        limbs[number + 1] += limbs[number] >> LIMB
        limbs[number] &= MASK


def subtract(left: IntArray, right: IntArray) -> IntArray:
    """``left − right``."""
    difference = left - right
    difference[0] += difference[1] >> 63
    difference[1] &= LOW
    return difference
