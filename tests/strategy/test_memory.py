"""Strategies with a memory, and units that move several leaves: proved bounds against the nodes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from mpmath import ellipk

from rillet.errors import ParameterError
from rillet.privacy import Guarantee
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    DecayedIndependent,
    DecayedToeplitz,
    HonakerTree,
    Independent,
    SignedDigitTree,
    SquareRootToeplitz,
    Strategy,
)
from rillet.strategy.base import Mechanism
from rillet.strategy.toeplitz.buffered import FineToeplitz
from rillet.strategy.toeplitz.decayed import FineDecayedToeplitz

#: So many steps that rounding, at most √leaves, weighs nothing.
STEPS = 2**30
TOEPLITZ = [
    BufferedToeplitz(),
    FineToeplitz(bits=4),
    SquareRootToeplitz(),
    DecayedToeplitz(half_life=30.0),
    FineDecayedToeplitz(half_life=30.0, bits=4),
]


def nodes(strategy: Strategy, exact_leaves: np.ndarray) -> np.ndarray:
    encoder = strategy.encoder(len(exact_leaves))
    return encoder.encode(encoder.start(), 1, exact_leaves)[1]


def moved(strategy: Strategy, move: np.ndarray, *, around: np.ndarray | None = None) -> float:
    before = np.zeros_like(move) if around is None else around
    difference = (nodes(strategy, before + move) - nodes(strategy, before)).astype(object)
    power = 1 if strategy.law == "laplace" else 2
    return float(sum(abs(each) ** power for each in difference))


# --- Several leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [*TOEPLITZ, Independent("gaussian"), Independent()], ids=str)
@pytest.mark.parametrize(("most", "apart"), [(2, 1), (10, 1), (5, 24), (40, 7), (3, 700)])
def test_repeated_is_what_the_first_leaves_move(strategy, most, apart):
    leaves = 900
    move = np.zeros(leaves, np.int64)
    move[: most * apart : apart] = STEPS
    claimed = float(strategy.repeated(leaves, STEPS, most, apart))
    assert 1 - 1e-4 < moved(strategy, move) / claimed <= 1


@pytest.mark.parametrize("strategy", [*TOEPLITZ, BinaryTree("gaussian"), BinaryTree()], ids=str)
def test_repeated_covers_any_leaves_and_any_signs(strategy):
    leaves, most, apart = 300, 6, 9
    generator = np.random.default_rng(1)
    for steps in (1, 5, STEPS):
        claimed = float(strategy.repeated(leaves, steps, most, apart))
        for _ in range(30):
            gaps = apart + generator.integers(0, 30, most) * generator.integers(0, 2)
            where = np.cumsum(gaps)
            move = np.zeros(leaves, np.int64)
            move[where[where < leaves]] = steps
            move *= generator.choice([-1, 1], leaves) if generator.integers(2) else 1
            around = generator.integers(0, 2**20, leaves)
            assert moved(strategy, move, around=around) <= claimed


def test_rounding_of_several_leaves_is_charged_once():
    """Small steps: nodes move by whole units where their columns say less than one."""
    strategy, leaves, most = BufferedToeplitz(), 2000, 8
    generator = np.random.default_rng(2)
    column = strategy.blt(leaves).repeated_norm(leaves, most, 1)
    move = np.zeros(leaves, np.int64)
    move[:most] = 1
    around = generator.integers(0, 2**20, leaves)
    found = math.sqrt(moved(strategy, move, around=around))
    assert float(column) < found <= math.sqrt(strategy.repeated(leaves, 1, most, 1))
    spent = math.sqrt(strategy.repeated(leaves, 0, most, 1))
    assert spent == pytest.approx(math.sqrt(leaves - 1), rel=1e-4)


@pytest.mark.parametrize(
    "strategy",
    [
        *TOEPLITZ,
        *(kind(law) for kind in (BinaryTree, HonakerTree) for law in ("laplace", "gaussian")),
        *(Independent(), Independent("gaussian"), SignedDigitTree()),
        DecayedIndependent(half_life=7.0),
    ],
    ids=str,
)
def test_repeated_is_sensitivity_at_one_and_never_above_group_privacy(strategy):
    leaves, steps = 2000, 2**20
    single = strategy.sensitivity(leaves, steps)
    assert strategy.repeated(leaves, steps, 1, 5) == single
    assert strategy.repeated(leaves, steps, 50, leaves) == single
    power = 1 if strategy.law == "laplace" else 2
    for apart in (1, 10, 300):
        claimed = [strategy.repeated(leaves, steps, most, apart) for most in (1, 2, 5, 7)]
        assert claimed == sorted(claimed)
        assert all(
            float(each) <= most**power * float(single) * (1 + 1e-4)
            for most, each in zip((1, 2, 5, 7), claimed, strict=True)
        )
    spread = [strategy.repeated(leaves, steps, 5, apart) for apart in (1, 10, 100, 400)]
    assert spread == sorted(spread, reverse=True)
    fitting = (leaves - 1) // 300 + 1
    assert strategy.repeated(leaves, steps, 10**6, 300) == strategy.repeated(
        leaves, steps, fitting, 300
    )


@pytest.mark.parametrize(
    ("most", "apart", "std"), [(1, 1, 3.96), (10, 1, 34.9), (50, 24, 124), (50, 168, 84.4)]
)
def test_noise_of_a_year_of_hours_for_a_person(most, apart, std):
    strategy, leaves = SquareRootToeplitz(), 8760
    norm = math.sqrt(strategy.repeated(leaves, STEPS, most, apart)) / STEPS
    found = norm * math.sqrt(strategy.weights(leaves, np.array([leaves]))[0])
    assert found == pytest.approx(std, rel=0.005)


def test_repeated_takes_no_time_without_an_end():
    strategy = BufferedToeplitz()
    norms = [math.sqrt(strategy.repeated(2**40, 2**26, most, 1)) for most in (10, 10**3, 10**9)]
    assert all(later > 50 * earlier for earlier, later in pairwise(norms))


# --- A half-life ---------------------------------------------------------------------------------


@pytest.mark.parametrize("half_life", [1.0, 2.5, 10.0, 60.0, 168.0, 1440.0, 10080.0, 2.0**16])
def test_decayed_toeplitz_is_near_the_square_root(half_life):
    strategy, leaves = DecayedToeplitz(half_life=half_life), 2**30
    discount = strategy.discount(leaves)
    assert discount**half_life == pytest.approx(0.5, rel=1e-9)
    assert strategy.constants(leaves)[-1] == (1 - discount) * 2**53  # keys the noise
    norm = math.sqrt(strategy.sensitivity(leaves, STEPS)) / STEPS
    error = norm * math.sqrt(strategy.weights(leaves, np.array([leaves]))[0])
    best = 2 / math.pi * float(ellipk(discount**2))
    assert 1 - 1e-9 < error / best < 1.006


@pytest.mark.parametrize(
    "strategy",
    [
        DecayedToeplitz(half_life=20.0),
        FineDecayedToeplitz(half_life=20.0, bits=5),
        DecayedToeplitz(half_life=1.0, buffers=5),
        DecayedIndependent(half_life=20.0),
    ],
    ids=str,
)
def test_decayed_sums_are_decoded(strategy):
    leaves = 3000
    generator = np.random.default_rng(3)
    values = generator.integers(0, 2**24, leaves)
    decoder, discount = strategy.decoder(leaves), strategy.discount(leaves)
    _, sums = decoder.decode(decoder.start(), 1, nodes(strategy, values))
    total, expected = 0.0, []
    for value in values.tolist():
        total = discount * total + value
        expected.append(total)
    assert np.allclose(sums, expected, rtol=0, atol=30)


def test_decayed_strategies_calibrate_with_finer_nodes():
    found = Mechanism.calibrate(
        DecayedToeplitz(half_life=1000.0), 2**40, Guarantee(1.0, 2**-20), observations=2**40
    )
    assert isinstance(found.strategy, FineDecayedToeplitz)
    assert found.strategy.constants(2**40) == DecayedToeplitz(half_life=1000.0).constants(2**40)
    norm = float(found.strategy.blt(2**40).encoder_norm(2**40))
    spent = math.sqrt(found.sensitivity(found.steps)) / (found.steps << found.strategy.bits)
    assert norm < spent < 1.02 * norm


def test_half_lives_have_limits():
    for kind in (DecayedToeplitz, DecayedIndependent):
        for wrong in (0.5, 2.0**31, math.nan):
            with pytest.raises(ParameterError, match="half_life"):
                kind(half_life=wrong)
    with pytest.raises(ParameterError, match="law"):
        DecayedToeplitz(half_life=3.0, law="laplace")
