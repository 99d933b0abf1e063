"""``rillet audit``: measure a mechanism, as it releases, against its claim.

**Privacy.** Made-up streams with fresh secrets only: no option names a file with data, or a seed.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, console, examples, load_plan, note, say, write_text
from rillet.errors import ParameterError

if TYPE_CHECKING:
    from rillet.audit.family import Family

#: What is wrong with a mechanism is a promise that is not kept.
_FOUND = 3


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "audit",
        run,
        description="""
        Measure a mechanism, as it releases, against its claim.

        Runs made-up streams and their neighbours through the code that releases: on the same
        noise (control flow, what moves left of it), for millions of keys (a lower bound on ε by
        likelihood ratios, the variance and independence of the noise), and through the public
        interface alone. With all also mechanisms that are broken on purpose, each with 20 fresh
        secrets, which it must catch. Ends with 3 if a mechanism fails, or a broken one passes.
        """,
        epilog=examples(
            ("rillet audit binary-tree --quick", "one mechanism, within seconds"),
            ("rillet audit all --html audit.html", "everything, within ten minutes on two cores"),
            ("rillet audit plan.json --json -", "a plan that rillet plan --save wrote, as JSON"),
        ),
    )
    parser.add_argument(
        "what",
        metavar="MECHANISM|PLAN.json|all",
        nargs="?",
        default="all",
        help="the name of a mechanism, a file with a plan, or all (default); list shows the names",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer trials: all of it in under a minute"
    )
    parser.add_argument("--json", metavar="FILE", help="write the findings as JSON; - prints them")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--html", metavar="FILE", help="write a report for people, as one page")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.audit.family import audit_all, audit_one
    from rillet.audit.mechanisms import SUBJECTS, Subject
    from rillet.audit.page import page_of

    if args.what == "list":
        for subject in SUBJECTS.values():
            say(f"{subject.name:<24}{subject.about}")
        return 0
    if args.what == "all":
        family = audit_all(quick=args.quick, tell=note, processes=os.cpu_count() or 1)
    elif args.what in SUBJECTS:
        family = audit_one(SUBJECTS[args.what], quick=args.quick)
    elif args.what.endswith(".json"):
        plan = load_plan(args.what)
        family = audit_one(Subject(args.what, "your plan", lambda: plan), quick=args.quick)
    else:
        expected = "all, list, a file PLAN.json or one of " + ", ".join(SUBJECTS)
        raise ParameterError("what", expected, args.what)
    findings = json.dumps(family.to_dict(), indent=1, ensure_ascii=False)
    if args.json == "-":
        say(findings)
    else:
        _print(family)
    for path, text in (
        (args.json, findings + "\n"),
        (args.markdown, family.markdown()),
        (args.html, page_of(family)),
    ):
        if path not in (None, "-"):
            write_text(path, text)
            note(f"wrote {path}")
    return 0 if family.passed else _FOUND


def _print(family: Family) -> None:
    """Tables for a person."""
    from rich.table import Table

    screen = console()
    for table in family.tables():
        shown = Table(*table.head, title=table.title, title_justify="left", box=None)
        for row in table.rows:
            shown.add_row(*row)
        screen.print(shown)
        screen.print()
    for report in family.reports:
        if len(family.reports) == 1 or not report.passed:
            for check in report.checks:
                screen.print(f"{'✓' if check.passed else '✗'} {check.name}: {check.detail}")
    screen.print(family.summary)
