"""The comparison behind ``rillet plan``: candidates, forecasts, the choice.

**Privacy.** Reads no data: public numbers and the user's public guess.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rillet.cli.common import given_plan_options, plan_from, show, whole
from rillet.cli.forecast import Candidate, Forecast, Guess, Guesses, chosen_times, forecast
from rillet.errors import ParameterError
from rillet.plan import Plan, options_for
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

    @property
    def baseline(self) -> Forecast:
        """The plain binary tree, which comes first; where it needs a bound, the only candidate."""
        return self.forecasts[0]

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
        plain = self.baseline.candidate.name == "baseline"
        if forecast.typical is None or self.baseline.typical is None or not plain:
            return None
        return self.baseline.typical / forecast.typical

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
    label = LABELS["bound" if plain.memory.half_life is not None else "baseline"]
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
            return whole(text)
        except argparse.ArgumentTypeError:
            raise ParameterError("at", "whole numbers such as 1000,150_000", text) from None
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
        chosen = _plan(args, "auto")
        bound = chosen
        counts = chosen.statistic.kinds[0] == "count"  # of bins that lie where the values are
        if chosen.layout.lag and args.threshold is None and not counts:
            learning = ("lag", "threshold_share", "refresh", "backfill", "shared_threshold")
            bound = _plan(args, "auto", threshold="fixed", **dict.fromkeys(learning))
    except ParameterError as error:
        if args.mechanism == "auto":
            raise
        impossible.append(f"{LABELS['auto']} ({error})")
    else:
        for name, plan in (("auto", chosen), ("auto --threshold fixed", bound)):
            if all(plan != candidate.plan for candidate in candidates):
                label = LABELS["auto" if plan is chosen else "bound"]
                candidates.append(Candidate(name, label, plan))
    return tuple(candidates), tuple(impossible)


def _choose(args: argparse.Namespace, forecasts: Sequence[Forecast]) -> tuple[int, tuple[str, ...]]:
    """Which candidate, and why: the least error predicted, of equal ones the first to release."""
    names = [forecast.candidate.name for forecast in forecasts]
    wanted = args.mechanism or "auto"
    if wanted != "auto":
        return names.index(wanted), ("asked for with --mechanism",)
    if len(forecasts) == 1:
        return 0, ("nothing else can be made of these numbers",)
    errors = [forecast.typical for forecast in forecasts]
    if any(error is None for error in errors):
        index = names.index("auto") if "auto" in names else len(names) - 1
        by_clock = forecasts[0].candidate.plan.clock is not None
        missing = "--typical and --rate" if by_clock else "--typical"
        reason = f"without a guess at the scale there is nothing to compare by; give {missing}"
        return index, (reason,)
    least = min(error for error in errors if error is not None) * _AS_GOOD
    best = min(
        (index for index, error in enumerate(errors) if error is not None and error <= least),
        key=lambda index: (forecasts[index].candidate.first_release, index),
    )
    if best == 0:
        return 0, ("no gain over the plain binary tree is predicted, and it releases at once",)
    times = (errors[0] or 0.0) / (errors[best] or 1.0)
    reason = (
        f"its error is predicted {show(times, 2)} times smaller than the plain binary tree's, over "
        f"the releases from {_since(forecasts[best])} on"
    )
    if names[best] != "auto" and "auto" in names and forecasts[best].candidate.plan.lag == 0:
        reason += "; a learned range would gain nothing over the bound, and cost a warm-up"
    return best, (reason,)


def _since(forecast: Forecast) -> str:
    clock = forecast.candidate.plan.clock
    if clock is None:
        return f"observation {forecast.typical_from:,}"
    return show_moment(clock.end_of(forecast.typical_from))
