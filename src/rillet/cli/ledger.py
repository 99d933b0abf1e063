"""``rillet ledger``: what was promised and what each observation has been charged.

**Privacy.** Reads public files: charges and plans.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, examples, load_plan, read_text, say
from rillet.errors import InputError, ParameterError

if TYPE_CHECKING:
    from rillet.plan import Plan
    from rillet.privacy import Charges


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "ledger",
        run,
        description="""
        Show what was promised and what each observation is charged.

        FILE is what `rillet run --ledger FILE` wrote; or a plan, for what a complete run of it
        charges; or the folder of a durable run, for what it has charged up to the latest release,
        from its public files. The total is that of the worst-off observation: every observation
        pays so much or less.
        """,
        epilog=examples(
            ("rillet ledger ledger.json", "what a run has charged"),
            ("rillet ledger plan.json --json", "what a plan charges, for a program"),
            ("rillet ledger live", "what a durable run has charged so far, also while it runs"),
        ),
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="charges or a plan in JSON, - for standard input; or the folder of a durable run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    of_state = Path(args.file).is_dir()
    charges, plan = _of_state(args.file) if of_state else _load(args.file)
    if plan is not None and len(plan.keys) > 1 and not args.json:
        say(f"for each of {len(plan.keys_now):,} keys{', up to the latest release' * of_state}:")
    say(charges.to_json() if args.json else str(charges))
    if plan is not None and plan.clock is not None and not args.json:
        say(f"clock     tick 1 begins at {plan.start}, each lasts {plan.every}")
    return 0


def _of_state(folder: str) -> tuple[Charges, Plan | None]:
    """What the key with the most observations has been charged: it covers every other."""
    from rillet.engine.service import last_release

    plan = load_plan(str(Path(folder) / "plan.json"))
    return plan.layout.charges().after(last_release(Path(folder))), plan


def _load(path: str) -> tuple[Charges, Plan | None]:
    from rillet.plan import Plan
    from rillet.privacy import Charges

    expected = "charges or a plan in JSON, as rillet run --ledger and rillet plan --save write"
    text = read_text(path, expected)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    kind = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(kind, str) and kind.startswith("rillet-plan"):
        plan = Plan.from_json(text)
        return plan.layout.charges(), plan
    if isinstance(kind, str) and kind.startswith("rillet-charges"):
        try:
            return Charges.from_json(text), None
        except ParameterError:
            raise InputError(f"{path}: expected {expected}, found damaged charges") from None
    raise InputError(f"{path}: expected {expected}, found something else")
