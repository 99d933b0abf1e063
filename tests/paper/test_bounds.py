"""The paper's bounds: against independent computation, and against 20,000 simulated runs."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaincc, gammainccinv

from rillet.errors import ParameterError
from rillet.paper import bounds
from rillet.paper.bounds import ErrorShares
from rillet.threshold.calibration import calibrate, noise_quantile
from rillet.threshold.smooth_sensitivity import quantile_rank, smooth_sensitivity

RUNS = 20_000
# One run of a test may raise a false alarm once in a million.
ALARM = 1e-6


class Law:
    """A law by its survival function and the inverse of that (scipy.stats is slow for one draw)."""

    def __init__(self, sf, isf):
        self.sf, self.isf = sf, isf


def weibull(shape, scale):
    return Law(
        lambda x: np.exp(-((x / scale) ** shape)), lambda q: scale * (-np.log(q)) ** (1 / shape)
    )


LIGHT = {
    "exponential": weibull(1.0, 40.0),
    "gamma": Law(lambda x: gammaincc(2.6, x / 14), lambda q: 14 * gammainccinv(2.6, q)),
    "weibull": weibull(1.5, 60.0),
}


def fails_more_often_than(failures, runs, beta):
    """Whether so many failures would be a one in a million event at probability β."""
    return stats.binom.sf(failures - 1, runs, beta) < ALARM


# --- g -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank_factor", "quantile", "lag"),
    [(0.5, 0.005, 3231), (0.8, 0.005, 20_766), (0.85, 0.005, 50_000), (0.3, 0.02, 400)],
)
def test_g_is_the_binomial_sum(rank_factor, quantile, lag):
    with mpmath.workdps(40):
        p = mpmath.mpf(str(quantile))
        most = int(mpmath.floor(mpmath.mpf(str(rank_factor)) * p * lag))
        summed = mpmath.fsum(
            mpmath.binomial(lag, i) * p**i * (1 - p) ** (lag - i) for i in range(most + 1)
        )
    found = bounds.underestimate_probability(rank_factor, quantile, lag)
    assert found == pytest.approx(float(summed), rel=1e-10)


@pytest.mark.parametrize("law", LIGHT)
def test_g_is_how_often_the_quantile_is_underestimated(law):
    """Whole samples, sorted, ranked as the mechanism ranks them."""
    lag, quantile, rank_factor = 1000, 0.02, 0.7
    generator = np.random.default_rng(7)
    if law == "gamma":
        values = 14 * generator.standard_gamma(2.6, size=(4000, lag))
    else:
        values = LIGHT[law].isf(generator.uniform(size=(4000, lag)))
    rank = quantile_rank(lag, bounds.decimal_fraction(quantile) * bounds.decimal_fraction(0.7))
    estimate = np.partition(values, rank - 1, axis=1)[:, rank - 1]
    below = int(np.sum(estimate < LIGHT[law].isf(quantile)))
    g = bounds.underestimate_probability(rank_factor, quantile, lag)
    assert min(stats.binom.sf(below - 1, 4000, g), stats.binom.cdf(below, 4000, g)) > ALARM
    # The same with λ one rank off would be noticed.
    other = bounds.underestimate_probability(rank_factor + 0.06, quantile, lag)
    assert stats.binom.cdf(below, 4000, other) < ALARM


# --- κ and τ_max ---------------------------------------------------------------------------------


def test_kappa_and_where_it_ends():
    found = calibrate("paper", "laplace", 0.8, 2**-20, 0.006)
    assert bounds.kappa(found.a, found.b, found.offset) == pytest.approx(found.kappa, rel=1e-14)
    edge = found.a / math.expm1(found.b)
    with pytest.raises(ParameterError, match="offset"):
        bounds.kappa(found.a, found.b, edge * 1.0001)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_threshold_stays_between_quantile_and_bound(law):
    """τ = x̂ + κS/a·(Z + offset) is below x̂ with probability β_lt, above τ_max with β_rt."""
    constants = calibrate("exact", law, 0.8, 2**-20, 0.05)
    generator = np.random.default_rng(11)
    noise = generator.laplace(size=RUNS) if law == "laplace" else generator.normal(size=RUNS)
    tau = 200.0 + constants.kappa * 3.0 / constants.a * (noise + constants.offset)
    highest = bounds.threshold_bound(200.0, 3.0, constants, 0.03)
    for seen, beta in ((np.sum(tau < 200.0), 0.05), (np.sum(tau > highest), 0.03)):
        assert stats.binom.sf(seen - 1, RUNS, beta) > ALARM
        assert stats.binom.cdf(seen, RUNS, beta) > ALARM


# --- noise ---------------------------------------------------------------------------------------


def tree_noise(generator, count, sensitivity, epsilon, runs):
    """Noise of the last prefix: one Laplace draw for each one in the binary form of count."""
    scale = count.bit_length() * sensitivity / epsilon
    return generator.laplace(scale=scale, size=(runs, count.bit_count())).sum(axis=1)


@pytest.mark.parametrize("count", [1, 2**10 - 1, 2**17 - 1, 100_000])
@pytest.mark.parametrize("beta", [0.1, 0.004])
def test_tree_bound_holds(count, beta):
    noise = tree_noise(np.random.default_rng(3), count, 300.0, 0.7, RUNS)
    alpha = bounds.alpha_tree(0.7, 300.0, count, beta)
    assert not fails_more_often_than(np.sum(np.abs(noise) > alpha), RUNS, beta)
    # The constant √8 is generous; a fourth of the bound would not do.
    assert fails_more_often_than(np.sum(np.abs(noise) > alpha / 4), RUNS, beta)


def test_tree_bound_as_printed_fails_for_tiny_trees_only():
    for count in (2, 7, 1023, 2**17 - 1):
        noise = tree_noise(np.random.default_rng(3), count, 1.0, 1.0, RUNS)
        alpha = bounds.alpha_tree(1.0, 1.0, count, 0.004, "paper")
        assert fails_more_often_than(np.sum(np.abs(noise) > alpha), RUNS, 0.004) == (count == 2)


def test_tree_bound_as_printed():
    found = bounds.alpha_tree(1.0, 3000.0, 150_000, 0.02, form="paper")
    with mpmath.workdps(30):
        expected = mpmath.log(150_000, 2) ** 1.5 * 3000 * mpmath.sqrt(8 * mpmath.log(50))
    assert found == pytest.approx(float(expected), rel=1e-13)
    assert bounds.alpha_tree(1.0, 1.0, 2**10, 0.02, form="paper") == pytest.approx(
        10**1.5 * math.sqrt(8 * math.log(50))
    )
    # Eleven levels, not ten, at a power of two; two sides.
    assert bounds.alpha_tree(1.0, 1.0, 2**10, 0.02) == pytest.approx(
        11**1.5 * math.sqrt(8 * math.log(100))
    )


def test_first_block_bound_is_exact():
    noise = np.random.default_rng(5).laplace(scale=300.0 / 0.2, size=RUNS)
    seen = int(np.sum(np.abs(noise) > bounds.alpha_first_block(300.0, 0.2, 0.04)))
    assert min(stats.binom.sf(seen - 1, RUNS, 0.04), stats.binom.cdf(seen, RUNS, 0.04)) > ALARM


# --- outliers ------------------------------------------------------------------------------------


def clipped_excess(generator, law, cut, count, runs):
    """Σ(x − cut)₊ over ``count`` values, by drawing only those above the cut."""
    above = law.sf(cut)
    numbers = generator.binomial(count, above, size=runs)
    excess = law.isf(above * generator.uniform(size=int(numbers.sum()))) - cut
    return np.bincount(np.repeat(np.arange(runs), numbers), weights=excess, minlength=runs)


@pytest.mark.parametrize("law", LIGHT)
@pytest.mark.parametrize("multiplier", [1.0, 1.4, 2.0])
@pytest.mark.parametrize("beta", [0.1, 0.004])
def test_light_tailed_outlier_bound_holds(law, multiplier, beta):
    quantile, count = 0.005, 40_000
    value = LIGHT[law].isf(quantile)
    excess = clipped_excess(np.random.default_rng(13), LIGHT[law], multiplier * value, count, RUNS)
    alpha = bounds.alpha_outlier_light_tailed(value, quantile, multiplier, count, beta)
    assert not fails_more_often_than(np.sum(excess > alpha), RUNS, beta)
    if law == "exponential":  # where the bound is nearly sharp
        assert fails_more_often_than(np.sum(excess > 0.3 * alpha), RUNS, beta)


def test_light_tailed_outlier_bound_fails_on_a_heavy_tail():
    law = weibull(0.6, 10.0)
    value = law.isf(0.005)
    excess = clipped_excess(np.random.default_rng(17), law, value, 40_000, RUNS)
    alpha = bounds.alpha_outlier_light_tailed(value, 0.005, 1.0, 40_000, 0.02)
    assert fails_more_often_than(np.sum(excess > alpha), RUNS, 0.02)


@pytest.mark.parametrize("quantile", [0.01, 1e-4])
@pytest.mark.parametrize("beta", [0.1, 0.004])
@pytest.mark.parametrize("form", ["paper", "corrected"])
def test_worst_case_outlier_bound_holds_on_the_two_point_stream(quantile, beta, form):
    """Nothing, or B with probability p: the law behind PAK's worst case."""
    count, excess = 40_000, 2900.0
    lost = excess * np.random.default_rng(19).binomial(count, quantile, size=RUNS)
    alpha = bounds.alpha_outlier_worst_case(excess, quantile, count, beta, form)
    assert not fails_more_often_than(np.sum(lost > alpha), RUNS, beta)
    assert fails_more_often_than(np.sum(lost > alpha / (8 if form == "paper" else 2)), RUNS, beta)


