"""What is taken to lie between two knots, and what a look has more than all together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from helpers.looks import look_at
from rillet.threshold import tail_model
from rillet.threshold.base import Outlook
from rillet.threshold.tail_model import (
    _between,
    _Difference,
    _excess_of_truncated,
    _likely_changes,
    fit_tail,
    removed_mass,
)

KNOTS = 8.0 * 2.0 ** (np.arange(4) / 3)
BETWEEN = np.linspace(KNOTS[1], KNOTS[2], 9)[:-1]
N, SCALE = 20_000, 0.01
OUTLOOK = Outlook(length=6 * N, after=6 * N, until=6 * N, noise_per_unit=15.0)


def excess_of(values, ends):
    return np.maximum(values - np.asarray(ends)[:, None], 0.0).mean(axis=1)


def found_between(values, places=KNOTS, ends=BETWEEN):
    at_places = excess_of(values, places)[:, None]
    return np.array([float(_between(places, at_places, end)[0]) for end in ends])


@pytest.mark.parametrize("scale", [0.5, 1.0, 5.0, 100.0])
def test_exponential_values_are_met_exactly(scale):
    at_knots = scale * np.exp(-KNOTS / scale)[:, None]
    found = [float(_between(KNOTS, at_knots, end)[0]) for end in BETWEEN]
    np.testing.assert_allclose(found, scale * np.exp(-BETWEEN / scale), rtol=1e-3)


def test_at_knots_it_is_what_was_counted():
    excess = excess_of(np.random.default_rng(1).exponential(9.0, 5000), KNOTS)
    for knot in (1, 2):
        at = _between(KNOTS, excess[:, None], float(KNOTS[knot]))
        assert float(at[0]) == pytest.approx(excess[knot], rel=1e-4)


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(2).uniform(0, 12.5, 20_000),
        np.random.default_rng(3).normal(11.0, 0.2, 20_000),
        np.random.default_rng(4).gamma(3.0, 2.0, 20_000),
        np.full(100, 12.0),
        np.array([1.0, 15.9]),
    ],
    ids=["uniform", "narrow group", "gamma", "one point", "above"],
)
def test_it_lies_where_convexity_allows(values):
    """Below the chord, above what the chords on both sides lead to, and never rising."""
    found, (before, here, above, after) = found_between(values), excess_of(values, KNOTS)
    runs = np.diff(KNOTS)
    part = (BETWEEN - KNOTS[1]) / runs[1]
    lower = np.maximum(
        here - (BETWEEN - KNOTS[1]) * (before - here) / runs[0],
        above + (KNOTS[2] - BETWEEN) * (above - after) / runs[2],
    )
    nearly = 1e-4 * here
    assert np.all(found <= (1 - part) * here + part * above + nearly)
    assert np.all(found >= lower - nearly)
    assert np.all(np.diff(found) <= 1e-12) and np.all(np.diff(found, 2) >= -1e-9)


def test_groups_and_ends_are_followed():
    """A narrow group within two knots, and values that end before a bound, which is a knot."""
    group = np.random.default_rng(5).normal(11.5, 0.4, 50_000)
    truth = excess_of(group, BETWEEN)
    assert np.abs(found_between(group) - truth).max() < truth[0] / 8
    ended = KNOTS[2] - 1.0 - np.random.default_rng(6).exponential(0.8, 50_000)
    bounded = found_between(ended, KNOTS[:3])
    assert np.abs(bounded - excess_of(ended, BETWEEN)).max() < bounded[0] / 8


@pytest.mark.parametrize("rate", [-30.0, -2.0, 0.01, 1.0, 20.0, 300.0])
def test_the_excess_of_truncated_laws_is_their_integral(rate):
    norm = -np.expm1(-rate) / rate
    mean = quad(lambda x: x * np.exp(-rate * x) / norm, 0, 1, points=[0.01])[0]
    for end in (0.0, 0.01, 0.5, 0.95):
        truth = quad(lambda x, e=end: (x - e) * np.exp(-rate * x) / norm, end, 1)[0]
        found = float(_excess_of_truncated(np.array([mean]), end)[0])
        assert found == pytest.approx(truth, rel=1e-2, abs=1e-6)


# --- What a look has more ------------------------------------------------------------------------


def off_by(scales, noise, runs=30):
    """RMS error of what is added back, and of what all looks together say of each."""
    random, end = np.random.default_rng(8), 5 * SCALE
    errors = []
    for _ in range(runs):
        parts = [random.exponential(scale * SCALE, N) for scale in scales]
        looks = [look_at(part, noise, random) for part in parts]
        together = fit_tail(looks, 1.0, OUTLOOK)
        # Only half of the looks have this end: all of them together are what is pooled.
        ends = [end, 1.0] * (len(looks) // 2)
        truth = sum(float(np.maximum(part - end, 0.0).sum()) for part in parts[::2])
        mass, _ = removed_mass(looks, ends, 1.0, together, OUTLOOK)
        errors.append((mass - truth, len(parts[::2]) * N * together.mean_clipped(end) - truth))
    return np.sqrt(np.mean(np.square(errors), axis=0))


def test_how_much_a_stream_changes_is_learned():
    """Little where differences are noise; where they are more, all of it, and looks speak."""

    def learned(parts, noise):
        differences = [_Difference(more, 1.0, noise**2, 0.0) for more in parts]
        return float(_likely_changes(differences) @ tail_model._CHANGES)

    assert learned([0.1, -0.1, 0.05, -0.05, 0.0, 0.1], 0.1) < 0.15
    assert learned([0.5, -0.5, 0.4, -0.4, 0.6, -0.6], 0.1) == pytest.approx(0.5, abs=0.15)
    assert learned([], 0.1) == pytest.approx(tail_model._CHANGES.mean())
    steady, together = off_by([1.0] * 6, 12.0)
    assert steady < 1.1 * together
    changing, together = off_by([1.1, 0.9] * 3, 3.0)
    assert changing < 0.3 * together


def test_a_little_more_is_no_contradiction_however_sure():
    """Nine parts of a hundred more are a change; six tenths more need a tail of their own."""
    sure = {"expected": 1.0, "noise": 1e-8, "by_chance": 1e-8}
    assert not _Difference(more=0.09, **sure).contradicts
    assert _Difference(more=0.6, **sure).contradicts
    assert not _Difference(more=0.6, expected=1.0, noise=0.04, by_chance=0.01).contradicts


def test_values_that_go_on_as_they_begin_are_likelier_than_others(monkeypatch):
    """Of a power law more is believed to lie beyond what is counted."""
    random, believed = np.random.default_rng(9), np.zeros(2)
    for _ in range(20):
        values = np.minimum(SCALE / 10 * (1 + random.pareto(1.0, N)), 1.0)
        look = look_at(values, 15.0, random)
        for place, more_likely in enumerate((0.0, 0.5)):
            monkeypatch.setattr(tail_model, "_ONE_GROUP_ODDS", more_likely)
            believed[place] += fit_tail([look], 1.0, OUTLOOK).mean_clipped(0.2)
    assert believed[1] > 1.3 * believed[0]


def test_what_values_are_by_chance_is_no_noise():
    """A steady stream, and counts nearly without noise: how many there were is known."""
    own, together = off_by([1.0] * 6, 0.05)
    assert own < 0.2 * together


def test_what_a_look_has_more_between_two_knots_counts_as_much_as_the_rest():
    """A group that ends between two knots: of a tenth more, a tenth more was clipped."""
    random, end, ratios = np.random.default_rng(10), 0.875, []
    for _ in range(10):
        parts = [
            np.concatenate((random.exponential(SCALE, N - group), random.uniform(0.8, 0.9, group)))
            for group in (1000, 1100, 1000, 900)
        ]
        looks = [look_at(part, 1.0, random) for part in parts]
        together = fit_tail(looks, 1.0, OUTLOOK)
        mass, _ = removed_mass(looks, [1.0, end, 1.0, 1.0], 1.0, together, OUTLOOK)
        ratios.append(mass / (N * together.mean_clipped(end)))
    assert np.mean(ratios) == pytest.approx(1.1, abs=0.05)


def test_where_nothing_lies_above_a_knot_little_lies_next_to_it():
    """The rate beside it is without limit, and says nothing: the other one is trusted."""
    at_knots = np.array([1.0, 0.1, 0.001, 0.0])[:, None]
    middle = float(_between(KNOTS, at_knots, float(KNOTS[1:3].mean()))[0])
    assert 0.005 < middle < 0.02
