"""Statistics: what is asked of a stream, with both ends: contribution and record."""

from rillet.registry import Registry
from rillet.statistic.base import Lattice, Leaf, Memory, Range, Setting, Statistic, Totals, Units
from rillet.statistic.running import Count, Mean, Running, Sum

STATISTICS = Registry(
    "a statistic", "rillet.statistics", {kind.name: kind for kind in (Mean, Sum, Count)}
)

__all__ = [
    "STATISTICS",
    "Count",
    "Lattice",
    "Leaf",
    "Mean",
    "Memory",
    "Range",
    "Running",
    "Setting",
    "Statistic",
    "Sum",
    "Totals",
    "Units",
]
