"""``rillet amend``: keys that come, go or get another name in a durable state, and another ε.

**Privacy.** Opens the state, draws and releases nothing, and prints public numbers only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, examples, number, say
from rillet.errors import ParameterError

if TYPE_CHECKING:
    from rillet.plan import Plan
    from rillet.release import Key


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "amend",
        run,
        description="""
        Change a durable state that is not running: its keys, or ε for what is still to come.

        Keys that are added begin now, with the charges of every other key; those that are retired
        take and release nothing any more; a renamed one goes on under its new name. Another ε holds
        for observations of ticks that have not begun, and only by the clock. What was released and
        charged before stays as it is. Each change is sealed in the state, bound to those before it,
        and stands in plan.json. After it the configuration of the run must say the same.
        """,
        epilog=examples(
            ("rillet amend live --add s41", "a substation more"),
            ("rillet amend live --retire s7 --rename s8=s8b", "one goes, one has another name"),
            ("rillet amend live --keys meters.txt", "add and retire what differs from this file"),
            ("rillet amend live --epsilon 0.5", "half the promise for what is to come"),
            ("rillet ledger live", "what it has charged, and will"),
        ),
    )
    parser.add_argument("folder", metavar="DIR", help="what was given to rillet run --state")
    parser.add_argument(
        "--add", metavar="KEY", action="append", default=[], help="a key that comes; its parts "
        "separated by commas. May be given several times"
    )  # fmt: skip
    parser.add_argument(
        "--retire", metavar="KEY", action="append", default=[], help="a key that goes"
    )
    parser.add_argument(
        "--rename", metavar="OLD=NEW", action="append", default=[], help="another name for a key"
    )
    parser.add_argument(
        "--keys", metavar="FILE", help="the keys from now on, one per line: add and retire the rest"
    )
    parser.add_argument(
        "--epsilon", metavar="E", type=number, help="the promise ε for what is to come"
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help="the key that it is sealed under (default DIR/key)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.plan import Plan

    plan = Plan.kept_in(args.folder)
    add, retire = [_key(text) for text in args.add], [_key(text) for text in args.retire]
    if args.keys is not None:
        if add or retire:
            raise ParameterError("keys", "nothing beside --add and --retire", args.keys)
        add, retire = _differing(plan, Path(args.keys))
    amended = plan.amend_folder(
        args.folder,
        add=add,
        retire=retire,
        rename=[_renamed(text) for text in args.rename],
        epsilon=args.epsilon,
        key_file=args.key_file,
    )
    change = amended.amendments[-1]
    say(f"amended: {change}")
    if amended.keys:
        say(f"keys now: {len(amended.keys_now):,}")
    if amended.clock is not None:
        say(f"after tick {change.after:,}")
    if change.epsilon is not None:
        first, promise = amended.layout.later[-1]
        say(f"from tick {first:,} on: {promise}")
    say("the configuration of the run must say the same from now on")
    return 0


def _key(text: str) -> Key:
    return tuple(part.strip() for part in text.split(","))


def _renamed(text: str) -> tuple[Key, Key]:
    old, equals, new = text.partition("=")
    if not equals:
        raise ParameterError("rename", "OLD=NEW", text)
    return _key(old), _key(new)


def _differing(plan: Plan, path: Path) -> tuple[list[Key], list[Key]]:
    """What a file has that the state has not, and the other way round."""
    from rillet.engine.config import read_keys

    now = {tuple(map(str, key)): key for key in plan.keys_now}
    if not now:
        raise ParameterError("keys", "none, since the state has none", str(path))
    wanted = dict.fromkeys(read_keys(path, len(plan.keys[0])))
    return [key for key in wanted if key not in now], [now[key] for key in now if key not in wanted]
