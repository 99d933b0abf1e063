"""How long to learn: both criteria of the paper, for any parameters."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet.errors import ParameterError
from rillet.paper.bounds import underestimate_probability
from rillet.paper.lag import criterion_quantile, criterion_sensitivity, suggest_lag
from rillet.threshold.calibration import calibrate


def test_first_criterion_with_the_papers_values():
    assert criterion_quantile(0.005, 0.02, 0.5) == 3231
    assert underestimate_probability(0.5, 0.005, 3230) >= 0.02
    assert all(underestimate_probability(0.5, 0.005, m) < 0.02 for m in range(3231, 12_000))
    # Where the paper's figure of 20,000 comes from.
    assert criterion_quantile(0.005, 0.02, 0.8) == 20_766


@settings(max_examples=60, deadline=None)
@given(
    quantile=st.integers(5, 300).map(lambda k: k / 1000),
    beta=st.integers(1, 300).map(lambda k: k / 1000),
    rank_factor=st.integers(1, 8).map(lambda k: k / 10),
)
def test_first_criterion_is_the_last_failure_plus_one(quantile, beta, rank_factor):
    """By brute force up to where Chernoff's bound ends all failures."""
    found = criterion_quantile(quantile, beta, rank_factor)
    last = math.ceil(2 * math.log(1 / beta) / (quantile * (1 - rank_factor) ** 2)) + 1
    failing = [
        m
        for m in range(1, min(last, 3 * found + 200) + 1)
        if underestimate_probability(rank_factor, quantile, m) >= beta
    ]
    assert found == (failing[-1] + 1 if failing else 1)


def test_second_criterion_with_the_papers_values():
    found = criterion_sensitivity(1.0, 2**-20, 0.005, 0.02)
    assert found == 82_423
    assert abs(found - 82_000) < 1000
    # The closed form as printed.
    log_term, kappa = 20 * math.log(2), calibrate("paper-mixed", "laplace", 1.0, 2**-20, 0.02).kappa
    printed = 20 * kappa * log_term**1.5 * math.exp(-1) * -math.log(0.04)
    printed /= -0.005 * math.log(0.005)
    assert found - 1 < printed < found


def test_second_criterion_moves_as_it_should():
    base = criterion_sensitivity(1.0, 2**-20)
    assert criterion_sensitivity(0.5, 2**-20) > 3.5 * base
    assert criterion_sensitivity(1.0, 2**-20, fraction=0.2) == pytest.approx(base / 2, abs=1)
    assert criterion_sensitivity(1.0, 2**-20, calibration="exact") < base / 3


def test_suggestion_is_the_larger_one():
    assert suggest_lag(1.0, 2**-20) == 82_423
    assert suggest_lag(50.0, 0.1) == criterion_quantile()


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ({"quantile": 0.0}, "quantile"),
        ({"rank_factor": 1.0}, "rank_factor"),
        ({"rank_factor": 0.99999}, "rank_factor"),
        ({"beta": 1.0}, "beta"),
    ],
)
def test_wrong_parameters_are_named(keywords, name):
    with pytest.raises(ParameterError) as caught:
        criterion_quantile(**keywords)
    assert caught.value.parameter == name
