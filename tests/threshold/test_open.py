"""Ranges without declared bounds: sensitivity, the logarithmic grid, scales, plans, streams."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from helpers.streams import DELTA
from rillet import (
    FixedThreshold,
    Mean,
    MissingExtra,
    ParameterError,
    Plan,
    Secret,
    SmoothQuantile,
    Sum,
    TailHistogram,
    datasets,
)
from rillet.reproduce.simulator import simulate
from rillet.statistic import OPEN_END, Range
from rillet.threshold.base import SMALLEST_WIDTH
from rillet.threshold.centre import centre_cells, find_centre, grid_number, grid_point, inner_point
from rillet.threshold.rank import weight_ratio, weight_table
from rillet.threshold.tail import PARTS

UP = Range(0.0, OPEN_END)
DOWN = Range(-OPEN_END, 5.0)
BOTH = Range(-OPEN_END, OPEN_END)
SECRET = Secret.for_tests(3)
AWKWARD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324, 1e-300, 2.0**-44, 1e-6, -1e-6]
AWKWARD += [1.0, np.nextafter(1.0, 2), 3.0, 5.0, -7.0, 1e12, -1e12, OPEN_END, -OPEN_END, 1e300]


# --- Sensitivity, by brute force ---------------------------------------------------------------


@pytest.mark.parametrize("bounds", [UP, DOWN, BOTH], ids=str)
@pytest.mark.parametrize("centre", [None, 1e-6, 4.0, -1e12])
def test_one_replaced_observation_moves_the_counts_by_the_stated_sensitivity_at_most(
    bounds, centre
):
    if centre is not None:
        centre = inner_point(bounds, centre)
    threshold = TailHistogram()
    counted = np.array([threshold.count(np.array([x]), bounds, centre) for x in AWKWARD])
    assert np.all(counted >= 0)
    assert np.all(counted.sum(axis=1) == PARTS)
    difference = counted[:, None, :] - counted[None, :, :]
    assert np.abs(difference).sum(axis=2).max() == threshold.count_sensitivity("laplace")
    assert (difference**2).sum(axis=2).max() == threshold.count_sensitivity("gaussian")


@pytest.mark.parametrize("bounds", [UP, DOWN, BOTH], ids=str)
@pytest.mark.parametrize("added", [False, True])
def test_the_centre_is_as_private_as_it_says(bounds, added):
    """Exact probabilities on all neighbours of some streams, at points of every run."""
    budget = Fraction("0.7")

    def weights(values, points):
        found = centre_cells(np.array(values), bounds, added=added)
        table = weight_table(budget, len(values) + 1)
        weight = [table[min(d, len(table) - 1)] for d in found.exact_distance.tolist()]
        total = sum(w * n for w, n in zip(weight, found.exact_count.tolist(), strict=True))
        held = found.exact_count > 0
        runs = np.searchsorted(found.exact_first[held], points, side="right") - 1
        return [Fraction(np.array(weight, object)[held][run], total) for run in runs], found

    most = weight_ratio(budget) ** 2
    for values in itertools.combinations([0.0, 1e-6, 1.0, 3.0, -7.0, 1e12, np.nan], 3):
        for index, other in itertools.product(range(3), [np.inf, -1e12, 5e-324, 2.0]):
            changed = list(values)
            changed[index : index + 1 - added] = [other]
            points = np.concatenate(
                [
                    centre_cells(np.array(x), bounds, added=added).exact_first
                    for x in (values, changed)
                ]
            )
            points = np.unique(np.clip(points, 0, None))
            one, of_one = weights(values, points)
            two, of_two = weights(changed, points)
            assert of_one.exact_count.sum() == of_two.exact_count.sum()
            for a, b in zip(one, two, strict=True):
                assert a <= most * b
                assert b <= most * a


# --- The logarithmic grid ----------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [UP, DOWN, BOTH], ids=str)
def test_the_grid_is_in_order_and_undone_by_its_inverse(bounds):
    numbers = [n for n in (-(10**8), -77, -1, 0, 1, 77, 10**8) if bounds is BOTH or n * 5 != 0]
    for number in numbers:
        point = grid_point(bounds, number)
        if bounds.origin == 0.0:  # else a distance is lost in what it is counted from
            assert grid_number(bounds, point) == number
    points = [grid_point(bounds, number) for number in numbers]
    assert points == sorted(points)
    values = np.sort([x for x in AWKWARD if np.isfinite(x)])
    numbers = [grid_number(bounds, float(x)) for x in values]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("level", [1e-6, 0.3, 1e3, 7e7, 1e12])
@pytest.mark.parametrize("bounds", [UP, BOTH], ids=str)
def test_the_centre_lies_among_values_of_any_size(bounds, level):
    values = np.random.default_rng(1).normal(level, 0.03 * level, 3000)
    found = [find_centre(values, bounds, Fraction("0.1"), SECRET, i) for i in range(10)]
    assert np.all(np.abs(np.array(found) / level - 1) < 0.015)


# --- Plans -------------------------------------------------------------------------------------


def open_plan(length, **more):
    return Plan(epsilon=1.0, delta=DELTA, length=length, statistic=Sum(), missing="none", **more)


def rmse(plan, values):
    found = simulate(plan, values, 8, seed=2)
    return np.sqrt(np.mean((found.clipping + found.added_back) ** 2 + found.noise_std**2))


@pytest.mark.parametrize("unit", [100.0, 1.0, 0.001], ids=["cents", "dollars", "kilo-dollars"])
def test_baskets_have_the_same_error_in_any_unit_as_with_a_bound(unit):
    try:
        values = datasets.baskets()[:150_000]
    except MissingExtra as missing:
        pytest.skip(str(missing))
    known = rmse(open_plan(len(values), upper=3000.0), values)
    assert rmse(open_plan(len(values)), values * unit) / unit < 1.25 * known


@pytest.mark.parametrize("scale", [1e-6, 1e12])
@pytest.mark.parametrize("lower", [0.0, None])
def test_values_from_the_smallest_to_the_largest(lower, scale):
    values = np.random.default_rng(4).gamma(3.0, 10.0, 20_000)
    known = rmse(open_plan(20_000, upper=1000.0), values)
    assert rmse(open_plan(20_000, lower=lower), values * scale) / scale < 1.25 * known


def test_values_of_either_sign_and_values_below_a_bound():
    values = np.random.default_rng(4).normal(0.0, 5.0, 20_000)
    known = rmse(open_plan(20_000, lower=-100.0, upper=100.0), values)
    assert rmse(open_plan(20_000, lower=None), values) < 1.25 * known
    below = -np.abs(values)
    known = rmse(open_plan(20_000, lower=-100.0, upper=0.0), below)
    assert rmse(open_plan(20_000, lower=None, upper=0.0), below) < 1.25 * known


def test_a_plan_without_bounds_is_kept_in_json():
    for lower in (0.0, None):
        plan = open_plan(20_000, lower=lower)
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert again.lower is lower or again.lower == lower
        assert again.upper is None
        assert "times the clipping range" in plan.describe()
    table = {"epsilon": 1.0, "length": 20_000, "upper": "none", "lower": "none"}
    assert Plan.from_table(table).bounds == BOTH


@pytest.mark.parametrize(
    "more",
    [
        {"length": 1000},
        {"length": 20_000, "lag": 0},
        {"length": 20_000, "threshold": FixedThreshold()},
        {"length": 20_000, "threshold": SmoothQuantile(), "lag": 5000},
        {"length": 20_000, "lower": None, "threshold": TailHistogram(two_sided=False)},
    ],
    ids=str,
)
def test_what_needs_a_bound_asks_for_one(more):
    with pytest.raises(ParameterError, match="upper: expected a public bound"):
        open_plan(**more)


def test_without_a_bound_an_expected_error_needs_a_guess_and_is_a_multiple_of_it():
    plan = open_plan(20_000)
    with pytest.raises(ParameterError, match="clip_upper: expected a guess"):
        plan.expected_error(20_000)
    one, ten = (plan.expected_error(20_000, clip_upper=guess) for guess in (1.0, 10.0))
    assert ten == pytest.approx(10 * one)
    assert one == pytest.approx(plan.unit_noise_std(20_000))
    both = open_plan(20_000, lower=None)
    assert both.expected_error(20_000, clip_upper=1.0) == pytest.approx(2 * one, rel=0.01)


# --- Streams -----------------------------------------------------------------------------------

SHAPES = {
    "count": {"length": 4000, "every": 100},
    "missing": {"length": 4000, "every": 100, "missing": "skip"},
    "either sign": {"length": 4000, "every": 100, "lower": None},
    "window": {"length": 4000, "every": 50, "statistic": Mean(window=2000)},
    "pure": {"length": 4000, "every": 100, "delta": 0.0},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_streams_release_the_same_however_blocks_are_cut(shape):
    plan = Plan(**{"epsilon": 4.0, "delta": DELTA, **SHAPES[shape]})
    values = 1e9 * np.random.default_rng(5).gamma(3.0, 1.0, 4000)
    values[::97] = np.nan
    whole, parts = (plan.open(secret=SECRET) for _ in range(2))
    expected = list(whole.update_many(values))
    cut = np.split(values, [1, 700, 701, 2500])
    found = [release for block in cut for release in parts.update_many(block)]
    assert [r.t for r in found] == [r.t for r in expected]
    assert np.array_equal([r.mean for r in found], [r.mean for r in expected], equal_nan=True)
    assert expected[-1].mean == pytest.approx(np.nanmean(values), rel=0.25)
    assert expected[-1].clip_upper - expected[-1].clip_lower > SMALLEST_WIDTH


@pytest.mark.parametrize("lower", [0.0, None])
def test_by_the_clock(lower):
    plan = Plan(
        epsilon=4.0,
        delta=DELTA,
        every="1h",
        start="2026-01-01T00:00Z",
        length="40d",
        lower=lower,
    )
    stream, random = plan.open(secret=SECRET), np.random.default_rng(6)
    for hour in range(0, 960, 8):
        at = 1767225600 + 3600 * hour
        stream.update_many(random.gamma(3.0, 1e-6, 80), at=np.full(80, at))
    stream.advance(until="2026-02-10T00:00Z")
    assert stream.latest().mean == pytest.approx(3e-6, rel=0.2)


@pytest.mark.parametrize("seed", [9, 11, 19, 21])
def test_equal_values_by_the_clock_are_found(seed):
    """A centre among 2^31 points, from 700 values; and a side without any is not reached out on."""
    plan = Plan(
        epsilon=1.0,
        delta=DELTA,
        lower=None,
        upper=None,
        every="6h",
        start="2026-01-01T00:00Z",
        length="30d",
    )
    stream = plan.open(secret=Secret.for_tests(seed))
    stream.update_many(np.full(20_000, 7.0), at=1767225600 + np.linspace(0, 30 * 86400 - 1, 20_000))
    last = stream.advance(until="2026-02-01T00:00Z")[-1]
    assert last.mean == pytest.approx(7.0, abs=0.1)


def test_equal_values_by_count_are_not_taken_for_more():
    plan = Plan(epsilon=1.0, delta=DELTA, lower=None, upper=None, length=20_000, every=1000)
    last = plan.open(secret=Secret.for_tests(61)).update_many(np.full(20_000, 7.0))[-1]
    assert last.clip_upper - last.clip_lower < 1e-3
