"""Safety by enumeration: small streams, all neighbours, all outputs, exact probabilities.

A mechanism here releases noisy nodes: the encoder's integers plus independent lattice noise.  The
decoder is post-processing, so the nodes are the whole of what is published.
"""

from fractions import Fraction
from functools import lru_cache
from itertools import product

import mpmath
import numpy as np
import pytest

from rillet.privacy import Cost, delta_at, gaussian_mu, gaussian_std, laplace_scale
from rillet.privacy import Guarantee as Promise
from rillet.strategy import BinaryTree, Independent
from rillet.testing.lattice import TAILS, lattice_probability

EPSILONS = [Fraction(1), Fraction(1, 10), Fraction(0.7), Fraction(3)]


def nodes_of(strategy, leaves):
    encoder = strategy.encoder(len(leaves))
    return encoder.encode(encoder.start(), 1, np.array(leaves, np.int64))[1].tolist()


def neighbouring_nodes(strategy, leaves, steps):
    """Every pair of neighbours, as the exact nodes of the two streams."""
    for stream in product(range(steps + 1), repeat=leaves):
        for place in range(leaves):
            for value in range(stream[place] + 1, steps + 1):
                other = (*stream[:place], value, *stream[place + 1 :])
                yield nodes_of(strategy, stream), nodes_of(strategy, other)


def table(law, scale, reach):
    reached = range(-reach, reach + 1)
    return {k: mpmath.mpf(lattice_probability(TAILS[law], scale, k)) for k in reached}


def assert_attained(found, attained, promised):
    """The ratio that was found is a known rational, which keeps the promise exactly."""
    assert (
        abs(found - mpmath.mpf(attained.numerator) / attained.denominator) < mpmath.mpf(2) ** -190
    )
    assert attained <= promised
    assert attained >= promised * (1 - Fraction(1, 2**52))


def largest_ratio(strategy, leaves, steps, scale, reach):
    """Largest P(nodes | stream)/P(nodes | neighbour), over all outputs within ``reach``."""
    chances = table("laplace", scale, reach + leaves * steps)
    largest = mpmath.mpf(0)
    for one, other in neighbouring_nodes(strategy, leaves, steps):
        for output in product(range(-reach, reach + leaves * steps), repeat=leaves):
            p = q = mpmath.mpf(1)
            for y, a, b in zip(output, one, other, strict=True):
                if abs(y - a) in chances and abs(y - b) in chances:
                    p *= chances[y - a]
                    q *= chances[y - b]
            largest = max(largest, p / q, q / p)
    return largest


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
@pytest.mark.parametrize(("leaves", "steps"), [(1, 3), (2, 2)])
@pytest.mark.parametrize("strategy", [BinaryTree(), Independent()], ids=lambda s: s.name)
def test_laplace_ratios_reach_the_promise_and_never_pass_it(strategy, leaves, steps, epsilon):
    """Every stream, every neighbour, every output: sup P/P′ is e^ε, to the last digit of the scale.

    The scale is the smallest float that is enough, so ε is met up to 2^-52 and not exceeded.
    """
    sensitivity = strategy.sensitivity(leaves, steps)
    scale = laplace_scale(sensitivity, epsilon)
    with mpmath.workprec(300):
        found = mpmath.log(largest_ratio(strategy, leaves, steps, scale, reach=2))
        assert_attained(found, sensitivity / Fraction(scale), epsilon)


@pytest.mark.parametrize("epsilon", EPSILONS, ids=str)
@pytest.mark.parametrize("leaves", [3, 4, 7, 8])
def test_laplace_ratios_of_longer_trees(leaves, epsilon):
    """The sup of a product over independent nodes is the product of the sups, node by node."""
    strategy, steps = BinaryTree(), 1
    sensitivity = strategy.sensitivity(leaves, steps)
    scale = laplace_scale(sensitivity, epsilon)
    with mpmath.workprec(300):
        assert_attained(by_nodes(strategy, leaves, scale), sensitivity / Fraction(scale), epsilon)


