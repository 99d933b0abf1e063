"""The most accurate threshold here: noisy histograms at public times, and a model of the tail.

At the end of the warm-up, and again each time the stream has doubled, the counts of values on a
logarithmic grid are released with integer noise.  From all of them the next range is chosen, and
the mass that clipping removed is estimated and added back (:mod:`rillet.threshold.tail_model`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np

from rillet.noise import LAWS, FloatArray, IntArray, LatticeNoise, Secret
from rillet.options import option
from rillet.privacy import Cost, laplace_scale
from rillet.statistic import EXACT, OPEN_END, Margin, Range, Setting
from rillet.threshold.base import (
    LOOKS_KEPT,
    Finding,
    Look,
    Outlook,
    Threshold,
    clip_to_bounds,
    learned_range,
    smallest_width,
)
from rillet.threshold.centre import (
    find_centre,
    inner_point,
    knots_around,
    octaves_of,
    precision,
    range_around,
    side_widths,
)
from rillet.threshold.tail_model import (
    EMPTY_ALARM,
    FALSE_ALARM,
    LOST,
    Counts,
    Tail,
    changes_alone,
    choose_end,
    counted_margin,
    counted_rate_margin,
    differ,
    fit_tail,
    hides,
    holds_data,
    knots,
    pool,
    removed_mass,
)

#: An observation is shared between the two knots around it in this many parts, so that the mean
#: of the counts is the mean of the values.
PARTS: Final = 256
#: Of the warm-up's budget, for the centre of a range with two sides.
CENTRE_SHARE: Final = Fraction("0.25")
#: Where the first look is counts with Gaussian noise: what each round costs of all of them.  Counts
#: from the lower bound tell a level to 25 %, counts around that level to 25 % of the rest.
CENTRE_ROUNDS: Final = (Fraction("0.1"), Fraction("0.15"), Fraction("0.75"))
#: By how much a stream may grow before the range is learned again.
LEAST_GROWTH: Final = 1.5
MOST_GROWTH: Final = 1000
#: A count of so many deviations is no noise, where a median is read off counts.
_SURE: Final = 4.0
#: A statistic that forgets goes by so many more looks where their counts say too little: until the
#: noise of a rate is so small that half of the values, on one side of a median, cannot hide in it.
_MOST_LOOKS: Final = 64
_TELLS: Final = 0.016


@dataclass(frozen=True)
class TailHistogram(Threshold):
    """Learn the range from noisy logarithmic histograms, in the warm-up and at public times after.

    **Privacy.** An observation adds ``PARTS`` units to two neighbouring counts: adding or removing
    one moves them by ``PARTS`` in L1 and at most ``PARTS²`` in squared L2, replacing one by twice
    that.  The
    warm-up's look is pure (Laplace); a later look takes its share of each observation's budget,
    and the running sum the rest.  Choosing the range and adding mass back see released counts only.

    Parameters
    ----------
    growth
        The range is learned again each time the stream has grown by this factor; None: never.
    share
        Share of the budget (of μ², or of ε) that an observation of the last segment gives to its
        look; earlier segments, which are shorter, give proportionally more, up to 0.36.  The
        automatic threshold takes 0.04 to 0.12, the less the longer the stream is, where the noise
        is Gaussian and the number of observations known.
    two_sided
        Learn a lower end as well, for values that do not start at the lower bound (1000 ± 10 in
        [0, 3000]): a quarter of the warm-up's budget finds a private median, and the histograms are
        taken on both sides of it.  Without it the range begins at the lower bound.
    """

    growth: float | None = option(default=2.0, ge=LEAST_GROWTH, le=MOST_GROWTH)
    share: float = option(default=0.06, gt=0, le=0.36)
    two_sided: bool = True
    name: ClassVar[str] = "tail-histogram"
    corrects: ClassVar[bool] = True
    version: ClassVar[int] = 9
    hides_count: ClassVar[bool] = True

    @property
    def first_counts(self) -> tuple[Fraction, ...]:
        """One round; with two sides two before it, each around the last one's median."""
        return CENTRE_ROUNDS if self.two_sided else CENTRE_ROUNDS[-1:]

    # --- public schedule -------------------------------------------------------------------------

    def segment_ends(self, lag: int, length: int, every: int) -> tuple[int, ...]:
        """``length``, ``length/√growth`` and what dividing by ``growth`` gives, down to 1.5 lags.

        The last segment is the shorter one: the range in force at the end has seen most of the
        stream, and a late change of level is noticed sooner.
        """
        ends = [length]
        wanted = length / math.sqrt(self.growth or math.inf)
        while True:
            end = lag + int(wanted - lag) // every * every
            if self.growth is None or end < 0.75 * self.growth * lag or not lag < end < ends[-1]:
                return tuple(reversed(ends))
            ends.append(end)
            wanted /= self.growth

    def look_share(self, end: int, length: int) -> Fraction:
        """``share·length/end``, at most 0.36; none where the range is never learned again."""
        if self.growth is None:
            return Fraction(0)
        return min(Fraction("0.36"), Fraction(repr(self.share)) * Fraction(length, end))

    # --- counting --------------------------------------------------------------------------------

    @staticmethod
    def places(bounds: Range, centre: float | None) -> FloatArray:
        """The knots, from the lower bound or from the centre."""
        if centre is None:
            return knots(bounds.width, octaves_of(bounds))
        return knots_around(bounds, centre)

    def count(self, raw_values: FloatArray, bounds: Range, centre: float | None) -> IntArray:
        """Counts on the logarithmic grid, in parts.  **Privacy.** Touches raw data; total."""
        centre = _around(bounds, centre)
        raw_height = clip_to_bounds(raw_values, bounds)
        raw_height -= bounds.lower if centre is None else centre
        at = self.places(bounds, centre)
        size = len(at)
        index = np.searchsorted(at, raw_height, side="right") - 1
        np.clip(index, 0, size - 2, out=index)
        raw_height -= at[index]
        raw_height *= (PARTS / np.diff(at))[index]
        upper_parts = np.clip(np.rint(raw_height), 0, PARTS)
        counts = np.bincount(index, PARTS - upper_parts, size)
        counts += np.bincount(index + 1, upper_parts, size)
        return counts.astype(np.int64)

    def count_sensitivity(self, law: str, *, added: bool = False) -> Fraction:
        """``PARTS``, or ``PARTS²`` for Gaussian noise, for each observation that changes."""
        return Fraction((1 if added else 2) * (PARTS if law == "laplace" else PARTS**2))

    # --- deciding --------------------------------------------------------------------------------

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
        """Noisy counts of the warm-up, around a private median where the range has two sides.

        **Privacy.** Pure ``budget`` for each of the values.
        """
        centre = None
        if self.two_sided:
            share = budget * CENTRE_SHARE
            centre = find_centre(raw_values, bounds, share, secret, added=setting.by_clock)
        exact_counts = self.count(raw_values, bounds, centre)
        observations = None if setting.hides_count else len(raw_values)
        return self.first_look(
            exact_counts, observations, budget, secret, centre, added=setting.by_clock
        )

    def first_look(
        self,
        exact_counts: IntArray,
        observations: int | None,
        budget: Fraction,
        secret: Secret,
        centre: float | None = None,
        *,
        added: bool = False,
    ) -> Look:
        """The first look from counts: simulations on public data count once and draw often.

        ``observations`` is None where their number is protected: then the noisy counts tell.

        **Privacy.** With the centre, pure ``budget`` for each of the values.
        """
        left = budget if centre is None else budget * (1 - CENTRE_SHARE)
        scale = laplace_scale(self.count_sensitivity("laplace", added=added), left)
        noise = LatticeNoise(LAWS["laplace"], scale, secret, ("threshold", self.name))
        noisy = exact_counts + noise.draw(0, len(exact_counts))
        if observations is None:
            observations = self.observed(noisy)
        return Look(observations, noisy, scale, "laplace", centre)

    def observed(self, noisy: IntArray) -> int:
        """The sum of the counts."""
        return max(1, round(int(noisy.sum()) / PARTS))

    def centre_of(self, bounds: Range, look: Look) -> float:
        """The median of the counts that are no noise, or of the highest."""
        centre = _around(bounds, look.centre)
        places = self.places(bounds, centre)
        std = look.scale * (math.sqrt(2.0) if look.law == "laplace" else 1.0)
        counts = np.where(look.noisy > _SURE * std, look.noisy, 0)
        if not counts.any():
            counts[np.argmax(look.noisy)] = 1
        half = np.searchsorted(np.cumsum(counts), counts.sum() / 2)
        origin = bounds.lower if centre is None else centre
        return inner_point(bounds, origin + float(places[half]))

    def looks_kept(self, looks: tuple[Look, ...]) -> int:
        """The last sixteen; up to 64 where those are of few values each, and say too little.

        Unless the stream has changed: where the earlier ones contradict the last sixteen.
        """
        counts = _counts(looks[-_MOST_LOOKS:])
        known, number = 0.0, len(counts)
        for place, look in enumerate(reversed(counts), 1):
            known += look.observations**2 / look.variance if look.variance else math.inf
            if place >= LOOKS_KEPT and known * _TELLS**2 >= 1.0:
                number = place
                break
        if number > LOOKS_KEPT and differ(counts[:-LOOKS_KEPT], counts[-LOOKS_KEPT:]):
            number = LOOKS_KEPT
        return max(number, LOOKS_KEPT)

    def judge(
        self,
        bounds: Range,
        looks: tuple[Look, ...],
        ranges: tuple[Range, ...],
        outlook: Outlook,
    ) -> Finding:
        """The next range, and what clipping removes.  **Privacy.** Post-processing."""
        centre = looks[0].centre
        sides = _sides(bounds, looks, centre)
        values = 1.0 if centre is None else 0.5
        if outlook.forgets:
            sides = [_if_told(side, values) for side in sides]
        first = len(looks) == 1
        tails = [fit_tail(side.counts, side.width, outlook, values, first=first) for side in sides]
        if ranges and outlook.after >= outlook.length:
            learned = ranges[-1]  # nothing is left to clip: the last look only corrects
        else:
            felt = ranges[-1:] if outlook.forgets else ranges
            past = [kept.width / bounds.width for kept in felt]
            ends = _choose_ends(tails, outlook, past)
            if outlook.forgets:
                ends = _no_lower(ends, sides, tails, ranges, values)
            if centre is None:
                learned = learned_range(bounds, ends[0] * bounds.width)
            else:
                learned = range_around(bounds, centre, *ends)
        in_force = [learned] if not ranges else [ranges[0], *ranges]
        removed = removed_each = share = 0.0
        margins, margins_each = [], []
        # Where no count stands out, no tail can be assumed either: noise may hide any.  A statistic
        # that forgets has few counts for ever, so that this is to be said of each side.
        all_empty = all(tail.is_empty for tail in tails)
        for side, tail in zip(sides, tails, strict=True):
            hidden = tail.is_empty if outlook.forgets else all_empty
            assumes = outlook.assumes and not hidden
            kept_ends = [side.end_of(kept) for kept in in_force[: len(looks)]]
            last = side.end_of(learned)
            each = tail.mean_clipped(last)
            margin_each = tail.margin(last, each)
            if not assumes:
                margin_each = counted_rate_margin(side.released, last, side.width, each)
            if not outlook.forgets:
                mass, margin = removed_mass(
                    side.counts, kept_ends, side.width, tail, outlook, values
                )
                if not assumes:
                    margin = counted_margin(side.released, kept_ends, side.width, mass)
                removed += side.sign * mass
                margins.append(margin)
            removed_each += side.sign * each
            share += tail.clipped_share(last)
            margins_each.append(margin_each)
        observations = sum(max(1, look.observations) for look in looks)
        return Finding(
            range=learned,
            removed=removed * bounds.width,
            removed_each=removed_each * bounds.width,
            clipped_share=min(share, 1.0),
            margin=_of_sides(margins or [EXACT], bounds.width, observations),
            margin_each=_of_sides(margins_each, bounds.width, 1),
        )


