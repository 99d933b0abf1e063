"""One look for all figures: sizes of a journal's columns, colours that everybody can tell apart.

**Privacy.** Draws what it is given: public data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rillet.extras import import_extra
from rillet.reproduce.result import Picture

if TYPE_CHECKING:
    from rillet.reproduce.context import StandIn

__all__ = ["COLOURS", "DOUBLE", "ROLES", "draw", "legend_above", "panel", "panels", "thousands"]

#: Width of two columns, in inches.
DOUBLE: Final = 7.16

#: Okabe and Ito's colours, without yellow, which is too faint for lines on white.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: What a colour and a line mean, in every figure.
ROLES: Final[dict[str, dict[str, Any]]] = {
    "tree": {"color": "#D55E00", "linestyle": "-"},
    "paper": {"color": "#0072B2", "linestyle": "-"},
    "rillet": {"color": "#009E73", "linestyle": "-"},
    "exponential": {"color": "#000000", "linestyle": (0, (4, 1.6))},
    "printed": {"color": "#000000", "linestyle": "none", "marker": "D", "markersize": 4.2},
}

_RASTER = 220
_GREY = "#595959"
_STYLE: Final[dict[str, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.7,
    "axes.edgecolor": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "pdf.fonttype": 42,
    "svg.hashsalt": "rillet",
}


def draw(name: str, words: str, size: tuple[float, float], paint: Callable[[Any], None]) -> Picture:
    """Let ``paint`` draw on an empty figure of this size, in inches.

    Raises
    ------
    MissingExtra
        Without Matplotlib.
    """
    matplotlib = import_extra(
        "matplotlib", package="matplotlib", extra="plot", purpose="to draw the figures"
    )
    figures = import_extra("matplotlib.figure", package="matplotlib", extra="plot", purpose="")
    # Object interface and a style of our own: no display is looked for, no user's settings enter.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = figures.Figure(figsize=size, layout="constrained", facecolor="white")
        figure.get_layout_engine().set(wspace=0.07, hspace=0.07)
        paint(figure)
        raster, vector = io.BytesIO(), io.BytesIO()
        figure.savefig(raster, format="png", dpi=_RASTER)
        # No time stamp: two runs write the same bytes.
        figure.savefig(vector, format="pdf", metadata={"CreationDate": None})
    return Picture(name, raster.getvalue(), vector.getvalue(), words)


def panel(axes: Any, title: str, across: str, up: str) -> None:
    """Name a panel and its axes."""
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(across)
    axes.set_ylabel(up)


def panels(figure: Any, streams: Sequence[StandIn]) -> Iterator[tuple[Any, Any, str]]:
    """One panel for each stream: its axes, the stream, and a title such as "(a) Trips"."""
    row = figure.subplots(1, len(streams))
    for axes, stream, letter in zip(row, streams, "abcd", strict=False):
        yield axes, stream, f"({letter}) {stream.label}"


def legend_above(figure: Any, columns: int) -> None:
    """One legend for all panels, that of the first, over them, where it covers no data."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def thousands(axis: Any) -> None:
    """Write 25,000,000 as 25,000,000 and 0.01 as 0.01."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
