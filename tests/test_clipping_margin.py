"""Intervals for the statistic of the unclipped values: what the record says, and how it adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.streams import SECRET, paper
from rillet import Mean, ParameterError, Plan, Quantile, Release, Releases, Share, Sum
from rillet.release import NUMBERS, noise_deviations
from rillet.statistic import DEVIATIONS, Margin
from rillet.threshold import FixedThreshold, TailHistogram

LENGTH, LAG = 6000, 1000


def plan(**options) -> Plan:
    known = {
        "epsilon": 1.0,
        "delta": 2.0**-20,
        "upper": 1000.0,
        "length": LENGTH,
        "lag": LAG,
        "every": 100,
        "missing": "none",
        "threshold": TailHistogram(two_sided=False),
    }
    return Plan(**{**known, **options})


def values(seed=1, length=LENGTH):
    return np.random.default_rng(seed).exponential(20.0, length)


def clocked(**options) -> Plan:
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "60h", "lag": 10, "zone": "UTC"}
    return plan(**{**clock, "missing": "skip", "epsilon": 5.0, **options})


def released(made: Plan, **by_clock) -> Releases:
    if made.clock is None:
        return made.open(secret=SECRET).update_many(values())
    at = np.datetime64("2026-01-01T00:00", "us") + np.arange(LENGTH) * np.timedelta64(
        36_000_000, "us"
    )
    stream = made.open(secret=SECRET)
    first = stream.update_many(values(), at=at)
    return Releases.join([first, stream.advance(until="2026-01-03T12:00Z")])


MEMORIES = [{}, {"window": 500}, {"half_life": 400}]
EDGES = (5.0, 10.0, 20.0, 40.0, 80.0)
BY_CLOCK = [{}, {"window": "6h"}, {"half_life": "5h"}]


@pytest.mark.parametrize("tail", ["fitted", "bound"])
@pytest.mark.parametrize(
    "made",
    [
        *((plan, {"statistic": one(**memory)}) for one in (Mean, Sum) for memory in MEMORIES),
        *((clocked, {"statistic": Mean(**memory)}) for memory in BY_CLOCK),
        (plan, {"missing": "skip"}),
        (plan, {"statistic": [Mean(), Sum(), Share(above=30.0), Quantile(0.5, bins=EDGES)]}),
        (plan, {"threshold": TailHistogram()}),
    ],
)
def test_every_record_says_how_far_clipping_may_be_off(made, tail):
    """With every memory and cadence; the interval holds that of the noise, and is the formula's."""
    make, options = made
    found = released(make(tail=tail, **options))
    assert found.tail == ("weibull" if tail == "fitted" else "bound")
    clips = [name for name in found.names if name in ("mean", "sum")]
    for name in found.names:
        one = found[name]
        low, high = one.interval(0.9)
        noise_low, noise_high = one.noise_interval(0.9)
        known = ~np.isnan(noise_low)
        assert known.mean() > 0.9
        assert np.all((low <= noise_low) & (high >= noise_high) | ~known)
        if name not in clips:
            assert not one.clipping_below.any() and not one.clipping_above.any()
            np.testing.assert_array_equal(low, noise_low)
            continue
        assert (one.clipping_below + one.clipping_above)[known].max() > 0
        middle = np.where(np.isnan(one.value), (noise_low + noise_high) / 2, one.value)
        part = noise_deviations(0.9, "gaussian") / DEVIATIONS
        if tail == "bound":
            np.testing.assert_allclose(high, noise_high + one.clipping_above)
        else:
            up = np.hypot(noise_high - middle, part * one.clipping_above)
            np.testing.assert_allclose(high, middle + up)
        assert one[-1].interval(0.9) == (low[-1], high[-1])


def test_a_sum_is_off_by_the_mean_times_the_count():
    both = released(plan(statistic=[Mean(), Sum()]))
    mean, total = both["mean"], both["sum"]
    np.testing.assert_allclose(total.clipping_above, mean.clipping_above * mean.count)


def test_without_a_tail_it_is_wider():
    fitted, bound = (released(plan(tail=tail)) for tail in ("fitted", "bound"))
    np.testing.assert_array_equal(fitted.value, bound.value)  # the noise is the same
    widths = [np.subtract(*each.interval()[::-1]) for each in (fitted, bound)]
    assert np.all(widths[1] >= widths[0])
    assert widths[1][-1] > 2 * widths[0][-1]


def test_where_nothing_is_clipped_the_interval_is_that_of_the_noise():
    found = released(plan(threshold=FixedThreshold(), lag=0))
    assert found.tail == "none"
    np.testing.assert_array_equal(found.interval(), found.noise_interval())


