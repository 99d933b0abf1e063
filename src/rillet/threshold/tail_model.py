"""What noisy counts on a logarithmic grid say about the tail, and the range that suits it best.

A *look* is a released histogram on knots ``width·2^(−k/3)``.  All looks are pooled, the highest
knot that surely holds data is found, and above a start knot a family of tails (from nearly a power
law to a group that ends at a point) is weighed by how well it explains all counts from there on.
A tail may also start later, with a second group, and one that no count tells from noise may lie
above all of them.  The range is the one with the least expected error over that family, relative to
the best that each tail allows, and what is added back is the mean over it, in which tails count the
more, the less error they allow.

**Privacy.** Post-processing of released counts; constants here govern accuracy only.  They were
chosen on synthetic streams, from what they mean, and hold for every stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, ndtri

from rillet.noise import FloatArray
from rillet.statistic import DEVIATIONS, Margin
from rillet.threshold.base import Outlook

#: Knots in an octave, and octaves below the bound: the smallest range is 2^-40 of the bound.  Each
#: count has noise of its own: with more of them a few values stand out of it less.
PER_OCTAVE: Final = 3
OCTAVES: Final = 40
#: The same where no bound is declared: from 2^64 down to 2^-44.
OPEN_OCTAVES: Final = 108

#: A tail is fitted from at most ``_DOWN`` knots below the top one: those above it, however far, say
#: how heavy it can be.
_DOWN: Final = round(1.2 * PER_OCTAVE)
#: Points between two knots at which a range may end.
_FINE: Final = 6
#: How far above the start a fitted tail is followed, in octaves.
_REACH: Final = 14
#: Real tails are not exactly in the family: each count is trusted to 10 % at best.
_MISFIT: Final = 0.1
#: Chance that an empty knot next to the bulk is taken for data.  Falls with the cube of the
#: distance, since a false alarm far out costs in proportion to it.
FALSE_ALARM: Final = 1e-5
#: Chance that a side on which many values must lie is taken for empty.
LOST: Final = 1e-2
_STEEPNESS: Final = 3.0
#: So many neighbouring knots are looked at together.
_RUNS: Final = (1, 2, 4)
_HIGHEST_LEVEL: Final = 30.0
#: Tails P(x > s·u) = exp(−(u^shape − 1)/(shape·length)); shape 1 is exponential.
#: Closer around it, where most values are; counts tell neighbours apart on long streams.
_SHAPES: Final = (0.0625, 0.125, 0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 8.0)
#: How likely they are where nothing is known of the values before, as of a second group.
_SHAPE_PRIOR: Final = (0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
_LENGTHS: Final = 2.0 ** np.arange(-7.0, 1.01, 0.25)
#: A group that ends: a tail of this shape, which falls at one of these multiples of the start.
_ENDING: Final = 16.0
_ENDS_AT: Final = 2.0 ** (np.arange(1, 9) / 8)
#: A second group begins in one stream of six, at any knot: twice the logarithm of these odds is
#: added to its misfit, and what each count that is no longer explained would add by chance.
_SECOND_GROUP: Final = 2 * math.log(5.0)
_UNEXPLAINED: Final = 1.0
#: By which power of the best error that a tail allows it counts less in what is added back: 2 would
#: weigh squares of errors relative to the best and leaves heavy tails out, 1 sees to them as much
#: as to others but follows chance counts far out.
_RELATIVE: Final = 1.25
#: The bulk of the values fills about this many knots.
_RUN: Final = 5
#: One side of a median fills about this many, four octaves: values next to it are few.
_SIDE_RUN: Final = 4 * PER_OCTAVE
#: Chance that an empty side is taken to hold data.
EMPTY_ALARM: Final = 1e-5
#: The same where no values are known but those next to 0, or to the centre: without a scale, a
#: range that reaches for noise is no dearer than one that misses all there is.
_ALONE_ALARM: Final = 1e-2
#: What is likely of values of one group.  A Weibull law keeps its shape; a lognormal law begins
#: like one of a shape below 1 and gets heavier, down to half of that shape, and a power law still
#: heavier.  So a tail goes on with the shape that its beginning tells, and with the square of it
#: where that is below 1; a deviation of its logarithm is ½.
_ONE_GROUP: Final = 0.5
#: Values are a fifth as likely of one group as of anything else, before the counts: more would add
#: back too much for second groups, less would miss power laws.
_ONE_GROUP_ODDS: Final = 0.2
#: A tail falls no slower further out, on a logarithmic scale, than before, as far as counts tell: a
#: deviation of the logarithm of how much slower.
_KINK: Final = 0.15
#: Nor much faster, where the values are of one group: an octave of an exponential law falls 1.4
#: times as fast as the one before it.  A deviation of the logarithm of how much faster.
_BEND: Final = 0.7
#: A tail that goes on as the values before it is no coincidence: how much more likely these lengths
#: are then than if nothing was known of the values before.
_GOES_ON: Final = math.log(_LENGTHS[-1] / _LENGTHS[0]) / (math.sqrt(math.pi / 2) * (_KINK + _BEND))
#: Nothing but the warm-up tells of a second group at first, and it may be too small to be seen: so
#: many knots above the top one a margin has room for what their counts do not tell from noise.
_UNSEEN: Final = 2 * PER_OCTAVE
#: A group that no count tells from noise may lie above the top knot, of all sizes for which that is
#: so: here in octaves of the noise of a count.
_SIZES: Final = 2.0 ** np.arange(-1.0, 2.01)
#: How likely that is for each octave of its share p of the values: ½√p, as the odds of
#: Jeffreys' prior of a share are (1946).  Where streams are long what is not seen is few values,
#: and a group is the less likely to be so small.  It is less likely further out, by the square.
_GROUP_ODDS: Final = 0.5
#: Tails are not exactly in the family: a margin leaves out 1 % at each end, not 2.5 %.
_LEFT_OUT: Final = 0.01
_NORMAL: Final = ndtri((np.arange(9) + 0.5) / 9)
#: Streams change: by so much of it what is added back for a segment to come may be off.  That is
#: less than streams change, as the segment's own look will see most of it.
_CHANGE_TO_COME: Final = 0.35
#: By how much of it the mass of past segments differs from what all looks together say is learned
#: from the looks: each of these is as likely before.
_CHANGES: Final = 2.0 ** np.arange(-4.0, 1.01, 0.5)
#: Looks are of another stream than earlier ones where so many deviations lie between them.
_DIFFERENT: Final = 4.0
#: A segment speaks for itself where it differs from all looks together by this many deviations, of
#: noise, of chance and of what a count is trusted to.
_CONTRADICTION: Final = 5.0


@lru_cache(maxsize=256)
def knots(width: float, octaves: int = OCTAVES) -> FloatArray:
    """0, then ``width·2^(−k/3)`` rising to ``width`` itself."""
    values = np.concatenate(
        ([0.0], width * 2.0 ** (np.arange(-PER_OCTAVE * octaves, 1) / PER_OCTAVE))
    )
    values.flags.writeable = False
    return values


@dataclass(frozen=True, eq=False)
class Counts:
    """A look in observations: noisy counts at the knots, and the law of their noise."""

    values: FloatArray
    observations: int
    scale: float
    laplace: bool

    @property
    def variance(self) -> float:
        """Variance of the noise on one count."""
        return (2.0 if self.laplace else 1.0) * self.scale**2


def _places(looks: list[Counts], width: float) -> FloatArray:
    """The knots that these looks have counts for."""
    return knots(width, len(looks[0].values) // PER_OCTAVE)


@dataclass(frozen=True, eq=False)
class Pooled:
    """All looks as one: rates per observation, and the noise in them."""

    rates: FloatArray
    noise_std: float
    #: A rate r has variance r·sampling from sampling.
    sampling: float
    gaussian_variance: float
    laplace_scales: FloatArray

    def levels(self, run: int) -> tuple[FloatArray, FloatArray]:
        """−ln P(noise of so many knots together > x), and x."""
        return _levels(
            self.noise_std, self.gaussian_variance, tuple(self.laplace_scales.tolist()), run
        )

    def exceedance(self, level: float, run: int = 1) -> float:
        """``x`` with P(noise of so many knots together > x) about e^−level."""
        return float(np.interp(level, *self.levels(run)))


@lru_cache(maxsize=512)  # many keys, or runs, have the same noise
def _levels(
    noise_std: float, gaussian_variance: float, laplace_scales: tuple[float, ...], run: int
) -> tuple[FloatArray, FloatArray]:
    """By the saddlepoint approximation (Lugannani, Rice 1980)."""
    tilt = 2.0 ** np.linspace(-1.5, 8.0, 191) / noise_std
    if laplace_scales:
        tilt = tilt / (1.0 + tilt * max(laplace_scales))  # stays below the pole
    # The cumulant function of the noise of one knot, and its first two derivatives.
    value = 0.5 * gaussian_variance * tilt**2
    first = gaussian_variance * tilt
    second = np.full_like(tilt, gaussian_variance)
    for scale in laplace_scales:
        y = (tilt * scale) ** 2
        value -= np.log1p(-y)
        first += 2 * tilt * scale**2 / (1 - y)
        second += 2 * scale**2 * (1 + y) / (1 - y) ** 2
    level = run * (tilt * first - value) + np.log(tilt * np.sqrt(2 * np.pi * run * second))
    noise = run * first
    level.flags.writeable = noise.flags.writeable = False
    return level, noise


def pool(looks: list[Counts]) -> Pooled:
    """Mean of the looks' rates, weighted by the inverse of their noise variance."""
    observations = np.array([look.observations for look in looks], float)
    variance = np.array([look.variance for look in looks])
    weight = observations**2 / variance
    weight /= weight.sum()
    factor = weight / observations
    laplace = np.array([look.laplace for look in looks])
    scales = np.array([look.scale for look in looks]) * factor
    rates = np.einsum("l,lk->k", factor, np.array([look.values for look in looks]))
    return Pooled(
        rates=rates,
        noise_std=float(np.sqrt(np.sum(factor**2 * variance))),
        sampling=float(np.sum(weight**2 / observations)),
        gaussian_variance=float(np.sum(scales[~laplace] ** 2)),
        laplace_scales=scales[laplace],
    )


