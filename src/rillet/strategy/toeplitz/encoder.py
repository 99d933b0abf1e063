"""The encoder of a BLT strategy: exact integers, the same for any split into blocks.

Leaves are taken in chunks of 64 and spans of 16 chunks, aligned to the leaf number; where there are
many keys, in chunks of 16 and spans of one, whose state is small.  Within a chunk a node is an
*exactly linear* function of the leaves and of the buffers at the start of the chunk, with
fixed-point coefficients, rounded once; these buffers are likewise linear in the buffers at the
start of the span and in what each chunk adds, rounded once.  Only the roundings, not the
fixed-point coefficients, have to be charged to the sensitivity (docs/proofs/toeplitz.md).

The linear parts are matrix products in float64.  Their operands are integers cut into limbs of 21
bits, so small that every product and every partial sum is an integer below 2^53: the result is
exact in any order of summation, whatever the BLAS does with threads and fused operations.

| here | meaning |
|---|---|
| ``a_j`` | ``2^27·c_j``, rounded, for ``j < 64``: leaf to node within a chunk |
| ``S_i`` | buffer i, ``Σ θ_i^(…)·x``, in units of ``2^−f_i`` |
| ``q_{i,r}`` | ``2^g_i·ω_i θ_i^r``, rounded: buffer to node, ``g_i = 69 − f_i`` |
| ``v_{i,s}`` | ``2^(f_i − e_i)·(1 − θ_i^(63−s))``, rounded: what a leaf loses in its chunk |
| ``ρ_{i,m}`` | ``1 − θ_i^(64 m)``, as ``ladder / 2^shift``: what is lost in ``m`` chunks |
| ``Φ_i`` | ``1 − θ_i^1024``, as ``decay / 2^shift``: what is lost in a span |

**Privacy.** Touches raw data; the state is exact sums and the leaves of the open chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import mpmath
import numpy as np

from rillet.errors import StreamEnded
from rillet.extras import compiled
from rillet.noise import FloatArray, IntArray
from rillet.precision import precision
from rillet.strategy.base import Encoder, Rounds, RowsOf, State
from rillet.strategy.toeplitz.blt import PRECISION, Blt

#: Leaves between two roundings of the buffers that nodes see, and chunks between two that last.
CHUNK: Final = 64
SPAN: Final = 16
#: The same where there are many keys: the state is a fifth of the size.
SMALL_CHUNK: Final = 16
SMALL_SPAN: Final = 1
#: Bits of the coefficients.
COEFFICIENT_BITS: Final = 27
GROWTH_BITS: Final = 25
LADDER_BITS: Final = 27
DECAY_BITS: Final = 41
#: Leaves worked on at once: few enough for the second-level cache, enough for NumPy.
BLOCK: Final = 2**14
#: Chunks worked on at once where that is possible: few enough for the first-level cache, and for
#: OpenBLAS not to start threads, which cost many times the product itself on a busy machine.
_SLICE: Final = 48
#: Sum of the sizes of all leaves, at least, that the arithmetic has room for.
LARGEST_TOTAL: Final = 2**62
#: Nodes, and buffers in their units, that the arithmetic has room for.
LARGEST_NODE: Final = 2**63
LARGEST_BUFFER: Final = 2**105
#: A shorter block is not worth the first call of a compiled loop; so many of them are, since they
#: have taken as long by then.
SHORTEST_COMPILED: Final = 256
ENOUGH_SHORT: Final = 2000


class _Kernels:
    """The compiled loops for a block of ``count`` leaves, or ``None``: the numbers are the same."""

    def __init__(self) -> None:
        self._short = 0

    def __call__(self, count: int) -> Any | None:
        self._short = ENOUGH_SHORT if count >= SHORTEST_COMPILED else self._short + 1
        enough = self._short >= ENOUGH_SHORT
        return compiled("rillet.strategy.toeplitz.kernels") if enough else None


kernels: Final = _Kernels()


# --- Wide integers -------------------------------------------------------------------------------

# Up to 126 bits, either as ``high·2^63 + low`` with ``0 ≤ low < 2^63``, or as five limbs of 21
# bits, lowest first, of which the last one holds the sign and all the rest; limbs may be larger
# before they are carried.

LIMB: Final = 21
MASK: Final = (1 << LIMB) - 1
LOW: Final = (1 << 63) - 1
#: Bits of a word where products of integers with coefficients are added up, and of a node's unit
#: that lie above the first word.
WORD: Final = 31
WORD_MASK: Final = (1 << WORD) - 1
_REST: Final = COEFFICIENT_BITS + LIMB - WORD
#: An array of integers; in compiled code (kernels.py), which shares these functions, one integer.
Ints: TypeAlias = Any


def split(high: Ints, low: Ints) -> tuple[Ints, ...]:
    """The five limbs of a wide integer."""
    return low & MASK, (low >> LIMB) & MASK, low >> 2 * LIMB, high & MASK, high >> LIMB


def difference(total: Ints, lost: Ints, shift: Ints) -> tuple[Ints, Ints]:
    """``total − ⌊lost/2^shift⌋`` for ``21 ≤ shift < 84``, both in limbs below 2^62 in size."""
    second = total[1] + (total[0] >> LIMB)
    third = total[2] + (second >> LIMB)
    fourth = total[3] + (third >> LIMB)
    high = (total[4] + (fourth >> LIMB)) << LIMB | (fourth & MASK)
    low = (total[0] & MASK) | (second & MASK) << LIMB | (third & MASK) << 2 * LIMB
    second = lost[1] + (lost[0] >> LIMB)
    third = lost[2] + (second >> LIMB)
    fourth = lost[3] + (third >> LIMB)
    top = lost[4] + (fourth >> LIMB)
    rest = shift - LIMB
    lost_low = (second & MASK) | (third & MASK) << LIMB | (fourth & MASK) << 2 * LIMB
    low = low - (lost_low >> rest | (top & ((1 << rest) - 1)) << (63 - rest))
    return high - (top >> rest) + (low >> 63), low & LOW


def growth(
    whole: Ints, lowest: Ints, middle: Ints, top: Ints, f: Ints, e: Ints
) -> tuple[Ints, Ints]:
    """What a chunk adds to a buffer: ``2^f·Σ x − 2^e·Σ v x``, the second sum in limbs."""
    middle = middle + (lowest >> LIMB)
    bottom = (lowest & MASK) | (middle & MASK) << LIMB
    top = top + (middle >> LIMB)
    low = (whole & ((1 << (63 - f)) - 1)) << f
    low = low - (bottom << e | (top & ((1 << (LIMB - e)) - 1)) << (2 * LIMB + e))
    return (whole >> (63 - f)) - (top >> (LIMB - e)) + (low >> 63), low & LOW


def words(high: Ints, low: Ints) -> tuple[Ints, Ints, Ints]:
    """A wide integer without its lowest limb, in words, the lowest first."""
    return (
        (low >> LIMB) & WORD_MASK,
        ((high << (63 - LIMB - WORD)) | (low >> (LIMB + WORD))) & WORD_MASK,
        high >> (2 * WORD + LIMB - 63),
    )


def rounded_words(low: Ints, high: Ints, first: Ints, second: Ints, third: Ints) -> Ints:
    """A node, ``⌊(2^21·inside + outside)/2^48 + ½⌋``, from words of both.

    What does not fit in between wraps round, and back again, since the node fits.
    """
    node = (first + (1 << (COEFFICIENT_BITS + LIMB - 1))) >> LIMB
    node = ((((node + low) >> (WORD - LIMB)) + second) >> _REST) + (high << (LIMB - _REST))
    return node + (third << (WORD - _REST))


def rounded(first: Ints, second: Ints, third: Ints, fourth: Ints) -> Ints:
    """A node, ``⌊(Σ_l 2^(21 l) V_l)/2^48 + ½⌋``, from four limb products."""
    node = (first >> LIMB) + (1 << (COEFFICIENT_BITS - 1)) + second
    node = ((node >> LIMB) + third) >> (COEFFICIENT_BITS - LIMB)
    return node + (fourth << (2 * LIMB - COEFFICIENT_BITS))


# --- Coefficients --------------------------------------------------------------------------------


class Coefficients(NamedTuple):
    """Public integers; held as floats where BLAS works on them."""

    #: ``a`` and ``v``: rows are leaves of the chunk; columns are nodes, then buffers.
    leaf_mix: FloatArray
    #: ``q``: rows are buffers, columns are nodes.
    buffer_mix: FloatArray
    fraction_bits: IntArray
    growth_shift: IntArray
    #: ``ρ``: rows are numbers of chunks, columns are buffers.
    ladder: IntArray
    ladder_shift: IntArray
    decay: IntArray
    decay_shift: IntArray


@dataclass(frozen=True, eq=False)
class EncoderTables:
    """Coefficients with the bounds that the sensitivity needs.  **Privacy.** Public numbers."""

    coefficients: Coefficients
    #: For each buffer, from what chunk ``a`` adds to what is lost of it at the start of ``b + 1``.
    ladder_mix: FloatArray
    #: Bound on ‖c̃ − c‖₂, c̃ any column that the integer coefficients really give.
    deviation: mpmath.mpf
    #: Bound on what rounding the buffers adds to the difference of two nodes.
    rounding: mpmath.mpf

    @property
    def chunk(self) -> int:
        """Leaves in a chunk."""
        return int(self.coefficients.buffer_mix.shape[1])

    @property
    def span(self) -> int:
        """Chunks in a span."""
        return len(self.coefficients.ladder)


def _round_sums(values: list[mpmath.mpf], bits: int) -> list[int]:
    """``2^bits·values`` as integers whose running sums are rounded: errors do not add up.

    Each integer is within 1 of its value, and never below 0 when no value is.
    """
    mp = values[0].context
    running, rounded = mp.mpf(0), [0]
    for value in values:
        running += mp.ldexp(value, bits)
        rounded.append(int(mp.nint(running)))
    return [after - before for before, after in pairwise(rounded)]


def _bits(value: mpmath.mpf) -> int:
    """Least ``b`` with ``value ≤ 2^b``."""
    mp = value.context
    return int(mp.ceil(mp.log(value, 2)))


@lru_cache(maxsize=32)
def encoder_tables(blt: Blt, *, small: bool = False) -> EncoderTables:
    """Compute the coefficients in multiple precision and round them.

    For a ``small`` state, chunks and spans are short.
    """
    chunk, span = (SMALL_CHUNK, SMALL_SPAN) if small else (CHUNK, SPAN)
    d = blt.buffers
    leaf_mix, buffer_mix = np.zeros((chunk, chunk + d)), np.zeros((d, chunk))
    ladder, decay = np.zeros((span, d), np.int64), np.zeros(d, np.int64)
    shifts = np.zeros((4, d), np.int64)
    with precision(PRECISION) as mp:
        deviation = mp.sqrt(chunk) * mp.ldexp(2, -COEFFICIENT_BITS)
        rounding = mp.mpf(0)
        inside = [mp.mpf(0)] * (chunk - 1)
        for i, (rate, weight) in enumerate(zip(blt.phi, blt.omega, strict=True)):
            log = mp.log1p(-rate)
            powers = [mp.exp(log * r) for r in range(chunk)]
            lost = [-mp.expm1(log * chunk * m) for m in range(span + 1)]
            inside = [c + weight * power for c, power in zip(inside, powers[:-1], strict=True)]
            g = COEFFICIENT_BITS - _bits(weight)
            f = COEFFICIENT_BITS + 2 * LIMB - g
            e = max(0, f + _bits(lost[1]) - GROWTH_BITS)
            ladder_shift = LADDER_BITS - (_bits(lost[span - 1]) if span > 1 else 0)
            decay_shift = DECAY_BITS - _bits(lost[span])
            shifts[:, i] = f, e, ladder_shift, decay_shift
            buffer_mix[i] = _round_sums([weight * power for power in powers], g)
            leaf_mix[:, chunk + i] = _round_sums([1 - power for power in powers], f - e)[::-1]
            ladder[:, i] = [int(mp.nint(mp.ldexp(x, ladder_shift))) for x in lost[:span]]
            decay[i] = int(mp.floor(mp.ldexp(lost[span], decay_shift)))
            # Lemmas 2 and 3 of docs/proofs/toeplitz.md.
            used = mp.ldexp(int(decay[i]), -decay_shift)
            off = mp.ldexp(1, e - f) + mp.ldexp(2, -ladder_shift)
            off = mp.ldexp(1, -g) + weight * off
            drift = weight * mp.ldexp(1, -decay_shift) * mp.sqrt(2 / used) / used
            length = mp.sqrt(chunk * span)
            deviation += 2 * length * (off * mp.sqrt(1 + 1 / used) + drift)
            units = mp.ldexp(1 / used + 2, -LIMB) + 1
            units = mp.ldexp(units, -COEFFICIENT_BITS - LIMB)
            rounding += (mp.ldexp(weight, g) + 1) * units
        toeplitz = [1 << COEFFICIENT_BITS, *_round_sums(inside, COEFFICIENT_BITS)]
    for leaf in range(chunk):
        leaf_mix[leaf, leaf:chunk] = toeplitz[: chunk - leaf]
    ladder_mix = np.zeros((d, span, span))
    for first in range(span):
        ladder_mix[:, first, first:] = ladder[: span - first].T
    # Every partial sum of products of limbs and coefficients must stay below 2^53.
    half = np.full((1, chunk), 1 << (COEFFICIENT_BITS - 1))
    nodes = np.vstack([leaf_mix[:, :chunk], buffer_mix, half])
    for matrix in (nodes, leaf_mix[:, chunk:], ladder_mix.max(axis=0)):
        if matrix.min() < 0 or matrix.sum(axis=0).max() * 2**LIMB >= 2**53:
            raise AssertionError("the coefficients leave no room for exact products")
    if shifts[0].max() > 42 or shifts[1].max() >= LIMB or shifts[2:].min() < LIMB:
        raise AssertionError("the coefficients leave no room in wide integers")
    f_bits, e_bits, ladder_shifts, decay_shifts = shifts
    coefficients = Coefficients(
        leaf_mix, buffer_mix, f_bits, e_bits, ladder, ladder_shifts, decay, decay_shifts
    )
    return EncoderTables(coefficients, ladder_mix, deviation, rounding)


@lru_cache(maxsize=64)
def largest_leaf(tables: EncoderTables, leaves: int, bits: int) -> int:
    """Size of the leaves that may be encoded on a lattice finer by ``2^bits``; others are clipped.

    Usually as much as ``leaves`` of them may sum up to; less where too many bits would not leave
    room for the buffers and nodes that such leaves can give (Lemma 1 of docs/proofs/toeplitz.md).
    """
    largest = LARGEST_TOTAL // leaves
    if not bits:
        return largest
    numbers, chunk, span = tables.coefficients, tables.chunk, tables.span
    sums = [int(total) for total in numbers.leaf_mix.sum(axis=0)]
    node, buffer = Fraction(sums[chunk - 1], 1 << COEFFICIENT_BITS), Fraction(1)
    for i, f in enumerate(numbers.fraction_bits.tolist()):
        kept = (chunk << f) - (sums[chunk + i] << int(numbers.growth_shift[i]))
        lost = Fraction(int(numbers.ladder[:, i].sum()), 1 << int(numbers.ladder_shift[i]))
        spans = 1 + Fraction(1 << int(numbers.decay_shift[i]), int(numbers.decay[i]))
        reached = min(Fraction(leaves << f), kept * (span - lost) * spans)
        buffer = max(buffer, reached)
        node += int(numbers.buffer_mix[i].max()) * reached / (1 << COEFFICIENT_BITS + 2 * LIMB)
    # Half the room is left for roundings and noise; the leaves of a chunk are summed up as well.
    room = min(LARGEST_NODE / max(node, Fraction(chunk)), LARGEST_BUFFER / buffer) / 2
    return min(largest, int(room) >> bits)


# --- Blocks --------------------------------------------------------------------------------------


def check_end(last: int, leaves: int) -> None:
    """Refuse leaf ``last`` of a stream of ``leaves``."""
    if last > leaves:
        raise StreamEnded(
            f"expected at most {leaves} leaves, found leaf {last}; "
            "the noise of a fixed-length strategy does not cover more"
        )


@dataclass(frozen=True)
class BltEncoder(Encoder):
    """Encode with one of the shipped strategies.

    State: the leaves of the open chunk (zeros after them); what each closed chunk of the open span
    adds to the buffers (zeros after them); the buffers at the start of the span.  The last two are
    wide integers, high parts first.

    Leaves, and so nodes, are counted on a lattice finer by ``2^bits``.  Leaves beyond ``limit``
    are clipped; by default to what there is room for.
    """

    tables: EncoderTables
    leaves: int
    bits: int = 0
    limit: int | None = None

    def start(self) -> State:
        """Everything is 0."""
        d = len(self.tables.coefficients.decay)
        return tuple(
            np.zeros(shape, np.int64)
            for shape in (self.tables.chunk, (2, d, self.tables.span), (2, d))
        )

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Nodes for the leaves ``first``, ``first + 1``, ….

        **Privacy.** Touches raw data.  Total: leaves beyond the room of the arithmetic, which a
        plan excludes, are clipped, and clipping cannot increase a difference.
        """
        count, limit = len(exact_leaves), self._largest
        check_end(first + count - 1, self.leaves)
        nodes = np.empty(count, np.int64)
        fast = kernels(count)
        if fast is not None:
            state = tuple(part.copy() for part in state)
            fast.encode(
                *(self.tables.coefficients, state, first - 1),
                *(exact_leaves, limit, self.bits, nodes),
            )
            return state, nodes
        done = 0
        while done < count:
            before = first + done - 1
            part = slice(done, min(count, done + BLOCK - before % self.tables.chunk))
            state = self._encode_block(state, before, exact_leaves[part], limit, nodes[part])
            done = part.stop
        return state, nodes

    def encode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, exact_leaves: IntArray
    ) -> IntArray:
        """One node for each row, as :meth:`encode`; changes the state in place.

        **Privacy.** As :meth:`encode`.
        """
        tables = self.tables
        if tables.span != 1:
            return super().encode_each(state, rows, leaf, exact_leaves)
        exact_open, _, exact_buffers = state
        limit = self._largest
        check_end(int(np.max(leaf, initial=0)), self.leaves)
        exact = np.clip(exact_leaves, -limit, limit)
        exact <<= self.bits
        place = (leaf - 1) % tables.chunk
        exact_open[rows, place] = exact
        inside = self._inside(exact_open, rows, place)
        nodes: IntArray = rounded_words(*inside, *self._outside(exact_buffers, rows, place))
        self._end_chunks(state, rows, place)
        return nodes

    def encode_rounds(
        self,
        state: State,
        rounds: Rounds,
        rows: IntArray,
        leaf: IntArray,
        exact_leaves: IntArray,
    ) -> IntArray:
        """The same for many leaves of each key, compiled.  **Privacy.** As :meth:`encode`."""
        tables, fast = self.tables, kernels(len(exact_leaves))
        if fast is None or tables.span != 1:
            return super().encode_rounds(state, rounds, rows, leaf, exact_leaves)
        exact_open, _, exact_buffers = state
        check_end(int(leaf.max()), self.leaves)
        nodes = np.empty(len(exact_leaves), np.int64)
        fast.encode_rounds(
            *(tables.coefficients, exact_open, exact_buffers, rows, (leaf - 1) % tables.chunk),
            *(np.ascontiguousarray(exact_leaves), self._largest, self.bits, nodes),
        )
        return nodes

    def _inside(
        self, exact_open: IntArray, rows: RowsOf, place: IntArray | int
    ) -> tuple[IntArray, IntArray]:
        """``Σ a x`` over the open chunk, for the low words of the leaves and for what is above."""
        mix = self._whole_mix[0]
        if not isinstance(place, int):
            exact_line, weights = exact_open[rows], mix.T[place]
            low = ((exact_line & WORD_MASK) * weights).sum(axis=1)
            return low, ((exact_line >> WORD) * weights).sum(axis=1)
        exact = exact_open[rows, place]
        weight = int(mix[place, place])
        low, high = (exact & WORD_MASK) * weight, (exact >> WORD) * weight
        for index in range(place):
            exact, weight = exact_open[rows, index], int(mix[index, place])
            low += (exact & WORD_MASK) * weight
            high += (exact >> WORD) * weight
        return low, high

    def _outside(
        self, exact_buffers: IntArray, rows: RowsOf, place: IntArray | int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """``Σ q ⌊S/2^21⌋`` over the buffers, for three words of them, the lowest first."""
        mix = self._whole_mix[1]
        sums = [np.zeros(1, np.int64)] * 3
        for i in range(len(mix)):
            high, low = exact_buffers[rows, 0, i], exact_buffers[rows, 1, i]
            weight = mix[i, place]
            sums = [
                total + word * weight for total, word in zip(sums, words(high, low), strict=True)
            ]
        return sums[0], sums[1], sums[2]

    @cached_property
    def _largest(self) -> int:
        """Leaves beyond this size are clipped: the limit, or what the arithmetic has room for."""
        if self.limit is not None:
            return self.limit
        return largest_leaf(self.tables, self.leaves, self.bits)

    @cached_property
    def _whole_mix(self) -> tuple[IntArray, IntArray]:
        """The coefficients ``a`` and ``q`` as integers."""
        numbers = self.tables.coefficients
        inside = numbers.leaf_mix[:, : self.tables.chunk]
        return inside.astype(np.int64), numbers.buffer_mix.astype(np.int64)

    def _end_chunks(self, state: State, rows: RowsOf, place: IntArray | int) -> None:
        """Of rows whose chunk is full, move the buffers on: ``S ← S − ⌊Φ S⌋ + added``."""
        exact_open, _, exact_buffers = state
        numbers, chunk = self.tables.coefficients, self.tables.chunk
        if not isinstance(place, int):
            full = place == chunk - 1
            if not full.any():
                return
            assert isinstance(rows, np.ndarray)
            rows = rows[full]
        elif place != chunk - 1:
            return
        exact_line, lost_mix = exact_open[rows], numbers.leaf_mix[:, chunk:]
        lowest, middle, top = (
            (part.astype(np.float64) @ lost_mix).astype(np.int64) for part in _limbs(exact_line, 3)
        )
        whole = exact_line.sum(axis=1)[:, None]
        added = growth(whole, lowest, middle, top, numbers.fraction_bits, numbers.growth_shift)
        start = np.stack(split(exact_buffers[rows, 0], exact_buffers[rows, 1]))
        total = start + np.stack(split(*added))
        high, low = difference(total, start * numbers.decay, numbers.decay_shift)
        exact_buffers[rows, 0], exact_buffers[rows, 1] = high, low
        exact_open[rows] = 0

    def _encode_block(
        self, state: State, before: int, exact_leaves: IntArray, limit: int, nodes: IntArray
    ) -> State:
        """Encode at most BLOCK leaves, after ``before`` others, into ``nodes``."""
        exact_open, exact_added, exact_buffers = state
        position = before % self.tables.chunk
        filled = position + len(exact_leaves)
        closed, rows = filled // self.tables.chunk, -(-filled // self.tables.chunk)
        exact_block = np.zeros(rows * self.tables.chunk, np.int64)
        exact_block[:position] = exact_open[:position]
        np.clip(exact_leaves, -limit, limit, out=exact_block[position:filled])
        if self.bits:
            exact_block[position:filled] <<= self.bits
        exact_chunks = exact_block.reshape(rows, self.tables.chunk)
        # What every chunk since the start of the open span adds to the buffers.
        skipped = before // self.tables.chunk % self.tables.span
        spans = (skipped + rows - 1) // self.tables.span + 1
        added = np.zeros((*exact_added.shape[:2], spans * self.tables.span), np.int64)
        added[..., :skipped] = exact_added[..., :skipped]
        products = self._leaf_products(exact_chunks, limb_count(limit << self.bits))
        lost = products[:, :closed, self.tables.chunk :].swapaxes(1, 2).astype(np.int64)
        _, _, f, e, *_ = self.tables.coefficients
        whole, top = exact_chunks[:closed].sum(axis=1), lost[2] if len(lost) == 3 else np.int64(0)
        grown = growth(whole, lost[0], lost[1], top, f[:, None], e[:, None])
        added[0, :, skipped : skipped + closed], added[1, :, skipped : skipped + closed] = grown
        ended = (skipped + closed) // self.tables.span
        buffers, following = self._climb(exact_buffers, added, ended)
        exact_left = np.zeros_like(exact_open)
        exact_left[: filled - closed * self.tables.chunk] = exact_block[
            closed * self.tables.chunk : filled
        ]
        self._mix(
            products[..., : self.tables.chunk], buffers[..., skipped : skipped + rows], exact_chunks
        )
        nodes[:] = exact_block[position:filled]
        exact_kept = np.zeros_like(exact_added)
        kept = added[..., ended * self.tables.span : skipped + closed]
        exact_kept[..., : kept.shape[-1]] = kept
        return exact_left, exact_kept, following

    def _leaf_products(self, exact_chunks: IntArray, count: int) -> FloatArray:
        """For each limb of the leaves, what it adds to nodes, and what it loses in each buffer."""
        rows, mix = len(exact_chunks), self.tables.coefficients.leaf_mix
        products = np.empty((count, rows, mix.shape[1]))
        for part in _slices(rows):
            exact_rest = exact_chunks[part]
            for product in products[:-1, part]:
                np.matmul((exact_rest & MASK).astype(np.float64), mix, out=product)
                exact_rest = exact_rest >> LIMB
            # The last limb keeps all higher bits and the sign.
            np.matmul(exact_rest.astype(np.float64), mix, out=products[-1, part])
        return products

    def _mix(self, products: FloatArray, buffers: IntArray, exact_nodes: IntArray) -> None:
        """Nodes, from the leaves' part and the buffers at the start of each chunk."""
        # The buffers without their lowest limb: their limb 2 lies beside limb 0 of the leaves.
        parts = np.stack(split(*buffers)[1:]).swapaxes(1, 2).astype(np.float64)
        for part in _slices(len(exact_nodes)):
            sums = parts[:, part] @ self.tables.coefficients.buffer_mix
            sums[1 : 1 + len(products)] += products[:, part]
            exact_nodes[part] = rounded(*sums.astype(np.int64))

    def _climb(
        self, exact_buffers: IntArray, added: IntArray, ended: int
    ) -> tuple[IntArray, IntArray]:
        """Buffers at the start of each chunk, and at the start of the span that is open at last.

        In a span, with ``ρ_m = 1 − θ^(64 m)`` as ``ladder_m/2^shift``:
        ``S_b = S_0 + Σ_{a<b} G_a − ⌊ρ_b S_0 + Σ_{a<b} ρ_{b−1−a} G_a⌋``.
        """
        ladder, shift = self.tables.coefficients.ladder, self.tables.coefficients.ladder_shift
        _, d, chunks = added.shape
        spans = chunks // self.tables.span
        # The last index b of these belongs to the start of chunk b + 1, still without S_0.
        total = np.stack(split(*added.reshape(2, d, spans, self.tables.span)))
        lost = (total.astype(np.float64) @ self.tables.ladder_mix).astype(np.int64)
        np.cumsum(total, axis=-1, out=total)
        last = difference(total[:, :, :ended, -1], lost[:, :, :ended, -1], shift[:, None])
        starts = self._advance(exact_buffers, *last)
        buffers = np.empty((2, d, spans, self.tables.span), np.int64)
        buffers[..., 0] = starts[..., :spans]
        start = np.stack(split(*buffers[..., :1]))
        total += start
        lost[..., :-1] += start * ladder[1:].T[:, None]
        buffers[0, ..., 1:], buffers[1, ..., 1:] = difference(
            total[..., :-1], lost[..., :-1], shift[:, None, None]
        )
        return buffers.reshape(2, d, chunks), starts[..., ended]

    def _advance(self, exact_buffers: IntArray, high: IntArray, low: IntArray) -> IntArray:
        """Buffers before each span and after the last: ``S ← S − ⌊Φ S⌋ + added``."""
        tables = self.tables.coefficients
        exact_starts = np.empty((2, len(high), high.shape[1] + 1), np.int64)
        for i, exact in enumerate(plain(exact_buffers)):
            decay, shift = int(tables.decay[i]), int(tables.decay_shift[i])
            starts = [exact]
            for exact_added in plain(np.stack([high[i], low[i]])):
                starts.append(starts[-1] + exact_added - (starts[-1] * decay >> shift))
            exact_starts[:, i] = wide(starts)
        return exact_starts


def _limbs(exact: IntArray, count: int) -> list[IntArray]:
    """So many limbs of integers, the last with all higher bits and the sign."""
    limbs = [(exact >> LIMB * number) & MASK for number in range(count - 1)]
    return [*limbs, exact >> LIMB * (count - 1)]


def limb_count(limit: int) -> int:
    """Limbs of leaves up to ``limit``: long streams have smaller leaves, and two hold them."""
    return 2 if limit < 1 << 2 * LIMB else 3


def plain(exact_wide: IntArray) -> list[int]:
    """Wide integers as plain ones."""
    highs, lows = exact_wide.tolist()
    return [(high << 63) + low for high, low in zip(highs, lows, strict=True)]


def wide(exact: list[int]) -> list[list[int]]:
    """Undo :func:`plain`: high parts, then low parts."""
    return [[value >> 63 for value in exact], [value & LOW for value in exact]]


def _slices(rows: int) -> list[slice]:
    return [slice(first, first + _SLICE) for first in range(0, rows, _SLICE)]
