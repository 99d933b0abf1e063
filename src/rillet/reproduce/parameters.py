"""How the improvement factor depends on ε and on the lag: Figure 7 of the paper.

**Privacy.** Public data only: the parameters are optimised on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rillet.reproduce.context import Context
from rillet.reproduce.paper_values import HEADLINE_LAG, TABLE_1, row_of
from rillet.reproduce.result import Result, plain
from rillet.reproduce.style import DOUBLE, ROLES, draw, legend_above, panel, thousands
from rillet.reproduce.tables import improvement_factor, optimum

__all__ = ["fig_eps", "fig_lag"]

_LINES = {
    "paper-mixed": ("paper's bound, mixed constants", {**ROLES["paper"], "marker": "o"}),
    "exact": ("corrected bound, exact constants", {**ROLES["rillet"], "marker": "s"}),
}


def _paint_lines(axes: Any, across: Sequence[float], factors: dict[str, list[float]]) -> None:
    for variant, (label, role) in _LINES.items():
        axes.plot(across, factors[variant], label=label, markersize=2.8, **role)
    axes.axhline(1, color="0.35", linewidth=0.9, linestyle=":", label="no gain: plain BT")
    axes.set_xscale("log")
    axes.set_ylim(0, None)
    thousands(axes.xaxis)


def fig_eps(context: Context) -> Result:
    """IF against ε at m = 50,000 (PAK, Figure 7, left; they show the train trips only)."""
    epsilons = [float(f"{e:.3g}") for e in np.geomspace(0.25, 16, context.pick(25, 7))]
    if context.quick:
        epsilons.remove(8.0)
    streams = (context.trips, context.baskets)
    factors: dict[str, dict[str, list[float]]] = {}
    for stream in streams:
        factors[stream.name] = {}
        for variant in _LINES:
            context.tell(f"{stream.name}, ε from {epsilons[0]:g} to {epsilons[-1]:g}, {variant}")
            factors[stream.name][variant] = [
                improvement_factor(optimum(context, stream, HEADLINE_LAG, variant, epsilon))
                for epsilon in epsilons
            ]

    def paint(figure: Any) -> None:
        both = figure.subplots(1, 2)
        for axes, stream, letter in zip(both, streams, "ab", strict=True):
            _paint_lines(axes, epsilons, factors[stream.name])
            printed = row_of(stream.table, HEADLINE_LAG).improvement_factor
            axes.plot([1.0], [printed], label="printed (Tables I and II)", **ROLES["printed"])
            axes.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16])
            axes.minorticks_off()
            panel(axes, f"({letter}) {stream.label}, m = 50,000", "ε", "improvement factor")
        legend_above(figure, both[0], 2)

    trips = factors["trips"]
    best = {name: int(np.argmax(line)) for name, line in trips.items()}
    return Result(
        name="fig-eps",
        title="Figure 7, left: the influence of ε",
        paper=(
            "Train trips, m = 50,000. With a small ε smooth sensitivity, which grows as 1/ε₁², "
            "eats the gain; with a large one clipping outweighs the noise. In between the "
            "improvement factor has its maximum."
        ),
        ours=(
            "The same shape. Trips: with mixed constants there is no gain up to ε = "
            f"{_last_without_gain(epsilons, trips['paper-mixed']):g}, and the maximum, "
            f"{max(trips['paper-mixed']):.2f}, is at ε = {epsilons[best['paper-mixed']]:g}; with "
            f"exact constants gain begins at a smaller ε and the maximum is "
            f"{max(trips['exact']):.2f} at ε = {epsilons[best['exact']]:g}."
        ),
        difference=(
            "The paper's curve is not printed as numbers; its one point that is, 2.32 at "
            "ε = 1 (Table I), is marked. At large ε the lines depend on how far out the tail "
            "still is exponential, where the stand-in is lighter than exponential."
        ),
        numbers=plain({"epsilon": epsilons, **factors}),
        pictures=[
            draw(
                "fig-eps",
                "Improvement factor against epsilon for trips and baskets at a lag of 50,000.",
                (DOUBLE, 3.0),
                paint,
            )
        ],
    )


def _last_without_gain(epsilons: list[float], line: list[float]) -> float:
    without = [epsilon for epsilon, factor in zip(epsilons, line, strict=True) if factor <= 1]
    return max(without, default=0.0)


def fig_lag(context: Context) -> Result:
    """IF against m at ε = 1 (PAK, Figure 7, right)."""
    between = np.geomspace(10_000, 300_000, context.pick(22, 4))
    printed = {40_000, 50_000, 60_000, 100_000}
    # Next to a printed lag another one would only make the line look crooked.
    others = {int(lag) // 100 * 100 for lag in between}
    others = {lag for lag in others if all(abs(lag / known - 1) > 0.06 for known in printed)}
    lags = sorted(printed | others)
    streams = (context.trips, context.baskets)
    factors: dict[str, dict[str, list[float]]] = {}
    used: dict[str, list[int]] = {}
    for stream in streams:
        used[stream.name] = [lag for lag in lags if lag < stream.length]
        factors[stream.name] = {}
        for variant in _LINES:
            context.tell(f"{stream.name}, {len(used[stream.name])} lags, {variant}")
            factors[stream.name][variant] = [
                improvement_factor(optimum(context, stream, lag, variant))
                for lag in used[stream.name]
            ]

    def paint(figure: Any) -> None:
        both = figure.subplots(1, 2)
        for axes, stream, letter in zip(both, streams, "ab", strict=True):
            _paint_lines(axes, used[stream.name], factors[stream.name])
            axes.plot(
                [row.lag for row in stream.table],
                [row.improvement_factor for row in stream.table],
                label="printed (Tables I and II)",
                **ROLES["printed"],
            )
            axes.set_xticks([10_000, 30_000, 100_000, 300_000][: 4 - (stream.length < 300_000)])
            axes.minorticks_off()
            panel(axes, f"({letter}) {stream.label}, ε = 1", "time lag m", "improvement factor")
        legend_above(figure, both[0], 2)

    first = {
        variant: next(lag for lag, factor in zip(used["trips"], line, strict=True) if factor > 1)
        for variant, line in factors["trips"].items()
    }
    return Result(
        name="fig-lag",
        title="Figure 7, right: the influence of the time lag",
        paper=(
            "Train trips, ε = 1. Little improvement while m is around 10,000, a noticeable "
            "increase around 50,000. Numbers are in Table I: "
            + ", ".join(f"{row.improvement_factor:g} at {row.lag:,}" for row in TABLE_1)
            + "."
        ),
        ours=(
            f"Trips: with mixed constants the gain begins at m = {first['paper-mixed']:,}, with "
            f"exact ones at {first['exact']:,} (of the lags computed), and rises steeply until "
            "60,000. The baskets do the same."
        ),
        difference=(
            "The printed points lie on the rising line for trips. On baskets ours is higher "
            "throughout: the stand-in's 0.005-quantile is 204 dollars, a fifteenth of B; the "
            "paper does not say what its own is."
        ),
        numbers=plain({"lags": used, **factors}),
        pictures=[
            draw(
                "fig-lag",
                "Improvement factor against the time lag for trips and baskets at epsilon 1.",
                (DOUBLE, 3.0),
                paint,
            )
        ],
    )
