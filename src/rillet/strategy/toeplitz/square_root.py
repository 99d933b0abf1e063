"""The square-root strategy: exact convolutions with ``2^24·f_k``, rounded.

Integers are cut into limbs of 20 bits, so that each convolution in float64 is exact in any order of
summation: ``2^20·Σ_k 2^24·f_k < 2^53`` for at most 2^16 coefficients, as ``Σ_{k<n} f_k`` is less
than ``2√(n/π) + 1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray, LawName
from rillet.precision import precision
from rillet.strategy.base import Decoder, Encoder, State, Strategy
from rillet.strategy.toeplitz.blt import PRECISION, check_gaussian, squared_sensitivity
from rillet.strategy.toeplitz.encoder import LARGEST_TOTAL, check_end

#: More leaves would take minutes.
LONGEST: Final = 2**16
_BITS: Final = 24
_LIMB: Final = 20
_LIMBS: Final = 4


@dataclass(frozen=True)
class SquareRootToeplitz(Strategy):
    """The square root of the matrix of prefix sums: the yardstick, for at most 2^16 leaves.

    Keeps the whole stream in its state and takes time quadratic in the length: use
    :class:`BufferedToeplitz` instead.

    **Privacy.** Squared L2 sensitivity ``(steps·‖c̃‖ + √(leaves − 1))²``: a node is an exactly
    linear function of the leaves, rounded once (docs/proofs/toeplitz.md).
    """

    law: LawName = "gaussian"
    name: ClassVar[str] = "square-root-toeplitz"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gaussian(self.law)

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """Square of the L2 norm, rounded up."""
        _check_length(leaves)
        with precision(PRECISION) as mp:
            # Σ f_k² by floats: 2^16 additions of positive numbers, each within 2^-50 of the truth.
            squares = float(np.sum(square_root_coefficients(leaves) ** 2)) * (1 + 2.0**-30)
            norm = mp.sqrt(mp.mpf(squares))
            norm += mp.sqrt(leaves) * mp.ldexp(2, -_BITS)  # each coefficient is within 2 units
            return squared_sensitivity(norm, steps, leaves, mp.mpf(0))

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """All come first and move in one direction (docs/proofs/memory.md)."""
        _check_length(leaves)
        rows = -(-leaves // apart)
        padded = np.zeros(rows * apart)
        padded[:leaves] = square_root_coefficients(leaves)
        columns = np.cumsum(padded.reshape(rows, apart), axis=0)  # Σ_i f(· − i·apart), all i
        columns[count:] -= columns[:-count].copy()
        with precision(PRECISION) as mp:
            # A difference of two sums of at most 2^16 floats, below 2^9, is off by less than 2^-24.
            norm = mp.sqrt(float(np.sum(columns.ravel()[:leaves] ** 2)) * (1 + 2.0**-30))
            norm += mp.sqrt(leaves) * (mp.ldexp(1, -24) + count * mp.ldexp(2, -_BITS))
            return squared_sensitivity(norm, steps, leaves, mp.mpf(0))

    def spread(self, leaves: int, steps: int, most: int, apart: int) -> Fraction:
        """Columns of ``leaves`` coefficients each, wherever they begin."""
        if most == 1:
            return self.sensitivity(leaves, steps)
        from scipy.signal import fftconvolve  # Half of a start, and only needed here.

        _check_length(leaves)
        f = square_root_coefficients(leaves)
        products = fftconvolve(f, f[::-1])[leaves - 1 :: apart][:most]  # of columns that meet
        pairs = most - np.arange(len(products))
        with precision(PRECISION) as mp:
            squares = most * products[0] + 2 * float(np.sum(pairs[1:] * products[1:]))
            norm = mp.sqrt(mp.mpf(float(squares)) * (1 + mp.ldexp(1, -30)))
            norm *= 1 + mp.sqrt(most * leaves) * mp.ldexp(2, -_BITS)
            return squared_sensitivity(norm, steps, leaves, mp.mpf(0))

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


@lru_cache(maxsize=4)
def square_root_coefficients(leaves: int) -> FloatArray:
    """``f_0 = 1, f_k = (1 − 1/(2k)) f_{k−1}``: the power series of ``(1 − z)^(−1/2)``."""
    k = np.arange(1, leaves, dtype=np.float64)
    coefficients = np.append(1.0, np.cumprod(1 - 1 / (2 * k)))
    coefficients.setflags(write=False)
    return coefficients


@lru_cache(maxsize=4)
def _fixed_point(leaves: int) -> FloatArray:
    """``2^24·f_k`` as integers whose running sums are rounded, so that errors do not add up."""
    running = np.rint(np.cumsum(square_root_coefficients(leaves)) * 2.0**_BITS)
    return np.diff(running, prepend=0.0)


def _convolve(exact_values: IntArray, count: int, leaves: int) -> list[IntArray]:
    """Limbs of ``Σ_k 2^24 f_k x_{t−k}`` for the last ``count`` values ``t``, lowest first."""
    coefficients = _fixed_point(leaves)[: len(exact_values)]
    limbs = []
    for number in range(_LIMBS):
        shifted = exact_values >> _LIMB * number
        limb = (shifted if number == _LIMBS - 1 else shifted & ((1 << _LIMB) - 1)).astype(
            np.float64
        )
        padded = np.concatenate([np.zeros(count - 1), limb])[-(len(coefficients) + count - 1) :]
        limbs.append(np.convolve(padded, coefficients, "valid").astype(np.int64))
    return limbs


@dataclass(frozen=True)
class SquareRootEncoder(Encoder):
    """State: every leaf so far, zeros after them."""

    leaves: int

    def start(self) -> State:
        """No leaves."""
        return (np.zeros(self.leaves, np.int64),)

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Nodes ``⌊Σ_k 2^24 f_k x_{t−k}/2^24 + ½⌋``.  **Privacy.** Touches raw data; total."""
        last = first + len(exact_leaves) - 1
        check_end(last, self.leaves)
        if len(exact_leaves) == 0:
            return state, np.zeros(0, np.int64)
        exact_all = state[0].copy()
        limit = LARGEST_TOTAL // self.leaves
        exact_all[first - 1 : last] = np.clip(exact_leaves, -limit, limit)
        limbs = _convolve(exact_all[:last], len(exact_leaves), self.leaves)
        total = limbs[0] + (1 << (_BITS - 1))
        total = (total >> _LIMB) + limbs[1]
        total = (total >> (_BITS - _LIMB)) + (limbs[2] << (2 * _LIMB - _BITS))
        total += limbs[3] << (3 * _LIMB - _BITS)
        return (exact_all,), total


@dataclass(frozen=True)
class SquareRootDecoder(Decoder):
    """State: every noisy node so far, zeros after them."""

    leaves: int

    def start(self) -> State:
        """No nodes."""
        return (np.zeros(self.leaves, np.int64),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, FloatArray]:
        """``Σ_k f_k y_{t−k}``, the same for any split.  **Privacy.** Post-processing."""
        last = first + len(noisy) - 1
        check_end(last, self.leaves)
        if len(noisy) == 0:
            return state, np.zeros(0)
        nodes = state[0].copy()
        nodes[first - 1 : last] = noisy
        limbs = _convolve(nodes[:last], len(noisy), self.leaves)
        prefix = limbs[3] * 2.0 ** (3 * _LIMB - _BITS) + limbs[2] * 2.0 ** (2 * _LIMB - _BITS)
        prefix += limbs[1] * 2.0 ** (_LIMB - _BITS) + limbs[0] * 2.0**-_BITS
        return (nodes,), prefix
