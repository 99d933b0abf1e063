"""Learning the threshold: what comes after the sort must not be felt."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from frame import Comparison, Contender
from rillet import Secret, SmoothQuantile, datasets
from rillet.threshold import Range
from rillet.threshold.smooth_sensitivity import quantile_rank, smooth_sensitivity

COUNT = 300_000


def bench_smooth_sensitivity() -> Comparison:
    """The sensitivity after the sort, beside the sort itself and learning as a whole."""
    minutes = datasets.trips(COUNT)
    in_order = np.sort(minutes)
    threshold, bounds, budget, delta = SmoothQuantile(), Range(0.0, 1440.0), Fraction(4, 5), 2**-20
    constants = threshold.calibrated(budget, delta)
    rank = quantile_rank(COUNT, threshold.tail)
    secret = Secret.generate()
    return Comparison(
        f"threshold from {COUNT:,} values",
        "call",
        [
            Contender(
                "rillet, smooth sensitivity",
                lambda: smooth_sensitivity(in_order, rank, 0.0, 1440.0, constants.b),
                1,
                within_nanoseconds=50e6,
            ),
            Contender("NumPy, sort", lambda: np.sort(minutes), 1),
            Contender(
                "rillet, sort, sensitivity, draw",
                lambda: threshold.learn(minutes, bounds, budget, delta, secret),
                1,
            ),
        ],
    )
