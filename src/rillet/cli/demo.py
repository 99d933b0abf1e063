"""``rillet demo``: the main job on real data, with the truth beside it.

**Privacy.** The data are public; that is why the truth may be shown.  The noise is real, from a
fresh secret, so the numbers differ from run to run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.cli.common import add_command, console, examples, say, show, warn, whole
from rillet.errors import MissingExtra, ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from rillet.plan import Plan
    from rillet.release import Releases

    FloatArray = NDArray[np.float64]

EPSILON, DELTA = 1.0, 2.0**-20
LENGTH = 150_000
PICTURE = "rillet-demo.png"

#: The animation takes about so long, whatever the machine.
_SECONDS = 20.0
_FRAMES = 240
_PLAIN_LINES = 10
_SPARK = 48
_BAR = 14


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        description="""
        Watch it work: the running average of 150,000 real supermarket baskets, under privacy.

        The baskets are public data (The Complete Journey), so the truth can stand beside the
        private answers: the plain binary tree, the mechanism of Perrier, Asghar and Kaafar, which
        first learns from 50,000 baskets how large baskets really are, and what rillet itself
        would choose. Each promises at most ε = 1 and δ = 2^-20 for every basket. The noise is
        drawn afresh, so the numbers differ from run to run. At the end: the errors, the charges,
        and a picture.
        """,
        epilog=examples(
            ("rillet demo", "the live screen, about twenty seconds"),
            ("rillet demo --fast --out pictures", "straight to the result, in a few seconds"),
            ("rillet demo --serve 8000", "the same as a page in the browser, at the port 8000"),
            ("rillet demo --clock", "by the clock: a house's power, each hour, readings hidden"),
            ("rillet demo --clock --window 1d", "the same over the last day, for ever"),
        ),
    )
    parser.add_argument("--fast", action="store_true", help="no animation, straight to the result")
    parser.add_argument(
        "--serve",
        metavar="HOST:PORT",
        help="show it as a page at this address, until Ctrl-C, instead of in the terminal",
    )
    parser.add_argument(
        "--clock",
        action="store_true",
        help="another one: the power of a house by the minute, released each hour, with how many "
        "readings there were protected too",
    )
    parser.add_argument(
        "--window",
        metavar="W",
        help="with --clock, the average of only the last W, such as 1d, instead of all so far",
    )
    parser.add_argument(
        "--out", default=".", metavar="DIR", help=f"where {PICTURE} goes (default: here)"
    )
    parser.add_argument(
        "--length",
        type=whole,
        default=LENGTH,
        metavar="N",
        help=f"only the first N baskets (default {LENGTH:,}); the first third is learned from",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet import datasets

    if args.clock:
        from rillet.cli.demo_clock import run_by_clock

        return run_by_clock(Path(args.out), args.window)
    if args.window is not None:
        raise ParameterError("window", "none without --clock", args.window)
    dataset = datasets.load("baskets")
    length = args.length
    if not 30 <= length <= dataset.length:
        raise ParameterError("length", f"a number from 30 to {dataset.length:,}", length)
    race = Race(
        [Runner(label, plan) for label, plan in mechanisms(dataset.upper, length)],
        dataset.values[:length],
        dataset.unit,
    )
    say(
        f"{length:,} supermarket baskets, one after the other; what is the average so far?\n"
        f"Promise for every basket: ε = {EPSILON:g}, δ = 2^-20. No basket costs more than "
        f"${dataset.upper:,.0f}, which is public.\n"
        "The baskets are public data, so the truth can be shown. The noise is drawn afresh: your "
        "numbers are yours alone.\n"
    )
    if args.serve is not None:
        from rillet.cli.demo_serve import show_race

        show_race(race, args.serve, fast=args.fast)
        return 0
    screen = console()
    if args.fast:
        race.finish()
    elif screen.is_terminal:
        _animate(race, screen)
    else:
        _plain(race)
    _report(race, screen)
    _picture(race, Path(args.out) / PICTURE)
    return 0


def mechanisms(upper: float, length: int) -> list[tuple[str, Plan]]:
    """What runs side by side; another mechanism is another line here."""
    from rillet.plan import Plan

    lag = length // 3
    plans = [
        ("plain binary tree", Plan.baseline(epsilon=EPSILON, upper=upper, length=length)),
        (
            "paper's mechanism",
            Plan.paper(epsilon=EPSILON, delta=DELTA, upper=upper, length=length, lag=lag),
        ),
    ]
    chosen = Plan(epsilon=EPSILON, delta=DELTA, upper=upper, length=length)
    same_lag = Plan(epsilon=EPSILON, delta=DELTA, upper=upper, length=length, lag=lag)
    if all(plan not in (chosen, same_lag) for _, plan in plans):
        plans.append(("rillet's choice", chosen))
    return plans


# --- The race ------------------------------------------------------------------------------------


class Runner:
    """One mechanism on its way through the baskets."""

    def __init__(self, label: str, plan: Plan) -> None:
        self.label = label
        self.plan = plan
        self.stream = plan.open()
        self._parts: list[Releases] = []

    def feed(self, values: FloatArray) -> None:
        """Absorb some baskets."""
        releases = self.stream.update_many(values)
        if len(releases):
            self._parts.append(releases)

    @property
    def releases(self) -> Releases | None:
        """All releases so far."""
        from rillet.release import Releases

        if len(self._parts) > 1:
            self._parts = [Releases.join(self._parts)]
        return self._parts[0] if self._parts else None


@dataclass
class Race:
    """All mechanisms, the baskets, and the truth."""

    runners: list[Runner]
    values: FloatArray
    unit: str
    t: int = 0

    def __post_init__(self) -> None:
        import numpy as np

        self.truth = np.cumsum(self.values) / np.arange(1, len(self.values) + 1)

    @property
    def length(self) -> int:
        """Number of baskets."""
        return len(self.values)

    @property
    def learned(self) -> int:
        """Baskets after which every mechanism releases."""
        return max(runner.plan.layout.lag for runner in self.runners)

    def advance(self, until: int) -> None:
        """Let every mechanism absorb the baskets up to ``until``."""
        for runner in self.runners:
            runner.feed(self.values[self.t : until])
        self.t = until

    def finish(self) -> None:
        """Go to the end at once."""
        self.advance(self.length)

    def errors(self, runner: Runner) -> tuple[Any, FloatArray]:
        """Times and errors of a mechanism so far."""
        import numpy as np

        releases = runner.releases
        if releases is None:
            return np.empty(0, np.int64), np.empty(0)
        return releases.t, releases.value - self.truth[releases.t - 1]


# --- The live screen -----------------------------------------------------------------------------


def _animate(race: Race, screen: Any) -> None:
    """Advance frame by frame in a fixed time, however slow the terminal."""
    from rich.live import Live

    begun = time.perf_counter()
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        for until in paced(race.length, begun):
            race.advance(until)
            live.update(_screen(race), refresh=True)


def paced(length: int, begun: float) -> Iterator[int]:
    """Yield how many baskets should have been absorbed by now, frame after frame."""
    done = 0
    while done < length:
        time.sleep(_SECONDS / _FRAMES)
        share = (time.perf_counter() - begun) / _SECONDS
        done = min(length, max(done + 1, int(share * length)))
        yield done


def _screen(race: Race) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bars = Table.grid(padding=(0, 1))
    stages: list[tuple[str, int, int]] = [("baskets", race.t, race.length)]
    if race.learned:
        stages.insert(0, ("learning", min(race.t, race.learned), race.learned))
    for name, done, total in stages:
        bar = ProgressBar(total=total, completed=done, width=_SPARK)
        bars.add_row(f"{name:<9}", bar, f"{done:>9,} of {total:,}")
    return Group(bars, Text(), _standing(race), Text(), _sparks(race))


def _standing(race: Race) -> RenderableType:
    """Truth, and each mechanism's answer with its interval and its error."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from rillet.cli.text_plot import COLOURS

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True, min_width=17)
    for name, width in (("average", 11), ("95 % interval", 13), ("error", 10)):
        table.add_column(name, justify="right", min_width=width, no_wrap=True)
    table.add_column("how far off", min_width=_BAR)
    truth = float(race.truth[race.t - 1])
    table.add_row("truth", f"${truth:,.2f}", "", "", "")
    for index, runner in enumerate(race.runners):
        colour = COLOURS[index % len(COLOURS)][0]
        releases = runner.releases
        label = Text(runner.label, style=colour)
        if releases is None:
            left = runner.plan.layout.lag - race.t
            table.add_row(label, "learning", f"{left:,} to go", "", "")
            continue
        latest = releases[-1]
        low, high = latest.noise_interval(0.95)
        error = latest.value - truth
        table.add_row(
            label,
            f"${latest.value:,.2f}",
            f"± ${(high - low) / 2:,.2f}",
            f"{'+' if error >= 0 else '−'}${abs(error):,.3f}",
            Text(_length_bar(abs(error)), style=colour),
        )
    return table


