"""Releases: intervals that cover, arrays that agree with single releases, records."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from helpers.laws import gaussian_with_laplace_tail, laplace_tail, laplace_variance
from helpers.streams import SECRET, awkward_values, baseline, paper
from rillet import BinaryTree, MissingExtra, ParameterError, Release, Releases, Sum
from rillet.release import noise_deviations
from rillet.testing import Budget, StatisticalFailure, binomial_p_value, check

CONFIDENCES = (0.5, 0.68, 0.8, 0.9, 0.91, 0.95, 0.99, 0.999)
#: Scales of one further draw, in units of the others'; None: there is none.
OTHERS = (None, 0.05, 0.2, 0.4, 0.8, 1.25, 3.0, 20.0)


def stream_releases(**more) -> Releases:
    plan = paper(300, 100, **more)
    return plan.open(secret=SECRET, key=("north", 3)).update_many(awkward_values(300, 1))


# --- Coverage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_interval_covers_every_sum_of_laplace_draws(confidence):
    """Exactly, for 1 to 25 draws with and without one of another scale (the opening's)."""
    reach = noise_deviations(confidence, "laplace")
    missed = {}
    for count in range(1, 26):
        for other in OTHERS:
            std = laplace_variance(count, other) ** 0.5
            missed[count, other] = laplace_tail(count, reach * std, other)
    worst = max(missed, key=missed.__getitem__)
    assert missed[worst] <= (1 - confidence) * (1 + 1e-12), worst
    # Not far too wide either: some sum comes close to the promised share.
    assert missed[worst] > 0.9 * (1 - confidence)


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize("std", [0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0])
def test_interval_covers_gaussian_noise_after_a_laplace_opening(confidence, std):
    reach = noise_deviations(confidence, "laplace") * (std**2 + 2) ** 0.5
    assert gaussian_with_laplace_tail(std, reach) <= (1 - confidence) * (1 + 1e-12)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_gaussian_interval_is_exact(confidence):
    reach = noise_deviations(confidence, "gaussian")
    assert math.erfc(reach / 2**0.5) == pytest.approx(1 - confidence, rel=1e-12)


def test_the_gaussian_multiple_alone_would_not_cover():
    """Power: at 95 % one Laplace draw needs 2.12 deviations, not 1.96."""
    gaussian = noise_deviations(0.95, "gaussian")
    assert laplace_tail(1, gaussian * 2**0.5) > 0.06
    assert noise_deviations(0.95, "laplace") == pytest.approx(math.log(20) / 2**0.5)


def test_intervals_of_streams_cover_the_clipped_mean():
    """End to end: as often as promised, at steps with one and with many nodes."""
    plan = baseline(127, lower=-10.0)
    values = np.full(127, 40.0)
    covered = np.zeros((127, 2))
    runs = 1500
    for run in range(runs):
        releases = plan.open(secret=SECRET, key=(run,)).update_many(values)
        for place, confidence in enumerate((0.9, 0.99)):
            low, high = releases.interval(confidence)
            covered[:, place] += (low <= 40.0) & (high >= 40.0)
    for t in (1, 3, 64, 127):
        for place, confidence in enumerate((0.9, 0.99)):
            nodes = t.bit_count()
            reach = noise_deviations(confidence, "laplace") * (2 * nodes) ** 0.5
            exact = 1 - laplace_tail(nodes, reach)
            assert exact >= confidence - 1e-12
            p_value = float(binomial_p_value(covered[t - 1, place], runs, exact))
            check(f"coverage of {confidence} at t = {t}", p_value)
    # Power: intervals four fifths as wide cover less often, and that would be seen.
    for t in (1, 127):
        nodes = t.bit_count()
        reach = 0.8 * noise_deviations(0.9, "laplace") * (2 * nodes) ** 0.5
        fewer = round((1 - laplace_tail(nodes, reach)) * runs)
        with pytest.raises(StatisticalFailure):
            check("power", float(binomial_p_value(fewer, runs, 0.9)), budget=Budget())


@pytest.mark.parametrize("confidence", [0, 1, -0.1, 1.5, float("nan"), 95])
def test_bad_confidence_is_refused(confidence):
    release = stream_releases()[-1]
    with pytest.raises(ParameterError, match="confidence"):
        release.interval(confidence)


# --- One release and many ----------------------------------------------------------------------

ARRAYS = [
    "t",
    "sum",
    "sum_noise_std",
    "mean",
    "mean_noise_std",
    "value",
    "noise_std",
    "threshold",
    "clip_lower",
]


@pytest.mark.parametrize("more", [{}, {"statistic": Sum()}, {"every": 7, "lower": -5.0}], ids=str)
def test_arrays_agree_with_single_releases(more):
    releases = stream_releases(**more)
    assert len(releases) == len(list(releases)) > 25
    for place, release in enumerate(list(releases)):
        assert release == releases[place]
        for name in ARRAYS:
            assert getattr(release, name) == getattr(releases, name)[place], name
        for confidence in (0.5, 0.95):
            low, high = releases.interval(confidence)
            assert release.interval(confidence) == (low[place], high[place])
    assert releases[-1] == releases[len(releases) - 1]


def test_slices_are_releases():
    releases = stream_releases()
    part = releases[5:50:3]
    assert isinstance(part, Releases)
    assert list(part) == list(releases)[5:50:3]
    assert list(releases[-1:]) == [releases[-1]]
    assert list(releases[0:0]) == []


def test_value_is_the_statistic():
    mean, total = stream_releases()[-1], stream_releases(statistic=Sum())[-1]
    assert (mean.statistic, mean.value, mean.noise_std) == ("mean", mean.mean, mean.mean_noise_std)
    assert (total.statistic, total.value, total.noise_std) == (
        "sum",
        total.sum,
        total.sum_noise_std,
    )
    assert mean.mean == mean.sum / mean.t
    assert mean.mean_noise_std == pytest.approx(mean.sum_noise_std / mean.t, rel=1e-15)


def test_noise_law_is_gaussian_only_when_all_noise_is():
    plan = baseline(10, strategy=BinaryTree("gaussian"), delta=2**-20)
    assert plan.open().update(1.0).noise_law == "gaussian"
    assert stream_releases()[0].noise_law == "laplace"


def test_equal_releases_are_equal_and_others_not():
    one, same = stream_releases()[3], stream_releases()[3]
    assert one == same
    assert hash(one) == hash(same)
    assert one != stream_releases()[4]
    assert one != stream_releases(statistic=Sum())[3]
    assert one != "a release"


def test_record_is_json_with_the_same_names():
    release = stream_releases()[-1]
    record = json.loads(json.dumps(release.to_record(), allow_nan=False))
    for name, value in record.items():
        if name in ("key", "post_processing"):
            assert tuple(value) == getattr(release, name)
        elif value is not None:
            assert value == getattr(release, name)
    assert set(ARRAYS) < set(record)
    assert {"key", "statistic", "noise_law", "post_processing"} < set(record)


def test_repr_is_public():
    release = stream_releases()[-1]
    text = repr(release)
    assert text.startswith("Release(mean of ('north', 3) at t=300: ")
    assert f"{release.value:.6g}" in text
    assert f"clipped at {release.threshold:.6g}" in text


def test_pandas_has_a_row_for_every_release():
    pytest.importorskip("pandas")
    releases = stream_releases(every=9)
    table = releases.to_pandas()
    assert len(table) == len(releases)
    for name in ARRAYS:
        assert np.array_equal(table[name].to_numpy(), getattr(releases, name))


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"rillet\[data\]"):
        stream_releases().to_pandas()


def test_release_is_small():
    """No dictionary for each: a stream makes one at every observation."""
    assert not hasattr(stream_releases()[0], "__dict__")
    assert isinstance(stream_releases()[0], Release)
