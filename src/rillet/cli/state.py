"""``rillet state``: look at a durable state, change its key, back it up.

**Privacy.** Opens the state to check it; prints public numbers only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rillet.cli.common import add_command, examples, load_plan, say


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "state",
        run,
        description="""
        Check a durable state that is not running, and look after it.

        Opens the state with its key and reads all of it; a damaged one is refused. Says for what
        plan it is, how many keys and observations it has, and how many releases wait to be
        delivered.
        """,
        epilog=examples(
            ("rillet state live", "is it whole? what is in it?"),
            ("rillet state live --rotate-key", "seal it under a new key, destroy the old one"),
            ("rillet state live --backup /backup/monday", "copy it, without the key"),
        ),
    )
    parser.add_argument("folder", metavar="DIR", help="what was given to rillet run --state")
    parser.add_argument(
        "--key-file", metavar="FILE", help="the key that it is sealed under (default DIR/key)"
    )
    parser.add_argument(
        "--rotate-key",
        action="store_true",
        help="seal everything under a new key, which takes the place of the old one",
    )
    parser.add_argument(
        "--backup", metavar="DIR", help="copy the state and its plan to this empty folder"
    )


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from rillet.durable import DurableStreams
    from rillet.state.upkeep import back_up, rotate_key

    folder = Path(args.folder)
    key_file = None if args.key_file is None else Path(args.key_file)
    plan = load_plan(str(folder / "plan.json"))
    with DurableStreams(folder, plan, key_file=key_file, restored=True, only_look=True) as streams:
        streams.check()
        waiting = sum(len(table) for _, table in streams.undelivered())
        say(f"state of {folder}: whole")
        say(f"promise      {plan.guarantee}")
        say(f"keys         {len(streams.keys):,}")
        say(f"absorbed     {streams.observations:,} observations")
        say(f"undelivered  {waiting:,} releases")
        for name in streams.places():
            say(f"sink         {name}")
    if args.backup is not None:
        back_up(folder, Path(args.backup), key_file)
        say(f"copied to {args.backup}, without the key; keep that apart, and not with it")
    if args.rotate_key:
        rotate_key(folder, key_file)
        say("sealed under a new key; the old one opens copies from before only")
    return 0
