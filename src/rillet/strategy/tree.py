"""The binary tree (Dwork et al. 2010; Chan, Shi, Song 2011), the paper's BT, as a Fenwick tree.

At leaf ``t`` one node is completed that is ever needed: the sum of the leaves in
``(t − lowbit(t), t]``.  A leaf lies in at most ``leaves.bit_length()`` of them (one for each size
1, 2, 4, … up to the length); the prefix sum at ``t`` adds as many as ``t`` has binary ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np

from rillet.noise import FloatArray, IntArray, LawName
from rillet.strategy.base import AWAY, Decoder, Encoder, RowsOf, State, Stepper, Strategy


@dataclass(frozen=True)
class BinaryTree(Strategy):
    """The binary tree, pure with Laplace noise or with Gaussian noise.

    **Privacy.** With ``L = leaves.bit_length()``, one leaf moves at most ``L`` nodes by at most
    ``steps`` each: L1 sensitivity ``L·steps``, squared L2 sensitivity ``L·steps²``
    (docs/proofs/tree.md; the original has ``log2 n`` levels, one short at powers of two).

    Examples
    --------
    >>> BinaryTree().sensitivity(leaves=8, steps=10)
    Fraction(40, 1)
    """

    law: LawName = "laplace"
    name: ClassVar[str] = "binary-tree"

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """``L·steps`` for Laplace noise, ``L·steps²`` for Gaussian noise."""
        power = 1 if self.law == "laplace" else 2
        return Fraction(leaves.bit_length() * steps**power)

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """Leaves that are apart meet only in large nodes (docs/proofs/memory.md)."""
        return several_in_tree(self.law, leaves, steps, count, apart)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """Number of ones in ``t``: as many nodes are added up."""
        return np.bitwise_count(t).astype(np.float64)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """Number of nodes that both sums add up: the ones above the highest bit that differs."""
        differing = np.bitwise_xor(earlier, later)
        for shift in (1, 2, 4, 8, 16, 32):  # all ones from the highest differing bit down
            differing = differing | differing >> shift
        shared: FloatArray = np.bitwise_count(earlier & ~differing).astype(np.float64)
        return shared

    def encoder(self, leaves: int) -> Encoder:
        """Node sums from leaves."""
        return TreeEncoder(leaves.bit_length())

    def decoder(self, leaves: int) -> Decoder:
        """Prefix sums from noisy node sums."""
        return TreeDecoder(leaves.bit_length())

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """The Fenwick tree one leaf at a time."""
        return TreeStepper(absorbed, encoder_state, decoder_state)


def several_in_tree(law: str, leaves: int, steps: int, count: int, apart: int) -> Fraction:
    """``count`` leaves, ``apart`` from one another: at most ``⌈2^ℓ/apart⌉`` in a node of level ℓ.

    The squares of one level's nodes sum up to at most ``count`` times the largest of these numbers.
    """
    levels = range(leaves.bit_length())
    if law == "laplace":
        return Fraction(len(levels) * count * steps)
    together = sum(min(count, -(-(1 << level) // apart)) for level in levels)
    return Fraction(count * together * steps**2)


@dataclass(frozen=True)
class TreeEncoder(Encoder):
    """State: for each level ℓ the exact sum of the leaves since the last multiple of 2^ℓ."""

    levels: int

    def start(self) -> State:
        """No leaves: every open node is empty."""
        return (np.zeros(self.levels, np.int64),)

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Sum of each node that a leaf of the block completes.

        **Privacy.** Touches raw data; the sums are exact integers.
        """
        (exact_open,) = state
        before, last = first - 1, first - 1 + len(exact_leaves)
        exact_prefix = np.empty(len(exact_leaves) + 1, np.int64)
        exact_prefix[0] = 0
        np.cumsum(exact_leaves, out=exact_prefix[1:])
        nodes = np.array(exact_leaves)
        following = np.empty_like(exact_open)
        for level in range(self.levels):
            size = 1 << level
            boundary = last >> level << level  # the last multiple of size so far
            if boundary < first:  # no node of this size ends in the block
                following[level] = exact_open[level] + exact_prefix[-1]
                continue
            following[level] = exact_prefix[-1] - exact_prefix[boundary - before]
            # Leaves whose lowest one is `size`: they end the nodes of this level.
            end = first + (size - first) % (2 * size)
            if end > last:
                continue
            start = end - size
            if start < before:  # this node began before the block
                nodes[end - first] = exact_open[level] + exact_prefix[end - before]
                end += 2 * size
                start = end - size
            if level and end <= last:
                exact_ends = exact_prefix[end - before :: 2 * size]
                exact_starts = exact_prefix[start - before :: 2 * size][: len(exact_ends)]
                np.subtract(exact_ends, exact_starts, out=nodes[end - first :: 2 * size])
        return (following,), nodes

    def encode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, exact_leaves: IntArray
    ) -> IntArray:
        """The node that the next leaf of each completes.  **Privacy.** As :meth:`encode`."""
        exact_open, level = state[0][rows], _level(leaf, exact_leaves)
        exact_open += exact_leaves[:, None]
        nodes: IntArray = np.take_along_axis(exact_open, level, 1)[:, 0]
        exact_open[np.arange(self.levels) <= level] = 0
        state[0][rows] = exact_open
        return nodes


