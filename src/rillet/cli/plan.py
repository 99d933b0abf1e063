"""``rillet plan``: what each mechanism would give, from public numbers alone.

**Privacy.** Reads no data.  The guess at the scale of values is the user's, and must not come from
the stream that is to be protected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rillet.cli.common import (
    add_command,
    add_plan_options,
    console,
    examples,
    note,
    number,
    plan_from,
    say,
    show,
    whole,
    write_text,
)
from rillet.errors import ParameterError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rillet.cli.forecast import Candidate, Forecast, Guess
    from rillet.plan import Plan

LABELS = {
    "baseline": "plain binary tree",
    "paper": "paper's mechanism",
    "auto": "rillet's choice",
    "tuned": "paper's, tuned",
}
#: By how much the guess may be wrong.
FACTORS = (0.1, 0.5, 1.0, 2.0, 10.0)
_REHEARSALS_IF_WRONG = 3
_MEDIAN = 0.5
#: With a longer lag tuning gains little and takes long.
_LONGEST_TUNED = 1 << 18


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "plan",
        run,
        description="""
        Compare what each mechanism would give, from public numbers alone, and save the best.

        The noise is known exactly in advance, per unit of the clipping range. How wide the range
        will be, and how much clipping will cost, depends on how large values are: give a public
        guess with --typical or --guess. It must not come from the stream that is to be protected;
        a published figure or an earlier year will do. The tail is taken to be exponential.
        """,
        epilog=examples(
            (
                "rillet plan --epsilon 1 --delta 2^-20 --upper 3000 --length 150_000 --typical 20",
                "half of the baskets cost less than 20: what can be had for ε = 1?",
            ),
            (
                "rillet plan --epsilon 1 --delta 2^-20 --upper 1440 --length none --guess 90@0.95",
                "no end known; 95 % of the trips are shorter than 90 minutes",
            ),
            (
                (
                    "rillet plan --epsilon 1 --delta 2^-20 --upper 3000 --length 150_000 \\\n"
                    "      --lag 50_000 --typical 20 --mechanism paper --save plan.json"
                ),
                "write a plan that `rillet run --plan plan.json` takes",
            ),
        ),
    )
    add_plan_options(
        parser,
        extra_mechanism="tuned",
        meaning="tuned: the paper's, with its parameters fitted to the guess",
    )
    group = parser.add_argument_group("public guess at the scale of values")
    group.add_argument(
        "--typical", type=number, metavar="X", help="about half of the values are below X"
    )
    group.add_argument(
        "--guess",
        type=_quantile_guess,
        metavar="X@Q",
        help="a share Q of the values is below X, as 90@0.95",
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--at",
        type=_times,
        metavar="T,T",
        help="observations at which to show the error (default: a few up to the end)",
    )
    group.add_argument("--json", action="store_true", help="print the comparison as JSON")
    group.add_argument("--save", metavar="FILE", help="write the chosen plan as JSON")
    group.add_argument("--plot", metavar="FILE", help="draw the curves into a PNG, PDF or SVG file")


def _quantile_guess(text: str) -> tuple[float, float]:
    value, at, quantile = text.partition("@")
    if not at:
        raise argparse.ArgumentTypeError(f"expected VALUE@QUANTILE such as 90@0.95, found {text!r}")
    share = number(quantile.removesuffix("%"))
    return number(value), share / 100 if quantile.endswith("%") else share


def _times(text: str) -> list[int]:
    return [whole(part) for part in text.split(",")]


@dataclass(frozen=True)
class Comparison:
    """Everything the command shows."""

    candidates: tuple[Candidate, ...]
    guess: Guess | None
    scale: float | None
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
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.candidates[self.chosen].plan

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
        for forecast in self.forecasts:
            fields = forecast.to_dict()
            fields["improvement_over_baseline"] = self.improvement(forecast)
            mechanisms.append(fields)
        return {
            "format": "rillet-comparison-1",
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "lower": plan.lower,
            "upper": plan.upper,
            "length": plan.length,
            "every": plan.every,
            "statistic": plan.statistic.name,
            "guess": guess,
            "mechanisms": mechanisms,
            "typical_error_if_scale_is": [
                {"factor": factor, **dict(zip(names, errors, strict=True))}
                for factor, errors in self.if_wrong
            ],
            "chosen": self.candidates[self.chosen].name,
            "reasons": list(self.reasons),
            "plan": json.loads(plan.to_json()),
        }


def run(args: argparse.Namespace) -> int:
    """Do it."""
    comparison = compare(args)
    if args.save is not None:
        write_text(args.save, comparison.plan.to_json() + "\n")
    if args.plot is not None:
        from rillet.cli.picture import plan_picture

        plan_picture(comparison, args.plot)
    if args.json:
        say(json.dumps(comparison.to_dict(), ensure_ascii=False, indent=2))
        return 0
    _print(comparison)
    for path, what in ((args.save, "plan"), (args.plot, "picture")):
        if path is not None:
            note(f"{what} written to {path}")
    return 0


# --- Compare -------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> Comparison:
    """Forecast every candidate and choose."""
    from rillet.cli.forecast import chosen_times, forecast

    guess, scale = _scale(args)
    candidates = tuple(_candidates(args, scale))
    times = chosen_times([candidate.plan for candidate in candidates], args.at)
    typical_from = max(candidate.first_release for candidate in candidates)
    forecasts = tuple(forecast(each, scale, times, typical_from) for each in candidates)
    if_wrong = []
    for factor in FACTORS if scale is not None else ():
        assert scale is not None
        errors = [
            each.typical
            if factor == 1
            else forecast(
                each.candidate, scale * factor, (), typical_from, _REHEARSALS_IF_WRONG
            ).typical
            for each in forecasts
        ]
        if_wrong.append((factor, tuple(errors)))
    chosen, reasons = _choose(args, forecasts)
    return Comparison(candidates, guess, scale, times, forecasts, tuple(if_wrong), chosen, reasons)


def _scale(args: argparse.Namespace) -> tuple[Guess | None, float | None]:
    from rillet.cli.forecast import Guess

    if args.typical is not None and args.guess is not None:
        raise ParameterError("guess", "either --guess or --typical", "both")
    if args.typical is None and args.guess is None:
        if args.mechanism == "tuned":
            raise ParameterError("guess", "a guess to tune to", None, "give --typical or --guess")
        return None, None
    guess = Guess(args.typical, _MEDIAN) if args.guess is None else Guess(*args.guess)
    if args.upper is None:
        return guess, None
    return guess, guess.scale(args.lower or 0.0, args.upper)


def _candidates(args: argparse.Namespace, scale: float | None) -> list[Candidate]:
    """The plain tree first, then what else can be made of these numbers."""
    from rillet.cli.forecast import Candidate

    baseline = argparse.Namespace(**{**vars(args), "lag": None, "backfill": None})
    candidates = [Candidate("baseline", LABELS["baseline"], plan_from(baseline, "baseline"))]
    if args.delta:  # Without it smooth sensitivity, and so the paper's mechanism, does not exist.
        candidates.append(Candidate("paper", LABELS["paper"], plan_from(args, "paper")))
        tuned = None if scale is None else _tuned(candidates[-1].plan, scale)
        if tuned is not None:
            candidates.append(Candidate("tuned", LABELS["tuned"], tuned))
        elif args.mechanism == "tuned":
            raise ParameterError(
                "mechanism",
                "a known length and a gain over the plain binary tree, if it is to be tuned",
                "no such parameters",
                "use paper or baseline",
            )
    elif args.mechanism in ("paper", "tuned"):
        plan_from(args, "paper")  # Says what is missing.
    chosen = plan_from(args, "auto")
    if all(chosen != candidate.plan for candidate in candidates):
        candidates.append(Candidate("auto", LABELS["auto"], chosen))
    return candidates


def _tuned(plan: Plan, scale: float) -> Plan | None:
    """The paper's mechanism with its own optimiser's parameters for this guess."""
    from rillet.plan import Plan
    from rillet.plan.optimise import Setting, optimise

    lag, length = plan.layout.lag, plan.length
    if length is None or not 1 <= lag < length or lag > _LONGEST_TUNED:
        return None
    setting = Setting(plan.epsilon, plan.delta, plan.upper, length, lag, lower=plan.lower)
    found = optimise(setting, public_guess=scale)
    if not found.gain:
        return None
    local = found.parameters
    return Plan.paper(
        epsilon=plan.epsilon,
        delta=plan.delta,
        lower=plan.lower,
        upper=plan.upper,
        length=plan.length,
        every=plan.every,
        lag=lag,
        statistic=plan.statistic,
        backfill=plan.backfill,
        quantile=local.quantile,
        rank_factor=local.rank_factor,
        multiplier=local.multiplier,
        threshold_share=local.threshold_share,
        beta_lt=local.shares.low,
    )


def _choose(args: argparse.Namespace, forecasts: Sequence[Forecast]) -> tuple[int, tuple[str, ...]]:
    """Which candidate, and why."""
    names = [forecast.candidate.name for forecast in forecasts]
    wanted = args.mechanism or "auto"
    if wanted != "auto":
        return names.index(wanted), ("asked for with --mechanism",)
    if len(forecasts) == 1:
        return 0, ("without a positive --delta no threshold can be learned here",)
    errors = [forecast.typical for forecast in forecasts]
    if any(error is None for error in errors):
        place = names.index("auto") if "auto" in names else len(names) - 1
        reason = "without a guess at the scale there is nothing to compare by; give --typical"
        return place, (reason,)
    best = min(range(len(errors)), key=lambda place: errors[place] or 0.0)
    if best == 0:
        return 0, ("no gain over the plain binary tree is predicted, and it releases at once",)
    times = (errors[0] or 0.0) / (errors[best] or 1.0)
    reason = (
        f"its error is predicted {show(times, 2)} times smaller than the plain binary tree's, over "
        f"the releases from observation {forecasts[best].typical_from:,} on"
    )
    return best, (reason,)


# --- Print ---------------------------------------------------------------------------------------


def _print(comparison: Comparison) -> None:
    """The comparison for a person."""
    screen = console()
    plan = comparison.plan
    length = "no end known" if plan.length is None else f"{plan.length:,} observations"
    cadence = "a release at each" if plan.every == 1 else f"a release each {plan.every:,}"
    say(f"Promise  {plan.guarantee}")
    say(f"Facts    values from {plan.lower:g} to {plan.upper:g}, {length}, {cadence}")
    if comparison.guess is None or comparison.scale is None:
        say("Guess    none: give --typical or --guess to see thresholds, clipping and errors")
    else:
        say(
            f"Guess    {comparison.guess.quantile:.4g} of the values below "
            f"{comparison.guess.value:g}; exponential tail of scale {show(comparison.scale)}"
        )
    say()
    screen.print(_table(comparison))
    if comparison.if_wrong:
        say()
        screen.print(_wrong_table(comparison))
    known = [each for each in comparison.forecasts if each.typical is not None]
    if known:
        say()
        screen.print(_chart(comparison, known))
    say()
    chosen = comparison.candidates[comparison.chosen]
    say(f"Chosen: {chosen.label} (--mechanism {chosen.name}); --save FILE writes it.")
    for reason in comparison.reasons:
        say(f"Why: {reason}.")
    # The promise stands at the top already.
    say("\n".join(line for line in plan.describe().splitlines() if "Promise:" not in line))


def _table(comparison: Comparison) -> RenderableType:
    statistic = comparison.plan.statistic.name
    forecasts = comparison.forecasts
    table = _empty_table("", comparison)
    table.add_row("first release at", *(f"{f.candidate.first_release:,}" for f in forecasts))
    table.add_row("ε₁, for the threshold", *(_threshold_budget(f) for f in forecasts))
    table.add_row("values clipped at", *(_threshold(f) for f in forecasts), end_section=True)
    for place, t in enumerate(comparison.times):
        cells = []
        for forecast in forecasts:
            found = [point for point in forecast.points if point.t == t]
            cells.append(_error(found[0]) if found else "–")
        name = f"error of the {statistic} at" if place == 0 else ""
        table.add_row(f"{name:<21}{t:>12,}", *cells)
    last = [forecast.points[-1] if forecast.points else None for forecast in forecasts]
    table.add_row("  of which noise (std)", *(_or_dash(p.noise_std if p else None) for p in last))
    table.add_row("  of which clipping", *(_or_dash(p.clipping_error if p else None) for p in last))
    table.add_row(
        f"typical error from   {forecasts[0].typical_from:>12,}",
        *(_or_dash(forecast.typical) for forecast in forecasts),
        end_section=True,
    )
    gains = [comparison.improvement(forecast) for forecast in forecasts]
    table.add_row(
        "better than the plain tree by", *("–" if g is None else f"× {show(g, 3)}" for g in gains)
    )
    if comparison.scale is None:
        table.add_row("better if values are clipped below", *_break_even(forecasts))
    return table


def _empty_table(title: str, comparison: Comparison) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from rillet.cli.plot import COLOURS

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(title, no_wrap=True)
    for place, candidate in enumerate(comparison.candidates):
        mark = " ◀" if place == comparison.chosen else ""
        colour = COLOURS[place % len(COLOURS)][0]
        table.add_column(candidate.label + mark, justify="right", header_style=colour)
    return table


def _threshold_budget(forecast: Forecast) -> str:
    layout = forecast.candidate.plan.layout
    if not layout.lag:
        return "0"
    return f"{float(layout.threshold_budget):.4g} of {layout.guarantee.epsilon:g}"


def _threshold(forecast: Forecast) -> str:
    if forecast.threshold is None:
        return "learned"
    learned = forecast.candidate.plan.layout.declared_range is None
    return f"about {show(forecast.threshold, 3)}" if learned else f"{forecast.threshold:g}"


def _error(point: Any) -> str:
    if point.error is None:
        return f"{show(point.unit_noise_std)} × range"
    return show(point.error)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else show(value)


def _break_even(forecasts: Sequence[Forecast]) -> list[str]:
    """The threshold at which a learned range gives the same noise as the plain tree."""
    plain = forecasts[0].points[-1] if forecasts[0].points else None
    cells = []
    for forecast in forecasts:
        point = forecast.points[-1] if forecast.points else None
        if forecast.typical is not None or point is None or plain is None:
            cells.append("–")
            continue
        assert plain.noise_std is not None
        plan = forecast.candidate.plan
        cells.append(show(plan.lower + plain.noise_std / point.unit_noise_std))
    return cells


def _wrong_table(comparison: Comparison) -> RenderableType:
    assert comparison.scale is not None
    table = _empty_table("typical error if the scale is", comparison)
    for factor, errors in comparison.if_wrong:
        where = "as guessed" if factor == 1 else f"{factor:g} × the guess"
        name = f"{show(comparison.scale * factor):>8}  {where}"
        table.add_row(name, *(_or_dash(error) for error in errors))
    return table


def _chart(comparison: Comparison, known: Sequence[Forecast]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from rillet.cli.forecast import curve
    from rillet.cli.plot import COLOURS, Curve, chart

    width = 60 if sys.stdout.isatty() else 64
    first = max(1, comparison.times[0] // 10)
    curves = []
    for place, each in enumerate(comparison.forecasts):
        if each not in known:
            continue
        plan = each.candidate.plan
        widths = _widths(each)
        x, y = curve(plan, widths, comparison.scale, first, width)
        curves.append(Curve(x, y, each.candidate.label, COLOURS[place % len(COLOURS)][0]))
    title = Text(f"Expected error of the {comparison.plan.statistic.name} (log scales)")
    return Group(title, chart(curves, width=width))


def _widths(forecast: Forecast) -> Any:
    import numpy as np

    return np.array(forecast.thresholds) - forecast.candidate.plan.lower
