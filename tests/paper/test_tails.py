"""Light-tail diagnostics: right verdicts, at the stated rate of false alarms."""

import json

import numpy as np
import pytest
from scipy import stats

from rillet.errors import ParameterError
from rillet.paper.tails import check_tail, diagnose, quantile_curve

ALARM = 1e-6


def test_false_alarms_at_the_edge_of_the_definition():
    """An exponential law is the edge: 'heavier' in at most 1 % of samples."""
    generator = np.random.default_rng(1)
    runs, level = 400, 0.01
    alarms = sum(
        check_tail(generator.exponential(30.0, 10_000), 0.01).verdict == "heavier"
        for _ in range(runs)
    )
    assert stats.binom.sf(alarms - 1, runs, level) > ALARM


@pytest.mark.parametrize("unit", [0.02, 0.5])
def test_rounded_data_raise_no_more_alarms(unit):
    generator = np.random.default_rng(2)
    draws = (np.ceil(generator.exponential(1.0, 10_000) / unit) * unit for _ in range(300))
    alarms = sum(check_tail(values, 0.01).verdict == "heavier" for values in draws)
    assert stats.binom.sf(alarms - 1, 300, 0.01) > ALARM


@pytest.mark.parametrize("draw", ["gamma", "weibull", "uniform", "normal"])
def test_light_tails_are_called_light(draw):
    generator = np.random.default_rng(3)
    values = {
        "gamma": lambda: 2 + generator.gamma(2.6, 14.0, 100_000),
        "weibull": lambda: generator.weibull(1.5, 100_000),
        "uniform": lambda: generator.uniform(0, 7, 100_000),
        "normal": lambda: np.abs(generator.normal(size=100_000)),
    }[draw]()
    found = diagnose(values)
    assert found.check.light
    assert found.check.usable
    assert found.largest_quantile == 0.1
    assert "p_max = 0.1" in found.verdict()


@pytest.mark.parametrize("draw", ["pareto", "lognormal", "weibull", "second mode", "one outlier"])
def test_heavy_tails_are_called_heavy(draw):
    generator = np.random.default_rng(4)
    values = {
        "pareto": lambda: generator.pareto(2.0, 100_000),
        "lognormal": lambda: generator.lognormal(0, 1.5, 100_000),
        "weibull": lambda: generator.weibull(0.6, 100_000),
        "second mode": lambda: np.concatenate(
            (generator.uniform(0, 100, 99_800), generator.uniform(300, 301, 200))
        ),
        "one outlier": lambda: np.append(generator.uniform(0, 1, 100_000), 20.0),
    }[draw]()
    found = check_tail(values)
    assert found.verdict == "heavier"
    assert not found.usable
    assert "NOT light-tailed" in diagnose(values).verdict()


def test_a_tail_can_leave_the_definition_and_keep_the_bound():
    generator = np.random.default_rng(8)
    values = np.concatenate((generator.uniform(0, 100, 998_500), generator.uniform(170, 171, 1500)))
    found = check_tail(values, 0.02)
    assert found.verdict == "heavier"
    assert found.usable
    excess = sum(np.maximum(values - found.value, 0))
    allowed = found.value / -np.log(0.02) * (np.sqrt(0.02 * 1e6) + np.sqrt(np.log(50))) ** 2
    assert found.outlier_ratio >= excess / allowed * (1 - 1e-9)


def test_numbers_by_hand():
    values = np.arange(1.0, 10_001.0)
    found = check_tail(values, 0.005)
    # The smallest with at least 99.5 % at or below it.
    assert found.value == 9950
    assert found.above == 50
    gamma = -np.log(0.005) / 9950
    beyond = values[values > 9950]
    ratios = np.arange(50, 0, -1) / 10_000 / np.exp(-gamma * beyond)
    assert found.worst_ratio == pytest.approx(ratios.max())
    assert found.worst_at == beyond[np.argmax(ratios)]
    assert found.verdict == "light"
    # Moving the data and the lower bound together changes nothing but the place.
    moved = check_tail(values - 500, 0.005, lower=-500.0)
    assert moved.value == 9450
    assert moved.worst_ratio == pytest.approx(found.worst_ratio)


def test_curves_touch_the_data_where_they_start():
    generator = np.random.default_rng(5)
    values = 10 + generator.exponential(3.0, 200_000)
    curve = quantile_curve(values, 0.01, lower=10.0)
    assert curve.tail[0] == pytest.approx(0.01)
    assert curve.predicted[0] == curve.observed[0]
    assert curve.tail[-1] == pytest.approx(10 / 200_000)
    # For an exponential law both agree all along.
    assert curve.observed == pytest.approx(curve.predicted, rel=0.1)
    assert quantile_curve(generator.pareto(2.0, 200_000), 0.01).largest_excess > 1
    assert quantile_curve(generator.weibull(2.0, 200_000), 0.01).largest_excess < 0.01
    assert quantile_curve(values[:500], 0.01).tail == ()


def test_split_by_hour_and_weekday():
    generator = np.random.default_rng(6)
    count = 120_000
    hours, weekdays = np.arange(count) % 24, np.arange(count) // 24 % 7
    values = generator.exponential(10.0, count)
    night = hours == 3
    values[night] = generator.pareto(1.5, night.sum())
    found = diagnose(values, hours=hours, weekdays=np.where(weekdays == 6, -1, weekdays))
    assert len(found.by_hour) == 24
    assert found.by_hour["03:00"].verdict == "heavier"
    assert all(check.light for name, check in found.by_hour.items() if name != "03:00")
    assert next(iter(found.by_weekday)) == "Monday"
    assert "Sunday" not in found.by_weekday
    assert "By hour: heavier than exponential in 03:00" in found.verdict()
    with pytest.raises(ParameterError, match="hours"):
        diagnose(values, hours=hours[:-1])


def test_nothing_to_tell():
    for values in ([], [1.0] * 1000, np.arange(100.0), [np.nan, np.inf]):
        found = diagnose(values)
        assert found.check.verdict == "too few"
        assert found.largest_quantile is None
    assert diagnose([np.nan, 1.0, np.inf]).left_out == 2
    with pytest.raises(ParameterError, match="quantile"):
        diagnose([1.0], quantile=0.0)


def test_says_that_it_is_not_private():
    found = diagnose(np.random.default_rng(7).exponential(1.0, 10_000)).to_dict()
    assert found["private"] is False
    assert "NOT PRIVATE" in found["notice"]
    json.dumps(found)
