"""A quantile by the exponential mechanism: pure ε, and a tenth of the observations of ``smooth``.

Candidates lie on a public logarithmic grid over the bounds.  All of them count alike, so that an
empty gap under a generous bound weighs by its octaves and not by its length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import FloatArray, IntArray, Secret
from rillet.options import LARGEST, option
from rillet.privacy import Cost
from rillet.statistic import Range, Setting
from rillet.threshold.base import Look, Threshold, clip_to_bounds, learned_range
from rillet.threshold.rank import Cells, cells
from rillet.threshold.smooth_sensitivity import quantile_rank

#: Candidates in an octave, and octaves below the bound: fewer digits than the public grid has.
PER_OCTAVE: Final = 2**20
OCTAVES: Final = 34
CANDIDATES: Final = OCTAVES * PER_OCTAVE + 1
#: The sample supports a quantile with this many values above it, over ε₁.
_VALUES_ABOVE: Final = 40.0
#: Aim at this part of c/n values above the threshold: too low costs more than too high.
_AIM: Final = 0.8


def candidate(number: int) -> float:
    """Part of the public width: ``2^-34`` rising to 1, evenly within each octave.  Public."""
    octave, step = divmod(number, PER_OCTAVE)
    return math.ldexp(1.0 + step / PER_OCTAVE, octave - OCTAVES)


def cell_of(raw_part: FloatArray) -> IntArray:
    """Number of the smallest candidate that is not below each value.

    **Privacy.** Touches raw data; total for values from 0 to 1, and exact.
    """
    mantissa, exponent = np.frexp(np.clip(raw_part, 2.0**-OCTAVES, 1.0))
    steps = np.ceil((2.0 * mantissa - 1.0) * PER_OCTAVE).astype(np.int64)
    return steps + (exponent.astype(np.int64) - 1 + OCTAVES) * PER_OCTAVE


@dataclass(frozen=True)
class ExponentialQuantile(Threshold):
    """Learn the threshold by the exponential mechanism on a quantile, and extrapolate it.

    **Privacy.** Pure ε₁ for each of the ``lag`` observations, whatever δ
    (docs/proofs/exponential.md), whether neighbours replace one observation or add or remove it.
    Multiplying by ``multiplier`` and landing on the public grid are post-processing.

    Parameters
    ----------
    quantile
        p: the share of values above the quantile.  Ask for at least 40/ε₁ values above it, that is
        ``quantile * lag >= 40 / epsilon_1``; with fewer it may land in the gap under the bound.
    multiplier
        r ≥ 1: the threshold is r times the quantile.  An exponential tail has its p*-quantile at
        ``r = ln p*/ln p`` times its p-quantile; :meth:`extrapolated` chooses p and r.

    Examples
    --------
    >>> from rillet import Secret
    >>> raw_values = np.random.default_rng(1).exponential(20.0, 5000)
    >>> ExponentialQuantile(quantile=0.02).learn(
    ...     raw_values, Range(0.0, 3000.0), Fraction(1, 2), 0.0, Secret.for_tests(1)
    ... ).upper < 120
    True
    """

    quantile: float = option(default=0.02, gt=0, le=0.5)
    multiplier: float = option(default=1.0, ge=1, le=LARGEST)
    name: ClassVar[str] = "exponential-quantile"
    hides_count: ClassVar[bool] = True

    @classmethod
    def extrapolated(
        cls, *, lag: int, budget: float, length: int, noise_per_unit: float
    ) -> ExponentialQuantile:
        """The quantile that the sample supports, extrapolated to the one that suits the stream.

        With ``noise_per_unit`` the std of the last sum's noise per unit of threshold, the least
        error leaves about that number of values above the threshold; the tail is taken to be
        exponential.  ``budget`` is ε₁.  **Privacy.** Public numbers only.
        """
        for name, value in (("lag", lag), ("length", length), ("budget", budget)):
            if not value > 0:
                raise ParameterError(name, "a positive number", value)
        supported = min(0.5, _VALUES_ABOVE / (budget * lag))
        wanted = max(min(supported, _AIM * noise_per_unit / length), 1e-300)
        ratio = math.log(wanted) / math.log(supported)
        return cls(quantile=float(f"{supported:.4g}"), multiplier=float(f"{ratio:.4g}"))

    def cost(self, budget: Fraction, delta: float) -> Cost:
        """Pure ε₁, whatever δ."""
        return Cost.pure(budget)

    def measure(
        self,
        raw_values: FloatArray,
        bounds: Range,
        budget: Fraction,
        delta: float,
        secret: Secret,
        setting: Setting,
    ) -> Look:
        """Release the upper end.  **Privacy.** Pure ``budget`` for each of the values."""
        drawn = self.draw(self.prepare(raw_values, bounds), bounds, budget, secret)
        return Look(0 if setting.hides_count else len(raw_values), point=drawn.upper)

    def prepare(self, raw_values: FloatArray, bounds: Range) -> Cells:
        """All that comes before the draw: sorting, and the distance of every candidate.

        **Privacy.** Touches raw data; the result is not private and stays inside the threshold.
        Simulations on public data prepare once and draw often.
        """
        raw_height = clip_to_bounds(raw_values, bounds)
        raw_height -= bounds.lower
        raw_height /= bounds.width
        tail = Fraction(repr(float(self.quantile)))
        rank = quantile_rank(len(raw_height), tail) if len(raw_height) else 0
        return cells(cell_of(raw_height), CANDIDATES, rank)

    def draw(
        self, unreleased: Cells, bounds: Range, budget: Fraction, secret: Secret, index: int = 0
    ) -> Range:
        """Draw a candidate, extrapolate, land on the public grid.

        **Privacy.** Pure ``budget`` for each of the values, once; again for a second draw.
        """
        drawn = unreleased.draw(budget, secret, ("threshold", self.name), index)
        return learned_range(bounds, min(candidate(drawn) * self.multiplier, 1.0) * bounds.width)
