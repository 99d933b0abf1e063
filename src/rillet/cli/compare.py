"""The comparison behind ``rillet plan``: candidates, forecasts, the choice.

**Privacy.** Reads no data: public numbers and the user's public guess.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rillet.cli.common import (
    given_plan_options,
    missing_in_the_middle,
    plan_from,
    show,
    whole,
)
from rillet.cli.forecast import Candidate, Forecast, Guess, Guesses, chosen_times, forecast
from rillet.errors import ParameterError
from rillet.plan import Plan, options_for
from rillet.plan.describe import learned_from_noise
from rillet.statistic import Range
from rillet.threshold import SmoothQuantile
from rillet.times import duration, show_duration, show_moment

if TYPE_CHECKING:
    from rillet.paper.optimise import Prediction

__all__ = ["Comparison", "compare"]

LABELS = {
    "baseline": "plain tree",
    "paper": "paper's mechanism",
    "auto": "rillet's choice",
    "tuned": "paper's, tuned",
    "bound": "at the bound",
}
#: By how much the guess may be wrong.
FACTORS = (0.1, 0.5, 1.0, 2.0, 10.0)
_REHEARSALS_IF_WRONG = 2
_MEDIAN = 0.5
#: Errors that differ by less are the same: then what releases first is better.
_AS_GOOD = 1.02
#: By so much the error of a range that is learned of too few observations may be above its forecast
#: (up to ten times was seen by the clock, 46 times by count): only what is more than that decides.
_FAR_OFF = 20.0


@dataclass(frozen=True)
class Comparison:
    """Everything the command shows."""

    candidates: tuple[Candidate, ...]
    #: Candidates that cannot be made of these numbers, with the reason.
    impossible: tuple[str, ...]
    guess: Guess | None
    guesses: Guesses
    times: tuple[int, ...]
    forecasts: tuple[Forecast, ...]
    #: For each factor of FACTORS the typical error of each candidate.
    if_wrong: tuple[tuple[float, tuple[float | None, ...]], ...]
    chosen: int
    reasons: tuple[str, ...]
    #: What the paper's bound says of its own candidates, by their names.
    bounds: Mapping[str, Prediction]
    #: What a reader of the forecasts must know to be not misled.
    warnings: tuple[str, ...]

    @property
    def baseline(self) -> Forecast | None:
        """The plain binary tree, which comes first where it is possible."""
        return self.forecasts[0] if self.candidates[0].label == LABELS["baseline"] else None

    @property
    def scale(self) -> float | None:
        """Scale of the exponential tail that values are taken to have."""
        return self.guesses.scale

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.candidates[self.chosen].plan

    @property
    def expected(self) -> Forecast:
        """What to expect of the chosen plan."""
        return self.forecasts[self.chosen]

    def improvement(self, forecast: Forecast) -> float | None:
        """Typical error of the plain binary tree over that of another, over the same releases."""
        plain = self.baseline
        if plain is None or plain.typical is None or forecast.typical is None:
            return None
        return plain.typical / forecast.typical

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plan = self.plan
        guess = None
        if self.guess is not None:
            value, quantile = self.guess.value, self.guess.quantile
            guess = {"value": value, "quantile": quantile, "exponential_scale": self.scale}
        names = [candidate.name for candidate in self.candidates]
        mechanisms = []
        for each in self.forecasts:
            fields = each.to_dict()
            fields["improvement_over_baseline"] = self.improvement(each)
            mechanisms.append(fields)
        return {
            "format": "rillet-comparison-1",
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "lower": plan.lower,
            "upper": plan.upper,
            "length": plan.length,
            "every": plan.every,
            "start": plan.start,
            "rate": self.guesses.rate,
            "statistic": plan.statistic.name,
            "guess": guess,
            "mechanisms": mechanisms,
            "typical_error_if_scale_is": [
                {"factor": factor, **dict(zip(names, errors, strict=True))}
                for factor, errors in self.if_wrong
            ],
            "bounds": {name: _bound_fields(found) for name, found in self.bounds.items()},
            "impossible": list(self.impossible),
            "chosen": self.candidates[self.chosen].name,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "plan": json.loads(plan.to_json()),
        }


def compare(args: argparse.Namespace) -> Comparison:
    """Forecast every candidate and choose."""
    baseline = _first(args)
    guess = scale = None
    if baseline.plan.statistic.clips:
        guess, scale = _guess(args, baseline.plan.bounds)
    guesses = Guesses(scale, args.rate)
    candidates: tuple[Candidate, ...] = (baseline,)
    impossible: tuple[str, ...] = ("what clips at a bound: there is none",)
    if not baseline.plan.bounds.is_open:
        candidates, impossible = _candidates(args, baseline, scale)
    given = None if args.at is None else [_time(text, baseline.plan) for text in args.at]
    times = chosen_times([candidate.plan for candidate in candidates], given)
    typical_from = max(candidate.first_release for candidate in candidates)
    forecasts = tuple(forecast(each, guesses, times, typical_from) for each in candidates)
    if_wrong = []
    for factor in FACTORS if scale is not None else ():
        assert scale is not None
        errors = [
            each.typical
            if factor == 1
            else forecast(
                each.candidate,
                Guesses(scale * factor, args.rate),
                (),
                typical_from,
                _REHEARSALS_IF_WRONG,
            ).typical
            for each in forecasts
        ]
        if_wrong.append((factor, tuple(errors)))
    chosen, reasons = _choose(args, forecasts)
    bounds, no_bound = _bounds(args, candidates, scale)
    return Comparison(
        candidates=candidates,
        impossible=impossible + no_bound,
        guess=guess,
        guesses=guesses,
        times=times,
        forecasts=forecasts,
        if_wrong=tuple(if_wrong),
        chosen=chosen,
        reasons=reasons,
        bounds=bounds,
        warnings=_warnings(args, candidates, chosen, guesses),
    )


def _first(args: argparse.Namespace) -> Candidate:
    """The plain binary tree; without a bound it does not exist, and the automatic plan is alone."""
    given = given_plan_options(args)
    if given.get("upper", "none") == "none" or given.get("lower") == "none":
        mechanism = "auto" if args.mechanism is None else args.mechanism
        chosen = _plan(args, "paper" if mechanism == "tuned" else mechanism)
        if chosen.bounds.is_open:
            return Candidate("auto", LABELS["auto"], chosen)
    plain = _plan(args, "baseline")
    if plain.memory.half_life is None:
        return Candidate("baseline", LABELS["baseline"], plain)
    label = LABELS["bound"] + ", none missing" * (plain.missing == "none")
    return Candidate("baseline", label, plain)


def _bounds(
    args: argparse.Namespace, candidates: Sequence[Candidate], scale: float | None
) -> tuple[dict[str, Prediction], tuple[str, ...]]:
    """The paper's bound, for those who ask for its mechanism and give a guess; or why not."""
    from rillet.paper.recommended import predicted, tuned

    found: dict[str, Prediction] = {}
    if args.mechanism not in ("paper", "tuned") or scale is None or args.length in (None, "none"):
        return found, ()
    (plan,) = [each.plan for each in candidates if each.name == "paper"]
    threshold, lag = plan.threshold, plan.layout.lag
    if not isinstance(threshold, SmoothQuantile):
        return found, ()
    facts = (threshold, plan.guarantee, plan.bounds, plan.last_t, lag)
    assert isinstance(plan.threshold_share, float)
    impossible: tuple[str, ...] = ()
    try:
        found["paper"] = predicted(*facts, plan.threshold_share, scale)
    except ParameterError as error:
        impossible = (f"the paper's bound with these parameters ({error})",)
    if args.mechanism == "tuned":
        found["tuned"] = tuned(*facts, scale)
    return found, impossible


