"""What one experiment hands back: numbers, tables, pictures, and words that set them side by side.

**Privacy.** Made from public data only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Claim", "Picture", "Result", "Table", "measured", "plain", "ratio", "standard_error"]

FloatArray = NDArray[np.float64]

_DIGITS = 6


@dataclass(frozen=True)
class Table:
    """A table of texts; columns whose cells are all numbers are set flush right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Claim:
    """One thing that the paper reports, what comes out here, and the verdict in a few words.

    The verdict is "reproduced", "shape only", "contradicted" or "not testable", with what for.
    """

    item: str
    paper: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Picture:
    """A figure: the same drawing as PNG and as PDF, and words for those who cannot see it."""

    name: str
    png: bytes = field(repr=False)
    pdf: bytes = field(repr=False)
    words: str


@dataclass(frozen=True)
class Result:
    """One table or figure of the paper, and ours.

    Attributes
    ----------
    name, title : str
        As typed on the command line, and for a heading.
    paper, ours, difference : str
        What the paper shows, what comes out here, and why they differ. Paragraphs are separated by
        an empty line.
    numbers : Mapping
        Plain values for JSON. A value estimated from random runs is
        ``{"value": …, "standard_error": …}``.
    """

    name: str
    title: str
    paper: str
    ours: str
    difference: str
    numbers: Mapping[str, Any]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    claims: Sequence[Claim] = ()


def plain(value: Any) -> Any:
    """Plain Python values with six significant digits, so that JSON is the same everywhere.

    Examples
    --------
    >>> plain({"a": np.float64(1 / 3), "b": (1, True, None), "c": float("nan")})
    {'a': 0.333333, 'b': [1, True, None], 'c': None}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else None
    return value


def standard_error(samples: FloatArray) -> float:
    """Standard error of the mean of independent samples; 0 for a single one."""
    if samples.size < 2:
        return 0.0
    return float(np.std(samples, ddof=1) / math.sqrt(samples.size))


def measured(value: float, error: float) -> dict[str, float]:
    """A value with its Monte-Carlo standard error."""
    return {"value": float(value), "standard_error": float(error)}


def ratio(above: FloatArray, below: FloatArray) -> dict[str, float]:
    """Ratio of two means of independent samples, with its standard error to first order."""
    top, bottom = float(np.mean(above)), float(np.mean(below))
    relative = math.hypot(standard_error(above) / top, standard_error(below) / bottom)
    return measured(top / bottom, top / bottom * relative)
