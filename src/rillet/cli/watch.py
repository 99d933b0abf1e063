"""``rillet watch``: the latest releases in the terminal, as they come.

**Privacy.** Shows what was released.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, console, examples, number, say, show, whole
from rillet.errors import InputError, ParameterError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rillet.web.live import Live

_WIDTH = 24


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "watch",
        run,
        description="""
        Watch releases in the terminal: the latest of each key with its 95 % interval, as they come.

        PATH is the folder of a durable run, its releases.db, or a folder of Parquet files. In a
        terminal the table is drawn again in place; elsewhere each new release is a line.
        """,
        epilog=examples(
            ("rillet watch live", "until Ctrl-C"),
            ("rillet watch live --key north --key south", "two keys"),
            ("rillet watch live --for 60", "for a minute"),
        ),
    )
    parser.add_argument("path", metavar="PATH", help="a folder, or releases.db")
    parser.add_argument("--key", action="append", metavar="K", help="only this key")
    parser.add_argument(
        "--for", dest="seconds", type=number, metavar="SECONDS", help="end after so long"
    )
    parser.add_argument(
        "--every",
        type=number,
        default=0.5,
        metavar="SECONDS",
        help="time between two looks (default 0.5)",
    )
    parser.add_argument(
        "--most", type=whole, default=30, metavar="N", help="rows of the table (default 30)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.sink.reading import releases_in
    from rillet.web.live import Live

    if args.every <= 0:
        raise ParameterError("every", "a positive number of seconds", args.every)
    if not releases_in(args.path).parent.is_dir():
        raise InputError(f"{args.path}: expected the folder of a run, or releases.db, found none")
    live = Live(args.path)
    screen = console()
    end = None if args.seconds is None else time.monotonic() + args.seconds
    if screen.is_terminal:
        from rich.live import Live as Screen

        with Screen(console=screen, auto_refresh=False) as drawn:
            while True:
                live.refresh()
                drawn.update(_table(live, args), refresh=True)
                if not _wait(args.every, end):
                    return 0
    while True:
        for row in live.refresh():
            if args.key is None or str(row["key"]) in args.key:
                say(_line(live.names, row))
        if not _wait(args.every, end):
            return 0


def _wait(seconds: float, end: float | None) -> bool:
    """Wait for the next look; False when the time is over."""
    import sys

    sys.stdout.flush()
    left = seconds if end is None else min(seconds, end - time.monotonic())
    if left <= 0:
        return False
    time.sleep(left)
    return True


def _line(names: tuple[str, ...], row: dict[str, Any]) -> str:
    numbers = [
        f"{name} {_value(value, low, high)}"
        for name, value, low, high in zip(names, row["value"], row["low"], row["high"], strict=True)
    ]
    key = "" if row["key"] == "[]" else f"{row['key']} "
    return f"{_time(row['at'])} {key}t={row['t']:,} {', '.join(numbers)}"


def _value(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "no value yet"
    return f"{show(value)} ({show(low)} to {show(high)})"


def _time(milliseconds: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(" ", "seconds")


def _table(live: Live, args: argparse.Namespace) -> RenderableType:
    """The latest of each key, the most recent first if there is no room for all."""
    import numpy as np
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from rillet.cli.text_plot import sparkline

    rows = [row for key, row in live.latest.items() if args.key is None or str(key) in args.key]
    learning = [
        (key, count) for key, count in _counts(live).items() if args.key is None or key in args.key
    ]
    if not rows and not learning:
        return Text(_waiting(live))
    shown = sorted(rows, key=lambda row: -row["at"])[: args.most]
    chosen = {id(row) for row in shown}
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    number = live.names[0] if live.names else "value"
    for title in ("key", "released", "t", number, "95 % interval", ""):
        table.add_column(title, no_wrap=True, justify="left" if title in ("key", "") else "right")
    for row in rows:
        if id(row) not in chosen:
            continue
        value, low, high = row["value"][0], row["low"][0], row["high"][0]
        history = np.array(live.sparks[row["key"]], float)
        known = history[np.isfinite(history)]
        line = ""
        if len(known) > 1 and known.min() < known.max():
            # The bars are logarithmic; of exponentials they are even.
            heights = np.exp((known - known.min()) / (known.max() - known.min()))
            line = sparkline(heights, low=1.0, high=math.e, width=_WIDTH)
        interval = "" if low is None or high is None else f"{show(low)} to {show(high)}"
        table.add_row(
            "" if row["key"] == "[]" else str(row["key"]),
            _time(row["at"])[11:19],
            f"{row['t']:,}",
            "no value yet" if value is None else show(value),
            interval,
            line,
        )
    room = max(0, args.most - len(shown))
    needed = (live.about() or {}).get("first_release", 0)
    for key, count in learning[:room]:
        table.add_row(key, "", f"{count:,}", "learning", f"{count:,} of {needed:,}", "")
    if more := len(rows) - len(shown) + len(learning[room:]):
        table.caption = f"{more:,} more keys"
    return table


def _counts(live: Live) -> dict[str, int]:
    """How many observations each key has that has released nothing, as far as the run says."""
    counts: dict[str, int] = (live.progress() or {}).get("learning") or {}
    return {key: count for key, count in counts.items() if key not in map(str, live.latest)}


def _waiting(live: Live) -> str:
    """What is still needed before the first release, as far as the run says."""
    about, progress = live.about(), live.progress()
    if about is None:
        return "nothing released yet"
    absorbed = (progress or {}).get("absorbed", 0)
    if about["first_release_at"] is not None:
        return f"learning; the first release comes at {about['first_release_at']}"
    return f"learning: {absorbed:,} of {about['first_release']:,} observations before the first"
