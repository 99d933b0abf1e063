"""Thresholds: where to clip.

``fixed``: declared; ``smooth``: the paper's way of learning it; ``exponential``: a quantile, pure ε
from few observations; ``tail``: noisy histograms at public times, the most accurate.
"""

from rillet.threshold.base import (
    Finding,
    Look,
    Outlook,
    Range,
    RefreshingThreshold,
    Threshold,
)
from rillet.threshold.exponential import ExponentialQuantile
from rillet.threshold.fixed import FixedThreshold
from rillet.threshold.smooth import SmoothQuantile
from rillet.threshold.tail import TailHistogram

THRESHOLDS: dict[str, type[Threshold]] = {
    kind.name: kind for kind in (FixedThreshold, SmoothQuantile, ExponentialQuantile, TailHistogram)
}

__all__ = [
    "THRESHOLDS",
    "ExponentialQuantile",
    "Finding",
    "FixedThreshold",
    "Look",
    "Outlook",
    "Range",
    "RefreshingThreshold",
    "SmoothQuantile",
    "TailHistogram",
    "Threshold",
]
