"""Honaker's estimator: least squares, rounded so that the noisy tree decides alone."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from rillet.privacy import Guarantee
from rillet.strategy.base import Mechanism
from rillet.strategy.honaker import HonakerNoise, HonakerTree, combine
from rillet.strategy.tree import BinaryTree
from rillet.testing import check_strategy

AMPLITUDE = 2**40


class Table:
    def __init__(self, values):
        self.values = values
        self.drawn = set()

    def draw(self, start, count):
        places = range(start, start + count)
        assert not self.drawn.intersection(places), "a node was drawn twice"
        self.drawn.update(places)
        return np.array([self.values(q) for q in places], np.int64)


def run(n, values, pieces=None):
    process = HonakerNoise(n.bit_length())
    tables = {}
    state, drawn, first = process.start(), [], 1
    sizes = itertools.cycle(pieces or [n])
    while first <= n:
        count = min(next(sizes), n - first + 1)
        state, noise = process.draw(
            state,
            lambda level: tables.setdefault(level, Table(lambda q: values(level, q))),
            first,
            count,
        )
        drawn.append(noise)
        first += count
    return state, np.concatenate(drawn)


def nodes_of(n):
    return [(level, q) for level in range(n.bit_length()) for q in range(n >> level)]


def membership(n):
    leaf = np.arange(1, n + 1)
    return np.array([(q << i < leaf) & (leaf <= (q + 1) << i) for i, q in nodes_of(n)]).astype(int)


def random_noise(n, seed):
    generator = np.random.default_rng(seed)
    table = {node: int(generator.integers(-(2**44), 2**44)) for node in nodes_of(n)}
    return lambda level, q: table[level, q]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 30, 64, 100])
def test_noise_is_the_same_in_any_pieces(n):
    values = random_noise(n, n)
    state, whole = run(n, values)
    for pieces in [(1,), (2, 0, 3), (7,), (16, 1), (33,)]:
        other_state, other = run(n, values, pieces)
        assert np.array_equal(other, whole)
        assert all(np.array_equal(a, b) for a, b in zip(state, other_state, strict=True))


@pytest.mark.parametrize("n", [4, 13, 64])
def test_release_is_a_function_of_the_noisy_tree(n):
    """Noise of the tree plus the sums of its nodes must give noise plus prefix sums, exactly."""
    generator = np.random.default_rng(n)
    leaves = generator.integers(0, 2**30, n)
    sums = dict(zip(nodes_of(n), (membership(n) @ leaves).tolist(), strict=True))
    noise = random_noise(n, n + 1)
    _, without = run(n, noise)
    _, with_data = run(n, lambda level, q: noise(level, q) + sums[level, q])
    assert np.array_equal(with_data - without, np.cumsum(leaves))


def response(n):
    """``L``, up to rounding: the noise of prefix sums for one unit of noise on one node."""
    columns = [run(n, lambda i, q, at=at: AMPLITUDE * ((i, q) == at))[1] for at in nodes_of(n)]
    return np.array(columns).T / AMPLITUDE


@pytest.mark.parametrize("n", [5, 16, 45])
def test_variance_and_covariance_are_those_of_the_estimator(n):
    tree, t = HonakerTree(), np.arange(1, n + 1)
    found = response(n)
    assert np.allclose(found @ membership(n), np.tri(n), atol=1e-9)
    gram = found @ found.T
    assert np.allclose(np.diag(gram), tree.weights(n, t), rtol=1e-9)
    stated = tree.covariance(n, np.minimum(t[:, None], t), np.maximum(t[:, None], t))
    assert np.allclose(gram, stated, atol=1e-9)


@pytest.mark.parametrize("n", [2, 8, 16])
def test_a_complete_tree_is_decoded_with_the_least_variance(n):
    """Least squares over all nodes of a complete tree, by the pseudo-inverse."""
    best = np.ones(n) @ np.linalg.pinv(membership(n))
    assert np.allclose(response(n)[-1], best, atol=1e-9)


@pytest.mark.parametrize("level", [1, 2, 7, 30])
def test_average_is_rounded_exactly(level):
    generator = np.random.default_rng(level)
    own, children = generator.integers(-(2**46), 2**46, (2, 500))
    whole = 2 ** (level + 1) - 1
    expected = [
        math.floor(Fraction(2**level * a + (2**level - 1) * b, whole) + Fraction(1, 2))
        for a, b in zip(own.tolist(), children.tolist(), strict=True)
    ]
    assert combine(own, children, level).tolist() == expected


@pytest.mark.parametrize(
    ("log_length", "mean", "largest"), [(10, 702, 1404), (16, 2544, 5088), (20, 4764, 9529)]
)
def test_variances_at_unit_sensitivity_and_epsilon(log_length, mean, largest):
    n = 2**log_length
    tree = HonakerTree()
    variance = 2 * float(tree.sensitivity(n, 1)) ** 2 * tree.weights(n, np.arange(1, n + 1))
    assert round(variance.mean()) == mean
    assert round(variance.max()) == largest


@pytest.mark.parametrize(
    ("log_length", "mean", "largest"), [(10, 1210, 2420), (16, 4624, 9248), (20, 8820, 17640)]
)
def test_variances_of_the_plain_binary_tree(log_length, mean, largest):
    n = 2**log_length
    weights = BinaryTree().weights(n, np.arange(1, n + 1))
    laplace = 2 * float(BinaryTree().sensitivity(n, 1)) ** 2 * weights
    assert round(laplace.mean()) == mean
    assert laplace.max() == largest


@pytest.mark.parametrize(
    ("log_length", "mean", "largest"), [(10, 55, 110), (16, 136, 272), (20, 210, 420)]
)
def test_variances_of_the_gaussian_binary_tree(log_length, mean, largest):
    n = 2**log_length
    tree = BinaryTree("gaussian")
    gaussian = float(tree.sensitivity(n, 1)) * tree.weights(n, np.arange(1, n + 1))
    assert round(gaussian.mean()) == mean
    assert gaussian.max() == largest


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_calibrates_like_the_tree(law):
    guarantee = Guarantee(1.0, 0.0 if law == "laplace" else 2**-20)
    ours = Mechanism.calibrate(HonakerTree(law), 1000, guarantee)
    plain = Mechanism.calibrate(BinaryTree(law), 1000, guarantee)
    assert (ours.scale, ours.steps, ours.cost) == (plain.scale, plain.steps, plain.cost)
    assert ours.unit_variance(1023) < 0.6 * plain.unit_variance(1023)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_contract_of_a_strategy(law):
    check_strategy(HonakerTree(law), max_leaves=6, tight=False, variance_tolerance=1e-6)
