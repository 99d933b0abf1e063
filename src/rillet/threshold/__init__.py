"""Thresholds: where to clip.  ``fixed``: declared; ``smooth``: the paper's way of learning it."""

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

THRESHOLDS: dict[str, type[Threshold]] = {
    kind.name: kind for kind in (FixedThreshold, SmoothQuantile)
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
    "Threshold",
]
