"""``rillet state``: look at a durable state, back it up, restore it, change its key.

**Privacy.** Opens the state to check it; prints public numbers only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rillet.cli.common import add_command, examples, load_plan, say
from rillet.errors import ParameterError


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
            ("rillet state restore /backup/monday live", "put the copy back"),
            ("rillet state new-key /etc/rillet/key", "make a key, to be kept elsewhere"),
        ),
    )
    parser.add_argument(
        "words",
        metavar="DIR",
        nargs="+",
        help="what was given to rillet run --state; or: restore BACKUP DIR; or: new-key FILE",
    )
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
    """Run the command."""
    from rillet.state import folder as folders

    match args.words:
        case ["restore", backup, folder]:
            folders.restore(Path(backup), Path(folder))
            say(f"restored from {backup}; read the page on operations before you type")
            say("rillet run … --restored")
        case ["new-key", file]:
            folders.new_key(Path(file))
            say(f"a new key is in {file}; keep it apart from the state")
        case [folder]:
            key_file = None if args.key_file is None else Path(args.key_file)
            _look(Path(folder), key_file)
            if args.backup is not None:
                folders.back_up(Path(folder), Path(args.backup), key_file)
                say(f"copied to {args.backup}, without the key; keep that apart, and not with it")
            if args.rotate_key:
                folders.rotate_key(Path(folder), key_file)
                say("sealed under a new key; the old one opens copies from before only")
        case _:
            raise ParameterError(
                "state", "DIR, restore BACKUP DIR, or new-key FILE", " ".join(args.words)
            )
    return 0


def _look(folder: Path, key_file: Path | None) -> None:
    from rillet.state.store import SqliteStore

    plan = load_plan(str(folder / "plan.json"))
    with plan.open_folder(folder, key_file=key_file, restored=True, only_look=True) as streams:
        # Reads each, and raises if one is damaged.
        times = [streams.t(key) for key in plan.keys_now or streams.keys]
        waiting = sum(len(releases) for _, releases in streams.store.undelivered())
        say(f"state of {folder}: whole")
        say(f"promise      {plan.guarantee_now}")
        say(f"keys         {len(plan.keys_now) or 1:,}")
        for each in plan.amendments:
            say(
                f"amended      after tick {each.after:,}: {each}"
                if plan.clock
                else f"amended      {each}"
            )
        what = "observations" if streams.layout.clock is None else "ticks"
        say(f"absorbed     {streams.absorbed:,} {what}")
        lag = streams.layout.lag
        if lag and (learning := [t for t in times if t < lag]):
            keys = f"{len(learning):,} of {len(times):,} keys; the furthest has "
            say(f"learning     {keys * (len(times) > 1)}{max(learning):,} of {lag:,} {what}")
        say(f"undelivered  {waiting:,} releases")
        if isinstance(streams.store, SqliteStore) and streams.store.gate is not None:
            say(f"gate         {streams.store.gate_bytes:,} bytes")  # how many persons is private
        for name in streams.store.sinks():
            say(f"sink         {name}")
