"""The statistics helper: p-values that are valid exactly, and a budget that cannot be overdrawn."""

from fractions import Fraction
from itertools import product
from math import comb, factorial, prod

import numpy as np
import pytest
from scipy.stats import binom, chi2

from rillet.errors import ParameterError
from rillet.testing import statistics
from rillet.testing.statistics import (
    SUITE,
    Budget,
    BudgetOverdrawn,
    StatisticalFailure,
    binomial_p_value,
    check,
    clopper_pearson,
    combine,
    goodness_of_fit,
    laplace_scale_p_value,
    normal_scale_p_value,
    sign_p_value,
    smallest_detectable_ratio,
)

ALPHA = 1e-9


# --- The budget ----------------------------------------------------------------------------------


def test_the_suite_may_raise_a_false_alarm_once_in_a_million_runs_at_most():
    assert statistics.TOTAL_FALSE_ALARM == Fraction(1, 10**6)
    assert 0 < Fraction(SUITE.total) <= statistics.TOTAL_FALSE_ALARM
    assert SUITE.spent <= SUITE.total


def test_parallel_workers_share_the_budget(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "8")
    assert 8 * statistics._share_of_process() == statistics.TOTAL_FALSE_ALARM


def test_a_check_beyond_the_budget_is_refused_before_it_looks():
    budget = Budget(Fraction(3, 10), Fraction(1, 10))
    for number in range(3):
        check(f"check {number}", 0.5, budget=budget)
    assert budget.spent == Fraction(3, 10)
    with pytest.raises(BudgetOverdrawn, match="one too many"):
        check("one too many", 0.5, budget=budget)
    assert len(budget.checks) == 3
    check("a small one", 0.5, alpha=Fraction(1, 10**12), budget=Budget())


def test_a_failed_check_is_charged_and_named():
    budget = Budget(1e-3, 1e-6)
    with pytest.raises(StatisticalFailure, match="the coin"):
        check("the coin", 1e-7, budget=budget)
    assert budget.checks == (("the coin", Fraction(1e-6)),)
    with pytest.raises(StatisticalFailure):
        check("nonsense", float("nan"), budget=budget)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 2])
def test_an_impossible_alpha_is_refused(alpha):
    with pytest.raises(ParameterError, match="alpha"):
        Budget(0.5).charge("x", alpha)


# --- Validity: P(p ≤ α) ≤ α, by enumeration of everything that can happen ------------------------


def assert_valid(outcomes):
    """``outcomes``: pairs of exact probability and p-value.  No α may be exceeded."""
    total = Fraction(0)
    for probability, p_value in sorted(outcomes, key=lambda pair: pair[1]):
        total += probability
        if p_value < 1:
            assert float(total) <= p_value * (1 + 1e-9)
    assert abs(sum(p for p, _ in outcomes) - 1) < 1e-12


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("chance", [Fraction(1, 2), Fraction(1, 50), Fraction(9, 10)])
def test_binomial_p_values_are_valid(trials, chance):
    assert_valid(
        [
            (
                comb(trials, k) * chance**k * (1 - chance) ** (trials - k),
                float(binomial_p_value(k, trials, float(chance))),
            )
            for k in range(trials + 1)
        ]
    )


def test_binomial_p_value_is_twice_the_tail_even_far_out():
    tail = Fraction(sum(comb(1000, k) for k in range(800, 1001)), 2**1000)
    assert float(binomial_p_value(800, 1000, 0.5)) == pytest.approx(float(2 * tail), rel=1e-9)


def test_a_probability_known_only_within_an_interval_makes_p_values_larger():
    exact = binomial_p_value(600, 1000, 0.5)
    assert binomial_p_value(600, 1000, 0.5, 0.55) > exact
    assert binomial_p_value(600, 1000, 0.45, 0.65) == 1.0
    assert binomial_p_value(600, 1000, 0.45, 0.5) == exact


MULTINOMIALS = [
    (10, [Fraction(1, 4)] * 4),
    (14, [Fraction(1, 20), Fraction(9, 20), Fraction(1, 2)]),
    (8, [Fraction(1, 100), Fraction(49, 100), Fraction(0), Fraction(49, 100), Fraction(1, 100)]),
]


@pytest.mark.parametrize(("trials", "chances"), MULTINOMIALS)
def test_goodness_of_fit_is_valid_for_small_samples(trials, chances):
    outcomes = []
    for counts in product(range(trials + 1), repeat=len(chances)):
        if sum(counts) == trials:
            ways = factorial(trials) // prod(factorial(k) for k in counts)
            chance = ways * prod(p**k for p, k in zip(chances, counts, strict=True))
            if chance:
                outcomes.append(
                    (chance, goodness_of_fit(counts, [float(p) for p in chances]).p_value)
                )
    assert_valid(outcomes)


