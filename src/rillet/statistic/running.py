"""Running sums and means of clipped values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rillet.statistic.base import FloatArray, IntArray, Lattice, Statistic, Totals


class Running(Statistic):
    """One column: the clipped value in lattice steps.

    **Privacy.** Replacing an observation moves its leaf by at most ``steps``.
    """

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        """The value, clipped and rounded to the lattice."""
        return lattice.quantise(raw_values)

    def contributor(self, lattice: Lattice) -> Callable[[float], int]:
        """The same for one value at a time."""
        return lattice.quantise_one

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The sum, and the mean over the public number of observations."""
        count, (total,), (width,) = totals.count, totals.sums, totals.widths
        return {
            "sum": lambda: total,
            "sum_noise_std": lambda: totals.unit_stds()[0] * width,
            "mean": lambda: total / count,
            "mean_noise_std": lambda: totals.unit_stds()[0] * width / count,
            "count": lambda: count * 1.0,
            "count_noise_std": lambda: count * 0.0,
        }


@dataclass(frozen=True)
class Mean(Running):
    """The running average: noisy sum divided by the public number of observations."""

    name: ClassVar[str] = "mean"

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The value is the mean."""
        known = super().numbers(totals)
        return {"value": known["mean"], "noise_std": known["mean_noise_std"], **known}


@dataclass(frozen=True)
class Sum(Running):
    """The running sum."""

    name: ClassVar[str] = "sum"

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The value is the sum."""
        known = super().numbers(totals)
        return {"value": known["sum"], "noise_std": known["sum_noise_std"], **known}
