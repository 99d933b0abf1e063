"""What a plan will give before any data are seen: noise exactly, clipping from a public guess.

The noise per unit of clipping range is a public number of the plan.  Where the range is learned,
the forecast rehearses the learning on made-up observations with an exponential tail of the guessed
scale (the m expected order statistics), with a few fixed secrets, and takes what comes out.

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
from rillet.statistic import Totals

__all__ = ["Candidate", "Forecast", "Guess", "Point", "chosen_times", "forecast"]

FloatArray = NDArray[np.float64]

#: Rehearsals of the learning; their mean square is the forecast.
REHEARSALS = 5
#: A longer lag is rehearsed with this many: more change the threshold little, and take long.
LONGEST_REHEARSAL = 1 << 17
#: Where the end is not known, forecasts stop here.
_HORIZON = 10_000_000
_TYPICAL_TIMES = 400


@dataclass(frozen=True)
class Guess:
    """A public guess: a share ``quantile`` of the values lies below ``value``."""

    value: float
    quantile: float

    def scale(self, lower: float, upper: float) -> float:
        """Scale of the exponential tail above ``lower`` that fits the guess."""
        if not 0 < self.quantile < 1:
            raise ParameterError(
                "guess", "a quantile between 0 and 1, as in 120@0.99", self.quantile
            )
        if not lower < self.value < upper:
            raise ParameterError("guess", f"a value between {lower:g} and {upper:g}", self.value)
        return (self.value - lower) / -math.log1p(-self.quantile)


@dataclass(frozen=True)
class Candidate:
    """A plan to compare, under the name that ``--mechanism`` knows."""

    name: str
    label: str
    plan: Plan

    @property
    def first_release(self) -> int:
        """Observation at which the first release comes."""
        return first_release(self.plan)


@dataclass(frozen=True)
class Point:
    """What to expect at observation ``t``, in units of the statistic.

    ``unit_noise_std`` is exact and needs no guess: times the width of the clipping range in force
    it is ``release.noise_std``.  ``clipping_error`` is the expected bias, ``error`` the root mean
    square of both; they are None where there is nothing to go by.
    """

    t: int
    unit_noise_std: float
    noise_std: float | None
    clipping_error: float | None
    error: float | None


@dataclass(frozen=True)
class Forecast:
    """What to expect of one candidate.

    ``thresholds`` are what the rehearsals learned (the declared one, where none is learned; empty
    without a guess); ``typical`` is the root mean square error over the releases after
    ``typical_from``.
    """

    candidate: Candidate
    thresholds: tuple[float, ...]
    points: tuple[Point, ...]
    typical_from: int
    typical: float | None

    @property
    def threshold(self) -> float | None:
        """The threshold to expect."""
        return float(np.mean(self.thresholds)) if self.thresholds else None

    @property
    def widths(self) -> FloatArray:
        """The widths of the clipping range to expect."""
        return np.array(self.thresholds) - self.candidate.plan.lower

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
            "at": [asdict(point) for point in self.points],
            "typical_from": self.typical_from,
            "typical_error": self.typical,
        }


def first_release(plan: Plan) -> int:
    """Observation at which the first release of a plan comes."""
    layout = plan.layout
    return layout.lag or min(layout.every, layout.length)


def horizon(plan: Plan) -> int:
    """The last observation to forecast: the length, or some way beyond the lag."""
    if plan.length is not None:
        return plan.last_t
    return max(_HORIZON, 10 * first_release(plan))


def chosen_times(plans: Sequence[Plan], given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Times to show: those given, or the first at which all release, and some up to the end."""
    last = min(horizon(plan) for plan in plans)
    if given:
        return tuple(sorted(set(given)))
    first = min(last, max(first_release(plan) for plan in plans))
    between = np.geomspace(first, last, 4)[1:-1]
    rounded = [float(f"{value:.2g}") for value in between]
    return tuple(sorted({first, *(int(value) for value in rounded if first < value < last), last}))


