"""``rillet reproduce``: the paper's tables and figures on public data, side by side with ours.

**Privacy.** Public data and published secrets only: no option names a file with data or a seed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, console, examples, note, say

if TYPE_CHECKING:
    from rillet.reproduce.result import Result

#: As in `rillet.reproduce.experiments`; written out so that help need not import them.
NAMES = (
    *("table1", "table2", "fig-cdf", "fig-tail", "fig-pmax", "fig-eps", "fig-lag", "fig-error"),
    *("fig-outlier", "fig-hours", "fig-days", "accuracy", "memory", "people", "errata", "all"),
)
_FOLDER = "reproduction"


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "reproduce",
        run,
        description="""
        Reproduce the paper's tables and figures on public data.

        Writes one HTML page that puts what Perrier, Asghar and Kaafar (NDSS 2019) report, what
        comes out here, and the reason for any difference side by side; the numbers as JSON; and
        the figures as PNG and PDF. Their data are not public, so baskets of The Complete Journey
        and simulated trips stand in. Beyond the paper: accuracy, every mechanism on four streams,
        and errata, what its slips would cost. Noise comes from published secrets, so two runs
        print the same numbers. Needs rillet[data,plot].
        """,
        epilog=examples(
            ("rillet reproduce --quick", "everything, within two minutes"),
            ("rillet reproduce fig-error table2 --out report", "the headline and one table"),
            ("rillet reproduce all --json", "with as many runs as the paper, as JSON"),
        ),
    )
    parser.add_argument(
        "names",
        nargs="*",
        type=_name,
        metavar="NAME",
        help=f"{', '.join(NAMES)} (default)",
    )
    parser.add_argument(
        "--out", default=_FOLDER, metavar="DIR", help=f"where to write (default: {_FOLDER})"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer runs, coarser curves: under two minutes"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _name(text: str) -> str:
    """One of the names; choices of argparse would have to hold for an empty list as well."""
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(NAMES)}, found {text!r}")
    return text


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.reproduce.experiments import EXPERIMENTS, numbers_of, reproduce
    from rillet.reproduce.report import write_report

    names = args.names or ["all"]
    total = len(EXPERIMENTS) if "all" in names else len(set(names))
    results: list[Result] = []
    with _progress(total) as (tell, done):
        for result in reproduce(names, quick=args.quick, tell=tell, processes=os.cpu_count() or 1):
            results.append(result)
            done(result.name)
    page = write_report(results, Path(args.out), quick=args.quick)
    if args.json:
        say(json.dumps(numbers_of(results, args.quick), indent=1, ensure_ascii=False))
    else:
        _print(results)
    note(f"wrote {page}")
    return 0


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A bar on a terminal, else a line for each experiment, on standard error.

    Yields what to call with a few words before each longer step, and after each experiment.
    """
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield (lambda _: None), (lambda name: note(f"{name} done"))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield (
            lambda words: bar.update(task, description=words),
            lambda _: bar.update(task, advance=1),
        )


def _print(results: list[Result]) -> None:
    """The findings in words; the first table of each where only a few were asked for."""
    from rich.table import Table

    from rillet.reproduce.report import summary_table

    few = len(results) <= 2
    screen = console()
    summary = summary_table(results)
    if summary.rows:
        shown = Table(*summary.head, title=summary.caption, title_justify="left", box=None)
        for row in summary.rows:
            shown.add_row(*row)
        screen.print(shown)
        screen.print()
    for result in results:
        screen.print(result.title, style="bold")
        for heading, text in (("Paper", result.paper), ("Here", result.ours)):
            screen.print(f"{heading}: {' '.join(text.split())}")
        for table in result.tables[:1] if few else ():
            shown = Table(*table.head, title=table.caption, title_justify="left", box=None)
            for row in table.rows:
                shown.add_row(*row)
            screen.print(shown)
        screen.print()
