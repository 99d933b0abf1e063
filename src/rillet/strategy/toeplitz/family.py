"""Toeplitz strategies for Gaussian noise: the square root, and its buffered approximation.

``A``, the matrix of prefix sums, has the generating function ``1/(1 − z)``; its square root
``(1 − z)^(−1/2)`` as encoder and decoder is the best Toeplitz factorisation for a known length
(Fichtenberger, Henzinger, Upadhyay 2023), but needs memory for the whole stream.  A rational fit
with a few buffers (BLT; Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024) comes within 1.5 % of
it in memory that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import mpmath
import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray
from rillet.strategy.base import Decoder, Encoder, State, Stepper, Strategy
from rillet.strategy.toeplitz.blt import FEWEST_BUFFERS, MOST_BUFFERS, PRECISION, Blt, blt_for
from rillet.strategy.toeplitz.decoder import BltDecoder
from rillet.strategy.toeplitz.encoder import BltEncoder
from rillet.strategy.toeplitz.square_root import (
    LONGEST,
    SquareRootDecoder,
    SquareRootEncoder,
    column_deviation,
    square_root_coefficients,
)
from rillet.strategy.toeplitz.stepper import BltStepper
from rillet.strategy.toeplitz.tables import encoder_tables


def _check_gaussian(law: str) -> None:
    if law != "gaussian":
        hint = "for pure noise use SignedDigitTree, which is more accurate"
        raise ParameterError("law", "'gaussian'", law, hint=hint)


def _squared_sensitivity(
    norm: mpmath.mpf, steps: int, leaves: int, rounding: mpmath.mpf
) -> Fraction:
    """``(steps·‖c̃‖ + (1 + 2E)·√(leaves − 1))²`` rounded up, as an exact rational."""
    with mpmath.workprec(PRECISION):
        length = steps * norm + (1 + rounding) * mpmath.sqrt(leaves - 1)
        bound = length**2 * (1 + mpmath.ldexp(1, -150))
        mantissa, exponent = bound.man_exp
    return int(mantissa) * Fraction(2) ** int(exponent)


@lru_cache(maxsize=64)
def _column_norm(blt: Blt, leaves: int) -> mpmath.mpf:
    """``‖c̃‖``: the norm of the coefficients as the encoder's tables hold them, rounded up."""
    with mpmath.workprec(PRECISION):
        return blt.encoder_norm(leaves) + encoder_tables(blt).deviation


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
        Number of buffers, 2 to 6; ``None`` takes as few as come within 0.2 % of the square root,
        or 6.

    Examples
    --------
    >>> strategy = BufferedToeplitz()
    >>> round(float(strategy.sensitivity(leaves=2**20, steps=2**20)) ** 0.5 / 2**20, 3)
    2.34
    """

    law: str = "gaussian"
    buffers: int | None = None
    name: ClassVar[str] = "buffered-toeplitz"

    def __post_init__(self) -> None:
        _check_gaussian(self.law)
        if self.buffers is not None and not FEWEST_BUFFERS <= self.buffers <= MOST_BUFFERS:
            expected = f"{FEWEST_BUFFERS} to {MOST_BUFFERS}, or None to choose"
            raise ParameterError("buffers", expected, self.buffers)

    def blt(self, leaves: int) -> Blt:
        """The fitted rates for a stream of ``leaves`` leaves."""
        if self.buffers is not None:
            return blt_for(leaves, self.buffers)
        log_length = (leaves - 1).bit_length()
        return blt_for(leaves, 3 + (log_length > 10) + (log_length > 14) + (log_length > 17))

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """Square of the L2 norm, rounded up."""
        blt = self.blt(leaves)
        return _squared_sensitivity(
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


@dataclass(frozen=True)
class SquareRootToeplitz(Strategy):
    """The square root of the matrix of prefix sums: the yardstick, for at most 2^16 leaves.

    Keeps the whole stream in its state and takes time quadratic in the length: use
    :class:`BufferedToeplitz` instead.

    **Privacy.** Squared L2 sensitivity ``(steps·‖c̃‖ + √(leaves − 1))²``: a node is an exactly
    linear function of the leaves, rounded once (docs/proofs/toeplitz.md).
    """

    law: str = "gaussian"
    name: ClassVar[str] = "square-root-toeplitz"

    def __post_init__(self) -> None:
        _check_gaussian(self.law)

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """Square of the L2 norm, rounded up."""
        _check_length(leaves)
        with mpmath.workprec(PRECISION):
            # Σ f_k² by floats: 2^16 additions of positive numbers, each within 2^-50 of the truth.
            squares = float(np.sum(square_root_coefficients(leaves) ** 2)) * (1 + 2.0**-30)
            norm = mpmath.sqrt(mpmath.mpf(squares)) + column_deviation(leaves)
        return _squared_sensitivity(norm, steps, leaves, mpmath.mpf(0))

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``Σ_{k < t} f_k²``."""
        running = np.cumsum(square_root_coefficients(leaves) ** 2)
        weight: FloatArray = running[np.asarray(t) - 1]
        return weight

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """``Σ_{k < earlier} f_k f_{k + later − earlier}``."""
        f = square_root_coefficients(leaves)
        first, second = np.broadcast_arrays(earlier, later)
        pairs = zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)
        shared = [float(f[: min(t, u)] @ f[abs(u - t) : max(t, u)]) for t, u in pairs]
        return np.array(shared, np.float64).reshape(first.shape)

    def encoder(self, leaves: int) -> Encoder:
        """Exact convolution, rounded."""
        _check_length(leaves)
        return SquareRootEncoder(leaves)

    def decoder(self, leaves: int) -> Decoder:
        """The same convolution again."""
        _check_length(leaves)
        return SquareRootDecoder(leaves)


def _check_length(leaves: int) -> None:
    if leaves > LONGEST:
        raise ParameterError(
            "length",
            f"at most {LONGEST:,} releases for the square root",
            leaves,
            hint="use BufferedToeplitz, which is within 1.5 % of it",
        )
