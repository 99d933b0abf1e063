"""Leaves one at a time, begun after any number of them, give what blocks give, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    DecayedToeplitz,
    Independent,
    SignedDigitTree,
    Strategy,
    WindowToeplitz,
)
from rillet.strategy.base import AWAY
from rillet.strategy.toeplitz import encoder as encoders_of_blt
from rillet.strategy.toeplitz.buffered import FineToeplitz


@pytest.mark.parametrize(
    "strategy",
    [
        BinaryTree(),
        BinaryTree("gaussian"),
        BufferedToeplitz(buffers=2),
        FineToeplitz(buffers=2, bits=4, small=True),
        DecayedToeplitz(half_life=10.0),
        Independent(),
        SignedDigitTree(),
        WindowToeplitz(window=12),
    ],
    ids=lambda strategy: str(strategy)[:40],
)
@pytest.mark.parametrize("absorbed", [0, 1, 6, 70])
@pytest.mark.parametrize("size", [2**20, 2**42], ids=["usual", "large"])
def test_single_steps_go_on_from_any_state_as_blocks_do(
    strategy: Strategy, size: int, absorbed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders_of_blt, "compiled", lambda _: None)
    leaves, count = 150 if size == 2**20 else 2**20, 140
    rng = np.random.default_rng(absorbed)
    exact_leaves = rng.integers(-size, size, count)
    noise = rng.integers(-(2**30), 2**30, count)
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    encoded, nodes = encoder.encode(encoder.start(), 1, exact_leaves)
    decoded, sums = decoder.decode(decoder.start(), 1, nodes + noise)
    before = encoder.encode(encoder.start(), 1, exact_leaves[:absorbed])[0]
    after = decoder.decode(decoder.start(), 1, (nodes + noise)[:absorbed])[0]
    stepper = strategy.stepper(leaves, absorbed, before, after)
    assert stepper is not None
    given, drawn = exact_leaves[absorbed:] + AWAY, noise[absorbed:] - AWAY
    left = zip(given.tolist(), drawn.tolist(), strict=True)
    assert [stepper.step(*pair) for pair in left] == sums[absorbed:].tolist()
    for ours, theirs in zip(stepper.states(), (encoded, decoded), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one, other)


def test_nodes_are_as_fine_as_leaves_unless_they_are_refined() -> None:
    exact_leaves = np.random.default_rng(1).integers(0, 2**20, 40)
    plain, fine = BufferedToeplitz(buffers=2).encoder(50), FineToeplitz(buffers=2).encoder(50)
    _, nodes = plain.encode(plain.start(), 1, exact_leaves)
    assert np.array_equal(nodes, fine.encode(fine.start(), 1, exact_leaves)[1])
