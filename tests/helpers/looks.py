"""Looks at values in [0, 1], as the tail model takes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rillet.threshold.tail_model import Counts, knots


def look_at(
    values: NDArray[np.float64], noise: float, random: np.random.Generator | None = None
) -> Counts:
    """Linear shares at the knots, with Gaussian noise; without ``random`` it is only said to be."""
    places = knots(1.0)
    index = np.clip(np.searchsorted(places, values, side="right") - 1, 0, len(places) - 2)
    part = (values - places[index]) / np.diff(places)[index]
    counts = np.bincount(index, 1 - part, len(places)) + np.bincount(index + 1, part, len(places))
    if random is not None:
        counts += noise * random.normal(size=len(places))
    return Counts(counts, len(values), noise, laplace=False)