def _bound_fields(found: Prediction) -> dict[str, Any]:
    local = found.parameters
    return {
        "beta": found.setting.beta,
        "plain_tree": found.baseline,
        "light_tail": {**asdict(found.bound), "total": found.bound.total},
        "any_tail": {**asdict(found.worst_case), "total": found.worst_case.total},
        "improvement_factor": found.improvement_factor,
        "gain": found.gain,
        "parameters": asdict(local),
    }


def _time(text: str, plan: Plan) -> int:
    """A time to show: a number of observations, or by the clock a duration since the start."""
    if plan.clock is None:
        try:
            t = whole(text)
        except argparse.ArgumentTypeError:
            raise ParameterError("at", "whole numbers such as 1000,150_000", text) from None
        if not 1 <= t <= plan.last_t:
            raise ParameterError("at", f"whole numbers from 1 to {plan.last_t:,}", t)
        return t
    ticks = duration(text, "at") // plan.clock.every
    if not 1 <= ticks <= plan.last_t:
        longest = show_duration(plan.last_t * plan.clock.every)
        raise ParameterError("at", f"durations from {plan.every} to {longest}", text)
    return ticks


def _guess(args: argparse.Namespace, bounds: Range) -> tuple[Guess | None, float | None]:
    """The guess, and the scale of the exponential tail that fits it."""
    if args.typical is not None and args.guess is not None:
        raise ParameterError("guess", "either --guess or --typical", "both")
    if args.typical is None and args.guess is None:
        if args.mechanism == "tuned":
            raise ParameterError("typical", "a guess to tune to", None, "or give --guess")
        return None, None
    name = "guess" if args.typical is None else "typical"
    guess = Guess(args.typical, _MEDIAN) if args.guess is None else Guess(*args.guess)
    try:
        return guess, guess.scale(bounds)
    except ParameterError as error:
        raise ParameterError(name, error.expected, error.found, error.hint) from None


