"""The most accurate threshold here: noisy histograms at public times, and a model of the tail.

At the end of the opening, and again each time the stream has doubled, the counts of values on a
logarithmic grid are released with integer noise.  From all of them the next range is chosen, and
the mass that clipping removed is estimated and added back (:mod:`rillet.threshold.tail_model`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np

from rillet.errors import ParameterError
from rillet.noise import LAWS, FloatArray, IntArray, LatticeNoise, Secret
from rillet.privacy import Cost, laplace_scale
from rillet.threshold.base import (
    Finding,
    Look,
    Outlook,
    Range,
    RefreshingThreshold,
    clip_to_bounds,
    learned_range,
)
from rillet.threshold.tail_model import (
    CAUTIOUS_ALARM,
    KNOTS,
    Counts,
    choose_end,
    fit_tail,
    knots,
    removed_mass,
)

#: An observation is shared between the two knots around it in so many parts, so that the mean of
#: the counts is the mean of the values.
PARTS: Final = 256


@dataclass(frozen=True)
class TailHistogram(RefreshingThreshold):
    """Learn the range from noisy logarithmic histograms, at the opening and at public times after.

    **Privacy.** Replacing one observation moves a tally by at most ``2·PARTS`` in L1 and
    ``2·PARTS²`` in squared L2: an observation adds ``PARTS`` units to two neighbouring counts.  The
    opening's look is pure (Laplace); a later look takes its share of each observation's budget,
    and the running sum the rest.  Choosing the range and adding mass back see released counts only.

    Parameters
    ----------
    growth
        The range is learned again each time the stream has grown by this factor; None: never.
    share
        Share of the budget (of μ², or of ε) that an observation of the last epoch gives to its
        look; earlier epochs, which are shorter, give proportionally more, up to 0.36.
    """

    growth: float | None = 2.0
    share: float = 0.05
    name: ClassVar[str] = "tail-histogram"
    corrects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.growth is not None and not 1.5 <= self.growth <= 1000:
            raise ParameterError("growth", "a factor from 1.5 to 1000, or None", self.growth)
        if not 0 < self.share <= 0.36:
            raise ParameterError("share", "a share above 0 and at most 0.36", self.share)

    # --- public schedule -------------------------------------------------------------------------

    def epoch_ends(self, lag: int, length: int, every: int) -> tuple[int, ...]:
        """``length`` and what dividing it by ``growth`` gives, down to 1.5 lags."""
        ends = [length]
        while self.growth is not None:
            earlier = lag + int(ends[-1] / self.growth - lag) // every * every
            if earlier < 0.75 * self.growth * lag or earlier <= lag or earlier >= ends[-1]:
                break
            ends.append(earlier)
        return tuple(reversed(ends))

    def look_share(self, end: int, length: int) -> Fraction:
        """``share·length/end``, at most 0.36; none where the range is never learned again."""
        if self.growth is None:
            return Fraction(0)
        return min(Fraction("0.36"), Fraction(repr(self.share)) * Fraction(length, end))

    # --- counting --------------------------------------------------------------------------------

    def tally(self, raw_values: FloatArray, bounds: Range) -> IntArray:
        """Counts on the logarithmic grid, in parts.  **Privacy.** Touches raw data; total."""
        raw_height = clip_to_bounds(raw_values, bounds)
        raw_height -= bounds.lower
        places = knots(bounds.width)
        index = np.searchsorted(places, raw_height, side="right") - 1
        np.clip(index, 0, KNOTS - 2, out=index)
        raw_height -= places[index]
        raw_height *= (PARTS / np.diff(places))[index]
        upper_parts = np.clip(np.rint(raw_height), 0, PARTS)
        counts = np.bincount(index, PARTS - upper_parts, KNOTS)
        counts += np.bincount(index + 1, upper_parts, KNOTS)
        return counts.astype(np.int64)

    def tally_sensitivity(self, law: str) -> Fraction:
        """``2·PARTS``, or ``2·PARTS²`` for Gaussian noise."""
        return Fraction(2 * PARTS if law == "laplace" else 2 * PARTS**2)

    # --- deciding --------------------------------------------------------------------------------

    def cost(self, budget: Fraction, delta: float) -> Cost:
        """Pure ε₁, whatever δ."""
        return Cost.pure(budget)

    def learn(
        self, raw_values: FloatArray, bounds: Range, budget: Fraction, delta: float, secret: Secret
    ) -> Range:
        """One look and no more.  **Privacy.** Pure ``budget`` for each of the values."""
        scale = laplace_scale(self.tally_sensitivity("laplace"), budget)
        noise = LatticeNoise(LAWS["laplace"], scale, secret, ("threshold", self.name))
        noisy = self.tally(raw_values, bounds) + noise.draw(0, KNOTS)
        count = max(1, len(raw_values))
        alone = Outlook(length=count, after=count, until=count, noise_per_unit=10.0)
        return self.judge(bounds, (Look(noisy, count, scale, "laplace"),), (), alone).range

    def judge(
        self,
        bounds: Range,
        looks: tuple[Look, ...],
        ranges: tuple[Range, ...],
        outlook: Outlook,
    ) -> Finding:
        """The next range, and what clipping removes.  **Privacy.** Post-processing."""
        width = bounds.width
        counts = [
            Counts(look.noisy / PARTS, look.observations, look.scale / PARTS, look.law == "laplace")
            for look in looks
        ]
        if ranges and outlook.after >= outlook.length:
            learned = ranges[-1]  # nothing is left to clip: the last look only corrects
        else:
            end = choose_end(
                fit_tail(counts, width),
                length=outlook.length,
                epoch=outlook.until - outlook.after,
                noise_per_unit=outlook.noise_per_unit,
                past=[kept.width for kept in ranges],
                final=outlook.until >= outlook.length,
            )
            learned = learned_range(bounds, end)
        in_force = [learned] if not ranges else [ranges[0], *ranges]
        careful = fit_tail(counts, width, CAUTIOUS_ALARM)
        ends = [kept.width for kept in in_force[: len(looks)]]
        return Finding(
            range=learned,
            removed=removed_mass(counts, ends, width),
            removed_each=careful.mean_clipped(learned.width),
            clipped_share=careful.clipped_share(learned.width),
        )
