"""``rillet ledger``: what was promised and what each observation has been charged.

**Privacy.** Reads public files: ledgers and plans.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, examples, read_text, say
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
        Show what was promised and what was spent, from a ledger or from a plan.

        A ledger is what `rillet run --ledger FILE` writes; of a plan, the ledger that a complete
        run of it would have. The total is that of the worst-off observation: every observation
        has paid so much or less.
        """,
        epilog=examples(
            ("rillet ledger ledger.json", "what a run has spent"),
            ("rillet ledger plan.json --json", "what a plan will spend, for a program"),
        ),
    )
    parser.add_argument(
        "file", metavar="FILE", help="a ledger or a plan in JSON; - for standard input"
    )
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    ledger = _load(args.file)
    say(ledger.to_json() if args.json else str(ledger))
    return 0


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
