"""The paper's threshold: the λp-quantile with noise scaled to its smooth sensitivity.

``τ = x̂ + (κS/a)(Z + offset)``, multiplied by ``r`` and clipped to the public bounds (PAK, section
IV-C, equation for τ; the clipping of the first block and ``r`` in the noise scale are corrected in
:mod:`rillet.stream`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import LAWS, FloatArray, LawName, Secret, continuous_draw
from rillet.options import LARGEST, option
from rillet.precision import precision
from rillet.privacy import Cost, round_down
from rillet.statistic import Range, Setting
from rillet.threshold.base import Look, Threshold, clip_to_bounds, learned_range
from rillet.threshold.calibration import Calibration, Kind, calibrate
from rillet.threshold.smooth_sensitivity import quantile_rank, smooth_sensitivity


@dataclass(frozen=True)
class SmoothQuantile(Threshold):
    """Learn the threshold by smooth sensitivity of a quantile.

    **Privacy.** (ε₁, δ) for each of the ``lag`` observations, by the calibration named
    (docs/proofs/smooth.md).  Neighbours replace one observation.  Multiplying by ``multiplier``
    and landing on the public grid are post-processing.

    Parameters
    ----------
    quantile
        p: the share of values that may lie above the quantile.
    rank_factor
        λ ≤ 1: the quantile estimated is the λp-quantile, so that it is rarely below the p-quantile.
    multiplier
        r ≥ 1: a light tail has its p^r-quantile below r times its p-quantile.
    beta_lt
        Probability that the noise brings the threshold below the estimated quantile.
    calibration
        ``"exact"`` (default), ``"textbook"`` or ``"paper"``; ``"paper-mixed"`` is for tables only.
    law
        ``"laplace"`` or ``"gaussian"``.
    """

    quantile: float = option(
        "p, the share of values that may lie above the quantile", default=0.005, gt=0, le=0.5
    )
    rank_factor: float = option(
        "λ, below 1 so that the quantile is rarely too low", default=0.85, gt=0, le=1
    )
    multiplier: float = option(
        "r, by which the learned quantile is multiplied", default=1.0, ge=1, le=LARGEST
    )
    beta_lt: float = option(
        "β_lt, the probability that noise brings it below", default=0.004, gt=0, le=0.5
    )
    calibration: Kind = option("the constants of smooth sensitivity", default="exact")  # noqa: RUF009
    law: LawName = option("the law of the threshold's noise", default="laplace")  # noqa: RUF009
    name: ClassVar[str] = "smooth-quantile"

    def calibrated(self, budget: Fraction, delta: float) -> Calibration:
        """The constants a, b, offset and κ for this budget; refused where κ does not exist."""
        return calibrate(self.calibration, self.law, round_down(budget), delta, self.beta_lt)

    def cost(self, budget: Fraction, delta: float) -> Cost:
        """(ε₁, δ): smooth sensitivity is not pure."""
        if delta <= 0:
            raise ParameterError(
                "delta",
                "a positive delta, since smooth sensitivity is not pure",
                delta,
                hint="give delta a positive value, for example 2**-20, or use a fixed threshold",
            )
        self.calibrated(budget, delta).require_releasable()
        return Cost.approximate(budget, delta)

    @property
    def tail(self) -> Fraction:
        """λp, as the decimals that were typed."""
        return Fraction(repr(float(self.quantile))) * Fraction(repr(float(self.rank_factor)))

    def measure(
        self,
        raw_values: FloatArray,
        bounds: Range,
        budget: Fraction,
        delta: float,
        secret: Secret,
        setting: Setting,
    ) -> Look:
        """Release the upper end.  **Privacy.** (ε₁, δ) for each of the values."""
        drawn = self.draw(self.prepare(raw_values, bounds, budget, delta), secret)
        return Look(0 if setting.hides_count else len(raw_values), point=drawn.upper)

    def prepare(
        self, raw_values: FloatArray, bounds: Range, budget: Fraction, delta: float
    ) -> Unreleased:
        """All that comes before the noise: sorting, the quantile, its smooth sensitivity.

        **Privacy.** Touches raw data; the result is not private and stays inside the threshold.
        Simulations on public data prepare once and draw often.
        """
        constants = self.calibrated(budget, delta)
        constants.require_releasable()
        raw_sorted = np.sort(clip_to_bounds(raw_values, bounds))
        rank = quantile_rank(len(raw_sorted), self.tail)
        exact_scale = smooth_sensitivity(raw_sorted, rank, bounds.lower, bounds.upper, constants.b)
        return Unreleased(bounds, constants, float(raw_sorted[rank - 1]), exact_scale)

    def draw(self, unreleased: Unreleased, secret: Secret, index: int = 0) -> Range:
        """Add the noise and land on the public grid.

        **Privacy.** (ε₁, δ) for each of the values, once: a second draw, with another secret or
        another ``index``, would cost as much again.
        """
        noise = continuous_draw(LAWS[self.law], secret, ("threshold", self.name), index)
        bounds, constants = unreleased.bounds, unreleased.constants
        with precision(256) as mp:
            scale = mp.mpf(constants.kappa) * mp.mpf(unreleased.exact_sensitivity)
            scale /= mp.mpf(constants.a)
            released = mp.mpf(unreleased.exact_quantile) - mp.mpf(bounds.lower)
            released += scale * (noise + mp.mpf(constants.offset))
            released *= mp.mpf(self.multiplier)
        return learned_range(bounds, released)


@dataclass(frozen=True)
class Unreleased:
    """A quantile and its smooth sensitivity before the noise: private, never to be shown."""

    bounds: Range
    constants: Calibration
    exact_quantile: float = field(repr=False)
    exact_sensitivity: float = field(repr=False)