def test_the_usual_chi_square_gate_is_not_valid_even_with_50_expected():
    """Why the gate is not used: one cell of 50 in 10^6, at α = 10^-9, exactly computed."""
    trials, chance = 10**6, 50e-6
    k = np.arange(400)
    squared = (k - 50) ** 2 / (50 * (1 - chance))
    usual = binom.pmf(k, trials, chance)[squared > chi2.isf(ALPHA, 1)].sum()
    assert 18 * ALPHA < usual < 20 * ALPHA
    fits = np.array([goodness_of_fit([n, trials - n], [chance, 1 - chance]).p_value for n in k])
    assert binom.pmf(k, trials, chance)[fits <= ALPHA].sum() <= ALPHA


def test_a_cell_of_probability_zero_must_stay_empty():
    assert goodness_of_fit([50, 0, 50], [0.5, 0.0, 0.5]).p_value == 1.0
    assert goodness_of_fit([50, 1, 50], [0.5, 0.0, 0.5]).p_value == 0.0


def test_fisher_combination_of_uniforms_is_uniform():
    assert combine([]) == 1.0
    assert combine([0.03]) == pytest.approx(0.03)
    # P(U₁U₂ ≤ x) = x(1 − ln x)
    assert combine([0.1, 0.2]) == pytest.approx(0.02 * (1 - np.log(0.02)))


def test_clopper_pearson_covers():
    trials, alpha = 30, 0.05
    for chance in np.linspace(0.001, 0.999, 97):
        intervals = [clopper_pearson(k, trials, alpha) for k in range(trials + 1)]
        missed = [k for k, (low, high) in enumerate(intervals) if not low <= chance <= high]
        assert binom.pmf(missed, trials, chance).sum() <= alpha
    assert clopper_pearson(0, 10, 0.1)[0] == 0.0
    assert clopper_pearson(10, 10, 0.1)[1] == 1.0


def test_scale_p_values_are_valid_and_equal_for_both_tails():
    """The p-value of a true sample is uniform: its distribution is compared with that."""
    generator = np.random.default_rng(11)
    for name, p_values in (
        ("normal", [normal_scale_p_value(3 * generator.normal(size=9), 3.0) for _ in range(4000)]),
        ("laplace", [laplace_scale_p_value(generator.laplace(0, 3, 9), 3.0) for _ in range(4000)]),
    ):
        counts = np.histogram(p_values, bins=20, range=(0, 1))[0]
        check(f"scale p-values are uniform: {name}", goodness_of_fit(counts, [0.05] * 20).p_value)


def test_a_rounded_sample_is_given_the_benefit_of_the_doubt():
    values = np.full(100, 1.3)
    assert normal_scale_p_value(values, 1.0, error=0.5) == 1.0
    assert normal_scale_p_value(values, 1.0) < 1e-3
    assert laplace_scale_p_value(values, 1.0, error=0.5) == 1.0
    assert laplace_scale_p_value(values, 1.0) < 1e-2


# --- Power: a slightly broken sample is found ----------------------------------------------------


def test_goodness_of_fit_finds_a_scale_that_is_little_off():
    generator = np.random.default_rng(5)
    edges = np.quantile(generator.laplace(size=200_001), np.arange(1, 64) / 64)
    upper = np.where(edges < 0, np.exp(edges) / 2, 1 - np.exp(-edges) / 2)
    chances = np.diff([0, *upper, 1])
    right = np.histogram(generator.laplace(size=10**6), bins=[-np.inf, *edges, np.inf])[0]
    wrong = np.histogram(generator.laplace(0, 1.015, 10**6), bins=[-np.inf, *edges, np.inf])[0]
    check("a right scale", goodness_of_fit(right, chances).p_value)
    assert goodness_of_fit(wrong, chances).p_value < ALPHA


def test_goodness_of_fit_finds_one_wrong_cell_among_many():
    chances = np.full(200, 1 / 200)
    counts = np.full(200, 1000)
    counts[17] += 400
    assert goodness_of_fit(counts, chances).p_value < ALPHA


def test_goodness_of_fit_finds_an_alternating_pattern():
    counts = 1000 + 60 * (-1) ** np.arange(200)
    assert goodness_of_fit(counts, np.full(200, 1 / 200)).p_value < ALPHA


def test_sign_test_finds_a_weak_correlation():
    generator = np.random.default_rng(6)
    x, y = generator.normal(size=(2, 100_000))
    check("independent signs", sign_p_value(x * y))
    assert sign_p_value(x * (y + 0.05 * x)) < ALPHA


@pytest.mark.parametrize("draws", [1000, 20_000])
def test_scale_tests_find_what_they_should(draws):
    generator = np.random.default_rng(draws)
    ratio = smallest_detectable_ratio(draws, ALPHA, 1 - 1e-6)
    assert ratio < 1 + 9 / draws**0.5
    assert normal_scale_p_value(ratio * generator.normal(size=draws), 1.0) < ALPHA
    # The gamma law of a Laplace sample is twice as concentrated in 1/scale.
    assert laplace_scale_p_value(generator.laplace(0, ratio**1.6, draws), 1.0) < ALPHA


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "chances"),
    [([1, 2], [0.5, 0.6]), ([1], [1.0]), ([1, 2, 3], [0.5, 0.5]), ([1, 2], [1.5, -0.5])],
)
def test_goodness_of_fit_refuses_what_is_no_distribution(counts, chances):
    with pytest.raises(ParameterError):
        goodness_of_fit(counts, chances)
