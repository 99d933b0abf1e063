"""Thresholds: where to clip.  ``fixed``: declared; ``smooth``: the paper's way of learning it."""

from rillet.threshold.base import Range, Threshold
from rillet.threshold.fixed import FixedThreshold

__all__ = ["FixedThreshold", "Range", "Threshold"]
