"""Ranges with two sides: the centre, the counts around it, the ends, and streams that use them."""

from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest

import rillet.threshold.tail
from helpers.streams import DELTA, all_releases, small_chunks, state_text
from rillet import FixedThreshold, ParameterError, Plan, Secret, Sum, TailHistogram
from rillet.reproduce.coverage import covered
from rillet.reproduce.simulator import simulate
from rillet.statistic import OPEN_END, Setting
from rillet.threshold import Look, Outlook, Range
from rillet.threshold.centre import (
    STEPS,
    centre_cells,
    find_centre,
    grid_number,
    grid_point,
    inner_point,
    knots_around,
    range_around,
)
from rillet.threshold.tail import CENTRE_SHARE, PARTS

TWO = TailHistogram(two_sided=True)
BOUNDS = Range(0.0, 3000.0)
#: On each side of a centre three to an octave, forty octaves, and two; they share the centre.
COUNTS = 2 * (3 * 40 + 2) - 1
SECRET = Secret.for_tests(7)
STRANGE = [np.nan, np.inf, -np.inf, -1e300, 5e-324, -0.0]


def test_two_sided_is_a_yes_or_a_no():
    with pytest.raises(ParameterError, match="two_sided"):
        TailHistogram(two_sided=1)


# --- The centre -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "middle", "spread"),
    [
        (BOUNDS, 1000.0, 10.0),
        (Range(0.0, 100.0), 37.0, 0.5),
        (Range(0.0, 4e9), 1.7e9, 20.0),
        (Range(-1e6, 1e6), 0.0, 1.0),
    ],
    ids=str,
)
def test_the_centre_lies_among_the_values(bounds, middle, spread):
    values = np.random.default_rng(1).normal(middle, spread, 3000)
    found = [find_centre(values, bounds, Fraction("0.1"), SECRET, i) for i in range(30)]
    assert np.all(np.abs(np.array(found) - middle) < 0.3 * spread)
    assert len(set(found)) > 4
    assert all(grid_point(bounds, grid_number(bounds, centre)) == centre for centre in found)


def test_there_is_room_on_both_sides_of_a_centre():
    for value in (0.0, 3000.0, np.nan, np.inf):
        centre = find_centre(np.full(500, value), BOUNDS, Fraction(5), SECRET)
        assert 0.0 < centre < 3000.0


def test_the_ends_of_a_range_lie_on_the_even_grid_inside_the_bounds():
    random = np.random.default_rng(2)
    for bounds in (BOUNDS, Range(-7.3, 1e-3), Range(1e9, 1e9 + 1e-3), Range(0.0, 1e300)):
        for _ in range(200):
            centre = grid_point(bounds, int(random.integers(1, STEPS)))
            above, below = 2.0 ** random.uniform(-45, 0.5, 2)
            found = range_around(bounds, centre, above, below)
            assert bounds.lower <= found.lower < found.upper <= bounds.upper
            for end in (found.lower, found.upper):
                assert grid_point(bounds, grid_number(bounds, end)) == end
            if bounds is BOUNDS:
                assert found.lower <= max(0.0, centre - below * 3000)
                assert found.upper >= min(3000.0, centre + above * 3000)
                assert found.width <= (above + below) * 3000 + 4 * 3000 / STEPS


def test_a_range_without_a_bound_stays_inside_what_values_are_cut_to():
    for bounds in (Range(-OPEN_END, 1e6), Range(0.0, OPEN_END), Range(-OPEN_END, OPEN_END)):
        for end in (bounds.lower, bounds.upper):
            centre = inner_point(bounds, end)
            for part in (0.0, 2.0**-50, 1.0):
                found = range_around(bounds, centre, part, part)
                assert bounds.lower <= found.lower < found.upper <= bounds.upper