def test_worst_case_outlier_bound_where_few_are_expected():
    """pn = 0.1: the closed form of the paper fails, the exponent chosen well does not."""
    lost = np.random.default_rng(23).binomial(1000, 1e-4, size=RUNS)
    printed = bounds.alpha_outlier_worst_case(1.0, 1e-4, 1000, 0.02, "paper")
    assert fails_more_often_than(np.sum(lost > printed), RUNS, 0.02)
    chosen = bounds.alpha_outlier_worst_case(1.0, 1e-4, 1000, 0.02)
    assert not fails_more_often_than(np.sum(lost > chosen), RUNS, 0.02)
    assert bounds.alpha_outlier_worst_case(1.0, 0.9, 3, 0.001) == 3.0


def test_worst_case_outlier_exponent_is_the_best_one():
    """The same by brute force over the exponent h of PAK's derivation."""
    p, n, beta, excess = 0.002, 5000, 0.01, 7.0
    h = np.geomspace(1e-4, 10, 200_001) / excess
    brute = np.min((n * np.log1p(p * np.expm1(h * excess)) - math.log(beta)) / h)
    found = bounds.alpha_outlier_worst_case(excess, p, n, beta)
    assert found == pytest.approx(brute, rel=1e-6)


# --- all together --------------------------------------------------------------------------------


