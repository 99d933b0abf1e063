"""Costs and their closed forms, against integrals, brute force and bad input."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet.errors import BudgetExceeded, ParameterError
from rillet.noise import GAUSSIAN, LAPLACE, LARGEST_SCALE, LatticeNoise, Secret
from rillet.privacy import (
    Charge,
    Charges,
    Cost,
    Event,
    Guarantee,
    delta_at,
    gaussian_mu,
    gaussian_std,
    laplace_scale,
    root_up,
    round_down,
    round_up,
)
from rillet.strategy import BinaryTree, Independent, Mechanism

pytestmark = pytest.mark.usefixtures("precise")
PROMISES = st.builds(
    Guarantee,
    st.floats(1e-3, 60.0),
    st.floats(2.0**-60, 0.2) | st.sampled_from([2.0**-20, 1e-9, 5e-324]),
)


@pytest.fixture(scope="module")
def precise():
    """Comparisons of multiple-precision numbers in the tests must not round them to 53 bits."""
    with mpmath.workprec(400):
        yield


# --- Closed forms against integrals --------------------------------------------------------------


def hockey_stick_by_integral(epsilon: float, mu: float) -> mpmath.mpf:
    """∫ max(0, φ(x − μ) − e^ε φ(x)) dx, split where the integrand starts to be positive."""
    with mpmath.workprec(160):
        start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
        rate, height = max(abs(start - mu), 1), mpmath.npdf(start, mu)

        def integrand(x):  # relative to its height: quad stops at an absolute error
            return (mpmath.npdf(x, mu) - mpmath.exp(epsilon) * mpmath.npdf(x)) / height

        points = [start + place / rate for place in (0, 1, 3, 8, 20, 50, 80)]
        points += [place for place in (-8, -4, 0, 2, 5, 10, 20) if place > points[-1]]
        return mpmath.quad(integrand, points) * height


@pytest.mark.parametrize("epsilon", [-0.5, 0.0, 1e-3, 1.0, 8.0])
@pytest.mark.parametrize("mu", [0.05, 0.236, 1.0, 4.0])
def test_the_gaussian_curve_is_the_integral(epsilon, mu):
    exact = hockey_stick_by_integral(epsilon, mu)
    found = delta_at(epsilon, Cost.gaussian(Fraction(mu) ** 2))
    assert abs(found / exact - 1) < 1e-30


@pytest.mark.parametrize("pure", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_pure_with_gaussian_is_the_integral_over_randomised_response(pure, epsilon, delta):
    """Two outcomes of randomised response, each beside the Gaussian; δ reveals everything."""
    mu = 0.4
    with mpmath.workprec(120):
        odds = mpmath.exp(mpmath.mpf(pure))
        likely = odds / (1 + odds)
        exact = mpmath.mpf(0)
        for probability, loss in ((likely, pure), (1 - likely, -pure)):
            exact += probability * hockey_stick_by_integral(epsilon - loss, mu)
        exact = mpmath.mpf(delta) + (1 - mpmath.mpf(delta)) * exact
    cost = Cost.gaussian(Fraction(mu) ** 2)
    cost += Cost.approximate(pure, delta) if delta else Cost.pure(pure)
    assert abs(delta_at(epsilon, cost) / exact - 1) < 1e-14


def test_published_constants():
    """σ = 4.234 at ε = 1, δ = 2^-20 (analytic Gaussian mechanism, Balle & Wang 2018)."""
    assert 1 / gaussian_mu(Guarantee(1.0, 2.0**-20)) == pytest.approx(4.234, abs=5e-4)
    # The classical calibration σ = √(2 ln(1.25/δ))/ε wastes noise, and is never better.
    for epsilon in (0.1, 0.5, 0.99):
        classical = math.sqrt(2 * math.log(1.25 * 2**20)) / epsilon
        assert 1 / gaussian_mu(Guarantee(epsilon, 2.0**-20)) < classical


@pytest.mark.parametrize(
    ("already", "scale"), [(0.05, 0.980), (0.1, 0.936), (0.2, 0.838), (0.3, 0.739), (0.5, 0.538)]
)
def test_room_beside_a_pure_spend(already, scale):
    """How much a Gaussian must shrink beside ε_th at ε = 1, δ = 2^-20: known to three digits."""
    promise = Guarantee(1.0, 2.0**-20)
    ratio = gaussian_mu(promise, Cost.pure(already)) / gaussian_mu(promise)
    assert ratio == pytest.approx(scale, abs=6e-4)


# --- Composition ---------------------------------------------------------------------------------

COSTS = st.one_of(
    st.builds(Cost.pure, st.floats(1e-3, 5)),
    st.builds(Cost.gaussian, st.floats(1e-4, 5)),
    st.builds(Cost.approximate, st.floats(1e-3, 5), st.floats(1e-12, 0.3)),
)


@given(st.lists(COSTS, min_size=1, max_size=4), st.floats(0.01, 8), st.randoms())
def test_order_does_not_matter_and_more_costs_more(costs, epsilon, shuffler):
    total = sum(costs, Cost())
    shuffled = list(costs)
    shuffler.shuffle(shuffled)
    assert sum(shuffled, Cost()) == total
    assert all(delta_at(epsilon, total) >= delta_at(epsilon, cost) for cost in costs)
    assert delta_at(epsilon, total) >= delta_at(epsilon + 0.1, total)


def exact_delta(first, second, epsilon):
    """Hockey-stick divergence of two distributions on finitely many outcomes, exactly."""
    odds = mpmath.exp(mpmath.mpf(epsilon))
    return mpmath.fsum(max(p - odds * q, mpmath.mpf(0)) for p, q in zip(first, second, strict=True))


def randomised_response(epsilon, delta=0.0):
    """The (ε, δ)-private pair that dominates all others (Kairouz, Oh, Viswanath 2015)."""
    odds, delta = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(delta)
    likely, rare = (1 - delta) * odds / (1 + odds), (1 - delta) / (1 + odds)
    return [delta, likely, rare, 0], [0, rare, likely, delta]


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 0.875, 1.375])
def test_composed_costs_cover_every_composition_they_stand_for(epsilon):
    """Outcomes of two dominating mechanisms, enumerated: never more than `delta_at` says."""
    with mpmath.workprec(400):
        for one, other in (
            ((0.5, 0.0), (0.875, 0.0)),
            ((0.5, 1e-3), (0.875, 0.02)),
            ((1.375, 0.0), (2.0**-30, 0.1)),
        ):
            pairs = [randomised_response(*one), randomised_response(*other)]
            first = [p * q for p in pairs[0][0] for q in pairs[1][0]]
            second = [p * q for p in pairs[0][1] for q in pairs[1][1]]
            total = Cost.approximate(*one) + Cost.approximate(*other)
            exact = exact_delta(first, second, epsilon)
            assert exact <= delta_at(epsilon, total)
            if total.epsilon == epsilon:  # at the sum of the ε's nothing is lost
                assert float(exact) == pytest.approx(float(total.delta), rel=1e-9, abs=1e-30)


def test_a_pure_cost_is_exact_at_its_epsilon_and_below():
    cost = Cost.pure(0.7)
    assert delta_at(0.7, cost) == 0
    assert delta_at(0.2, cost) == pytest.approx(
        (math.exp(0.7) - math.exp(0.2)) / (1 + math.exp(0.7)), rel=1e-12
    )
    assert cost.within(Guarantee(0.7))
    assert not cost.within(Guarantee(math.nextafter(0.7, 0)))
    assert cost.within(Guarantee(0.2, 0.27))


def test_gaussians_add_their_squares():
    both = Cost.gaussian(0.25) + Cost.gaussian(0.5)
    assert both == Cost.gaussian(0.75)


# --- Rounding ------------------------------------------------------------------------------------


@given(st.fractions(min_value=Fraction(1, 10**30), max_value=10**30))
def test_rounding_is_outward_and_next_to_the_value(value):
    up, down, root = round_up(value), round_down(value), root_up(value)
    assert Fraction(down) <= value <= Fraction(up)
    assert up == down or math.nextafter(down, math.inf) == up
    assert Fraction(root) ** 2 >= value
    assert Fraction(math.nextafter(math.nextafter(root, 0), 0)) ** 2 < value


def test_numbers_beyond_the_floats_round_to_infinity():
    assert round_up(Fraction(10) ** 400) == math.inf
    assert round_down(Fraction(10) ** 400) == 1.7976931348623157e308
    assert round_up(-(Fraction(10) ** 400)) == -1.7976931348623157e308
    assert round_up(Fraction(1, 10**400)) == 5e-324


@given(st.integers(1, 2**70), st.floats(1e-6, 1e3))
def test_calibrated_noise_is_never_too_small(sensitivity, budget):
    assert Fraction(sensitivity) / Fraction(laplace_scale(sensitivity, budget)) <= Fraction(budget)
    std = gaussian_std(sensitivity, budget)
    spent = Fraction(sensitivity) / Fraction(std) ** 2
    assert spent <= Fraction(budget) ** 2 * (1 - Fraction(1, 2**53))
    assert spent >= Fraction(budget) ** 2 * (1 - Fraction(1, 2**49))


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 1.0, 700.0, 1e5, 1e50, 1e300])
@pytest.mark.parametrize("mu_squared", [1e-300, 1e-18, 0.05, 30.0, 1e9, 1e300])
def test_the_curve_is_a_probability_and_falls_at_any_size(epsilon, mu_squared):
    cost = Cost.gaussian(mu_squared)
    found = delta_at(epsilon, cost)
    rounding = 1 - mpmath.mpf(2) ** -140
    assert 0 < found * rounding <= 1
    assert found >= rounding * delta_at(2 * epsilon, cost)
    assert delta_at(epsilon, cost + cost) >= rounding * found


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(30.0, 5.0), (1e-6, 1e-5), (500.0, 20.0), (1e4, 130.0), (1e-300, 1e-20), (0.5, 1e-9)],
)
def test_the_curve_is_rounded_up_by_very_little(epsilon, mu):
    with mpmath.workprec(2000):
        cut = mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mpmath.mpf(mu)
        above = mpmath.erfc(-cut / mpmath.sqrt(2)) / 2
        below = mpmath.exp(mpmath.mpf(epsilon)) * mpmath.erfc((mu - cut) / mpmath.sqrt(2)) / 2
        exact = above - below
        found = delta_at(epsilon, Cost.gaussian(Fraction(mu) ** 2))
        assert exact <= found <= exact * (1 + mpmath.mpf(2) ** -149)


# --- Calibrated to the promise, never refused ----------------------------------------------------


@given(PROMISES, st.integers(1, 2**30), st.sampled_from([BinaryTree, Independent]), st.booleans())
@settings(max_examples=60)
def test_a_plan_that_spends_exactly_its_promise_is_accepted(promise, leaves, kind, gaussian):
    strategy = kind("gaussian" if gaussian else "laplace")
    promise = promise if gaussian else Guarantee(promise.epsilon)
    mechanism = Mechanism.calibrate(strategy, leaves, promise)
    sums = Event("sums", mechanism.cost, 1, None)
    assert Charges(promise, (sums,)).worst() == Charge(1, None, mechanism.cost)
    # Nor is there room for anything else.
    with pytest.raises(BudgetExceeded):
        Charges(promise, (sums, Event("more", Cost.pure(promise.epsilon * 1e-3), 5, 5)))


@given(PROMISES, st.floats(0.01, 0.99), st.booleans())
@settings(max_examples=60)
def test_a_threshold_and_the_sums_may_share_an_observation(promise, share, gaussian):
    """ε₁ for learning, the rest for the sums: in exact arithmetic they add up to the promise."""
    learning = Cost.pure(Fraction(promise.epsilon) * Fraction(share))
    strategy = BinaryTree("gaussian" if gaussian else "laplace")
    promise = promise if gaussian else Guarantee(promise.epsilon)
    mechanism = Mechanism.calibrate(strategy, 1000, promise, already=learning)
    events = (Event("threshold", learning, 1, 50), Event("sums", mechanism.cost, 1, None))
    assert Charges(promise, events).worst() == Charge(1, 50, learning + mechanism.cost)


@given(PROMISES)
@settings(max_examples=40)
def test_calibration_is_tight(promise):
    mu = gaussian_mu(promise)
    assert Cost.gaussian(Fraction(mu) ** 2).within(promise)
    larger = math.nextafter(mu, math.inf)
    assert not Cost.gaussian(Fraction(larger) ** 2).within(promise)


# --- Bad input: named, and nothing drawn ---------------------------------------------------------

NO_EPSILON = [
    0,
    0.0,
    -1,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    "1",
    None,
    1j,
    [1],
    10**400,
]
NO_DELTA = [-1e-9, 1, 1.0, 2, math.nan, math.inf, True, "0", None, Fraction(3, 2)]


@pytest.mark.parametrize("epsilon", NO_EPSILON)
def test_an_epsilon_that_is_none_is_named(epsilon):
    for make in (
        Guarantee,
        Cost.pure,
        lambda e: Cost.approximate(e, 0.1),
        lambda e: laplace_scale(1, e),
    ):
        with pytest.raises(ParameterError) as raised:
            make(epsilon)
        assert raised.value.parameter == "epsilon"
    with pytest.raises(ParameterError) as raised:
        Cost.gaussian(epsilon)
    assert raised.value.parameter == "mu_squared"


@pytest.mark.parametrize("epsilon", [2.0**-41, 1e-20, 1e-308, 5e-324])
def test_a_promise_that_no_noise_can_keep_is_named(epsilon):
    assert Guarantee(2.0**-40).epsilon == 2.0**-40
    with pytest.raises(ParameterError) as raised:
        Guarantee(epsilon, 0.1)
    assert raised.value.parameter == "epsilon"


@pytest.mark.parametrize("delta", NO_DELTA)
def test_a_delta_that_is_none_is_named(delta):
    for make in (Guarantee, Cost.approximate):
        with pytest.raises(ParameterError) as raised:
            make(1.0, delta)
        assert raised.value.parameter == "delta"


@pytest.mark.parametrize("name", ["epsilon", "delta", "mu_squared"])
@pytest.mark.parametrize("value", [-1, Fraction(-1, 10**9), math.nan, math.inf, "0", None, True])
def test_a_cost_that_is_none_is_named(name, value):
    with pytest.raises(ParameterError) as raised:
        Cost(**{name: value})
    assert raised.value.parameter == name


def test_a_cost_is_kept_as_an_exact_rational():
    assert Cost(0.1).epsilon == Fraction(0.1)
    assert isinstance((Cost(0.1) + Cost(epsilon=Fraction(1, 3))).epsilon, Fraction)


def test_gaussian_noise_without_delta_is_refused():
    with pytest.raises(ParameterError) as raised:
        gaussian_mu(Guarantee(1.0))
    assert raised.value.parameter == "delta"
    with pytest.raises(ParameterError) as raised:
        gaussian_mu(Guarantee(1.0, 0.01), Cost.approximate(0.5, 0.01))
    assert raised.value.parameter == "delta"


@pytest.mark.parametrize(
    ("strategy", "leaves", "promise", "already", "parameter"),
    [
        (BinaryTree(), 0, Guarantee(1.0), Cost(), "length"),
        (BinaryTree(), 2**60, Guarantee(1.0), Cost(), "length"),
        (BinaryTree(), 100, Guarantee(1e-9), Cost(), "epsilon"),
        (BinaryTree(), 100, Guarantee(2.0**-40), Cost(), "epsilon"),
        (BinaryTree(), 100, Guarantee(1.0), Cost(1 - Fraction(1, 10**320)), "epsilon"),
        (BinaryTree(), 100, Guarantee(1.0), Cost.pure(1), "epsilon"),
        (BinaryTree("gaussian"), 100, Guarantee(1.0), Cost(), "delta"),
        (BinaryTree("gaussian"), 2**60, Guarantee(1.0, 0.1), Cost(), "length"),
        (BinaryTree("gaussian"), 100, Guarantee(1e-12, 1e-12), Cost(), "epsilon"),
    ],
)
def test_a_mechanism_that_cannot_be_made_names_why(strategy, leaves, promise, already, parameter):
    with pytest.raises(ParameterError) as raised:
        Mechanism.calibrate(strategy, leaves, promise, already=already)
    assert raised.value.parameter == parameter


def test_an_unknown_law_is_named():
    with pytest.raises(ParameterError) as raised:
        BinaryTree("cauchy")
    assert raised.value.parameter == "law"


class CountingSecret(Secret):
    """Counts how often a keystream is opened: nothing can be drawn without one."""

    __slots__ = ()
    opened = 0

    def keystream(self, *purpose):
        CountingSecret.opened += 1
        return super().keystream(*purpose)


NO_SCALES = [0, -1.0, math.nan, math.inf, LARGEST_SCALE * 1.0001, 2**400, True, "1", None, 1j]


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=repr)
@pytest.mark.parametrize("scale", NO_SCALES)
def test_a_scale_that_is_none_is_named_and_nothing_is_drawn(law, scale):
    secret = CountingSecret(b"\1" * 32)
    LatticeNoise(law, 1.0, secret, ("x",)).draw(0, 1)
    before = CountingSecret.opened
    assert before > 0  # the count does see a draw
    with pytest.raises(ParameterError) as raised:
        LatticeNoise(law, scale, secret, ("x",))
    assert raised.value.parameter == "scale"
    assert CountingSecret.opened == before


def test_the_largest_scale_itself_is_allowed():
    noise = LatticeNoise(LAPLACE, LARGEST_SCALE, Secret.for_tests(1), ("x",))
    assert np.abs(noise.draw(0, 1000)).max() < 2**45
