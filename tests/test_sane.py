"""Sane output: what no data could give is mended, the record says so, and intervals stay right."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.streams import SECRET
from rillet import Count, Histogram, Mean, ParameterError, Plan, Quantile, Releases, Share, Sum

LENGTH = 400
#: Few values and much noise: without mending nothing here is sane.
VALUES = np.where(np.arange(LENGTH) % 40, 0.0, 1.0)


def plan(statistic=None, **options) -> Plan:
    known = {"epsilon": 0.5, "upper": 10.0, "length": LENGTH, "every": 10, "lag": 0}
    return Plan(**{**known, **options, "statistic": statistic or Mean()})


def both(statistic, **options) -> tuple[Releases, Releases]:
    """As decoded, and mended: under the same noise."""
    made = (plan(statistic, sane=sane, **options) for sane in (False, True))
    decoded, mended = (one.open(secret=SECRET).update_many(VALUES) for one in made)
    return decoded, mended


@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize(
    "statistic",
    [
        Mean(),
        Mean(window=100),
        Mean(half_life=50),
        Sum(),
        Sum(window=100),
        Count(),
        Share(above=0.5),
        Histogram(bins=[0.0, 2.0, 4.0]),
        [Mean(), Sum(), Count(), Quantile(0.5, bins=[0.0, 2.0, 4.0])],
    ],
)
def test_what_no_data_could_give_is_mended_and_said(statistic, missing):
    decoded, mended = both(statistic, missing=missing)
    assert decoded.post_processing == tuple(
        step for step in mended.post_processing if "kept" not in step
    )
    assert any("kept" in step for step in mended.post_processing)
    for name, kind in zip(mended.names, mended_kinds(statistic), strict=True):
        raw, one = decoded[name], mended[name]
        np.testing.assert_array_equal(one.noise_std, raw.noise_std)
        known = ~np.isnan(raw.value)
        np.testing.assert_array_equal(known, ~np.isnan(one.value))
        if kind == "mean":
            expected = np.clip(raw.value, raw.clip_lower, raw.clip_upper)
            np.testing.assert_array_equal(one.value, expected)
        elif kind == "count":
            np.testing.assert_array_equal(one.value, np.maximum(raw.value, 0.0))
        elif kind == "sum":
            assert one.value.min() >= 0
            np.testing.assert_array_equal(one.value, one.sum)
        for number in ("count", "mean", "sum"):
            some = getattr(one, number)
            assert np.all((some >= 0) | np.isnan(some))


def mended_kinds(statistic) -> tuple[str, ...]:
    return plan(statistic).statistic.kinds


def test_a_sum_does_not_fall_however_it_comes():
    """In blocks, one by one, and from stored state: the greatest sum so far is kept."""
    from rillet.noise import Secret
    from rillet.state.encoding import decode_state, encode_state
    from rillet.step import start, step

    decoded, mended = both(Sum())
    assert np.diff(decoded.sum).min() < 0
    np.testing.assert_array_equal(mended.sum, np.maximum.accumulate(np.maximum(decoded.sum, 0.0)))
    made = plan(Sum(), sane=True)
    one_by_one = made.open(secret=SECRET)
    ones = [release for value in VALUES if (release := one_by_one.update(value)) is not None]
    assert [one.value for one in ones] == mended.value.tolist()
    layout = made.layout
    state, found = start(layout, Secret.for_tests(1)), []
    whole = step(layout, (), state, VALUES, 0)[1]
    for part in np.split(VALUES, [3, 70, 77, 250]):
        state, releases = step(layout, (), state, part, 0)
        found += releases.value.tolist()
        state = decode_state(encode_state(state), state.secret)
    assert found == whole.value.tolist()
    assert state.latest is not None and state.latest.value == found[-1]


def test_a_sum_with_negative_values_may_fall():
    decoded, mended = both(Sum(), lower=-10.0)
    np.testing.assert_array_equal(decoded.value, mended.value)
    assert not any("sum" in step for step in mended.post_processing)


@pytest.mark.parametrize("statistic", [Mean(), Sum(), Count(), Share(above=0.5)])
def test_the_noise_interval_is_that_of_the_number_before(statistic):
    """So it covers as often as without mending, also where a sum is held up."""
    decoded, mended = both(statistic)
    raw_low, raw_high = decoded.noise_interval(0.95)
    low, high = mended.noise_interval(0.95)
    if mended_kinds(statistic) == ("mean",):
        ends = decoded.clip_lower, decoded.clip_upper
        raw_low, raw_high = np.clip(raw_low, *ends), np.clip(raw_high, *ends)
    np.testing.assert_array_equal(low, np.maximum(raw_low, 0.0))
    np.testing.assert_array_equal(high, np.maximum(raw_high, 0.0))
    with pytest.raises(ParameterError, match="confidence"):
        mended.noise_interval(0.99)


@pytest.mark.parametrize("options", [{}, {"every": "1h", "start": "2026-01-01T00:00Z"}])
@pytest.mark.parametrize("statistic", [Mean(), Sum(), Share(above=5.0)])
def test_the_interval_for_all_values_has_ends_where_noise_reaches_a_bound(statistic, options):
    options = {**options, "length": "40h"} if options else {}
    stream = plan(statistic, sane=True, **options).open(secret=SECRET)
    found = stream.advance(until="2026-01-02T16:00Z") if options else stream.update_many(VALUES)
    low, high = found.noise_interval()
    assert (low <= 0.0).any()
    for end, expected in zip(found.interval(), (low, high), strict=True):
        np.testing.assert_array_equal(end, expected)


def test_keys_together_keep_sums_at_0_and_say_so():
    options = {
        "keys": [("a",), ("b",)],
        "every": "1h",
        "start": "2026-01-01T00:00Z",
        "length": "9h",
    }
    made = plan(Sum(), sane=True, **options)
    assert "sum kept at 0 or above" in made.layout.post_processing
    streams = made.open_many(secret=SECRET)
    found = streams.advance(until="2026-01-01T09:00Z")
    assert found.value.min() >= 0 and (found.value == 0).any()
    with pytest.raises(ParameterError, match="sane"):
        plan(sane=True, levels=["all"], **options)


def test_a_plan_keeps_it():
    made = plan(sane=True, tail="bound")
    assert Plan.from_json(made.to_json()) == made
    assert "sane" not in plan().to_json() and "tail" not in plan().to_json()
    assert plan(sane=True).layout.digest == plan().layout.digest  # post-processing: the same noise
