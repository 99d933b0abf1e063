"""Smooth sensitivity of a quantile: against its definition, and smooth as the float it is."""

import itertools
import math
import time
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet import Secret, SmoothQuantile
from rillet.errors import ParameterError
from rillet.statistic import Range
from rillet.threshold.calibration import calibrate
from rillet.threshold.smooth_sensitivity import (
    quantile_rank,
    sensitivity_terms,
    smooth_sensitivity,
    smooth_weights,
)

HALF_ULP = mpmath.mpf(2) ** -53


@given(
    values=st.lists(st.integers(0, 6), min_size=1, max_size=25),
    tail=st.fractions(0, 1, max_denominator=50),
)
def test_rank_is_the_smallest_element_with_enough_at_or_below(values, tail):
    ordered = sorted(values)
    found = ordered[quantile_rank(len(values), tail) - 1]
    enough = [x for x in ordered if sum(y <= x for y in ordered) >= (1 - tail) * len(ordered)]
    assert found == enough[0]


def test_rank_is_not_at_the_mercy_of_floats():
    # 0.8·0.0035·m is whole for these m, yet a product of floats falls below or above it.
    for m in (12_500, 25_000, 50_000, 75_000, 100_000):
        above = m * 8 * 35 // 100_000
        assert quantile_rank(m, Fraction("0.8") * Fraction("0.0035")) == m - above


def local_sensitivity(values, rank, domain):
    here = sorted(values)[rank - 1]
    return max(
        abs(sorted([*values[:i], y, *values[i + 1 :]])[rank - 1] - here)
        for i in range(len(values))
        for y in domain
    )


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("b", [0.05, 0.7, 3.0, 12.0])
def test_equals_the_definition_on_every_small_data_set(rank, b):
    domain, count = (0.0, 1.0, 2.5, 10.0), 4
    streams = list(itertools.product(domain, repeat=count))
    local = {x: local_sensitivity(x, rank, domain) for x in streams}
    floor = 10.0 * math.exp(-b * sensitivity_terms(count, b))
    for x in itertools.combinations_with_replacement(domain, count):
        defined = max(
            local[y] * math.exp(-b * sum(u != v for u, v in zip(x, y, strict=True)))
            for y in streams
        )
        found = smooth_sensitivity(np.array(x), rank, 0.0, 10.0, b)
        assert found == pytest.approx(max(defined, floor), rel=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("b", [0.02, 0.5, 2.0, 7.0])
def test_smooth_over_every_pair_of_neighbours(rank, b):
    domain, count = (0.0, 0.1, 0.3, 1.0), 5
    found = {
        x: smooth_sensitivity(np.array(x), rank, 0.0, 1.0, b)
        for x in itertools.combinations_with_replacement(domain, count)
    }
    with mpmath.workdps(40):
        limit = mpmath.exp(mpmath.mpf(b))
        for x, s in found.items():
            for i, y in itertools.product(range(count), domain):
                other = tuple(sorted([*x[:i], y, *x[i + 1 :]]))
                assert mpmath.mpf(s) <= limit * mpmath.mpf(found[other])
                assert Fraction(s) >= abs(Fraction(x[rank - 1]) - Fraction(other[rank - 1]))


@st.composite
def neighbours(draw):
    count = draw(st.integers(1, 30))
    unit = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 1 / 3, math.nextafter(1.0, 0.0)])
    values = draw(st.lists(unit, min_size=count, max_size=count))
    place = draw(st.integers(0, count - 1))
    other = [*values]
    other[place] = draw(unit)
    return values, other, draw(st.integers(1, count))


@settings(max_examples=400, deadline=None)
@given(pair=neighbours(), b=st.floats(0.005, 19.9), beta=st.floats(1e-4, 0.4))
def test_smoothness_and_the_move_of_the_offset_estimate_without_tolerance(pair, b, beta):
    """The floats themselves satisfy both inequalities, compared in exact arithmetic."""
    first, second, rank = pair
    s, t = (
        smooth_sensitivity(np.sort(np.array(values)), rank, 0.0, 1.0, b)
        for values in (first, second)
    )
    x, y = (Fraction(sorted(values)[rank - 1]) for values in (first, second))
    assert abs(x - y) <= min(Fraction(s), Fraction(t))
    with mpmath.workdps(60):
        assert mpmath.mpf(max(s, t)) <= mpmath.exp(mpmath.mpf(b)) * mpmath.mpf(min(s, t))
    found = calibrate("exact", "laplace", 0.8, 2.0**-20, beta)
    s, t = (
        smooth_sensitivity(np.sort(np.array(values)), rank, 0.0, 1.0, found.b)
        for values in (first, second)
    )
    factor = Fraction(found.kappa) * Fraction(found.offset) / Fraction(found.a)
    move = abs(x + factor * Fraction(s) - y - factor * Fraction(t))
    assert move <= Fraction(found.kappa) * min(Fraction(s), Fraction(t))


