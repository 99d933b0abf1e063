"""The constants of smooth sensitivity: exact δ, the worst pair, the published numbers."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet.errors import ParameterError
from rillet.threshold.calibration import (
    _within,
    calibrate,
    exact_delta,
    noise_quantile,
    published_constants,
    worst_pair_proved,
)

DELTA = 2.0**-20
LOG_TERM = 20 * math.log(2)
LAWS = ("laplace", "gaussian")


def density(law, x, centre, scale):
    z = np.abs(x - centre) / scale
    shape = np.exp(-z) / 2 if law == "laplace" else np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return shape / scale


def delta_by_sum(law, first, second, epsilon, reach=80.0, points=400_001):
    """∫ (p − e^ε q)₊ on a fine grid: no knowledge of where the set {p > e^ε q} lies."""
    x, step = np.linspace(-reach, reach, points, retstep=True)
    p, q = density(law, x, *first), density(law, x, *second)
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * step)


def test_known_constants_at_the_usual_setting():
    exact = calibrate("exact", "laplace", 0.8, DELTA, 0.006)
    textbook = calibrate("textbook", "laplace", 0.8, DELTA, 0.006)
    assert exact.a == pytest.approx(0.547, abs=5e-4)
    assert exact.b == pytest.approx(0.0289, abs=5e-5)
    assert textbook.cost / exact.cost == pytest.approx(1.59, abs=0.01)
    assert textbook.a == 0.4
    assert textbook.b == pytest.approx(0.8 / (2 * math.log(2**21)), rel=1e-14)
    half = max(
        b for b in np.linspace(0.025, 0.045, 401) if exact_delta("laplace", 0.4, b, 0.8) <= DELTA
    )
    assert textbook.cost / (1 / (0.4 * half) / (1 - math.expm1(half) * exact.offset / 0.4)) == (
        pytest.approx(1.16, abs=0.01)
    )


@pytest.mark.parametrize(
    ("epsilon", "shift_only", "with_scale"), [(0.5, 4.2, 236), (1.0, 10.8, 569), (2.0, 34.9, 1617)]
)
def test_the_papers_gaussian_constants_cost_many_times_their_delta(epsilon, shift_only, with_scale):
    found = calibrate("paper", "gaussian", epsilon, DELTA, 0.1)
    assert found.a == pytest.approx(epsilon / math.sqrt(LOG_TERM), rel=1e-14)
    assert found.b == pytest.approx(epsilon / (2 * LOG_TERM), rel=1e-14)
    assert exact_delta("gaussian", found.a, 0.0, epsilon) / DELTA == pytest.approx(
        shift_only, abs=0.05
    )
    assert exact_delta("gaussian", found.a, found.b, epsilon) / DELTA == pytest.approx(
        with_scale, abs=0.6
    )
    assert not found.releasable
    with pytest.raises(ParameterError, match="calibration"):
        found.require_releasable()


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 0.8, 1.0])
def test_the_papers_laplace_constants_are_safe(epsilon):
    found = calibrate("paper", "laplace", epsilon, DELTA, 0.006)
    found.require_releasable()
    assert exact_delta("laplace", found.a, found.b, epsilon) < 0.01 * DELTA
    # The mixed pair is safe as well, but its a belongs to another law: tables only.
    mixed = calibrate("paper-mixed", "laplace", epsilon, DELTA, 0.02)
    assert exact_delta("laplace", mixed.a, mixed.b, epsilon) < DELTA
    assert not mixed.releasable


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_textbook_constants_are_safe_where_their_lemma_applies(law, epsilon, delta):
    found = calibrate("textbook", law, epsilon, delta, 0.3)
    assert exact_delta(law, found.a, found.b, epsilon) < delta
    assert found.releasable


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("a", "b", "epsilon"), [(0.5, 0.1, 0.4), (0.3, 0.3, 0.2), (2.0, 0.4, 0.5), (0.7, 0.0, 0.3)]
)
def test_exact_delta_is_the_integral_of_the_excess(law, a, b, epsilon):
    summed = delta_by_sum(law, (0.0, math.exp(b)), (a, 1.0), epsilon)
    assert exact_delta(law, a, b, epsilon) == pytest.approx(summed, rel=1e-5)


def test_exact_gaussian_delta_against_quadrature_in_the_far_tail():
    found = calibrate("exact", "gaussian", 0.8, DELTA, 0.006)
    with mpmath.workdps(40):
        width = mpmath.exp(found.b)
        constant = mpmath.exp(mpmath.mpf(0.8))

        def excess(x):
            p = mpmath.npdf(x, 0, width)
            return max(p - constant * mpmath.npdf(x, found.a, 1), 0)

        low, high = -20, 20
        pieces = [-40, low, -8, -6, -5, -4.5, -4, -3, 0, 4, 6, 8, 10, 12, 14, high, 40]
        integral = mpmath.quad(excess, pieces, maxdegree=9)
    assert exact_delta("gaussian", found.a, found.b, 0.8) == pytest.approx(
        float(integral), rel=1e-3
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.8, DELTA), (0.2, 1e-4), (2.0, 1e-3)])
def test_no_admissible_pair_of_neighbours_exceeds_the_promise(law, epsilon, delta):
    """Every shift up to a, every ratio of scales up to e^b, in both orders."""
    found = calibrate("exact", law, epsilon, delta, 0.006)
    worst = 0.0
    for shift in np.linspace(0, found.a, 6):
        for ratio in np.exp(np.linspace(0, found.b, 6)):
            wide, narrow = (0.0, ratio), (shift, 1.0)
            worst = max(
                worst,
                delta_by_sum(law, wide, narrow, epsilon, points=100_001),
                delta_by_sum(law, narrow, wide, epsilon, points=100_001),
            )
    assert worst <= delta * (1 + 2e-3)
    # … and the promise is used up: the constants could not be larger.
    assert exact_delta(law, found.a, found.b, epsilon) >= delta * (1 - 1e-6)
    assert exact_delta(law, found.a, found.b * 1.001, epsilon) > delta
    assert worst >= delta * (1 - 2e-3)


@pytest.mark.parametrize("law", LAWS)
def test_no_other_pair_within_the_promise_costs_less(law):
    epsilon, offset = 0.8, noise_quantile(law, 0.006)
    best = calibrate("exact", law, epsilon, DELTA, 0.006)
    for a in np.linspace(0.3, 1.6, 27) * best.a:
        for b in np.linspace(0.3, 3.0, 28) * best.b:
            room = 1 - math.expm1(b) * offset / a
            if room > 0 and 1 / (a * b * room) < best.cost * (1 - 1e-5):
                assert exact_delta(law, a, b, epsilon) > DELTA


@settings(max_examples=60, deadline=None)
@given(
    law=st.sampled_from(LAWS),
    epsilon=st.floats(1e-4, 20),
    log_delta=st.floats(-74.8, -0.5),
    beta=st.floats(1e-6, 0.49),
)
def test_exact_constants_always_exist_and_keep_the_promise(law, epsilon, log_delta, beta):
    delta = math.exp(log_delta)
    found = calibrate("exact", law, epsilon, delta, beta)
    found.require_releasable()
    assert worst_pair_proved(law, found.a, found.b, epsilon)
    assert exact_delta(law, found.a, found.b, epsilon) <= delta
    with mpmath.workdps(50):
        room = 1 - mpmath.expm1(found.b) * mpmath.mpf(found.offset) / mpmath.mpf(found.a)
        assert room > 0
        assert found.kappa >= 1 / room
        assert found.kappa <= (1 + mpmath.mpf(2) ** -50) / room


@pytest.mark.parametrize(
    ("law", "a", "b", "proved"),
    [
        ("gaussian", 1.0, 0.1, True),
        ("gaussian", 2.0, 0.1, False),  # only a² ≤ 2ε fails
        ("gaussian", 0.1, 0.5, False),  # only the cube is too large
        ("laplace", 0.5, 0.2, True),
        ("laplace", 1.1, 0.9, False),
        ("laplace", 1.0, 1.0, False),
        ("gaussian", 9.0, 0.0, True),
    ],
)
def test_each_condition_of_the_worst_pair_is_needed(law, a, b, proved):
    assert worst_pair_proved(law, a, b, epsilon=1.0) is proved


@pytest.mark.parametrize("law", LAWS)
def test_offset_is_the_quantile_of_the_noise(law):
    for beta in (0.4999, 0.3, 0.02, 1e-9):
        offset = noise_quantile(law, beta)
        above = mpmath.exp(-offset) / 2 if law == "laplace" else mpmath.ncdf(-offset)
        assert float(above) == pytest.approx(beta, rel=1e-12)
    assert noise_quantile("laplace", 0.9) == -noise_quantile("laplace", 1 - 0.9)


def test_kappa_that_does_not_exist_is_refused():
    with pytest.raises(ParameterError, match=r"beta_lt.*kappa exists"):
        calibrate("textbook", "gaussian", 0.8, DELTA, 0.006)
    with pytest.raises(ParameterError, match=r"beta_lt.*kappa exists"):
        calibrate("paper", "laplace", 1.0, 0.9, 0.006)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("best", "laplace", 1.0, DELTA, 0.01), "calibration"),
        (("exact", "cauchy", 1.0, DELTA, 0.01), "law"),
        (("paper-mixed", "gaussian", 1.0, DELTA, 0.01), "law"),
        (("exact", "laplace", 0.0, DELTA, 0.01), "epsilon"),
        (("exact", "laplace", math.nan, DELTA, 0.01), "epsilon"),
        (("exact", "laplace", 1.0, 0.0, 0.01), "delta"),
        (("exact", "laplace", 1.0, 1.0, 0.01), "delta"),
        (("exact", "laplace", 1.0, DELTA, 0.5), "beta_lt"),
    ],
)
def test_wrong_parameters_are_named(arguments, name):
    with pytest.raises(ParameterError) as caught:
        calibrate(*arguments)
    assert caught.value.parameter == name


# --- The share of δ that pays for the draw --------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "textbook", "paper"])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0, 70.0, 1e6])
@pytest.mark.parametrize("delta", [2.0**-20, 2.0**-60, 2.0**-107, 2.0**-108])
def test_releasable_constants_leave_the_draw_its_share(kind, law, epsilon, delta):
    """Theorem 4: δ₀ + (1 + e^ε)·2^-140 is within δ, for an ε that is at most the promised one."""
    try:
        found = calibrate(kind, law, epsilon, delta, 0.3)
    except ParameterError:
        assert kind != "exact"  # no kappa
        return
    if not found.releasable:
        assert kind != "exact"
        return
    with mpmath.workdps(60):
        used = min(mpmath.mpf(epsilon), mpmath.log(mpmath.ldexp(delta, 110) - 1))
        draw = (1 + mpmath.exp(used * (1 - mpmath.mpf(2) ** -50))) * mpmath.ldexp(1, -140)
        spent = mpmath.mpf(exact_delta(law, found.a, found.b, float(used)))
        assert spent + draw <= delta
    assert found.a <= 2**16


def test_constants_whose_delta_is_the_promised_one_leave_no_share():
    a, b = published_constants("textbook", "laplace", 1.0, 2.0**-20)
    exact = exact_delta("laplace", a, b, 1.0)
    assert not _within("laplace", a, b, 1.0, exact)
    assert not _within("laplace", a, b, 1.0, exact * (1 + 2.0**-31))
    assert _within("laplace", a, b, 1.0, exact * (1 + 2.0**-29))


@pytest.mark.parametrize("kind", ["exact", "textbook", "paper"])
def test_a_delta_below_what_a_draw_may_cost_is_refused(kind):
    with pytest.raises(ParameterError, match=r"2\^-108"):
        calibrate(kind, "laplace", 1.0, 2.0**-109, 0.1)


def test_constants_are_a_value_and_nothing_else():
    found = calibrate("exact", "laplace", 1.0, 1e-6, 0.1)
    assert found == calibrate("exact", "laplace", 1.0, 1e-6, 0.1)
    with pytest.raises(AttributeError):
        object.__setattr__(found, "other", 1.0)
