"""``rillet plan``: what each mechanism would give, from public numbers alone.

**Privacy.** Reads no data.  The guess at the scale of values is the user's, and must not come from
the stream that is to be protected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
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
    whole,
    write_text,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rillet.cli.compare import Comparison
    from rillet.cli.forecast import Forecast


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
        keyed=False,
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
    _print(comparison)
    for path, what in ((args.save, "plan"), (args.plot, "picture")):
        if path is not None:
            note(f"{what} written to {path}")
    return 0


# --- Print ---------------------------------------------------------------------------------------


def _print(comparison: Comparison) -> None:
    """The comparison for a person."""
    screen = console()
    plan = comparison.plan
    length = "no end known" if plan.length is None else f"{plan.length:,} observations"
    cadence = "a release at each" if plan.every == 1 else f"a release each {plan.every:,}"
    say(f"Promise  {plan.guarantee}")
    values = f"values from {plan.bounds.lower:g} to {plan.bounds.upper:g}, "
    say(f"Facts    {values * plan.statistic.clips}{length}, {cadence}")
    if comparison.guess is None or comparison.scale is None:
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
    for index, t in enumerate(comparison.times):
        cells = []
        for forecast in forecasts:
            found = [point for point in forecast.points if point.t == t]
            cells.append(_error(found[0]) if found else "–")
        name = f"error of the {statistic} at" if index == 0 else ""
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
    for index, candidate in enumerate(comparison.candidates):
        mark = " ◀" if index == comparison.chosen else ""
        colour = COLOURS[index % len(COLOURS)][0]
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
    for index, each in enumerate(comparison.forecasts):
        if each not in known:
            continue
        x, y = curve(each.candidate.plan, each.widths, comparison.scale, first, width)
        curves.append(Curve(x, y, each.candidate.label, COLOURS[index % len(COLOURS)][0]))
    title = Text(f"Expected error of the {comparison.plan.statistic.name} (log scales)")
    return Group(title, chart(curves, width=width))
