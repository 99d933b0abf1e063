"""What a plan will give before any data are seen: noise exactly, clipping from a public guess.

The noise per unit of clipping range is a public number of the plan; by the clock a mean's also
needs a guess of how many observations come.  Where the range is learned, the forecast rehearses the
learning on made-up observations with an exponential tail of the guessed scale (the m expected order
statistics), with a few fixed secrets, and takes what comes out.  A range that is learned again is
taken to be the best one for the time, from the second look on.

Times ``t`` are observations, or by the clock ticks.

**Privacy.** Public numbers only: nothing here can see an observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.noise import Secret
from rillet.plan import Plan
from rillet.statistic import Range, Totals
from rillet.times import duration, per_period, show_duration, show_moment

__all__ = ["Candidate", "Forecast", "Guess", "Guesses", "Point", "chosen_times", "forecast"]

FloatArray = NDArray[np.float64]

#: Rehearsals of the learning; their mean square is the forecast.
REHEARSALS = 5
#: A longer lag is rehearsed with this many: more change the threshold little, and take long.
LONGEST_REHEARSAL = 1 << 17
#: By the clock a tick with more is rehearsed with this many.
_LARGEST_REHEARSAL = 1 << 20
#: Where the end is not known, forecasts stop here.
_HORIZON = 10_000_000
_HORIZON_BY_CLOCK = duration("365d")
#: By the clock, times that people think in.
_NATURAL = tuple(map(duration, ("1m", "1h", "1d", "7d", "30d", "365d")))
_TYPICAL_TIMES = 400
#: Widths among which the best is looked for, in equal steps of the logarithm.
_WIDTHS_TRIED = 64


@dataclass(frozen=True)
class Guess:
    """A public guess: a share ``quantile`` of the values lies below ``value``."""

    value: float
    quantile: float

    def scale(self, bounds: Range) -> float:
        """Scale of the exponential tail that fits the guess, above the lower bound if any."""
        if not 0 < self.quantile < 1:
            raise ParameterError(
                "guess", "a quantile between 0 and 1, as in 120@0.99", self.quantile
            )
        if not bounds.lower < self.value < bounds.upper or self.value == bounds.origin:
            expected = f"a value between {bounds.lower:g} and {bounds.upper:g}"
            raise ParameterError("guess", expected, self.value)
        return abs(self.value - bounds.origin) / -math.log1p(-self.quantile)


@dataclass(frozen=True)
class Guesses:
    """What forecasts go by: the scale of an exponential tail, and by the clock a rate.

    ``rate`` is a number for each tick, or a text such as ``"400/h"``.
    """

    scale: float | None = None
    rate: float | str | None = None

    def in_tick(self, plan: Plan) -> float:
        """How many observations a tick has, by count one; NaN where that is anybody's guess."""
        if plan.clock is None:
            return 1.0
        return np.nan if self.rate is None else per_period(self.rate, plan.clock.every)

    def observations(self, plan: Plan, t: Any) -> Any:
        """How many observations a release at ``t`` looks back on."""
        return plan.layout.remembered(t) * self.in_tick(plan)

    def mean(self, plan: Plan, clipping: Range) -> float | None:
        """The mean of the clipped values; None without a guess."""
        if self.scale is None:
            return None
        distance = -self.scale * math.expm1(-clipping.width / self.scale)
        return plan.bounds.origin + _direction(plan) * distance


def _direction(plan: Plan) -> int:
    """Values are taken to lie above the lower bound; where only an upper one is declared, below."""
    return -1 if plan.lower is None and plan.upper is not None else 1


@dataclass(frozen=True)
class Candidate:
    """A plan to compare, under the name that ``--mechanism`` knows."""

    name: str
    label: str
    plan: Plan

    @property
    def first_release(self) -> int:
        """``t`` of the first release."""
        return self.plan.layout.first_release


@dataclass(frozen=True)
class Point:
    """What to expect at ``t``, in units of the statistic.

    ``unit_noise_std`` needs no guess of values; by the clock they are taken to lie at the lower
    end.  By count, times the width of the clipping range, it is ``release.noise_std`` of a mean or
    a sum, if that range was in force all along.  It is None for counts, whose ``noise_std`` needs
    no guess either.  ``clipping_error`` is the expected bias, ``error`` the root mean square of
    both; they are None where there is nothing to go by, and where there is no mean yet because its
    count is lost in noise.  ``numbers`` has the noise std of the mean, the sum and the count, as a
    record.
    """

    t: int
    unit_noise_std: float | None
    noise_std: float | None
    clipping_error: float | None
    error: float | None
    numbers: dict[str, float | None]


