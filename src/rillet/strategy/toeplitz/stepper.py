"""The BLT strategy one leaf at a time, in plain integers and floats, bit for bit as in blocks."""

from __future__ import annotations

from functools import lru_cache
from operator import mul

import numpy as np

from rillet.errors import StreamEnded
from rillet.strategy.base import State, Stepper
from rillet.strategy.toeplitz.blt import Blt
from rillet.strategy.toeplitz.decoder import decoder_coefficients
from rillet.strategy.toeplitz.encoder import LARGEST_TOTAL
from rillet.strategy.toeplitz.tables import CHUNK, COEFFICIENT_BITS, SPAN, encoder_tables
from rillet.strategy.toeplitz.wide import LIMB, LOW


class _Lists:
    """The tables of a strategy as lists of plain integers."""

    def __init__(self, blt: Blt) -> None:
        tables = encoder_tables(blt)
        mix = tables.mix.astype(np.int64)
        self.toeplitz: list[int] = mix[0].tolist()
        # toeplitz[r:0:-1] for each r: what the r leaves before a node weigh, oldest first.
        self.reversed = [self.toeplitz[r:0:-1] for r in range(CHUNK)]
        self.output: list[list[int]] = mix[CHUNK:-1].tolist()
        self.growth: list[list[int]] = tables.growth.astype(np.int64).T.tolist()
        self.growth_shift: list[int] = tables.growth_shift.tolist()
        self.fraction_bits: list[int] = tables.fraction_bits.tolist()
        self.ladder: list[list[int]] = tables.ladder.T.tolist()
        self.ladder_shift: list[int] = tables.ladder_shift.tolist()
        self.decay: list[int] = tables.decay.tolist()
        self.decay_shift: list[int] = tables.decay_shift.tolist()


@lru_cache(maxsize=8)
def _lists(blt: Blt) -> _Lists:
    return _Lists(blt)


class BltStepper(Stepper):
    """One leaf at a time.

    **Privacy.** Touches raw data; holds what the state of the encoder holds.
    """

    def __init__(
        self, blt: Blt, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> None:
        exact_open, exact_added, exact_buffers = encoder_state
        self._lists = _lists(blt)
        self._leaves, self._t = leaves, absorbed
        self._limit = LARGEST_TOTAL // leaves
        chunks = absorbed // CHUNK % SPAN
        self._exact_open: list[int] = exact_open[: absorbed % CHUNK].tolist()
        self._exact_added = [
            [
                (high << 63) + low
                for high, low in zip(*exact_added[:, i, :chunks].tolist(), strict=True)
            ]
            for i in range(blt.buffers)
        ]
        self._exact_buffers = [
            (high << 63) + low for high, low in zip(*exact_buffers.tolist(), strict=True)
        ]
        self._exact_base = self._begin_chunk()
        weights, poles = decoder_coefficients(blt)
        carried = decoder_state[0].tolist()
        self._sum, self._sum_weight = float(carried[0]), float(weights[0])
        self._carried: list[float] = carried[1:]
        self._filters: list[tuple[float, float]] = list(
            zip(weights[1:].tolist(), poles.tolist(), strict=True)
        )

    def step(self, exact_leaf: int, noise: int) -> float:
        """Absorb one leaf and the noise of its node; return the noisy prefix sum."""
        if self._t >= self._leaves:
            raise StreamEnded(
                f"expected at most {self._leaves} leaves, found leaf {self._t + 1}; "
                "the noise of a fixed-length strategy does not cover more"
            )
        self._t += 1
        exact_leaf = max(-self._limit, min(exact_leaf, self._limit))
        exact_open = self._exact_open
        place = len(exact_open)
        inside = sum(map(mul, self._lists.reversed[place], exact_open))
        fixed = self._exact_base[place] + (inside << LIMB)
        node = exact_leaf + (fixed >> (COEFFICIENT_BITS + LIMB))
        exact_open.append(exact_leaf)
        if place == CHUNK - 1:
            self._end_chunk()
        return self._decode(node + noise)

    def _decode(self, noisy: int) -> float:
        value = float(noisy)
        self._sum = prefix = self._sum_weight * value + self._sum
        carried = self._carried
        for i, (weight, pole) in enumerate(self._filters):
            filtered = weight * value + carried[i]
            carried[i] = pole * filtered
            prefix += filtered
        return prefix

    def _begin_chunk(self) -> list[int]:
        """What the buffers and the half that rounds give to each node of the chunk."""
        lists = self._lists
        base = [1 << (COEFFICIENT_BITS + LIMB - 1)] * CHUNK
        for i, start in enumerate(self._exact_buffers):
            added = self._exact_added[i]
            ladder = lists.ladder[i]
            place = len(added)
            lost = ladder[place] * start if place else 0
            lost += sum(map(mul, ladder[place - 1 :: -1], added)) if place else 0
            exact = start + sum(added) - (lost >> lists.ladder_shift[i])
            exact >>= LIMB
            base = [b + q * exact for b, q in zip(base, lists.output[i], strict=True)]
        return base

    def _end_chunk(self) -> None:
        lists = self._lists
        exact_sum = sum(self._exact_open)
        for i, growth in enumerate(lists.growth):
            lost = sum(map(mul, growth, self._exact_open)) << lists.growth_shift[i]
            added = self._exact_added[i]
            added.append((exact_sum << lists.fraction_bits[i]) - lost)
            if len(added) == SPAN:
                start = self._exact_buffers[i]
                lost = sum(map(mul, reversed(lists.ladder[i]), added)) >> lists.ladder_shift[i]
                start -= start * lists.decay[i] >> lists.decay_shift[i]
                self._exact_buffers[i] = start + sum(added) - lost
                added.clear()
        self._exact_open.clear()
        self._exact_base = self._begin_chunk()

    def states(self) -> tuple[State, State]:
        """The states of encoder and decoder."""
        d = len(self._exact_buffers)
        exact_open = np.zeros(CHUNK, np.int64)
        exact_open[: len(self._exact_open)] = self._exact_open
        exact_added = np.zeros((2, d, SPAN), np.int64)
        for i, added in enumerate(self._exact_added):
            exact_added[0, i, : len(added)] = [value >> 63 for value in added]
            exact_added[1, i, : len(added)] = [value & LOW for value in added]
        exact_buffers = np.array(
            [
                [value >> 63 for value in self._exact_buffers],
                [v & LOW for v in self._exact_buffers],
            ],
            np.int64,
        )
        return (exact_open, exact_added, exact_buffers), (np.array([self._sum, *self._carried]),)
