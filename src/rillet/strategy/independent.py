"""Independent noise on every observation: the paper's straw man (section I), kept as a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from rillet.noise import FloatArray, IntArray, LawName
from rillet.strategy.base import Decoder, Encoder, State, Stepper, Strategy


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


class IndependentEncoder(Encoder):
    """No state."""

    def start(self) -> State:
        """Nothing to keep."""
        return ()

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """The leaves themselves.  **Privacy.** Touches raw data."""
        return (), exact_leaves


class IndependentDecoder(Decoder):
    """State: the noisy sum so far."""

    def start(self) -> State:
        """Sum 0."""
        return (np.zeros(1, np.int64),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, IntArray]:
        """Running sum of noisy leaves.  **Privacy.** Post-processing."""
        prefix = np.cumsum(noisy) + state[0]
        return (prefix[-1:].copy() if len(prefix) else state[0],), prefix


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