def by_nodes(strategy, leaves, scale):
    """Largest log ratio for leaves of 0 and 1, from the largest ratio of each node."""
    chances = table("laplace", scale, 12)
    sup = {m: max(chances[y] / chances[y - m] for y in range(-6, 7)) for m in (-1, 0, 1)}
    return max(
        mpmath.log(mpmath.fprod(sup[a - b] for a, b in zip(one, other, strict=True)))
        for one, other in neighbouring_nodes(strategy, leaves, 1)
    )


def test_one_level_short_is_seen():
    """The published number of levels, log2 n, loses pure ε at powers of two: 4/3 of the promise."""
    short = laplace_scale((8 - 1).bit_length(), 1)
    with mpmath.workprec(300):
        found = by_nodes(BinaryTree(), 8, short)
    assert float(found) == pytest.approx(4 / 3, rel=1e-12)


# --- Gaussian: the whole curve δ(ε) --------------------------------------------------------------


@lru_cache
def gaussian_table(std, reach):
    with mpmath.workprec(100):
        chances = table("gaussian", std, reach)
    return np.array([float(chances[k]) for k in range(-reach, reach + 1)])


def lattice_delta(moved, std, epsilon):
    """Σ_y max(0, P(y) − e^ε P(y − moved)) over all outputs: the exact δ of one neighbour pair."""
    reach = int(14 * std) + 2 * max(abs(m) for m in moved) + 2
    single = gaussian_table(std, reach)
    p = q = np.ones(1)
    for m in moved:
        p = np.multiply.outer(p, single)
        q = np.multiply.outer(q, _shifted(single, m))
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum())


def _shifted(single, moved):
    shifted = np.zeros_like(single)
    if moved >= 0:
        shifted[moved:] = single[: len(single) - moved]
    else:
        shifted[:moved] = single[-moved:]
    return shifted


def analytic_delta(squared, std, epsilon):
    return float(delta_at(epsilon, Cost.gaussian(Fraction(squared) / Fraction(std) ** 2)))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_gaussian_curve_is_never_exceeded(steps):
    """All streams of two leaves, all neighbours, all outputs, the whole curve."""
    strategy, promise = BinaryTree("gaussian"), Promise(1.0, 1e-3)
    squared = strategy.sensitivity(2, steps)
    std = gaussian_std(squared, gaussian_mu(promise))
    moves = {
        tuple(a - b for a, b in zip(one, other, strict=True))
        for one, other in neighbouring_nodes(strategy, 2, steps)
    }
    moves |= {tuple(-m for m in move) for move in moves}
    assert (steps, steps) in moves
    for epsilon in (0.0, 0.25, 1.0, 2.0):
        found = {move: lattice_delta(move, std, epsilon) for move in moves}
        assert max(found.values()) <= analytic_delta(squared, std, epsilon) * (1 + 1e-9)
        assert found[steps, steps] >= max(found.values()) * (1 - 1e-9)
    assert max(lattice_delta(move, std, 1.0) for move in moves) <= promise.delta * (1 + 1e-9)


def test_the_gaussian_curve_is_met_by_fine_lattices():
    """Only what rounding hides is lost, and that vanishes as the square of the step."""
    mu, epsilon = gaussian_mu(Promise(1.0, 1e-3)), 1.0
    gaps = {}
    for steps in (1, 2, 3, 4, 8, 16, 32, 64):
        std = gaussian_std(steps**2, mu)
        exact = lattice_delta((steps,), std, epsilon)
        gaps[steps] = 1 - exact / analytic_delta(steps**2, std, epsilon)
    assert all(-1e-9 <= gap <= 0.2 / steps**2 for steps, gap in gaps.items())
    assert gaps[1] > 0.05
    assert gaps[64] < 1e-4


def test_too_little_gaussian_noise_is_seen():
    """A variance passed where a standard deviation is wanted exceeds the curve at once."""
    steps, promise = 3, Promise(1.0, 1e-3)
    std = gaussian_std(steps**2, gaussian_mu(promise))
    assert lattice_delta((steps,), std**0.5, 1.0) > 10 * promise.delta
    assert lattice_delta((steps,), 0.99 * std, 1.0) > promise.delta
