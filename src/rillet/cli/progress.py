"""Progress on standard error: a bar on a terminal, lines elsewhere.

**Privacy.** Public counts only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from rillet.cli.common import console, note

if TYPE_CHECKING:
    from rillet.plan import Plan

#: A function of (observations, releases, fraction of the source or None).
Show: TypeAlias = Callable[[int, int, "float | None"], None]

#: Seconds between two lines of progress where there is no terminal.
PLAIN_SECONDS = 2.0


@contextmanager
def progress(args: argparse.Namespace, plan: Plan) -> Iterator[Show]:
    """Yield a function that shows how far we are."""
    on_terminal = sys.stderr.isatty()
    wanted = args.progress
    if wanted is None:  # Records on the same terminal would run through the bar.
        wanted = on_terminal and not (args.out in (None, "-") and sys.stdout.isatty())
    if args.quiet or not wanted:
        yield lambda *_: None
    elif on_terminal:
        with _bar(plan) as show:
            yield show
    else:
        yield _lines()


@contextmanager
def _bar(plan: Plan) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.fields[rows]:>14,} rows"),
        TextColumn("{task.fields[rate]:>12,.0f} rows/s"),
        TextColumn("{task.fields[released]:>14,} releases"),
        TimeElapsedColumn(),
    )
    begun = time.perf_counter()
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("reading", total=None, rows=0, rate=0.0, released=0)

        def show(rows: int, released: int, fraction: float | None) -> None:
            bar.update(
                task,
                description="releasing" if released or not plan.layout.lag else "learning",
                total=None if fraction is None else 1.0,
                completed=0.0 if fraction is None else fraction,
                rows=rows,
                rate=rows / (time.perf_counter() - begun),
                released=released,
            )

        yield show


def _lines() -> Show:
    begun = time.perf_counter()
    shown = begun

    def show(rows: int, released: int, fraction: float | None) -> None:
        nonlocal shown
        now = time.perf_counter()
        if now - shown >= PLAIN_SECONDS:
            shown = now
            share = "" if fraction is None else f", {fraction:.0%} of the input"
            rate = rows / (now - begun)
            note(f"rillet: {rows:,} rows, {released:,} releases, {rate:,.0f} rows/s{share}")

    return show
