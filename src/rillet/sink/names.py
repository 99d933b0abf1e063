"""What the name of a number says: the edges of a bin, or which quantile it is.

**Privacy.** Names are public: the statistic chose them before any data came.
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["edges", "share"]

_NUMBER: Final = r"([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
_BETWEEN: Final = re.compile(rf"{_NUMBER} to {_NUMBER}")
_BEYOND: Final = re.compile(rf"(up to|above) {_NUMBER}")
_PART: Final = re.compile(r"(\d+)/(\d+)")
_SHARE: Final = re.compile(r"0|1|0?\.\d+|\d(?:\.\d+)?e-\d+")


def share(name: str) -> float | None:
    """The quantile of this name, or None.

    Examples
    --------
    >>> share("0.9"), share("mean")
    (0.9, None)
    """
    return float(name) if _SHARE.fullmatch(name) else None


def edges(name: str, lower: float = 0.0, upper: float = 1.0) -> tuple[float, float] | None:
    """The edges of the bin of this name, or None; ``3/20`` is a part of the clipping range.

    Examples
    --------
    >>> edges("0 to 2.5"), edges("above 10"), edges("1/4", 0.0, 60.0), edges("mean")
    ((0.0, 2.5), (10.0, inf), (0.0, 15.0), None)
    """
    if found := _BETWEEN.fullmatch(name):
        return float(found[1]), float(found[2])
    if found := _BEYOND.fullmatch(name):
        edge = float(found[2])
        return (-math.inf, edge) if found[1] == "up to" else (edge, math.inf)
    if found := _PART.fullmatch(name):
        part, parts = int(found[1]), int(found[2])
        width = (upper - lower) / max(parts, 1)
        return lower + (part - 1) * width, lower + part * width
    return None
