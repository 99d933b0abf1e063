"""The exponential mechanism on a rank: exact, by enumeration; and the threshold built on it."""

from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise, product

import mpmath
import numpy as np
import pytest

import rillet.threshold.rank
from rillet import ExponentialQuantile, ParameterError, Plan, Secret, SmoothQuantile
from rillet.noise import Keystream, uniform_below
from rillet.testing.statistics import check, goodness_of_fit
from rillet.threshold import Range
from rillet.threshold.exponential import CANDIDATES, PER_OCTAVE, candidate, cell_of
from rillet.threshold.rank import cells, weight_ratio, weight_table

BUDGETS = [Fraction(1), Fraction(1, 10), Fraction(0.7), Fraction(5), Fraction(500)]
BOUNDS = Range(0.0, 3000.0)


def points_and_weights(values, size, rank, budget, in_first=1):
    """Weight of every grid point, written out from the runs."""
    runs = cells(np.array(values, np.int64), size, rank, in_first)
    table = weight_table(budget, len(values) + 1)
    found = {}
    for first, count, distance in zip(
        runs.exact_first.tolist(),
        runs.exact_count.tolist(),
        runs.exact_distance.tolist(),
        strict=True,
    ):
        for point in range(first, first + count):
            assert point not in found
            found[point] = table[min(distance, len(table) - 1)]
    assert sorted(found) == list(range(size + in_first - 1))
    return [found[point] for point in range(size + in_first - 1)]


def distance_by_trying(values, point, rank, size):
    """Fewest values to replace until the one of this rank is at ``point``, by trying all."""
    return min(
        sum(a != b for a, b in zip(values, other, strict=True))
        for other in product(range(size), repeat=len(values))
        if sorted(other)[rank - 1] == point
    )