def differ(some: list[Counts], others: list[Counts]) -> bool:
    """Whether values were elsewhere in some looks than in others: on some run of four octaves."""
    one, two = pool(some), pool(others)
    run = np.ones(min(_SIDE_RUN, len(one.rates)))
    more = np.convolve(one.rates - two.rates, run, mode="valid")
    both = np.maximum(np.convolve(one.rates + two.rates, run, mode="valid") / 2, 0.0)
    variance = run.size * (one.noise_std**2 + two.noise_std**2)
    return bool(np.any(more**2 > _DIFFERENT**2 * (variance + both * (one.sampling + two.sampling))))


def _bulk_knot(rates: FloatArray) -> int:
    """Highest count in the run of knots that holds most: a single high count may be noise."""
    run = int(np.argmax(np.convolve(rates, np.ones(_RUN), mode="valid")))
    return run + int(np.argmax(rates[run : run + _RUN]))


def top_knot(pooled: Pooled, places: FloatArray, alarm: float) -> int:
    """Highest knot that surely holds data, by itself or together with its neighbours."""
    top = max(1, _bulk_knot(pooled.rates))
    rates, bulk = pooled.rates[top:], top
    alone = bulk == 1  # values that are all next to 0 have no scale: no knot is far from them
    base = -math.log(_ALONE_ALARM / (len(_RUNS) * len(rates)) if alone else alarm / len(_RUNS))
    suspects: list[tuple[int, int, float]] = []  # knot, first of its run, −ln P
    sums = np.concatenate(([0.0], np.cumsum(rates)))
    moments = np.concatenate(([0.0], np.cumsum(rates * np.arange(len(rates)))))
    for run in _RUNS:
        together = sums[run:] - sums[:-run]
        level, noise = pooled.levels(run)
        first = np.flatnonzero(together > np.interp(base, level, noise))
        if not first.size:
            continue
        unlikely = np.interp(together[first], noise, level)
        # Where their mass is: a run may begin with data and end with noise.
        centroid = np.rint((moments[first + run] - moments[first]) / together[first])
        knots_of = bulk + np.clip(centroid.astype(np.int64), first, first + run - 1)
        suspects += zip(knots_of.tolist(), (bulk + first).tolist(), unlikely.tolist(), strict=True)
    for knot, first_knot, level_found in sorted(suspects):
        if first_knot > top:
            known = places[knot if alone and top == bulk else top]
            level_here = base + _STEEPNESS * math.log(places[knot] / known)
            if level_found > min(level_here, _HIGHEST_LEVEL):
                top = knot
    return top


