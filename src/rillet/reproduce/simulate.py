"""Many runs of a mechanism at one step, without running it through every step before.

At step ``t`` the released sum is the clipped sum of the opening plus one draw, plus the clipped sum
of the rest plus the noise of a few nodes: ``popcount(t − lag)`` of them in the binary tree.  So a
run needs one threshold, one prefix-sum look-up and a handful of draws, all by the code that real
streams use: the threshold's own noise, and exact lattice noise at the mechanism's own scale.

What is left out is the rounding of each value to the lattice, which moves a sum by at most half a
step for each observation, far below the noise (a test compares whole streams).

**Privacy.** For public data only: errors are measured against the exact sum, and the noise comes
from a published seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.noise import LatticeNoise, Secret
from rillet.plan import Plan
from rillet.strategy import BinaryTree, Independent, Mechanism
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.threshold import RefreshingThreshold, SmoothQuantile

__all__ = ["ClippedSums", "Simulated", "improvement", "simulate", "simulate_plans"]

FloatArray = NDArray[np.float64]

#: Strategies whose prefix sums carry the noise of whole draws, as many as ``weights`` says.
_COUNTED: Final = (BinaryTree, Independent, SignedDigitTree)
#: Draws made at a time: 32 MiB.
_BATCH: Final = 1 << 22


class ClippedSums:
    """Sums of public values clipped at any threshold, from one sort.

    Parameters
    ----------
    values : array_like
        Public values.
    lower : float
        Lower end of the clipping range.

    Examples
    --------
    >>> ClippedSums([1.0, 5.0, 9.0], lower=2.0)(np.array([4.0, 100.0])).tolist()
    [10.0, 16.0]
    """

    def __init__(self, values: ArrayLike, lower: float) -> None:
        self._sorted = np.sort(np.maximum(np.asarray(values, np.float64), lower))
        self._sums = np.concatenate(([0.0], np.cumsum(self._sorted)))

    @property
    def total(self) -> float:
        """Sum of the values without an upper end, added up in the same order."""
        return float(self._sums[-1])

    def __call__(self, upper: FloatArray) -> FloatArray:
        """Sum of the values clipped to [lower, upper], for each ``upper``."""
        below = np.searchsorted(self._sorted, upper)
        return np.asarray(self._sums[below] + upper * (len(self._sorted) - below))


@dataclass(frozen=True, eq=False)
class Simulated:
    """Errors of many runs at one step: released sum minus exact sum of the unclipped values.

    Attributes
    ----------
    t : int
        The step.
    exact_sum : float
        Sum of the first ``t`` values, unclipped.
    thresholds, clipping, noise : numpy.ndarray
        For each run the upper end of the clipping range, what clipping did to the sum (exactly 0
        where no value is outside the range), and the noise.
    """

    t: int
    exact_sum: float
    thresholds: FloatArray
    clipping: FloatArray
    noise: FloatArray

    @cached_property
    def errors(self) -> FloatArray:
        """Clipping and noise together."""
        return self.clipping + self.noise

    @property
    def mean_absolute_error(self) -> float:
        """Mean of |error| over the runs."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def root_mean_square_error(self) -> float:
        """Root of the mean squared error over the runs."""
        return float(np.sqrt(np.mean(self.errors**2)))


def improvement(baseline: Simulated, other: Simulated) -> float:
    """Mean |error| of the baseline over that of the other: the paper's improvement factor."""
    return baseline.mean_absolute_error / other.mean_absolute_error


def simulate(
    plan: Plan, values: ArrayLike, runs: int, *, t: int | None = None, seed: int = 0
) -> Simulated:
    """Run a plan many times and look at step ``t``.

    **Privacy.** For public data only.

    Parameters
    ----------
    plan : Plan
        A plan whose clipping range is declared or learned once, with one of the strategies that
        add up whole draws: binary tree, independent, signed-digit tree.
    values : array_like
        The observations in order, at least ``t``, all finite.
    runs : int
        How many runs.
    t : int, optional
        An observation number at which the plan releases; the plan's length by default.
    seed : int
        Number of the published secret that the noise comes from.

    Examples
    --------
    >>> plan = Plan.baseline(epsilon=1.0, upper=100.0, length=1000)
    >>> simulate(plan, np.ones(1000), 5).errors.shape
    (5,)
    """
    return _simulate([plan], values, runs, t, seed)[0]


