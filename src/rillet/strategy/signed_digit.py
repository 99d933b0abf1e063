"""The signed-digit tree of "Count on Your Elders" (Andersson, Pagh, Steiner, Torkamani 2024).

A prefix sum is written with balanced digits: ``t = Σ d_i·k^i`` with ``|d_i| ≤ (k − 1)/2``.  Where a
digit is negative, nodes that lie *ahead* of ``t`` are subtracted, so a prefix needs about half as
many nodes as in an ordinary ``k``-ary tree, and far fewer levels than a binary one.

Nodes ahead of ``t`` hold leaves that have not come yet.  Therefore the release is the exact prefix
sum plus an integer noise process, distributed as the decoding of a noisy tree: the sums of the
nodes cancel exactly, and only their noise is left (docs/proofs/signed-digit.md).

| here | meaning |
|---|---|
| ``k``, ``h`` | arity (odd) and number of levels |
| ``z(i, q)`` | noise of node ``q`` on level ``i``, over the leaves ``q·k^i + 1 … (q + 1)·k^i`` |
| ``m_i(t)`` | the whole number nearest to ``t/k^i`` |
| ``d_i(t)`` | balanced digit ``m_i − k·m_{i+1}`` |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray, LawName
from rillet.options import option
from rillet.strategy.base import (
    AWAY,
    Decoder,
    Encoder,
    Levels,
    NoiseProcess,
    RowsOf,
    State,
    Stepper,
    Strategy,
)

#: How far above the least possible arity the search looks, for each number of levels.
_ARITIES_TRIED = 16


@dataclass(frozen=True)
class SignedDigitTree(Strategy):
    """The signed-digit tree: the most accurate pure mechanism here.

    **Privacy.** The release is distributed as the decoding of a tree in which every leaf lies in
    ``h`` nodes: L1 sensitivity ``h·steps``, for inputs chosen adaptively too
    (docs/proofs/signed-digit.md).

    Parameters
    ----------
    law
        ``"laplace"``; the proof for adaptive inputs needs pure noise.
    arity
        Odd number of children of a node; chosen for the least variance when ``None``.
    objective
        What is made least: the ``"mean"`` or the ``"max"`` of the variance over the stream.

    Examples
    --------
    >>> SignedDigitTree().shape(1024)
    (13, 3)
    >>> SignedDigitTree().sensitivity(leaves=1024, steps=10)
    Fraction(30, 1)
    """

    law: LawName = "laplace"
    arity: int | None = option(default=None, ge=3)
    objective: Literal["mean", "max"] = "mean"
    name: ClassVar[str] = "signed-digit-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.law != "laplace":
            hint = "for Gaussian noise use BufferedToeplitz, which is more accurate"
            raise ParameterError("law", "'laplace'", self.law, hint=hint)
        if self.arity is not None and self.arity % 2 == 0:
            raise ParameterError("arity", "an odd number from 3 up, or None to choose", self.arity)

    def shape(self, leaves: int) -> tuple[int, int]:
        """Arity and number of levels for a stream of ``leaves`` leaves."""
        if self.arity is not None:
            return self.arity, levels_needed(self.arity, leaves)
        return best_shape(leaves, self.objective)

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """``h·steps``: a leaf lies in one node of each level."""
        return Fraction(self.shape(leaves)[1] * steps)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """Sum of the digits' sizes: as many nodes are added or subtracted."""
        k, h = self.shape(leaves)
        weight = np.zeros(np.shape(t), np.int64)
        for digit, _ in _digits(k, h, np.asarray(t, np.int64)):
            weight += np.abs(digit)
        return weight.astype(np.float64)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """Number of nodes in common.

        Two leaves share nodes of a level only when they count from the same multiple of the level
        above, in the same direction (docs/proofs/signed-digit.md).
        """
        k, h = self.shape(leaves)
        earlier, later = np.asarray(earlier, np.int64), np.asarray(later, np.int64)
        shared = np.zeros(np.broadcast_shapes(earlier.shape, later.shape), np.int64)
        both = zip(_digits(k, h, earlier), _digits(k, h, later), strict=True)
        for (digit, above), (other, other_above) in both:
            common = np.minimum(np.abs(digit), np.abs(other))
            shared += np.where((above == other_above) & (digit * other > 0), common, 0)
        return shared.astype(np.float64)

    def encoder(self, leaves: int) -> Encoder:
        """Exact prefix sums."""
        return PrefixEncoder()

    def decoder(self, leaves: int) -> Decoder:
        """The identity: noisy prefix sums are what is released."""
        return IdentityDecoder()

    def noise_process(self, leaves: int) -> NoiseProcess:
        """The noise of the prefix sums, made from the noise of the nodes."""
        return SignedDigitNoise(*self.shape(leaves))

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """A running sum one leaf at a time."""
        return PrefixStepper(encoder_state)


