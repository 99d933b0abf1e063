"""BLT: the square root of the prefix sums in constant memory, for Gaussian noise.

``A``, the matrix of prefix sums, has the generating function ``1/(1 − z)``; its square root
``(1 − z)^(−1/2)`` as encoder and decoder is the best Toeplitz factorisation for a known length
(Fichtenberger, Henzinger, Upadhyay 2023), but needs memory for the whole stream.  A rational fit
with a few buffers (Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024) comes within 1.5 % of it
in memory that does not grow.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

import mpmath
import numpy as np

from rillet.noise import FloatArray, IntArray, LawName
from rillet.options import option
from rillet.precision import precision
from rillet.strategy.base import Decoder, Encoder, Rounds, RowsOf, State, Stepper, Strategy
from rillet.strategy.recurrence import filtered
from rillet.strategy.toeplitz.blt import (
    FEWEST_BUFFERS,
    MOST_BUFFERS,
    PRECISION,
    Blt,
    blt_for,
    check_gaussian,
    squared_sensitivity,
)
from rillet.strategy.toeplitz.encoder import (
    BLOCK,
    BltEncoder,
    EncoderTables,
    encoder_tables,
    kernels,
    largest_leaf,
)
from rillet.strategy.toeplitz.stepper import BltStepper

#: Nodes have this many bits more than it takes for all their roundings to weigh as much as a leaf.
ROUNDING_BITS: Final = 6


class BltStrategy(Strategy):
    """What all strategies of a plain BLT share; a subclass says which one it is.

    **Privacy.** Squared L2 sensitivity ``(steps·‖c̃‖ + (1 + 2E)·√(leaves − 1))²``: the column of the
    coefficients that the encoder really uses, and the rounding of every node it touches, for
    inputs chosen adaptively too (docs/proofs/toeplitz.md); several leaves of one unit move nodes
    the most when they come first, all in one direction (docs/proofs/memory.md).
    """

    #: Nodes lie on a lattice finer by ``2^bits``: the encoder takes leaves ``2^bits`` times as
    #: large, and the decoder gives sums ``2^bits`` times as small.
    bits = 0
    #: By how much nodes are finer even so.
    comb_bits = 0
    #: Whether the encoder has a small state, for many keys.
    small = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gaussian(self.law)

    @abstractmethod
    def blt(self, leaves: int) -> Blt:
        """The rates for a stream of ``leaves`` leaves."""

    def tables(self, leaves: int) -> EncoderTables:
        """The encoder's coefficients."""
        return encoder_tables(self.blt(leaves), small=self.small)

    @abstractmethod
    def variant(self, bits: int, *, small: bool) -> Strategy:
        """The same strategy with nodes on a lattice finer by ``2^bits``, or a small state."""

    def for_many_keys(self) -> Strategy:
        """The same rates, rounded more often, with a small state."""
        return self.variant(self.bits, small=True)

    def constants(self, leaves: int) -> tuple[float, ...]:
        """The rates."""
        return self.blt(leaves).rates

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """Square of the L2 norm, rounded up."""
        norm, rounding = _column(self.blt(leaves), leaves, small=self.small)
        return squared_sensitivity(norm, steps << self.bits, leaves, rounding)

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """Square of the L2 norm, rounded up; nodes are rounded once, however many leaves move."""
        norm, rounding = _repeated(self.blt(leaves), leaves, count, apart, small=self.small)
        return squared_sensitivity(norm, steps << self.bits, leaves, rounding)

    def spread(self, leaves: int, steps: int, most: int, apart: int) -> Fraction:
        """Columns that go on for as long as the first of them is from the last."""
        if most == 1:
            return self.sensitivity(leaves, steps)
        norm, rounding = _spread(self.blt(leaves), leaves, most, apart, small=self.small)
        return squared_sensitivity(norm, steps << self.bits, leaves, rounding)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``Σ_{j < t} g_j²``, to a relative 2^-21."""
        return self.blt(leaves).error_variance(t) * 4.0**-self.bits

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """``Σ_{j < earlier} g_j g_{j + later − earlier}``."""
        first, second = np.asarray(earlier, np.float64), np.asarray(later, np.float64)
        return self.blt(leaves).error_covariance(first, second) * 4.0**-self.bits

    def encoder(self, leaves: int) -> Encoder:
        """Exact fixed-point recurrences."""
        return BltEncoder(self.tables(leaves), leaves, self.bits)

    def decoder(self, leaves: int) -> Decoder:
        """The inverse filter and the running sum, in partial fractions."""
        return BltDecoder(self.blt(leaves), self.bits)

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """Both, one leaf at a time in plain integers and floats."""
        blt = self.blt(leaves)
        return BltStepper(
            blt, leaves, absorbed, encoder_state, decoder_state, self.bits, small=self.small
        )

    def largest_leaf(self, leaves: int, bits: int) -> int:
        """Size of the leaves that there is room for, with so many bits."""
        return largest_leaf(self.tables(leaves), leaves, bits)

    def refined(self, leaves: int, steps: int, most: float) -> Strategy:
        """Nodes so fine that their rounding adds about 2^-6 of ``steps`` to the norm, at most.

        That takes ``2^bits·steps ≥ 2^6·√leaves``: usually no bits, but some for a long stream on a
        coarse lattice, such as one without a known end.  (More would make draws slower.)
        """
        bits, whole = 0, self.largest_leaf(leaves, 0)
        while (
            (steps << bits + self.comb_bits) ** 2 < leaves << 2 * ROUNDING_BITS
            and 2 << bits <= most
            and self.largest_leaf(leaves, bits + 1) == whole
        ):
            bits += 1
        return self.variant(bits, small=self.small) if bits else self


@dataclass(frozen=True)
class BufferedToeplitz(BltStrategy):
    """A buffered linear Toeplitz (BLT) strategy: constant memory, the accuracy of the square root.

    **Privacy.** As :class:`BltStrategy`.

    Parameters
    ----------
    law
        ``"gaussian"``.
    buffers
        Number of buffers, 2 to 8, of which streams of up to 2^30 leaves take at most 6; ``None``
        takes as few as come within 0.2 % of the square root, or as many as there are.

    Examples
    --------
    >>> strategy = BufferedToeplitz()
    >>> round(float(strategy.sensitivity(leaves=2**20, steps=2**20)) ** 0.5 / 2**20, 3)
    2.34
    """

    law: LawName = "gaussian"
    buffers: int | None = option(default=None, ge=FEWEST_BUFFERS, le=MOST_BUFFERS)
    name: ClassVar[str] = "buffered-toeplitz"

    def blt(self, leaves: int) -> Blt:
        """The fitted rates for a stream of ``leaves`` leaves."""
        if self.buffers is not None:
            return blt_for(leaves, self.buffers)
        log_length = (leaves - 1).bit_length()
        few = 3 + (log_length > 10) + (log_length > 14)
        return blt_for(leaves, few if log_length <= 17 else MOST_BUFFERS)

    def variant(self, bits: int, *, small: bool) -> FineToeplitz:
        """The same rates."""
        return FineToeplitz(self.law, self.buffers, bits, small)


@dataclass(frozen=True)
class FineToeplitz(BufferedToeplitz):
    """A buffered Toeplitz strategy with finer nodes or a small state; a plan takes it by itself."""

    bits: int = 0
    small: bool = False


@lru_cache(maxsize=64)
def _column(blt: Blt, leaves: int, *, small: bool) -> tuple[mpmath.mpf, mpmath.mpf]:
    """``‖c̃‖``, with the coefficients as the encoder's tables hold them, rounded up; and ``2E``."""
    tables = encoder_tables(blt, small=small)
    with precision(PRECISION):
        return blt.encoder_norm(leaves) + tables.deviation, tables.rounding


