"""Statistics: what is asked of a stream, with both ends: contribution and record."""

from rillet.registry import Registry
from rillet.statistic.base import Lattice, Range, Statistic, Totals
from rillet.statistic.running import Mean, Running, Sum

STATISTICS = Registry("a statistic", "rillet.statistics", {kind.name: kind for kind in (Mean, Sum)})

__all__ = ["STATISTICS", "Lattice", "Mean", "Range", "Running", "Statistic", "Sum", "Totals"]
