"""Intervals of a ratio with a noisy count: Fieller's, against brute force and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from rillet import Release, Releases
from rillet.release import NUMBERS, noise_deviations

LAW = "gaussian"


def releases(**columns) -> Releases:
    length = max(np.size(column) for column in columns.values())
    full = {name: np.broadcast_to(column, length) * 1.0 for name, column in columns.items()}
    index = np.zeros(length, np.int64)
    return Releases(((),), index, index + 1, index, ("mean",), full, LAW)


def release(**numbers) -> Release:
    row = {**dict.fromkeys(NUMBERS, math.nan), **numbers, "name": "mean", "noise_law": LAW}
    return Release((), 1, 0, [{**row, "post_processing": (), "tail": "unknown"}])


KNOWN = {
    "value": 20.0,
    "noise_std": 1.0,
    "noise_covariance": 0.0,
    "count": 100.0,
    "count_noise_std": 10.0,
    "clip_lower": -5.0,
    "clip_upper": 70.0,
}


@given(
    st.floats(-1e3, 1e3),
    st.floats(1e-6, 1e3),
    st.floats(-0.999, 0.999),
    st.floats(1e-6, 3.0),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_the_interval_is_what_brute_force_finds(value, std, correlation, share, confidence):
    """The points where the inequality turns, found by bisection, or none."""
    z = noise_deviations(confidence, LAW)
    numbers = {
        **KNOWN,
        "value": value,
        "noise_std": std,
        "noise_covariance": correlation * std * share,
        "count_noise_std": 100.0 * share,
    }

    def excess(d: float) -> float:
        noise = std**2 - 2 * correlation * std * share * d + (d * share) ** 2
        return d**2 - z**2 * noise

    low, high = release(**numbers).noise_interval(confidence)
    if z * share >= 1:
        assert (low, high) == (-5.0, 70.0)
        return
    far = 1.0
    while excess(far) < 0 or excess(-far) < 0:
        far *= 2
    scale = max(1.0, abs(value))
    assert low == pytest.approx(value + brentq(excess, -far, 0.0), rel=1e-6, abs=1e-6 * scale)
    assert high == pytest.approx(value + brentq(excess, 0.0, far), rel=1e-6, abs=1e-6 * scale)
    assert low <= value <= high


def test_a_public_count_leaves_the_interval_as_it_was():
    reach = noise_deviations(0.95, LAW)
    plain = {**KNOWN, "noise_covariance": math.nan, "count_noise_std": 0.0}
    assert release(**plain).noise_interval() == (20.0 - reach, 20.0 + reach)
    ratio = release(**{**plain, "noise_covariance": 0.0})
    assert ratio.noise_interval() == pytest.approx((20.0 - reach, 20.0 + reach), rel=1e-15)


@pytest.mark.parametrize(
    "why",
    [
        {"count_noise_std": 60.0},
        {"count": 0.0},
        {"count": 0.0, "count_noise_std": 0.0},
        {"value": math.nan},
        {"value": math.nan, "noise_std": math.nan, "noise_covariance": math.nan},
    ],
    ids=str,
)
def test_without_a_bound_it_is_the_clipping_range(why):
    found = release(**{**KNOWN, **why})
    assert found.noise_interval() == (-5.0, 70.0)
    assert [part.tolist() for part in releases(**{**KNOWN, **why}).noise_interval()] == [
        [-5.0],
        [70.0],
    ]


def test_a_bounded_interval_is_not_cut_to_the_range():
    low, high = release(**{**KNOWN, "noise_std": 40.0}).noise_interval()
    assert low < -5.0
    assert high > 70.0


def test_many_agree_with_each():
    random = np.random.default_rng(3)
    many = releases(
        value=np.where(random.random(200) < 0.1, np.nan, random.normal(size=200)),
        noise_std=random.random(200),
        noise_covariance=np.where(random.random(200) < 0.3, np.nan, random.normal(size=200) / 50),
        count=random.normal(size=200) * 30,
        count_noise_std=random.random(200) * 20,
        clip_lower=-1.0,
        clip_upper=2.0,
    )
    for confidence in (0.5, 0.95):
        low, high = many.noise_interval(confidence)
        assert not np.isnan(low).any()
        assert [one.noise_interval(confidence) for one in many] == list(
            zip(low.tolist(), high.tolist(), strict=True)
        )


@pytest.mark.parametrize("count", [3.0, 10.0, 30.0, 100.0, 1e3, 1e5])
@pytest.mark.parametrize("mean", [-0.9, 0.0, 0.6])
def test_the_interval_covers_the_ratio_as_often_as_promised(count, mean):
    """Sum and count with correlated Gaussian noise; values in [-1, 1]; a simulation."""
    runs, sum_std, count_std, correlation = 200_000, 8.0, 10.0, 0.3
    random = np.random.default_rng(20)
    first, second = random.normal(size=(2, runs))
    sum_noise = sum_std * first
    count_noise = count_std * (correlation * first + math.sqrt(1 - correlation**2) * second)
    total, found = mean * count + sum_noise, count + count_noise
    value = total / found
    cross = correlation * sum_std * count_std
    variance = sum_std**2 - 2 * value * cross + (value * count_std) ** 2
    low, high = releases(
        value=value,
        noise_std=np.sqrt(variance) / np.abs(found),
        noise_covariance=(cross - value * count_std**2) / found**2,
        count=found,
        count_noise_std=count_std,
        clip_lower=-1.0,
        clip_upper=1.0,
    ).noise_interval(0.95)
    covered = np.mean((low <= mean) & (mean <= high))
    assert covered >= 0.93
    if count >= 100:
        assert covered == pytest.approx(0.95, abs=0.003)
    if count >= 1e5:
        assert np.median(high - low) == pytest.approx(
            2 * 1.96 * np.median(np.sqrt(variance)) / count, rel=0.01
        )


def test_the_first_order_interval_would_not_cover():
    """Power: the noise of the value alone misses at a small count what Fieller's set has."""
    runs, count, mean = 200_000, 30.0, 0.9
    random = np.random.default_rng(21)
    sum_noise, count_noise = random.normal(size=(2, runs)) * np.array([[1.0], [10.0]])
    found = count + count_noise
    value = (mean * count + sum_noise) / found
    std = np.sqrt(1.0 + (value * 10.0) ** 2) / np.abs(found)
    assert np.mean(np.abs(value - mean) <= 1.96 * std) < 0.93


def test_a_release_without_a_value_says_so():
    text = repr(release(**{**KNOWN, "value": math.nan}))
    assert text.startswith("Release(mean at t=1: no mean yet, 95 % noise interval [-5, 70]")
    (record,) = release(**{**KNOWN, "value": math.nan})
    assert record["value"] is None


def test_slack_widens_the_interval():
    plain = {**KNOWN, "noise_covariance": math.nan}
    low, high = release(**plain, noise_slack=0.5).noise_interval()
    narrow = release(**plain).noise_interval()
    assert high - 20.0 == pytest.approx(1.5 * (narrow[1] - 20.0))
    assert 20.0 - low == pytest.approx(1.5 * (20.0 - narrow[0]))
