"""How far clipping may be off: the formulas of docs/intervals.md, checked by numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from helpers.looks import look_at
from rillet.threshold.base import Outlook
from rillet.threshold.tail_model import (
    _LEFT_OUT,
    Counts,
    _mixed_quantiles,
    _posterior,
    counted_margin,
    counted_rate_margin,
    fit_tail,
    knots,
    removed_mass,
)

N, SCALE = 20_000, 0.01
OUTLOOK = Outlook(length=N, after=N, until=N, noise_per_unit=15.0)


def test_ends_of_a_mixture_leave_out_what_they_say():
    random = np.random.default_rng(1)
    weights = random.dirichlet(np.ones(60))
    means, stds = random.exponential(1.0, 60), random.random(60) * 0.3
    low, high = _mixed_quantiles(weights, means, stds)
    below = [float(weights @ ndtr((end - means) / stds)) for end in (low, high)]
    assert below == pytest.approx([_LEFT_OUT, 1 - _LEFT_OUT], abs=0.005)


def test_what_is_impossible_before_the_counts_weighs_nothing_however_well_it_fits():
    weights = _posterior(np.array([0.0, 1.0, 1.0]), np.array([0.0, 1e4, 1e4 + 2]))
    assert weights == pytest.approx([0.0, 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))])


@pytest.mark.parametrize("part", [2.0, 4.0, 6.0])
def test_moments_beyond_an_end_are_those_of_the_tail(part):
    """Of exponential values E (x − e)⁺ is θ·P(x > e), and E ((x − e)⁺)² is 2θ²·P(x > e)."""
    random = np.random.default_rng(2)
    tail = fit_tail([look_at(random.exponential(SCALE, 10 * N), 0.5, random)], 1.0, OUTLOOK)
    end, beyond = part * SCALE, np.exp(-part)
    estimate = tail.mean_clipped(end)
    assert estimate == pytest.approx(SCALE * beyond, rel=0.3)
    margin = tail.margin(end, estimate)
    assert margin.variance == pytest.approx(2 * SCALE**2 * beyond, rel=0.7)
    below, above = margin.of(10 * N)
    assert estimate - 1.5 * below <= SCALE * beyond <= estimate + 1.5 * above


def test_next_to_the_last_knot_a_variance_is_not_negative():
    values = np.zeros(122)
    values[120:] = 20_000
    look = Counts(values, 100_000, 5.0, laplace=True)
    tail = fit_tail([look], 0.5, Outlook(100_000, 100_000, 100_000, 50.0))
    end = float(np.nextafter(0.5, 0))
    margin = tail.margin(end, tail.mean_clipped(end))
    assert margin.variance >= 0.0
    assert np.isfinite(margin.of(1e5)).all()


@pytest.mark.parametrize("sigma", [1.0, 1.5])
def test_a_fitted_margin_holds_what_was_clipped(sigma):
    random = np.random.default_rng(3)
    held, widest = 0, 0.0
    for _ in range(60):
        values = np.minimum(SCALE / 10 * random.lognormal(1.0, sigma, N), 1.0)
        end = float(np.quantile(values, 0.995))
        look = look_at(values, 15.0, random)
        mass, margin = removed_mass([look], [end], 1.0, fit_tail([look], 1.0, OUTLOOK), OUTLOOK)
        truth = float(np.maximum(values - end, 0.0).sum())
        below, above = margin.of(1)  # of the whole mass: its variance is that of all values
        held += mass - below <= truth <= mass + above
        widest = max(widest, above / truth)
    assert held >= 51  # 95 % of 60 are 57
    assert widest < 100


@pytest.mark.parametrize("index", [1.5, 2.5])
def test_of_a_power_law_more_is_added_back_than_light_tails_explain(index):
    """Those no heavier than exponential explain an eighth; too much would be dear for others."""
    random = np.random.default_rng(5)
    found, truth = 0.0, 0.0
    for _ in range(20):
        values = np.minimum(SCALE / 10 * (1 + random.pareto(index, N)), 1.0)
        end = float(np.quantile(values, 0.995))
        look = look_at(values, 15.0, random)
        found += removed_mass([look], [end], 1.0, fit_tail([look], 1.0, OUTLOOK), OUTLOOK)[0]
        truth += float(np.maximum(values - end, 0.0).sum())
    assert 0.25 < found / truth < 1.0


def test_between_knots_a_mean_excess_is_convex():
    """A narrow group between two knots: what is clipped from it follows from the knots beside."""
    random = np.random.default_rng(6)
    places = knots(1.0)
    low, high = places[-7], places[-6]
    group = low + 0.75 * (high - low)
    values = np.concatenate((random.exponential(SCALE, N), np.full(200, group)))
    tail = fit_tail([look_at(values, 0.5, random)], 1.0, OUTLOOK)
    end = low + 0.4 * (high - low)
    assert tail.mean_clipped(end) * len(values) == pytest.approx(200 * (group - end), rel=0.1)


def test_a_look_speaks_for_itself_as_far_as_its_counts_tell():
    """Two segments whose tails differ: what is added back to each follows its own counts."""
    random = np.random.default_rng(7)
    end, found, truth = 5 * SCALE, [], []
    for _ in range(20):
        parts = [random.exponential(scale * SCALE, N) for scale in (1.0, 1.15)]
        looks = [look_at(part, 3.0, random) for part in parts]
        together = fit_tail(looks, 1.0, OUTLOOK)
        pooled = [N * together.mean_clipped(end)] * 2
        mass, _ = removed_mass(looks[:1] * 2, [end, 1.0], 1.0, together, OUTLOOK)
        found.append(mass - N * together.mean_clipped(1.0))
        truth.append((float(np.maximum(parts[0] - end, 0.0).sum()), pooled[0]))
    own, together_says = np.mean(truth, axis=0)
    assert abs(np.mean(found) - own) < 0.5 * abs(together_says - own)


def test_counts_up_to_the_bound_hold_any_second_group():
    """Without a tail: ten values at the bound, of which no fitted tail knows."""
    random = np.random.default_rng(4)
    held = 0
    for _ in range(60):
        values = random.exponential(SCALE, N)
        values[:10] = 0.9
        end, look = 5 * SCALE, look_at(values, 4.0, random)
        margin = counted_margin([look], [end], 1.0, 0.0)
        truth = float(np.maximum(values - end, 0.0).sum())
        held += -margin.below <= truth <= margin.above
        each = counted_rate_margin([look], end, 1.0, 0.0)
        assert each.above * N == pytest.approx(margin.above, rel=0.5)
    assert held >= 54
