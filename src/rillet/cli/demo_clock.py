"""``rillet demo --clock``: the power of a house by the minute, released each hour.

**Privacy.** The data are public; that is why the truth may be shown.  The noise is real, from a
fresh secret, so the numbers differ from run to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rillet.cli.common import console, say, warn
from rillet.cli.demo import DELTA, EPSILON
from rillet.errors import MissingExtra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rillet.plan import Plan
    from rillet.release import Releases

    FloatArray = NDArray[np.float64]

PICTURE = "rillet-demo-clock.png"
START, LENGTH, ZONE = "2006-12-16T17:00", "1442d", "Etc/GMT-1"
#: Hours after the first release at which the table has a row.
_TIMES = (("first release", 0), ("a week later", 168), ("a year later", 8760))
#: A window goes up and down: the picture has the last month of it.
_LAST_MONTH = 28 * 24


def run_by_clock(folder: Path, window: str | None = None) -> int:
    """Run the demonstration: of all so far, or of a window such as ``1d``."""
    from rillet import datasets
    from rillet.plan import Plan
    from rillet.statistic import Mean

    dataset = datasets.load("household_power")
    say(
        f"The power of a house, {dataset.length:,} readings, one a minute; what is the average "
        f"{'so far' if window is None else f'of the last {window}'}, each hour?\n"
        f"Promise for every reading: ε = {EPSILON:g}, δ = 2^-20, and that it was made at all is "
        f"protected too.\nNo house draws more than {dataset.upper:g} kW, which is public, as the "
        "hours of the releases are.\n"
    )
    plan = Plan(
        epsilon=EPSILON,
        delta=DELTA,
        upper=dataset.upper,
        every="1h",
        start=START,
        zone=ZONE,
        length=LENGTH,
        statistic=Mean(window=window),
    )
    readings, times = datasets.household_power_with_time()
    stream = plan.open()
    # In pieces, as they would come in; each tick is closed when its hour is over.
    for piece in np.array_split(np.arange(len(readings)), 100):
        stream.update_many(readings[piece], at=times[piece])
    assert plan.clock is not None
    releases = stream.advance(until=plan.clock.end_of(plan.last_t) / 1e6)
    count, truth = _truth(readings, times, releases, plan)
    _report(releases, count, truth)
    say(f"\n{plan.describe()}\n")
    say(str(stream.charges))
    title = f"Average power of a house, each hour, with ε = {EPSILON:g} for each reading"
    if window is not None:
        title = title.replace("house, ", f"house over the last {window}, ")
        month = slice(-_LAST_MONTH, None)
        releases, count, truth = releases[month], count[month], truth[month]
    _picture(releases, count, truth, title, folder / PICTURE)
    return 0


def _truth(
    readings: FloatArray, times: NDArray[np.datetime64], releases: Releases, plan: Plan
) -> tuple[FloatArray, FloatArray]:
    """Number and mean of the readings that each release looks back on."""
    ahead = np.timedelta64(3_600_000_000, "us")  # the zone
    begun = releases.at - plan.layout.remembered(releases.t) * np.timedelta64(1, "h")
    first, done = (np.searchsorted(times - ahead, ends) for ends in (begun, releases.at))
    sums, count = np.concatenate([[0.0], np.cumsum(readings)]), done - first
    return count.astype(np.float64), (sums[done] - sums[first]) / np.maximum(count, 1)


def _report(releases: Releases, count: FloatArray, truth: FloatArray) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("at (UTC)", "average, kW", "truth", "readings", "truth"):
        table.add_column(name, justify="right", no_wrap=True)
    low, high = releases.noise_interval(0.95)
    for label, place in (*_TIMES, ("the end", len(releases) - 1)):
        table.add_row(
            label,
            str(releases.at[place])[:16],
            f"{releases.value[place]:.4f} ± {(high[place] - low[place]) / 2:.4f}",
            f"{truth[place]:.4f}",
            f"{releases.count[place]:,.0f} ± {2 * releases.count_noise_std[place]:,.0f}",
            f"{count[place]:,.0f}",
        )
    console().print(table)


def _picture(
    releases: Releases, count: FloatArray, truth: FloatArray, title: str, path: Path
) -> None:
    """Save the picture, or say what is missing: the numbers stand without it."""
    try:
        from rillet.cli.picture import clock_picture

        clock_picture(
            releases,
            truth,
            count,
            unit="kW",
            title=title,
            path=path,
        )
    except MissingExtra as error:
        warn(f"no picture: {error}")
        return
    say(f"Picture: {path}")