def simulate_plans(
    plans: Sequence[Plan], values: ArrayLike, runs: int, *, seed: int = 0
) -> list[Simulated]:
    """The same for several plans of one length and one lower bound, with one sort for all.

    **Privacy.** For public data only.

    Parameters
    ----------
    plans : sequence of Plan
        Plans as in :func:`simulate`; the step is the last.
    values, runs
        As in :func:`simulate`.
    seed : int
        As in :func:`simulate`, for the first plan; each plan takes the next, so that their errors
        are independent.
    """
    if len({(plan.layout.length, plan.layout.bounds.lower) for plan in plans}) > 1:
        raise ParameterError("plans", "plans of one length and one lower bound", "several")
    return _simulate(plans, values, runs, None, seed)


def _simulate(
    plans: Sequence[Plan], values: ArrayLike, runs: int, t: int | None, seed: int
) -> list[Simulated]:
    if runs < 1:
        raise ParameterError("runs", "at least 1", runs)
    found: list[Simulated] = []
    clipped, exact_sum, raised = None, 0.0, 0.0
    for place, layout in enumerate(plan.layout for plan in plans):
        step = layout.length if t is None else t
        observed, lower = _observed(layout, values, step), layout.bounds.lower
        secret = Secret.for_tests(seed + place).derive("simulate")
        thresholds = _thresholds(layout, observed, runs, secret)
        width = thresholds - lower
        noise = np.zeros(runs)
        if layout.opening is not None:
            noise += _noise(layout.opening, layout.opening.leaves, runs, secret, "opening") * width
        if step > layout.lag and layout.main is not None:
            leaf = layout.complete_leaves(step)
            noise += _noise(layout.main, leaf, runs, secret, "main") * width
        if clipped is None:
            clipped, exact_sum = ClippedSums(observed, lower), math.fsum(observed)
            raised = math.fsum(np.maximum(lower - observed, 0.0))
        clipping = clipped(thresholds) - clipped.total + raised
        found.append(Simulated(step, exact_sum, thresholds, clipping, noise))
    return found


def _observed(layout: Layout, values: ArrayLike, step: int) -> FloatArray:
    """The first ``step`` values, if the plan releases there and can be taken apart."""
    if not layout.lag <= step <= layout.length or step < 1:
        raise ParameterError("t", f"from {max(layout.lag, 1):,} to {layout.length:,}", step)
    if (step - layout.lag) % layout.every and step != layout.length:
        raise ParameterError("t", f"a multiple of {layout.every:,} after the lag", step)
    if isinstance(layout.threshold, RefreshingThreshold):
        raise ParameterError(
            "threshold", "a range that is declared or learned once", layout.threshold.name
        )
    for mechanism in (layout.opening, layout.main):
        if mechanism is not None and not isinstance(mechanism.strategy, _COUNTED):
            names = ", ".join(kind.name for kind in _COUNTED)
            raise ParameterError("strategy", f"one of {names}", mechanism.strategy.name)
    observed = np.asarray(values, np.float64)[:step]
    if len(observed) < step or not np.isfinite(observed).all():
        found = f"{len(observed):,}, or some that are not finite"
        raise ParameterError("values", f"at least {step:,} finite observations", found)
    return observed


def _thresholds(layout: Layout, observed: FloatArray, runs: int, secret: Secret) -> FloatArray:
    """The upper end of the clipping range in every run."""
    declared = layout.declared_range
    if declared is not None:
        return np.full(runs, declared.upper)
    threshold, bounds = layout.threshold, layout.bounds
    learned_from, budget, delta = (
        observed[: layout.lag],
        layout.threshold_budget,
        layout.guarantee.delta,
    )
    if isinstance(threshold, SmoothQuantile):  # sort once, draw often
        unreleased = threshold.prepare(learned_from, bounds, budget, delta)
        ranges = [threshold.draw(unreleased, secret, run) for run in range(runs)]
    else:
        ranges = [
            threshold.learn(learned_from, bounds, budget, delta, secret.derive("run", run))
            for run in range(runs)
        ]
    return np.array([learned.upper for learned in ranges])


def _noise(mechanism: Mechanism, leaf: int, runs: int, secret: Secret, purpose: str) -> FloatArray:
    """Noise of the prefix sum at ``leaf`` in every run, in units of the clipping range.

    Each run takes draws of its own; signs of a symmetric law do not matter.
    """
    draws = round(float(mechanism.strategy.weights(mechanism.leaves, np.array([leaf]))[0]))
    noise = LatticeNoise(mechanism.law, mechanism.scale, secret, ("simulate", purpose))
    sums = np.empty(runs)
    batch = max(1, _BATCH // draws)
    for first in range(0, runs, batch):
        count = min(batch, runs - first)
        drawn = noise.draw(first * draws, count * draws).reshape(count, draws)
        sums[first : first + count] = drawn.sum(axis=1)
    return sums / mechanism.steps
