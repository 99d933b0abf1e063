"""Ranges from noisy counts: what a later look changes, and what a last one does not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rillet import Mean, ParameterError, Plan, Secret, TailHistogram
from rillet.statistic import Range
from rillet.threshold.base import Look, Outlook
from rillet.threshold.tail import PARTS

BOUNDS = Range(0.0, 1000.0)
ONE = TailHistogram()


def values(scale: float, count: int = 20_000) -> np.ndarray:
    return np.random.default_rng(1).exponential(scale, count)


def look(scale: float, count: int = 20_000) -> Look:
    return Look(count, ONE.count(values(scale, count), BOUNDS, None), 4.0 * PARTS, "laplace")


def outlook(after: int, length: int = 80_000) -> Outlook:
    return Outlook(length=length, after=after, until=length, noise_per_unit=20.0)


def test_a_later_look_widens_the_range_while_there_is_something_to_clip():
    first = ONE.judge(BOUNDS, (look(1.0),), (), outlook(20_000)).range
    assert 1.0 < first.upper < 20.0
    looks = look(1.0), look(30.0)
    second = ONE.judge(BOUNDS, looks, (first,), outlook(40_000)).range
    assert second.upper > 5 * first.upper
    # The last look comes when nothing is left to clip: it corrects, and keeps the range.
    last = ONE.judge(BOUNDS, looks, (first,), outlook(80_000))
    assert last.range == first
    assert last.removed > 0
    # A look that is the first and the last still learns one.
    assert ONE.judge(BOUNDS, (look(1.0),), (), outlook(80_000)).range.upper < 100.0


@pytest.mark.parametrize(
    "wrong",
    [{"share": 0.0}, {"share": -0.1}, {"share": 0.37}, {"growth": 1.4}, {"growth": 1001.0}],
    ids=str,
)
def test_what_is_not_proved_is_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        TailHistogram(**wrong)


def test_looks_that_contradict_one_another_are_corrected_each_by_itself():
    """A range of 5 took from values of size 1, one of 50 from values of size 30 afterwards."""
    ranges = Range(0.0, 5.0), Range(0.0, 50.0)
    truth = 2 * np.maximum(values(1.0) - 5.0, 0.0).sum()
    same = ONE.judge(BOUNDS, (look(1.0), look(1.0)), ranges[:1], outlook(80_000))
    assert same.removed == pytest.approx(truth, rel=0.5)
    truth += np.maximum(values(30.0) - 50.0, 0.0).sum()
    found = ONE.judge(BOUNDS, (look(1.0), look(1.0), look(30.0)), ranges, outlook(80_000))
    assert found.removed == pytest.approx(truth, rel=0.1)


def test_how_many_values_a_look_has_is_the_sum_of_its_counts():
    counts = ONE.count(values(10.0, 1234), BOUNDS, None)
    assert ONE.observed(counts) == 1234
    assert ONE.observed(-counts) == 1


@pytest.mark.parametrize(("law", "sure"), [("laplace", 4 * 2**0.5), ("gaussian", 4.0)])
def test_only_counts_above_four_deviations_make_a_centre(law, sure):
    noisy = np.zeros(len(TailHistogram.places(BOUNDS, None)), np.int64)
    scale = 1000.0
    noisy[100] = round(1.01 * sure * scale)
    noisy[[110, 112]] = round(0.99 * sure * scale)
    centre = ONE.centre_of(BOUNDS, Look(500, noisy, scale, law))
    assert centre == pytest.approx(TailHistogram.places(BOUNDS, None)[100], rel=1e-6)


@pytest.mark.parametrize("every", [1, 7, 500])
def test_segments_end_at_releases_and_none_is_empty(every):
    ends = TailHistogram(growth=1.5).segment_ends(1, 5000, every)
    assert ends[-1] == 5000
    assert all(one < other for one, other in pairwise(ends))
    assert all((end - 1) % every == 0 for end in ends[:-1])
    assert len(ends) > 4


def test_ranges_are_those_of_this_version():
    """What is learned from given counts: around a centre, and from looks that differ a little."""
    two = TailHistogram(two_sided=True)
    counts = two.count(500.0 + values(3.0), BOUNDS, 500.0)
    first = Look(20_000, counts, 4.0 * PARTS, "laplace", 500.0)
    around = two.judge(BOUNDS, (first,), (), outlook(20_000))
    assert around.range.upper == pytest.approx(518.9425948192365, rel=1e-9)
    assert around.removed == pytest.approx(93.06425550482949, rel=1e-6)
    found = ONE.judge(BOUNDS, (look(1.0), look(1.1)), (Range(0.0, 5.0),), outlook(40_000))
    assert found.range.upper == pytest.approx(5.966543674468994, rel=1e-9)
    assert found.removed == pytest.approx(312.0623598460056, rel=1e-6)
    assert found.margin == pytest.approx(
        (0.0017968957425664, 0.0034892794406260, 0.0143154471267), rel=1e-6
    )


# --- A statistic that forgets, of few values -----------------------------------------------------


def by_the_day(readings: int, days: int, seed: int) -> list[tuple[float, object]]:
    """The mean of the last day, at the end of each, and its release."""
    random = np.random.default_rng(seed)
    at = np.sort(random.uniform(0, days * 86_400, readings * days))
    values = random.exponential(20.0, len(at))
    plan = Plan(
        epsilon=1.0,
        delta=2.0**-20,
        upper=150.0,
        every="1h",
        start="2026-01-01T00:00Z",
        length=None,
        statistic=Mean(window="24h"),
    )
    stream = plan.open(secret=Secret.for_tests(seed))
    stream.update_many(values, at=1_767_225_600 + at)
    releases = stream.advance(until=1_767_225_600 + days * 86_400)
    found = []
    for release in releases:
        if release.t % 24 == 0 and np.isfinite(release.value):
            inside = (at < release.t * 3600) & (at >= (release.t - 24) * 3600)
            found.append((float(values[inside].mean()), release))
    return found


def test_a_range_does_not_fall_because_few_counts_are_lost_in_noise():
    """The precise first look is forgotten; later ones of 180 values each say little."""
    found = [each for seed in range(5) for each in by_the_day(117, 40, seed)[20:]]
    covered = [low <= mean <= high for mean, r in found for low, high in [r.interval()]]
    assert len(covered) > 80
    assert np.mean(covered) > 0.9
    assert np.median([r.clip_upper for _, r in found]) > 30
    assert np.median([r.value for _, r in found]) == pytest.approx(20, abs=3)


def test_a_range_that_no_count_can_tell_is_the_declared_one():
    found = by_the_day(20, 20, 1)
    assert {(r.clip_lower, r.clip_upper) for _, r in found} == {(0.0, 150.0)}


def test_more_looks_are_gone_by_where_they_are_of_few_values():
    random = np.random.default_rng(1)

    def some(observations: int, scale: float, place: int = 60) -> Look:
        noisy = random.laplace(0, scale * PARTS, 121)
        noisy[place : place + 4] += observations * PARTS / 4
        return Look(observations, np.rint(noisy).astype(np.int64), scale * PARTS, "laplace")

    for observations, kept in ((10**6, 16), (450, 16), (300, 25), (2, 64)):
        assert ONE.looks_kept(tuple(some(observations, 50 / 3) for _ in range(100))) == kept
    few = tuple(some(180, 50 / 3) for _ in range(80))
    assert ONE.looks_kept((some(150, 4 / 3), *few[:29])) == 30
    assert ONE.looks_kept((some(150, 4 / 3), *few)) == 64
    # Unless the values are elsewhere now.
    assert ONE.looks_kept((some(150, 4 / 3, 80), *few[:29])) == 16
