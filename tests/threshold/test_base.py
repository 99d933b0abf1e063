"""The ranges that thresholds may learn: a public grid, with a least width."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import ExponentialQuantile, FixedThreshold, SmoothQuantile, TailHistogram
from rillet.statistic import Range
from rillet.threshold.base import land_on_grid, learned_range, smallest_width
from rillet.threshold.centre import inner_point

OPEN = 2.0**64


@pytest.mark.parametrize(
    ("bounds", "width"),
    [
        (Range(0.0, 2.0**10), 2.0**-24),
        (Range(-(2.0**10), 2.0**10), 2.0**-23),
        (Range(0.0, OPEN), 2.0**-44),
        (Range(-OPEN, OPEN), 2.0**-44),
    ],
)
def test_a_learned_range_has_a_least_width(bounds, width):
    assert smallest_width(bounds) == width
    if bounds.lower == 0.0:
        assert learned_range(bounds, 0.0) == Range(0.0, width)
        assert learned_range(bounds, bounds.width * 2) == bounds


def test_a_learned_range_does_not_leave_the_bounds():
    for lower, upper in np.sort(np.random.default_rng(3).uniform(-1e3, 1e3, (400, 2))):
        bounds = Range(lower, upper)
        assert learned_range(bounds, bounds.width).upper <= upper


def test_a_bound_is_rounded_up_to_24_bits():
    assert land_on_grid(1.0, 8.0, 0.0) == 1.0
    assert land_on_grid(1.0 + 2.0**-30, 8.0, 0.0) == 1.0 + 2.0**-23
    assert land_on_grid(8.0 - 2.0**-30, 8.0, 0.0) == 8.0


def test_a_centre_has_a_step_of_room_on_both_sides():
    closed = Range(0.0, 2.0**34)
    assert [inner_point(closed, at) for at in (-1.0, 0.0, 2.0**34)] == [1.0, 1.0, 2.0**34 - 1]
    assert inner_point(Range(0.0, OPEN), 0.0) == 2.0**-44
    assert inner_point(Range(-OPEN, 0.0), 0.0) == -(2.0**-44)
    assert inner_point(Range(-OPEN, OPEN), 0.0) == 0.0


@pytest.mark.parametrize(
    ("threshold", "corrects", "hides_count"),
    [
        (FixedThreshold(), False, True),
        (SmoothQuantile(), False, False),
        (ExponentialQuantile(), False, True),
        (TailHistogram(), True, True),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_thresholds_say_of_themselves(threshold, corrects, hides_count):
    assert threshold.corrects is corrects
    assert threshold.hides_count is hides_count
    assert threshold.learns is (threshold.name != "fixed")