@pytest.mark.parametrize("bounds", [BOUNDS, Range(-1.0, 5.0), Range(0.0, OPEN_END)])
def test_how_much_the_first_point_weighs_follows_from_the_bounds(bounds):
    some = (np.zeros(9), np.full(9, bounds.upper), np.array(STRANGE), np.empty(0))
    expected = 1 if bounds.lower < 0 else centre_cells(some[0], bounds).exact_count.sum() // 2 + 1
    assert [centre_cells(values, bounds).in_first for values in some] == [expected] * 4


# --- The counts -------------------------------------------------------------------------------


def awkward(centre, count, seed):
    random = np.random.default_rng(seed)
    near = centre + random.choice([-1, 1], count) * 2.0 ** random.uniform(-40, 11, count)
    return np.concatenate((near, STRANGE, [centre, 0.0, 3000.0, np.nextafter(centre, 0)]))


@pytest.mark.parametrize("centre", [1000.0, 3000.0 / STEPS, 2999.999], ids=str)
def test_one_replaced_observation_moves_the_counts_by_the_stated_sensitivity_at_most(centre):
    values = awkward(centre, 150, 3)
    counted = np.array([TWO.count(np.array([value]), BOUNDS, centre) for value in values])
    assert counted.shape[1] == COUNTS
    assert np.all(counted >= 0)
    assert np.all(counted.sum(axis=1) == PARTS)
    assert np.all((counted > 0).sum(axis=1) <= 2)
    difference = counted[:, None, :] - counted[None, :, :]
    assert np.abs(difference).sum(axis=2).max() == TWO.count_sensitivity("laplace")
    assert (difference**2).sum(axis=2).max() == TWO.count_sensitivity("gaussian")


def test_counted_add_up_and_keep_the_mean():
    centre, values = 1000.0, np.random.default_rng(4).normal(1000, 30, 4000)
    whole = TWO.count(values, BOUNDS, centre)
    parts = [TWO.count(part, BOUNDS, centre) for part in np.split(values, [7, 7, 3000])]
    assert np.array_equal(whole, np.sum(parts, axis=0))
    assert np.array_equal(TWO.count(np.empty(0), BOUNDS, centre), np.zeros(COUNTS))
    mean = centre + whole @ knots_around(BOUNDS, centre) / PARTS / len(values)
    assert mean == pytest.approx(values.mean(), abs=0.05)


def test_without_a_centre_nothing_has_changed():
    values = np.random.default_rng(5).exponential(20, 1000)
    one = TailHistogram(two_sided=False)
    assert np.array_equal(TWO.count(values, BOUNDS, None), one.count(values, BOUNDS, None))
    assert one.measure(values, BOUNDS, Fraction(1, 2), 0.0, SECRET, Setting()).centre is None


# --- The choice -------------------------------------------------------------------------------


