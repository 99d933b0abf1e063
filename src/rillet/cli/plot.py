"""``rillet plot``: a picture of releases.

**Privacy.** Draws what was released.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rillet.cli.common import add_command, examples, say
from rillet.errors import InputError, ParameterError


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "plot",
        run,
        description="""
        Draw releases with their 95 % intervals as a picture: PNG, SVG or PDF, by its name.

        RELEASES is the folder of a durable run, its releases.db, a folder of Parquet files, a file
        of JSON lines or CSV, or the address of a database of PostgreSQL (postgresql://…). A
        histogram is drawn as bars, quantiles as a fan, everything else as lines, one panel for
        each key.
        """,
        epilog=examples(
            ("rillet plot live --out live.png", "all keys of a run, at most eight"),
            ("rillet plot releases.jsonl --key north --out north.svg", "one key of a file"),
            (
                "rillet plot postgresql://db.example.org/live --table live.releases",
                "a table of PostgreSQL; the password is in ~/.pgpass",
            ),
        ),
    )
    parser.add_argument("releases", metavar="RELEASES", help="a folder, file or address")
    parser.add_argument(
        "--out", default="releases.png", metavar="FILE", help="the picture (default releases.png)"
    )
    parser.add_argument(
        "--key", action="append", metavar="K", help="only this key; may be given several times"
    )
    parser.add_argument(
        "--table",
        default="releases",
        metavar="NAME",
        help="of PostgreSQL, the table (default releases)",
    )
    parser.add_argument(
        "--along",
        choices=("time", "t"),
        help="the axis: time, or the number of observations (default: what tells more)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.cli.picture import release_picture
    from rillet.release import key_shown
    from rillet.sink.reading import read_releases

    found = read_releases(args.releases, table=args.table)
    if not len(found):
        raise InputError(f"{args.releases}: expected releases, found none yet")
    shown = {str(key_shown(key)): index for index, key in enumerate(found.keys)}
    wanted = args.key or list(shown)[:8]
    for key in wanted:
        if key not in shown:
            raise ParameterError("key", f"one of {', '.join(list(shown)[:20])}", key)
    release_picture(
        found, {key: shown[key] for key in wanted}, along=args.along, path=Path(args.out)
    )
    more = len(shown) - len(wanted)
    say(f"{args.out}: {len(wanted)} keys" if len(wanted) > 1 else args.out)
    if more and not args.key:
        say(f"{more:,} more keys; name those to draw with --key")
    return 0