@lru_cache(maxsize=64)
def _repeated(
    blt: Blt, leaves: int, count: int, apart: int, *, small: bool
) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The same for several columns added up; buffers are then rounded twice a span."""
    tables = encoder_tables(blt, small=small)
    with precision(PRECISION):
        norm = blt.repeated_norm(leaves, count, apart) + count * tables.deviation
        return norm, 2 * tables.rounding


@lru_cache(maxsize=64)
def _spread(
    blt: Blt, leaves: int, most: int, apart: int, *, small: bool
) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The same where columns go on past the end; what they deviate by is a part of their norm."""
    tables = encoder_tables(blt, small=small)
    with precision(PRECISION) as mp:
        norm = blt.repeated_norm(leaves + (most - 1) * apart, most, apart)
        return norm * (1 + mp.sqrt(most) * tables.deviation), 2 * tables.rounding


@dataclass(frozen=True)
class BltDecoder(Decoder):
    """``1/((1 − θ z) c(z))`` in partial fractions: a running sum and ``d`` first-order filters.

    (The direct form of the same filter loses all its digits within some 10^7 leaves.)
    State: the weighted running sum, and for each filter what it carries to the next leaf.
    Nodes come on a lattice finer by ``2^bits``, which the weights undo exactly.
    """

    blt: Blt
    bits: int = 0

    def start(self) -> State:
        """Everything is 0."""
        return (np.zeros(self.blt.buffers + 1),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, FloatArray]:
        """Prefix sums; the same floats for any split into blocks.  **Privacy.** Post-processing."""
        carried = state[0].copy()
        weights, poles = self.blt.decoder_floats
        if self.bits:
            weights = weights * 2.0**-self.bits
        prefix = np.empty(len(noisy))
        fast = kernels(len(noisy))
        if fast is not None:
            fast.decode(weights, poles, carried, noisy, prefix)
            return (carried,), prefix
        for begin in range(0, len(noisy), BLOCK):
            part = noisy[begin : begin + BLOCK].astype(np.float64)
            out = prefix[begin : begin + BLOCK]
            if poles[0] == 1:
                np.multiply(part, weights[0], out=out)
                out[0] += carried[0]
                np.cumsum(out, out=out)
                carried[0] = out[-1]
            else:
                out[:], carried[0] = filtered(weights[0], poles[0], part, carried[0])
            for i in range(1, len(poles)):
                added, carried[i] = filtered(weights[i], poles[i], part, carried[i])
                out += added
        return (carried,), prefix

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> FloatArray:
        """The same for one leaf of each of some keys.  **Privacy.** Post-processing."""
        (carried,), (weights, poles) = state, self.blt.decoder_floats
        weights = weights * 2.0**-self.bits
        value, prefix = noisy.astype(np.float64), np.zeros(0)
        for i, (weight, pole) in enumerate(zip(weights, poles, strict=True)):
            filtered = weight * value
            filtered += carried[rows, i]
            carried[rows, i] = pole * filtered
            prefix = np.add(prefix, filtered, out=prefix) if i else filtered
        return prefix

    def decode_rounds(
        self, state: State, rounds: Rounds, rows: IntArray, leaf: IntArray, noisy: IntArray
    ) -> FloatArray:
        """The same for many leaves of each key, compiled.  **Privacy.** Post-processing."""
        fast = kernels(len(noisy))
        if fast is None:
            return super().decode_rounds(state, rounds, rows, leaf, noisy)
        weights, poles = self.blt.decoder_floats
        prefix = np.empty(len(noisy))
        fast.decode_rounds(weights * 2.0**-self.bits, poles, state[0], rows, noisy, prefix)
        return prefix
