"""``rillet ledger``: what was promised and what each observation has been charged.

**Privacy.** Reads public files: ledgers and plans.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, examples, load_plan, read_text, say
from rillet.errors import InputError, ParameterError

if TYPE_CHECKING:
    from rillet.privacy import Ledger


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "ledger",
        run,
        description="""
        Show what was promised and what was spent, from a ledger, a plan or a durable state.

        A ledger is what `rillet run --ledger FILE` writes; of a plan, the ledger that a complete
        run of it would have; of the folder of a durable run, what has been spent up to the latest
        release, from its public files. The total is that of the worst-off observation: every
        observation has paid so much or less.
        """,
        epilog=examples(
            ("rillet ledger ledger.json", "what a run has spent"),
            ("rillet ledger plan.json --json", "what a plan will spend, for a program"),
            ("rillet ledger live", "what a durable run has spent so far, also while it runs"),
        ),
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a ledger or a plan in JSON, - for standard input; or the folder of a durable run",
    )
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    ledger = _of_state(args.file) if Path(args.file).is_dir() else _load(args.file)
    say(ledger.to_json() if args.json else str(ledger))
    return 0


def _of_state(folder: str) -> Ledger:
    """What the key with the most observations has been charged: it covers every other."""
    from rillet.sink.sqlite import latest_times

    plan = load_plan(str(Path(folder) / "plan.json"))
    times = latest_times(Path(folder) / "releases.db")
    return plan.layout.ledger(max(times.values(), default=0))


def _load(path: str) -> Ledger:
    from rillet.plan import Plan
    from rillet.privacy import Ledger

    expected = "a ledger or a plan in JSON, as rillet run --ledger and rillet plan --save write"
    text = read_text(path, expected)
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    kind = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(kind, str) and kind.startswith("rillet-plan"):
        return Plan.from_json(text).layout.ledger()
    if isinstance(kind, str) and kind.startswith("rillet-ledger"):
        try:
            return Ledger.from_json(text)
        except ParameterError:
            raise InputError(f"{path}: expected {expected}, found a damaged ledger") from None
    raise InputError(f"{path}: expected {expected}, found something else")
