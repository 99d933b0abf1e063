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

from rillet.cli.common import console, warn

if TYPE_CHECKING:
    from rillet.engine import Summary
    from rillet.plan import Plan

Show: TypeAlias = Callable[["Summary"], None]

#: Seconds between two lines of progress where there is no terminal.
PLAIN_SECONDS = 2.0


@contextmanager
def progress(args: argparse.Namespace, plan: Plan) -> Iterator[Show]:
    """Yield a function that shows how far a job is."""
    on_terminal = sys.stderr.isatty()
    wanted = args.progress
    if wanted is None:  # Records on the same terminal would run through the bar.
        wanted = on_terminal and not (args.out in (None, "-") and sys.stdout.isatty())
    if args.quiet or not wanted:
        yield lambda _: None
    elif on_terminal:
        with _bar(plan) as show:
            yield show
    else:
        yield _lines()


@contextmanager
def _bar(plan: Plan) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<27}"),
        BarColumn(),
        TextColumn(f"{{task.fields[rows]:>14,}} {_rows(plan)}"),
        TextColumn(f"{{task.fields[rate]:>12,.0f}} {_rows(plan)}/s"),
        TextColumn("{task.fields[released]:>14,} releases"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("reading", total=None, rows=0, rate=0.0, released=0)

        def show(now: Summary) -> None:
            bar.update(
                task,
                description=_doing(now),
                total=None if now.fraction is None else 1.0,
                completed=now.fraction or 0.0,
                rows=now.observations,
                rate=_rate(now),
                released=now.releases,
            )

        yield show


def _lines() -> Show:
    shown = time.perf_counter()

    def show(now: Summary) -> None:
        nonlocal shown
        if time.perf_counter() - shown >= PLAIN_SECONDS and now.last_block:
            shown = time.perf_counter()
            share = "" if now.fraction is None else f", {now.fraction:.0%} of the input"
            rows = _rows(now.plan)
            counts = f"{now.observations:,} {rows}, "
            counts += _learning(now) or f"{now.releases:,} releases"
            warn(f"{counts}, {_rate(now):,.0f} {rows}/s{share}")

    return show


def _doing(now: Summary) -> str:
    if now.of_keys is not None and _learning(now):
        return f"learning, {now.of_keys.left:,} keys"
    return _learning(now).rpartition(" ")[0] or "releasing"


def _learning(now: Summary) -> str:
    return "" if now.last_release else now.learning


def _rows(plan: Plan) -> str:
    return "rows" if plan.clock is None else "ticks"


def _rate(now: Summary) -> float:
    return (now.observations - now.before) / max(now.seconds, 1e-9)
