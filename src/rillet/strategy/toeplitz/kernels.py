"""Compiled forms of the inner loops of the BLT strategy; import only where Numba is installed.

Each gives exactly what the plain form gives: the encoder because both are exact, and share their
arithmetic of wide integers; the decoder because it does the same operations in the same order
(Numba does not fuse them).

**Privacy.** Decides nothing: same numbers, no branch on data.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rillet.noise import FloatArray, IntArray
from rillet.strategy.toeplitz import encoder
from rillet.strategy.toeplitz.encoder import LIMB, MASK, WORD, WORD_MASK, Coefficients

_split = njit(cache=True)(encoder.split)
_difference = njit(cache=True)(encoder.difference)
_growth = njit(cache=True)(encoder.growth)
_rounded = njit(cache=True)(encoder.rounded)
_words = njit(cache=True)(encoder.words)
_rounded_words = njit(cache=True)(encoder.rounded_words)


@njit(cache=True)
def _cut(high: int, low: int, limbs: IntArray) -> None:
    limbs[0], limbs[1], limbs[2], limbs[3], limbs[4] = _split(high, low)


@njit(cache=True)
def _lose(ladder: IntArray, pieces: IntArray, b: int, lost: IntArray) -> None:
    """``Σ_{a<b} ladder_{b−1−a}·pieces_a``."""
    lost[:] = 0
    for a in range(b):
        weight = ladder[b - 1 - a]
        for number in range(5):
            lost[number] += weight * pieces[a, number]


@njit(cache=True)
def _climb(
    tables: Coefficients,
    exact_added: IntArray,
    exact_buffers: IntArray,
    last: int,
    ended: bool,
    parts: FloatArray,
) -> None:
    """Limbs 1 to 4 of the buffers at the start of each chunk up to ``last``, into ``parts``.

    When the span has ended, the buffers become those at the start of the next one.
    """
    size = len(tables.ladder)
    pieces = np.empty((size, 5), np.int64)
    start, total, lost, work = (
        np.empty(5, np.int64),
        np.empty(5, np.int64),
        np.empty(5, np.int64),
        np.empty(5, np.int64),
    )
    for i in range(len(tables.decay)):
        ladder, shift = tables.ladder[:, i], tables.ladder_shift[i]
        _cut(exact_buffers[0, i], exact_buffers[1, i], start)
        for a in range(size):
            _cut(exact_added[0, i, a], exact_added[1, i, a], pieces[a])
        parts[:, 0, i] = start[1:]
        total[:] = start
        for b in range(1, size if ended else last + 1):
            _lose(ladder, pieces, b, lost)
            for number in range(5):
                total[number] += pieces[b - 1, number]
                lost[number] += ladder[b] * start[number]
            high, low = _difference(total, lost, shift)
            _cut(high, low, work)
            for number in range(4):
                parts[number, b, i] = work[number + 1]
        if ended:
            # S ← S − ⌊Φ S⌋ + (Σ G − ⌊Σ ρ G⌋).
            _lose(ladder, pieces, size, lost)
            for number in range(5):
                total[number] += pieces[size - 1, number]
            high, low = _difference(total, lost, shift)
            _cut(high, low, work)
            for number in range(5):
                lost[number] = start[number] * tables.decay[i]
            high, low = _difference(work, lost, tables.decay_shift[i])
            exact_buffers[0, i], exact_buffers[1, i] = high, low


@njit(cache=True)
def _round(buffers: FloatArray, leaves: FloatArray, size: int, row: int, nodes: IntArray) -> None:
    """Nodes of chunk ``row``: add up limb products of buffers and leaves, and round.

    Limb 1 of the buffers is the lowest; limb 2 has limb 0 of the leaves beside it.
    """
    count = len(leaves) // size
    first, second, third, fourth = row, size + row, 2 * size + row, 3 * size + row
    for index in range(len(nodes)):
        top = buffers[fourth, index]
        if count == 3:
            top += leaves[third, index]
        nodes[index] = _rounded(
            np.int64(buffers[first, index]),
            np.int64(buffers[second, index] + leaves[first, index]),
            np.int64(buffers[third, index] + leaves[second, index]),
            np.int64(top),
        )


@njit(cache=True)
def encode(
    tables: Coefficients,
    state: tuple[IntArray, IntArray, IntArray],
    before: int,
    exact_leaves: IntArray,
    limit: int,
    bits: int,
    nodes: IntArray,
) -> None:
    """Encode leaves, at most ``limit`` in size, after ``before`` others; updates the state.

    One span at a time, so that all that is worked on stays in the first-level cache.
    """
    exact_open, exact_added, exact_buffers = state
    d, width = tables.buffer_mix.shape
    size = len(tables.ladder)
    length = size * width
    count = 2 if limit << bits < 1 << 2 * LIMB else 3
    exact_span = np.zeros(length, np.int64)
    exact_rows = exact_span.reshape(size, width)
    exact_nodes = np.zeros((size, width), np.int64)
    limbs = np.zeros((count * size, width))
    leaf_products = np.zeros((count * size, width + d))
    parts = np.zeros((4, size, d))
    buffer_products = np.zeros((4 * size, width))
    done = 0
    while done < len(exact_leaves):
        begin = (before + done) % length
        stop = min(length, begin + len(exact_leaves) - done)
        opened, closed, last = begin // width, stop // width, (stop - 1) // width
        exact_rows[opened, : begin % width] = exact_open[: begin % width]
        for index in range(begin, stop):
            exact_leaf = min(max(exact_leaves[done + index - begin], -limit), limit)
            exact_span[index] = exact_leaf << bits
        for number in range(count):
            # The last limb keeps all higher bits and the sign.
            mask = -1 if number == count - 1 else MASK
            for row in range(opened, last + 1):
                for index in range(width):
                    value = (exact_rows[row, index] >> LIMB * number) & mask
                    limbs[number * size + row, index] = value
        np.dot(limbs, tables.leaf_mix, leaf_products)
        for row in range(opened, closed):
            whole = exact_rows[row].sum()
            for i in range(width, width + d):
                lowest = np.int64(leaf_products[row, i])
                middle = np.int64(leaf_products[size + row, i])
                top = np.int64(leaf_products[2 * size + row, i]) if count == 3 else 0
                f, e = tables.fraction_bits[i - width], tables.growth_shift[i - width]
                high, low = _growth(whole, lowest, middle, top, f, e)
                exact_added[0, i - width, row], exact_added[1, i - width, row] = high, low
        ended = stop == length
        _climb(tables, exact_added, exact_buffers, last, ended, parts)
        np.dot(parts.reshape(4 * size, d), tables.buffer_mix, buffer_products)
        for row in range(opened, last + 1):
            _round(buffer_products, leaf_products, size, row, exact_nodes[row])
        nodes[done : done + stop - begin] = exact_nodes.ravel()[begin:stop]
        exact_open[:] = 0
        exact_open[: stop - closed * width] = exact_span[closed * width : stop]
        if ended:
            exact_added[:] = 0
        done += stop - begin


@njit(cache=True)
def encode_rounds(
    tables: Coefficients,
    exact_open: IntArray,
    exact_buffers: IntArray,
    rows: IntArray,
    places: IntArray,
    exact_leaves: IntArray,
    limit: int,
    bits: int,
    nodes: IntArray,
) -> None:
    """Leaves of some keys in order, each at its place in the key's chunk; updates their states."""
    width, d = exact_open.shape[1], len(tables.decay)
    start, total, lost = np.empty(5, np.int64), np.empty(5, np.int64), np.empty(5, np.int64)
    for number in range(len(rows)):
        row, place = rows[number], places[number]
        exact_open[row, place] = min(max(exact_leaves[number], -limit), limit) << bits
        low = high = np.int64(0)
        for index in range(place + 1):
            exact, weight = exact_open[row, index], np.int64(tables.leaf_mix[index, place])
            low += (exact & WORD_MASK) * weight
            high += (exact >> WORD) * weight
        first = second = third = np.int64(0)
        for i in range(d):
            words = _words(exact_buffers[row, 0, i], exact_buffers[row, 1, i])
            weight = np.int64(tables.buffer_mix[i, place])
            first += words[0] * weight
            second += words[1] * weight
            third += words[2] * weight
        nodes[number] = _rounded_words(low, high, first, second, third)
        if place < width - 1:
            continue
        # The chunk is full: S ← S − ⌊Φ S⌋ + added.
        whole = exact_open[row].sum()
        for i in range(d):
            lowest = middle = top = np.int64(0)
            for index in range(width):
                exact, weight = exact_open[row, index], np.int64(tables.leaf_mix[index, width + i])
                lowest += (exact & MASK) * weight
                middle += ((exact >> LIMB) & MASK) * weight
                top += (exact >> 2 * LIMB) * weight
            f, e = tables.fraction_bits[i], tables.growth_shift[i]
            high, low = _growth(whole, lowest, middle, top, f, e)
            _cut(high, low, total)
            _cut(exact_buffers[row, 0, i], exact_buffers[row, 1, i], start)
            for part in range(5):
                total[part] += start[part]
                lost[part] = start[part] * tables.decay[i]
            high, low = _difference(total, lost, tables.decay_shift[i])
            exact_buffers[row, 0, i], exact_buffers[row, 1, i] = high, low
        exact_open[row] = 0


@njit(cache=True)
def decode(
    weights: FloatArray, poles: FloatArray, carried: FloatArray, noisy: IntArray, prefix: FloatArray
) -> None:
    """The running sum and the filters; updates ``carried``."""
    for t in range(len(noisy)):
        value = np.float64(noisy[t])
        total = weights[0] * value + carried[0]
        carried[0] = poles[0] * total
        for i in range(1, len(poles)):
            filtered = weights[i] * value + carried[i]
            carried[i] = poles[i] * filtered
            total += filtered
        prefix[t] = total


@njit(cache=True)
def decode_rounds(
    weights: FloatArray,
    poles: FloatArray,
    carried: FloatArray,
    rows: IntArray,
    noisy: IntArray,
    prefix: FloatArray,
) -> None:
    """The same for leaves of some keys in order."""
    for number in range(len(noisy)):
        decode(weights, poles, carried[rows[number]], noisy[number : number + 1], prefix[number:])
