"""Numbers of a layout that no release shows at once: what noise it states, when secrets move on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rillet import FixedThreshold, Mean, ParameterError, Plan, Secret, Sum, TailHistogram
from rillet.statistic import Count, Range

SECRET = Secret.for_tests(11)


@pytest.mark.parametrize(
    ("keys", "every"),
    [
        (0, 16_384),
        (1, 1_024),
        (1_024, 1_024),
        (1_025, 512),
        (4_096, 256),
        (10_000, 64),
        (16_384, 64),
        (1_000_000, 64),
    ],
)
def test_when_secrets_move_on_is_pinned(keys, every):
    """Every release after the first ratchet step depends on it, and so does what a store holds."""
    layout = replace(Plan(epsilon=1.0, upper=100.0, length=100_000).layout, keys=keys)
    assert layout.ratchet_every == every
    assert layout.mechanism["ratchet_every"] == every
    assert [layout.ratchet_steps(leaf) for leaf in (0, every - 1, every, 3 * every)] == [1, 1, 2, 4]


UPPERS = (10.0, 40.0, 5.0, 20.0)


def releases(delta, uppers, removed=0.0, removed_each=0.0, growth=1.5, **more):
    """Releases of a stream that is told which ranges to use, and what clipping removed."""
    judge = TailHistogram.judge

    def told(self, bounds, looks, ranges, outlook):
        found = judge(self, bounds, looks, ranges, outlook)
        upper = uppers[(len(looks) - 1) % len(uppers)]
        learned = Range(bounds.lower, upper)
        return replace(found, range=learned, removed=removed, removed_each=removed_each)

    words = {"epsilon": 1.0, "upper": 100.0, "length": 600, "lag": 50, **more}
    plan = Plan(delta=delta, threshold=TailHistogram(growth=growth), **words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TailHistogram, "judge", told)
        stream = plan.open(secret=SECRET)
        return plan.layout, stream, stream.update_many(np.full(600, 3.0))


@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize("delta", [0.0, 2.0**-20])
def test_stated_noise_of_a_range_that_changes(delta, missing):
    """The warm-up's noise stays what it was; a later node counts as much as its range was worth.

    Where values may be missing, a lattice unit of the second column is worth a part of the middle.
    """
    # With 3 as the only value a good many of 600 may be taken to be missing, or none.
    layout, _, found = releases(delta, UPPERS, missing=missing)
    std = dict(zip(found.t.tolist(), found.sum_noise_std.tolist(), strict=True))
    complete = dict(zip(found.t.tolist(), (found.count == found.t).tolist(), strict=True))
    main = layout.main
    ends = [segment.last for segment in layout.segments]
    assert len(ends) >= 3
    # The warm-up's own total is one Laplace draw for each column.
    steps, count = layout.warm_up_leaf.cut(layout.warm_up.steps)
    of_values = (UPPERS[0] / steps) ** 2 * layout.warm_up.node_variance
    of_counts = (UPPERS[0] / 2 / count) ** 2 * layout.warm_up.node_variance if count else 0.0
    warm_up = {True: of_values, False: of_values + of_counts}
    assert std[50] == pytest.approx(warm_up[complete[50]] ** 0.5)
    checked = 0
    for t in (51, 60, ends[0], ends[0] + 1, ends[1], ends[1] + 1, 600):
        number = next(number for number, end in enumerate(ends) if t <= end)
        cuts = [layout.leaf.cut(segment.steps) for segment in layout.segments]
        columns = [[UPPERS[at % 4] / cuts[at][0] for at in range(number + 1)]]
        if not complete[t]:
            columns.append([UPPERS[at % 4] / 2 / cuts[at][1] for at in range(number + 1)])
        # The noisy prefix sums that a release is made of, and how often each is in it.
        leaves = [layout.complete_leaves(end) for end in ends[:number]]
        leaves.append(layout.complete_leaves(t))
        variance = warm_up[complete[t]]
        for worth in columns:
            factors = [a - b for a, b in pairwise(worth)] + [worth[-1]]
            for first, one in zip(leaves, factors, strict=True):
                for second, other in zip(leaves, factors, strict=True):
                    low, high = np.array([min(first, second)]), np.array([max(first, second)])
                    shared = main.strategy.covariance(main.leaves, low, high)[0]
                    variance += one * other * shared * main.node_variance
        assert std[t] == pytest.approx(variance**0.5, rel=1e-5)
        checked += number > 0
    assert checked >= 4
    # The warm-up is a good part of it: were it counted with a later range, it would show.
    assert std[50] > 0.05 * std[ends[0] + 1]


@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize("backfill", [False, True])
def test_what_clipping_removed_is_added_back_from_the_warm_up_on(backfill, missing):
    # One look: the mass stays what the warm-up found.
    words = {"growth": None, "backfill": backfill, "missing": missing}
    _, plain_stream, plain = releases(2.0**-20, (20.0,), **words)
    layout, stream, found = releases(2.0**-20, (20.0,), 30.0, 0.25, **words)
    assert len(layout.segments) == 1
    gained = dict(zip(found.t.tolist(), (found.sum - plain.sum).tolist(), strict=True))
    assert gained[50] == pytest.approx(30.0)
    # Of as many values as are known to have been there.
    counted = dict(zip(found.t.tolist(), found.count.tolist(), strict=True))
    for t in (51, 100, 600):
        assert gained[t] == pytest.approx(30.0 + 0.25 * (counted[t] - counted[50]))
    if backfill:
        early = stream.backfill.sum - plain_stream.backfill.sum
        assert early == pytest.approx(30.0 * stream.backfill.t / 50)


# --- Forecasts by the clock ----------------------------------------------------------------------

HOURS, RATE = 240, 2000
BY_CLOCK = {"epsilon": 1.0, "upper": 100.0, "lower": -20.0, "length": "10d", "every": "1h"}


def hourly(delta, statistic, **options):
    declared = {"threshold": FixedThreshold()} if statistic.clips else {}
    start = "2026-01-01T00:00Z"
    given = {**BY_CLOCK, **declared, **options}
    return Plan(delta=delta, start=start, statistic=statistic, **given)


def hourly_releases(plan, values):
    """Releases of a stream with as many observations in each tick as were guessed."""
    stream = plan.open(secret=SECRET)
    times = plan.clock.start / 1e6 + (np.arange(HOURS * RATE) + 0.5) * 3600 / RATE
    stream.update_many(values, at=times)
    return stream.advance(until=plan.clock.end_of(HOURS) / 1e6)


@pytest.mark.parametrize("delta", [0.0, 1e-6], ids=["laplace", "gaussian"])
@pytest.mark.parametrize("statistic", [Mean(), Sum(), Count()], ids=lambda kind: kind.name)
def test_the_forecast_by_the_clock_is_what_streams_release(statistic, delta):
    plan = hourly(delta, statistic)
    values = np.random.default_rng(3).normal(20.0, 5.0, HOURS * RATE)
    releases = hourly_releases(plan, values)
    assert releases.t.tolist() == list(range(1, HOURS + 1))
    found = plan.expected_noise(releases.t, plan.bounds, rate="2000/h", mean=20.0)
    for name in found:
        assert found[name] == pytest.approx(getattr(releases, name), rel=0.05), name
    assert plan.expected_error(7, rate=RATE, mean=20.0) == found["noise_std"][6]
    # Without a guess of the mean values are taken to lie where counting costs most.
    worst = plan.expected_error(releases.t, rate=RATE)
    assert np.all(worst >= 0.999 * found["noise_std"])


def test_the_forecast_without_a_mean_is_that_of_values_at_the_lower_end():
    plan = hourly(1e-6, Mean())
    releases = hourly_releases(plan, np.full(HOURS * RATE, plan.lower))
    worst = plan.expected_error(releases.t, rate=RATE)
    assert worst == pytest.approx(releases.noise_std, rel=0.05)
    middle = plan.expected_error(releases.t, rate=RATE, mean=40.0)
    assert np.all(middle < worst)


def test_a_mean_needs_a_rate_and_other_numbers_do_not():
    with pytest.raises(ParameterError, match=r'^rate: .* such as "400/h", found nothing; .* mean'):
        hourly(1e-6, Mean()).expected_error(5)
    total = hourly(1e-6, Sum())
    assert total.expected_error(5) == total.expected_error(5, rate="3/d")
    assert np.isnan(total.expected_noise(5, total.bounds)["mean_noise_std"])
    for wrong in (0, -1, "400/year", float("nan")):
        with pytest.raises(ParameterError, match=r"^rate: "):
            total.expected_error(5, rate=wrong)
    by_count = Plan.baseline(epsilon=1.0, upper=10.0, length=100)
    with pytest.raises(ParameterError, match="rate: expected none in a run by count"):
        by_count.expected_error(5, rate=3)
    with pytest.raises(
        ParameterError, match="t: expected a tick from 1, the first release, to 240"
    ):
        total.expected_error(241)


def test_a_count_that_is_lost_in_noise_gives_no_mean():
    plan = hourly(1e-6, Mean())
    assert np.isnan(plan.expected_error(1, rate=0.5))
    assert plan.expected_error(1, rate=500) > 0


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_forecast_follows_the_segments_of_a_stream(delta):
    """What looks cost is taken from the sums, most in the first segments."""
    layout, _, found = releases(delta, (25.0,), missing="none")
    assert len(layout.segments) >= 3
    expected = layout.expected_noise(found.t, Range(0.0, 25.0))
    for name in ("noise_std", "sum_noise_std", "mean_noise_std"):
        assert expected[name] == pytest.approx(getattr(found, name), rel=1e-9)


@pytest.mark.parametrize("statistic", [Sum(), Mean(), Count()])
@pytest.mark.parametrize(
    "options", [{"length": 20}, {"length": "20h", "every": "1h", "start": 0.0}]
)
def test_synonyms_are_the_same_number(statistic, options):
    given = {"statistic": statistic, "threshold": FixedThreshold(), "keys": ["a", "b"], **options}
    plan = Plan(epsilon=1.0, delta=1e-6, upper=10.0, **given)
    values, key_of = np.random.default_rng(1).exponential(2.0, 40), np.tile([0, 1], 20)
    streams = plan.open_many(secret=Secret.for_tests(1))
    if plan.clock is None:
        releases = streams.absorb(values, key_of)
    else:
        releases = streams.absorb_ticks(values, key_of, np.repeat(np.arange(1, 21), 2), 20)
    name = statistic.names[0]
    assert len(releases) == 40
    assert plan.layout.synonyms == {name: "value", f"{name}_noise_std": "noise_std"}
    for own, other in plan.layout.synonyms.items():
        assert releases.rows(own).tobytes() == releases.rows(other).tobytes()
    assert not Plan(epsilon=1.0, delta=1e-6, upper=10.0, sane=True, **given).layout.synonyms


@pytest.mark.parametrize("length", [60_000, 400_000])
def test_the_noise_of_ranges_that_change_is_foreseen(length: int) -> None:
    """A quadratic form of the widths, against the covariance that releases state."""
    layout = Plan(
        epsilon=1.0, delta=2**-20, upper=100.0, length=length, missing="none", statistic=Sum()
    ).layout
    widths = np.random.default_rng(3).uniform(20.0, 100.0, len(layout.segments))
    weights = tuple(
        width / part.steps for width, part in zip(widths.tolist(), layout.segments, strict=True)
    )
    leaf = np.array([layout.complete_leaves(length)])
    stated = float(layout.unit_std(leaf, weights)[0]) * widths[-1]
    before_last = layout.segments[-2].last
    outlook = layout.outlook(before_last)
    form = np.array(outlook.noise_form)
    assert form.shape == (len(widths),) * 2
    foreseen = outlook.noise_per_unit * float(np.sqrt(widths @ form @ widths))
    assert foreseen == pytest.approx(stated, rel=0.02)
    # One segment earlier the last two have one width.
    earlier = layout.outlook(layout.segments[-3].last)
    assert len(earlier.noise_form) == len(widths)
    assert layout.outlook(length).noise_form == ()
