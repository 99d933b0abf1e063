"""What statistics say of themselves, and the ranges that they are taken in."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import Count, Histogram, Mean, ParameterError, Quantile, Share, Sum
from rillet.gather.grid import Grid
from rillet.statistic import Memory, Range, Setting, Several

BINS = (0.0, 10.0, 50.0)


@pytest.mark.parametrize(
    ("statistic", "names", "kinds", "clips"),
    [
        (Sum(), ("sum",), ("sum",), True),
        (Mean(), ("mean",), ("mean",), True),
        (Count(), ("count",), ("count",), False),
        (Share(above=20.0), ("above 20",), ("mean",), False),
        (
            Histogram(bins=BINS),
            ("up to 0", "0 to 10", "10 to 50", "above 50"),
            ("count",) * 4,
            False,
        ),
        (Quantile(0.5, 0.9, bins=BINS), ("0.5", "0.9"), ("other",) * 2, False),
        (
            Several((Mean(share=0.5), Share(above=20.0))),
            ("mean", "above 20"),
            ("mean", "mean"),
            True,
        ),
        (
            Several((Count(share=0.5), Share(above=20.0))),
            ("count", "above 20"),
            ("count", "mean"),
            False,
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_names_and_kinds_of_numbers(statistic, names, kinds, clips):
    assert statistic.names == names
    assert statistic.kinds == kinds
    assert statistic.clips is clips
    assert statistic.clipping_moves is clips


@pytest.mark.parametrize("by_clock", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_who_may_know_how_many_values_there_are(by_clock, missing):
    assert Setting(by_clock=by_clock, missing=missing).hides_count is (by_clock or missing)


def test_what_of_the_past_counts():
    assert not Memory().forgets
    assert Memory(window=7).forgets
    assert Memory(window=7).span == 7
    assert Memory(half_life=2.5).forgets
    assert Memory(half_life=2.5).span == 8


def test_an_open_range_ends_at_2_to_the_64():
    assert Range(-3.0, 2.0**64).is_open
    assert not Range(-3.0, 2.0**63).is_open
    assert Range(-3.0, 2.0**64).origin == -3.0
    assert Range(-(2.0**64), 5.0).origin == 5.0
    assert Range(-(2.0**64), 2.0**64).origin == 0.0


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("missing", [False, True])
def test_the_typical_noise_is_that_of_all_readings(law, missing):
    leaf = Quantile(0.5, bins=(0.0, 10.0, 20.0, 50.0)).leaf(Setting(missing=missing, law=law))
    steps = 2**20
    units = np.array(leaf.units(Grid(0.0, 100.0, steps, 1))) * steps
    variances = [sum(unit**2 for unit in reading) for reading in units]
    assert leaf.typical_factor**2 == pytest.approx(np.mean(variances))


@pytest.mark.parametrize("wrong", [{"window": 0}, {"half_life": 0}, {"window": -1}], ids=str)
@pytest.mark.parametrize("kind", [Mean, Sum, Count])
def test_there_is_no_memory_of_nothing(kind, wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        kind(**wrong)
    kind(**dict.fromkeys(wrong, 1))


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("hidden", [False, True])
def test_the_last_of_cumulated_counts_is_that_of_all_where_it_is_hidden(hidden, law):
    leaf = Quantile(0.5, bins=(0.0, 10.0, 50.0)).leaf(Setting(missing=hidden, law=law))
    assert leaf.readings == (4 if hidden else 3)
    assert leaf.count_reading == (3 if hidden else None)
    assert Histogram(bins=BINS).leaf(Setting(missing=hidden, law=law)).count_reading is None