def _digits(k: int, h: int, t: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Balanced digit ``d_i`` and the number above it, ``m_{i+1}``, for each level ``i``."""
    digits = []
    whole = t
    for level in range(h):
        above = (2 * whole + k - 1) // (2 * k) if level < h - 1 else np.zeros_like(whole)
        digits.append((whole - k * above, above))
        whole = above
    return digits


# --- The shape -----------------------------------------------------------------------------------


def levels_needed(k: int, leaves: int) -> int:
    """Least ``h`` with ``(k^h − 1)/2 ≥ leaves``: the largest number that ``h`` digits can write."""
    h = 1
    while (k**h - 1) // 2 < leaves:
        h += 1
    return h


def _least_arity(h: int, leaves: int) -> int:
    """Least odd ``k ≥ 3`` with ``(k^h − 1)/2 ≥ leaves``."""
    k = max(3, int(float(2 * leaves + 1) ** (1 / h)) - 4) | 1
    while (k**h - 1) // 2 < leaves:
        k += 2
    while k > 3 and ((k - 2) ** h - 1) // 2 >= leaves:
        k -= 2
    return k


def total_weight(k: int, h: int, leaves: int) -> int:
    """``Σ_{t ≤ leaves} Σ_i |d_i(t)|``, in closed form.

    ``m_i`` stays at ``q`` for ``k^i`` leaves around ``q·k^i``, and ``|d_i|`` is the distance from
    ``q`` to the nearest multiple of ``k``.
    """
    c = (k - 1) // 2
    total = 0
    for level in range(h):
        size = k**level
        last = (2 * leaves + size - 1) // (2 * size)  # m_i at the last leaf
        periods, rest = divmod(last, k)  # distances of 0 … last − 1 first
        distances = periods * c * (c + 1) + _triangle(k, rest)
        total += size * distances
        begun = leaves - (last * size - (size - 1) // 2) + 1  # leaves at which m_i is `last`
        total += begun * min(rest, k - rest)
    return total


def _triangle(k: int, rest: int) -> int:
    """``Σ_{q < rest} min(q, k − q)`` for ``rest ≤ k``, without a loop."""
    c = (k - 1) // 2
    if rest <= c + 1:
        return rest * (rest - 1) // 2
    down = rest - 1 - c  # values c, c − 1, …
    return c * (c + 1) // 2 + down * (2 * c + 1 - down) // 2


def largest_weight(k: int, h: int, leaves: int) -> int:
    """``max_{t ≤ leaves} Σ_i |d_i(t)|``: numbers compare as their balanced digits do, top first."""
    c = (k - 1) // 2
    whole = leaves
    digits = []
    for _ in range(h):
        above = (2 * whole + k - 1) // (2 * k)
        digits.append(whole - k * above)
        whole = above
    best = taken = 0
    started = False
    for level in range(h - 1, -1, -1):
        digit = digits[level]
        # Put a smaller digit here; everything below is then free, and c each is the most.
        lowest = -c if started else 0
        if digit > lowest:
            best = max(best, taken + max(abs(lowest), abs(digit - 1)) + c * level)
        taken += abs(digit)
        started = started or digit > 0
    return max(best, taken)


@lru_cache(maxsize=256)
def best_shape(leaves: int, objective: str) -> tuple[int, int]:
    """Arity and levels with the least ``h²·`` (mean or max weight), from public numbers alone."""
    measure = total_weight if objective == "mean" else largest_weight
    _, h, k = min((h**2 * measure(k, h, leaves), h, k) for k, h in shapes(leaves))
    return k, h


def shapes(leaves: int) -> Iterator[tuple[int, int]]:
    """Arities and levels worth trying: for each number of levels the least arities that do."""
    for h in range(1, levels_needed(3, leaves) + 1):
        least = _least_arity(h, leaves)
        for k in range(least, least + 2 * _ARITIES_TRIED, 2):
            if levels_needed(k, leaves) == h:
                yield k, h


# --- Noise ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedDigitNoise(NoiseProcess):
    """``W(t)``: plus the nodes of the positive digits, minus those of the negative ones.

    State: for each level the sum of the nodes counted so far from a multiple of ``k`` upwards
    (positive digit), and the single nodes still to be given back (negative digit, at most
    ``(k − 1)/2``; the top level has none).  A node is drawn at the first leaf that needs it.

    **Privacy.** Touches no data; independent of them.
    """

    arity: int
    depth: int

    def start(self) -> State:
        """Nothing is drawn."""
        ahead = np.zeros((self.depth - 1, (self.arity - 1) // 2), np.int64)
        return np.zeros(self.depth, np.int64), ahead

    def draw(self, state: State, levels: Levels, first: int, count: int) -> tuple[State, IntArray]:
        """``W`` at leaves ``first``, ``first + 1``, …, top level first; O(count) in all."""
        if count == 0:
            return state, np.zeros(0, np.int64)
        k, c = self.arity, (self.arity - 1) // 2
        starts, ends = self._whole(first - 1), self._whole(first - 1 + count)
        sums, ahead = (part.copy() for part in state)
        keys = sums.shape[:-1]
        # Noise of all levels above, for each value that m_{i+1} takes in the block.
        above = np.zeros(1, np.int64)
        for level in range(self.depth - 1, -1, -1):
            start, end = starts[level], ends[level]
            upper_start, upper_end = starts[level + 1], ends[level + 1]
            drawn, needed = max(start, k * upper_start), max(end, k * upper_end)
            nodes = np.empty((*keys, needed - start), np.int64)
            if drawn > start:
                nodes[..., : drawn - start] = ahead[..., level, : drawn - start]
            if needed > drawn:
                nodes[..., drawn - start :] = levels(level).draw(drawn, needed - drawn)
            # Σ z(i, q), start ≤ q < start + index
            running = np.zeros((*keys, needed - start + 1), np.int64)
            np.cumsum(nodes, axis=-1, out=running[..., 1:])
            # The same at k·m_{i+1}, from where the digit counts.
            origin = k * np.arange(upper_start, upper_end + 1) - start
            counted = running[..., np.maximum(origin, 0)]
            if origin[0] < 0:  # the count began before the block
                counted[..., 0] = -sums[..., level]
            skipped = start - (k * upper_start - c)
            here = np.repeat(above - counted, k, axis=-1)[..., skipped : skipped + end - start + 1]
            here += running[..., : end - start + 1]
            above = here
            pending = k * upper_end - end
            sums[..., level] = running[..., end - start] - counted[..., -1] if pending < 0 else 0
            if level < self.depth - 1:
                ahead[..., level, :] = 0
                if pending > 0:
                    ahead[..., level, :pending] = nodes[..., end - start :]
        return (sums, ahead), above[..., 1:]

    def drawn(self, leaves: int) -> list[int]:
        """For each level how many nodes are drawn for so many leaves, some of them ahead."""
        whole = self._whole(leaves)
        return [max(own, self.arity * above) for own, above in pairwise(whole)]

    def _whole(self, t: int) -> list[int]:
        """``m_0 … m_h`` at ``t``, with ``m_h = 0``."""
        k = self.arity
        whole = [t]
        for _ in range(self.depth - 1):
            whole.append((2 * whole[-1] + k - 1) // (2 * k))
        return [*whole, 0]


# --- Encoder and decoder -------------------------------------------------------------------------


class PrefixEncoder(Encoder):
    """State: the exact total, an unreleased value like every state of an encoder."""

    def start(self) -> State:
        """Total 0."""
        return (np.zeros(1, np.int64),)

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Exact prefix sums.

        **Privacy.** Touches raw data.  The result is private only with the noise of
        :class:`SignedDigitNoise`; independent noise on it would not do.
        """
        exact_prefix = np.cumsum(exact_leaves, dtype=np.int64)
        exact_prefix += state[0]
        return (exact_prefix[-1:].copy() if len(exact_prefix) else state[0],), exact_prefix

    def encode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, exact_leaves: IntArray
    ) -> IntArray:
        """The exact total of each.  **Privacy.** As :meth:`encode`."""
        exact_total: IntArray = state[0][rows, 0] + exact_leaves
        state[0][rows, 0] = exact_total
        return exact_total


class IdentityDecoder(Decoder):
    """No state."""

    def start(self) -> State:
        """Nothing to keep."""
        return ()

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, IntArray]:
        """The noisy prefix sums themselves.  **Privacy.** Post-processing."""
        return (), noisy

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> IntArray:
        """The same."""
        return noisy


class PrefixStepper(Stepper):
    """The running sum in plain integers."""

    def __init__(self, encoder_state: State) -> None:
        self._exact_total = int(encoder_state[0][0]) + AWAY

    def step(self, exact_leaf: int, noise: int) -> int:
        """Absorb one leaf."""
        self._exact_total = total = self._exact_total + exact_leaf - AWAY
        return total + noise

    def states(self) -> tuple[State, State]:
        """The exact total, and nothing."""
        return (np.array([self._exact_total - AWAY], np.int64),), ()
