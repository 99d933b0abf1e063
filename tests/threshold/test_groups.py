"""Second groups of values, groups that end, and what counts cannot tell: how tails are weighed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm

from helpers.looks import look_at
from rillet.threshold import tail_model
from rillet.threshold.base import Outlook
from rillet.threshold.tail_model import _FINE, Counts, Pooled, fit_tail, knots, pool

N = 100_000
OUTLOOK = Outlook(length=N, after=N, until=N, noise_per_unit=25.0)
NOISE = 5.0


def two_groups() -> np.ndarray:
    """Exponential values, of which two in a hundred are eight times larger."""
    random = np.random.default_rng(1)
    values = random.exponential(0.003, N)
    values[random.random(N) < 0.02] *= 8
    return values


def test_a_tail_may_start_again_with_a_second_group(monkeypatch):
    """With the noise of looks what is added back is nearer to what was clipped."""
    values, end = two_groups(), 0.03
    exact, truth = look_at(values, NOISE).values, float(np.maximum(values - end, 0.0).mean())

    def off() -> float:
        random, found = np.random.default_rng(6), []
        for _ in range(40):
            noisy = exact + random.normal(0.0, 40.0, exact.size)
            tail = fit_tail([Counts(noisy, N, 40.0, laplace=False)], 1.0, OUTLOOK)
            found.append(tail.mean_clipped(end))
        return float(np.sqrt(np.mean((np.array(found) / truth - 1) ** 2)))

    with_starts = off()
    monkeypatch.setattr(tail_model, "_SECOND_GROUP", np.inf)
    assert with_starts < 0.9 * off()


def test_values_that_fall_slower_than_before_are_a_second_group(monkeypatch):
    """Else they would be taken for the beginning of a tail that is nearly a power law."""
    look = look_at(two_groups(), NOISE)
    tail = fit_tail([look], 1.0, OUTLOOK)
    pooled = pool([look])
    kink = tail_model._fit(pooled, len(pooled.rates) - 1, tail.start, tail.start, 1.0)
    monkeypatch.setattr(tail_model, "_KINK", np.inf)
    none = tail_model._fit(pooled, len(pooled.rates) - 1, tail.start, tail.start, 1.0)
    family = tail_model._family()
    slow = family.length > 1.0
    assert kink.odds[slow].sum() < 0.1 * none.odds[slow].sum()
    steep = family.length < 0.1
    np.testing.assert_allclose(kink.odds[steep], none.odds[steep])


def test_a_second_group_falls_slower_than_what_is_before_it():
    """Where the tail falls all the faster there is nothing to start again for."""
    look = look_at(np.random.default_rng(2).exponential(0.003, N), NOISE)
    pooled = pool([look])
    tail = fit_tail([look], 1.0, OUTLOOK)
    later = tail_model._fit(pooled, len(pooled.rates) - 1, tail.start + 2, tail.start, 1.0)
    family = tail_model._family()
    before = tail_model._steepest(pooled.rates, tail.start + 2, later.size, 1.0)
    assert later.prior[family.length * before < 1.0].max() == 0.0
    assert later.prior.max() > 0.5


def test_some_tails_end_at_a_point():
    """Up to there nearly all values are above, a fifth further out none is."""
    family = tail_model._family()
    ending = family.shape == tail_model._ENDING
    assert ending.sum() == tail_model._ENDS_AT.size and np.all(family.prior[ending] > 0)
    for ends_at, excess in zip(tail_model._ENDS_AT, family.excess[ending], strict=True):
        assert excess[0] == pytest.approx(ends_at - 1, rel=0.35, abs=0.01)
        assert np.interp(1.25 * ends_at, family.ratios, excess) < 1e-3


def test_below_a_later_start_a_tail_is_a_line_and_the_rest_is_counted():
    """Brute force over the counts between two starts, at ends on both sides of the later one."""
    places, lowest, start = knots(1.0), 80, 83
    rates = np.random.default_rng(7).random(places.size)
    ends = places[lowest] * tail_model._family().ratios[:60]
    (found,) = tail_model._counted(places, rates, lowest, start, ends)
    between = range(lowest + 1, start + 1)
    truth = [sum(rates[k] * max(places[k] - end, 0.0) for k in between) for end in ends]
    np.testing.assert_allclose(found, truth, atol=1e-15)
    tails = np.arange(tail_model._family().shape.size) % 50 == 0
    excess = tail_model._excess(places, lowest, start, tails, ends)
    at_start = 18
    np.testing.assert_allclose(ends[at_start], places[start])
    line = excess[:, [at_start]] + places[start] - ends[:at_start]
    np.testing.assert_allclose(excess[:, :at_start], line)
    assert np.all(excess[:, -1] == 0.0) and np.all(np.diff(excess, axis=1) <= 0.0)


def test_a_narrow_group_is_counted_on_the_knots_beside_it():
    random = np.random.default_rng(3)
    values = np.concatenate((random.exponential(0.003, N - 700), random.normal(0.085, 0.002, 700)))
    tail = fit_tail([look_at(values, NOISE)], 1.0, OUTLOOK)
    for end in (0.05, 0.07):
        truth = float(np.maximum(values - end, 0.0).mean())
        assert tail.mean_clipped(end) == pytest.approx(truth, rel=0.25)


def test_towards_the_bound_something_is_left_to_clip():
    """Values spread over the last bin: neither nothing nor all of it lies beyond its middle."""
    values = np.random.default_rng(4).uniform(0.5, 1.0, N)
    tail = fit_tail([look_at(values, NOISE)], 1.0, OUTLOOK)
    ends = np.linspace(0.8, 1.0, 9)
    found = np.array([tail.mean_clipped(end) for end in ends])
    truth = np.array([np.maximum(values - end, 0.0).mean() for end in ends])
    assert np.all(np.diff(found) < 0) and found[-1] == 0.0
    assert np.all(found[:5] > 0.4 * truth[:5]) and np.all(found[:5] < 2.0 * truth[:5])
    assert tail.clipped_share(1.0) == 0.0


def test_the_first_look_leaves_room_for_a_group_that_it_does_not_see():
    values = np.random.default_rng(5).exponential(0.003, N)
    alone, later = (
        fit_tail([look_at(values, NOISE)], 1.0, OUTLOOK, first=one) for one in (True, False)
    )
    end = float(alone.places[alone.top])
    estimate = alone.mean_clipped(end)
    first, other = alone.margin(end, estimate), later.margin(end, estimate)
    reach = knots(1.0)[alone.top + 1 : alone.top + 7] - end
    room = 1.96 * NOISE / N * np.sqrt(reach @ reach)
    assert first.below == other.below
    assert first.above == pytest.approx(np.hypot(other.above, room), rel=1e-3)


def seen_of(values: np.ndarray, noise: float, seed: int) -> tuple[Counts, Pooled]:
    random = np.random.default_rng(seed)
    counts = look_at(values, noise, random)
    return counts, pool([counts])


def test_odds_of_a_group_out_of_sight_are_those_of_bayes():
    """By brute force: what noise makes of each count with the group, over that without it."""
    counts, pooled = seen_of(np.random.default_rng(8).exponential(0.003, N), 40.0, 9)
    tail = fit_tail([counts], 1.0, OUTLOOK)
    places, mean = tail.places, tail.weights @ tail.clipped
    found = tail_model._out_of_sight(pooled, places, tail.top, tail.start, mean)
    assert found[0].size > 10
    at_knots = np.append(mean[::_FINE], mean[-1])
    knots_above = range(tail.top + 1, tail.top + 7)

    def mass_at(knot: int) -> float:
        here = knot - tail.start
        slopes = [
            (at_knots[k] - at_knots[k + 1]) / (places[tail.start + k + 1] - places[tail.start + k])
            for k in (here - 1, here)
        ]
        return slopes[0] - slopes[1]

    near = sum((places[tail.top] / place) ** 2 for place in places_and_half_ways(places, tail.top))
    for place, size, odds in zip(*found, strict=True):
        ratio = 0.0
        for knot in knots_above:
            mass = mass_at(knot)
            std = np.sqrt(pooled.noise_std**2 + mass / N + (0.1 * mass) ** 2)
            gap = (places[knot + 1] if place > places[knot] else places[knot]) - (
                places[knot] if place > places[knot] else places[knot - 1]
            )
            more = size * max(0.0, 1 - abs(place - places[knot]) / gap)
            ratio += norm.logpdf(pooled.rates[knot], mass + more, std)
            ratio -= norm.logpdf(pooled.rates[knot], mass, std)
        before = 0.5 * np.sqrt(size) * (places[tail.top] / place) ** 2 / near
        assert odds == pytest.approx(before * np.exp(ratio), rel=1e-6)


def places_and_half_ways(places: np.ndarray, top: int) -> list[float]:
    """The knots above the top one, and what lies in the middle of two."""
    above = places[top + 1 : top + 7].tolist()
    return above + [(one + other) / 2 for one, other in pairwise(above)]


def test_a_group_out_of_sight_is_added_back_by_how_likely_it_is(monkeypatch):
    """Two in a thousand beyond all others, on two counts with noise of nearly as many."""
    random = np.random.default_rng(10)
    values = np.concatenate((random.exponential(0.003, N - 200), np.full(200, 0.05)))
    exact, truth = look_at(values, 1.0).values, float(np.maximum(values - 0.03, 0.0).mean())
    outlook = Outlook(length=N, after=N, until=N, noise_per_unit=200.0)

    def error() -> float:
        draws, found = np.random.default_rng(11), []
        for _ in range(60):
            noisy = Counts(exact + draws.normal(0.0, 90.0, exact.size), N, 90.0, laplace=False)
            found.append(fit_tail([noisy], 1.0, outlook).mean_clipped(0.03))
        return float(np.sqrt(np.mean((np.array(found) - truth) ** 2)))

    weighed = error()
    monkeypatch.setattr(tail_model, "_GROUP_ODDS", 0.0)
    assert weighed < 0.95 * error()


def test_where_streams_are_long_a_group_out_of_sight_is_unlikely():
    """It is fewer values: a hundredth of the share has a tenth of the odds."""
    mean, places = np.zeros(22 * _FINE + 1), knots(1.0)
    sums = []
    for noise_std in (1e-3, 1e-5):
        rates = np.zeros(places.size)
        pooled = Pooled(rates, noise_std, 1e-9, noise_std**2, np.empty(0))
        sums.append(tail_model._out_of_sight(pooled, places, 100, 98, mean)[2].sum())
    assert sums[1] == pytest.approx(sums[0] / 10, rel=0.02)


def test_beyond_the_bound_there_is_no_group():
    mean, places = np.zeros(3 * _FINE), knots(1.0)
    top = places.size - 1
    pooled = Pooled(np.zeros(places.size), 1e-3, 1e-9, 1e-6, np.empty(0))
    assert all(part.size == 0 for part in tail_model._out_of_sight(pooled, places, top, top, mean))
    where, _, _ = tail_model._out_of_sight(pooled, places, top - 2, top - 2, mean)
    assert where.max() == 1.0 and where.min() == places[top - 1]
