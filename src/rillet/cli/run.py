"""``rillet run``: from a file or standard input to JSON lines of releases.

**Privacy.** Touches raw data, a block at a time, and hands them to the stream.  Prints counts, the
plan's public numbers and the ledger; observations reach nothing but the stream.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import (
    PLAN_OPTIONS,
    add_command,
    add_plan_options,
    console,
    examples,
    load_plan,
    note,
    plan_from,
    warn,
    write_text,
)
from rillet.errors import InputError, ParameterError, StreamEnded

if TYPE_CHECKING:
    from rillet.cli.records import ReleaseSink
    from rillet.plan import Plan
    from rillet.source import Block
    from rillet.stream import Stream

#: Seconds between two lines of progress where there is no terminal.
_PLAIN_PROGRESS = 2.0


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        description="""
        Release the running mean or sum of a column, as JSON lines.

        Every row is one observation. A value above --upper counts as B, a value below --lower, an
        empty cell or anything that is no number counts as A: nothing is skipped, and nothing stops
        because of a value. Each release is one line with value, noise_std and the rest of the
        record; the ledger goes to standard error at the end.
        """,
        epilog=examples(
            (
                (
                    "rillet run trips.csv --column minutes --epsilon 1 --delta 2^-20 \\\n"
                    "      --upper 1440 --length 200_000 --lag 50_000 --out releases.jsonl"
                ),
                "learn from the first 50,000 trips, then release at every trip",
            ),
            (
                "cat values.txt | rillet run - --format jsonl --epsilon 0.5 --upper 10 --every 100",
                "bare numbers, one to a line, from another program",
            ),
            (
                "rillet run trips.parquet --column minutes --plan plan.json --out releases.jsonl",
                "a plan that `rillet plan --save plan.json` wrote",
            ),
        ),
    )
    parser.add_argument(
        "file", metavar="FILE", help="CSV, Parquet or JSON lines; - reads standard input"
    )
    parser.add_argument("--column", metavar="C", help="the column or field with the values")
    parser.add_argument(
        "--format",
        choices=("auto", "csv", "jsonl", "parquet"),
        default="auto",
        help="format of the input (default: by the ending of its name)",
    )
    parser.add_argument(
        "--delimiter", default=",", metavar="X", help="between the cells of CSV (default ,)"
    )
    parser.add_argument(
        "--plan", metavar="PLAN", help="a saved plan, in place of the options of the next group"
    )
    add_plan_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", default="-", metavar="FILE", help="where releases go (default -, standard output)"
    )
    group.add_argument(
        "--existing",
        choices=("refuse", "append", "replace"),
        default="refuse",
        help="what to do if that file has something in it (default refuse)",
    )
    group.add_argument("--ledger", metavar="FILE", help="also write the ledger as JSON")
    group.add_argument(
        "--secret",
        metavar="FILE",
        help="keep the secret of the noise in this file, made if it does not exist; the same "
        "secret, plan and input give the same releases again. Without it the secret is gone "
        "when the run ends, and running again on the same data spends the promise again",
    )
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show progress on standard error (default: if that is a terminal)",
    )
    group.add_argument("--quiet", action="store_true", help="no progress, no summary")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from rillet.cli.guard import claim, open_secret
    from rillet.cli.records import ReleaseSink
    from rillet.source import read

    plan = _plan(args)
    delimiter = "\t" if args.delimiter in ("tab", "\\t") else args.delimiter
    blocks = read(args.file, args.column, format=args.format, delimiter=delimiter)
    # Part of what the noise is keyed by, so that one secret serves several files and columns.
    name = f"{Path(args.file).name}:{args.column or ''}"
    secret = open_secret(args.secret)
    sink = ReleaseSink(args.out, existing=args.existing)
    with sink:
        if args.secret is not None:
            claim(args.secret, secret, plan.digest, name, args.file)
        if args.ledger is not None:  # Before the first draw: what the whole plan will charge.
            write_text(args.ledger, plan.layout.ledger().to_json() + "\n")
        job = _Job(plan, plan.open(secret=secret, run=name), sink, args)
        try:
            job.run(blocks)
        except BaseException as error:
            # Not to somebody who closed the pipe on purpose.
            if not isinstance(error.__cause__, BrokenPipeError):
                job.report()
            raise
        job.report()
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    if args.plan is None:
        return plan_from(args)
    for name in PLAN_OPTIONS:
        if getattr(args, name) is not None:
            raise ParameterError(
                name, "nothing beside --plan, which says it already", getattr(args, name)
            )
    return load_plan(args.plan)


class _Job:
    """One run: blocks in, releases out, and counts of both."""

    def __init__(
        self, plan: Plan, stream: Stream, sink: ReleaseSink, args: argparse.Namespace
    ) -> None:
        self._plan, self._stream, self._sink, self._args = plan, stream, sink, args
        self._source = "standard input" if args.file == "-" else args.file
        self._released = 0
        self._last_release = 0
        self._begun = time.perf_counter()

    def run(self, blocks: Iterable[Block]) -> None:
        """Absorb every block and write what it releases.

        **Privacy.** Touches raw data; which exception ends the run depends on the number of rows
        alone, which is public.
        """
        most = self._plan.most_observations
        with _progress(self._args, self._plan) as show:
            for block in blocks:
                room = most - self._stream.t
                self._absorb(block.raw_values[:room])
                show(self._stream.t, self._released, block.fraction)
                if len(block) > room:
                    raise StreamEnded(
                        f"length: expected at most {most:,} observations, as the plan promises, "
                        f"found more in {self._source}; the first {most:,} were released and "
                        "written, the others were not used. Plan with a larger length for them"
                    )
        if not self._released:
            layout = self._plan.layout
            first = layout.lag or min(layout.every, layout.length)
            hint = "a shorter lag" if layout.lag else "a smaller every"
            raise InputError(
                f"{self._source}: expected at least {first:,} observations, after which the first "
                f"release comes, found {self._stream.t:,}; nothing was released. Wait for more "
                f"data, or plan with {hint}"
            )

    def _absorb(self, raw_values: Any) -> None:
        learning = self._stream.t < self._plan.layout.lag
        releases = self._stream.update_many(raw_values)
        backfill = self._stream.backfill
        if learning and backfill is not None:  # Its last one is the first of `releases`.
            self._released += self._sink.write_releases(backfill[:-1])
        self._released += self._sink.write_releases(releases)
        if len(releases):
            self._last_release = int(releases.t[-1])

    def report(self) -> None:
        """The summary, also after an error: what came in, what went out, what it cost."""
        if self._args.ledger is not None:
            write_text(self._args.ledger, self._stream.ledger.to_json() + "\n")
        if self._args.quiet:
            return
        seconds = time.perf_counter() - self._begun
        absorbed = self._stream.t
        warn(
            f"{absorbed:,} observations, {self._released:,} releases to {self._sink.name}, "
            f"{seconds:.1f} s ({absorbed / max(seconds, 1e-9):,.0f} observations a second)"
        )
        if 0 < self._last_release < absorbed:
            warn(
                f"the last release is at observation {self._last_release:,}: the "
                f"{absorbed - self._last_release:,} after it are fewer than --every"
            )
        note(str(self._stream.ledger))


@contextmanager
def _progress(args: argparse.Namespace, plan: Plan) -> Iterator[Any]:
    """Yield a function of (observations, releases, fraction) that shows how far we are."""
    on_terminal = sys.stderr.isatty()
    wanted = args.progress
    if wanted is None:  # Records on the same terminal would run through the bar.
        wanted = on_terminal and not (args.out == "-" and sys.stdout.isatty())
    if args.quiet or not wanted:
        yield lambda *_: None
    elif on_terminal:
        with _bar(plan) as show:
            yield show
    else:
        yield _lines()


@contextmanager
def _bar(plan: Plan) -> Iterator[Any]:
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
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task("reading", total=None, rows=0, rate=0.0, released=0)

        def show(rows: int, released: int, fraction: float | None) -> None:
            progress.update(
                task,
                description="learning" if rows < plan.layout.lag else "releasing",
                total=None if fraction is None else 1.0,
                completed=0.0 if fraction is None else fraction,
                rows=rows,
                rate=rows / (time.perf_counter() - begun),
                released=released,
            )

        yield show


def _lines() -> Any:
    begun = time.perf_counter()
    shown = begun

    def show(rows: int, released: int, fraction: float | None) -> None:
        nonlocal shown
        now = time.perf_counter()
        if now - shown >= _PLAIN_PROGRESS:
            shown = now
            share = "" if fraction is None else f", {fraction:.0%} of the input"
            rate = rows / (now - begun)
            note(f"rillet: {rows:,} rows, {released:,} releases, {rate:,.0f} rows/s{share}")

    return show
