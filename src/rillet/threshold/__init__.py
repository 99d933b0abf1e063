"""Thresholds: where to clip.  ``fixed``: declared; ``smooth``: the paper's way of learning it."""

from rillet.threshold.base import Range, Threshold
from rillet.threshold.fixed import FixedThreshold
from rillet.threshold.smooth import SmoothQuantile

THRESHOLDS: dict[str, type[Threshold]] = {
    kind.name: kind for kind in (FixedThreshold, SmoothQuantile)
}

__all__ = ["THRESHOLDS", "FixedThreshold", "Range", "SmoothQuantile", "Threshold"]