# --- The family of tails -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Family:
    """Tables for every tail: one row a tail, the argument in units of the start knot."""

    shape: FloatArray
    length: FloatArray
    prior: FloatArray
    #: Multiples of the start knot, from 1 up, ``_FINE`` to a knot.
    ratios: FloatArray
    #: Mean excess over each ratio: the integral of the tail from there.
    excess: FloatArray
    #: Mass that linear sharing puts on each knot of the window, and on it and all beyond.
    masses: FloatArray
    beyond: FloatArray


@lru_cache(maxsize=1)
def _family() -> _Family:
    window = PER_OCTAVE * _REACH - 2
    ratios = 2.0 ** (np.arange(PER_OCTAVE * _REACH * _FINE + 1) / (PER_OCTAVE * _FINE))
    shape = np.append(np.repeat(_SHAPES, _LENGTHS.size), np.full(_ENDS_AT.size, _ENDING))
    length = np.append(np.tile(_LENGTHS, len(_SHAPES)), (_ENDS_AT**_ENDING - 1) / _ENDING)
    hazard = (ratios[None, :] ** shape[:, None] - 1) / (shape * length)[:, None]
    log_tail = -np.minimum(hazard, 700.0)
    tail = np.exp(log_tail)
    # Integral between two points, exponential in between.
    fall = log_tail[:, :-1] - log_tail[:, 1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(fall > 1e-9, (tail[:, :-1] - tail[:, 1:]) / fall, tail[:, :-1])
    piece = mean * np.diff(ratios)
    excess = np.zeros_like(tail)
    excess[:, :-1] = np.cumsum(piece[:, ::-1], axis=1)[:, ::-1]
    at_knots = excess[:, ::_FINE][:, : window + 2]
    beyond = (at_knots[:, :-1] - at_knots[:, 1:]) / np.diff(ratios[::_FINE][: window + 2])
    return _Family(
        shape=shape,
        length=length,
        prior=np.append(
            np.repeat(np.array(_SHAPE_PRIOR) / sum(_SHAPE_PRIOR), _LENGTHS.size),
            np.ones(_ENDS_AT.size),
        ),
        ratios=ratios,
        excess=excess,
        masses=beyond[:, :-1] - beyond[:, 1:],
        beyond=beyond,
    )


@dataclass(frozen=True, eq=False)
class Tail:
    """What the looks say: rates at the knots up to ``top``, weighed tails above ``start``."""

    places: FloatArray
    rates: FloatArray
    top: int
    start: int
    weights: FloatArray
    #: Ends that a range may have, and for each tail the mean excess over them per observation, with
    #: its standard deviation from the size that was fitted.
    ends: FloatArray
    clipped: FloatArray
    clipped_std: FloatArray
    #: The mean excess that is added back.
    expected: FloatArray
    #: The same of tails by how likely they are of values of one group.
    odds: FloatArray
    by_odds: FloatArray
    off: FloatArray
    #: Standard deviation of the noise of a rate.
    noise_std: float
    #: Knots above the top one where a group may be that is not seen.
    unseen: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no count above the smallest knot is more than noise."""
        return self.ends.size == 1

    def mean_clipped(self, end: float) -> float:
        """Estimate of E (x − end)⁺ per observation."""
        return float(self._clipped_by(self.expected[None, :], end)[0])

    def _clipped_by(self, tails: FloatArray, end: float) -> FloatArray:
        """The same by each of some tails, a row of mean excesses each."""
        if self.ends.size == 1 or end >= self.places[self.top]:
            return self._beyond(tails, end)
        low = int(np.searchsorted(self.places, end, side="right")) - 1
        around = self.places[max(low - 1, 0) : low + 3]
        return _between(around, self._at_knots(tails, around), end)

    def _at_knots(self, tails: FloatArray, around: FloatArray) -> FloatArray:
        """The mean excess of each over some knots (rows): counted to the top one, then fitted."""
        outside, mass = self._at_top(tails)
        reach = np.maximum(self.places[: self.top + 1] - around[:, None], 0.0)
        counted = (reach @ self.rates[: self.top + 1])[:, None]
        beyond = outside + mass * (self.places[self.top] - around[:, None])
        return np.asarray(np.maximum(counted + beyond, 0.0))

    def unknown_between(self, ends: FloatArray) -> FloatArray:
        """Std of what the mean excess over these ends is, as counts do not tell where values lie.

        Nothing from the top knot on, where tails are fitted.
        """
        below = ends < self.places[self.top]
        unknown = np.zeros(ends.shape)
        if not self.is_empty and below.any():
            low = int(np.searchsorted(self.places, ends.min(), side="right")) - 1
            around = self.places[max(low - 1, 0) : self.top + 2]
            excess = self._at_knots(self.expected[None, :], around)[:, 0]
            unknown[below] = _unknown_between(around, excess, ends[below]) / math.sqrt(12.0)
        return unknown

    def _beyond(self, tails: FloatArray, end: float) -> FloatArray:
        """What each of some tails has over an end, without what is counted below the top knot."""
        if self.is_empty:
            return np.zeros(len(tails))
        if end < self.places[self.top]:
            outside, mass = self._at_top(tails)
            return np.asarray(outside + mass * (float(self.places[self.top]) - end))
        place = int(np.searchsorted(self.ends, end, side="right")) - 1
        if place == self.ends.size - 1:
            return tails[:, -1]
        run = self.ends[place + 1] - self.ends[place]
        slope = (tails[:, place + 1] - tails[:, place]) / run
        return np.asarray(slope * (end - self.ends[place]) + tails[:, place])

    def _at_top(self, tails: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The mean excess of each over the top knot, and its mass there."""
        join = (self.top - self.start) * _FINE
        if join + _FINE >= self.ends.size:
            return tails[:, join], np.zeros(len(tails))
        run = float(self.ends[join + _FINE] - self.ends[join])
        return tails[:, join], (tails[:, join] - tails[:, join + _FINE]) / run

    def clipped_share(self, end: float) -> float:
        """Estimate of P(x > end): the slope of the mean excess."""
        step = 0.05 * end
        return min(1.0, max(0.0, (self.mean_clipped(end) - self.mean_clipped(end + step)) / step))

    def margin(self, end: float, estimate: float) -> Margin:
        """How far E (x − end)⁺ may be from an estimate, with 95 %, and the spread of a sample."""
        if self.is_empty:
            return Margin()
        each = self._clipped_by(self.by_odds, end)
        least, greatest = _mixed_quantiles(self.odds, each, self._beyond(self.off, end))
        noise = DEVIATIONS * self.noise_std
        counted = np.maximum(self.places[: self.top + 1] - end, 0.0)
        unseen = np.maximum(self.places[: self.top + self.unseen + 1] - end, 0.0)
        return Margin(
            below=math.hypot(
                max(0.0, estimate - max(least, 0.0)), noise * math.sqrt(float(counted @ counted))
            ),
            above=math.hypot(
                max(0.0, greatest - estimate), noise * math.sqrt(float(unseen @ unseen))
            ),
            variance=self._square_clipped(end, each),
        )

    @cached_property
    def _likely(self) -> FloatArray:
        """The mean excess over the ends, of tails by how likely they are of values of one group."""
        return np.asarray(self.odds @ self.by_odds)

    def _square_clipped(self, end: float, each: FloatArray) -> float:
        """Estimate of E ((x − end)⁺)²: twice the integral of the mean excess from there.

        ``each`` is the mean excess of each of those tails over this end.
        """
        first = int(np.searchsorted(self.ends, end))
        ends = np.concatenate(([end], self.ends[first:]))
        excess = np.concatenate(([self.odds @ each], self._likely[first:]))
        # Next to the last knot rounding leaves less than nothing of an excess.
        return max(0.0, float(np.sum((excess[1:] + excess[:-1]) * np.diff(ends))))


def _between(places: FloatArray, excess: FloatArray, end: float) -> FloatArray:
    """Mean excesses over an end between two of these places, a column each.

    Of laws with the mass between both and its mean the truncated exponential assumes least.
    """
    low = int(np.searchsorted(places, end, side="right")) - 1
    run = float(places[low + 1] - places[low])
    part = (end - float(places[low])) / run
    beyond, mass, mean = (found[low] for found in _masses(places, excess))
    within = run * mass * _excess_of_truncated(mean, part)
    return np.asarray(excess[low + 1] + (1 - part) * run * beyond + within)


def _masses(places: FloatArray, excess: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of mean excesses at places: mass beyond each two, between them, and where its mean is.

    The slope at a place, which is the mass above it, is what the harmonic mean of the rates beside
    it says (exactly so of an exponential law), no more than before it and no less than after it,
    and nothing at a bound.
    """
    runs = np.diff(places)[:, None]
    chords = np.maximum(excess[:-1] - excess[1:], 0.0) / runs
    logs = np.log(np.maximum(excess, 1e-300))
    rates = np.maximum((logs[:-1] - logs[1:]) / runs, 1e-9)
    above = np.concatenate((chords[:1], 2 * excess[1:-1] / (1 / rates[:-1] + 1 / rates[1:])))
    above[1:] = np.maximum(np.minimum(above[1:], chords[:-1]), chords[1:])
    beyond = np.minimum(np.concatenate((above[1:], np.zeros_like(chords[:1]))), chords)
    mass = np.maximum(above, chords) - beyond
    return (
        beyond,
        mass,
        np.divide(chords - beyond, mass, out=np.full_like(mass, 0.5), where=mass > 0.0),
    )


def _unknown_between(places: FloatArray, excess: FloatArray, ends: FloatArray) -> FloatArray:
    """How far apart mean excesses over ends may be by what is known of the places beside them.

    Greatest where all that lies between two places lies at these, least where all of it lies at its
    mean.
    """
    low = np.clip(np.searchsorted(places, ends, side="right") - 1, 0, len(places) - 2)
    run = np.diff(places)[low]
    part = (ends - places[low]) / run
    _, mass, mean = (found[low, 0] for found in _masses(places, excess[:, None]))
    return np.asarray(run * mass * (mean * (1 - part) - np.maximum(mean - part, 0.0)))


def _excess_of_truncated(mean: FloatArray, end: float) -> FloatArray:
    """The mean excess over an end of exponential laws on [0, 1] with these means."""
    rates, means = _truncated()
    rate = np.interp(mean, means, rates)
    rate = np.where(mean < means[0], 1 / np.maximum(mean, 1e-3), rate)
    rate = np.where(np.abs(rate) < 1e-3, 1e-3, rate)
    last = np.exp(-rate)
    return np.asarray(((np.exp(-rate * end) - last) / rate - (1 - end) * last) / (1 - last))


@lru_cache(maxsize=1)
def _truncated() -> tuple[FloatArray, FloatArray]:
    """Rates of exponential laws on [0, 1], and their means, which rise."""
    rates = np.linspace(40.0, -40.0, 1000)  # without 0
    return rates, 1 / rates - 1 / np.expm1(rates)


def fit_tail(
    looks: list[Counts],
    width: float,
    outlook: Outlook,
    share: float = 1.0,
    *,
    first: bool = False,
) -> Tail:
    """Pool the looks and weigh the tails; the side has about this ``share`` of the values.

    ``first``: there is no other look.

    ``outlook`` says what is done with them: with so many observations and so much noise, an error
    is judged beside the best that a tail allows.
    """
    places, pooled = _places(looks, width), pool(looks)
    last_knot = len(places) - 1
    top, rates = top_knot(pooled, places, FALSE_ALARM), pooled.rates
    if top <= 1:  # nothing above the smallest knot: all values are (next to) the lower bound
        nothing = np.zeros((1, 1))
        return Tail(
            *(places, rates, top, top, np.ones(1), places[1:2], nothing, nothing),
            *(nothing[0], np.ones(1), nothing, nothing, pooled.noise_std),
        )
    lowest = _start_knot(rates, top, pooled.noise_std) - 1
    reach = min((last_knot - lowest) * _FINE, _family().ratios.size - 1) + 1
    ends = places[lowest] * _family().ratios[:reach]
    # At least two counts up to the top one tell of a second group.
    starts = range(lowest, max(lowest + 1, top - 1))
    fits = [_fit(pooled, last_knot, start, lowest, share) for start in starts]
    misfit = np.concatenate([fit.misfit for fit in fits])
    odds = _posterior(np.concatenate([fit.odds for fit in fits]), misfit)
    posterior = _posterior(np.concatenate([fit.prior for fit in fits]), misfit)
    kept = (odds > 1e-5) | (posterior > 1e-5)
    of_starts = np.split(kept, len(fits))
    excess = np.concatenate(
        [
            _excess(places, lowest, start, of_start, ends)
            for start, of_start in zip(starts, of_starts, strict=True)
        ]
    )
    # What lies between the lowest start and a later one is counted.
    before = np.concatenate(
        [
            np.repeat(_counted(places, rates, lowest, start, ends), of_start.sum(), axis=0)
            for start, of_start in zip(starts, of_starts, strict=True)
        ]
    )
    clipped = np.concatenate([fit.size for fit in fits])[kept][:, None] * excess + before
    off = excess / np.sqrt(np.concatenate([fit.precision for fit in fits])[kept])[:, None]
    real, likely = odds[kept] > 1e-5, posterior[kept] > 1e-5
    odds, weights = odds[kept][real], posterior[kept][likely]
    tails, of_size, weights = _with_groups(
        pooled, places, top, lowest, ends, clipped[likely], off[likely], weights / weights.sum()
    )
    noise = outlook.noise_per_unit * ends
    best = np.hypot(outlook.length * tails, noise[None, :]).min(axis=1)
    back = weights / np.maximum(best / best.max(), 1e-9) ** _RELATIVE
    return Tail(
        places=places,
        rates=rates,
        top=top,
        start=lowest,
        weights=weights,
        ends=ends,
        clipped=tails,
        clipped_std=of_size,
        expected=back @ tails / back.sum(),
        odds=odds / odds.sum(),
        by_odds=clipped[real],
        off=off[real],
        noise_std=pooled.noise_std,
        unseen=_UNSEEN if first else 0,
    )


@dataclass(frozen=True, eq=False)
class _Fit:
    """How well each tail explains the counts from a start on, and how likely it is before that."""

    misfit: FloatArray
    #: Of values of one group, or of a second group that begins here; and of anything as well.
    odds: FloatArray
    prior: FloatArray
    size: FloatArray
    precision: FloatArray


def _fit(pooled: Pooled, last_knot: int, start: int, lowest: int, share: float) -> _Fit:
    family, rates = _family(), pooled.rates
    last = min(last_knot, start + family.masses.shape[1])
    window = last - start
    observed = rates[start + 1 : last + 1]
    positive = np.maximum(observed, 0.0)
    variance = pooled.noise_std**2 + positive * pooled.sampling + (_MISFIT * positive) ** 2
    mass = family.masses[:, :window]
    if last == last_knot:  # whatever lies beyond the bound sits on the last knot
        mass = np.concatenate((mass[:, :-1], family.beyond[:, window - 1 : window]), axis=1)
    precision = np.maximum((mass**2 / variance).sum(1), 1e-300)
    size = np.maximum(0.0, (mass * observed / variance).sum(1) / precision)
    misfit = ((observed - size[:, None] * mass) ** 2 / variance).sum(1)
    steepest = _steepest(rates, start, size, share)
    steeper = np.log(np.maximum(family.length * steepest, 1.0))
    goes_on = np.exp(-0.5 * (steeper / _KINK) ** 2)
    if start > lowest:  # a second group, which falls slower than what is before it
        misfit += _SECOND_GROUP + _UNEXPLAINED * (start - lowest)
        slower = family.prior * (1 - goes_on)
        return _Fit(misfit, slower, slower, size, precision)
    # −d ln P/d ln x over −ln P: the shape of a Weibull law that begins like this tail.
    begins = 1 / (family.length * np.maximum(-np.log(np.clip(size / share, 1e-9, 0.999)), 1e-3))
    shape = np.log(family.shape / (begins * np.minimum(begins, 1.0)))
    one_group = np.exp(-0.5 * (shape / _ONE_GROUP) ** 2)
    one_group[len(_SHAPES) * _LENGTHS.size :] = 0.0  # those that end at a point
    of_lengths = one_group[: len(_SHAPES) * _LENGTHS.size].reshape(len(_SHAPES), -1).sum(axis=0)
    of_lengths = np.append(np.tile(of_lengths, len(_SHAPES)), np.ones(_ENDS_AT.size))
    one_group *= goes_on / np.maximum(of_lengths, 1e-9)
    faster = -np.log(np.clip(family.length * steepest, 1e-9, 1.0))
    expected = _GOES_ON * np.exp(-0.5 * (faster / _BEND) ** 2)
    one_group *= np.where(steepest > 0.0, expected, 1.0)  # without values before, all are alike
    return _Fit(misfit, one_group, _ONE_GROUP_ODDS * one_group + family.prior, size, precision)


def _excess(
    places: FloatArray, lowest: int, start: int, tails: NDArray[np.bool_], ends: FloatArray
) -> FloatArray:
    """The mean excess of some tails of size 1 over each end; those begin at the lowest start."""
    shift = (start - lowest) * _FINE
    found = np.empty((int(tails.sum()), ends.size))
    excess = _family().excess[tails, : ends.size - shift]
    found[:, shift:] = places[start] * (excess - excess[:, -1:])
    found[:, :shift] = found[:, [shift]] + (places[start] - ends[:shift])
    return found


def _counted(
    places: FloatArray, rates: FloatArray, lowest: int, start: int, ends: FloatArray
) -> FloatArray:
    """What the counts between two starts have over each end below the later one: one row."""
    between = slice(lowest + 1, start + 1)
    over = np.maximum(places[between, None] - ends, 0.0)
    return np.asarray((np.maximum(rates[between], 0.0) @ over)[None, :])


def _with_groups(
    pooled: Pooled,
    places: FloatArray,
    top: int,
    lowest: int,
    ends: FloatArray,
    tails: FloatArray,
    of_size: FloatArray,
    weights: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """These tails, and the mean of them with a group further out; deviations and weights."""
    mean = weights @ tails
    places_of, sizes, odds = _out_of_sight(pooled, places, top, lowest, mean)
    if not odds.size:
        return tails, of_size, weights
    with_group = mean + sizes[:, None] * np.maximum(places_of[:, None] - ends, 0.0)
    deviation = np.tile(np.sqrt(weights @ of_size**2), (odds.size, 1))
    weights = np.append(weights, odds)
    return (
        np.concatenate((tails, with_group)),
        np.concatenate((of_size, deviation)),
        weights / weights.sum(),
    )


def _out_of_sight(
    pooled: Pooled, places: FloatArray, top: int, lowest: int, mean: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Groups of equal values above the top knot: where, of which size, and their odds.

    The odds are against the ``mean`` tail (of mean excesses from the lowest start on), before the
    counts times what the counts say.
    """
    last = min(len(places) - 1, top + _UNSEEN)
    if last == top:
        return np.empty(0), np.empty(0), np.empty(0)
    at_knots = mean[::_FINE]
    above = (at_knots[:-1] - at_knots[1:]) / np.diff(places[lowest : lowest + at_knots.size])
    masses = -np.diff(above, append=0.0)[top - lowest : last - lowest]
    more = pooled.rates[top + 1 : last + 1] - masses
    variance = pooled.noise_std**2 + masses * pooled.sampling + (_MISFIT * masses) ** 2
    # On each knot and half way to the next one, where a group is shared between both.
    halves = np.arange(2 * more.size - 1) / 2
    shares = np.maximum(0.0, 1 - np.abs(halves[:, None] - np.arange(more.size)))
    where = shares @ places[top + 1 : last + 1]
    sizes = _SIZES[_SIZES * pooled.noise_std <= 1.0, None] * pooled.noise_std
    likelihood = sizes * (shares @ (more / variance)) - sizes**2 / 2 * (shares**2 @ (1 / variance))
    odds = _GROUP_ODDS * np.sqrt(sizes) * where**-2 / np.sum(where**-2) * np.exp(likelihood)
    real = odds > 1e-5
    where, sizes = np.broadcast_arrays(where, sizes)
    return where[real], sizes[real], odds[real]


def holds_data(side: Pooled, at_centre: float, *, alone: bool = False) -> bool:
    """Whether one side of a centre holds data at all: it need not, where many values are equal.

    The centre is a median: half of the values lie on each side, less those ``at_centre`` itself,
    and nearly all of them within ``_SIDE_RUN`` knots.  A side is taken to hold them unless the
    fullest such run is nearer to nothing.  Where a side need not hold many, some run of counts must
    be more than noise: an error either way is dear, a range that misses half of the values, or one
    that reaches for noise.  ``alone``: no
    side is known to.
    """
    if len(side.rates) < _SIDE_RUN:
        return False
    runs = np.convolve(side.rates, np.ones(_RUN), mode="valid")
    alarm = _ALONE_ALARM if alone else EMPTY_ALARM
    if runs.max() > side.exceedance(-math.log(alarm / len(runs)), _RUN):
        return True
    wanted = max(0.5 - at_centre, 0.0)
    fullest = float(np.convolve(side.rates, np.ones(_SIDE_RUN), mode="valid").max())
    return fullest > 0.5 * wanted > side.exceedance(-math.log(LOST), _SIDE_RUN)


def hides(share: float, side: Pooled, chance: float) -> bool:
    """Whether noise may look like so large a share of the values on one side, with this chance.

    One side of a median is half of them, spread over ``_SIDE_RUN`` knots.
    """
    return share <= side.exceedance(-math.log(chance), min(_SIDE_RUN, len(side.rates)))


def _start_knot(rates: FloatArray, top: int, noise_std: float) -> int:
    """Knot of the last local peak below the top: tails are fitted from there."""
    start = top
    for knot in range(top - 1, max(2, top - _DOWN) - 1, -1):
        if rates[knot] > rates[start]:
            start = knot
        elif rates[knot] < rates[start] - 3.0 * noise_std:
            break
    return start


def _steepest(rates: FloatArray, start: int, size: FloatArray, share: float) -> FloatArray:
    """The greatest −d ln P/d ln x over an octave before the start, for each size of the tail."""
    knots_below = np.arange(start, 0, -PER_OCTAVE)
    between = np.cumsum(rates[::-1])[::-1]
    above = size[:, None] + np.maximum.accumulate(between[knots_below + 1] - between[start + 1])
    above = np.maximum(above, 1e-12)
    slopes = np.log(above[:, 1:] / above[:, :-1]) / math.log(2.0)
    slopes[above[:, 1:] > 0.5 * share] = 0.0
    return np.asarray(slopes.max(axis=1, initial=0.0))


def _posterior(prior: FloatArray, misfit: FloatArray) -> FloatArray:
    weight: FloatArray = prior * np.exp(-0.5 * np.maximum(misfit - misfit[prior > 0.0].min(), 0.0))
    weight /= weight.sum()
    return weight


def _mixed_quantiles(
    weights: FloatArray, means: FloatArray, stds: FloatArray
) -> tuple[float, float]:
    """What a mixture of normal laws keeps within, but for a small part at each end.

    Each law stands for points that are equally likely.
    """
    points = (means[:, None] + stds[:, None] * _NORMAL).reshape(-1)
    order = np.argsort(points)
    below = np.cumsum(np.repeat(weights, _NORMAL.size)[order])
    ends = np.searchsorted(below, (_LEFT_OUT * below[-1], (1 - _LEFT_OUT) * below[-1]))
    low, high = points[order][np.minimum(ends, points.size - 1)].tolist()
    return low, high


# --- Decisions -----------------------------------------------------------------------------------


def mean_absolute(bias: FloatArray, std: FloatArray) -> FloatArray:
    """E |N(bias, std²)|."""
    with np.errstate(divide="ignore", invalid="ignore"):  # where there is no noise
        z = bias / (std * math.sqrt(2.0))
    return std * math.sqrt(2 / math.pi) * np.exp(-(z**2)) + bias * erf(z)


def choose_end(
    tail: Tail,
    *,
    length: int,
    segment: int,
    noise_per_unit: float,
    past: list[float],
    form: FloatArray,
    beside: float = 0.0,
) -> float:
    """End of the next range: least expected error at the stream's end.

    The error of each candidate is taken relative to the best possible for each tail, and averaged
    over the tails.  Its noise follows from the widths of all ranges, those in the ``past``, this
    and, where ``form`` has a row for it, a later one, which is then the tail's best.  What
    clipping leaves is what is added back wrongly: by another tail, by the noise of counts, and
    where the stream changes.  ``beside`` is what the range has on the other side of its centre,
    which the noise is scaled to as well.
    """
    if tail.is_empty:
        return float(tail.ends[0])
    ends, clipped = tail.ends + beside, tail.clipped
    reach = np.maximum(tail.places[: tail.top + 1, None] - tail.ends, 0.0)
    unsure = (tail.noise_std**2) * (reach**2).sum(axis=0) + (_CHANGE_TO_COME * tail.expected) ** 2
    unsure += tail.unknown_between(tail.ends) ** 2
    left = np.sqrt((clipped - tail.expected) ** 2 + tail.clipped_std**2 + unsure)
    alone = noise_per_unit * ends[None, :]
    known, next_one = np.array(past), len(past)
    before = 2 * known @ form[:next_one, next_one:]
    square = known @ form[:next_one, :next_one] @ known
    square = square + (before[0] + form[next_one, next_one] * ends) * ends[None, :]
    best = np.argmin(mean_absolute(length * left, alone), axis=1)[:, None]
    if len(form) > next_one + 1:
        later = ends[best]
        square = square + (before[1] + form[-1, -1] * later) * later
        square = square + 2 * form[next_one, -1] * ends[None, :] * later
    elsewhere = np.take_along_axis(left, best, axis=1)
    bias = np.maximum((length - segment) * elsewhere + segment * left, 0.0)
    error = mean_absolute(bias, noise_per_unit * np.sqrt(np.maximum(square, 0.0)))
    whole = mean_absolute(length * clipped, alone).min(axis=1)
    loss = error / np.maximum(whole, 1e-300)[:, None]
    return float(tail.ends[int(np.argmin(tail.weights @ loss))])


def changes_alone(ranges: int) -> FloatArray:
    """The noise of a sum by the widths of so many ranges, if each change left its own square."""
    changes = np.eye(ranges) - np.eye(ranges, k=1)
    return np.asarray(changes.T @ changes)


def removed_mass(
    looks: list[Counts],
    ends: list[float],
    width: float,
    together: Tail,
    outlook: Outlook,
    share: float = 1.0,
) -> tuple[float, Margin]:
    """Estimate of the mass that clipping took from all looks so far, each at its own range.

    By all looks ``together``, and as far as its own counts tell by the look itself: what it has
    more or less is shared between what these values are by chance, a change of the stream and noise
    by their variances, and where it contradicts them the look speaks alone.  With how far the
    estimate may be off, which adds up.
    """
    total, margin, more, variance = 0.0, Margin(), 0.0, 0.0
    differences = [_difference(*own, together) for own in zip(looks, ends, strict=True)]
    likely = _likely_changes([one for one in differences if not one.contradicts])
    for look, end, own in zip(looks, ends, differences, strict=True):
        source, moved = together, 0.0
        each = together.mean_clipped(end)
        if len(looks) > 1:
            if own.contradicts:
                source = fit_tail([look], width, outlook, share)
                each = source.mean_clipped(end)
            elif own.expected > 0.0:
                changes = (_CHANGES * own.expected) ** 2
                all_of_it = changes + own.by_chance + own.noise
                part = float(likely @ ((changes + own.by_chance) / all_of_it))
                # What lies beyond the counts is likely to change as they do.
                mass = look.observations * each
                ratio = mass / own.expected
                beyond = float(likely @ (changes / all_of_it)) * max(0.0, ratio - 1)
                moved = max(own.more * (part * min(ratio, 1.0) + beyond), -mass)
                more, variance = more + (1 - part) * own.more, variance + own.variance
        total += look.observations * each + moved
        margin = margin.plus(source.margin(end, each), look.observations)
    if abs(more) > DEVIATIONS * math.sqrt(variance):  # a stream that changes little by little
        margin = margin.plus(Margin(max(0.0, -more), max(0.0, more)))
    return total, margin


def counted_margin(looks: list[Counts], ends: list[float], width: float, mass: float) -> Margin:
    """The margin of an estimated ``mass`` without a tail: by all counts, up to the bound.

    Each count is worth its distance from the end, which is no more than the width: their noise
    tells how far the sum is off, whatever lies between.
    """
    places, found, spread = _places(looks, width), 0.0, 0.0
    for look, end in zip(looks, ends, strict=True):
        reach = np.maximum(places - end, 0.0)
        found += float(reach @ look.values)
        spread += look.variance * float(reach @ reach)
    off = DEVIATIONS * math.sqrt(spread)
    return Margin(max(0.0, min(mass, mass - found + off)), max(0.0, found + off - mass))


def counted_rate_margin(looks: list[Counts], end: float, width: float, each: float) -> Margin:
    """The same of what is taken ``each`` time, of observations to come that are like those."""
    pooled, reach = pool(looks), np.maximum(_places(looks, width) - end, 0.0)
    square = reach * reach
    found, noise = float(reach @ pooled.rates), DEVIATIONS * pooled.noise_std
    squared = max(0.0, float(square @ pooled.rates) + noise * math.sqrt(float(square @ square)))
    off = math.hypot(
        noise * math.sqrt(float(reach @ reach)), DEVIATIONS * math.sqrt(squared * pooled.sampling)
    )
    return Margin(max(0.0, min(each, each - found + off)), max(0.0, found + off - each), squared)


@dataclass(frozen=True)
class _Difference:
    """How much more than all looks together a look has beyond an end.

    And how much it should have: of what is counted, up to the top knot.  With what varies: the
    noise of its counts, and how many values they are by chance.
    """

    more: float
    expected: float
    noise: float
    by_chance: float

    @property
    def variance(self) -> float:
        return self.noise + self.by_chance

    @property
    def contradicts(self) -> bool:
        trusted = self.variance + (_MISFIT * self.expected) ** 2
        return abs(self.more) > _CONTRADICTION * math.sqrt(trusted)


def _likely_changes(differences: list[_Difference]) -> FloatArray:
    """How likely a stream with these differences changes by each of some parts."""
    expected = np.array([one.expected for one in differences])
    more = np.array([one.more for one in differences])
    variance = np.array([one.variance for one in differences])
    variance = variance + np.multiply.outer(_CHANGES**2, np.maximum(expected, 0.0) ** 2)
    variance, square = variance[:, expected > 0.0], more[expected > 0.0] ** 2
    return _posterior(np.ones(len(_CHANGES)), (np.log(variance) + square / variance).sum(axis=1))


def _difference(look: Counts, end: float, together: Tail) -> _Difference:
    own_top = top_knot(pool([look]), together.places, FALSE_ALARM)
    until = max(own_top, together.top) + 1
    reach = np.maximum(together.places[:until] - end, 0.0)
    expected = look.observations * together.rates[:until]
    return _Difference(
        more=float(reach @ (look.values[:until] - expected)),
        expected=float(reach @ expected),
        noise=look.variance * float(reach @ reach),
        by_chance=float(reach**2 @ np.maximum(expected, 0.0)),
    )
