"""The draws behind the noise of nodes, and how little they must move to hide a moved unit.

``N`` is the matrix from independent draws to the noise of nodes, found by impulses: the identity
for most strategies.  Draws ``z`` and ``z + Δ`` with ``N·Δ = moved`` give the same release on two
neighbours whose nodes differ by ``moved``, so the least norm of Δ is what the noise must cover.

**Privacy.** For tests and audits only: touches no private data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

from rillet.noise import IntArray
from rillet.strategy.base import Strategy

__all__ = ["ChosenDraws", "hiding_norms", "least_shift", "noise_matrix", "norm_of"]

#: Impulses are so large that a noise process may round what it makes of them.
LARGE_IMPULSE: Final = 2**30
#: A norm this close to a whole number is that number: programs of this kind have whole optima.
_WHOLE: Final = 1e-7


@dataclass
class ChosenDraws:
    """Stand-in for keyed noise: chosen integers by (level, index); remembers every address."""

    chosen: Callable[[int, int], int]
    addresses: list[tuple[int, int]] = field(default_factory=list)

    def level(self, number: int) -> _LevelDraws:
        """The draws of one level."""
        return _LevelDraws(self, number)


@dataclass(frozen=True)
class _LevelDraws:
    draws: ChosenDraws
    number: int

    def draw(self, start: int, count: int) -> IntArray:
        addresses = [(self.number, index) for index in range(start, start + count)]
        self.draws.addresses += addresses
        return np.array([self.draws.chosen(*address) for address in addresses], np.int64)


def noise_matrix(
    strategy: Strategy, leaves: int, shown: int | None = None
) -> tuple[NDArray[np.float64], list[tuple[int, int]]]:
    """``N`` for the first ``shown`` leaves of a stream of ``leaves``, and the draws' addresses."""
    process, count = strategy.noise_process(leaves), leaves if shown is None else shown

    def noise_of(draws: ChosenDraws) -> IntArray:
        return process.draw(process.start(), draws.level, 1, count)[1]

    silent = ChosenDraws(lambda _level, _index: 0)
    noise_of(silent)
    columns = [noise_of(ChosenDraws(_only(address))) for address in silent.addresses]
    return np.column_stack(columns) / float(LARGE_IMPULSE), silent.addresses


def _only(address: tuple[int, int]) -> Callable[[int, int], int]:
    return lambda level, index: LARGE_IMPULSE * ((level, index) == address)


def least_shift(
    law: str, noise: NDArray[np.float64], moved: ArrayLike
) -> NDArray[np.float64] | None:
    """The Δ with ``noise·Δ = moved`` of least L1 norm (Laplace) or L2 norm; None if none has it."""
    target = np.asarray(moved, np.float64)
    size = float(np.abs(target).max(initial=0.0)) or 1.0
    if law == "laplace":
        doubled = np.hstack([noise, -noise])
        solved = linprog(np.ones(doubled.shape[1]), A_eq=doubled, b_eq=target / size)
        if solved.status != 0:
            return None
        up, down = np.split(np.asarray(solved.x), 2)
        return np.asarray((up - down) * size)
    shift, *_ = np.linalg.lstsq(noise, target / size, rcond=None)
    return np.asarray(shift * size) if np.allclose(noise @ shift, target / size) else None


def norm_of(law: str, shift: NDArray[np.float64]) -> Fraction:
    """The L1 norm for Laplace noise, the square of the L2 norm for Gaussian noise."""
    found = float(np.abs(shift).sum() if law == "laplace" else shift @ shift)
    return Fraction(round(found)) if abs(found - round(found)) < _WHOLE else Fraction(found)


@lru_cache(maxsize=64)
def hiding_norms(strategy: Strategy, leaves: int) -> tuple[Fraction, ...] | None:
    """For each leaf, the norm of the least shift that hides its moving by 1.

    For a tree that is the number of its nodes which hold the leaf.  None where every node has a
    draw of its own: what nodes move by is then what draws move by.
    """
    noise, _ = noise_matrix(strategy, leaves)
    if np.array_equal(noise, np.eye(leaves)):
        return None
    encoder, norms = strategy.encoder(leaves), []
    for unit in np.eye(leaves, dtype=np.int64):
        moved = encoder.encode(encoder.start(), 1, unit)[1]
        shift = least_shift(strategy.law, noise, moved)
        assert shift is not None, "no noise hides this leaf"
        norms.append(norm_of(strategy.law, shift))
    return tuple(norms)
