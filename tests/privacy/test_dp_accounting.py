"""The costs' closed forms beside dp-accounting's numerical ones.

dp-accounting discretises the privacy loss: with pessimistic rounding its δ is an upper bound that
approaches the truth from above, with optimistic rounding a lower bound.  A closed form must lie
between the two.  (At δ = 0 it answers ε = ∞ even for one Laplace draw, and 1.00000000001 for an
exactly calibrated Gaussian: it cross-checks, it does not decide.)
"""

import math
from fractions import Fraction
from functools import reduce

import pytest
from dp_accounting.pld import common, privacy_loss_distribution

from rillet.privacy import Cost, Guarantee, delta_at, gaussian_mu

EPSILON, DELTA = 1.0, 2.0**-20
INTERVAL = 1e-4


def gaussian(mu, pessimistic):
    return privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=INTERVAL, pessimistic_estimate=pessimistic
    )


def randomised_response(epsilon, pessimistic):
    return privacy_loss_distribution.from_randomized_response(
        2 / (1 + math.exp(epsilon)),
        2,
        value_discretization_interval=INTERVAL,
        pessimistic_estimate=pessimistic,
    )


def laplace(epsilon, pessimistic):
    return privacy_loss_distribution.from_laplace_mechanism(
        1 / epsilon, value_discretization_interval=INTERVAL, pessimistic_estimate=pessimistic
    )


def unknown(epsilon, delta):
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta), value_discretization_interval=INTERVAL
    )


def composed_delta(parts, epsilon):
    total = reduce(lambda one, other: one.compose(other), parts)
    return total.get_delta_for_epsilon(epsilon)


@pytest.mark.parametrize("epsilon", [0.25, 1.0])
@pytest.mark.parametrize("mus", [(0.236,), (0.2, 0.3), (1.0, 0.5)])
def test_gaussians(epsilon, mus):
    ours = float(delta_at(epsilon, sum((Cost.gaussian(Fraction(m) ** 2) for m in mus), Cost())))
    high = composed_delta([gaussian(mu, True) for mu in mus], epsilon)
    low = composed_delta([gaussian(mu, False) for mu in mus], epsilon)
    assert low * (1 - 1e-9) - 1e-14 <= ours <= high * (1 + 1e-9)
    assert high - low < 0.02 * high  # otherwise nothing would be checked


@pytest.mark.parametrize("pure", [0.1, 0.5])
@pytest.mark.parametrize("epsilon", [0.8, 1.0, 1.2])
def test_pure_with_gaussian(pure, epsilon):
    mu = gaussian_mu(Guarantee(EPSILON, DELTA), Cost.pure(pure))
    ours = float(delta_at(epsilon, Cost.pure(pure) + Cost.gaussian(Fraction(mu) ** 2)))
    high = composed_delta([gaussian(mu, True), randomised_response(pure, True)], epsilon)
    low = composed_delta([gaussian(mu, False), randomised_response(pure, False)], epsilon)
    assert low * (1 - 1e-9) - 1e-14 <= ours <= high * (1 + 1e-9)
    assert high - low < 0.02 * high


def test_approximate_with_gaussian():
    mu, pure, missing = 0.15, 0.4, 1e-7
    ours = float(delta_at(1.0, Cost.approximate(pure, missing) + Cost.gaussian(Fraction(mu) ** 2)))
    high = composed_delta([gaussian(mu, True), unknown(pure, missing)], 1.0)
    assert high * 0.98 <= ours <= high * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 0.7, 1.1])
def test_a_laplace_draw_costs_at_most_what_a_pure_event_is_charged(epsilon):
    """A cost knows no more of a pure event than its ε: an upper bound for every such event."""
    ours = float(delta_at(epsilon, Cost.pure(0.5) + Cost.pure(0.7)))
    theirs = composed_delta([laplace(0.5, False), laplace(0.7, False)], epsilon)
    assert theirs <= ours * (1 + 1e-9)


def test_calibration_agrees():
    mu = gaussian_mu(Guarantee(EPSILON, DELTA))
    assert gaussian(mu, True).get_epsilon_for_delta(DELTA) == pytest.approx(EPSILON, abs=1e-4)
    assert gaussian(mu * 1.001, False).get_epsilon_for_delta(DELTA) > EPSILON