def _plan(args: argparse.Namespace, mechanism: str, **more: Any) -> Plan:
    """The plan of a mechanism, without the options that are meant for another one."""
    given = {**vars(args), **more}
    leave = {"lag"} if mechanism == "baseline" else set()
    if args.mechanism not in (mechanism, "tuned"):
        every = options_for("auto").keys() | options_for("paper").keys()
        leave |= every - options_for(mechanism).keys()
    return plan_from(argparse.Namespace(**{**given, **dict.fromkeys(leave)}), mechanism)


def _candidates(
    args: argparse.Namespace, baseline: Candidate, scale: float | None
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The plain tree first, then what else can be made of these numbers."""
    candidates, impossible = [baseline], []
    if baseline.plan.memory.half_life is not None and args.mechanism != "baseline":
        # What would stand for it is the plan at the bound once more.
        candidates, impossible = [], [f"{LABELS['baseline']} (a tree cannot answer a half-life)"]
    if args.delta or args.mechanism in ("paper", "tuned"):
        # Without delta smooth sensitivity, and so the paper's mechanism, does not exist.
        try:
            paper = _plan(args, "paper")
        except ParameterError as error:
            if args.mechanism in ("paper", "tuned"):
                raise
            impossible.append(f"{LABELS['paper']} ({error})")
        else:
            candidates.append(Candidate("paper", LABELS["paper"], paper))
            # Tuning takes longer than all the rest, so it is for those who ask.
            if args.mechanism == "tuned":
                fitted = _plan(args, "paper", public_guess=scale)
                candidates.append(Candidate("tuned", LABELS["tuned"], fitted))
    try:
        chosen, bound = _learned_and_not(args)
    except ParameterError as error:
        if args.mechanism == "auto" or not candidates:
            raise
        impossible.append(f"{LABELS['auto']} ({error})")
    else:
        for name, plan in (("auto", chosen), ("auto --threshold fixed", bound)):
            if all(plan != candidate.plan for candidate in candidates):
                label = LABELS["auto" if plan is chosen else "bound"]
                candidates.append(Candidate(name, label, plan))
    return tuple(candidates), tuple(impossible)


def _learned_and_not(args: argparse.Namespace) -> tuple[Plan, Plan]:
    """What rillet chooses, and the same at the bound: itself, where it is that or has no such."""
    chosen = _plan(args, "auto")
    counts = chosen.statistic.kinds[0] == "count"  # of bins that lie where the values are
    if not chosen.layout.lag or args.threshold is not None or counts:
        return chosen, chosen
    learning = ("lag", "threshold_share", "refresh", "backfill", "shared_threshold")
    return chosen, _plan(args, "auto", threshold="fixed", **dict.fromkeys(learning))


def _asked_missing(args: argparse.Namespace) -> Any:
    """What was said, or is the default, of values that are no numbers."""
    return options_for("auto")["missing"].default if args.missing is None else args.missing


def _choose(args: argparse.Namespace, forecasts: Sequence[Forecast]) -> tuple[int, tuple[str, ...]]:
    """Which candidate, and why: the least error predicted, of equal ones the first to release."""
    names = [forecast.candidate.name for forecast in forecasts]
    wanted = args.mechanism or "auto"
    if wanted != "auto":
        return names.index(wanted), ("asked for with --mechanism",)
    # Who did not declare that no value is missing is not given a plan that takes it for granted.
    asked = _asked_missing(args)
    plans = [forecast.candidate.plan for forecast in forecasts]
    fit = [index for index, plan in enumerate(plans) if plan.missing == asked]
    fit = fit or list(range(len(forecasts)))
    if len(forecasts) == 1:
        return fit[0], ("nothing else can be made of these numbers",)
    errors = [math.nan if each.typical is None else each.typical for each in forecasts]
    if any(map(math.isnan, errors)):
        index = names.index("auto") if "auto" in names else fit[-1]
        missing = "--typical" if plans[0].clock is None else "--typical and --rate"
        reason = f"without a guess at the scale there is nothing to compare by; give {missing}"
        return index, (reason,)
    at_worst = [
        error * (_FAR_OFF if _from_noise(forecast.candidate, forecast.guesses) else 1.0)
        for error, forecast in zip(errors, forecasts, strict=True)
    ]
    least = min(at_worst[index] for index in fit) * _AS_GOOD
    best = min(
        (index for index in fit if at_worst[index] <= least),
        key=lambda index: (forecasts[index].candidate.first_release, index),
    )
    reasons = [_against_the_tree(forecasts, best)]
    learned = [
        each for each in forecasts if each.candidate.name == "auto" and each.candidate.plan.lag
    ]
    if learned and best and plans[best].lag == 0:
        reasons[0] += _against_learning(learned[0], forecasts[best])
    for index, error in enumerate(errors):
        if index not in fit and error * _AS_GOOD < errors[best]:
            times = show(errors[best] / error, 2)
            reasons.append(
                f"{forecasts[index].candidate.label}, whose error is predicted {times} times "
                "smaller, counts a missing value as the middle of the range; it is chosen "
                "with --missing none only, which declares that there is none"
            )
    return best, tuple(reasons)


def _against_the_tree(forecasts: Sequence[Forecast], best: int) -> str:
    """What the best gains over the plain binary tree, where there is one."""
    first, chosen = forecasts[0], forecasts[best]
    if first.candidate.label != LABELS["baseline"]:
        return f"nothing else is predicted to have less error, from {_since(chosen)} on"
    if best == 0:
        return "no gain over the plain binary tree is predicted, and it releases at once"
    times = (first.typical or 0.0) / (chosen.typical or 1.0)
    if times <= _AS_GOOD:
        return "nothing else with the same rule for missing values has less error"
    return (
        f"its error is predicted {show(times, 2)} times smaller than the plain binary tree's, over "
        f"the releases from {_since(chosen)} on"
    )


def _against_learning(learned: Forecast, chosen: Forecast) -> str:
    """What a learned range would do beside the bound, over all and at the times that are shown."""
    times = (learned.typical or 0.0) / (chosen.typical or 1.0)
    if times * _AS_GOOD < 1:
        return (
            f"; a learned range is predicted to have {show(1 / times, 2)} times less, which is not "
            "to be relied on with so few values"
        )
    if times <= _AS_GOOD:
        return "; a learned range would gain nothing over the bound, and cost a warm-up"
    pairs = ((one, other) for one in learned.points for other in chosen.points if one.t == other.t)
    less = any(
        one.error is not None and (other.error is None or one.error * _AS_GOOD < other.error)
        for one, other in pairs
    )
    at_some = ", though less at some of the times shown" * less
    return f"; a learned range would have {show(times, 2)} times as much over all of them{at_some}"


def _warnings(
    args: argparse.Namespace, candidates: Sequence[Candidate], chosen: int, guesses: Guesses
) -> tuple[str, ...]:
    """What a reader of the forecasts must know to be not misled."""
    plan = candidates[chosen].plan
    found = []
    if plan.missing == "none" != _asked_missing(args):
        found.append(missing_in_the_middle(candidates[chosen].name))
    for each in candidates:
        found += _from_noise(each, guesses)
    return tuple(dict.fromkeys(found))


def _from_noise(candidate: Candidate, guesses: Guesses) -> list[str]:
    """What is to be said of a range learned of too few values, where their number is known."""
    plan = candidate.plan
    observations = guesses.in_tick(plan) * plan.last_t
    if plan.length is None or math.isnan(observations):
        return []
    return list(learned_from_noise(plan.layout, observations))


def _since(forecast: Forecast) -> str:
    clock = forecast.candidate.plan.clock
    if clock is None:
        return f"observation {forecast.typical_from:,}"
    return show_moment(clock.end_of(forecast.typical_from))
