"""The picture of all mechanisms on all streams.

**Privacy.** Draws what was measured on public data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rillet.reproduce.context import StandIn
from rillet.reproduce.style import COLOURS

__all__ = ["paint"]


def paint(figure: Any, streams: Sequence[StandIn], numbers: dict[str, Any]) -> None:
    """A panel to a stream: one line to a mechanism, improvements over BT across."""
    grid = figure.subplots(2, 2, sharey=True)
    for axes, stream, letter in zip(grid.flat, streams, "abcd", strict=True):
        rows = numbers[stream.name]["mechanisms"]
        labels, heights = _lines(rows)
        limit = [row["best_fixed_over_all"] for row in rows.values()]
        over_all = [row["improvement_over_all"]["value"] for row in rows.values()]
        at_end = [row["improvement_at_n"]["value"] for row in rows.values()]
        axes.scatter(
            *(limit, heights),
            marker="|",
            s=90,
            color="black",
            linewidths=1.3,
            label="all steps, best fixed threshold known in advance",
        )
        axes.scatter(
            *(at_end, heights),
            marker="s",
            s=17,
            facecolors="none",
            edgecolors=COLOURS[1],
            zorder=4,  # open, so that a circle underneath is still seen
            label="at step n",
        )
        axes.scatter(
            *(over_all, heights),
            marker="o",
            s=22,
            color=COLOURS[0],
            zorder=3,
            label="all steps",
        )
        axes.axvline(1, color="0.35", linewidth=0.9, linestyle=":")
        axes.set_xscale("log")
        axes.set_yticks(list(labels), list(labels.values()))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        groups = {row["group"] for row in rows.values()}
        for text in axes.get_yticklabels():
            text.set_fontweight("bold" if text.get_text() in groups else "normal")
        for height in heights:
            axes.axhline(height, color="#E3E3E3", linewidth=0.6, zorder=0)
        axes.set_title(f"({letter}) {stream.label}", loc="left", fontweight="bold")
        axes.set_xlabel("error of BT / error")
        _plain_decades(axes)
    handles, names = grid[0, 0].get_legend_handles_labels()
    order = [2, 1, 0]
    figure.legend(
        *([handles[i] for i in order], [names[i] for i in order]),
        loc="outside upper center",
        ncols=3,
    )


def _lines(rows: dict[str, Any]) -> tuple[dict[float, str], list[float]]:
    """Labels by height, a heading above each group, and the heights of the mechanisms."""
    labels: dict[float, str] = {}
    heights: list[float] = []
    height, group = 0.0, ""
    for row in rows.values():
        if row["group"] != group:
            group = row["group"]
            labels[height] = group
            height -= 1
        labels[height] = row["label"]
        heights.append(height)
        height -= 1
    return labels, heights


def _plain_decades(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
