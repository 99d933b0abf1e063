"""The optimiser: feasible, deterministic, as good as a global one, and the shape of Table II."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
from scipy.optimize import differential_evolution

from rillet import datasets
from rillet.errors import MissingExtra, ParameterError
from rillet.paper.bounds import underestimate_probability
from rillet.paper.optimise import (
    LocalParameters,
    Setting,
    _Search,
    optimise,
    predict,
    public_tail,
)
from rillet.threshold.calibration import calibrate

USUAL = Setting(epsilon=1.0, delta=2**-20, upper=3000.0, length=150_000, lag=50_000)
AS_PRINTED = dataclasses.replace(USUAL, calibration="paper-mixed", form="paper")


@cache
def baskets():
    try:
        return datasets.baskets()[:150_000]
    except MissingExtra as error:
        pytest.skip(str(error))


def test_result_is_feasible_and_adds_up():
    found = optimise(USUAL, public_guess=40.0)
    chosen, shares = found.parameters, found.parameters.shares
    assert chosen.quantile <= 0.005
    assert 0 < chosen.rank_factor <= 1
    assert chosen.multiplier >= 1
    assert 0 < chosen.threshold_share < 1
    assert shares.total == pytest.approx(0.02, rel=1e-12)
    g = underestimate_probability(chosen.rank_factor, chosen.quantile, 50_000)
    assert g == pytest.approx(shares.quantile, rel=1e-9)
    # κ exists, and the constants may be released.
    calibrate("exact", "laplace", chosen.threshold_share, 2**-20, shares.low).require_releasable()
    assert found == predict(USUAL, chosen, public_tail(USUAL, public_guess=40.0))
    assert found.gain
    assert found.improvement_factor == pytest.approx(USUAL.baseline / found.bound.total)


def test_same_answer_every_time():
    assert optimise(USUAL, public_guess=40.0) == optimise(USUAL, public_guess=40.0)


def test_small_changes_do_not_help():
    """A local check of the real objective: no neighbour is more than half a percent better."""
    found = optimise(USUAL, public_guess=40.0)
    tail = public_tail(USUAL, public_guess=40.0)
    chosen, shares = found.parameters, found.parameters.shares
    neighbours = [
        dataclasses.replace(chosen, multiplier=max(1.0, chosen.multiplier * f))
        for f in (0.97, 1.03)
    ]
    neighbours += [
        dataclasses.replace(chosen, threshold_share=chosen.threshold_share * f)
        for f in (0.97, 1.03)
    ]
    for name in ("low", "high", "outlier", "first"):
        for factor in (0.8, 1.25):
            moved = dataclasses.replace(shares, **{name: getattr(shares, name) * factor})
            rest = shares.noise - (moved.total - shares.total)
            moved = dataclasses.replace(moved, noise=rest)
            neighbours.append(dataclasses.replace(chosen, shares=moved))
    for other in neighbours:
        assert predict(USUAL, other, tail).bound.total > 0.995 * found.bound.total


def best_by_evolution(setting, sample, generations):
    """Differential evolution over whole ranks and everything else, on the objective at a rank."""
    search = _Search(setting, public_tail(setting, public_sample=sample))
    most = math.floor(setting.largest_quantile * setting.lag)
    found = differential_evolution(
        lambda z: search.objective_at(int(z[0]), z[1:]),
        [(0, most), *[(0, 1)] * (search.size - 1)],
        seed=1,
        maxiter=generations,
        tol=1e-8,
        polish=False,
    )
    return math.exp(-found.fun)


@pytest.mark.parametrize(
    "lag", [50_000, *(pytest.param(m, marks=pytest.mark.long) for m in (40_000, 60_000, 100_000))]
)
@pytest.mark.parametrize("as_printed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_no_worse_than_a_global_optimiser(lag, as_printed):
    setting = dataclasses.replace(AS_PRINTED if as_printed else USUAL, lag=lag)
    found = optimise(setting, public_sample=baskets())
    assert found.improvement_factor > 0.98 * best_by_evolution(setting, baskets(), 250)


def test_table_two_has_its_shape_on_baskets():
    """PAK, Table II: 1 (no gain), 4.23, 4.86, 6.67 at m = 40,000, 50,000, 60,000, 100,000."""
    factor = {
        m: optimise(dataclasses.replace(AS_PRINTED, lag=m), public_sample=baskets())
        for m in (10_000, 50_000, 60_000, 100_000)
    }
    assert not factor[10_000].gain
    found = [factor[m].improvement_factor for m in (50_000, 60_000, 100_000)]
    assert found == pytest.approx([5.49, 6.32, 7.88], rel=0.02)
    # With the noise of the first block, which the paper's bound leaves out, ε₁ is not driven to
    # its limit and the numbers come near the printed ones.
    whole = [
        optimise(dataclasses.replace(AS_PRINTED, form="corrected", lag=m), public_sample=baskets())
        for m in (10_000, 50_000, 60_000, 100_000)
    ]
    assert not whole[0].gain
    for prediction, printed in zip(whole[1:], (4.23, 4.86, 6.67), strict=True):
        assert prediction.improvement_factor == pytest.approx(printed, rel=0.15)
        assert 0.8 < prediction.parameters.threshold_share < 0.95
    # The exact calibration does better at every lag.
    for m, prediction in zip((50_000, 60_000, 100_000), whole[1:], strict=True):
        ours = optimise(dataclasses.replace(USUAL, lag=m), public_sample=baskets())
        assert ours.improvement_factor > 1.3 * prediction.improvement_factor


def test_larger_guess_larger_bound_and_no_gain_in_the_end():
    small, large = (optimise(USUAL, public_guess=scale) for scale in (10.0, 100.0))
    assert small.bound.total < large.bound.total
    assert not optimise(USUAL, public_guess=5000.0).gain


def test_too_short_a_lag_gains_nothing():
    for lag in (1, 20, 500):
        assert not optimise(dataclasses.replace(USUAL, lag=lag), public_guess=40.0).gain


def test_shifted_data_give_the_same_plan():
    sample = np.random.default_rng(2).exponential(40.0, 50_000)
    plain = optimise(USUAL, public_sample=sample)
    moved = dataclasses.replace(USUAL, lower=-1024.0, upper=3000.0 - 1024.0)
    assert optimise(moved, public_sample=sample - 1024.0).bound.total == pytest.approx(
        plain.bound.total, rel=1e-3
    )


def test_sample_and_guess_of_the_same_law_agree():
    sample = np.random.default_rng(3).exponential(40.0, 60_000)
    guess = optimise(USUAL, public_guess=40.0).bound.total
    assert optimise(USUAL, public_sample=sample).bound.total == pytest.approx(guess, rel=0.1)
    # A shorter sample is stretched, one with holes is mended.
    short = np.concatenate((sample[:20_000], [np.nan, np.inf]))
    assert public_tail(USUAL, public_sample=short).size == 50_000
    assert optimise(USUAL, public_sample=short).bound.total == pytest.approx(guess, rel=0.25)


def test_other_laws_and_calibrations():
    for changes in (
        {"law": "gaussian", "length": 10**6, "lag": 150_000},
        {"calibration": "textbook"},
        {"calibration": "paper"},
        {"epsilon": 0.3, "delta": 1e-9, "length": 10**7, "lag": 500_000},
    ):
        found = optimise(dataclasses.replace(USUAL, **changes), public_guess=40.0)
        assert found.gain, changes


def test_either_a_sample_or_a_guess():
    for keywords in ({}, {"public_sample": [1.0, 2.0], "public_guess": 3.0}):
        with pytest.raises(ParameterError, match="public_sample"):
            optimise(USUAL, **keywords)
    with pytest.raises(ParameterError, match="public_guess"):
        optimise(USUAL, public_guess=-1.0)
    with pytest.raises(ParameterError, match="public_sample"):
        optimise(USUAL, public_sample=[math.nan, 1.0])


def test_prediction_refuses_a_quantile_that_is_too_often_low():
    found = optimise(USUAL, public_guess=40.0).parameters
    wrong = LocalParameters(found.quantile, 1.0, found.multiplier, 0.8, found.shares)
    with pytest.raises(ParameterError, match="rank_factor"):
        predict(USUAL, wrong, public_tail(USUAL, public_guess=40.0))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"beta": 0.6}, "beta"),
        ({"lag": 150_000}, "lag"),
        ({"lag": 0}, "lag"),
        ({"upper": 0.0}, "upper"),
        ({"largest_quantile": 0.7}, "largest_quantile"),
    ],
)
def test_wrong_settings_are_named(changes, name):
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(USUAL, **changes)
    assert caught.value.parameter == name