def _length_bar(error: float, width: int = _BAR) -> str:
    """A bar whose length is logarithmic: a tenth of a cent to 100 dollars."""
    import math

    share = (math.log10(max(error, 1e-3)) + 3) / 5
    return "━" * max(1, min(width, round(share * width)))


def _sparks(race: Race) -> RenderableType:
    """|error| over time for each mechanism, on one logarithmic scale."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    from rillet.cli.text_plot import COLOURS, sparkline

    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text("|error| so far"), Text("(log scale, a cent to $100)", style="dim"))
    for index, runner in enumerate(race.runners):
        t, errors = race.errors(runner)
        track = np.full(race.t, np.nan)
        track[t - 1] = np.abs(errors)
        width = max(1, round(_SPARK * race.t / race.length))
        line = sparkline(track, low=0.01, high=100.0, width=width)
        colour = COLOURS[index % len(COLOURS)][0]
        grid.add_row(Text(f"{runner.label:<20}", style=colour), Text(line, style=colour))
    return grid


def _plain(race: Race) -> None:
    """Progress in lines, where there is no terminal."""
    for line in range(1, _PLAIN_LINES + 1):
        race.advance(race.length * line // _PLAIN_LINES)
        answers = []
        for runner in race.runners:
            releases = runner.releases
            value = "learning" if releases is None else f"${releases[-1].value:,.2f}"
            answers.append(f"{runner.label} {value}")
        truth = race.truth[race.t - 1]
        say(f"{race.t:>9,} baskets: truth ${truth:,.2f}, " + ", ".join(answers))
    say()


# --- The end -------------------------------------------------------------------------------------


def _report(race: Race, screen: Any) -> None:
    """Errors and charges."""
    screen.print(_standing(race))
    say()
    screen.print(_result_table(race))
    say("\nErrors of one run; the next run draws other noise.\n")
    for runner in race.runners:
        say(f"Charges of the {runner.label.removeprefix('the ')}")
        say(_indented(str(runner.stream.charges)))
        say()


def _result_table(race: Race) -> RenderableType:
    import numpy as np
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    first = max(1, race.learned)
    for name in (
        "first release",
        "clipped at",
        f"error at {race.length:,}",
        f"RMSE from {first:,} on",
        "RMSE of all its releases",
        "better by",
    ):
        table.add_column(name, justify="right")
    plain = None
    for runner in race.runners:
        releases = runner.releases
        assert releases is not None  # a race ends after every lag
        t, errors = race.errors(runner)
        later = _rmse(errors[t >= first])
        plain = later if plain is None else plain
        table.add_row(
            runner.label,
            f"{int(t[0]):,}",
            f"${float(np.asarray(releases.clip_upper)[-1]):,.2f}",
            f"${abs(float(errors[-1])):,.4f}",
            f"${later:,.4f}",
            f"${_rmse(errors):,.4f}",
            f"× {show(plain / later, 3)}",
        )
    return table


def _rmse(errors: FloatArray) -> float:
    import numpy as np

    return float(np.sqrt(np.mean(errors**2)))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _picture(race: Race, path: Path) -> None:
    """Save the picture, or say what is missing: the numbers stand without it."""
    try:
        from rillet.cli.picture import Track, demo_picture
        from rillet.cli.text_plot import COLOURS

        tracks = []
        for index, runner in enumerate(race.runners):
            assert runner.releases is not None
            colour = COLOURS[index % len(COLOURS)][1]
            tracks.append(Track(runner.label, runner.releases, colour))
        demo_picture(
            tracks,
            race.truth,
            unit="US dollar",
            title=f"Average of {race.length:,} baskets, with ε = {EPSILON:g} for each of them",
            path=path,
        )
    except MissingExtra as error:
        warn(f"no picture: {error}")
        return
    say(f"Picture: {path}")
