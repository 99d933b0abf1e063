"""Thresholds: where to clip.

``fixed``: declared; ``smooth``: the paper's way of learning it; ``exponential``: a quantile, pure ε
from few observations; ``tail``: noisy histograms at public times, the most accurate.
"""

from rillet.registry import Registry
from rillet.statistic import Range
from rillet.threshold.base import (
    Finding,
    Look,
    Outlook,
    Threshold,
)
from rillet.threshold.exponential import ExponentialQuantile
from rillet.threshold.fixed import FixedThreshold
from rillet.threshold.smooth import SmoothQuantile
from rillet.threshold.tail import TailHistogram

_OWN = (FixedThreshold, SmoothQuantile, ExponentialQuantile, TailHistogram)
THRESHOLDS = Registry("a threshold", "rillet.thresholds", {kind.name: kind for kind in _OWN})

__all__ = [
    "THRESHOLDS",
    "ExponentialQuantile",
    "Finding",
    "FixedThreshold",
    "Look",
    "Outlook",
    "Range",
    "SmoothQuantile",
    "TailHistogram",
    "Threshold",
]
