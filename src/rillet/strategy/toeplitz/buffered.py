"""BLT: the square root of the prefix sums in constant memory, for Gaussian noise.

``A``, the matrix of prefix sums, has the generating function ``1/(1 − z)``; its square root
``(1 − z)^(−1/2)`` as encoder and decoder is the best Toeplitz factorisation for a known length
(Fichtenberger, Henzinger, Upadhyay 2023), but needs memory for the whole stream.  A rational fit
with a few buffers (Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024) comes within 1.5 % of it
in memory that does not grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

import mpmath
import numpy as np

from rillet.noise import FloatArray, IntArray, LawName
from rillet.options import option
from rillet.precision import precision
from rillet.strategy.base import Decoder, Encoder, State, Stepper, Strategy
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
    encoder_tables,
    kernels,
    largest_leaf,
)
from rillet.strategy.toeplitz.stepper import BltStepper

#: Nodes have this many bits more than it takes for all their roundings to weigh as much as a leaf.
_ROUNDING_BITS: Final = 6


@dataclass(frozen=True)
class BufferedToeplitz(Strategy):
    """A buffered linear Toeplitz (BLT) strategy: constant memory, the accuracy of the square root.

    **Privacy.** Squared L2 sensitivity ``(steps·‖c̃‖ + (1 + 2E)·√(leaves − 1))²``: the column of the
    coefficients that the encoder really uses, and the rounding of every node it touches, for
    inputs chosen adaptively too (docs/proofs/toeplitz.md).

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gaussian(self.law)

    def blt(self, leaves: int) -> Blt:
        """The fitted rates for a stream of ``leaves`` leaves."""
        if self.buffers is not None:
            return blt_for(leaves, self.buffers)
        log_length = (leaves - 1).bit_length()
        few = 3 + (log_length > 10) + (log_length > 14)
        return blt_for(leaves, few if log_length <= 17 else MOST_BUFFERS)

    def constants(self, leaves: int) -> tuple[float, ...]:
        """The rates."""
        return self.blt(leaves).rates

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """Square of the L2 norm, rounded up."""
        blt = self.blt(leaves)
        return squared_sensitivity(
            _column_norm(blt, leaves), steps, leaves, encoder_tables(blt).rounding
        )

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``Σ_{j < t} g_j²``, to a relative 2^-21."""
        return self.blt(leaves).error_variance(t)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """``Σ_{j < earlier} g_j g_{j + later − earlier}``."""
        return self.blt(leaves).error_covariance(
            np.asarray(earlier, np.float64), np.asarray(later, np.float64)
        )

    def encoder(self, leaves: int) -> Encoder:
        """Exact fixed-point recurrences."""
        return BltEncoder(encoder_tables(self.blt(leaves)), leaves)

    def decoder(self, leaves: int) -> Decoder:
        """The inverse filter and the running sum, in partial fractions."""
        return BltDecoder(self.blt(leaves))

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """Both, one leaf at a time in plain integers and floats."""
        return BltStepper(self.blt(leaves), leaves, absorbed, encoder_state, decoder_state)

    def refined(self, leaves: int, steps: int, most: float) -> BufferedToeplitz:
        """Nodes so fine that their rounding adds about 2^-6 of ``steps`` to the norm, at most.

        That takes ``2^bits·steps ≥ 2^6·√leaves``: usually no bits, but some for a long stream on a
        coarse lattice, such as one without a known end.  (More would make draws slower.)
        """
        tables, bits = encoder_tables(self.blt(leaves)), 0
        whole = largest_leaf(tables, leaves, 0)
        while (
            (steps << bits) ** 2 < leaves << 2 * _ROUNDING_BITS
            and 2 << bits <= most
            and largest_leaf(tables, leaves, bits + 1) == whole
        ):
            bits += 1
        return FineToeplitz(self.law, self.buffers, bits) if bits else self


@dataclass(frozen=True)
class FineToeplitz(BufferedToeplitz):
    """A buffered Toeplitz strategy whose nodes lie on a lattice finer by ``2^bits``.

    It encodes leaves ``2^bits`` times as large, and decodes sums ``2^bits`` times as small.  A plan
    takes it by itself (:meth:`BufferedToeplitz.refined`).
    """

    bits: int = 0

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """That of leaves ``2^bits`` times as large."""
        return super().sensitivity(leaves, steps << self.bits)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """Variance in units of one node's, which are smaller."""
        return super().weights(leaves, t) * 4.0**-self.bits

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """Covariance in units of one node's variance, which are smaller."""
        return super().covariance(leaves, earlier, later) * 4.0**-self.bits

    def encoder(self, leaves: int) -> Encoder:
        """Exact fixed-point recurrences."""
        return BltEncoder(encoder_tables(self.blt(leaves)), leaves, self.bits)

    def decoder(self, leaves: int) -> Decoder:
        """The inverse filter and the running sum, in partial fractions."""
        return BltDecoder(self.blt(leaves), self.bits)

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """Both, one leaf at a time in plain integers and floats."""
        blt = self.blt(leaves)
        return BltStepper(blt, leaves, absorbed, encoder_state, decoder_state, self.bits)


@lru_cache(maxsize=64)
def _column_norm(blt: Blt, leaves: int) -> mpmath.mpf:
    """``‖c̃‖``: the norm of the coefficients as the encoder's tables hold them, rounded up."""
    with precision(PRECISION):
        return blt.encoder_norm(leaves) + encoder_tables(blt).deviation


@dataclass(frozen=True)
class BltDecoder(Decoder):
    """``1/((1 − z) c(z))`` in partial fractions: a running sum and ``d`` first-order filters.

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
            np.multiply(part, weights[0], out=out)
            out[0] += carried[0]
            np.cumsum(out, out=out)
            carried[0] = out[-1]
            for i, pole in enumerate(poles):
                filtered, carried[i + 1] = _filter(weights[i + 1], pole, part, carried[i + 1])
                out += filtered
        return (carried,), prefix


def _filter(
    weight: float, pole: float, values: FloatArray, carried: float
) -> tuple[FloatArray, float]:
    """``y_t = weight·x_t + carried``, ``carried ← pole·y_t``: each operation rounded by itself."""
    if not _rounds_each_operation():
        return _filter_slowly(weight, pole, values, carried)
    from scipy.signal import lfilter  # More than half of rillet's start, and only needed here.

    filtered, last = lfilter([weight], [1.0, -pole], values, zi=[carried])
    return filtered, float(last[0])


def _filter_slowly(
    weight: float, pole: float, values: FloatArray, carried: float
) -> tuple[FloatArray, float]:
    filtered = np.empty_like(values)
    for t, value in enumerate(values.tolist()):
        filtered[t] = result = weight * value + carried
        carried = pole * result
    return filtered, carried


@lru_cache(maxsize=1)
def _rounds_each_operation() -> bool:
    """Whether SciPy's filter was built without fused operations, which would round differently.

    Blocks must give what single steps give; on a machine where they would not, the loop is used.
    """
    values = np.sqrt(np.arange(2.0, 66.0))
    weight, pole = math.sqrt(0.2), math.sqrt(0.999)
    from scipy.signal import lfilter

    filtered, _ = lfilter([weight], [1.0, -pole], values, zi=[0.0])
    return bool(np.array_equal(filtered, _filter_slowly(weight, pole, values, 0.0)[0]))