@pytest.mark.parametrize("in_first", [1, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_distance_is_the_number_of_values_to_replace(rank, in_first):
    """All points of the first cell are as far as that cell."""
    size = 4
    for values in product(range(size), repeat=3):
        runs = cells(np.array(values), size, rank, in_first)
        found = np.repeat(runs.exact_distance, runs.exact_count).tolist()
        first, *others = (distance_by_trying(values, p, rank, size) for p in range(size))
        assert found == [first] * in_first + others


def neighbours(size, count):
    for values in product(range(size), repeat=count):
        for place in range(count):
            for other in range(size):
                if other != values[place]:
                    yield values, (*values[:place], other, *values[place + 1 :])


@pytest.mark.parametrize(("size", "count", "rank"), [(4, 3, 1), (4, 3, 2), (3, 4, 3), (5, 2, 2)])
@pytest.mark.parametrize("in_first", [1, 6])
def test_one_replaced_value_moves_every_distance_by_at_most_one(size, count, rank, in_first):
    moves = set()
    for pair in neighbours(size, count):
        one, two = (cells(np.array(values), size, rank, in_first) for values in pair)
        moves |= set(
            np.repeat(one.exact_distance, one.exact_count)
            - np.repeat(two.exact_distance, two.exact_count)
        )
    assert moves == {-1, 0, 1}


@pytest.mark.parametrize(("size", "count"), [(4, 0), (4, 1), (4, 3), (3, 4), (2, 6)])
@pytest.mark.parametrize("in_first", [1, 6])
def test_one_added_value_moves_every_distance_from_the_middle_by_one_half(size, count, in_first):
    """Where a value counts two: by one, and the chances of all points keep ε with the weights."""
    budget, moves = Fraction(7, 10), set()
    table = weight_table(budget, count + 2)
    for values in product(range(size), repeat=count):
        one, one_count = distances_from_the_middle(values, size, in_first)
        for more in range(size):
            two, two_count = distances_from_the_middle((*values, more), size, in_first)
            moves |= set((one - two).tolist())
            assert one_count == two_count
            weights = [[table[d] for d in found.tolist()] for found in (one, two)]
            totals = [sum(some) for some in weights]
            most = weight_ratio(budget) ** 2
            for a, b in zip(*weights, strict=True):
                assert a * totals[1] <= most * b * totals[0]
                assert b * totals[0] <= most * a * totals[1]
    assert moves <= {-1, 0, 1}
    assert {-1, 1} <= moves or not count
    # The cell of the median, and with an even number of values what lies between the middle two.
    found, _ = distances_from_the_middle((0, 3, 3), 4, 1)
    assert found.tolist() == [2, 2, 2, 0]
    found, _ = distances_from_the_middle((0, 0, 3, 3), 4, 1)
    assert found.tolist() == [1, 1, 1, 1]


def distances_from_the_middle(values, size, in_first):
    runs = cells(np.array(values, np.int64), size, len(values) + 1, in_first, worth=2)
    return np.repeat(runs.exact_distance, runs.exact_count), int(runs.exact_count.sum())


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize(("size", "count", "rank"), [(4, 3, 2), (3, 4, 4), (5, 2, 1), (9, 1, 1)])
@pytest.mark.parametrize("in_first", [1, 7])
def test_the_whole_output_law_keeps_epsilon_on_all_neighbours(size, count, rank, in_first, budget):
    """Exact rationals: P(point | values) ≤ e^ε · P(point | neighbour) for every point."""
    largest = Fraction(0)
    for values, others in neighbours(size, count):
        one = points_and_weights(values, size, rank, budget, in_first)
        two = points_and_weights(others, size, rank, budget, in_first)
        share = Fraction(sum(two), sum(one))
        largest = max(largest, *(Fraction(a, b) * share for a, b in zip(one, two, strict=True)))
    with mpmath.workprec(800):
        promised = mpmath.mpf(budget.numerator) / budget.denominator
        found = mpmath.log(mpmath.mpf(largest.numerator) / largest.denominator)
        assert found <= promised
        if count > 1:  # what is promised is also used, more than half of it in streams this small
            assert found > 0.5 * min(promised, 2 * mpmath.log(size))


@pytest.mark.parametrize("budget", [*BUDGETS, Fraction(1, 10**6), Fraction(1, 10**80)], ids=str)
def test_the_integer_weights_fall_by_no_more_than_half_of_epsilon(budget):
    table = weight_table(budget, 5000)
    ratio = weight_ratio(budget)
    assert ratio >= 1
    with mpmath.workprec(800):
        exact = mpmath.exp(mpmath.mpf(budget.numerator) / budget.denominator / 2)
        assert mpmath.mpf(ratio.numerator) / ratio.denominator <= exact
        if 1e-9 < budget < 100:
            assert mpmath.mpf(ratio.numerator) / ratio.denominator > exact * (
                1 - mpmath.mpf(2) ** -180
            )
    for larger, smaller in pairwise(table):
        assert 1 <= smaller <= larger <= ratio * smaller
    assert len(table) == 5001 or table[-1] == table[-2]


def test_weights_are_exponential_where_it_matters():
    table = weight_table(Fraction(1, 2), 200)
    expected = [2**128 * mpmath.exp(-mpmath.mpf(d) / 4) for d in range(200)]
    assert all(abs(w / e - 1) < 1e-12 for w, e in zip(table, expected, strict=False))


# --- The draw ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_first", [1, 4])
@pytest.mark.parametrize("values", [(0, 0, 3, 7), (5, 5, 5, 5), (9, 0, 4, 4), ()], ids=str)
def test_each_point_gets_exactly_its_weight_of_the_uniform(monkeypatch, values, in_first):
    """First and last uniform of every point lead to it, and the uniforms have no gap."""
    size, rank, budget = 10, 3, Fraction(2)
    runs = cells(np.array(values, np.int64), size, rank, in_first)
    weights = points_and_weights(values, size, rank, budget, in_first)
    ends = list(accumulate(weights))
    for point, (weight, end) in enumerate(zip(weights, ends, strict=True)):
        for uniform in (end - weight, end - 1):

            def fixed(total, *more, uniform=uniform):
                assert total == ends[-1]
                return uniform

            monkeypatch.setattr(rillet.threshold.rank, "uniform_below", fixed)
            assert runs.draw(budget, Secret.for_tests(0), ()) == max(0, point - in_first + 1)


def test_draws_follow_the_weights():
    values, size, rank, budget = np.array([2, 2, 5, 11, 11, 30]), 40, 4, Fraction(3, 2)
    runs = cells(values, size, rank)
    draws = Counter(runs.draw(budget, Secret.for_tests(5), ("fit",), i) for i in range(6_000))
    weights = points_and_weights(values, size, rank, budget)
    counts = [draws[point] for point in range(size)]

    def p_value(weights):
        chances = [float(Fraction(weight, sum(weights))) for weight in weights]
        return goodness_of_fit(counts, chances).p_value

    check(p_value(weights), 1e-6)
    other = points_and_weights(values, size, rank, Fraction(7, 5))
    assert p_value(other) < 1e-6 or p_value(points_and_weights(values, size, 3, budget)) < 1e-6


@pytest.mark.parametrize("total", [1, 2, 3, 10, 2**64, 2**64 + 1, 3**200])
def test_uniform_below_is_the_floor_of_one_uniform(total):
    for index in range(50):
        words = Secret.for_tests(3).keystream("uniform", "here").words(index << 20, 16)
        long = int.from_bytes(words.astype(">u8").tobytes(), "big")
        assert uniform_below(total, Secret.for_tests(3), ("here",), index) == long * total >> 1024


def test_uniform_below_reads_on_until_the_bits_decide(monkeypatch):
    """U = 1/3 to 1,024 bits, then a little above or below: ⌊3U⌋ is 1 or 0."""
    third = int("55" * 128, 16)
    for last_words, expected in (([0] * 4, 0), ([2**64 - 1] * 4, 1)):
        stream = [third >> 64 * (15 - i) & (2**64 - 1) for i in range(16)] + last_words

        def words(self, start, count, stream=stream):
            return np.array(stream[start : start + count], np.uint64)

        monkeypatch.setattr(Keystream, "words", words)
        assert uniform_below(3, Secret.for_tests(0), ()) == expected


def test_uniform_below_refuses_an_empty_range():
    with pytest.raises(ParameterError, match="total"):
        uniform_below(0, Secret.for_tests(0), ())


# --- The threshold ----------------------------------------------------------------------------


def test_candidates_rise_to_the_bound_and_each_is_the_end_of_its_cell():
    assert candidate(0) == 2.0**-34
    assert candidate(CANDIDATES - 1) == 1.0
    numbers = [0, 1, PER_OCTAVE - 1, PER_OCTAVE, 7 * PER_OCTAVE + 12345, CANDIDATES - 2]
    for number in numbers:
        here, above = candidate(number), candidate(number + 1)
        assert 0 < above / here - 1 <= 1 / PER_OCTAVE
        inside = [np.nextafter(here, 1.0), (here + above) / 2, above]
        assert cell_of(np.array(inside)).tolist() == [number + 1] * 3
    assert cell_of(np.array([0.0, 5e-324, 2.0**-34])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("quantile", {"quantile": 0}),
        ("quantile", {"quantile": 0.6}),
        ("quantile", {"quantile": float("nan")}),
        ("quantile", {"quantile": True}),
        ("multiplier", {"multiplier": 0.9}),
        ("multiplier", {"multiplier": float("inf")}),
        ("multiplier", {"multiplier": "2"}),
    ],
)
def test_bad_numbers_are_refused(name, fields):
    with pytest.raises(ParameterError, match=name):
        ExponentialQuantile(**fields)


def learned(threshold, values, budget, trials=200, bounds=BOUNDS):
    unreleased = threshold.prepare(values, bounds)
    secret = Secret.for_tests(1)
    return np.array(
        [threshold.draw(unreleased, bounds, budget, secret, i).upper for i in range(trials)]
    )


def test_a_tenth_of_the_observations_does_what_smooth_sensitivity_does():
    """Mean distance from the sample's own quantile, over draws, relative to it."""
    random, budget, p = np.random.default_rng(11), Fraction(1, 2), 0.01
    smooth = SmoothQuantile(quantile=p, rank_factor=1.0, beta_lt=0.49)
    ours, theirs = {}, {}
    for count in (10_000, 100_000):
        values = random.exponential(20.0, count)
        own = np.sort(values)[count - count // 100 - 1]
        ours[count] = np.abs(learned(ExponentialQuantile(p), values, budget, 50) / own - 1).mean()
        prepared = smooth.prepare(values, BOUNDS, budget, 2.0**-20)
        draws = [smooth.draw(prepared, Secret.for_tests(1), i).upper for i in range(50)]
        theirs[count] = np.abs(np.array(draws) / own - 1).mean()
    assert ours[10_000] < 1.3 * theirs[100_000]
    assert ours[10_000] < 0.02 < theirs[10_000] / 100
    assert ours[100_000] < theirs[100_000] / 5


def test_a_wild_bound_does_no_harm():
    values = np.random.default_rng(12).exponential(20.0, 5_000)
    for upper in (3e3, 3e6, 3e9):
        found = learned(ExponentialQuantile(0.02), values, Fraction(1, 2), 100, Range(0.0, upper))
        assert found.max() < 150


def test_equal_values_give_that_value():
    found = learned(ExponentialQuantile(), np.full(5000, 700.0), Fraction(1, 2))
    assert np.all(found >= 700.0)
    assert np.all(found <= 700.0 * (1 + 2.0**-19))


def test_the_multiplier_stretches_from_the_lower_bound():
    values = np.random.default_rng(13).uniform(100, 200, 1000)
    bounds = Range(100.0, 3000.0)
    one = learned(ExponentialQuantile(0.1), values, Fraction(1), 50, bounds) - 100
    two = learned(ExponentialQuantile(0.1, multiplier=2.5), values, Fraction(1), 50, bounds) - 100
    assert np.allclose(two / one, 2.5, rtol=1e-5)


def test_extrapolation_reaches_the_quantile_that_suits_the_stream():
    """On an exponential tail r times the p-quantile is the p*-quantile, p* = 0.8 c/n."""
    chosen = ExponentialQuantile.extrapolated(
        lag=5000, budget=0.5, length=150_000, noise_per_unit=22.0
    )
    assert chosen.quantile == pytest.approx(40 / (0.5 * 5000))
    assert chosen.quantile**chosen.multiplier == pytest.approx(0.8 * 22 / 150_000, rel=0.01)
    assert ExponentialQuantile.extrapolated(
        lag=5, budget=0.5, length=10, noise_per_unit=22.0
    ) == ExponentialQuantile(0.5, 1.0)


def test_a_plan_runs_with_it_and_is_pure():
    threshold = ExponentialQuantile(quantile=0.05, multiplier=1.5)
    plan = Plan(epsilon=1.0, upper=3000.0, length=4000, lag=1000, threshold=threshold)
    assert Plan.from_json(plan.to_json()) == plan
    assert '"kind": "exponential-quantile"' in plan.to_json()
    charged = [e for e in plan.layout.events() if "threshold" in e.label]
    assert len(charged) == 1 and charged[0].cost.delta == 0
    assert charged[0].cost.epsilon == plan.layout.threshold_budget
    values = np.random.default_rng(14).exponential(20.0, 4000)
    stream = plan.open(secret=Secret.for_tests(2))
    last = stream.update_many(values)[-1]
    assert 60 < last.clip_upper < 200
    one_by_one = plan.open(secret=Secret.for_tests(2))
    for value in values[:1500]:
        release = one_by_one.update(value)
    resumed = plan.resume(one_by_one.snapshot(), secret=Secret.for_tests(2))
    assert release == plan.open(secret=Secret.for_tests(2)).update_many(values[:1500])[-1]
    assert resumed.update_many(values[1500:])[-1] == last


def test_a_draw_is_the_first_one_where_none_is_named():
    threshold, bounds = ExponentialQuantile(0.1), Range(0.0, 3000.0)
    cells = threshold.prepare(np.linspace(1.0, 900.0, 500), bounds)
    drawn = [threshold.draw(cells, bounds, Fraction(1, 9), Secret.for_tests(1), i) for i in (0, 1)]
    assert threshold.draw(cells, bounds, Fraction(1, 9), Secret.for_tests(1)) == drawn[0]
    assert drawn[0] != drawn[1]