@pytest.mark.parametrize("b", [19.0, 1.1, 0.0289203, 0.0275, 1e-3, 7e-4])
def test_weights_leave_room_for_the_rounding_of_products(b):
    weights = smooth_weights(b, sensitivity_terms(10**6, b))
    with mpmath.workdps(40):
        limit = mpmath.exp(mpmath.mpf(b)) * (1 - HALF_ULP) / (1 + HALF_ULP)
        exact = [mpmath.mpf(w) for w in weights]
        assert all(u <= limit * v for u, v in itertools.pairwise(exact))
        assert exact[0] * (1 - HALF_ULP) ** 2 >= 1
        # … and no more room than that: the last is e^{−bK} to ten digits.
        last = mpmath.exp(-mpmath.mpf(b) * (len(exact) - 1))
        assert abs(exact[-1] / last - 1) < 1e-10


def test_never_zero_even_where_all_values_sit_at_the_bound():
    found = smooth_sensitivity(np.full(5000, 3000.0), 4990, 0.0, 3000.0, 0.5)
    assert found == pytest.approx(3000 * math.exp(-20), rel=1e-9)


def test_large_and_small_b():
    assert sensitivity_terms(50, 1e-6) == 50
    assert sensitivity_terms(10**7, 1e-6) == 2**15
    assert sensitivity_terms(10**6, 0.0289) == 693
    assert sensitivity_terms(1, 20.0) == 1


def test_blocks_agree_with_the_plain_double_loop():
    rng = np.random.default_rng(5)
    values = np.sort(np.minimum(rng.exponential(30.0, 2000), 400.0))
    b, rank = 0.013, 1990
    terms = sensitivity_terms(2000, b)
    padded = np.concatenate((np.zeros(2001), values, np.full(2001, 400.0)))
    at = 2000 + rank
    plain = max(
        math.exp(-b * k) * np.max(padded[at : at + k + 2] - padded[at - k - 1 : at + 1])
        for k in range(terms)
    )
    found = smooth_sensitivity(values, rank, 0.0, 400.0, b)
    assert found == pytest.approx(max(plain, 400 * math.exp(-b * terms)), rel=1e-12)


def test_fast_on_many_values():
    values = np.sort(np.random.default_rng(1).exponential(30.0, 300_000).clip(0, 3000))
    start = time.process_time()
    smooth_sensitivity(values, 298_800, 0.0, 3000.0, 0.0289)
    # Measured at 4 ms; the limit leaves a busy machine in peace.
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("rank", "lower", "upper", "b", "name"),
    [
        (0, 0.0, 1.0, 0.1, "rank"),
        (4, 0.0, 1.0, 0.1, "rank"),
        (1, 1.0, 1.0, 0.1, "upper"),
        (1, 0.0, math.inf, 0.1, "upper"),
        (1, 0.0, math.nan, 0.1, "upper"),
        (1, 0.0, 1.0, 0.0, "b"),
        (1, 0.0, 1.0, 21.0, "b"),
    ],
)
def test_wrong_parameters_are_named(rank, lower, upper, b, name):
    with pytest.raises(ParameterError) as caught:
        smooth_sensitivity(np.array([0.1, 0.2, 0.3]), rank, lower, upper, b)
    assert caught.value.parameter == name


@pytest.mark.parametrize("size", [2.0**-900, 2.0**-300, 1.0, 2.0**900])
def test_any_unit_of_measurement_gives_the_same(size):
    values = np.array([1.0, 2.0, 3.0, 5.0]) / 8
    expected = smooth_sensitivity(values, 3, 0.0, 1.0, 0.5)
    assert smooth_sensitivity(values * size, 3, 0.0, size, 0.5) == expected * size
    for beyond in (2.0**-901, 2.0**901):
        with pytest.raises(ParameterError, match="upper"):
            smooth_sensitivity(values * beyond, 3, 0.0, beyond, 0.5)


def test_there_are_no_terms_of_nothing():
    for count, b in ((0, 0.5), (5, 0.0), (5, 21.0)):
        with pytest.raises(ParameterError):
            sensitivity_terms(count, b)
    assert sensitivity_terms(1, 0.5) == 1
    assert sensitivity_terms(100, 0.5) == 40


def test_a_draw_is_the_first_one_where_none_is_named():
    threshold, secret = SmoothQuantile(), Secret.for_tests(1)
    values, bounds = np.linspace(1.0, 900.0, 20_000), Range(0.0, 3000.0)
    unreleased = threshold.prepare(values, bounds, Fraction(5), 1e-6)
    drawn = [threshold.draw(unreleased, secret, index) for index in (0, 1)]
    assert threshold.draw(unreleased, secret) == drawn[0]
    assert drawn[0] != drawn[1]
