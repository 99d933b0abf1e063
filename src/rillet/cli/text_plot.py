"""Small plots in text: a braille chart of curves, and sparklines.

**Privacy.** Draws what it is given: released values, public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["COLOURS", "Curve", "chart", "sparkline"]

FloatArray = NDArray[np.float64]

#: Names for a terminal and, in the same order, Okabe and Ito's colours, which everybody can tell.
COLOURS = (
    ("dark_orange", "#D55E00"),
    ("dodger_blue1", "#0072B2"),
    ("spring_green3", "#009E73"),
    ("orchid", "#CC79A7"),
)

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Curve:
    """Points of one curve, with a label and a colour of rich."""

    x: FloatArray
    y: FloatArray
    label: str
    colour: str


def chart(
    curves: Sequence[Curve],
    *,
    width: int = 72,
    height: int = 12,
    unit: str = "",
    along: str = "observations",
) -> Text:
    """Curves on logarithmic axes, in braille: two by four dots to a character."""
    from rich.text import Text

    xs = np.log(np.concatenate([curve.x for curve in curves]))
    ys = np.log(np.concatenate([curve.y for curve in curves]))
    left, right = float(xs.min()), float(xs.max())
    low, high = float(ys.min()), float(ys.max())
    right, high = max(right, left + 1e-9), max(high, low + 1e-9)
    cells = np.zeros((height, width), dtype=np.int64)
    colours = np.full((height, width), "", dtype=object)
    ends: list[tuple[int, int, Curve]] = []
    for curve in curves:
        columns = np.arange(2 * width)
        positions = left + columns / (2 * width - 1) * (right - left)
        inside = (positions >= math.log(curve.x[0]) - 1e-9) & (
            positions <= math.log(curve.x[-1]) + 1e-9
        )
        values = np.interp(positions[inside], np.log(curve.x), np.log(curve.y))
        rows = ((high - values) / (high - low) * (4 * height - 1)).round().astype(int)
        previous = None
        for column, row in zip(columns[inside].tolist(), rows.tolist(), strict=True):
            start = row if previous is None else previous + int(np.sign(row - previous))
            step = 1 if row >= start else -1
            for dot in range(start, row + step, step):
                cells[dot // 4, column // 2] |= _DOTS[column % 2][dot % 4]
                colours[dot // 4, column // 2] = curve.colour
            previous = row
        if previous is not None:
            ends.append((previous, len(ends), curve))
    names = _label_rows(ends, height)
    text = Text()
    for row in range(height):
        height_here = math.exp(high - (row + 0.5) / height * (high - low))
        label = _short(height_here) if row % 3 == 0 or row == height - 1 else ""
        text.append(f"{label:>9} ┤")
        for cell, colour in zip(cells[row].tolist(), colours[row].tolist(), strict=True):
            text.append(chr(0x2800 + cell), style=colour)
        if row in names:
            text.append(f" {names[row].label}", style=names[row].colour)
        text.append("\n")
    text.append(f"{unit:>9} └" + "─" * width + "\n")
    marks = [_short(math.exp(left + share * (right - left))) for share in (0, 0.5, 1)]
    middle = marks[1].center(width - len(marks[0]) - len(marks[2]))
    text.append(" " * 11 + marks[0] + middle + marks[2] + f"  {along}")
    return text


def sparkline(values: FloatArray, *, low: float, high: float, width: int) -> str:
    """Positive values as bars on a logarithmic scale; NaN is a space."""
    if not len(values):
        return " " * width
    groups = np.array_split(values, min(width, len(values)))
    bars = []
    for group in groups:
        good = group[np.isfinite(group)]
        if not len(good):
            bars.append(" ")
            continue
        middle = max(float(np.sqrt(np.mean(good**2))), 1e-300)
        share = (math.log(middle) - math.log(low)) / max(math.log(high) - math.log(low), 1e-9)
        bars.append(_BARS[1 + min(7, max(0, int(share * 8)))])
    return "".join(bars).ljust(width)


def _label_rows(ends: list[tuple[int, int, Curve]], height: int) -> dict[int, Curve]:
    """A row for each label, where its curve ends or as near as order and room allow."""
    rows: dict[int, Curve] = {}
    below = height
    for left, (dot, _, curve) in enumerate(sorted(ends, key=lambda end: end[:2], reverse=True)):
        row = max(min(dot // 4, below - 1), len(ends) - left - 1)
        rows[row] = curve
        below = row
    return rows


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g}M" if value < 1e9 else f"{value:.1e}"
    if value >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
