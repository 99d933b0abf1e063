"""A signed-digit tree that starts anew after each window: windows with pure ε, for ever.

Blocks of ``window`` leaves have trees of their own.  A prefix sum adds up the last prefix sums of
all blocks before and the prefix sum inside its own; in the difference of two of them that are a
window apart, all blocks but the last two cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray, LawName, NoiseSource
from rillet.options import option
from rillet.strategy.base import (
    Decoder,
    Encoder,
    Levels,
    NoiseProcess,
    State,
    Stepper,
    Strategy,
)
from rillet.strategy.signed_digit import (
    IdentityDecoder,
    PrefixEncoder,
    PrefixStepper,
    SignedDigitNoise,
    SignedDigitTree,
    shapes,
)

#: Leaves of a longer window at which the noise is measured when a shape is chosen.
_SAMPLED = 4096


@dataclass(frozen=True)
class RestartedTree(Strategy):
    """A signed-digit tree for each ``window`` leaves: the best pure noise for windows here.

    For short windows the best tree has one level, which is independent noise.

    **Privacy.** A leaf lies in ``h`` nodes of the tree of its block, and in no other: L1
    sensitivity ``h·steps`` however long the stream (docs/proofs/memory.md).

    Parameters
    ----------
    window
        Leaves of a window, 2 to 2^30.
    law
        ``"laplace"``.
    arity
        Odd number of children of a node; chosen for the least mean variance of a window when
        ``None``.

    Examples
    --------
    >>> RestartedTree(window=168).sensitivity(leaves=2**40, steps=10)
    Fraction(20, 1)
    """

    window: int = option(ge=2, le=2**30)
    law: LawName = "laplace"
    arity: int | None = option(default=None, ge=3)
    name: ClassVar[str] = "restarted-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.law != "laplace":
            hint = "for Gaussian noise use WindowToeplitz, which is more accurate"
            raise ParameterError("law", "'laplace'", self.law, hint=hint)
        self._tree()  # complains of an arity that is even

    def _tree(self) -> SignedDigitTree:
        """The tree of one block."""
        return SignedDigitTree(arity=self.arity or best_arity(self.window))

    def constants(self, leaves: int) -> tuple[float, ...]:
        """Arity and levels."""
        return self._tree().shape(self.window)

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """``h·steps``: that of one tree."""
        return self._tree().sensitivity(self.window, steps)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """All blocks before, and the nodes of this one."""
        return self.covariance(leaves, t, t)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """All blocks before the earlier leaf, and its nodes that the later one adds up as well.

        A later block adds up what its block does at its end.
        """
        tree, w = self._tree(), self.window
        block, leaf = np.divmod(np.minimum(earlier, later) - 1, w)
        later_block, later_leaf = np.divmod(np.maximum(earlier, later) - 1, w)
        last = np.where(block == later_block, later_leaf + 1, w)
        whole = float(tree.weights(w, np.array([w]))[0])
        shared: FloatArray = block * whole + tree.covariance(w, leaf + 1, last)
        return shared

    def encoder(self, leaves: int) -> Encoder:
        """Exact prefix sums."""
        return PrefixEncoder()

    def decoder(self, leaves: int) -> Decoder:
        """The identity: noisy prefix sums are what is released."""
        return IdentityDecoder()

    def noise_process(self, leaves: int) -> NoiseProcess:
        """The noise of the prefix sums, made from the noise of the nodes of each tree."""
        return RestartedNoise(self.window, SignedDigitNoise(*self._tree().shape(self.window)))

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """A running sum one leaf at a time."""
        return PrefixStepper(encoder_state)


@lru_cache(maxsize=64)
def best_arity(window: int) -> int:
    """The arity with the least mean variance of a window, at equal ε, from public numbers alone.

    Leaf ``i`` of a block ends a window whose noise is that of the block's first ``i`` leaves and of
    the last ``window − i`` of the block before.
    """
    spread = np.arange(1, _SAMPLED + 1) * 0.6180339887498949 % 1.0
    i = np.arange(1, window + 1) if window <= _SAMPLED else np.ceil(spread * window).astype(int)
    last = np.full(len(i), window)

    def noise(k: int, h: int) -> float:
        tree = SignedDigitTree(arity=k)
        first, whole = tree.weights(window, i), tree.weights(window, last)
        return h**2 * float(np.sum(2 * first + whole - 2 * tree.covariance(window, i, last)))

    return min((noise(k, h), h, k) for k, h in shapes(window))[2]


@dataclass(frozen=True)
class _From:
    """Draws from an index on."""

    source: NoiseSource
    begin: int

    def draw(self, start: int, count: int) -> IntArray:
        return self.source.draw(self.begin + start, count)


@dataclass(frozen=True)
class RestartedNoise(NoiseProcess):
    """``W(t)`` of the tree of a block, after those of all blocks before at their ends.

    State: the noise at the end of the last block, and the state of the tree.  Every block has
    draws of its own: on each level it counts on from where no earlier block can have drawn.

    **Privacy.** Touches no data; independent of them.
    """

    window: int
    tree: SignedDigitNoise

    @cached_property
    def _strides(self) -> list[int]:
        """Draws of each level that one block may need."""
        return self.tree.drawn(self.window)

    def start(self) -> State:
        """Nothing is drawn."""
        return np.zeros(1, np.int64), *self.tree.start()

    def draw(self, state: State, levels: Levels, first: int, count: int) -> tuple[State, IntArray]:
        """``W`` at leaves ``first``, ``first + 1``, …, block by block."""
        before, inner = state[0], state[1:]
        keys = before.shape[:-1]
        noise = np.empty((*keys, count), np.int64)
        done = 0
        while done < count:
            block, absorbed = divmod(first - 1 + done, self.window)
            part = noise[..., done : done + self.window - absorbed]
            done += part.shape[-1]

            def of_block(level: int, block: int = block) -> NoiseSource:
                return _From(levels(level), block * self._strides[level])

            inner, part[:] = self.tree.draw(inner, of_block, absorbed + 1, part.shape[-1])
            part += before
            if absorbed + part.shape[-1] == self.window:
                before = part[..., -1:].copy()
                inner = tuple(
                    np.broadcast_to(own, (*keys, *own.shape)) for own in self.tree.start()
                )
        return (before, *inner), noise