def top_of_sample(generator, law, lag, top):
    """The largest ``top`` of ``lag`` draws in ascending order, by the spacings of uniforms."""
    spacings = np.cumsum(generator.exponential(size=top))
    total = spacings[-1] + generator.gamma(lag + 1 - top)
    return law.isf(spacings / total)[::-1]


def simulate(law, runs, seed):
    """Run Mechanism 1 and return |error| and α of each run."""
    generator = np.random.default_rng(seed)
    epsilon, delta, length, lag = 4.0, 2**-20, 10_000 + 2**15 - 1, 10_000
    quantile, rank_factor = 0.005, 0.6
    share, multiplier, upper = 0.8, 1.3, 3000.0
    shares = ErrorShares(0.004, 0.004, 0.004, 0.004, 0.002, 0.002)
    assert bounds.underestimate_probability(rank_factor, quantile, lag) < shares.quantile
    constants = calibrate("exact", "laplace", share * epsilon, delta, shares.low)
    above, top = 30, 400
    assert top > above + math.ceil(20 / constants.b) + 1
    errors, alphas = np.empty(runs), np.empty(runs)
    for run in range(runs):
        raw_top = np.minimum(top_of_sample(generator, law, lag, top), upper)
        value = raw_top[top - above - 1]
        exact = smooth_sensitivity(raw_top, top - above, 0.0, upper, constants.b)
        scale = constants.kappa * exact / constants.a
        tau = value + scale * (generator.laplace() + constants.offset)
        clip = min(max(multiplier * tau, 1e-3), upper)
        lost = np.maximum(raw_top - clip, 0).sum()
        lost += clipped_excess(generator, law, clip, length - lag, 1)[0]
        noise = tree_noise(generator, length - lag, clip, epsilon, 1)[0]
        noise += generator.laplace(scale=clip / (epsilon * (1 - share)))
        errors[run] = abs(noise - lost)
        alphas[run] = bounds.alpha_light_tailed(
            epsilon=epsilon,
            threshold_share=share,
            length=length,
            lag=lag,
            quantile=quantile,
            multiplier=multiplier,
            quantile_value=value,
            threshold_max=bounds.threshold_bound(value, exact, constants, shares.high),
            shares=shares,
        ).total
    return errors, alphas, shares.total


