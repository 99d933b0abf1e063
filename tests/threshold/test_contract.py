"""Every threshold that a plan can name keeps the contract."""

from fractions import Fraction
from typing import Any

import pytest

from rillet.testing import check_threshold
from rillet.threshold import (
    THRESHOLDS,
    ExponentialQuantile,
    FixedThreshold,
    SmoothQuantile,
    TailHistogram,
)

#: Besides each kind as it is by default.
MORE = [
    FixedThreshold(0.5),
    SmoothQuantile(quantile=0.05, multiplier=2.0, calibration="textbook"),
    SmoothQuantile(quantile=0.05, law="gaussian"),
    ExponentialQuantile(quantile=0.3, multiplier=3.0),
    TailHistogram(two_sided=True),
]
#: A bigger budget, so that the range learned is not simply the whole of the bounds.
OPTIONS: dict[str, Any] = {"budget": Fraction(2)}


@pytest.mark.parametrize("threshold", [*(kind() for kind in THRESHOLDS.values()), *MORE], ids=repr)
def test_the_contract_is_kept(threshold):
    check_threshold(threshold, **OPTIONS)
