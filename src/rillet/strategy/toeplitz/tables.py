"""Fixed-point coefficients of a BLT encoder, with the bounds that its sensitivity needs.

| here | meaning |
|---|---|
| ``a_j`` | ``2^27·c_j``, rounded, for ``j < 64``: leaf to node within a chunk |
| ``S_i`` | buffer i, ``Σ θ_i^(…)·x``, in units of ``2^−f_i`` |
| ``q_{i,r}`` | ``2^g_i·ω_i θ_i^r``, rounded: buffer to node, ``g_i = 69 − f_i`` |
| ``v_{i,s}`` | ``2^(f_i − e_i)·(1 − θ_i^(63−s))``, rounded: what a leaf loses in its chunk |
| ``ρ_{i,m}`` | ``1 − θ_i^(64 m)``, as ``ladder / 2^shift``: what is lost in ``m`` chunks |
| ``Φ_i`` | ``1 − θ_i^1024``, as ``decay / 2^shift``: what is lost in a span |

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final

import mpmath
import numpy as np

from rillet.noise import FloatArray, IntArray
from rillet.strategy.toeplitz.blt import PRECISION, Blt
from rillet.strategy.toeplitz.wide import LIMB

#: Leaves between two roundings of the buffers that nodes see, and chunks between two that last.
CHUNK: Final = 64
SPAN: Final = 16
#: Bits of the coefficients.
COEFFICIENT_BITS: Final = 27
GROWTH_BITS: Final = 25
LADDER_BITS: Final = 27
DECAY_BITS: Final = 41


@dataclass(frozen=True, eq=False)
class EncoderTables:
    """Public integer coefficients; the arrays hold integers as floats where BLAS works on them."""

    #: ``a`` and ``q``: rows are leaves, then buffers, then the constant 1; columns are nodes.
    mix: FloatArray
    #: ``v``: rows are leaves of the chunk, columns are buffers.
    growth: FloatArray
    growth_shift: IntArray
    fraction_bits: IntArray
    #: ``ρ``: rows are numbers of chunks, columns are buffers.
    ladder: IntArray
    #: For each buffer, from what chunk ``a`` adds to what is lost of it at the start of ``b + 1``.
    ladder_mix: FloatArray
    ladder_shift: IntArray
    decay: IntArray
    decay_shift: IntArray
    #: Bound on ‖c̃ − c‖₂, c̃ any column that the integer coefficients really give.
    deviation: mpmath.mpf
    #: Bound on what rounding the buffers adds to the difference of two nodes.
    rounding: mpmath.mpf

    @property
    def buffers(self) -> int:
        """Number of buffers."""
        return len(self.decay)

    @cached_property
    def leaf_mix(self) -> FloatArray:
        """``a`` and ``v``: rows are leaves of the chunk; columns are nodes, then buffers."""
        return np.hstack([self.mix[:CHUNK], self.growth])


def _round_sums(values: list[mpmath.mpf], bits: int) -> list[int]:
    """``2^bits·values`` as integers whose running sums are rounded: errors do not add up.

    Each integer is within 1 of its value, and never below 0 when no value is.
    """
    running, rounded = mpmath.mpf(0), [0]
    for value in values:
        running += mpmath.ldexp(value, bits)
        rounded.append(int(mpmath.nint(running)))
    return [after - before for before, after in pairwise(rounded)]


def _bits(value: mpmath.mpf) -> int:
    """Least ``b`` with ``value ≤ 2^b``."""
    return int(mpmath.ceil(mpmath.log(value, 2)))


@lru_cache(maxsize=32)
def encoder_tables(blt: Blt) -> EncoderTables:
    """Compute the coefficients in multiple precision and round them."""
    d = blt.buffers
    mix = np.zeros((CHUNK + d + 1, CHUNK))
    growth = np.zeros((CHUNK, d))
    ladder = np.zeros((SPAN, d), np.int64)
    shifts = np.zeros((4, d), np.int64)
    decay = np.zeros(d, np.int64)
    with mpmath.workprec(PRECISION):
        deviation = mpmath.sqrt(CHUNK) * mpmath.ldexp(2, -COEFFICIENT_BITS)
        rounding = mpmath.mpf(0)
        inside = [mpmath.mpf(0)] * (CHUNK - 1)
        for i, (rate, weight) in enumerate(zip(blt.phi, blt.omega, strict=True)):
            log = mpmath.log1p(-rate)
            powers = [mpmath.exp(log * r) for r in range(CHUNK)]
            lost = [-mpmath.expm1(log * CHUNK * m) for m in range(SPAN + 1)]
            inside = [c + weight * power for c, power in zip(inside, powers[:-1], strict=True)]
            g = COEFFICIENT_BITS - _bits(weight)
            f = COEFFICIENT_BITS + 2 * LIMB - g
            e = max(0, f + _bits(lost[1]) - GROWTH_BITS)
            ladder_shift = LADDER_BITS - _bits(lost[SPAN - 1])
            decay_shift = DECAY_BITS - _bits(lost[SPAN])
            shifts[:, i] = f, e, ladder_shift, decay_shift
            mix[CHUNK + i] = _round_sums([weight * power for power in powers], g)
            growth[:, i] = _round_sums([1 - power for power in powers], f - e)[::-1]
            ladder[:, i] = [int(mpmath.nint(mpmath.ldexp(x, ladder_shift))) for x in lost[:SPAN]]
            decay[i] = int(mpmath.floor(mpmath.ldexp(lost[SPAN], decay_shift)))
            # Lemmas 2 and 3 of docs/proofs/toeplitz.md.
            used = mpmath.ldexp(int(decay[i]), -decay_shift)
            off = mpmath.ldexp(1, -g) + weight * (
                mpmath.ldexp(1, e - f) + mpmath.ldexp(2, -ladder_shift)
            )
            drift = weight * mpmath.ldexp(1, -decay_shift) * mpmath.sqrt(2 / used) / used
            length = mpmath.sqrt(CHUNK * SPAN)
            deviation += 2 * length * (off * mpmath.sqrt(1 + 1 / used) + drift)
            units = mpmath.ldexp(1 / used + 2, -LIMB) + 1
            rounding += (mpmath.ldexp(weight, g) + 1) * mpmath.ldexp(
                units, -COEFFICIENT_BITS - LIMB
            )
        toeplitz = [1 << COEFFICIENT_BITS, *_round_sums(inside, COEFFICIENT_BITS)]
    for leaf in range(CHUNK):
        mix[leaf, leaf:] = toeplitz[: CHUNK - leaf]
    mix[-1] = 1 << (COEFFICIENT_BITS - 1)  # one half: nodes are rounded to the nearest integer
    ladder_mix = np.zeros((d, SPAN, SPAN))
    for chunk in range(SPAN):
        ladder_mix[:, chunk, chunk:] = ladder[: SPAN - chunk].T
    _check_exact(mix, growth, ladder_mix.max(axis=0))
    if shifts[0].max() > 42 or shifts[1].max() >= LIMB or shifts[2:].min() < LIMB:
        raise AssertionError("the coefficients leave no room in wide integers")
    return EncoderTables(
        mix=mix,
        growth=growth,
        fraction_bits=shifts[0],
        growth_shift=shifts[1],
        ladder=ladder,
        ladder_mix=ladder_mix,
        ladder_shift=shifts[2],
        decay=decay,
        decay_shift=shifts[3],
        deviation=deviation,
        rounding=rounding,
    )


def _check_exact(*matrices: FloatArray) -> None:
    """Every partial sum of products of limbs and coefficients must stay below 2^53."""
    for matrix in matrices:
        if matrix.min() < 0 or matrix.sum(axis=0).max() * 2**LIMB >= 2**53:
            raise AssertionError("the coefficients leave no room for exact products")