def _around(bounds: Range, centre: float | None) -> float | None:
    """What counts are taken around: without a centre and a lower bound, where the range begins."""
    return bounds.origin if centre is None and bounds.lower == -OPEN_END else centre


@dataclass(frozen=True, eq=False)
class _Side:
    """What lies on one side of the centre (or above the lower bound), as parts of the bounds.

    Clipping on the upper side takes mass away, on the lower side it adds some: ``sign``.
    """

    sign: int
    bounds: Range
    origin: float
    width: float
    counts: list[Counts]
    #: The counts as they were released, also on a side that seems to be empty.
    released: list[Counts]

    def end_of(self, kept: Range) -> float:
        """How far a range reaches on this side."""
        end = kept.upper if self.sign > 0 else kept.lower
        return max(self.sign * (end - self.origin), smallest_width(self.bounds)) / self.bounds.width


def _counts(looks: tuple[Look, ...]) -> list[Counts]:
    """Released counts in observations."""
    return [
        Counts(
            look.noisy / PARTS, max(1, look.observations), look.scale / PARTS, look.law == "laplace"
        )
        for look in looks
    ]


def _sides(bounds: Range, looks: tuple[Look, ...], centre: float | None) -> list[_Side]:
    counts = _counts(looks)
    if centre is None:
        return [_Side(1, bounds, bounds.lower, 1.0, counts, counts)]
    middle = len(counts[0].values) // 2
    released = (
        [replace(look, values=look.values[middle:]) for look in counts],
        [replace(look, values=look.values[middle::-1]) for look in counts],
    )
    widths = [room / bounds.width for room in side_widths(bounds, centre)]
    # Values that are equal to the centre belong to both sides, and are not what is looked for here.
    step = precision(bounds, centre) / bounds.width
    octaves = octaves_of(bounds)
    equal = [int(np.searchsorted(knots(width, octaves), step, side="right")) for width in widths]
    at_centre = [look.values[middle - equal[1] + 1 : middle + equal[0]].sum() for look in counts]
    sides = [
        [_gathered(*look, first) for look in zip(side, at_centre, strict=True)]
        for side, first in zip(released, equal, strict=True)
    ]
    beside = [
        pool([replace(look, values=look.values[first:]) for look in side])
        for side, first in zip(released, equal, strict=True)
    ]
    level = pool(sides[0])
    filled = [holds_data(side, level.rates[0]) for side in beside]
    if not any(filled) and not bounds.is_open:  # there a range that reaches for noise has no end
        filled = [holds_data(side, level.rates[0], alone=True) for side in beside]
    if any(filled) or level.rates[0] > level.exceedance(-math.log(FALSE_ALARM), sum(equal) - 1):
        sides = [side if full else _emptied(side) for side, full in zip(sides, filled, strict=True)]
    return [
        _Side(sign, bounds, centre, width, side, counted)
        for sign, width, side, counted in zip((1, -1), widths, sides, released, strict=True)
    ]


