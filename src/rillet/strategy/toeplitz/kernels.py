"""Compiled forms of the inner loops of the BLT strategy; import only where Numba is installed.

Each gives exactly what the plain form gives: the encoder because both are exact, the decoder
because it does the same operations in the same order (Numba does not fuse them).

**Privacy.** Decides nothing: same numbers, no branch on data.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rillet.noise import FloatArray, IntArray
from rillet.strategy.toeplitz.wide import LIMB, LOW, MASK


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
def _grow(whole: int, losses: FloatArray, count: int, f: int, e: int) -> tuple[int, int]:
    """What a chunk adds to buffer ``i``: ``2^f Σ x − 2^e Σ v x``."""
    lowest = int(losses[0])
    middle = int(losses[1]) + (lowest >> LIMB)
    bottom = (lowest & MASK) | (middle & MASK) << LIMB
    top = middle >> LIMB
    if count == 3:
        top += int(losses[2])
    low = (whole & ((1 << (63 - f)) - 1)) << f
    low -= bottom << e | (top & ((1 << (LIMB - e)) - 1)) << (2 * LIMB + e)
    high = (whole >> (63 - f)) - (top >> (LIMB - e)) + (low >> 63)
    return high, low & LOW


@njit(cache=True)
def _climb(
    exact_buffers: IntArray,
    exact_added: IntArray,
    last: int,
    ended: bool,
    ladder: IntArray,
    ladder_shift: IntArray,
    decay: IntArray,
    decay_shift: IntArray,
    parts: FloatArray,
) -> None:
    """Limbs 1 to 4 of the buffers at the start of each chunk up to ``last``, into ``parts``.

    When the span has ended, the buffers become those at the start of the next one.
    """
    size = len(ladder)
    pieces = np.empty((size, 5), np.int64)
    start = np.empty(5, np.int64)
    total = np.empty(5, np.int64)
    lost = np.empty(5, np.int64)
    work = np.empty(5, np.int64)
    for i in range(len(decay)):
        _limbs(exact_buffers[0, i], exact_buffers[1, i], start)
        for a in range(size):
            _limbs(exact_added[0, i, a], exact_added[1, i, a], pieces[a])
        for number in range(4):
            parts[number, 0, i] = start[number + 1]
        total[:] = 0
        for b in range(1, size if ended else last + 1):
            _lose(ladder[:, i], pieces, b, lost)
            for number in range(5):
                total[number] += pieces[b - 1, number]
                work[number] = total[number] + start[number]
                lost[number] += ladder[b, i] * start[number]
            high, low = _join(work)
            lost_high, lost_low = _join_shifted(lost, ladder_shift[i])
            high, low = _minus(high, low, lost_high, lost_low)
            _limbs(high, low, work)
            for number in range(4):
                parts[number, b, i] = work[number + 1]
        if ended:
            # S ← S − ⌊Φ S⌋ + (Σ G − ⌊Σ ρ G⌋).
            _lose(ladder[:, i], pieces, size, lost)
            for number in range(5):
                work[number] = total[number] + pieces[size - 1, number] + start[number]
            high, low = _join(work)
            lost_high, lost_low = _join_shifted(lost, ladder_shift[i])
            high, low = _minus(high, low, lost_high, lost_low)
            for number in range(5):
                work[number] = start[number] * decay[i]
            lost_high, lost_low = _join_shifted(work, decay_shift[i])
            exact_buffers[0, i], exact_buffers[1, i] = _minus(high, low, lost_high, lost_low)


@njit(cache=True)
def _clip(exact_leaves: IntArray, limit: int, exact_span: IntArray) -> None:
    for place in range(len(exact_span)):
        exact_span[place] = min(max(exact_leaves[place], -limit), limit)


@njit(cache=True)
def _cut(exact_chunk: IntArray, number: int, top: bool, limb: FloatArray) -> None:
    """Limb ``number`` of every leaf of a chunk; the top one keeps all higher bits and the sign."""
    shift, mask = LIMB * number, -1 if top else MASK
    for place in range(len(exact_chunk)):
        limb[place] = (exact_chunk[place] >> shift) & mask


@njit(cache=True)
def _carry(
    lowest: FloatArray,
    second: FloatArray,
    second_leaf: FloatArray,
    third: FloatArray,
    third_leaf: FloatArray,
    fourth: FloatArray,
    half: int,
    coefficient_bits: int,
    exact_nodes: IntArray,
) -> None:
    """Nodes of a chunk: add up limb products and drop the fraction.

    Limb 1 of the buffers is the lowest; limb 2 has limb 0 of the leaves beside it, and the half.
    """
    for place in range(len(exact_nodes)):
        node = np.int64(lowest[place]) >> LIMB
        node = (node + half + np.int64(second[place] + second_leaf[place])) >> LIMB
        node = (node + np.int64(third[place] + third_leaf[place])) >> (coefficient_bits - LIMB)
        exact_nodes[place] = node + (np.int64(fourth[place]) << (2 * LIMB - coefficient_bits))


@njit(cache=True)
def encode(
    exact_open: IntArray,
    exact_added: IntArray,
    exact_buffers: IntArray,
    before: int,
    exact_leaves: IntArray,
    limit: int,
    count: int,
    leaf_mix: FloatArray,
    buffer_mix: FloatArray,
    half: int,
    coefficient_bits: int,
    growth_shift: IntArray,
    fraction_bits: IntArray,
    ladder: IntArray,
    ladder_shift: IntArray,
    decay: IntArray,
    decay_shift: IntArray,
    nodes: IntArray,
) -> None:
    """Encode leaves in ``count`` limbs after ``before`` others; updates the state in place.

    One span at a time, so that all that is worked on stays in the first-level cache.
    """
    d, width = buffer_mix.shape
    size = len(ladder)
    length = size * width
    exact_span = np.zeros(length, np.int64)
    exact_rows = exact_span.reshape(size, width)
    exact_nodes = np.zeros((size, width), np.int64)
    limbs = np.zeros((count * size, width))
    leaf_products = np.zeros((count * size, width + d))
    losses = leaf_products.reshape(count, size, width + d)
    parts = np.zeros((4, size, d))
    buffer_products = np.zeros((4 * size, width))
    done = 0
    while done < len(exact_leaves):
        begin = (before + done) % length
        stop = min(length, begin + len(exact_leaves) - done)
        opened, closed, last = begin // width, stop // width, (stop - 1) // width
        exact_rows[opened, : begin % width] = exact_open[: begin % width]
        _clip(exact_leaves[done : done + stop - begin], limit, exact_span[begin:stop])
        for number in range(count):
            for row in range(opened, last + 1):
                _cut(exact_rows[row], number, number == count - 1, limbs[number * size + row])
        np.dot(limbs, leaf_mix, leaf_products)
        for row in range(opened, closed):
            whole = exact_span[row * width : (row + 1) * width].sum()
            for i in range(d):
                exact_added[0, i, row], exact_added[1, i, row] = _grow(
                    whole,
                    losses[:, row, width + i],
                    count,
                    fraction_bits[i],
                    growth_shift[i],
                )
        ended = stop == length
        _climb(
            exact_buffers,
            exact_added,
            last,
            ended,
            ladder,
            ladder_shift,
            decay,
            decay_shift,
            parts,
        )
        np.dot(parts.reshape(4 * size, d), buffer_mix, buffer_products)
        for row in range(opened, last + 1):
            if count == 3:
                buffer_products[3 * size + row] += leaf_products[2 * size + row, :width]
            _carry(
                buffer_products[row],
                buffer_products[size + row],
                leaf_products[row],
                buffer_products[2 * size + row],
                leaf_products[size + row],
                buffer_products[3 * size + row],
                half,
                coefficient_bits,
                exact_nodes[row],
            )
        nodes[done : done + stop - begin] = exact_nodes.ravel()[begin:stop]
        exact_open[:] = 0
        exact_open[: stop - closed * width] = exact_span[closed * width : stop]
        if ended:
            exact_added[:] = 0
        done += stop - begin


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
