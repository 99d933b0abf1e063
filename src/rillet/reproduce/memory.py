"""Windows, half-lives and persons on the baskets: the noise that comes out beside the theory's.

**Privacy.** Public data and published secrets only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import ellipk

from rillet import datasets
from rillet.noise import Secret
from rillet.plan import Plan
from rillet.privacy import Person, gaussian_mu
from rillet.reproduce.context import Context
from rillet.reproduce.result import Result, Table, plain
from rillet.statistic import Count, Mean, Statistic
from rillet.strategy import DecayedToeplitz, Strategy, WindowToeplitz
from rillet.threshold import FixedThreshold

__all__ = ["memory", "people", "root_of_half_life", "root_of_window"]

FloatArray = NDArray[np.float64]

#: A public range: nearly no basket costs more.
DECLARED: Final = 150.0
BOUND: Final = 3000.0
WEEK: Final = 168
_START, _ZONE, _LENGTH = "2017-01-01T00:00", "America/New_York", "366d"
_WEEKS: Final = (4, 50)


def root_of_window(leaves: int) -> float:
    """V of a window: (1/2π)·∫|a(e^it)| dt, the least noise of any factorisation for ever."""
    whole = 0.0
    for k in range(leaves):  # |sin(wt/2)/sin(t/2)| is smooth between its zeros
        begin, end = 2 * math.pi * k / leaves, 2 * math.pi * (k + 1) / leaves
        whole += quad(lambda t: abs(math.sin(leaves * t / 2) / math.sin(t / 2)), begin, end)[0]
    return whole / (2 * math.pi)


def root_of_half_life(leaves: float) -> float:
    """V of a half-life: (2/π)·K(θ²)."""
    return 2 / math.pi * float(ellipk(4.0 ** (-1 / leaves)))


def _plan(statistic: Statistic, **more: Any) -> Plan:
    options: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 2.0**-20,
        "upper": DECLARED,
        "threshold": FixedThreshold(),
        "every": "1h",
        "start": _START,
        "zone": _ZONE,
        "length": _LENGTH,
        "statistic": statistic,
        **more,
    }
    if not statistic.clips:
        options["upper"] = None
    return Plan(**options)


@dataclass(frozen=True, eq=False)
class _Baskets:
    """The baskets, with the tick that each enters."""

    totals: FloatArray
    times: NDArray[np.datetime64]
    households: NDArray[np.int64]
    tick_of: NDArray[np.int64]

    def sums(self, plan: Plan, used: NDArray[np.bool_], upper: float) -> tuple[Any, Any]:
        """Exact sums of clipped values, and counts, that each release looks back on."""
        size = plan.last_t + 1
        ticks = self.tick_of[used]
        found = []
        for weights in (np.minimum(self.totals[used], upper), np.ones(len(ticks))):
            leaves = np.bincount(ticks, weights, size)[1:].astype(np.float64)
            leaves[: plan.layout.lag] = 0.0  # windows begin after the warm-up
            found.append(_looked_back(plan, leaves))
        return found[0], found[1]


def _looked_back(plan: Plan, leaves: FloatArray) -> FloatArray:
    running: FloatArray = np.cumsum(leaves)
    window = plan.memory.window
    if window is not None:
        running[window:] -= running[:-window].copy()
        return running
    if plan.memory.half_life is None:
        return running
    theta, total = plan.layout.discount, 0.0
    for place, leaf in enumerate(leaves.tolist()):
        total = leaves[place] = theta * total + leaf
    return leaves


def _baskets(context: Context) -> _Baskets:
    def load() -> _Baskets:
        totals, times, households = datasets.baskets_of_households()
        clock = _plan(Count()).clock
        assert clock is not None
        from rillet.gather.clock import as_times

        tick_of = clock.tick_of(as_times(times, len(times), clock.zone))
        return _Baskets(totals, times, households, tick_of)

    baskets: _Baskets = context.once("baskets of households", load)
    return baskets


def _runs(context: Context, plan: Plan, runs: int) -> list[Any]:
    """Releases of the whole year, run after run."""
    baskets, found = _baskets(context), []
    of_persons = {} if plan.unit is None else {"person": baskets.households}
    for run in range(runs):
        stream = plan.open(secret=Secret.for_tests(run))
        stream.update_many(baskets.totals, at=baskets.times, **of_persons)
        found.append(stream.advance(until="2018-01-03T00:00"))
    return found


def _in_week(releases: Any, week: int) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (releases.t > (week - 1) * WEEK) & (releases.t <= week * WEEK)
    return inside


def _measured(runs: list[Any], truth: FloatArray, name: str, week: int) -> tuple[float, float]:
    """Root mean square error over a week and all runs, and the noise std that was released."""
    here = _in_week(runs[0], week)
    exact = truth[runs[0].t[here] - 1]
    errors = [np.asarray(getattr(found, name))[here] - exact for found in runs]
    claimed = [np.asarray(getattr(found, f"{name}_noise_std"))[here] for found in runs]
    return float(np.sqrt(np.nanmean(np.square(errors)))), float(
        np.sqrt(np.nanmean(np.square(claimed)))
    )


#: With the strategies of which the theory speaks: at this ε and δ pure noise is somewhat less.
_MEMORIES: Final[tuple[tuple[str, dict[str, Any], Strategy, Callable[[], float]], ...]] = (
    (
        "window of 7 days",
        {"window": "7d"},
        WindowToeplitz(window=WEEK),
        lambda: root_of_window(WEEK),
    ),
    (
        "half-life of 1 day",
        {"half_life": "1d"},
        DecayedToeplitz(half_life=24),
        lambda: root_of_half_life(24),
    ),
)


def memory(context: Context) -> Result:
    """The last week and a half-life of a day, each hour, by the clock."""
    baskets, runs = _baskets(context), context.pick(150, 2)
    everything = np.ones(len(baskets.totals), bool)
    rows, numbers = [], {}
    for label, looks_back, strategy, root in _MEMORIES:
        counts = _plan(Count(**looks_back), strategy=strategy)
        means = _plan(Mean(**looks_back), strategy=strategy)
        learned = _plan(
            Mean(**looks_back),
            strategy=strategy,
            upper=BOUND,
            threshold="auto",
        )
        expected = root() / gaussian_mu(counts.guarantee)
        released = {}
        for name, plan in (("count", counts), ("mean", means), ("learned", learned)):
            context.tell(f"{label}, {name}")
            released[name] = _runs(context, plan, runs)
        for week in _WEEKS:
            sums, number = baskets.sums(counts, everything, DECLARED)
            count, _ = _measured(released["count"], number, "count", week)
            mean, claimed = _measured(released["mean"], sums / np.maximum(number, 1), "mean", week)
            sums, number = baskets.sums(learned, everything, np.inf)
            error, stated = _measured(
                released["learned"], sums / np.maximum(number, 1), "mean", week
            )
            numbers[f"{label}, week {week}"] = {
                "count": count,
                "theory": expected,
                "mean": mean,
                "stated": claimed,
                "learned": error,
                "learned_stated": stated,
            }
            rows.append(
                (
                    f"{label}, week {week}",
                    f"{count:.2f}",
                    f"{expected:.2f}",
                    f"{mean:.3f}",
                    f"{claimed:.3f}",
                    f"{error:.3f}",
                    f"{stated:.3f}",
                )
            )
    table = Table(
        f"Baskets each hour, ε = 1, δ = 2^-20, {runs} runs: root mean square over a week",
        (
            *("", "count", "v/μ", f"mean, range [0, {DECLARED:g}] ($)", "stated"),
            *(f"mean, learned below {BOUND:g} ($)", "stated"),
        ),
        tuple(rows),
    )
    return Result(
        name="memory",
        title="Windows and half-lives",
        paper="Section I names the sliding window and the decayed sum as uses of the mechanism.",
        ours=(
            "The noise of a window of a week is the same in week 4 and in week 50, and within some "
            "per cent of v, the least that any factorisation has for ever."
        ),
        difference="The paper has no figures for these.",
        numbers=plain(numbers),
        tables=[table],
    )


#: Whom it protects, and the statistic's memory.
_QUOTAS: Final[tuple[tuple[Person, dict[str, Any]], ...]] = (
    (Person(most=50, apart="7d"), {"window": "7d"}),
    (Person(most=10, apart="7d"), {"window": "7d"}),
    (Person(most=4, apart="7d", within="28d"), {"window": "7d"}),
    (Person(most=50, apart="7d"), {"window": "28d"}),
    (Person(most=50, apart="7d"), {}),
)
#: While all quotas last, and near the end of the year.
_WEEKS_OF_PERSONS: Final = (8, 50)


def people(context: Context) -> Result:
    """A household as the unit."""
    baskets, runs = _baskets(context), context.pick(60, 1)
    rows, numbers = [], {}
    for unit, looks_back in _QUOTAS:
        plan = _plan(Mean(**looks_back), unit=unit)
        strangers = _plan(Mean(**looks_back), strategy=plan.strategy)
        span = f"window {looks_back['window']}" if looks_back else "all so far"
        within = "" if unit.within is None else f" in {unit.within}"
        label = f"{unit.most}{within}, {unit.apart} apart, {span}"
        context.tell(label)
        used = _used(plan, baskets)
        sums, number = baskets.sums(plan, used, DECLARED)
        all_sums, all_number = baskets.sums(plan, np.ones(len(used), bool), np.inf)
        released = _runs(context, plan, runs)
        early, late = _WEEKS_OF_PERSONS
        noise, stated = _measured(released, number, "count", late)
        sum_noise, sum_stated = _measured(released, sums, "sum", late)
        means = all_sums / np.maximum(all_number, 1)
        errors = [_measured(released, means, "mean", week)[0] for week in (early, late)]
        last = late * WEEK
        group = strangers.expected_noise(last, strangers.bounds, rate=10.0)["sum_noise_std"]
        group *= unit.most
        own = plan.expected_noise(last, plan.bounds, rate=10.0)["sum_noise_std"]
        numbers[label] = {
            "count": noise,
            "count_stated": stated,
            "sum": sum_noise,
            "sum_stated": sum_stated,
            "over_group_privacy": own / group,
            "mean_error": errors,
            "used": float(used.mean()),
        }
        rows.append(
            (
                label,
                f"{noise:.0f}",
                f"{stated:.0f}",
                f"{sum_noise:,.0f}",
                f"{sum_stated:,.0f}",
                f"{own / group:.2f}",
                *(f"{error:.2f}" for error in errors),
                f"{used.mean():.0%}",
            )
        )
    table = Table(
        f"Baskets each hour, a household as the unit, ε = 1, δ = 2^-20, range [0, {DECLARED:g}], "
        f"{runs} runs: root mean square over week {_WEEKS_OF_PERSONS[1]}",
        (
            *("used of a household", "noise of the count", "stated", "of the sum ($)", "stated"),
            *("over group privacy's", f"error of the mean, week {_WEEKS_OF_PERSONS[0]} ($)"),
            *(f"week {_WEEKS_OF_PERSONS[1]} ($)", "baskets used"),
        ),
        tuple(rows),
    )
    return Result(
        name="people",
        title="A household as the unit",
        paper="Section VIII leaves the protection of several events of one person to future work.",
        ours=(
            "With spacing a household costs a fraction of what group privacy charges; the error of "
            "a weekly mean is what protecting a household costs at some 400 baskets a day."
        ),
        difference="The paper protects one basket.",
        numbers=plain(numbers),
        tables=[table],
    )


def _used(plan: Plan, baskets: _Baskets) -> NDArray[np.bool_]:
    """Which baskets the gate lets in: the rule, in plain Python."""
    rule = plan.layout.gate
    assert rule is not None
    within = rule.within or plan.last_t
    last: dict[tuple[int, int], tuple[int, int]] = {}
    used = np.zeros(len(baskets.totals), bool)
    for place, (person, tick) in enumerate(
        zip(baskets.households.tolist(), baskets.tick_of.tolist(), strict=True)
    ):
        if not 1 <= tick <= plan.last_t:
            continue
        entry = person, (tick - 1) // within
        before, count = last.get(entry, (-rule.apart, 0))
        if count < rule.most and tick >= before + rule.apart:
            last[entry] = tick, count + 1
            used[place] = True
    return used