def _gathered(look: Counts, at_centre: float, first: int) -> Counts:
    """A side with all that is equal to the centre on its first knot."""
    values = look.values.copy()
    values[:first] = 0.0
    values[0] = at_centre
    return replace(look, values=values)


def _emptied(side: list[Counts]) -> list[Counts]:
    """A side that holds next to nothing: what it seems to hold is noise."""
    at_centre = np.eye(1, len(side[0].values))[0]
    return [replace(look, values=look.observations * at_centre) for look in side]


def _of_sides(margins: list[Margin], width: float, observations: int) -> Margin:
    """The margin of an observation; what the lower side takes away less is a larger mean."""
    below, above, variance = margins[0]
    for less in margins[1:]:
        below, above = math.hypot(below, less.above), math.hypot(above, less.below)
        variance += less.variance
    unit = width / observations
    return Margin(below * unit, above * unit, variance * width * unit)


def _if_told(side: _Side, share: float) -> _Side:
    """The side as it is, or without counts where noise is more than all of them together."""
    lost = hides(share, pool(side.released), LOST)
    return replace(side, counts=_emptied(side.counts)) if lost else side


def _no_lower(
    ends: list[float],
    sides: list[_Side],
    tails: list[Tail],
    ranges: tuple[Range, ...],
    share: float,
) -> list[float]:
    """Ends that stay where they were on a side of which the counts do not tell what it holds.

    Few observations may be lost in noise altogether; an end at the centre would clip all of a
    side, and say nothing of it.  Before there is any range, a declared bound is the end.
    """
    kept = list(ends)
    for number, (side, tail) in enumerate(zip(sides, tails, strict=True)):
        if tail.is_empty and hides(share / 2, pool(side.released), EMPTY_ALARM):
            if ranges:
                kept[number] = max(ends[number], side.end_of(ranges[-1]))
            elif not side.bounds.is_open:
                kept[number] = side.width
    return kept


def _choose_ends(tails: list[Tail], outlook: Outlook, past: list[float]) -> list[float]:
    """An end for each side, each in view of the other: the noise is scaled to both together."""
    ends = [0.0] * len(tails)
    form = np.array(outlook.noise_form)
    if not outlook.noise_form:
        form = changes_alone(len(past) + 1 + (outlook.until < outlook.length))
    for number in (0,) if len(tails) == 1 else (0, 1, 0):
        ends[number] = choose_end(
            tails[number],
            length=outlook.length,
            segment=outlook.until - outlook.after,
            noise_per_unit=outlook.noise_per_unit,
            past=past,
            form=form,
            beside=sum(ends) - ends[number],
        )
    return ends
