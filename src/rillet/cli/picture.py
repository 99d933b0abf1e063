"""Pictures in files, with Matplotlib from the extra ``rillet[plot]``.

**Privacy.** Draws released values and, in the demonstration, public data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rillet.cli.text_plot import COLOURS
from rillet.errors import OutputError, ParameterError
from rillet.extras import import_extra

if TYPE_CHECKING:
    from rillet.cli.compare import Comparison
    from rillet.release import Releases

__all__ = ["Track", "demo_picture", "plan_picture", "release_picture"]

FloatArray = NDArray[np.float64]

#: More points than this to a line show nothing more, and make files large.
_POINTS = 3000
#: Releases jump: this many points can still be followed by eye.
_LINE_POINTS = 500
#: A shorter learning phase, as a share of the whole, has no room for words.
_ROOM_FOR_WORDS = 0.25
_INK, _PAPER, _FAINT = "#222222", "#ffffff", "#8a8a8a"


@dataclass(frozen=True)
class Track:
    """The releases of one mechanism, under its label."""

    label: str
    releases: Releases
    colour: str


def demo_picture(
    tracks: Sequence[Track], truth: FloatArray, *, unit: str, title: str, path: Path
) -> None:
    """A panel for each running average with its 95 % interval and the truth; the errors below.

    **Privacy.** ``truth`` is public data.
    """
    ratios = [1.0] * len(tracks) + [1.15]
    size = (9.4, 2.4 * len(ratios) + 0.9)
    figure, axes = _figure(len(ratios), size=size, ratios=ratios)
    middle, spread = float(truth[-1]), _view(tracks, truth)
    some = _thin(len(truth), _POINTS)
    for track, axis in zip(tracks, axes, strict=False):
        _average_panel(axis, track, unit)
        axis.plot(some + 1, truth[some], color=_INK, linewidth=1.3, linestyle=(0, (4, 2)))
        axis.set_ylim(middle - spread, middle + spread)
    axes[0].plot([], [], color=_INK, linewidth=1.3, linestyle=(0, (4, 2)), label="truth")
    axes[0].plot([], [], color=_FAINT, linewidth=1.3, label="released")
    axes[0].fill_between([], [], [], color=_FAINT, alpha=0.25, linewidth=0, label="95 % interval")
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.97)}
    axes[0].legend(**above, frameon=False, ncols=3, fontsize=9)
    _error_panel(axes[-1], tracks, truth, unit)
    axes[-1].set_xlim(0, len(truth) * 1.004)
    axes[-1].xaxis.set_major_formatter(_thousands())
    axes[-1].set_xlabel("observations so far")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _save(figure, path)


def clock_picture(
    releases: Releases,
    truth: FloatArray,
    count: FloatArray,
    *,
    unit: str,
    title: str,
    path: Path,
) -> None:
    """By the clock: the average so far, what it is off by, and how many observations there were.

    **Privacy.** ``truth`` and ``count`` are public data.
    """
    figure, (average, error, number) = _figure(3, size=(9.4, 8.2), ratios=[1.4, 1.1, 0.8])
    some = _thin(len(releases), _POINTS)
    at = releases.at[some]
    low, high = (bound[some] for bound in releases.noise_interval(0.95))
    colour = COLOURS[1][1]
    average.fill_between(
        at, low, high, color=colour, alpha=0.25, linewidth=0, label="95 % interval"
    )
    average.plot(at, releases.value[some], color=colour, linewidth=1.2, label="released")
    average.plot(at, truth[some], color=_INK, linewidth=1.3, linestyle=(0, (4, 2)), label="truth")
    average.set_ylabel(unit)
    average.legend(frameon=False, ncols=3, fontsize=9, loc="upper right")
    error.fill_between(
        at, low - truth[some], high - truth[some], color=colour, alpha=0.25, linewidth=0
    )
    error.plot(at, releases.value[some] - truth[some], color=colour, linewidth=1.0)
    error.axhline(0.0, color=_INK, linewidth=0.8)
    reach = 6 * float(np.median(releases.noise_std[some]))
    error.set_ylim(-reach, reach)
    error.set_ylabel(f"released less truth, {unit}")
    noise = releases.count_noise_std[some]
    off = releases.count[some] - count[some]
    colour = COLOURS[0][1]
    number.fill_between(at, off - 2 * noise, off + 2 * noise, color=colour, alpha=0.25, linewidth=0)
    number.plot(at, off, color=colour, linewidth=1.0)
    number.axhline(0.0, color=_INK, linewidth=0.8)
    number.set_ylabel("count less truth")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _save(figure, path)


def _average_panel(axis: Any, track: Track, unit: str) -> None:
    """Releases and their intervals; what the mechanism clips at stands in the title."""
    releases = track.releases
    chosen = _thin(len(releases), _LINE_POINTS)
    t = releases.t[chosen]
    low, high = (bound[chosen] for bound in releases.noise_interval(0.95))
    axis.fill_between(t, low, high, color=track.colour, alpha=0.25, linewidth=0)
    axis.plot(t, releases.value[chosen], color=track.colour, linewidth=1.0)
    first, clip = int(releases.t[0]), float(releases.clip_upper[-1])
    title = track.label
    if not np.isnan(clip):
        title += f": noise for values up to {clip:,.0f}"
    if first > 1:
        title += f", learned from the first {first:,}"
        axis.axvspan(0, first, color="#f1f1f1", linewidth=0)
    if first > _ROOM_FOR_WORDS * int(releases.t[-1]):
        axis.text(
            *(first / 2, 0.16),
            "learning, nothing released yet",
            transform=axis.get_xaxis_transform(),
            ha="center",
            va="center",
            color=_FAINT,
        )
    axis.set_title(title, loc="left", fontsize=10.5, color=track.colour, fontweight="bold")
    axis.set_ylabel(f"average so far\n({unit})")
    axis.locator_params(axis="y", nbins=5)


def _error_panel(axis: Any, tracks: Sequence[Track], truth: FloatArray, unit: str) -> None:
    top = 0.0
    for track in tracks:
        releases = track.releases
        error = np.abs(releases.value - truth[releases.t - 1])
        t, smooth = _smooth(releases.t, error)
        axis.plot(t, smooth, color=track.colour, linewidth=1.7)
        _label_end(axis, t[-1], float(np.max(smooth[-20:])), track.label, track.colour)
        # The very first releases are off by thousands; the story is what comes after.
        top = max(top, float(np.max(smooth[len(smooth) // 20 :])))
    axis.set_yscale("log")
    axis.set_ylim(top=1.5 * top)
    axis.yaxis.set_major_formatter(_plain_numbers())
    axis.set_ylabel(f"distance from the truth\n({unit}, log scale)")
    axis.set_title("error: root mean square of neighbouring releases", loc="left", fontsize=10.5)


def plan_picture(comparison: Comparison, path: str) -> None:
    """Expected error of each mechanism over time."""
    from rillet.cli.forecast import curve

    figure, (axis,) = _figure(1, size=(8.6, 5.0))
    first = max(1, comparison.times[0] // 10)
    drawn = 0
    for index, forecast in enumerate(comparison.forecasts):
        if forecast.typical is None:
            continue
        plan = forecast.candidate.plan
        t, error = curve(plan, forecast.widths, comparison.guesses, first, 120, within=24)
        colour = COLOURS[index % len(COLOURS)][1]
        chosen = index == comparison.chosen
        axis.plot(t, error, color=colour, linewidth=2.4 if chosen else 1.5)
        axis.annotate(
            forecast.candidate.label + (" (chosen)" if chosen else ""),
            (t[-1], error[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=colour,
            fontweight="bold" if chosen else "normal",
            annotation_clip=False,
        )
        drawn += 1
    if not drawn:
        raise ParameterError("plot", "a mechanism whose error is known", None, "give --typical")
    axis.set_xscale("log")
    axis.set_yscale("log")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(_steps_of_a_decade())
        each.set_minor_formatter(_nothing())
    axis.xaxis.set_major_formatter(_thousands())
    axis.yaxis.set_major_formatter(_plain_numbers())
    axis.margins(x=0.02)
    by_count = comparison.plan.clock is None
    along = "observations" if by_count else f"ticks of {comparison.plan.every}"
    axis.set_xlabel(f"{along} so far")
    axis.set_ylabel(f"expected error of the {comparison.plan.statistic.name} (unit of the values)")
    plan = comparison.plan
    guess = (
        "" if comparison.scale is None else f", exponential tail of scale {comparison.scale:.4g}"
    )
    axis.set_title(
        f"ε = {plan.epsilon:g}, δ = {plan.delta:.2g}, values {plan.bounds.words}{guess}",
        loc="left",
        fontsize=11,
    )
    _save(figure, Path(path))


def release_picture(
    releases: Releases, keys: Mapping[str, int], *, along: str | None, path: Path
) -> None:
    """A panel for each key: lines with their bands, quantiles as a fan, a histogram as bars.

    ``keys`` has the index of each key among those of the releases, by its title.
    """
    from rillet.sink.names import edges, share

    size = (9.4, max(2.6 * len(keys), 4.0) + 0.6)
    figure, axes = _figure(len(keys), size=size, ratios=[1.0] * len(keys))
    shares = [share(name) for name in releases.names]
    bins = [edges(name) for name in releases.names]
    if along is None:
        distinct = len(np.unique(releases.at))
        along = "time" if distinct * 2 > len(releases) // max(len(releases.keys), 1) else "t"
    for (title, index), axis in zip(keys.items(), axes, strict=True):
        chosen = np.flatnonzero(releases.key_of == index)
        if all(bin_ is not None for bin_ in bins):
            _bars(axis, releases, int(chosen[-1]))
        else:
            some = chosen[_thin(len(chosen), _POINTS)]
            x = releases.at[some] if along == "time" else releases.t[some]
            fan = all(level is not None for level in shares)
            for name, level in sorted(
                zip(releases.names, shares, strict=True), key=lambda pair: pair[1] or 0.0
            ):
                part = releases[name]
                low, high = (bound[some] for bound in part.band(0.95))
                width = 1.6 if not fan or level == 0.5 else 1.0
                colour = COLOURS[1][1] if fan else COLOURS[(1 + releases.names.index(name)) % 4][1]
                axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
                axis.plot(x, part.value[some], color=colour, linewidth=width, label=name)
            _tame(axis, releases, some)
            if along == "t":
                axis.xaxis.set_major_formatter(_thousands())
        if title != "[]":
            axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    if len(releases.names) > 1 and any(bin_ is None for bin_ in bins):
        axes[0].legend(frameon=False, ncols=6, fontsize=9, loc="upper right")
    else:
        axes[0].set_ylabel("observations" if bins[0] else releases.names[0])
    if along == "t" and bins[0] is None:
        axes[-1].set_xlabel("t: observations so far, or ticks")
    figure.suptitle("Releases with their 95 % intervals", fontsize=13, fontweight="bold")
    _save(figure, path)


def _bars(axis: Any, releases: Releases, last: int) -> None:
    """The last histogram, with whiskers."""
    parts = [releases[name] for name in releases.names]
    values = np.array([part.value[last] for part in parts])
    sides = np.array([[side[last] for side in part.band(0.95)] for part in parts]).T
    x = np.arange(len(values))
    axis.bar(x, values, 0.86, color=COLOURS[1][1], alpha=0.35, edgecolor=COLOURS[1][1])
    reach = np.abs(sides - values)
    axis.errorbar(x, values, reach, fmt="none", ecolor=_INK, elinewidth=1.0, capsize=3)
    axis.set_xticks(x, releases.names, rotation=30 if len(x) > 8 else 0)
    axis.grid(visible=False, axis="x")


def _tame(axis: Any, releases: Releases, some: NDArray[np.int64]) -> None:
    """The first releases may be far off: the scale follows the later half, mostly."""
    later = some[len(some) // 2 :]
    sides = [side[later] for name in releases.names for side in releases[name].band(0.95)]
    low, high = float(np.nanmin(sides)), float(np.nanmax(sides))
    if np.isfinite([low, high]).all() and low < high:
        room = 0.35 * (high - low)
        bottom, top = axis.get_ylim()
        axis.set_ylim(max(bottom, low - room), min(top, high + room))


# --- Parts ---------------------------------------------------------------------------------------


def _figure(rows: int, *, size: tuple[float, float], ratios: Sequence[float] = (1,)) -> Any:
    # The object interface: pyplot would look for a display and keep every figure alive.
    figures = import_extra(
        "matplotlib.figure", package="matplotlib", extra="plot", purpose="to draw a picture"
    )
    figure = figures.Figure(figsize=size, dpi=150, layout="constrained", facecolor=_PAPER)
    grid = {"height_ratios": ratios}
    axes = figure.subplots(rows, 1, squeeze=False, sharex=rows > 1, gridspec_kw=grid)[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_FAINT)
        axis.tick_params(colors=_INK, which="both", labelsize=9)
        axis.grid(True, color="#e6e6e6", linewidth=0.7)
        axis.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "a name that ends with .png, .pdf or .svg?"
        raise OutputError(f"{path}: expected a writable picture, found: {reason}") from error


def _label_end(axis: Any, x: float, y: float, label: str, colour: str) -> None:
    axis.annotate(
        label,
        (x, y),
        xytext=(-2, 7),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        color=colour,
        fontweight="bold",
        bbox={"boxstyle": "round,pad=0.15", "facecolor": _PAPER, "edgecolor": "none", "alpha": 0.8},
    )


def _thin(length: int, points: int) -> NDArray[np.int64]:
    """Indices of at most ``points`` evenly spaced points, the last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, points)).astype(np.int64))


def _smooth(t: NDArray[np.int64], error: FloatArray, groups: int = 150) -> tuple[Any, FloatArray]:
    """Root mean square of neighbouring errors: single ones jump by orders of magnitude."""
    parts = np.array_split(np.arange(len(t)), min(groups, len(t)))
    middle = np.array([float(t[part].mean()) for part in parts])
    return middle, np.array([float(np.sqrt(np.mean(error[part] ** 2))) for part in parts])


def _view(tracks: Sequence[Track], truth: FloatArray) -> float:
    """Half the height of a panel: the intervals of the second half fit, mostly."""
    reach = 0.0
    for track in tracks:
        later = track.releases.t >= len(truth) // 2
        if later.any():
            low, high = track.releases.noise_interval(0.95)
            reach = max(reach, float(np.median((high - low)[later])))
    return max(1.1 * reach, 0.01 * abs(float(truth[-1])), 1e-9)


def _thousands() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def _steps_of_a_decade() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1.0, 2.0, 5.0))


def _nothing() -> Any:
    from matplotlib.ticker import NullFormatter

    return NullFormatter()


def _plain_numbers() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.12g}")
