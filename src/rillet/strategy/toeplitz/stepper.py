"""The BLT strategy one leaf at a time, in plain integers and floats, bit for bit as in blocks."""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Final

import numpy as np

from rillet.strategy.base import AWAY, State, Stepper
from rillet.strategy.toeplitz.blt import Blt
from rillet.strategy.toeplitz.encoder import (
    COEFFICIENT_BITS,
    LIMB,
    check_end,
    encoder_tables,
    largest_leaf,
    plain,
    wide,
)

#: What is taken off a leaf for those before it is kept this far from 0, on one side of it: Python
#: shifts negative integers in more steps, which would tell on which side it is.
_FURTHER: Final = AWAY // 2


class _Lists:
    """The coefficients of a strategy as lists of plain integers."""

    def __init__(self, blt: Blt, *, small: bool) -> None:
        whole = encoder_tables(blt, small=small)
        tables = whole.coefficients
        self.chunk, self.span = whole.chunk, whole.span
        leaf_mix: list[list[int]] = tables.leaf_mix.astype(np.int64).T.tolist()
        # a_r, …, a_1 for each r: what the r leaves before a node weigh, oldest first.
        self.inside = [column[:r] for r, column in enumerate(leaf_mix[: self.chunk])]
        self.growth = leaf_mix[self.chunk :]
        self.output: list[list[int]] = tables.buffer_mix.astype(np.int64).tolist()
        self.growth_shift: list[int] = tables.growth_shift.tolist()
        self.fraction_bits: list[int] = tables.fraction_bits.tolist()
        self.ladder: list[list[int]] = tables.ladder.T.tolist()
        self.ladder_shift: list[int] = tables.ladder_shift.tolist()
        self.decay: list[int] = tables.decay.tolist()
        self.decay_shift: list[int] = tables.decay_shift.tolist()


@lru_cache(maxsize=8)
def _lists(blt: Blt, *, small: bool) -> _Lists:
    return _Lists(blt, small=small)


class BltStepper(Stepper):
    """One leaf at a time.

    **Privacy.** Touches raw data; holds what the state of the encoder holds.
    """

    def __init__(
        self,
        blt: Blt,
        leaves: int,
        absorbed: int,
        encoder_state: State,
        decoder_state: State,
        bits: int = 0,
        *,
        limit: int | None = None,
        comb_bits: int = 0,
        small: bool = False,
    ) -> None:
        exact_open, exact_added, exact_buffers = encoder_state
        self._lists = _lists(blt, small=small)
        self._leaves, self._t = leaves, absorbed
        self._bits = bits
        self._limit: int = limit or 0
        if limit is None:
            self._limit = largest_leaf(encoder_tables(blt, small=small), leaves, bits)
        chunk, span = self._lists.chunk, self._lists.span
        chunks = absorbed // chunk % span
        # What is between the leaf that is given and what is added up: it is 2^bits as fine.
        self._away = AWAY << bits
        self._exact_open: list[int] = [
            leaf + self._away for leaf in exact_open[: absorbed % chunk].tolist()
        ]
        self._exact_added = [plain(exact_added[:, i, :chunks]) for i in range(blt.buffers)]
        self._exact_buffers = plain(exact_buffers)
        self._exact_base = self._begin_chunk()
        weights, poles = blt.decoder_floats
        weights = weights * 2.0 ** -(bits + comb_bits)
        carried: list[float] = decoder_state[0].tolist()
        self._sum, self._carried = carried[0], carried[1:]
        filters: list[tuple[float, float]] = list(
            zip(weights.tolist(), poles.tolist(), strict=True)
        )
        (self._sum_weight, self._sum_pole), *self._filters = filters

    def step(self, exact_leaf: int, noise: int) -> float:
        """Absorb one leaf and the noise of its node; return the noisy prefix sum."""
        check_end(self._t + 1, self._leaves)
        self._t += 1
        exact_leaf = max(AWAY - self._limit, min(exact_leaf, AWAY + self._limit)) << self._bits
        exact_open = self._exact_open
        index = len(exact_open)
        inside = sum(map(mul, self._lists.inside[index], exact_open))
        fixed = self._exact_base[index] + (inside << LIMB)
        node = exact_leaf + (fixed >> (COEFFICIENT_BITS + LIMB))
        exact_open.append(exact_leaf)
        if index == self._lists.chunk - 1:
            self._end_chunk()
        return self._decode(node + noise - _FURTHER)

    def _decode(self, noisy: int) -> float:
        value = float(noisy)
        prefix = self._sum_weight * value + self._sum
        self._sum = self._sum_pole * prefix
        carried = self._carried
        for i, (weight, pole) in enumerate(self._filters):
            filtered = weight * value + carried[i]
            carried[i] = pole * filtered
            prefix += filtered
        return prefix

    def _begin_chunk(self) -> list[int]:
        """What the buffers and the half that rounds give to each node of the chunk.

        Less what all leaves have too much, and more by what :meth:`step` takes off again, so that
        node and noise together are right.
        """
        lists, whole = self._lists, COEFFICIENT_BITS + LIMB
        half = (1 << whole - 1) + (AWAY - self._away + _FURTHER << whole)
        base = [half - (self._away * sum(inside) << LIMB) for inside in lists.inside]
        for i, start in enumerate(self._exact_buffers):
            added, ladder = self._exact_added[i], lists.ladder[i]
            lost = ladder[len(added)] * start + sum(map(mul, reversed(ladder[: len(added)]), added))
            exact = (start + sum(added) - (lost >> lists.ladder_shift[i])) >> LIMB
            base = [b + q * exact for b, q in zip(base, lists.output[i], strict=True)]
        return base

    def _end_chunk(self) -> None:
        lists = self._lists
        exact_sum = sum(self._exact_open) - self._away * len(self._exact_open)
        for i, growth in enumerate(lists.growth):
            lost = sum(map(mul, growth, self._exact_open)) - self._away * sum(growth)
            lost <<= lists.growth_shift[i]
            added = self._exact_added[i]
            added.append((exact_sum << lists.fraction_bits[i]) - lost)
            if len(added) == lists.span:
                start = self._exact_buffers[i]
                lost = sum(map(mul, reversed(lists.ladder[i]), added)) >> lists.ladder_shift[i]
                start -= start * lists.decay[i] >> lists.decay_shift[i]
                self._exact_buffers[i] = start + sum(added) - lost
                added.clear()
        self._exact_open.clear()
        self._exact_base = self._begin_chunk()

    def states(self) -> tuple[State, State]:
        """The states of encoder and decoder."""
        exact_open = np.zeros(self._lists.chunk, np.int64)
        exact_open[: len(self._exact_open)] = [leaf - self._away for leaf in self._exact_open]
        exact_added = np.zeros((2, len(self._exact_buffers), self._lists.span), np.int64)
        for i, added in enumerate(self._exact_added):
            exact_added[:, i, : len(added)] = wide(added)
        exact_buffers = np.array(wide(self._exact_buffers), np.int64)
        return (exact_open, exact_added, exact_buffers), (np.array([self._sum, *self._carried]),)
