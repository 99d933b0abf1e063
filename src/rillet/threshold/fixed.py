"""A clipping range that is declared, not learned."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from rillet.errors import ParameterError
from rillet.gather.grid import check_range
from rillet.noise import FloatArray, Secret
from rillet.privacy import Cost
from rillet.statistic import Range, Setting
from rillet.threshold.base import Look, Threshold


@dataclass(frozen=True)
class FixedThreshold(Threshold):
    """Clip at ``upper`` (default: the plan's own bound), known in advance.

    **Privacy.** Costs nothing: it is public.
    """

    upper: float | None = None
    name: ClassVar[str] = "fixed"
    learns: ClassVar[bool] = False
    hides_count: ClassVar[bool] = True

    def range_within(self, bounds: Range) -> Range:
        """The declared range, which must lie inside the public bounds."""
        if self.upper is None:
            return bounds
        check_range(bounds.lower, self.upper)
        if self.upper > bounds.upper:
            raise ParameterError("threshold", f"at most upper ({bounds.upper:g})", self.upper)
        return Range(bounds.lower, float(self.upper))

    def cost(self, budget: Fraction, delta: float) -> Cost:
        """Nothing."""
        return Cost()

    def measure(
        self,
        raw_values: FloatArray,
        bounds: Range,
        budget: Fraction,
        delta: float,
        secret: Secret,
        setting: Setting,
    ) -> Look:
        """Ignore the data."""
        return Look(
            0 if setting.hides_count else len(raw_values), point=self.range_within(bounds).upper
        )