def forecast(
    candidate: Candidate,
    scale: float | None,
    times: Sequence[int],
    typical_from: int,
    rehearsals: int = REHEARSALS,
) -> Forecast:
    """What to expect of a candidate if values have an exponential tail of this scale."""
    plan = candidate.plan
    widths = expected_widths(plan, scale, rehearsals)
    points = tuple(point_at(plan, widths, scale, t) for t in times if t >= candidate.first_release)
    thresholds = tuple(float(plan.lower + width) for width in widths)
    typical = None
    if len(widths):
        first = max(typical_from, candidate.first_release)
        evenly = np.linspace(first, horizon(plan), _TYPICAL_TIMES).round().astype(np.int64)
        typical = _root_mean_square(_errors(plan, widths, scale, evenly))
    return Forecast(candidate, thresholds, points, typical_from, typical)


def expected_widths(plan: Plan, scale: float | None, rehearsals: int = REHEARSALS) -> FloatArray:
    """Widths of the clipping range: the declared one, or what rehearsals learned."""
    declared = plan.layout.declared_range
    if declared is not None:
        return np.array([declared.width])
    if scale is None:
        return np.empty(0)
    if plan.layout.lag > LONGEST_REHEARSAL:
        plan = replace(plan, lag=LONGEST_REHEARSAL, backfill=False)
    lag = plan.layout.lag
    made_up = plan.lower + scale * np.cumsum(1.0 / np.arange(lag, 0, -1))
    learned = []
    for number in range(rehearsals):
        stream = plan.open(secret=Secret.for_tests(number))
        stream.update_many(made_up)
        release = stream.latest()
        learned.append(release.clip_upper - release.clip_lower)
    return np.array(learned)


def point_at(plan: Plan, widths: FloatArray, scale: float | None, t: int) -> Point:
    """What to expect at ``t``."""
    unit = plan.unit_noise_std(t)
    if not len(widths):
        return Point(t, unit, None, None, None)
    noise = unit * _root_mean_square(widths)
    if scale is None:  # A declared range: nothing is clipped that the bound allows.
        return Point(t, unit, noise, None, noise)
    clipped = float(_clipping(plan, widths, scale, t))
    return Point(t, unit, noise, clipped, math.hypot(noise, clipped))


def curve(
    plan: Plan, widths: FloatArray, scale: float | None, first: int, columns: int, within: int = 6
) -> tuple[FloatArray, FloatArray]:
    """Times and expected errors on a logarithmic grid.

    The noise of a tree goes up and down with the binary digits of t, far more often than a curve
    can show, so each point is the root mean square over a few times near it.
    """
    grid = np.geomspace(max(first, first_release(plan)), horizon(plan), columns * within)
    times = grid.round().astype(np.int64)
    errors = _errors(plan, widths, scale, times).reshape(columns, within)
    return times.reshape(columns, within).mean(axis=1), np.sqrt(np.mean(errors**2, axis=1))


def _errors(
    plan: Plan, widths: FloatArray, scale: float | None, times: NDArray[np.int64]
) -> FloatArray:
    """Expected error at many times: what :func:`point_at` gives, at once."""
    noise: FloatArray = plan.unit_noise_std(times) * _root_mean_square(widths)
    return noise if scale is None else np.hypot(noise, _clipping(plan, widths, scale, times))


def _clipping(plan: Plan, widths: FloatArray, scale: float, t: Any) -> Any:
    """How far clipping brings the statistic's first number down at ``t``, over the rehearsals.

    From the mean excess of min(lower + exponential, upper) above the range, times ``t``.
    """
    if not plan.statistic.clips:
        return t * 0.0
    whole = plan.bounds.width
    each = _root_mean_square(scale * (np.exp(-widths / scale) - math.exp(-whole / scale)))
    readings = len(
        plan.layout.leaf.units(plan.layout.grid(plan.bounds, plan.layout.segments[-1], 0.5))
    )
    sums = (each * t, t * 1.0, each * t)
    totals = Totals(t, sums[:readings], lambda *_: t * 0.0, plan.bounds, True)
    return plan.statistic.numbers(totals)["value"]()


def _root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
