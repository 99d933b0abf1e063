"""Independent noise on every observation: the paper's straw man (section I), kept as a baseline.

With a short memory it is no straw man: of a half-life with pure ε it is the best that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from rillet.noise import FloatArray, IntArray, LawName
from rillet.options import option
from rillet.strategy.base import Decoder, Encoder, RowsOf, State, Stepper, Strategy
from rillet.strategy.recurrence import (
    LONGEST_HALF_LIFE,
    discount_of,
    filtered,
    forgetting_rate,
)


@dataclass(frozen=True)
class Independent(Strategy):
    """Every leaf gets noise of its own; the error grows with the square root of ``t``.

    **Privacy.** A leaf is its own node: L1 sensitivity ``steps``, squared L2 ``steps²``.
    """

    law: LawName = "laplace"
    name: ClassVar[str] = "independent"

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """``steps`` for Laplace noise, ``steps²`` for Gaussian noise."""
        return Fraction(steps ** (1 if self.law == "laplace" else 2))

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """Every leaf moves a node of its own."""
        return count * self.sensitivity(leaves, steps)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``t`` noises are added up."""
        return t.astype(np.float64)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """The noises of the shorter sum."""
        return np.minimum(earlier, later).astype(np.float64)

    def encoder(self, leaves: int) -> Encoder:
        """The identity."""
        return IndependentEncoder()

    def decoder(self, leaves: int) -> Decoder:
        """The running sum."""
        return IndependentDecoder()

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """A running sum one leaf at a time."""
        return IndependentStepper(decoder_state)


@dataclass(frozen=True)
class DecayedIndependent(Strategy):
    """Independent noise, and sums in which a leaf counts half after each ``half_life`` leaves.

    **Privacy.** As :class:`Independent`: only the decoder forgets.

    Parameters
    ----------
    half_life
        Leaves after which a leaf counts half, 1 to 2^30.
    law
        ``"laplace"`` or ``"gaussian"``.

    Examples
    --------
    >>> DecayedIndependent(half_life=168).weights(1000, np.array([1, 1000])).round(1).tolist()
    [1.0, 121.7]
    """

    half_life: float = option(ge=1.0, le=LONGEST_HALF_LIFE)
    law: LawName = "laplace"
    name: ClassVar[str] = "decayed-independent"

    def constants(self, leaves: int) -> tuple[float, ...]:
        """``1 − θ`` in units of 2^-53."""
        return (forgetting_rate(self.half_life),)

    def discount(self, leaves: int) -> float:
        """``θ = 2^(−1/half_life)``, to 53 bits."""
        return discount_of(self.half_life)

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """``steps`` for Laplace noise, ``steps²`` for Gaussian noise."""
        return Fraction(steps ** (1 if self.law == "laplace" else 2))

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """Every leaf moves a node of its own."""
        return count * self.sensitivity(leaves, steps)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``Σ_{j < t} θ^(2j)``."""
        return self.covariance(leaves, t, t)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """``θ^(later − earlier)·Σ_{j < earlier} θ^(2j)``."""
        rate = forgetting_rate(self.half_life) * 2.0**-53
        log = np.log1p(-rate)
        shared = np.expm1(2 * log * np.minimum(earlier, later)) / -(rate * (2 - rate))
        left: FloatArray = shared * np.exp(log * np.abs(np.subtract(later, earlier)))
        return left

    def encoder(self, leaves: int) -> Encoder:
        """The identity."""
        return IndependentEncoder()

    def decoder(self, leaves: int) -> Decoder:
        """``M_t = θ·M_{t−1} + y_t``."""
        return DecayedDecoder(discount_of(self.half_life))


class IndependentEncoder(Encoder):
    """No state."""

    def start(self) -> State:
        """Nothing to keep."""
        return ()

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """The leaves themselves.  **Privacy.** Touches raw data."""
        return (), exact_leaves

    def encode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, exact_leaves: IntArray
    ) -> IntArray:
        """The same."""
        return exact_leaves


class IndependentDecoder(Decoder):
    """State: the noisy sum so far."""

    def start(self) -> State:
        """Sum 0."""
        return (np.zeros(1, np.int64),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, IntArray]:
        """Running sum of noisy leaves.  **Privacy.** Post-processing."""
        prefix = np.cumsum(noisy) + state[0]
        return (prefix[-1:].copy() if len(prefix) else state[0],), prefix

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> IntArray:
        """The running sum of each.  **Privacy.** Post-processing."""
        prefix: IntArray = state[0][rows, 0] + noisy
        state[0][rows, 0] = prefix
        return prefix


@dataclass(frozen=True)
class DecayedDecoder(Decoder):
    """State: what is left of the noisy sum at the next leaf."""

    discount: float

    def start(self) -> State:
        """Sum 0."""
        return (np.zeros(1),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, FloatArray]:
        """Decayed sums, the same floats for any split.  **Privacy.** Post-processing."""
        if len(noisy) == 0:
            return state, np.zeros(0)
        sums, carried = filtered(1.0, self.discount, noisy.astype(np.float64), float(state[0][0]))
        return (np.array([carried]),), sums

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> FloatArray:
        """The decayed sum of each.  **Privacy.** Post-processing."""
        sums: FloatArray = noisy.astype(np.float64) + state[0][rows, 0]
        state[0][rows, 0] = self.discount * sums
        return sums


class IndependentStepper(Stepper):
    """The running sum in plain integers."""

    def __init__(self, decoder_state: State) -> None:
        self._prefix = int(decoder_state[0][0])

    def step(self, exact_leaf: int, noise: int) -> int:
        """Absorb one leaf."""
        self._prefix += exact_leaf + noise
        return self._prefix

    def states(self) -> tuple[State, State]:
        """Nothing, and the noisy sum."""
        return (), (np.array([self._prefix], np.int64),)
