"""Thresholds: where to clip.

``fixed``: declared; ``smooth``: the paper's way of learning it; ``tail``: noisy histograms at
public times, the most accurate.
"""

from rillet.threshold.base import (
    Finding,
    Look,
    Outlook,
    Range,
    RefreshingThreshold,
    Threshold,
)
from rillet.threshold.fixed import FixedThreshold
from rillet.threshold.smooth import SmoothQuantile
from rillet.threshold.tail import TailHistogram

THRESHOLDS: dict[str, type[Threshold]] = {
    kind.name: kind for kind in (FixedThreshold, SmoothQuantile, TailHistogram)
}

__all__ = [
    "THRESHOLDS",
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
