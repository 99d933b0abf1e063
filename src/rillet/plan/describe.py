"""A plan in words: what is protected, what happens when, how much noise to expect, and why.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rillet.errors import ParameterError
from rillet.layout import Layout, Segment
from rillet.paper.recommended import CRITERIA, recommended_lag
from rillet.plan.choose import Choice
from rillet.privacy import Person
from rillet.release import noise_deviations
from rillet.statistic import Range
from rillet.threshold import SmoothQuantile
from rillet.times import duration_words, period_words, show_moment

#: So many observations in a tick that their number is known well: noise then falls as one over it.
_MANY = 2.0**50
#: Where no end is known, the noise is told after so many observations.
_SOME = 1_000_000
#: Below so many observations times ε, by count and by the clock, the looks of a whole stream see
#: hardly more than their own noise.  Of exponential values, by count at ε = 0.02 below a bound 72
#: times their scale, 95 % intervals covered 38 % of 60 means at 200, 65 % at 400, all at 1,000.  By
#: the clock, where the first look has a thirtieth of the stream and not a sixth, errors were twice
#: to ten times those forecast up to 5,800, and as forecast at 11,500.
_FEWEST_TO_LEARN = {"by count": 1_000, "by clock": 10_000}
_LATE = {
    "enter": "enters the tick that is open when it arrives",
    "drop": "is left out",
}
_NOT_PROTECTED = "Not protected: the schedule, when a release comes, and which keys are declared."
_EARLY = {"hold": "is held until its tick opens", "drop": "is left out"}


def describe(layout: Layout, choice: Choice) -> str:
    """The plan for a person: promise, course, noise, reasons."""
    lines = [f"Promise: {layout.guarantee}."]
    lines += [f"From tick {first:,} on: {promise}." for first, promise in layout.later]
    lines += _protected(layout)
    lines += _course(layout)
    lines += [_noise(layout), *_totals(layout), _missing(layout)]
    if layout.clock is not None:
        lines += _by_the_clock(layout)
    lines += [f"Why: {reason}" for reason in choice.reasons]
    lines += _short_lag(layout)
    if layout.clock is None and layout.length_is_known:
        lines += [f"Warning: {each}" for each in learned_from_noise(layout, layout.length)]
    lines += [f"Turned down: {other}" for other in _turned_down(layout, choice)]
    return "\n".join(lines)


def _protected(layout: Layout) -> Iterator[str]:
    """What the promise means by the clock, where it is another one than people may expect."""
    if layout.clock is None:
        return
    if layout.unit is not None:
        yield from _of_a_person(layout.unit)
        return
    twice = "2μ on the sum" if layout.noise_law == "gaussian" else "2ε"
    if layout.warm_up is not None and layout.main is not None:
        twice = "2ε in the warm-up" + ", 2μ on the sum" * (layout.main.strategy.law == "gaussian")
    yield "Protected: one observation, its value and that it is there; how many come is hidden."
    yield (
        "Replacing a value counts as two steps, one removed and one added, and may cost up to "
        f"twice as much ({twice})."
    )
    yield _NOT_PROTECTED


def _of_a_person(person: Person) -> Iterator[str]:
    """What is protected of a person, what is used, and what that does to the numbers."""
    yield (
        "Protected: one person, in all keys: their values, and that they are there at all; how "
        "many persons and observations come is hidden."
    )
    yield _NOT_PROTECTED
    where = "of each person"
    if person.within is not None:
        span = duration_words(person.length("within"))
        where += f" in each block of {span}, counted from the start,"
        yield (
            f"The promise is for one block of {span}. Over a span of that length that is not a "
            "block a person may cost up to three times as much (3μ), and over several blocks more."
        )
    yield (
        f"Used {where} are the first observations that come, {person.bound}, over all keys: what "
        "people do early is over-represented."
    )
    yield (
        "All others, and what has no person id, are left out. How many that were is never "
        "published."
    )


def _course(layout: Layout) -> Iterator[str]:
    """What happens when."""
    clock, lag, known = layout.clock, layout.lag, layout.length_is_known
    if lag:
        spent = f"ε₁ = {float(layout.threshold_cost.epsilon):.4g}"
        if layout.first_look:
            spent = str(layout.threshold_cost)
        budget = f"{layout.threshold.name}, {spent}"
        if clock is None:
            then = "their sum is released with the rest"
            if layout.memory.forgets:
                then = "nothing else is released of them"
            yield f"The first {lag:,} observations teach the range ({budget}); {then}."
        else:
            learns = "of all keys together teach" if layout.fleet else "teach"
            if layout.groups > 1:
                learns = f"teach each of {layout.groups:,} groups of keys, by itself,"
            yield (
                f"The first {duration_words(lag * clock.every)} ({_ticks(lag)}) {learns} the range "
                f"({budget}); the first release comes after them, at "
                f"{show_moment(clock.end_of(layout.first_release))}."
            )
            yield from _alone(layout)
    elif layout.statistic.clips:
        assert layout.declared_range is not None
        yield f"Values are clipped at {layout.declared_range.upper:g}, declared."
    if layout.main is None:
        return
    yield from _memory(layout)
    through = f"through {layout.main.strategy.name} ({layout.main.strategy.law} noise)"
    if clock is None:
        cadence = "each observation" if layout.every == 1 else f"every {layout.every:,}"
        end = f"up to {layout.length:,} observations" if known else "without a known end"
        yield f"{'Then a' if lag else 'A'} release for {cadence} {through}, {end}."
        return
    last = f"to {show_moment(clock.end_of(layout.length))} ({_ticks(layout.length - lag)})"
    if not known:
        last = "on, without a known end"
    yield (
        f"{'Then a' if lag else 'A'} release {period_words(clock.every)}, "
        f"from {show_moment(clock.end_of(lag + 1))} {last}, whether anything came or not, "
        f"{through}."
    )


def _alone(layout: Layout) -> Iterator[str]:
    """From when on a key of many has a range of its own."""
    needed = [(one, layout.enough_to_learn_alone(one)) for one in layout.segments]
    enough = [many / (one.last - one.first + 1) for one, many in needed if many is not None]
    if layout.keys > layout.groups and enough:
        yield (
            f"A key with more than about {min(enough):,.3g} observations in a tick, by its "
            "released counts, learns its range alone from then on. That costs nothing: they are in "
            "a look of its own instead of the one that keys share."
        )


def _memory(layout: Layout) -> Iterator[str]:
    """What a release looks back on, where that is not all so far."""
    memory, clock = layout.memory, layout.clock
    if not memory.forgets:
        return
    leaves = memory.half_life if memory.window is None else memory.window
    assert leaves is not None
    span = f"{leaves * layout.every:,g} observations"
    if clock is not None:
        span = duration_words(round(leaves * clock.every))
    learned = " after those" if layout.lag else ""
    if memory.window is not None:
        yield f"A release looks back on the last {span}, as far as there are so many{learned}."
    else:
        yield f"A release looks back on all so far{learned}; after {span} a value counts half."


def _ticks(count: int) -> str:
    return f"{count:,} tick{'s' * (count != 1)}"


def _noise(layout: Layout) -> str:
    """How much noise the last release has, as far as public numbers tell."""
    declared, last = layout.declared_range, layout.length
    if not layout.length_is_known and layout.clock is None:
        last = min(last, max(_SOME, 10 * layout.first_release))
    clipping = Range(0.0, 1.0) if declared is None else declared
    std = layout.expected_noise(last, clipping, rate=_MANY)["noise_std"]
    over = ""
    if math.isclose(layout.expected_noise(last, clipping, rate=2 * _MANY)["noise_std"], std / 2):
        std *= _MANY * float(layout.remembered(last))
        over = ", divided by how many observations there are"
    reach = noise_deviations(0.95, layout.noise_law) * std
    counts = layout.statistic.kinds[0] == "count"  # which are no larger in a wider range
    of_range = " times the clipping range" if declared is None and not counts else ""
    if layout.statistic.spread_evenly:
        over += ", if values are spread evenly over the bins"
    name = layout.statistic.names[0] if len(layout.statistic.names) > 1 else layout.statistic.name
    name = (
        f"the last {name}" if last == layout.length else f"the {name} after {last:,} observations"
    )
    return f"Noise of {name}: ± {reach:.3g}{of_range} (95 %){over}."


def _totals(layout: Layout) -> Iterator[str]:
    """Which totals there are, what they get of the budget, and what that gains."""
    if not layout.levels:
        return
    steps = layout.segments[-1].steps if layout.main is None else layout.main.steps

    def times(segments: tuple[Segment, ...]) -> float:
        """The noise of a stream on this lattice, in that of a key without levels."""
        return steps / segments[-1].steps

    yield (
        f"Totals: each observation is in {len(layout.levels)} of them, beside its key; made "
        f"consistent by least squares. A key has {times(layout.segments):.2f} times the noise that "
        "it would have without."
    )
    for level in layout.levels:
        of = f"{level.keys:,} keys"
        if level.count > 1:
            of = f"{level.count:,} totals of up to {of}"
        added = times(layout.segments) * math.sqrt(level.keys)
        own = times(level.segments)
        both = 1 / math.hypot(1 / own, 1 / added)
        yield (
            f"Total {level.name} ({100 * level.share:.3g} % of the budget, {of}): at most "
            f"{both:.3g} times that noise; keys that are added up without levels have "
            f"{math.sqrt(level.keys):.3g} times."
        )


def _missing(layout: Layout) -> str:
    """What becomes of a value that is no number."""
    what = "A missing value (NaN, an empty cell, text)"
    declared, bounds = layout.missing_value, layout.bounds
    if declared is not None:
        counts = min(max(declared, bounds.lower), bounds.upper)
        if layout.statistic.clips and counts != declared:
            return f"{what} counts as {counts:g}: {declared:g}, as declared, is clipped to it."
        return f"{what} counts as {declared:g}, as declared."
    if not layout.setting.missing:
        return (
            "Declared: no value is missing. One that is (NaN, an empty cell, text) counts as the "
            "middle of the range."
        )
    if layout.clock is not None:
        return f"{what} is left out, as if it had not come."
    return f"{what} is left out; how many were is protected, and estimated where it is noticeable."


def _by_the_clock(layout: Layout) -> Iterator[str]:
    """How single observations are treated."""
    clock = layout.clock
    assert clock is not None
    grace = f", {duration_words(clock.grace)} after its end" if clock.grace else ""
    yield (
        f"Live, a tick is closed by the wall clock{grace}. A late observation, whose tick is "
        f"closed, {_LATE[clock.late]}; an early one {_EARLY[clock.early]}."
    )
    zone = f"of the zone {clock.zone}" if clock.zone else "left out"
    yield (
        f"Times without a zone are {zone}. What has no time that can be read, or one before the "
        "start or after the end, is left out."
    )
    yield (
        f"{layout.fewest_to_saturate:,} observations fit into a tick; with more of them it may "
        "saturate, and the surplus adds nothing."
    )


def _short_lag(layout: Layout) -> Iterator[str]:
    """Where the paper would not expect its threshold to pay, as the lag was given."""
    if not isinstance(layout.threshold, SmoothQuantile):
        return
    share = float(layout.threshold_budget) / layout.guarantee.epsilon
    try:
        wanted = recommended_lag(layout.threshold, layout.guarantee, share)
    except ParameterError:  # such as λ = 1, for which no lag is long enough
        return
    if layout.lag < wanted:
        yield (
            f"Short: {CRITERIA} ask for a lag of {wanted:,} observations. With {layout.lag:,} the "
            "threshold may gain nothing over the plain binary tree; a public guess of the scale "
            "tells (Plan.paper(public_guess=…), rillet plan --mechanism tuned --typical …)."
        )


def learned_from_noise(layout: Layout, each: float) -> Iterator[str]:
    """Where a range is learned of too few observations for this ε; ``each`` stream has so many."""
    shares = layout.shared is not None
    if not layout.lag and not shares:
        return
    # Keys that share a range learn it together.
    observations = each * (layout.keys if shares else 1)
    seen = observations * layout.guarantee.epsilon
    fewest = _FEWEST_TO_LEARN["by count" if layout.clock is None else "by clock"]
    if seen < fewest:
        yield (
            f"a learned range follows noise here: {observations:,.6g} observations are too few for "
            f"ε = {layout.guarantee.epsilon:g} (their product is {seen:,.4g}, below {fewest:,}). "
            "Errors may be many times those predicted, and intervals miss more often than they "
            "say. Declare a tight upper and clip at it (lag=0, or --threshold fixed), or give "
            'tail="bound" for intervals that hold.'
        )


def _turned_down(layout: Layout, choice: Choice) -> list[str]:
    """Other strategies under the same promise, by the noise that the plan compared them by.

    A plan that names its strategy has turned nothing down.
    """
    window = layout.memory.window
    late = window is None or layout.main is None or 2 * window > layout.main.leaves
    where = " in the second half" if late else " in the last window"
    where = " of keys and totals" * bool(layout.levels) + where
    lines = [
        f"{other.name} ({other.law} noise), {ratio:.2f} times the noise{where}."
        for other, ratio in choice.turned_down
    ]
    if lines and layout.lag and not layout.bounds.is_open:
        lines.append("clipping at upper from the start, which scales the noise to the bound.")
    return lines
