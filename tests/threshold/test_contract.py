"""Every threshold that a plan can name keeps the contract."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rillet.gather.grid import Grid
from rillet.testing import check_threshold
from rillet.threshold import (
    THRESHOLDS,
    ExponentialQuantile,
    FixedThreshold,
    SmoothQuantile,
    TailHistogram,
)
from rillet.threshold.base import Range, clip_to_bounds

#: Besides each kind as it is by default.
MORE = [
    FixedThreshold(0.5),
    SmoothQuantile(quantile=0.05, multiplier=2.0, calibration="textbook"),
    SmoothQuantile(quantile=0.05, law="gaussian"),
    ExponentialQuantile(quantile=0.3, multiplier=3.0),
    TailHistogram(two_sided=False),
]
#: A bigger budget, so that the range learned is not simply the whole of the bounds.
OPTIONS: dict[str, Any] = {"budget": Fraction(2)}


@pytest.mark.parametrize(
    "threshold", [*(kind() for kind in THRESHOLDS.own.values()), *MORE], ids=repr
)
def test_the_contract_is_kept(threshold):
    check_threshold(threshold, **OPTIONS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 8.0), (-3.0, 5.0), (2.0, 10.0)])
def test_bounds_clip_as_the_lattice_does(lower, upper):
    """Every kind of NaN too, wherever it stands among the values; without a word about it."""
    bits = [0x7FF0000000000001, 0xFFF0000000000001, 0x7FF4DEAD00000000, 0x7FF8000000000000]
    nans = np.array([*bits, 0xFFFFFFFFFFFFFFFF], np.uint64).view(np.float64)
    numbers = [-np.inf, -1e308, lower, np.nextafter(lower, -9), 1.5, 4.25, upper, 11.0, np.inf]
    raw_values = np.concatenate([nans, numbers, nans[::-1], np.resize(nans, 32)])
    clipped = clip_to_bounds(raw_values, Range(lower, upper))
    grid = Grid(lower, upper, 2**20)
    assert np.array_equal(grid.quantise(clipped), grid.quantise(raw_values))
    assert clipped[: len(nans)].tolist() == [(lower + upper) / 2] * len(nans)
    assert clipped[len(nans) : len(nans) + len(numbers)].tolist() == [
        min(max(number, lower), upper) for number in numbers
    ]