@dataclass(frozen=True)
class TreeDecoder(Decoder):
    """State: for each level ℓ the noisy prefix sum at the last multiple of 2^ℓ."""

    levels: int

    def start(self) -> State:
        """No leaves: every prefix sum is 0."""
        return (np.zeros(self.levels + 1, np.int64),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, IntArray]:
        """``P[t] = P[t − lowbit(t)] + node[t]``, from the largest nodes to the smallest.

        **Privacy.** Post-processing.
        """
        (closed,) = state
        last = first - 1 + len(noisy)
        prefix = np.array(noisy)
        following = np.array(closed)
        for level in range(self.levels, -1, -1):
            size = 1 << level
            end = first + (size - first) % (2 * size)
            if end <= last:
                if end - size < first:  # what it adds to was released before the block
                    prefix[end - first] += closed[min(level + 1, self.levels)]
                    end += 2 * size
                if end <= last:
                    ends = prefix[end - first :: 2 * size]
                    ends += prefix[end - size - first :: 2 * size][: len(ends)]
            boundary = last >> level << level
            if boundary >= first:
                following[level] = prefix[boundary - first]
        return (following,), prefix

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> IntArray:
        """The prefix sum of each.  **Privacy.** Post-processing."""
        closed, level = state[0][rows], _level(leaf, noisy)
        prefix: IntArray = np.take_along_axis(closed, level + 1, 1)[:, 0] + noisy
        closed = np.where(np.arange(self.levels + 1) <= level, prefix[:, None], closed)
        state[0][rows] = closed
        return prefix


def _level(leaf: IntArray | int, like: IntArray) -> IntArray:
    """For each row the level of the node that ends at its leaf, as a column."""
    lowest = leaf & -leaf
    return np.broadcast_to(np.bitwise_count(lowest - 1), like.shape).astype(np.int64)[:, None]


#: Totals are kept away from 0 by as much more than what is taken from them.
_FURTHER: Final = 2 * AWAY


class TreeStepper(Stepper):
    """One leaf at a time in plain integers."""

    def __init__(self, absorbed: int, encoder_state: State, decoder_state: State) -> None:
        self._t = absorbed
        # Two leaves at a time: the total as it was before the last odd leaf, and that leaf.
        self._exact_total, self._exact_odd = _FURTHER, AWAY
        # Exact total at the last multiple of 2^ℓ, relative to the total when stepping began.
        self._exact_marks: list[int] = [AWAY - value for value in encoder_state[0].tolist()]
        self._closed: list[int] = decoder_state[0].tolist()
        self._prefix = self._closed[0]

    def step(self, exact_leaf: int, noise: int) -> int:
        """Absorb one leaf; amortised over leaves, two list writes."""
        self._t = t = self._t + 1
        closed = self._closed
        if t & 1:  # the node is the leaf
            self._exact_odd = exact_leaf
            self._prefix = prefix = closed[1] + exact_leaf + noise
            return prefix
        self._exact_total = total = self._exact_total + self._exact_odd + exact_leaf - _FURTHER
        level, marks = (t & -t).bit_length() - 1, self._exact_marks
        # t − lowbit(t) is a multiple of 2^(level+1); at the top level it is 0, whose prefix is 0.
        self._prefix = prefix = closed[level + 1] + total - marks[level] + noise
        marks[: level + 1] = [total - AWAY] * (level + 1)
        closed[: level + 1] = [prefix] * (level + 1)
        return prefix

    def states(self) -> tuple[State, State]:
        """Open sums and closed prefix sums, as the block form keeps them."""
        total = self._exact_total - AWAY + (self._exact_odd - AWAY if self._t & 1 else 0)
        exact_open = np.array([total - mark for mark in self._exact_marks], np.int64)
        closed = np.array(self._closed, np.int64)
        exact_open[0], closed[0] = 0, self._prefix
        return (exact_open,), (closed,)
