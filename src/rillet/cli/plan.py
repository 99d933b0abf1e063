"""``rillet plan``: what each mechanism would give, from public numbers alone.

**Privacy.** Reads no data.  The guess at the scale of values is the user's, and must not come from
the stream that is to be protected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from rillet.cli.common import (
    add_command,
    add_plan_options,
    console,
    examples,
    note,
    number,
    say,
    show,
    write_text,
)
from rillet.errors import ParameterError
from rillet.release import noise_deviations
from rillet.times import HOUR, per_period, period_words, show_duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rillet.cli.compare import Comparison
    from rillet.cli.forecast import Forecast, Point
    from rillet.paper.optimise import Prediction
    from rillet.plan import Plan


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

        By the clock (--every 1h --start 2026-01-01T00:00Z --length 60d) how many observations come
        is protected too. How good a mean will be depends on it: give a public guess with --rate.
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
                    "rillet plan --epsilon 1 --delta 2^-20 --upper 11 --typical 0.7 --unit kW \\\n"
                    "      --every 1h --start 2026-01-01T00:00Z --length 60d --rate 400/h"
                ),
                "by the clock: what is known of the average power after an hour, a day, a week?",
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
        keyed=False,
    )
    group = parser.add_argument_group("public guesses at the scale and the number of values")
    group.add_argument(
        "--typical", type=number, metavar="X", help="about half of the values are below X"
    )
    group.add_argument(
        "--guess",
        type=_quantile_guess,
        metavar="X@Q",
        help="a share Q of the values is below X, as 90@0.95",
    )
    group.add_argument(
        "--rate",
        type=_rate,
        metavar="R",
        help="by the clock, about how many observations come, as 400/h (also /s, /m, /d); a mean "
        "needs it",
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--at",
        type=lambda text: text.split(","),
        metavar="T,T",
        help="observations at which to show the error, by the clock durations such as 1d,7d "
        "(default: a few up to the end)",
    )
    group.add_argument(
        "--unit", default="", metavar="U", help="the unit of the values, shown beside numbers"
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


def _rate(text: str) -> str:
    try:
        per_period(text, HOUR)
    except ParameterError as error:
        raise argparse.ArgumentTypeError(f"expected {error.expected}, found {text!r}") from None
    return text


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.cli.compare import compare

    comparison = compare(args)
    if args.save is not None:
        write_text(args.save, comparison.plan.to_json() + "\n")
    if args.plot is not None:
        from rillet.cli.picture import plan_picture

        plan_picture(comparison, args.plot)
    if args.json:
        say(json.dumps(comparison.to_dict(), ensure_ascii=False, indent=2))
        return 0
    _print(comparison, args.unit)
    for path, what in ((args.save, "plan"), (args.plot, "picture")):
        if path is not None:
            note(f"{what} written to {path}")
    return 0


# --- Print ---------------------------------------------------------------------------------------


def _print(comparison: Comparison, unit: str) -> None:
    """The comparison for a person."""
    screen = console()
    plan = comparison.plan
    say(f"Promise  {plan.guarantee}")
    values = f"values {plan.bounds.words}, "
    say(f"Facts    {values * plan.statistic.clips}{_cadence(plan)}")
    if comparison.guesses.rate is not None:
        in_tick = comparison.guesses.in_tick(plan)
        say(f"Rate     {comparison.guesses.rate}, guessed: {show(in_tick)} observations in a tick")
    if not plan.statistic.clips:
        pass  # how large values are makes no difference
    elif comparison.guess is None or comparison.scale is None:
        say("Guess    none: give --typical or --guess to see thresholds, clipping and errors")
    else:
        say(
            f"Guess    {comparison.guess.quantile:.4g} of the values below "
            f"{comparison.guess.value:g}; exponential tail of scale {show(comparison.scale)}"
        )
    say()
    screen.print(_table(comparison))
    for reason in comparison.impossible:
        say(f"Not possible: {reason}")
    if plan.clock is not None and any(point.numbers for point in comparison.expected.points):
        say()
        screen.print(_numbers_table(comparison, unit))
    if comparison.if_wrong:
        say()
        screen.print(_wrong_table(comparison))
    if comparison.bounds:
        say()
        screen.print(_bounds_table(comparison))
    known = [each for each in comparison.forecasts if each.typical is not None]
    if known:
        say()
        screen.print(_chart(comparison, known))
    say()
    chosen = comparison.candidates[comparison.chosen]
    say(f"Chosen: {chosen.label} (--mechanism {chosen.name}); --save FILE writes it.")
    for reason in comparison.reasons:
        say(f"Why: {reason}.")
    for warning in comparison.warnings:
        say(f"Warning: {warning}")
    if sentence := _in_short(comparison, unit):
        say(f"Expect: {sentence}")
    # The promise stands at the top already, and so do warnings.
    above = ("Promise:", "Warning:")
    say("\n".join(line for line in plan.describe().splitlines() if not line.startswith(above)))


def _table(comparison: Comparison) -> RenderableType:
    statistic = comparison.plan.statistic.names[0]
    forecasts = comparison.forecasts
    table = _empty_table("", comparison)
    table.add_row(
        "first release", *(_when(comparison, f.candidate.first_release) for f in forecasts)
    )
    clips = comparison.plan.statistic.clips
    if clips:
        table.add_row("ε₁, for the threshold", *(_threshold_budget(f) for f in forecasts))
        table.add_row("values clipped at", *(_threshold(f) for f in forecasts))
    table.add_section()
    for index, t in enumerate(comparison.times):
        cells = []
        for forecast in forecasts:
            found = [point for point in forecast.points if point.t == t]
            cells.append(_error(found[0]) if found else "–")
        name = f"error of the {statistic}" if index == 0 else ""
        table.add_row(f"{name:<18}{_when(comparison, t):>15}", *cells)
    last = [forecast.points[-1] if forecast.points else None for forecast in forecasts]
    table.add_row("  of which noise (std)", *(_or_dash(p.noise_std if p else None) for p in last))
    if clips:
        clipped = (_or_dash(p.clipping_error if p else None) for p in last)
        table.add_row("  of which clipping", *clipped)
    table.add_row(
        f"typical error from{_when(comparison, forecasts[0].typical_from):>15}",
        *(_or_dash(forecast.typical) for forecast in forecasts),
        end_section=True,
    )
    if comparison.baseline is not None:
        gains = [comparison.improvement(forecast) for forecast in forecasts]
        shown = ("–" if gain is None else f"× {show(gain, 3)}" for gain in gains)
        table.add_row("better than the plain tree by", *shown)
    if clips and comparison.scale is None and comparison.baseline is not None:
        table.add_row("better if values are clipped below", *_break_even(forecasts))
    return table


def _empty_table(title: str, comparison: Comparison) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from rillet.cli.text_plot import COLOURS

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(title, no_wrap=True)
    for index, candidate in enumerate(comparison.candidates):
        mark = " ◀" if index == comparison.chosen else ""
        colour = COLOURS[index % len(COLOURS)][0]
        table.add_column(candidate.label + mark, justify="right", header_style=colour)
    return table


def _threshold_budget(forecast: Forecast) -> str:
    layout = forecast.candidate.plan.layout
    if not layout.lag:
        return "0"
    if layout.first_look:
        return str(layout.threshold_cost)
    return f"{float(layout.threshold_cost.epsilon):.4g} of {layout.guarantee.epsilon:g}"


def _threshold(forecast: Forecast) -> str:
    if forecast.threshold is None:
        return "learned"
    learned = forecast.candidate.plan.layout.declared_range is None
    return f"about {show(forecast.threshold, 3)}" if learned else f"{forecast.threshold:g}"


def _error(point: Point) -> str:
    if point.error is not None:
        return show(point.error)
    if point.unit_noise_std is None:
        return "no mean yet"
    return f"{show(point.unit_noise_std)} × range"


def _cadence(plan: Plan) -> str:
    """How long it runs and when it releases."""
    if plan.clock is None:
        length = "no end known" if plan.length is None else f"{plan.length:,} observations"
        each = "a release at each" if plan.every == 1 else f"a release each {plan.every:,}"
        return f"{length}, {each}"
    length = "no end known" if plan.length is None else f"{plan.length} in {plan.last_t:,} ticks"
    return f"{length} from {plan.start}, a release {period_words(plan.clock.every)}"


def _when(comparison: Comparison, t: int) -> str:
    """A time of the forecast: an observation number, or how long after the start."""
    clock = comparison.plan.clock
    return f"at {t:,}" if clock is None else f"after {show_duration(t * clock.every)}"


def _numbers_table(comparison: Comparison, unit: str) -> RenderableType:
    """The noise of mean, sum and count under the chosen plan, as intervals of 95 %."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    forecast = comparison.expected
    reach = noise_deviations(0.95, forecast.candidate.plan.layout.noise_law)
    names = [
        name for name in ("mean", "sum", "count") if f"{name}_noise_std" in forecast.last.numbers
    ]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(f"noise (95 %), {forecast.candidate.label}", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for point in forecast.points:
        cells = []
        for name in names:
            std = point.numbers[f"{name}_noise_std"]
            of_values = unit if name != "count" else ""
            cells.append("–" if std is None else f"± {show(reach * std, 3)} {of_values}".rstrip())
        table.add_row(_when(comparison, point.t), *cells)
    return table


def _in_short(comparison: Comparison, unit: str) -> str:
    """What to expect of the chosen plan, in a sentence: early on, and at the end."""
    forecast, plan = comparison.expected, comparison.plan
    known = [point for point in forecast.points if point.noise_std is not None]
    if not known:
        return ""
    reach = noise_deviations(0.95, plan.layout.noise_law)
    each = "" if plan.clock is None else f" {period_words(plan.clock.every)}"
    of_values = f" {unit}" if unit and plan.statistic.names[0] != "count" else ""
    parts: list[str] = []
    for index in sorted({(len(known) - 1) // 2, len(known) - 1}):
        t, std = known[index].t, known[index].noise_std
        assert std is not None
        ended = plan.length is not None and t == plan.last_t
        where = "at the end" if ended else _when(comparison, t)
        parts.append(f"± {show(reach * std, 2)}{of_values}{'' if parts else each} {where}")
    return f"{plan.statistic.names[0]} {', '.join(parts)} (noise, 95 %)."


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
        plan = forecast.candidate.plan
        if point.unit_noise_std is None or plain.noise_std is None:
            cells.append("–")
            continue
        cells.append(show(plan.bounds.lower + plain.noise_std / point.unit_noise_std))
    return cells


def _wrong_table(comparison: Comparison) -> RenderableType:
    assert comparison.scale is not None
    table = _empty_table("typical error if the scale is", comparison)
    for factor, errors in comparison.if_wrong:
        where = "as guessed" if factor == 1 else f"{factor:g} × the guess"
        name = f"{show(comparison.scale * factor):>8}  {where}"
        table.add_row(name, *(_or_dash(error) for error in errors))
    return table


def _bounds_table(comparison: Comparison) -> RenderableType:
    """The paper's bound on the last sum, with the parameters that it depends on."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from rillet.cli.compare import LABELS

    found = comparison.bounds.values()
    beta = next(iter(found)).setting.beta
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(f"the paper's bound on the last sum (β = {beta:g})", no_wrap=True)
    for name in comparison.bounds:
        table.add_column(LABELS[name], justify="right")

    def row(title: str, value: Callable[[Prediction], float], digits: int = 4) -> None:
        table.add_row(title, *(show(value(each), digits) for each in found))

    row("plain tree (eq. 3)", lambda each: each.baseline)
    row("light tail (eq. 16)", lambda each: each.bound.total)
    row("  noise of the tree", lambda each: each.bound.noise)
    row("  clipped excess", lambda each: each.bound.outlier)
    row("  noise of the first block", lambda each: each.bound.first_block)
    row("any tail (eq. 14)", lambda each: each.worst_case.total)
    gains = [show(each.improvement_factor, 3) + " (no gain)" * (not each.gain) for each in found]
    table.add_row("improvement factor, plain tree over light tail", *gains, end_section=True)
    row("p", lambda each: each.parameters.quantile)
    row("λ", lambda each: each.parameters.rank_factor)
    row("r", lambda each: each.parameters.multiplier)
    row("ε₁/ε", lambda each: each.parameters.threshold_share)
    for index, name in enumerate(("β_qt", "β_lt", "β_rt", "β_Lap", "β_out", "β_first")):
        shares = [astuple(each.parameters.shares)[index] / beta for each in found]
        table.add_row(f"{name}/β", *(f"{share:.3f}" for share in shares))
    return table


def _chart(comparison: Comparison, known: Sequence[Forecast]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from rillet.cli.forecast import curve
    from rillet.cli.text_plot import COLOURS, Curve, chart

    width = 60 if sys.stdout.isatty() else 64
    first = max(1, comparison.times[0] // 10)
    curves = []
    for index, each in enumerate(comparison.forecasts):
        if each not in known:
            continue
        x, y = curve(each.candidate.plan, each.widths, comparison.guesses, first, width)
        curves.append(Curve(x, y, each.candidate.label, COLOURS[index % len(COLOURS)][0]))
    title = Text(f"Expected error of the {comparison.plan.statistic.names[0]} (log scales)")
    clock = comparison.plan.clock
    along = "observations" if clock is None else f"ticks of {comparison.plan.every}"
    return Group(title, chart(curves, width=width, along=along))
