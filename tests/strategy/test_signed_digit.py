"""The signed-digit tree: privacy by enumeration, noise against its definition, variances."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from rillet.errors import ParameterError
from rillet.noise import LAPLACE, LatticeNoise, Secret
from rillet.privacy import Guarantee
from rillet.strategy.base import AWAY, Mechanism
from rillet.strategy.signed_digit import (
    PrefixEncoder,
    PrefixStepper,
    SignedDigitNoise,
    SignedDigitTree,
    _least_arity,
    best_shape,
    largest_weight,
    levels_needed,
    total_weight,
)
from rillet.testing import check_strategy


class Recorder:
    """A level whose draws come from a table, and which refuses to draw a node twice."""

    def __init__(self, values):
        self.values = values
        self.drawn = set()

    def draw(self, start, count):
        places = range(start, start + count)
        assert not self.drawn.intersection(places), "a node was drawn twice"
        self.drawn.update(places)
        return np.array([self.values(q) for q in places], np.int64)


def levels_from(values):
    recorders = {}
    return lambda level: recorders.setdefault(level, Recorder(lambda q: values(level, q)))


def in_pieces(process, levels, n, pieces):
    state, drawn, first = process.start(), [], 1
    sizes = itertools.cycle(pieces)
    while first <= n:
        count = min(next(sizes), n - first + 1)
        state, noise = process.draw(state, levels, first, count)
        drawn.append(noise)
        first += count
    return state, np.concatenate(drawn)


def digits(k, h, t):
    whole = [(2 * t + k**i - 1) // (2 * k**i) for i in range(h)] + [0]
    return [(i, k * whole[i + 1], whole[i]) for i in range(h)]


def noise_by_definition(k, h, t, values):
    total = 0
    for i, origin, end in digits(k, h, t):
        total += sum(values(i, q) for q in range(origin, end))
        total -= sum(values(i, q) for q in range(end, origin))
    return total


def some_noise(level, q):
    return (q * 7919 + level * 104729) % 1009 - 500


@pytest.mark.parametrize(("k", "n"), [(3, 40), (3, 121), (5, 62), (5, 300), (13, 1024), (801, 400)])
def test_noise_is_its_definition_in_any_pieces(k, n):
    h = levels_needed(k, n)
    expected = [noise_by_definition(k, h, t, some_noise) for t in range(1, n + 1)]
    process = SignedDigitNoise(k, h)
    for pieces in [(n,), (1,), (2, 3), (7, 0, 1), (k, 1), (64,), (n // 2 + 1,)]:
        _, drawn = in_pieces(process, levels_from(some_noise), n, pieces)
        assert drawn.tolist() == expected


@pytest.mark.parametrize(("k", "n", "depth"), [(3, 40, 4), (5, 62, 3), (9, 40, 2)])
def test_a_state_has_a_sum_for_each_level_and_half_a_node_ahead_for_each_but_the_top(k, n, depth):
    sums, ahead = SignedDigitTree(arity=k).noise_process(n).start()
    assert sums.shape == (depth,)
    assert ahead.shape == (depth - 1, (k - 1) // 2)


def test_state_does_not_depend_on_the_pieces():
    process = SignedDigitNoise(5, 4)
    states = [
        in_pieces(process, levels_from(some_noise), 211, p)[0] for p in [(211,), (1,), (10, 3)]
    ]
    for state in states[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(state, states[0], strict=True))


def factors(k, h, n):
    """``L`` from the implementation, one node at a time, and ``R`` from the nodes' ranges."""
    process = SignedDigitNoise(k, h)
    nodes = [(i, q) for i in range(h) for q in range(n // k**i + k + 1)]
    columns = []
    for node in nodes:
        levels = levels_from(lambda i, q, node=node: int((i, q) == node))
        columns.append(process.draw(process.start(), levels, 1, n)[1])
    leaf = np.arange(1, n + 1)
    rows = [(q * k**i < leaf) & (leaf <= (q + 1) * k**i) for i, q in nodes]
    return np.array(columns).T, np.array(rows).astype(np.int64)


@pytest.mark.parametrize(("k", "n"), [(3, 4), (3, 30), (5, 61), (7, 50), (41, 20)])
def test_sums_of_the_nodes_cancel_and_a_leaf_lies_in_h_nodes(k, n):
    h = levels_needed(k, n)
    left, right = factors(k, h, n)
    assert np.array_equal(left @ right, np.tri(n, dtype=np.int64))
    assert set(right.sum(axis=0).tolist()) == {h}
    tree = SignedDigitTree(arity=k)
    assert tree.sensitivity(n, 11) == Fraction(11 * h)
    t = np.arange(1, n + 1)
    gram = left @ left.T
    assert np.array_equal(np.diag(gram), tree.weights(n, t))
    covariance = tree.covariance(n, np.minimum(t[:, None], t), np.maximum(t[:, None], t))
    assert np.array_equal(gram, covariance)


def log_probability(scale, value):
    """``ln P(round(Lap(scale)) = value)``."""
    if value == 0:
        return mpmath.log(-mpmath.expm1(-1 / (2 * scale)))
    return mpmath.log(mpmath.sinh(1 / (2 * scale))) - abs(value) / scale


@pytest.mark.parametrize(("steps", "epsilon"), [(1, 1.0), (2, 0.5)])
def test_log_ratio_over_all_outputs_is_exactly_epsilon(steps, epsilon):
    """k = 3, h = 2, n = 4: four outputs fix the four nodes that are used, so ratios are exact."""
    n = 4
    tree = SignedDigitTree(arity=3)
    left, _ = factors(3, 2, n)
    used = left[:, np.abs(left).any(axis=0)]
    assert used.shape == (4, 4)
    inverse = np.rint(np.linalg.inv(used)).astype(np.int64)
    assert np.array_equal(inverse @ used, np.eye(4, dtype=np.int64))
    with mpmath.workprec(120):
        scale = mpmath.mpf(int(tree.sensitivity(n, steps))) / epsilon
        outputs = np.array(list(itertools.product(range(-4 * steps, 4 * steps + 1), repeat=n)))
        table = {v: log_probability(scale, v) for v in range(-40 * steps, 40 * steps + 1)}

        def log_density(values):
            return np.array([[table[z] for z in row] for row in (values @ inverse.T).tolist()]).sum(
                1
            )

        sample = outputs[:: max(1, len(outputs) // 3000)]
        corners = np.array(list(itertools.product((-4 * steps, 0, 4 * steps), repeat=n)))
        tried = np.concatenate([sample, corners])
        base = log_density(tried)
        worst = 0
        for leaf in range(n):
            moved = tried.copy()
            moved[:, leaf:] -= steps  # the prefix sums from this leaf on are larger by `steps`
            worst = max(worst, *(abs(base - log_density(moved))))
        assert abs(worst - epsilon) < mpmath.mpf(2) ** -100


@pytest.mark.parametrize(
    ("log_length", "mean", "largest", "shape"),
    [(10, 171, 324, (13, 3)), (16, 615, 1184, (21, 4)), (20, 1147, 2200, (19, 5))],
)
def test_variances_at_unit_sensitivity_and_epsilon(log_length, mean, largest, shape):
    n = 2**log_length
    tree = SignedDigitTree()
    assert tree.shape(n) == shape
    variance = 2 * float(tree.sensitivity(n, 1)) ** 2 * tree.weights(n, np.arange(1, n + 1))
    assert round(variance.mean()) == mean
    assert variance.max() == largest


def test_closed_forms_of_mean_and_largest_weight():
    for k in (3, 5, 7, 13, 31):
        for n in range(1, 300):
            h = levels_needed(k, n)
            weights = SignedDigitTree(arity=k).weights(n, np.arange(1, n + 1))
            assert weights.sum() == total_weight(k, h, n)
            assert weights.max() == largest_weight(k, h, n)


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize("n", [1, 2, 7, 50, 333, 2000])
def test_no_arity_is_better_than_the_chosen_one(n, objective):
    measure = total_weight if objective == "mean" else largest_weight
    k, h = best_shape(n, objective)
    best = h**2 * measure(k, h, n)
    for other in range(3, 2 * n + 3, 2):
        levels = levels_needed(other, n)
        assert best <= levels**2 * measure(other, levels, n)


def test_longest_prefix_has_digits_and_one_leaf_more_does_not_fit():
    assert levels_needed(3, 4) == 2
    assert levels_needed(3, 5) == 3
    assert levels_needed(21, 97240) == 4
    assert levels_needed(21, 97241) == 5


def test_measured_variance_at_several_leaves():
    """10,000 streams of 60 leaves; the variance of a sum of many squares is known well enough."""
    n, runs = 60, 10_000
    mechanism = Mechanism.calibrate(SignedDigitTree(arity=5), n, Guarantee(1.0))
    process = mechanism.strategy.noise_process(n)
    drawn = np.empty((runs, n))
    for run in range(runs):
        levels = mechanism.levels(Secret.for_tests(1), "run", run)
        drawn[run] = process.draw(process.start(), levels, 1, n)[1]
    for t in (1, 2, 12, 13, 25, 37, 60):
        expected = mechanism.unit_variance(t)[0] * mechanism.steps**2
        # Laplace sums have kurtosis at most 6: the ratio has deviation at most √(5/runs) = 0.022.
        assert drawn[:, t - 1].var() / expected == pytest.approx(1, abs=6 * 0.0224)


def test_keys_may_change_between_any_two_leaves():
    """The ratchet: what was drawn under the first key is never needed again from it."""
    n, process = 200, SignedDigitNoise(5, 4)

    def levels(secret):
        return lambda level: LatticeNoise(LAPLACE, 1e4, secret, ("level", level))

    first, second = Secret.for_tests(3), Secret.for_tests(3).ratchet()
    for boundary in (1, 62, 63, 100):
        state, before = process.draw(process.start(), levels(first), 1, boundary)
        _, after = process.draw(state, levels(second), boundary + 1, n - boundary)
        drawn_before = {}
        for t in range(1, n + 1):  # which key a node belongs to: the one at its first use
            for i, origin, end in digits(5, 4, t):
                for q in range(min(origin, end), max(origin, end)):
                    drawn_before.setdefault((i, q), t <= boundary)

        def value(i, q, drawn_before=drawn_before):
            return int(levels(first if drawn_before[i, q] else second)(i).draw(q, 1)[0])

        expected = [noise_by_definition(5, 4, t, value) for t in range(1, n + 1)]
        assert [*before.tolist(), *after.tolist()] == expected


def test_encoder_and_stepper_give_exact_prefix_sums():
    leaves = np.random.default_rng(5).integers(0, 2**40, 1000)
    encoder = PrefixEncoder()
    state, first = encoder.encode(encoder.start(), 1, leaves[:400])
    state, none = encoder.encode(state, 401, leaves[:0])
    state, second = encoder.encode(state, 401, leaves[400:])
    assert len(none) == 0
    assert [*first.tolist(), *second.tolist()] == list(itertools.accumulate(leaves.tolist()))
    stepper = PrefixStepper(encoder.start())
    stepped = [stepper.step(leaf + AWAY, 7 - AWAY) - 7 for leaf in leaves.tolist()]
    assert stepped == [*first, *second]
    assert stepper.states()[0][0].tolist() == state[0].tolist() == [math.fsum(leaves)]


@pytest.mark.parametrize("arity", [3, 7])
def test_contract_of_a_strategy(arity):
    check_strategy(SignedDigitTree(arity=arity), max_leaves=6)


def test_refuses_what_is_not_proved():
    with pytest.raises(ParameterError, match="law"):
        SignedDigitTree(law="gaussian")
    with pytest.raises(ParameterError, match="arity"):
        SignedDigitTree(arity=4)
    with pytest.raises(ParameterError, match="objective"):
        SignedDigitTree(objective="least")


def test_the_least_arity_by_trying():
    for h, n in itertools.product(range(1, 6), [*range(1, 200), 1093, 9841, 29_524]):
        tried = next(k for k in itertools.count(3, 2) if levels_needed(k, n) <= h)
        assert _least_arity(h, n) == tried