def judged(values, centre, scale=1.0, seed=0):
    """What counts with noise of this scale, in observations, lead to."""
    count, exact = len(values), TWO.count(values, BOUNDS, centre)
    noise = np.random.default_rng(seed).laplace(0, scale * PARTS, len(exact))
    noisy = exact + np.rint(noise).astype(np.int64)
    look = Look(count, noisy, scale * PARTS, "laplace", centre)
    outlook = Outlook(length=count, after=count // 2, until=count, noise_per_unit=20.0)
    return TWO.judge(BOUNDS, (look,), (), outlook)


def test_clipped_mass_is_counted_with_its_sign():
    """Values with a long tail on one side lose on that side: upwards removed, downwards added."""
    tail = np.random.default_rng(6).exponential(20, 100_000)
    up, down = judged(1000 + tail, 1014.0), judged(2000 - tail, 1986.0)
    for found, values in ((up, 1000 + tail), (down, 2000 - tail)):
        exact = np.sum(values - np.clip(values, found.range.lower, found.range.upper))
        assert 1 / 3 < found.removed / exact < 3
        assert 1 / 3 < found.removed_each * len(values) / exact < 3
    assert up.removed > 0 > down.removed


def test_an_empty_side_gets_no_room():
    """However the noise falls: what an empty side seems to hold is not reached for."""
    tail = np.random.default_rng(8).exponential(20, 10_000)
    for seed in range(20):
        found = judged(np.full(10_000, 700.0), 700.0, 5.0, seed)
        assert found.range.width < 1e-5
        assert abs(found.removed) < 1
        found = judged(1000 + tail, 999.0, 5.0, seed)
        assert found.range.lower > 998.9
        assert 1050 < found.range.upper < 1400


@pytest.mark.parametrize("bounds", [BOUNDS, Range(0.0, OPEN_END)], ids=["bounds", "open"])
def test_noise_alone_is_not_taken_for_values_at_the_centre(bounds):
    """Which are counted at many knots: their noise adds up.  No side is emptied for it."""
    centre, random = inner_point(bounds, 100.0), np.random.default_rng(5)
    size = len(TWO.places(bounds, centre))
    for _ in range(100):
        noisy = np.rint(random.laplace(0, 5.0 * PARTS, size)).astype(np.int64)
        looks = (Look(1000, noisy, 5 * PARTS, "laplace", centre),)
        upper, lower = rillet.threshold.tail._sides(bounds, looks, centre)
        assert upper.counts[0].values[1:].any() or lower.counts[0].values[1:].any()


def test_a_side_with_data_is_not_taken_to_be_empty():
    for seed in range(20):
        values = np.random.default_rng(seed).normal(1000, 10, 1000)
        found = judged(values, 1000.0, 5.0, seed)
        assert 900 < found.range.lower < 995
        assert 1005 < found.range.upper < 1100


# --- Streams ----------------------------------------------------------------------------------


def plan_for(length, lag, **more):
    fields = {
        "epsilon": 1.0,
        "delta": DELTA,
        "upper": 3000.0,
        "statistic": Sum(),
        "threshold": TWO,
        **more,
    }
    return Plan(length=length, lag=lag, **fields)


@contextmanager
def recorded_centre():
    """What finding the centre was given to spend."""
    budgets = []

    def noting(raw_values, bounds, budget, secret, **more):
        budgets.append(budget)
        return find_centre(raw_values, bounds, budget, secret, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rillet.threshold.tail, "find_centre", noting)
        yield budgets


def test_the_centre_is_charged_and_the_whole_keeps_the_promise():
    plan = plan_for(5000, 500)
    layout = plan.layout
    first = {e.label: e.cost.epsilon for e in layout.events() if e.first == 1}
    assert first["threshold (tail-histogram)"] == layout.threshold_budget
    assert sum(first.values()) <= 1
    given = (np.ones(500), layout.bounds, layout.threshold_budget, DELTA, SECRET, layout.setting)
    look = TWO.measure(*given)
    assert look.scale >= 2 * PARTS / (layout.threshold_budget * (1 - CENTRE_SHARE))
    with recorded_centre() as budgets:
        TWO.measure(*given)
    assert budgets == [layout.threshold_budget * CENTRE_SHARE]
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.digest != plan_for(5000, 500, threshold=TailHistogram(two_sided=False)).digest


@pytest.mark.parametrize("more", [{}, {"delta": 0.0}, {"every": 3}, {"backfill": True}], ids=str)
def test_block_scalar_and_snapshot_give_the_same(more):
    values = np.random.default_rng(9).normal(1000, 10, 420)
    values[::29] = np.resize(STRANGE, len(values[::29]))
    plan = plan_for(420, 60, **more)
    with small_chunks():
        whole = plan.open(secret=SECRET)
        expected = [r for r in whole.update_many(values) if r.t >= plan.lag]
        single = plan.open(secret=SECRET)
        assert all_releases(single.update(value) for value in values) == expected
        assert state_text(single) == state_text(whole)
        resumed, found = plan.open(secret=SECRET), []
        for part in np.split(values, [30, 60, 61, 150, 290]):
            found.append(resumed.update_many(part))
            resumed = plan.resume(resumed.snapshot(), secret=SECRET)
        assert [r for r in all_releases(found) if r.t >= plan.lag] == expected
        assert state_text(resumed) == state_text(whole)
    assert whole._state().looks[0].centre is not None
    assert len(whole._state().looks) > 1


def test_the_noise_comes_to_what_the_release_says():
    """With a range whose lower end is learned, errors have the std that is released."""
    values, ratio = np.random.default_rng(10).normal(1000, 10, 6000), []
    plan = plan_for(6000, 2000, every=200)
    for number in range(100):
        release = plan.open(secret=Secret.for_tests(number)).update_many(values)[-1]
        ratio.append((release.sum - values.sum()) / release.sum_noise_std)
    assert 0.6 < np.std(ratio) < 1.6
    assert abs(np.mean(ratio)) < 0.5


@pytest.mark.parametrize(
    ("upper", "middle", "spread", "gain"), [(3000.0, 1000.0, 10.0, 7), (100.0, 37.0, 0.6, 4)]
)
def test_values_far_from_the_lower_bound_gain_much(upper, middle, spread, gain):
    random = np.random.default_rng(11)
    error = {}
    for threshold in (TailHistogram(two_sided=False), TWO):
        # A sum with a protected count is measured from 0: where it is not taken to be complete,
        # it gains nothing.
        plan = plan_for(40_000, 1500, every=500, upper=upper, threshold=threshold, missing="none")
        errors = []
        for number in range(24):  # with fewer, chance alone moves the gain by half
            values = random.normal(middle, spread, 40_000)
            release = plan.open(secret=Secret.for_tests(number)).update_many(values)[-1]
            errors.append(abs(release.sum - values.sum()))
        error[threshold.two_sided] = np.mean(errors)
    assert error[False] > gain * error[True]


def test_values_that_do_start_at_the_lower_bound_lose_little():
    random, error = np.random.default_rng(12), {False: 0.0, True: 0.0}
    plans = [
        plan_for(40_000, 1500, every=500, threshold=threshold)
        for threshold in (TailHistogram(two_sided=False), TWO)
    ]
    for number in range(30):
        values = random.exponential(20, 40_000)
        for plan in plans:
            release = plan.open(secret=Secret.for_tests(number)).update_many(values)[-1]
            error[plan.threshold.two_sided] += abs(release.sum - values.sum())
    assert error[True] < 2 * error[False]


# --- Many equal values --------------------------------------------------------------------------


def with_zeros(part, count, seed=1):
    random = np.random.default_rng(seed)
    return np.where(random.random(count) < part, 0.0, random.gamma(2.0, 10.0, count))


def test_many_zeros_are_the_median():
    """A gap of millions of points outweighed the one that all zeros are at."""
    values = with_zeros(0.9, 500)
    found = {find_centre(values, BOUNDS, Fraction("0.13"), SECRET, i) for i in range(40)}
    assert found == {grid_point(BOUNDS, 1)}


@pytest.mark.parametrize("upper", [3000.0, None])
@pytest.mark.parametrize(("part", "count"), [(0.9, 20_000), (0.7, 3000), (0.99, 20_000), (1, 6000)])
def test_the_truth_is_covered_where_many_values_are_zero(part, count, upper):
    """Where no look told values from noise, it was said that there were none: covered by 0 %."""
    plan = Plan(epsilon=1.0, delta=2**-20, upper=upper, length=count, missing="none")
    found = covered(plan, with_zeros(part, count), 40, seed=5)
    assert np.all(found.chance.mean(0) > 0.88)


@pytest.mark.parametrize("level", [0.0, 240.0])
def test_values_beside_a_level_that_most_have_are_found(level):
    values = level + with_zeros(0.9, 20_000)
    facts = {"epsilon": 1.0, "delta": 2**-20, "length": 20_000, "statistic": Sum()}
    plan = Plan(**facts, upper=3000.0, missing="none")
    found = simulate(plan, values, 20, seed=3)
    bounded = Plan(
        **facts, lower=level, upper=level + 70.0, missing="none", threshold=FixedThreshold()
    )
    noise = bounded.expected_error(20_000)
    assert (
        np.sqrt(np.mean((found.clipping + found.added_back) ** 2 + found.noise_std**2)) < 4 * noise
    )
