"""``rillet run``: from a source through a plan's streams to sinks.

**Privacy.** Touches raw data, a block at a time, and hands them to the streams.  Prints counts, the
plan's public numbers and its charges; observations reach nothing but the streams.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import (
    PLAN_OPTIONS,
    add_command,
    add_plan_options,
    examples,
    load_plan,
    note,
    plan_from,
    say,
    warn,
    write_text,
)
from rillet.cli.progress import progress
from rillet.errors import InputError, ParameterError, StreamEnded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rillet.engine.config import Config
    from rillet.engine.job import Job, Streams
    from rillet.source import Block

_DELIMITERS = {None: ",", "tab": "\t", "\\t": "\t"}
#: Options that a configuration has instead.
_INSTEAD = (
    *PLAN_OPTIONS,
    *("plan", "column", "format", "delimiter", "key_column", "keys", "sequence", "follow"),
    *("state", "key_file", "out"),
)


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        description="""
        Release the running mean or sum of a column, as JSON lines or into a durable state.

        Every row is one observation. A value above --upper counts as B, a value below --lower, an
        empty cell or anything that is no number counts as A: nothing is skipped, and nothing stops
        because of a value. Each release is one line with value, noise_std and the rest of the
        record; what was charged goes to standard error at the end.

        With --state DIR the run is durable: it can be stopped or killed at any instant, and the
        same command goes on where it stopped. Releases then go to DIR/releases.db, and to --out.
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
            (
                (
                    "rillet run meters.csv --column kwh --key-column meter --keys meters.txt \\\n"
                    "      --epsilon 1 --upper 50 --length 8760 --state live --follow"
                ),
                "a stream for each declared meter, from a growing file, durably",
            ),
            ("rillet run --config live.toml --check", "is everything right? spends nothing"),
        ),
    )
    _add_input(parser)
    add_plan_options(parser)
    _add_state(parser)
    _add_output(parser)


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="CSV, Parquet or JSON lines; - reads standard input",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="a TOML file that says everything, instead of options"
    )
    parser.add_argument(
        "--check", action="store_true", help="check everything, release and spend nothing"
    )
    parser.add_argument(
        "--column", metavar="C", help="column or field with the values (1.5, not 1,5)"
    )
    parser.add_argument(
        "--key-column",
        action="append",
        metavar="K",
        help="a column with a part of the key; may be given several times",
    )
    parser.add_argument(
        "--keys", metavar="FILE", help="declared keys, one to a line, parts between commas"
    )
    parser.add_argument(
        "--sequence", metavar="S", help="a column with a number that grows with each row of a key"
    )
    parser.add_argument(
        "--format",
        choices=("auto", "csv", "jsonl", "parquet"),
        help="format of the input (default: by the ending of its name)",
    )
    parser.add_argument("--delimiter", metavar="X", help="between the cells of CSV (default ,)")
    parser.add_argument(
        "--follow", action="store_true", help="at the end of the file wait for it to grow"
    )
    parser.add_argument(
        "--plan", metavar="PLAN", help="a saved plan, in place of the options of the next group"
    )


def _add_state(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("durable state")
    group.add_argument(
        "--state", metavar="DIR", help="keep the state in this folder; go on if it has one"
    )
    group.add_argument(
        "--key-file",
        metavar="FILE",
        help="the key that the state is sealed under (default DIR/key, made if absent)",
    )
    group.add_argument(
        "--restored",
        action="store_true",
        help="go on although this state was copied or restored from a backup",
    )
    group.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there, public numbers only"
    )
    group.add_argument("--log-format", choices=("text", "json"), help="logs for people or programs")
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="what to log (default info)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out",
        metavar="FILE",
        help="where releases go as JSON lines; - is standard output (default, without --state)",
    )
    group.add_argument(
        "--existing",
        choices=("refuse", "append", "replace"),
        default="refuse",
        help="what to do if that file has something in it (default refuse); a durable run goes on",
    )
    group.add_argument("--ledger", metavar="FILE", help="also write what is charged, as JSON")
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
    from rillet.engine import service

    config = _config(args)
    if args.check:
        return service.check(config, restored=args.restored, say=say)
    with service.opened(config, args) as (streams, blocks, sinks):
        if args.ledger is not None:  # Before the first draw: what the whole plan will charge.
            write_text(args.ledger, config.plan.layout.charges().to_json() + "\n")
        report = _Report(config, streams, args)
        with progress(args, config.plan) as show, service.metrics(config, streams) as count:

            def watch(tally: Any) -> None:
                # How much of a file is left would tell how many rows have undeclared keys.
                share = None if config.plan.keys else tally.fraction
                show(tally.observations, tally.releases, share)
                count(tally)

            from rillet.engine.job import Job

            job = Job(streams, sinks, watch=watch)
            report.job = job
            try:
                job.run(_within_length(config, streams, blocks))
            except BaseException as error:
                # Not to somebody who closed the pipe on purpose.
                if not isinstance(error.__cause__, BrokenPipeError):
                    report.write()
                raise
        if config.state is None and not job.tally.releases:
            raise _nothing_released(config, streams, report)
        report.write()
    return 0


