"""The numbers behind a buffered linear Toeplitz (BLT) strategy, from its decay rates.

A BLT with ``d`` buffers (Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024) has the encoder
``c(z) = Π (1 − λ_i z)/(1 − θ_i z)``, a fit of ``(1 − z)^(−1/2)``.  Poles lie close to 1 and are
kept as rates ``φ_i = 1 − θ_i`` and ``ψ_i = 1 − λ_i``, from whose differences everything else
follows without cancellation:

| here | meaning |
|---|---|
| ``φ_i``, ``ψ_i`` | rates of encoder and decoder, in units of 2^-53; ``φ_1 < ψ_1 < φ_2 < …`` |
| ``ω_i`` | ``c_0 = 1`` and ``c_j = Σ ω_i θ_i^(j−1)`` |
| ``θ`` | what is left of a leaf after one more: 1, or less where leaves are forgotten |
| ``β_i`` | ``g_j = β_0 θ^j + Σ β_i λ_i^j``, the coefficients of ``g(z) = 1/((1 − θ z) c(z))`` |

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

import mpmath
import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray
from rillet.precision import precision

#: Precision, in bits, of everything that is computed before it is rounded.
PRECISION: Final = 240


def shipped(name: str) -> dict[tuple[int, int], tuple[float, ...]]:
    """A table of rates: (log2 of a number of leaves, buffers) to φ_1, ψ_1, φ_2, ψ_2, …."""
    content = pkgutil.get_data(__name__, name)
    assert content is not None
    lines = content.decode("utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {(int(n), int(d)): tuple(map(float, rates)) for n, d, *rates in rows}


#: (log2 of the length, buffers): φ_1, ψ_1, φ_2, ψ_2, …, in increasing order.
RATES: Final = shipped("rates.txt")
SMALLEST_LOG_LENGTH: Final = min(log_length for log_length, _ in RATES)
LARGEST_LOG_LENGTH: Final = max(log_length for log_length, _ in RATES)
FEWEST_BUFFERS: Final = min(buffers for _, buffers in RATES)
MOST_BUFFERS: Final = max(buffers for _, buffers in RATES)
#: Cells of the table of variances in each octave: 2^9, linear in between, error below 2^-21.
_CELL_BITS: Final = 9
_CELL_SHIFT: Final = 52 - _CELL_BITS


@dataclass(frozen=True)
class Blt:
    """One strategy: rates in units of 2^-53, increasing, encoder and decoder in turn.

    ``forgetting``, in the same unit and below all of them, is ``1 − θ``.
    """

    rates: tuple[int, ...]
    forgetting: int = 0

    @property
    def buffers(self) -> int:
        """Number of buffers ``d``."""
        return len(self.rates) // 2

    @cached_property
    def phi(self) -> list[mpmath.mpf]:
        """Rates of the encoder."""
        with precision(PRECISION) as mp:
            return [mp.ldexp(rate, -53) for rate in self.rates[0::2]]

    @cached_property
    def psi(self) -> list[mpmath.mpf]:
        """Rates of the decoder."""
        with precision(PRECISION) as mp:
            return [mp.ldexp(rate, -53) for rate in self.rates[1::2]]

    @cached_property
    def omega(self) -> list[mpmath.mpf]:
        """Output weights of the encoder: residues of ``c`` at its poles, all positive."""
        with precision(PRECISION):
            return _residues(self.phi, self.psi)

    @cached_property
    def beta(self) -> list[mpmath.mpf]:
        """``β_0, β_1, …``: residues of ``g`` at θ and at the zeros of ``c``, all positive."""
        with precision(PRECISION) as mp:
            own = mp.ldexp(self.forgetting, -53)
            phi, psi = ([rate - own for rate in rates] for rates in (self.phi, self.psi))
            others = _residues(psi, phi)
            first = mp.fprod(phi) / mp.fprod(psi)
            return [first, *(-value / rate for value, rate in zip(others, psi, strict=True))]

    def encoder_norm(self, leaves: int) -> mpmath.mpf:
        """``‖c‖₂`` over ``leaves`` coefficients, to a relative 2^-200."""
        with precision(PRECISION) as mp:
            return mp.sqrt(self.product(0, leaves))

    def product(self, lag: int, count: int) -> mpmath.mpf:
        """``Σ_{k < count} c_k c_{k + lag}``, to a relative 2^-200."""
        with precision(PRECISION) as mp:
            logs = [mp.log1p(-rate) for rate in self.phi]
            faded = [mp.exp(lag * log) for log in logs]
            total = mp.mpf(0 if lag else 1)
            for weight, rate, log, left in zip(self.omega, self.phi, logs, faded, strict=True):
                if lag:  # c_0 = 1 times c_lag
                    total += weight * left / (1 - rate)
                for other_weight, other, other_log in zip(self.omega, self.phi, logs, strict=True):
                    decay = rate + other - rate * other
                    lost = mp.expm1((count - 1) * (log + other_log))
                    total -= weight * left * other_weight * lost / decay
            return total

    def repeated_norm(self, leaves: int, count: int, apart: int) -> mpmath.mpf:
        """``‖Σ_{i < count} c(· − i·apart)‖₂`` over ``leaves`` nodes, to a relative 2^-200.

        ``Σ_j Σ_{l ≤ j} product(l·apart, leaves − j·apart)``, those with ``l > 0`` twice, summed up
        as geometric series.  Twice the usual precision: differences of rates near 0 cancel.
        """
        with precision(2 * PRECISION) as mp:
            logs = [mp.log1p(-rate) for rate in self.phi]
            rest = leaves - 1 - (count - 1) * apart  # nodes after the last of the leaves
            total = mp.mpf(count)
            for weight, log in zip(self.omega, logs, strict=True):
                q = mp.exp(apart * log)  # c_0 of a leaf meets all earlier ones
                met = q * (count * (1 - q) - (1 - q**count)) / (1 - q) ** 2
                total += 2 * weight * mp.exp(-log) * met
                for other_weight, other_log in zip(self.omega, logs, strict=True):
                    both, s = log + other_log, mp.exp(apart * other_log)
                    last = mp.exp(rest * both)
                    alone = count - last * (1 - (q * s) ** count) / (1 - q * s)
                    before = (1 - q**count) / (1 - q)
                    before -= last * q ** (count - 1) * (1 - s**count) / (1 - s)
                    both_ways = alone + 2 * q / (1 - q) * (alone - before)
                    total += weight * other_weight * both_ways / -mp.expm1(both)
            return mp.sqrt(total)

    @cached_property
    def decoder_floats(self) -> tuple[FloatArray, FloatArray]:
        """Weights ``β_0 … β_d`` and poles ``θ, λ_1 … λ_d``; as rates, the poles are exact."""
        weights = np.array([float(value) for value in self.beta])
        rates = (self.forgetting, *self.rates[1::2])
        return weights, np.array([float(2**53 - rate) * 2.0**-53 for rate in rates])

    def error_covariance(self, earlier: FloatArray, later: FloatArray) -> FloatArray:
        """``Σ_{j < earlier} g_j g_{j + later − earlier}``: covariance of two decoded sums.

        In units of one node's variance, by geometric series.
        """
        weights, _ = self.decoder_floats
        rates = np.array([self.forgetting * 2.0**-53, *(float(rate) for rate in self.psi)])
        logs = np.log1p(-rates)
        apart = np.abs(later - earlier)
        earlier = np.minimum(earlier, later) if np.any(later < earlier) else earlier
        total = np.zeros(np.broadcast_shapes(np.shape(earlier), np.shape(later)))
        for rate, log, weight in zip(rates, logs, weights, strict=True):
            shared = np.zeros(np.shape(earlier))  # Σ_{j < earlier} g_j λ^j, λ = 1 − rate
            for other, other_log, other_weight in zip(rates, logs, weights, strict=True):
                decay = rate + other - rate * other
                terms = -np.expm1(earlier * (log + other_log)) / decay if decay else earlier
                shared += other_weight * terms
            shared *= weight
            total += shared * np.exp(apart * log) if rate else shared
        return total

    @cached_property
    def _variance_table(self) -> FloatArray:
        """Variance at ``t = 2^e·(1 + i/512)``, octave after octave."""
        octaves = np.ldexp(1.0, np.arange(LARGEST_LOG_LENGTH + 2))
        inside = 1 + np.arange(2**_CELL_BITS) / 2**_CELL_BITS
        t = (octaves[:, None] * inside).ravel()
        return self.error_covariance(t, t)

    def error_variance(self, t: IntArray) -> FloatArray:
        """``Σ_{j < t} g_j²``: variance of the decoded sum, to a relative 2^-21 and fast.

        The leading bits of ``t`` as a float are the cell, the others say how far inside it lies.
        """
        bits = np.asarray(t).astype(np.float64).view(np.int64)
        cell = (bits >> _CELL_SHIFT) - (1023 << _CELL_BITS)
        inside = (bits & ((1 << _CELL_SHIFT) - 1)) * 2.0**-_CELL_SHIFT
        table = self._variance_table
        below = table[cell]
        variance: FloatArray = inside * (table[cell + 1] - below) + below
        return variance


def _residues(poles: list[mpmath.mpf], zeros: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """``Π_j (zeros_j − pole)/Π_{others} (other − pole)`` for each pole, all in rates."""
    residues = []
    for pole in poles:
        top = pole.context.fprod(zero - pole for zero in zeros)
        others = pole.context.fprod(other - pole for other in poles if other != pole)
        residues.append(top / others)
    return residues


@lru_cache(maxsize=64)
def blt_for(leaves: int, buffers: int) -> Blt:
    """The strategy fitted to the next power of two: within 0.2 % of the best for ``leaves``.

    Short streams gain nothing from many buffers: they take as many as were fitted.
    """
    if leaves > 2**LARGEST_LOG_LENGTH:
        raise ParameterError(
            "length",
            f"at most 2^{LARGEST_LOG_LENGTH} releases for this strategy",
            leaves,
            hint="release less often (every=…)",
        )
    log_length = max(SMALLEST_LOG_LENGTH, (leaves - 1).bit_length())
    while (log_length, buffers) not in RATES:
        buffers -= 1
    return Blt(tuple(round(rate * 2.0**53) for rate in RATES[log_length, buffers]))


def check_gaussian(law: str) -> None:
    """Refuse a Toeplitz strategy with other noise."""
    if law != "gaussian":
        hint = "for pure noise use SignedDigitTree, which is more accurate"
        raise ParameterError("law", "'gaussian'", law, hint=hint)


def squared_sensitivity(
    norm: mpmath.mpf, steps: int, leaves: int, rounding: mpmath.mpf
) -> Fraction:
    """``(steps·‖c̃‖ + (1 + 2E)·√(leaves − 1))²`` rounded up, as an exact rational."""
    with precision(PRECISION) as mp:
        length = steps * norm + (1 + rounding) * mp.sqrt(leaves - 1)
        bound = length**2 * (1 + mp.ldexp(1, -150))
        mantissa, exponent = bound.man_exp
    return int(mantissa) * Fraction(2) ** int(exponent)
