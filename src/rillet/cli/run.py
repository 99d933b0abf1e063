"""``rillet run``: from a source through a plan's streams to sinks.

**Privacy.** Touches raw data, a block at a time, and hands them to the streams.  Prints counts, the
plan's public numbers and its charges; observations reach nothing but the streams.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from rillet.cli.common import (
    add_command,
    add_plan_options,
    examples,
    given_plan_options,
    json_notes,
    load_plan,
    missing_in_the_middle,
    say,
    warn,
    write_text,
)
from rillet.cli.progress import progress
from rillet.errors import ParameterError

if TYPE_CHECKING:
    from rillet.engine import Config, Summary
    from rillet.plan import Plan

_TAB, _TABS = "\t", ("tab", "\\t")
#: Options of the table [state], and all that a configuration has instead.
_OF_STATE = ("key_file", "releases", "readers")
_INSTEAD = (
    *("plan", "column", "time", "person", "format", "delimiter", "decimal", "key_column", "keys"),
    *("sequence", "follow"),
    *("state", *_OF_STATE, "out", "existing"),
)


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        description="""
        Release the running mean or sum of a column, as JSON lines or into a durable state.

        Every row is one observation. A value above --upper counts as B, a value below --lower as A;
        what becomes of an empty cell, or of anything that is no number, --missing says. Nothing
        stops because of a value. Each release is one line with value, noise_std and the rest of the
        record; what was charged goes to standard error at the end.

        With --every 1h releases come by the clock, --time names the column with the time of each
        row, and how many rows there are is protected too. A finished file is put in the order of
        time first, whatever order it is in; with --follow the clock of this machine decides.

        With --state DIR the run is durable: it can be stopped or killed at any instant, and the
        same command goes on where it stopped. Releases then go to DIR/releases.db (or, for many
        keys, with --releases parquet to the files of DIR/releases), and to --out.
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
            (
                (
                    "rillet run power.csv --column kw --time when --zone Europe/Paris \\\n"
                    "      --every 1h --start 2026-01-01 --length 365d \\\n"
                    "      --epsilon 1 --delta 2^-20 --upper 20"
                ),
                "the average so far, each hour, from a file in any order",
            ),
            (
                (
                    "rillet run baskets.csv --column dollars --time when --person household \\\n"
                    "      --most 50 --apart 7d --every 1h --start 2026-01-01T00:00Z \\\n"
                    "      --length 365d --epsilon 1 --delta 2^-20 --upper 150 --state live"
                ),
                "the same for households: all that is used of one is protected together",
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
    parser.add_argument("--column", metavar="C", help="the column or field with the values")
    parser.add_argument(
        "--time", metavar="T", help="by the clock, the column or field with the time of each row"
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="by the clock, over a finished file: leave ticks that end later open, for a later run "
        "over the file when it has grown (default: it is complete)",
    )
    parser.add_argument(
        "--person",
        metavar="P",
        help="where persons are protected (--most), the column or field with the id of each row's",
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
        "--decimal", choices=(".", ","), help="in the numbers of CSV: a point (default) or a comma"
    )
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
        "--releases",
        choices=("sqlite", "parquet"),
        help="where its releases go: DIR/releases.db (default), or a folder of Parquet files, "
        "DIR/releases, for many keys",
    )
    group.add_argument(
        "--readers",
        metavar="WHO",
        help="who may read its releases, besides this account: a group, everyone, or owner, which "
        "is nobody (default)",
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
        help="where releases go: as JSON lines, or a folder of Parquet files if the name ends with "
        ".parquet; - is standard output (default, without --state)",
    )
    group.add_argument(
        "--existing",
        choices=("refuse", "append", "replace"),
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
    """Run the command."""
    from rillet import engine

    config = _config(args)
    if config.log_format == "json":
        json_notes()
    if args.mechanism in ("paper", "baseline") and args.missing is None:
        warn(missing_in_the_middle(args.mechanism))
    if args.check:
        for line in engine.check(config, secret=args.secret, restored=args.restored):
            say(line)
        return 0
    report = _Report(args)
    with progress(args, config.plan) as show:

        def watch(summary: Summary) -> None:
            report.update(summary)
            show(summary)

        try:
            engine.run(
                config, secret=args.secret, restored=args.restored, until=args.until, watch=watch
            )
        except BaseException as error:
            # Not to somebody who closed the pipe on purpose.
            if not isinstance(error.__cause__, BrokenPipeError):
                report.write()
            raise
    report.write()
    return 0


def _config(args: argparse.Namespace) -> Config:
    """The configuration that the options describe, or the file with what goes beside it."""
    from rillet.engine import load_config

    changes: dict[str, dict[str, Any]] = {"log": {}}
    if args.metrics is not None:
        changes["metrics"] = {"address": args.metrics}
    if args.log_format is not None:
        changes["log"]["format"] = args.log_format
    if args.log_level is not None:
        changes["log"]["level"] = args.log_level
    if args.config is not None:
        beside = {name: getattr(args, name) for name in ("file", *_INSTEAD)}
        for name, given in (given_plan_options(args) | beside).items():
            if given is not None and given is not False:
                raise ParameterError(name, "nothing beside --config, which says it already", given)
    config = load_config(_tables(args) if args.config is None else args.config, changes)
    quiet = args.quiet and config.log_level is None
    return dataclasses.replace(config, log_level="warning") if quiet else config


def _tables(args: argparse.Namespace) -> dict[str, Any]:
    """The tables of a configuration, from options."""
    if args.file is None:
        raise ParameterError("file", "a file, - for standard input, or --config", None)
    if (args.keys is None) != (not args.key_column):
        raise ParameterError("keys", "--keys and --key-column together, or neither", args.keys)
    delimiter = _TAB if args.delimiter in _TABS else args.delimiter
    source = {
        "path": args.file,
        "column": args.column,
        "time": args.time,
        "person": args.person,
        "format": args.format,
        "delimiter": delimiter,
        "decimal": args.decimal,
        "follow": args.follow,
        "sequence": args.sequence,
    }
    tables: dict[str, Any] = {"plan": _plan(args), "source": _given(source)}
    if args.keys is not None:
        tables["keys"] = {"columns": args.key_column, "file": args.keys}
    if args.state is not None:
        kept = {name: getattr(args, name) for name in _OF_STATE}
        tables["state"] = _given({"folder": args.state, **kept})
    elif given := [name for name in _OF_STATE if getattr(args, name) is not None]:
        option = f"--{given[0].replace('_', '-')}"
        raise ParameterError("state", f"a folder, since {option} is given", None)
    if (args.out or "-").endswith(".parquet"):
        if args.existing is not None:
            raise ParameterError(
                "existing", "nothing for Parquet, which is never written over", args.existing
            )
        tables["sink"] = [{"kind": "parquet", "path": args.out}]
    elif (args.out or "-") != "-":
        # What a durable run wrote it continues; any other run writes a file of its own.
        existing = {} if args.state else {"existing": args.existing or "refuse"}
        tables["sink"] = [{"kind": "jsonl", "path": args.out, **existing}]
    elif args.state is None or args.out == "-":
        tables["sink"] = [{"kind": "stdout"}]
    return tables


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _plan(args: argparse.Namespace) -> Plan | dict[str, Any]:
    if args.plan is None:
        return given_plan_options(args)
    for name, given in given_plan_options(args).items():
        raise ParameterError(name, "nothing beside --plan, which says it already", given)
    return load_plan(args.plan)


class _Report:
    """The summary and the ledger, also after an error."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._ledger, self._quiet = args.ledger, args.quiet
        self._summary: Summary | None = None

    def update(self, summary: Summary) -> None:
        """Before the first draw, write what the whole plan will charge."""
        if self._summary is None and self._ledger is not None:
            write_text(self._ledger, summary.plan.layout.charges().to_json() + "\n")
        self._summary = summary

    def write(self) -> None:
        """Once, at the end; nothing if nothing was begun."""
        if self._summary is None:
            return
        if self._ledger is not None:
            write_text(self._ledger, self._summary.charges.to_json() + "\n")
        if not self._quiet:
            warn(str(self._summary))
