"""The binary tree: levels, nodes, variance, long streams; beside it the straw man."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet.noise import LatticeNoise, Secret
from rillet.privacy import Guarantee
from rillet.strategy import BinaryTree, Independent, Mechanism
from rillet.testing import largest_distances
from rillet.testing.lattice import laplace_sum_tail
from rillet.testing.statistics import binomial_p_value, check, normal_scale_p_value

ALPHA = 1e-9


def run(strategy, leaves, noise, sizes):
    encoder, decoder = strategy.encoder(len(leaves)), strategy.decoder(len(leaves))
    states, found, first = (encoder.start(), decoder.start()), [], 1
    for size in sizes:
        block = slice(first - 1, first - 1 + size)
        encoded, nodes = encoder.encode(states[0], first, leaves[block])
        decoded, prefix = decoder.decode(states[1], first, nodes + noise[block])
        states = encoded, decoded
        found.append(prefix)
        first += size
    return np.concatenate(found)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 1023, 1024, 1025])
def test_levels_are_the_bit_length(leaves):
    """The first leaf lies in one node of every size up to the length: floor(log2 n) + 1 of them."""
    encoder = BinaryTree().encoder(leaves)
    one = np.zeros(leaves, np.int64)
    one[0] = 1
    memberships = int(encoder.encode(encoder.start(), 1, one)[1].sum())
    assert memberships == leaves.bit_length()
    assert BinaryTree().sensitivity(leaves, 5) == 5 * memberships
    assert BinaryTree("gaussian").sensitivity(leaves, 5) == 25 * memberships


@pytest.mark.parametrize("leaves", range(1, 10))
def test_sensitivity_by_brute_force(leaves):
    def nodes(stream):
        encoder = BinaryTree().encoder(leaves)
        return encoder.encode(encoder.start(), 1, np.array(stream, np.int64))[1]

    found = largest_distances(nodes, [0, 4], leaves)
    assert found.l1 == BinaryTree().sensitivity(leaves, 4)
    assert found.squared_l2 == BinaryTree("gaussian").sensitivity(leaves, 4)


def test_nodes_are_what_they_say():
    generator = np.random.default_rng(1)
    leaves = generator.integers(0, 2**40, 1500)
    encoder = BinaryTree().encoder(1500)
    nodes = encoder.encode(encoder.start(), 1, leaves)[1]
    total = [0, *np.cumsum(leaves).tolist()]
    assert nodes.tolist() == [total[t] - total[t - (t & -t)] for t in range(1, 1501)]


@given(st.integers(1, 400), st.data())
@settings(max_examples=40)
def test_prefix_sums_add_the_noise_of_their_nodes(length, data):
    """At t: the exact sum, plus one noise for each binary one of t.  Any blocks."""
    seed = data.draw(st.integers(0, 999))
    generator = np.random.default_rng(seed)
    leaves = generator.integers(0, 2**30, length)
    noise = generator.integers(-(2**40), 2**40, length)
    cuts = sorted(data.draw(st.sets(st.integers(0, length), max_size=6)) | {0, length})
    found = run(BinaryTree(), leaves, noise, np.diff(cuts).tolist())
    exact = np.cumsum(leaves)
    for t in range(1, length + 1):
        expected, rest = int(exact[t - 1]), t
        while rest:
            expected += int(noise[rest - 1])
            rest -= rest & -rest
        assert found[t - 1] == expected


def test_a_long_stream_in_blocks_is_the_stream_at_once():
    generator = np.random.default_rng(2)
    length = 200_003
    leaves = generator.integers(0, 2**20, length)
    noise = generator.integers(-(2**30), 2**30, length)
    at_once = run(BinaryTree(), leaves, noise, [length])
    for size in (4096, 16_384, 65_537):
        sizes = [min(size, length - done) for done in range(0, length, size)]
        assert np.array_equal(run(BinaryTree(), leaves, noise, sizes), at_once)


def test_weights_are_binary_ones_at_any_t():
    t = np.array([1, 2, 3, 255, 256, 2**40 - 1, 2**40, 2**62 + 1])
    assert BinaryTree().weights(2**62, t).tolist() == [int(v).bit_count() for v in t.tolist()]
    assert Independent().weights(2**62, t).tolist() == t.astype(float).tolist()


# --- Measured variance ---------------------------------------------------------------------------


def measured_errors(mechanism, runs):
    """Errors of released prefix sums, for so many streams, each with a key of its own."""
    leaves = mechanism.leaves
    errors = np.empty((runs, leaves))
    decoder = mechanism.strategy.decoder(leaves)
    master = Secret.for_tests(77)
    for number in range(runs):
        noise = mechanism.noise(master.derive(number), "main").draw(1, leaves)
        errors[number] = decoder.decode(decoder.start(), 1, noise)[1]
    return errors


def exceedance_p_value(errors, count, scale, threshold):
    """Exact test of P(|sum of ``count`` Laplace draws| > threshold·scale)."""
    limits = [laplace_sum_tail(count, threshold + side * count / scale) for side in (1, -1)]
    found = int(np.sum(np.abs(errors) > threshold * scale))
    return float(binomial_p_value(found, len(errors), *limits))


@pytest.mark.parametrize("kind", [BinaryTree, Independent])
def test_measured_laplace_noise_at_several_t(kind):
    """Leaf t carries as many draws as weights says, each with the scale that was calibrated."""
    mechanism = Mechanism.calibrate(kind(), 16, Guarantee(0.5))
    assert mechanism.scale == float(kind().sensitivity(16, mechanism.steps)) / 0.5
    errors = measured_errors(mechanism, 4000)
    for t in (1, 4, 7, 15, 16):
        count = int(mechanism.strategy.weights(16, np.array([t]))[0])
        threshold = 1.5 * count**0.5
        name = f"{mechanism.strategy.name}, Laplace, t = {t}"
        check(name, exceedance_p_value(errors[:, t - 1], count, mechanism.scale, threshold))
        # Power: one draw more or less, or a scale that is a fifth off.
        for wrong in {max(1, count // 2), 2 * count} - {count}:
            p_value = exceedance_p_value(errors[:, t - 1], wrong, mechanism.scale, threshold)
            assert p_value < ALPHA
        p_value = exceedance_p_value(errors[:, t - 1], count, 1.25 * mechanism.scale, threshold)
        assert p_value < ALPHA


@pytest.mark.parametrize("kind", [BinaryTree, Independent])
def test_measured_gaussian_noise_at_several_t(kind):
    """The standard deviation is a standard deviation, not a variance: measured, not assumed."""
    mechanism = Mechanism.calibrate(kind("gaussian"), 16, Guarantee(0.5, 1e-6))
    errors = measured_errors(mechanism, 4000)
    stated = np.sqrt(mechanism.unit_variance(np.arange(1, 17))) * mechanism.steps
    for t in (1, 4, 7, 15, 16):
        column = errors[:, t - 1]
        name = f"{mechanism.strategy.name}, Gaussian, t = {t}"
        check(name, normal_scale_p_value(column, stated[t - 1], error=t / 2))
        for factor in (0.85, 1.15):
            assert normal_scale_p_value(column, factor * stated[t - 1], error=t / 2) < ALPHA


def test_different_streams_and_levels_have_noise_of_their_own():
    mechanism = Mechanism.calibrate(BinaryTree(), 64, Guarantee(1.0))
    secrets = [Secret.for_tests(1).derive("a"), Secret.for_tests(1).derive("b")]
    sources = [mechanism.noise(secret, "main") for secret in secrets]
    sources += [mechanism.levels(secrets[0], "main")(level) for level in (1, 2)]
    sources += [mechanism.noise(secrets[0].ratchet(), "main"), mechanism.noise(secrets[0], "x")]
    drawn = [tuple(source.draw(1, 64).tolist()) for source in sources]
    assert len(set(drawn)) == len(drawn)
    assert isinstance(sources[0], LatticeNoise)
    level_zero = mechanism.levels(secrets[0], "main")(0).draw(1, 64)
    assert tuple(level_zero.tolist()) == drawn[0]