@dataclass(frozen=True)
class Forecast:
    """What to expect of one candidate.

    ``thresholds`` are what the rehearsals learned (the declared one, where none is learned; empty
    without a guess); ``typical`` is the geometric mean of the errors of the releases after
    ``typical_from``: a few releases that are far off do not decide it, as in a root mean square.
    """

    candidate: Candidate
    thresholds: tuple[float, ...]
    points: tuple[Point, ...]
    typical_from: int
    typical: float | None
    guesses: Guesses

    @property
    def threshold(self) -> float | None:
        """The threshold to expect."""
        return float(np.mean(self.thresholds)) if self.thresholds else None

    @property
    def widths(self) -> FloatArray:
        """The widths of the clipping range to expect."""
        return np.array(self.thresholds) - self.candidate.plan.bounds.origin

    @property
    def last(self) -> Point:
        """The last point."""
        return self.points[-1]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        layout = self.candidate.plan.layout
        return {
            "mechanism": self.candidate.name,
            "label": self.candidate.label,
            "first_release": self.candidate.first_release,
            "lag": layout.lag,
            "expected_threshold": self.threshold,
            "budget": [event.to_dict() for event in layout.events()],
            "at": [self._to_dict(point) for point in self.points],
            "typical_from": self.typical_from,
            "typical_error": self.typical,
        }

    def _to_dict(self, point: Point) -> dict[str, Any]:
        fields: dict[str, Any] = asdict(point)
        numbers: dict[str, Any] = fields.pop("numbers")
        clock = self.candidate.plan.clock
        if clock is not None:
            fields["at"] = show_moment(clock.end_of(point.t))
            fields["after"] = show_duration(point.t * clock.every)
        return fields | numbers


def horizon(plan: Plan) -> int:
    """The last time to forecast: the length, or some way beyond the lag."""
    if plan.length is not None:
        return plan.last_t
    usual = _HORIZON if plan.clock is None else _HORIZON_BY_CLOCK // plan.clock.every
    return min(plan.last_t, max(usual, 10 * plan.layout.first_release))


