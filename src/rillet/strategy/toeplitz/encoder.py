"""The encoder of a BLT strategy: exact integers, the same for any split into blocks.

Leaves are taken in chunks of 64 and spans of 16 chunks, aligned to the leaf number.  Within a chunk
a node is an *exactly linear* function of the leaves and of the buffers at the start of the chunk,
with fixed-point coefficients, rounded once; these buffers are likewise linear in the buffers at
the start of the span and in what each chunk adds, rounded once.  Only the roundings, not the
fixed-point coefficients, have to be charged to the sensitivity (docs/proofs/toeplitz.md).

The linear parts are matrix products in float64.  Their operands are integers cut into limbs of 21
bits, so small that every product and every partial sum is an integer below 2^53: the result is
exact in any order of summation, whatever the BLAS does with threads and fused operations.

**Privacy.** Touches raw data; the state is exact sums and the leaves of the open chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rillet.errors import StreamEnded
from rillet.noise import FloatArray, IntArray
from rillet.strategy.base import Encoder, State
from rillet.strategy.toeplitz.fast import kernels
from rillet.strategy.toeplitz.tables import CHUNK, COEFFICIENT_BITS, SPAN, EncoderTables
from rillet.strategy.toeplitz.wide import LIMB, LOW, MASK, join, join_shifted, split, subtract

#: Leaves worked on at once: few enough for the second-level cache, enough for NumPy.
BLOCK: Final = 2**14
#: Chunks worked on at once where that is possible: few enough for the first-level cache, and for
#: OpenBLAS not to start threads, which cost many times the product itself on a busy machine.
_SLICE: Final = 48
#: Sum of the sizes of all leaves that the arithmetic has room for.
LARGEST_TOTAL: Final = 2**62


@dataclass(frozen=True)
class BltEncoder(Encoder):
    """Encode with one of the shipped strategies.

    State: the leaves of the open chunk (zeros after them); what each closed chunk of the open span
    adds to the buffers (zeros after them); the buffers at the start of the span.  The last two are
    wide integers, high parts first.
    """

    tables: EncoderTables
    leaves: int

    def start(self) -> State:
        """Everything is 0."""
        d = self.tables.buffers
        return (
            np.zeros(CHUNK, np.int64),
            np.zeros((2, d, SPAN), np.int64),
            np.zeros((2, d), np.int64),
        )

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Nodes for the leaves ``first``, ``first + 1``, ….

        **Privacy.** Touches raw data.  Total: leaves beyond the room of the arithmetic, which a
        plan excludes, are clipped, and clipping cannot increase a difference.
        """
        count = len(exact_leaves)
        if first + count - 1 > self.leaves:
            raise StreamEnded(
                f"expected at most {self.leaves} leaves, found leaf {first + count - 1}; "
                "the noise of a fixed-length strategy does not cover more"
            )
        nodes = np.empty(count, np.int64)
        fast = kernels(count)
        if fast is not None:
            state = exact_open, exact_added, exact_buffers = tuple(part.copy() for part in state)
            tables = self.tables
            fast.encode(
                exact_open,
                exact_added,
                exact_buffers,
                first - 1,
                exact_leaves,
                LARGEST_TOTAL // self.leaves,
                self._limb_count,
                tables.leaf_mix,
                tables.mix[CHUNK:-1],
                int(tables.mix[-1, 0]),
                COEFFICIENT_BITS,
                tables.growth_shift,
                tables.fraction_bits,
                tables.ladder,
                tables.ladder_shift,
                tables.decay,
                tables.decay_shift,
                nodes,
            )
            return state, nodes
        done = 0
        while done < count:
            before = first + done - 1
            size = min(count - done, BLOCK - before % CHUNK)
            part = slice(done, done + size)
            state = self._encode_block(state, before, exact_leaves[part], nodes[part])
            done += size
        return state, nodes

    def _encode_block(
        self, state: State, before: int, exact_leaves: IntArray, nodes: IntArray
    ) -> State:
        """Encode at most BLOCK leaves, after ``before`` others, into ``nodes``."""
        exact_open, exact_added, exact_buffers = state
        position = before % CHUNK
        filled = position + len(exact_leaves)
        closed, rows = filled // CHUNK, -(-filled // CHUNK)
        exact_block = np.zeros(rows * CHUNK, np.int64)
        exact_block[:position] = exact_open[:position]
        limit = LARGEST_TOTAL // self.leaves
        np.clip(exact_leaves, -limit, limit, out=exact_block[position:filled])
        exact_chunks = exact_block.reshape(rows, CHUNK)
        # What every chunk since the start of the open span adds to the buffers.
        skipped = before // CHUNK % SPAN
        spans = (skipped + rows - 1) // SPAN + 1
        added = np.zeros((2, self.tables.buffers, spans * SPAN), np.int64)
        added[..., :skipped] = exact_added[..., :skipped]
        products = self._leaf_products(exact_chunks)
        added[..., skipped : skipped + closed] = self._growth(
            exact_chunks[:closed].sum(axis=1), products[:, :closed, CHUNK:]
        )
        ended = (skipped + closed) // SPAN
        buffers, following = self._climb(exact_buffers, added, ended)
        exact_left = np.zeros_like(exact_open)
        exact_left[: filled - closed * CHUNK] = exact_block[closed * CHUNK : filled]
        self._mix(products[..., :CHUNK], buffers[..., skipped : skipped + rows], exact_chunks)
        nodes[:] = exact_block[position:filled]
        exact_kept = np.zeros_like(exact_added)
        exact_kept[..., : skipped + closed - ended * SPAN] = added[
            ..., ended * SPAN : skipped + closed
        ]
        return exact_left, exact_kept, following

    @property
    def _limb_count(self) -> int:
        """Long streams have smaller leaves: two limbs hold them."""
        return 2 if LARGEST_TOTAL // self.leaves < 1 << 2 * LIMB else 3

    def _leaf_products(self, exact_chunks: IntArray) -> FloatArray:
        """For each limb of the leaves, what it adds to nodes, and what it loses in each buffer."""
        rows, mix = len(exact_chunks), self.tables.leaf_mix
        products = np.empty((self._limb_count, rows, mix.shape[1]))
        for part in _slices(rows):
            exact_rest = exact_chunks[part]
            for product in products[:-1, part]:
                np.matmul((exact_rest & MASK).astype(np.float64), mix, out=product)
                exact_rest = exact_rest >> LIMB
            # The last limb keeps all higher bits and the sign.
            np.matmul(exact_rest.astype(np.float64), mix, out=products[-1, part])
        return products

    def _growth(self, exact_sums: IntArray, losses: FloatArray) -> IntArray:
        """What each chunk adds to each buffer, ``2^f Σ x − 2^e Σ v x``, as wide integers."""
        f, e = self.tables.fraction_bits[:, None], self.tables.growth_shift[:, None]
        lost = losses.swapaxes(1, 2).astype(np.int64)
        middle = lost[1] + (lost[0] >> LIMB)
        bottom = (lost[0] & MASK) | (middle & MASK) << LIMB
        top = middle >> LIMB
        if len(lost) == 3:
            top += lost[2]
        grown = np.empty((2, *lost[0].shape), np.int64)
        high, low = grown
        low[:] = (exact_sums & ((1 << (63 - f)) - 1)) << f
        low -= bottom << e | (top & ((1 << (LIMB - e)) - 1)) << (2 * LIMB + e)
        high[:] = (exact_sums >> (63 - f)) - (top >> (LIMB - e)) + (low >> 63)
        low &= LOW
        return grown

    def _mix(self, products: FloatArray, buffers: IntArray, exact_nodes: IntArray) -> None:
        """Nodes, from the leaves' part and the buffers at the start of each chunk."""
        buffer_mix, half = self.tables.mix[CHUNK:-1], int(self.tables.mix[-1, 0])
        # The buffers without their lowest limb: their limb 2 lies beside limb 0 of the leaves.
        parts = split(buffers)[1:].swapaxes(1, 2).astype(np.float64)
        for part in _slices(len(exact_nodes)):
            sums = parts[:, part] @ buffer_mix
            sums[1 : 1 + len(products)] += products[:, part]
            _carry(sums, half, exact_nodes[part])

    def _climb(
        self, exact_buffers: IntArray, added: IntArray, ended: int
    ) -> tuple[IntArray, IntArray]:
        """Buffers at the start of each chunk, and at the start of the span that is open at last.

        In a span, with ``ρ_m = 1 − θ^(64 m)`` as ``ladder_m/2^shift``:
        ``S_b = S_0 + Σ_{a<b} G_a − ⌊ρ_b S_0 + Σ_{a<b} ρ_{b−1−a} G_a⌋``.
        """
        tables = self.tables
        _, d, chunks = added.shape
        spans = chunks // SPAN
        shift = tables.ladder_shift[:, None, None]
        # The last index b of these belongs to the start of chunk b + 1, still without S_0.
        total = split(added.reshape(2, d, spans, SPAN))
        lost = (total.astype(np.float64) @ tables.ladder_mix).astype(np.int64)
        np.cumsum(total, axis=-1, out=total)
        last = slice(ended), slice(-1, None)
        whole = subtract(
            join(total[:, :, *last].copy()), join_shifted(lost[:, :, *last].copy(), shift)
        )
        starts = _advance(tables, exact_buffers, whole[..., 0])
        buffers = np.empty((2, d, spans, SPAN), np.int64)
        buffers[..., 0] = starts[..., :spans]
        start = split(buffers[..., :1])
        total += start
        lost[..., :-1] += start * tables.ladder[1:].T[:, None]
        buffers[..., 1:] = subtract(join(total), join_shifted(lost, shift))[..., :-1]
        return buffers.reshape(2, d, chunks), starts[..., ended]


