"""The threshold alone: how large values are, released once, without a stream.

**Privacy.** Touches raw data; see :func:`learn_range`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from numpy.typing import ArrayLike

from rillet.errors import ParameterError
from rillet.gather.grid import check_range
from rillet.gather.observations import as_observations
from rillet.noise import Secret
from rillet.options import Option
from rillet.privacy import Cost, Guarantee
from rillet.statistic import Range, Setting
from rillet.threshold import THRESHOLDS, TailHistogram, Threshold
from rillet.threshold.base import Outlook

__all__ = ["LearnedRange", "learn_range"]


@dataclass(frozen=True)
class LearnedRange:
    """A released range that most values lie in.  **Privacy.** Public."""

    clip_lower: float
    clip_upper: float
    #: How many values it was learned from, what was promised for each, and what each paid.
    count: int
    guarantee: Guarantee
    cost: Cost
    threshold: Threshold


def learn_range(
    values: ArrayLike | Iterable[object],
    *,
    epsilon: float,
    upper: float,
    delta: float = 0.0,
    lower: float = 0.0,
    threshold: Threshold | str | dict[str, Any] = "auto",
) -> LearnedRange:
    """Release how large values are: a range to clip them to, for any use.

    **Privacy.** (ε, δ)-differential privacy for the value of each of them, replace-one; how many
    there are is public.  Every call draws fresh noise, and spends the promise again.

    The range is the best one for a sum of the values that is released once, at the same ε: nearly
    all of them lie in it.

    Parameters
    ----------
    values
        The values, one for each observation; what is no number counts as the middle of the bounds.
    epsilon, delta
        What the range may cost each value.
    lower, upper
        Public bounds: generous ones cost little.
    threshold
        A threshold that learns: by default :class:`rillet.TailHistogram`, which needs no δ;
        :class:`rillet.SmoothQuantile` is the paper's.  Or a table with its kind.

    Examples
    --------
    >>> found = learn_range([12.0, 35.0, 20.0] * 2000, epsilon=1.0, upper=1440.0)
    >>> 0 <= found.clip_lower < 12 and 35 < found.clip_upper < 1440
    True
    """
    guarantee = Guarantee(epsilon, delta)
    bounds = Range(*check_range(lower, upper))
    option = Option("threshold", Threshold, None, kinds=THRESHOLDS)
    learner = TailHistogram() if threshold == "auto" else option.convert(threshold, texts=True)
    if not learner.learns:
        raise ParameterError("threshold", "one that learns", learner.name)
    budget = Fraction(repr(float(epsilon)))
    cost = learner.cost(budget, delta)
    raw_values = as_observations(values)
    if not len(raw_values):
        raise ParameterError("values", "at least one", "none")
    look = learner.measure(raw_values, bounds, budget, delta, Secret.generate(), Setting())
    count = max(1, look.observations)
    # As many values again are to be clipped, for a sum with one draw of noise.
    outlook = Outlook(2 * count, count, 2 * count, noise_per_unit=math.sqrt(2) / epsilon)
    found = learner.judge(bounds, (look,), (), outlook).range
    return LearnedRange(found.lower, found.upper, len(raw_values), guarantee, cost, learner)
