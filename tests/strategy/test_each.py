"""One leaf of many keys at once gives what many leaves of one key give, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from rillet.noise import LAPLACE, LatticeNoise, Secret
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    DecayedIndependent,
    DecayedToeplitz,
    HonakerTree,
    Independent,
    RestartedTree,
    SignedDigitTree,
    SquareRootToeplitz,
    Strategy,
    WindowToeplitz,
)
from rillet.strategy.toeplitz import encoder as encoders_of_blt

KEYS, LEAVES = 6, 150
CASES = [
    (BufferedToeplitz().for_many_keys(), 200),
    (BufferedToeplitz().for_many_keys(), 2**13),
    (BufferedToeplitz().for_many_keys().refined(2**40, 2**21, 2.0**38), 2**40),
    (BufferedToeplitz(), 2**13),
    (DecayedToeplitz(half_life=10.0).for_many_keys(), 2**20),
    (WindowToeplitz(window=12).for_many_keys(), 2**20),
    (SquareRootToeplitz(), 200),
    (BinaryTree(), 200),
    (BinaryTree("gaussian"), 2**20),
    (HonakerTree(), 200),
    (SignedDigitTree(), 200),
    (SignedDigitTree(), 2**20),
    (RestartedTree(window=70), 2**20),
    (Independent(), 200),
    (DecayedIndependent(half_life=10.0), 2**20),
]


def _rows(state: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.array([part] * KEYS, order="F") for part in state)


@pytest.mark.parametrize(("strategy", "leaves"), CASES, ids=lambda case: str(case)[:60])
@pytest.mark.parametrize("size", [2**20, 2**40], ids=["usual", "large"])
@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_one_leaf_of_many_keys_as_many_leaves_of_one(
    strategy: Strategy, leaves: int, size: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "compiled":
        monkeypatch.setattr(encoders_of_blt, "SHORTEST_COMPILED", 1)
    else:
        monkeypatch.setattr(encoders_of_blt, "compiled", lambda _: None)
    rng = np.random.default_rng(leaves + size)
    leaf_of = rng.integers(-size, size, (KEYS, LEAVES))
    noise = rng.integers(-(2**30), 2**30, (KEYS, LEAVES))
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    expected = []
    for own, own_noise in zip(leaf_of, noise, strict=True):
        encoded, nodes = encoder.encode(encoder.start(), 1, own)
        decoded, sums = decoder.decode(decoder.start(), 1, nodes + own_noise)
        expected.append((nodes, sums, encoded, decoded))

    # All keys at the same leaf.
    encoders, decoders = _rows(encoder.start()), _rows(decoder.start())
    for t in range(LEAVES):
        nodes = encoder.encode_each(encoders, slice(None), t + 1, leaf_of[:, t])
        assert nodes.tolist() == [own[0][t] for own in expected]
        sums = decoder.decode_each(decoders, slice(None), t + 1, nodes + noise[:, t])
        assert sums.tolist() == [own[1][t] for own in expected]

    # Some keys at a time, each at a leaf of its own.
    ragged_encoders = _rows(encoder.start())
    ragged_decoders = _rows(decoder.start())
    t = np.zeros(KEYS, np.int64)
    while t.min() < LEAVES:
        rows = np.flatnonzero((rng.random(KEYS) < 0.6) & (t < LEAVES))
        leaf = t[rows]
        nodes = encoder.encode_each(ragged_encoders, rows, leaf + 1, leaf_of[rows, leaf])
        sums = decoder.decode_each(ragged_decoders, rows, leaf + 1, nodes + noise[rows, leaf])
        assert nodes.tolist() == [expected[row][0][i] for row, i in zip(rows, leaf, strict=True)]
        assert sums.tolist() == [expected[row][1][i] for row, i in zip(rows, leaf, strict=True)]
        t[rows] += 1

    # Several leaves of some keys at once, in rounds.
    rounds_encoders, rounds_decoders = _rows(encoder.start()), _rows(decoder.start())
    t[:] = 0
    while t.min() < LEAVES:
        turns, rounds = [np.empty(0, np.int64)], []
        for _ in range(rng.integers(1, 20)):
            begin = sum(map(len, turns))
            turns.append(np.flatnonzero((rng.random(KEYS) < 0.6) & (t < LEAVES)))
            rounds.append(slice(begin, begin + len(turns[-1])))
            t[turns[-1]] += 1
        rows = np.concatenate(turns)
        leaf = np.array([t[row] - np.count_nonzero(rows[i:] == row) for i, row in enumerate(rows)])
        exact, own_noise = leaf_of[rows, leaf], noise[rows, leaf]
        at = rounds, rows, leaf + 1
        nodes = encoder.encode_rounds(rounds_encoders, *at, exact)
        sums = decoder.decode_rounds(rounds_decoders, *at, nodes + own_noise)
        assert nodes.tolist() == [expected[row][0][i] for row, i in zip(rows, leaf, strict=True)]
        assert sums.tolist() == [expected[row][1][i] for row, i in zip(rows, leaf, strict=True)]

    for key, (_, _, *own) in enumerate(expected):
        for states in (
            (encoders, decoders),
            (ragged_encoders, ragged_decoders),
            (rounds_encoders, rounds_decoders),
        ):
            for parts, ones in zip(states, own, strict=True):
                assert all(
                    np.array_equal(part[key], one) for part, one in zip(parts, ones, strict=True)
                )


@pytest.mark.parametrize(
    ("strategy", "leaves"),
    [(SignedDigitTree(), 200), (RestartedTree(window=20), 2**20), (HonakerTree(), 200)],
    ids=lambda case: str(case)[:40],
)
def test_noise_of_many_keys_as_that_of_each(strategy: Strategy, leaves: int) -> None:
    class Rows:
        """Draws of many keys, a row for each."""

        def __init__(self, level: int) -> None:
            self.own = [_source(key, level) for key in range(KEYS)]

        def draw(self, start: int, count: int) -> np.ndarray:
            return np.stack([own.draw(start, count) for own in self.own])

    process = strategy.noise_process(leaves)
    states = [process.start()] * KEYS
    together = tuple(np.array([part] * KEYS) for part in process.start())
    for leaf in range(1, 90):
        together, noise = process.draw(together, Rows, leaf, 1)
        assert noise.shape == (KEYS, 1)
        for key in range(KEYS):
            states[key], own = process.draw(
                states[key], lambda level, key=key: _source(key, level), leaf, 1
            )
            assert own.tolist() == noise[key].tolist()
    for key in range(KEYS):
        assert all(
            np.array_equal(part[key], own) for part, own in zip(together, states[key], strict=True)
        )


def _source(key: int, level: int) -> LatticeNoise:
    return LatticeNoise(LAPLACE, 1000.0, Secret.for_tests(key), ("test", level))