def _slices(rows: int) -> list[slice]:
    return [slice(first, first + _SLICE) for first in range(0, rows, _SLICE)]


def _carry(products: FloatArray, half: int, nodes: IntArray) -> None:
    """Add up four limb products and drop the fraction: ``⌊(Σ_l 2^(21 l) V_l + …)/2^48⌋``.

    The half of the last bit, with which nodes are rounded, comes in with the second limb.
    """
    nodes[:] = products[0]
    nodes += half << LIMB
    nodes >>= LIMB
    exact_limb = products[1].astype(np.int64)
    nodes += exact_limb
    nodes >>= LIMB
    np.copyto(exact_limb, products[2], casting="unsafe")
    nodes += exact_limb
    nodes >>= COEFFICIENT_BITS - LIMB
    np.copyto(exact_limb, products[3], casting="unsafe")
    exact_limb <<= 2 * LIMB - COEFFICIENT_BITS
    nodes += exact_limb


def _advance(tables: EncoderTables, exact_buffers: IntArray, added: IntArray) -> IntArray:
    """Buffers before each span and after the last: ``S ← S − ⌊Φ S⌋ + added``."""
    _, d, spans = added.shape
    buffers = np.empty((2, d, spans + 1), np.int64)
    buffers[..., 0] = exact_buffers
    for i in range(d):
        decay, shift = int(tables.decay[i]), int(tables.decay_shift[i])
        exact = (int(buffers[0, i, 0]) << 63) + int(buffers[1, i, 0])
        highs, lows = [], []
        for high, low in zip(*added[:, i].tolist(), strict=True):
            exact += (high << 63) + low - (exact * decay >> shift)
            highs.append(exact >> 63)
            lows.append(exact & LOW)
        buffers[:, i, 1:] = highs, lows
    return buffers
