"""Compiled forms of the inner loops of the BLT strategy; import only where Numba is installed.

Each gives exactly what the plain form beside it gives: the integer ones because both are exact, the
float one because it does the same operations in the same order (Numba does not fuse them).

**Privacy.** Decides nothing: same numbers, no branch on data.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rillet.noise import FloatArray, IntArray
from rillet.strategy.wide import LIMB, LOW, MASK


@njit(cache=True)
def fill_limbs(exact_chunks: IntArray, number: int, last: bool, limb: FloatArray) -> None:
    """Limb ``number`` of every leaf, as floats."""
    rows, width = exact_chunks.shape
    for row in range(rows):
        for column in range(width):
            value = exact_chunks[row, column] >> (LIMB * number)
            limb[row, column] = value if last else value & MASK


@njit(cache=True)
def carry(
    first: FloatArray,
    second: FloatArray,
    third: FloatArray,
    fourth: FloatArray,
    coefficient_bits: int,
    nodes: IntArray,
) -> None:
    """``⌊Σ_l 2^(21 l) V_l / 2^(coefficient_bits + 21)⌋``."""
    for i in range(len(nodes)):
        total = np.int64(first[i]) >> LIMB
        total = (total + np.int64(second[i])) >> LIMB
        total = (total + np.int64(third[i])) >> (coefficient_bits - LIMB)
        nodes[i] = total + (np.int64(fourth[i]) << (2 * LIMB - coefficient_bits))


@njit(cache=True)
def _limbs(high: int, low: int, limbs: IntArray) -> None:
    limbs[0] = low & MASK
    limbs[1] = (low >> LIMB) & MASK
    limbs[2] = low >> (2 * LIMB)
    limbs[3] = high & MASK
    limbs[4] = high >> LIMB


@njit(cache=True)
def _join(limbs: IntArray) -> tuple[int, int]:
    """Carry limbs into (high, low); uses them up."""
    for number in range(4):
        limbs[number + 1] += limbs[number] >> LIMB
        limbs[number] &= MASK
    low = limbs[0] | limbs[1] << LIMB | limbs[2] << (2 * LIMB)
    return limbs[4] << LIMB | limbs[3], low


@njit(cache=True)
def _join_shifted(limbs: IntArray, shift: int) -> tuple[int, int]:
    """``⌊Σ limbs_l·2^(21 l)/2^shift⌋`` for ``21 ≤ shift < 84`` as (high, low); uses them up."""
    for number in range(4):
        limbs[number + 1] += limbs[number] >> LIMB
        limbs[number] &= MASK
    if shift < 2 * LIMB:
        rest = shift - LIMB
        low = limbs[1] | limbs[2] << LIMB | limbs[3] << (2 * LIMB)
        high = limbs[4]
    else:
        rest = shift - 2 * LIMB
        low = limbs[2] | limbs[3] << LIMB | (limbs[4] & MASK) << (2 * LIMB)
        high = limbs[4] >> LIMB
    if rest:
        low = low >> rest | (high & ((1 << rest) - 1)) << (63 - rest)
    return high >> rest, low


@njit(cache=True)
def _minus(high: int, low: int, other_high: int, other_low: int) -> tuple[int, int]:
    difference = low - other_low
    return high - other_high + (difference >> 63), difference & LOW


@njit(cache=True)
def _lose(ladder: IntArray, pieces: IntArray, b: int, lost: IntArray) -> None:
    """``Σ_{a<b} ladder_{b−1−a}·pieces_a``."""
    lost[:] = 0
    for a in range(b):
        weight = ladder[b - 1 - a]
        for number in range(5):
            lost[number] += weight * pieces[a, number]


@njit(cache=True)
def climb(
    exact_buffers: IntArray,
    added: IntArray,
    ended: int,
    ladder: IntArray,
    ladder_shift: IntArray,
    decay: IntArray,
    decay_shift: IntArray,
    buffers: IntArray,
    following: IntArray,
) -> None:
    """Buffers at the start of each chunk, and of the span that is open at last."""
    size = len(ladder)
    spans = added.shape[2] // size
    pieces = np.empty((size, 5), np.int64)
    start = np.empty(5, np.int64)
    total = np.empty(5, np.int64)
    lost = np.empty(5, np.int64)
    work = np.empty(5, np.int64)
    for i in range(len(decay)):
        high, low = exact_buffers[0, i], exact_buffers[1, i]
        following[0, i], following[1, i] = high, low
        for span in range(spans):
            origin = span * size
            buffers[0, i, origin], buffers[1, i, origin] = high, low
            _limbs(high, low, start)
            for a in range(size):
                _limbs(added[0, i, origin + a], added[1, i, origin + a], pieces[a])
            total[:] = 0
            for b in range(1, size + 1):
                for number in range(5):
                    total[number] += pieces[b - 1, number]
                _lose(ladder[:, i], pieces, b, lost)
                if b < size:
                    for number in range(5):
                        work[number] = total[number] + start[number]
                        lost[number] += ladder[b, i] * start[number]
                    sum_high, sum_low = _join(work)
                    lost_high, lost_low = _join_shifted(lost, ladder_shift[i])
                    place = origin + b
                    buffers[0, i, place], buffers[1, i, place] = _minus(
                        sum_high, sum_low, lost_high, lost_low
                    )
            if span < ended:
                # S ← S − ⌊Φ S⌋ + (Σ G − ⌊Σ ρ G⌋); `lost` and `total` are those of b = size.
                for number in range(5):
                    work[number] = total[number] + start[number]
                sum_high, sum_low = _join(work)
                lost_high, lost_low = _join_shifted(lost, ladder_shift[i])
                sum_high, sum_low = _minus(sum_high, sum_low, lost_high, lost_low)
                for number in range(5):
                    work[number] = start[number] * decay[i]
                lost_high, lost_low = _join_shifted(work, decay_shift[i])
                high, low = _minus(sum_high, sum_low, lost_high, lost_low)
                following[0, i], following[1, i] = high, low


@njit(cache=True)
def decode(
    weights: FloatArray, poles: FloatArray, carried: FloatArray, noisy: IntArray, prefix: FloatArray
) -> None:
    """The running sum and the filters; updates ``carried``."""
    d = len(poles)
    for t in range(len(noisy)):
        value = np.float64(noisy[t])
        total = weights[0] * value + carried[0]
        carried[0] = total
        for i in range(d):
            filtered = weights[i + 1] * value + carried[i + 1]
            carried[i + 1] = poles[i] * filtered
            total += filtered
        prefix[t] = total