def _config(args: argparse.Namespace) -> Config:
    from rillet.engine.config import Config, load_config, read_keys, with_keys

    if args.config is not None:
        for name in ("file", *_INSTEAD):
            given = getattr(args, name)
            if given is not None and given is not False:
                raise ParameterError(name, "nothing beside --config, which says it already", given)
        config = load_config(args.config)
    else:
        if args.file is None:
            raise ParameterError("file", "a file, - for standard input, or --config", None)
        plan = _plan(args)
        columns = tuple(args.key_column or ())
        if (args.keys is None) != (not columns):
            raise ParameterError("keys", "--keys and --key-column together, or neither", args.keys)
        if args.keys is not None:
            plan = with_keys(plan, read_keys(Path(args.keys), len(columns)))
        out = args.out if args.out is not None or args.state is not None else "-"
        config = Config(
            plan=plan,
            source={
                "path": args.file,
                "column": args.column,
                "format": args.format or "auto",
                "delimiter": _DELIMITERS.get(args.delimiter, args.delimiter),
                "follow": args.follow,
                "sequence": args.sequence,
            },
            key_columns=columns,
            sinks=() if out is None else (_sink(out),),
            state=None if args.state is None else Path(args.state),
            key_file=None if args.key_file is None else Path(args.key_file),
        )
    changes = {
        "metrics": args.metrics,
        "log_format": args.log_format,
        "log_level": args.log_level,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    config = dataclasses.replace(config, **given)
    # Without a state nobody remembers sequence numbers, and a broker would be told that messages
    # are safe which are not: what comes again would count twice.
    if config.state is None and config.open_source().redelivers:
        raise ParameterError(
            "state",
            "a folder for a durable run, as the source may give an observation twice",
            None,
            "it does with follow or sequence, and a broker always does",
        )
    return config


def _sink(out: str) -> dict[str, Any]:
    return {"kind": "stdout"} if out == "-" else {"kind": "jsonl", "path": out}


def _plan(args: argparse.Namespace) -> Any:
    if args.plan is None:
        return plan_from(args)
    for name in PLAN_OPTIONS:
        if getattr(args, name) is not None:
            raise ParameterError(
                name, "nothing beside --plan, which says it already", getattr(args, name)
            )
    return load_plan(args.plan)


def _within_length(config: Config, streams: Streams, blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks of a single stream up to its length; of many keys all, each has its own.

    **Privacy.** Touches raw data; decides by the number of rows alone, which is public.
    """
    most, name = config.plan.most_observations, config.open_source().name
    for block in blocks:
        room = most - streams.observations
        yield block  # what is beyond its length a stream leaves out
        if not config.plan.keys and len(block) > room:
            raise StreamEnded(
                f"length: expected at most {most:,} observations, as the plan promises, found more "
                f"in {name}; the first {most:,} were released and written, the "
                "others were not used. Plan with a larger length for them"
            )


def _nothing_released(config: Config, streams: Streams, report: _Report) -> InputError:
    report.write()
    layout, name = config.plan.layout, config.open_source().name
    first = layout.lag or min(layout.every, layout.length)
    hint = "a shorter lag" if layout.lag else "a smaller every"
    return InputError(
        f"{name}: expected at least {first:,} observations, after which the first "
        f"release comes, found {streams.observations:,}; nothing was released. Wait for more data, "
        f"or plan with {hint}"
    )


class _Report:
    """The summary, also after an error: what came in, what went out, what it cost."""

    def __init__(self, config: Config, streams: Streams, args: argparse.Namespace) -> None:
        self._config, self._streams, self._args = config, streams, args
        self._before, self._begun = streams.observations, time.perf_counter()
        self.job: Job | None = None

    def write(self) -> None:
        """Once, at the end."""
        config, absorbed = self._config, self._streams.observations
        # Of many keys, the charges of the one with the most observations cover all.
        most = absorbed if not config.plan.keys else config.plan.most_observations
        charges = config.plan.layout.charges().after(most)
        if self._args.ledger is not None:
            write_text(self._args.ledger, charges.to_json() + "\n")
        if self._args.quiet or self.job is None:
            return
        tally, seconds = self.job.tally, time.perf_counter() - self._begun
        rate = (absorbed - self._before) / max(seconds, 1e-9)
        names = [_named(sink) for sink in config.sinks]
        if config.state is not None:
            names.insert(0, str(config.state / "releases.db"))
        warn(
            f"{absorbed:,} observations, {tally.releases:,} releases to {', '.join(names)}, "
            f"{seconds:.1f} s ({rate:,.0f} observations a second)"
        )
        if not config.plan.keys and 0 < tally.last_release < absorbed:
            warn(
                f"the last release is at observation {tally.last_release:,}: the "
                f"{absorbed - tally.last_release:,} after it are fewer than --every"
            )
        note(str(charges))


def _named(sink: Any) -> str:
    if sink["kind"] == "stdout":
        return "standard output"
    return str(sink.get("path") or sink["kind"])