def chosen_times(plans: Sequence[Plan], given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Times to show: those given, or the first at which all release, and some up to the end.

    By the clock after an hour, a day, a week and so on.
    """
    last = min(horizon(plan) for plan in plans)
    if given:
        return tuple(sorted(set(given)))
    first_releases = [plan.layout.first_release for plan in plans]
    first = min(last, max(first_releases))
    clock = plans[0].clock
    if clock is not None:
        natural = [length // clock.every for length in _NATURAL]
        between = [float(t) for t in natural if min(first_releases) <= t]
        return tuple(sorted({first, *(int(t) for t in between if t < last), last}))
    between = [float(f"{value:.2g}") for value in np.geomspace(first, last, 4)[1:-1]]
    return tuple(sorted({first, *(int(value) for value in between if first < value < last), last}))


def forecast(
    candidate: Candidate,
    guesses: Guesses,
    times: Sequence[int],
    typical_from: int,
    rehearsals: int = REHEARSALS,
) -> Forecast:
    """What to expect of a candidate if these guesses are right."""
    plan = candidate.plan
    widths = expected_widths(plan, guesses, rehearsals)
    points = tuple(
        point_at(plan, widths, guesses, t) for t in times if t >= candidate.first_release
    )
    thresholds = tuple(float(plan.bounds.origin + width) for width in widths)
    typical = None
    if len(widths):
        first = max(typical_from, candidate.first_release)
        evenly = np.linspace(first, horizon(plan), _TYPICAL_TIMES).round().astype(np.int64)
        with np.errstate(divide="ignore"):  # no error at all is none in the mean
            typical = _known(np.exp(np.mean(np.log(_errors(plan, widths, guesses, evenly)))))
    return Forecast(candidate, thresholds, points, typical_from, typical, guesses)


def expected_widths(plan: Plan, guesses: Guesses, rehearsals: int = REHEARSALS) -> FloatArray:
    """Widths of the clipping range: the declared one, or what rehearsals learned."""
    declared = plan.layout.declared_range
    if declared is not None:
        return np.array([declared.width])
    in_tick = guesses.in_tick(plan)
    if guesses.scale is None or math.isnan(in_tick):
        return np.empty(0)
    longest = max(1, int(LONGEST_REHEARSAL / in_tick))
    if plan.layout.lag > longest:
        plan = replace(plan, lag=longest, backfill=False)
    count = min(max(1, round(plan.layout.lag * in_tick)), _LARGEST_REHEARSAL)
    steps = guesses.scale * np.cumsum(1.0 / np.arange(count, 0, -1))
    made_up = plan.bounds.origin + _direction(plan) * steps
    # Where the warm-up itself is not released, the next leaf tells what was learned.
    first, learned = plan.layout.first_release, []
    next_leaf = np.full(first - plan.layout.lag, plan.bounds.origin)
    of_persons = {} if plan.unit is None else {"person": np.arange(count)}
    for number in range(rehearsals):
        stream = plan.open(secret=Secret.for_tests(number))
        if plan.clock is None:
            stream.update_many(np.append(made_up, next_leaf))
        else:  # which tick of the warm-up they are in makes no difference
            stream.update_many(made_up, at=plan.start, **of_persons)
            end = plan.clock.end_of(first) + plan.clock.grace
            stream.advance(until=show_moment(end))
        release = stream.latest()
        learned.append(release.clip_upper - release.clip_lower)
    return np.array(learned)


def point_at(plan: Plan, widths: FloatArray, guesses: Guesses, t: int) -> Point:
    """What to expect at ``t``."""
    unit = None
    if plan.statistic.kinds[0] != "count":
        unit = _known(plan.unit_noise_std(t, rate=guesses.rate))
    elif not len(widths):  # a count has the same noise in any range
        widths = np.ones(1)
    if not len(widths):
        return Point(t, unit, None, None, None, {})
    stds, clipped = _parts(plan, widths, guesses, np.array([t]))
    numbers = {name: _known(std[0]) for name, std in stds.items()}
    noise = numbers.pop("noise_std")
    if guesses.scale is None:  # A declared range: nothing is clipped that the bound allows.
        return Point(t, unit, noise, None, noise, numbers)
    bias = _known(clipped[0])
    error = None if noise is None or bias is None else math.hypot(noise, bias)
    return Point(t, unit, noise, bias, error, numbers)


def _known(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _noise(plan: Plan, widths: FloatArray, guesses: Guesses, t: Any) -> dict[str, Any]:
    """Noise std of each number of a release, in a range of the expected width."""
    clipping = Range(plan.bounds.origin, plan.bounds.origin + _root_mean_square(widths))
    mean = None if plan.clock is None else guesses.mean(plan, clipping)
    return plan.expected_noise(t, clipping, rate=guesses.rate, mean=mean)


def curve(
    plan: Plan, widths: FloatArray, guesses: Guesses, first: int, columns: int, within: int = 6
) -> tuple[FloatArray, FloatArray]:
    """Times and expected errors on a logarithmic grid.

    The noise of a tree goes up and down with the binary digits of t, far more often than a curve
    can show, so each point is the root mean square over a few times near it.
    """
    begin = max(first, plan.layout.first_release)
    times = np.geomspace(begin, horizon(plan), columns * within).round().astype(np.int64)
    errors = _errors(plan, widths, guesses, times).reshape(columns, within)
    return times.reshape(columns, within).mean(axis=1), np.sqrt(np.mean(errors**2, axis=1))


def _errors(
    plan: Plan, widths: FloatArray, guesses: Guesses, times: NDArray[np.int64]
) -> FloatArray:
    """Expected error at many times: what :func:`point_at` gives, at once.

    Where there is no mean yet, the whole range.
    """
    stds, clipped = _parts(plan, widths, guesses, times)
    noise = stds["noise_std"]
    return np.hypot(np.where(np.isnan(noise), _root_mean_square(widths), noise), clipped)


def _parts(
    plan: Plan, widths: FloatArray, guesses: Guesses, times: NDArray[np.int64]
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Noise std of each number, and how far clipping brings the first one down, at some times."""
    stds: dict[str, FloatArray] = {
        name: np.broadcast_to(np.asarray(std, float), times.shape)
        for name, std in _noise(plan, widths, guesses, times).items()
    }
    scale = guesses.scale
    if scale is None or not plan.statistic.clipping_moves:
        return stds, np.zeros(times.shape)
    by_excess = _clipping(plan, guesses, times)
    whole, usual = plan.bounds.width, _root_mean_square(widths)
    clipped = by_excess * _root_mean_square(_excess(widths, scale, whole))
    segments = plan.layout.segments
    if len(segments) < 2 or segments[0].look is None:
        return stds, clipped
    # The noise of what is clipped grows with the width, the excess beyond it falls.
    tried = np.geomspace(min(scale, whole) / 8, whole, _WIDTHS_TRIED)
    noise = stds["noise_std"][:, None] * (tried / usual)
    bias = by_excess[:, None] * _excess(tried, scale, whole)
    best = np.argmin(np.nan_to_num(np.hypot(noise, bias), nan=np.inf), axis=1)
    again = times > segments[0].last
    stretch = np.where(again, tried[best] / usual, 1.0)
    stds |= {name: std * stretch for name, std in stds.items() if not name.startswith("count")}
    return stds, np.where(again, bias[np.arange(times.size), best], clipped)


def _excess(widths: FloatArray, scale: float, whole: float) -> FloatArray:
    """Mean excess of min(exponential, whole) above each width."""
    found: FloatArray = scale * (np.exp(-widths / scale) - math.exp(-whole / scale))
    return found


def _clipping(plan: Plan, guesses: Guesses, t: NDArray[np.int64]) -> FloatArray:
    """How far clipping brings the statistic's first number down, per mean excess above the range.

    Of a mean that is 1, of a sum as many as there are values.
    """
    leaf = plan.layout.leaf
    sums = leaf.totals(guesses.observations(plan, t), 1.0, leaf.readings)
    complete = True if leaf.may_be_complete else None
    count = plan.layout.remembered(t) if plan.clock is None else None
    totals = Totals(count, sums, lambda *_: t * 0.0, plan.bounds, complete)
    first = np.ravel(plan.statistic.numbers(totals)["value"]())[:: len(plan.statistic.names)]
    return np.broadcast_to(first, t.shape)


def _root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