def test_what_is_not_counted_is_not_known():
    """The paper's threshold, and a declared one below the bound; with the bounds it is known."""
    for made in (paper(300, 100), plan(threshold=FixedThreshold(80.0), lag=0)):
        found = made.open(secret=SECRET).update_many(values()[: made.layout.length])
        assert found.tail == "unknown"
        assert np.isnan(found.interval()).all()
        np.testing.assert_array_equal(found.band(), found.noise_interval())
    found = released(plan(threshold=FixedThreshold(80.0), lag=0, tail="bound"))
    np.testing.assert_allclose(found.clipping_above, 1000.0 - 80.0)


def test_blocks_and_single_observations_say_the_same():
    made = plan(length=2000, every=1)
    whole = made.open(secret=SECRET).update_many(values(2, 2000))
    stream = made.open(secret=SECRET)
    parts = [stream.update_many(values(2, 2000)[:1500])]
    ones = [stream.update(value) for value in values(2, 2000)[1500:]]
    np.testing.assert_array_equal(parts[0].clipping_above, whole.clipping_above[: len(parts[0])])
    assert [one.clipping_above for one in ones] == whole.clipping_above[len(parts[0]) :].tolist()


def test_keys_that_tick_together_have_it_too():
    made = clocked(keys=[("a",), ("b",)], shared_threshold=True, length="40h")
    streams = made.open_many(secret=SECRET)
    at = np.datetime64("2026-01-01T00:00", "us") + np.arange(4000) * np.timedelta64(
        36_000_000, "us"
    )
    streams.update_many(values(3, 4000), key=["a", "b"] * 2000, at=at)
    streams.advance(until="2026-01-02T16:00Z")
    for key in ("a", "b"):
        release = streams.latest(key)
        assert release.tail == "weibull"
        low, high = release.interval()
        assert low < release.noise_interval()[0] < release.noise_interval()[1] < high
    assert streams.rollup().clipping_above > 0


def test_margins_average_over_what_is_looked_back_on():
    """Half of a window under each of two margins has the mean of both."""
    layout = plan(statistic=Mean(window=1000)).layout
    margins = ((LAG, Margin(1.0, 2.0, 3.0)), (3000, Margin(3.0, 4.0, 5.0)))
    for t, part in ((2900, 0.0), (3000, 0.0), (3500, 0.5), (4000, 1.0), (6000, 1.0)):
        found = layout.margin(margins, t, layout.bounds)
        assert found == pytest.approx((1 + 2 * part, 2 + 2 * part, 3 + 2 * part))
    layout = plan().layout
    margins = ((0, Margin(1.0, 2.0, 3.0)), (3000, Margin(3.0, 4.0, 5.0)))
    assert layout.margin(margins, 4000, layout.bounds).below == pytest.approx(1.5)
    below, above = Margin(3.0, 4.0, 16.0).of(4)
    assert (below, above) == pytest.approx(
        (math.hypot(3.0, 2 * DEVIATIONS), math.hypot(4.0, 2 * DEVIATIONS))
    )
    # What has ended is taken away again; what rounding leaves of it is no variance.
    assert Margin(1.0, 2.0, -1e-30).of(4) == (1.0, 2.0)
    layout = plan(statistic=Mean(window=1000)).layout
    variances = {LAG: 0.0, 1100: 90.0, 1200: 6e-29, 1300: 5e-29}
    margins = tuple((t, Margin(0.0, 0.0, variance)) for t, variance in variances.items())
    found = layout.margin(margins, np.arange(3000, 3100), layout.bounds)
    assert found.variance.min() < 0
    assert np.isfinite(found.of(1)).all()


def test_without_bounds_there_is_a_fitted_tail_only():
    made = plan(upper=None, threshold="auto", lag="auto")
    found = made.open(secret=SECRET).update_many(values())
    low, high = found.interval()
    assert np.isfinite([low[-1], high[-1]]).all()
    assert high[-1] - low[-1] < 20 * np.subtract(*found[-1].noise_interval()[::-1])
    with pytest.raises(ParameterError, match="tail"):
        plan(upper=None, threshold="auto", lag="auto", tail="bound")


def test_a_tail_is_one_of_two():
    with pytest.raises(ParameterError, match="tail"):
        plan(tail="pareto")


def test_an_interval_of_a_made_up_record():
    row = dict.fromkeys(NUMBERS, math.nan)
    row |= {
        "value": 10.0,
        "noise_std": 3 / DEVIATIONS,
        "clipping_below": 0.0,
        "clipping_above": 4.0,
    }
    common = {"name": "mean", "noise_law": "gaussian", "post_processing": ()}
    one = Release((), 1, 0, [{**row, **common, "tail": "weibull"}])
    assert one.interval() == pytest.approx((7.0, 15.0))
    assert Release((), 1, 0, [{**row, **common, "tail": "bound"}]).interval() == pytest.approx(
        (7.0, 17.0)
    )
