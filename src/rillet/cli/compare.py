"""The comparison behind ``rillet plan``: candidates, forecasts, the choice.

**Privacy.** Reads no data: public numbers and the user's public guess.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rillet.cli.common import plan_from, show, whole
from rillet.cli.forecast import Candidate, Forecast, Guess, Guesses, chosen_times, forecast
from rillet.errors import ParameterError
from rillet.plan import Plan, options_for
from rillet.threshold import SmoothQuantile
from rillet.times import duration, show_duration, show_moment

__all__ = ["Comparison", "compare"]

LABELS = {
    "baseline": "plain tree",
    "paper": "paper's mechanism",
    "auto": "rillet's choice",
    "tuned": "paper's, tuned",
}
#: By how much the guess may be wrong.
FACTORS = (0.1, 0.5, 1.0, 2.0, 10.0)
_REHEARSALS_IF_WRONG = 2
_MEDIAN = 0.5
#: With a longer lag tuning gains little and takes long.
_LONGEST_TUNED = 1 << 18


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

    @property
    def baseline(self) -> Forecast:
        """The plain binary tree, which comes first."""
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
        if forecast.typical is None or self.baseline.typical is None:
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
            "impossible": list(self.impossible),
            "chosen": self.candidates[self.chosen].name,
            "reasons": list(self.reasons),
            "plan": json.loads(plan.to_json()),
        }


def compare(args: argparse.Namespace) -> Comparison:
    """Forecast every candidate and choose."""
    guess = _guess(args)
    plain = _plan(args, "baseline")
    label = "at the bound" if plain.memory.half_life is not None else LABELS["baseline"]
    baseline = Candidate("baseline", label, plain)
    bounds = baseline.plan.bounds
    scale = None if guess is None else guess.scale(bounds.lower, bounds.upper)
    guesses = Guesses(scale, args.rate)
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
    return Comparison(
        candidates, impossible, guess, guesses, times, forecasts, tuple(if_wrong), chosen, reasons
    )


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


def _guess(args: argparse.Namespace) -> Guess | None:
    if args.typical is not None and args.guess is not None:
        raise ParameterError("guess", "either --guess or --typical", "both")
    if args.typical is None and args.guess is None:
        if args.mechanism == "tuned":
            raise ParameterError("guess", "a guess to tune to", None, "give --typical or --guess")
        return None
    return Guess(args.typical, _MEDIAN) if args.guess is None else Guess(*args.guess)


def _plan(args: argparse.Namespace, mechanism: str) -> Plan:
    """The plan of a mechanism, without the options that are meant for another one."""
    leave = {"lag"} if mechanism == "baseline" else set()
    if args.mechanism not in (mechanism, "tuned"):
        leave |= options_for("auto").keys() - options_for(mechanism).keys()
    return plan_from(argparse.Namespace(**{**vars(args), **dict.fromkeys(leave)}), mechanism)


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
                assert scale is not None  # it was asked for above
                candidates.append(Candidate("tuned", LABELS["tuned"], _tuned(paper, scale)))
    try:
        chosen = _plan(args, "auto")
    except ParameterError as error:
        if args.mechanism == "auto":
            raise
        impossible.append(f"{LABELS['auto']} ({error})")
    else:
        if all(chosen != candidate.plan for candidate in candidates):
            candidates.append(Candidate("auto", LABELS["auto"], chosen))
    return tuple(candidates), tuple(impossible)


def _tuned(plan: Plan, scale: float) -> Plan:
    """The paper's mechanism with its own optimiser's parameters for this guess."""
    from rillet.paper.optimise import Setting, optimise

    lag, length = plan.layout.lag, plan.last_t
    if plan.length is None:
        raise ParameterError("length", "a known length, if parameters are to be tuned", None)
    if lag > _LONGEST_TUNED:
        raise ParameterError("lag", f"at most {_LONGEST_TUNED:,} for tuning", lag)
    bounds = plan.bounds
    setting = Setting(plan.epsilon, plan.delta, bounds.upper, length, lag, lower=bounds.lower)
    found = optimise(setting, public_guess=scale)
    if not found.gain:
        raise ParameterError(
            "mechanism",
            "parameters with a gain over the plain binary tree, to tune for",
            "none",
            "use baseline, or a longer lag",
        )
    local = found.parameters
    threshold = SmoothQuantile(
        quantile=local.quantile,
        rank_factor=local.rank_factor,
        multiplier=local.multiplier,
        beta_lt=local.shares.low,
    )
    return dataclasses.replace(plan, threshold=threshold, threshold_share=local.threshold_share)


def _choose(args: argparse.Namespace, forecasts: Sequence[Forecast]) -> tuple[int, tuple[str, ...]]:
    """Which candidate, and why."""
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
    # A threshold that ends at the bound has taught nothing; what is left of an improvement then
    # comes from the shorter tree after the lag, and is not worth waiting for.
    useful = [
        index
        for index, each in enumerate(forecasts)
        if not each.candidate.plan.layout.lag
        or any(found < each.candidate.plan.bounds.upper for found in each.thresholds)
    ]
    best = min(useful, key=lambda index: errors[index] or 0.0)
    if best == 0:
        return 0, ("no gain over the plain binary tree is predicted, and it releases at once",)
    times = (errors[0] or 0.0) / (errors[best] or 1.0)
    reason = (
        f"its error is predicted {show(times, 2)} times smaller than the plain binary tree's, over "
        f"the releases from {_since(forecasts[best])} on"
    )
    return best, (reason,)


def _since(forecast: Forecast) -> str:
    clock = forecast.candidate.plan.clock
    if clock is None:
        return f"observation {forecast.typical_from:,}"
    return show_moment(clock.end_of(forecast.typical_from))