@pytest.mark.parametrize("law", LIGHT)
@pytest.mark.parametrize("runs", [1_000, pytest.param(RUNS, marks=pytest.mark.long)])
def test_the_whole_bound_holds_on_light_tailed_streams(law, runs):
    errors, alphas, beta = simulate(LIGHT[law], runs, seed=29)
    assert beta == pytest.approx(0.02)
    assert not fails_more_often_than(np.sum(errors > alphas), runs, beta)
    assert fails_more_often_than(np.sum(errors > alphas / 8), runs, beta)


@pytest.mark.parametrize("form", ["paper", "corrected"])
def test_the_whole_worst_case_bound_holds_on_the_two_point_stream(form):
    generator = np.random.default_rng(31)
    epsilon, share, length, lag, upper, quantile = 1.0, 0.8, 50_000, 20_000, 3000.0, 0.005
    shares = ErrorShares(0.0, 0.004, 0.004, 0.004, 0.004, 0.004)
    constants = calibrate("exact", "laplace", 0.8, 2**-20, shares.low)
    # Few of the first values are B: the quantile is 0 and S is what a rank of 100 leaves of B.
    exact = upper * math.exp(-constants.b * 100)
    tau = constants.kappa * exact / constants.a * (generator.laplace(size=RUNS) + constants.offset)
    clip = np.clip(tau, 1e-3, upper)
    lost = generator.binomial(length, quantile, size=RUNS) * (upper - clip)
    noise = clip * tree_noise(generator, length - lag, 1.0, epsilon, RUNS)
    noise += clip * generator.laplace(scale=1 / (epsilon * (1 - share)), size=RUNS)
    bound = bounds.alpha_worst_case(
        epsilon=epsilon,
        threshold_share=share,
        length=length,
        lag=lag,
        upper=upper,
        quantile=quantile,
        threshold_min=0.0,
        threshold_max=bounds.threshold_bound(0.0, exact, constants, shares.high),
        shares=shares,
        form=form,
    )
    assert not fails_more_often_than(np.sum(np.abs(noise - lost) > bound.total), RUNS, 0.02)
    assert (bound.first_block == 0) == (form == "paper")
    assert bound.total == bound.noise + bound.outlier + bound.first_block


def test_worst_case_bound_adds_up():
    shares = ErrorShares(0.0, 0.0, 0.0, 0.01, 0.01, 0.01)
    bound = bounds.alpha_worst_case(
        epsilon=1.0,
        threshold_share=0.8,
        length=1000,
        lag=100,
        upper=10.0,
        quantile=0.01,
        threshold_min=4.0,
        threshold_max=5.0,
        shares=shares,
    )
    assert bound.noise == bounds.alpha_tree(1.0, 5.0, 900, 0.01)
    assert bound.outlier == bounds.alpha_outlier_worst_case(6.0, 0.01, 1000, 0.01)
    assert bound.first_block == pytest.approx(5.0 / 0.2 * math.log(100))
    assert noise_quantile("laplace", 0.25) == pytest.approx(math.log(2))
