"""Statistics: what is asked of a stream, with both ends: contribution and record."""

from rillet.registry import Registry
from rillet.statistic.base import (
    DEVIATIONS,
    EXACT,
    OPEN_END,
    Lattice,
    Leaf,
    Margin,
    Memory,
    Range,
    Setting,
    Statistic,
    Totals,
    Units,
)
from rillet.statistic.counts import Histogram, Quantile
from rillet.statistic.running import Count, Mean, Running, Share, Sum
from rillet.statistic.several import Several

STATISTICS = Registry(
    "a statistic",
    "rillet.statistics",
    {kind.name: kind for kind in (Mean, Sum, Count, Share, Histogram, Quantile)},
)

__all__ = [
    "DEVIATIONS",
    "EXACT",
    "OPEN_END",
    "STATISTICS",
    "Count",
    "Histogram",
    "Lattice",
    "Leaf",
    "Margin",
    "Mean",
    "Memory",
    "Quantile",
    "Range",
    "Running",
    "Setting",
    "Several",
    "Share",
    "Statistic",
    "Sum",
    "Totals",
    "Units",
]
