"""How far apart two laws are, against closed forms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm

from rillet.audit.hockey_stick import epsilon_at, hockey_stick, smooth_delta
from rillet.privacy import Cost, Guarantee, gaussian_mu
from rillet.statistic import Range
from rillet.threshold.calibration import Calibration, calibrate, exact_delta
from rillet.threshold.smooth import Unreleased


def unreleased(quantile, sensitivity, **constants):
    given = {"a": 1.0, "b": 0.1, "offset": 0.0, "kappa": 1.0, "kind": "exact", "law": "laplace"}
    made = Calibration(**{**given, **constants}, releasable=True)
    return Unreleased(Range(0.0, 100.0), made, quantile, sensitivity)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_two_gaussian_laws(epsilon):
    mu = 0.7
    found = smooth_delta("gaussian", unreleased(10.0, 1.0), unreleased(10.0 + mu, 1.0), epsilon)
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert found == pytest.approx(exact, rel=2e-3)
    assert found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 0.9, 1.1])
def test_two_laplace_laws(epsilon):
    found = smooth_delta("laplace", unreleased(0.0, 1.0), unreleased(1.0, 1.0), epsilon)
    assert found == pytest.approx(max(0.0, -math.expm1((epsilon - 1.0) / 2)), abs=1e-3)


def test_the_worst_pair_of_a_calibration_is_met():
    """Law(0, e^b) beside Law(a, 1) costs what the calibration was made for."""
    epsilon, delta = 0.8, 2.0**-20
    constants = calibrate("exact", "laplace", epsilon, delta, 0.006)
    wide = unreleased(0.0, math.exp(constants.b), a=constants.a)
    narrow = unreleased(1.0, 1.0, a=constants.a)
    found = smooth_delta("laplace", wide, narrow, epsilon)
    claimed = float(exact_delta("laplace", constants.a, constants.b, epsilon))
    assert 0.9 * claimed < found <= claimed * (1 + 1e-6)
    assert found <= delta


def test_a_bare_quantile_costs_everything():
    assert smooth_delta("laplace", unreleased(1.0, 0.0), unreleased(2.0, 0.0), 5.0) == 1.0
    assert smooth_delta("laplace", unreleased(1.0, 0.0), unreleased(1.0, 0.0), 0.0) == 0.0


def test_the_hockey_stick_of_a_coin():
    p, q = np.array([0.75, 0.25]), np.array([0.25, 0.75])
    assert hockey_stick(p, q, math.log(3)) == pytest.approx(0.0, abs=1e-12)
    assert hockey_stick(p, q, 0.0) == 0.5


def test_epsilon_at_undoes_the_calibration():
    for epsilon, delta in ((1.0, 1e-6), (0.1, 1e-9), (4.0, 1e-3)):
        cost = Cost.gaussian(Fraction(gaussian_mu(Guarantee(epsilon, delta))) ** 2)
        assert epsilon_at(cost, delta) == pytest.approx(epsilon, abs=2e-6)
    assert epsilon_at(Cost.pure(0.5), 0.0) == 0.5
    assert epsilon_at(Cost.gaussian(1), 0.0) == math.inf
    assert epsilon_at(Cost.approximate(1, 1e-3), 1e-6) == math.inf
