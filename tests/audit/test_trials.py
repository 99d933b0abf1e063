"""Lower bounds on ε: that they hold, that they see enough, and what they are made of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rillet import BinaryTree, BufferedToeplitz, Count, HonakerTree, Plan, SignedDigitTree
from rillet.audit.mechanisms import by_clock
from rillet.audit.trials import Bound, Trials, epsilon_bound
from rillet.noise import Secret
from rillet.privacy import Guarantee, gaussian_mu


def laplace_scores(epsilon, seed):
    """One draw of Laplace noise, moved by ε with the unit."""
    random = np.random.default_rng(seed)
    while True:
        drawn = random.laplace(size=(2, 4096))
        drawn[0] += epsilon
        scores = np.abs(drawn) - np.abs(drawn - epsilon)
        yield scores[0], scores[1]


def gaussian_scores(mu, seed):
    random = np.random.default_rng(seed)
    while True:
        drawn = random.normal(size=(2, 2**18))
        yield drawn[0] + mu, drawn[1]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_bound_of_laplace_noise_is_close_and_below(epsilon):
    found = [epsilon_bound(laplace_scores(epsilon, s), 2**17, 0.0, 1e-3) for s in range(20)]
    assert all(0.9 * epsilon < bound.epsilon <= epsilon for bound in found)
    assert all(bound.trials == 2**17 for bound in found)


def test_a_bound_is_wrong_as_rarely_as_it_says():
    """At α = 0.5 the bound of a tight event is above ε in at most half of all runs, not in none."""
    bounds = [epsilon_bound(laplace_scores(1.0, s), 2**13, 0.0, 0.5).epsilon for s in range(200)]
    above = sum(bound > 1.0 for bound in bounds)
    assert 5 <= above <= 100


def test_delta_is_taken_off():
    mu = gaussian_mu(Guarantee(1.0, 1e-3))
    honest = epsilon_bound(gaussian_scores(mu, 1), 2**21, 1e-3, 1e-3, normal=True).epsilon
    assert 0.6 < honest <= 1.0
    # The same event without δ would be called a breach.
    assert epsilon_bound(gaussian_scores(mu, 1), 2**21, 0.0, 1e-3, normal=True).epsilon > 1.0
    assert epsilon_bound(gaussian_scores(mu, 1), 2**21, 1e-3, 1e-3).epsilon <= 1.0


def test_what_never_happens_shows_nothing():
    few = iter([(np.zeros(4), np.ones(4)), (np.zeros(30), np.ones(30))])
    assert epsilon_bound(few, 60, 0.0, 1e-3).hits == (0, 0)
    assert Bound.of((0, 0), (100, 100), 0.0, 1e-3).epsilon == 0.0
    assert Bound.of((5, 0), (10**9, 10**9), 1e-6, 1e-3).epsilon == 0.0


@pytest.mark.parametrize(
    "strategy",
    [BinaryTree(), SignedDigitTree(arity=3), HonakerTree(), BufferedToeplitz()],
    ids=lambda s: s.name,
)
def test_keys_with_the_unit_and_without_differ_by_it_alone(strategy):
    """The nodes that are scored are those of the release: exact ones plus the stated noise."""
    trials = Trials(by_clock(strategy), 256)
    batch = trials.run(Secret.for_tests(1))
    again = trials.run(Secret.for_tests(1))
    other = trials.run(Secret.for_tests(2))
    assert np.array_equal(batch.noisy[0], again.noisy[0])
    assert not np.array_equal(batch.noisy[0], other.noisy[0])
    steps = trials.layout.segments[0].steps
    assert not batch.exact_leaves[0][0].any()
    assert batch.exact_leaves[0][1].tolist()[:2] == [steps, 0]


def test_they_are_those_of_the_public_interface():
    """Noisy nodes of a fleet, decoded, are the counts that a user gets."""
    trials = Trials(by_clock(BinaryTree()), 256)
    batch = trials.run(Secret.for_tests(5))
    streams = trials.plan.open_many(secret=Secret.for_tests(5))
    odd = list(trials.plan.keys[1::2])
    streams.update_many([1.0] * len(odd), key=odd, at="2026-01-01T00:30Z")
    values = streams.advance(until="2026-01-01T04:00Z").value.reshape(4, 256).T
    decoder = BinaryTree().decoder(4)
    for row in (0, 1, 77):
        sums = decoder.decode(decoder.start(), 1, batch.noisy[0][row])[1]
        assert np.allclose(sums / trials.layout.segments[0].steps, values[row])


def test_by_count_each_key_is_a_trial():
    plan = Plan(epsilon=1.0, upper=100.0, length=2, lag=0, strategy=BinaryTree(), keys=range(512))
    bound = epsilon_bound(Trials(plan, 512).scores(), 2**12, 0.0, 1e-3)
    assert 0.4 < bound.epsilon <= 1.0


def test_several_observations_of_a_key_make_a_leaf():
    plan = Plan(
        epsilon=1.0, upper=9.0, length=4, every=2, lag=0, strategy=BinaryTree(), keys=range(256)
    )
    batch = Trials(plan, 256).run(Secret.for_tests(1))
    assert [part.shape for part in batch.noisy] == [part.shape for part in batch.exact_leaves]
    moved = batch.exact_leaves[0][1] - batch.exact_leaves[0][0]
    assert moved[0] != 0
    assert moved[1] == 0


def test_half_of_the_noise_is_seen():
    """Power: what halves the noise is found by its scale, and by the bound."""
    trials = Trials(by_clock(BinaryTree(), Count()), 2**11)
    mechanism = replace(trials.mechanism, scale=trials.mechanism.scale / 2)
    trials.layout.__dict__["main"] = mechanism
    found = trials.noise_p_values(Secret.for_tests(3))
    assert found["scale"] < 1e-12
    assert epsilon_bound(trials.scores(), 2**14, 0.0, 1e-3).epsilon > 1.2
    assert math.isclose(found["between keys"], 1.0, abs_tol=0.999)
