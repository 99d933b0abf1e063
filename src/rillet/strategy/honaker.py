"""The binary tree with Honaker's estimator (2015): bottom-up least squares on complete subtrees.

Every node of the binary tree gets noise, also the right children that a Fenwick tree leaves out.
A node's sum is then known twice, from itself and from its two children, and the two are averaged
with the weights of least squares.  That is post-processing: it costs no privacy and cuts the
variance of the binary tree by almost half.

To keep one node a leaf, the release is the exact prefix sum plus an integer noise process, like
that of the signed-digit tree.  The averages are rounded to integers on the way, in such a way that
the release is still a function of the noisy tree alone (docs/proofs/honaker.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from rillet.noise import FloatArray, IntArray, LawName
from rillet.strategy.base import Decoder, Encoder, Levels, NoiseProcess, State, Stepper, Strategy
from rillet.strategy.signed_digit import IdentityDecoder, PrefixEncoder, PrefixStepper
from rillet.strategy.tree import TreeDecoder, several_in_tree


@dataclass(frozen=True)
class HonakerTree(Strategy):
    """The binary tree, decoded by bottom-up least squares.

    **Privacy.** With ``L = leaves.bit_length()``, a leaf lies in at most ``L`` nodes: L1
    sensitivity ``L·steps``, squared L2 sensitivity ``L·steps²`` (docs/proofs/honaker.md).

    Examples
    --------
    >>> tree = HonakerTree()
    >>> tree.sensitivity(leaves=8, steps=10)
    Fraction(40, 1)
    >>> tree.weights(8, np.array([1, 2, 4, 7])).round(3).tolist()
    [1.0, 0.667, 0.571, 2.238]
    """

    law: LawName = "laplace"
    name: ClassVar[str] = "honaker-tree"

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """``L·steps`` for Laplace noise, ``L·steps²`` for Gaussian noise."""
        power = 1 if self.law == "laplace" else 2
        return Fraction(leaves.bit_length() * steps**power)

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """Leaves that are apart meet only in large nodes (docs/proofs/memory.md)."""
        return several_in_tree(self.law, leaves, steps, count, apart)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``Σ v_ℓ`` over the ones of ``t``, ``v_ℓ = 2^ℓ/(2^(ℓ+1) − 1)``."""
        return _ones(np.asarray(t, np.int64), leaves.bit_length())

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """``v_ℓ`` for each one in common, and the share that the rest has in the next node.

        Below the highest bit ``b`` where the two differ, ``earlier`` counts ``r`` leaves; they all
        lie in the node of size ``2^b`` that ``later`` adds, with weight ``1/(2^(b+1) − 1)`` each.
        """
        levels = leaves.bit_length()
        given = np.broadcast_arrays(np.asarray(earlier, np.int64), np.asarray(later, np.int64))
        first = np.minimum(*given)
        differ = given[0] ^ given[1]
        for shift in (1, 2, 4, 8, 16, 32):  # all ones from the highest difference down
            differ = differ | differ >> shift
        inside: FloatArray = (first & differ) / np.maximum(differ, 1)
        return inside + _ones(first & ~differ, levels)

    def encoder(self, leaves: int) -> Encoder:
        """Exact prefix sums."""
        return PrefixEncoder()

    def decoder(self, leaves: int) -> Decoder:
        """The identity: noisy prefix sums are what is released."""
        return IdentityDecoder()

    def noise_process(self, leaves: int) -> NoiseProcess:
        """The noise of the prefix sums, made from the noise of all nodes."""
        return HonakerNoise(leaves.bit_length())

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """A running sum one leaf at a time."""
        return PrefixStepper(encoder_state)


def _ones(t: IntArray, levels: int) -> FloatArray:
    total = np.zeros(t.shape)
    for level in range(levels):
        total += (t >> level & 1) * (2.0**level / (2.0 ** (level + 1) - 1))
    return total


@dataclass(frozen=True)
class HonakerNoise(NoiseProcess):
    """Noise of the least-squares prefix sums, in integers.

    State: for each level the estimate of a left child that still waits for its sibling (0 where
    none does); and the noise of the prefix sum at the last multiple of each ``2^ℓ``.

    **Privacy.** Touches no data; independent of them.
    """

    depth: int

    def start(self) -> State:
        """Nothing is drawn."""
        return np.zeros(self.depth, np.int64), *TreeDecoder(self.depth).start()

    def draw(self, state: State, levels: Levels, first: int, count: int) -> tuple[State, IntArray]:
        """Noise at leaves ``first``, ``first + 1``, …, leaves before roots."""
        if count == 0:
            return state, np.zeros(0, np.int64)
        if count > 1 and state[0].ndim > 1:  # of many keys, one leaf after the other
            drawn = []
            for leaf in range(first, first + count):
                state, own = self.draw(state, levels, leaf, 1)
                drawn.append(own)
            return state, np.concatenate(drawn, axis=1)
        waiting, closed = state
        following = waiting.copy()
        last = first - 1 + count
        below, below_first = np.zeros(0, np.int64), 0
        ending = np.empty(
            (*waiting.shape[:-1], count), np.int64
        )  # estimate of the largest node that ends at a leaf
        for level in range(self.depth):
            begin, end = (first - 1) >> level, last >> level  # nodes that end in the block
            if begin == end:
                break
            estimate = levels(level).draw(begin, end - begin)
            if level:
                children = below[..., 2 * begin + 1 - below_first :: 2].copy()  # right children
                left = below[..., 2 * begin + 2 - below_first :: 2]
                if below_first <= 2 * begin:
                    children[..., 0] += below[..., 2 * begin - below_first]
                else:
                    children[..., 0] += waiting[..., level - 1]
                children[..., 1:] += left[..., : children.shape[-1] - 1]
                estimate = combine(estimate, children, level)
            ending[..., ((begin + 1) << level) - first :: 1 << level] = estimate
            following[..., level] = estimate[..., -1] if end & 1 else 0
            below, below_first = estimate, begin
        decoder = TreeDecoder(self.depth)
        if waiting.ndim > 1:  # one leaf of each of many keys
            closed = closed.copy()
            return (following, closed), decoder.decode_each(
                (closed,), slice(None), first, ending[:, 0]
            )[:, None]
        (closed,), noise = decoder.decode((closed,), first, ending)
        return (following, closed), np.asarray(noise, np.int64)


def combine(own: IntArray, children: IntArray, level: int) -> IntArray:
    """``⌊(2^ℓ·own + (2^ℓ − 1)·children)/(2^(ℓ+1) − 1) + ½⌋`` in 64 bits.

    With ``w = own − children = 2a + b`` and ``D = 2^(ℓ+1) − 1`` this is
    ``children + a + ⌊(D(b + 1) + w)/(2D)⌋``.
    """
    apart = own - children
    whole = (1 << (level + 1)) - 1
    odd = apart & 1
    combined: IntArray = children + (apart >> 1) + (whole * (odd + 1) + apart) // (2 * whole)
    return combined
