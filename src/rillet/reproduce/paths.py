"""The clipping ranges that a plan may go through, and what they do to the sum at chosen steps.

The noise of the sums is independent of the draws that choose the ranges, and its variance at every
step is known. So the mean squared error of a plan is an average over *paths*, the ranges that a run
goes through, of (what clipping does)² + (variance of the noise): only the ranges are drawn, by the
code that real streams use, and no sum is ever simulated.

**Privacy.** For public data only; the draws come from published secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.noise import LAWS, LatticeNoise, Secret
from rillet.plan import Plan
from rillet.threshold import ExponentialQuantile, Look, Range, RefreshingThreshold, SmoothQuantile

__all__ = ["Clipping", "Path", "Piece", "draw_paths", "noise_std"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Observations ``first … last`` clipped at ``upper``, and what is added back meanwhile."""

    first: int
    last: int
    upper: float
    removed: float = 0.0
    removed_each: float = 0.0


@dataclass(frozen=True)
class Path:
    """What one run clips at; ``last_removed`` is added back at the very last step, if any."""

    pieces: tuple[Piece, ...]
    last_removed: float | None = None

    @property
    def uppers(self) -> tuple[float, ...]:
        """The range in each epoch after the opening."""
        start = 1 if len(self.pieces) > 1 and self.pieces[0].first == 1 else 0
        return tuple(piece.upper for piece in self.pieces[start:])


def draw_paths(plan: Plan, values: FloatArray, runs: int, seed: int) -> list[Path]:
    """Draw the ranges of many runs; a plan that declares its range has one path only.

    Where the range is learned again and again, run ``i`` goes through the ranges that
    ``plan.open(secret=Secret.for_tests(seed), key=(i,))`` goes through.

    **Privacy.** For public data only.
    """
    layout = plan.layout
    declared = layout.declared_range
    if declared is not None:
        return [Path((Piece(1, layout.length, declared.upper),))]
    secret = Secret.for_tests(seed)
    if isinstance(layout.threshold, RefreshingThreshold):
        if layout.centre_budget:
            raise ParameterError("threshold", "a range that begins at lower", "one with a centre")
        tallies = _tallies(layout, layout.threshold, values)
        return [
            _refreshed(layout, tallies, plan.stream_secret(secret, (run,), ""))
            for run in range(runs)
        ]
    return [
        Path((Piece(1, layout.length, learned.upper),))
        for learned in _learned_once(layout, values[: layout.lag], runs, secret.derive("paths"))
    ]


def _learned_once(layout: Layout, values: FloatArray, runs: int, secret: Secret) -> list[Range]:
    threshold, bounds, budget = layout.threshold, layout.bounds, layout.threshold_budget
    delta = layout.guarantee.delta
    if isinstance(threshold, SmoothQuantile):  # sort once, draw often
        unreleased = threshold.prepare(values, bounds, budget, delta)
        return [threshold.draw(unreleased, secret, run) for run in range(runs)]
    if isinstance(threshold, ExponentialQuantile):
        cells = threshold.prepare(values.copy(), bounds)
        return [threshold.draw(cells, bounds, budget, secret, run) for run in range(runs)]
    return [
        threshold.learn(values, bounds, budget, delta, secret.derive("run", run))
        for run in range(runs)
    ]


def _tallies(
    layout: Layout, threshold: RefreshingThreshold, values: FloatArray
) -> dict[int, IntArray]:
    """The exact tally of each look, by the observation after which it is taken."""
    spans = [(0, layout.lag)]
    spans += [(epoch.first - 1, epoch.last) for epoch in layout.epochs if epoch.look is not None]
    return {
        last: sum(
            (
                threshold.tally(values[at : min(at + (1 << 20), last)].copy(), layout.bounds)
                for at in range(first, last, 1 << 20)
            ),
            start=np.zeros(1, np.int64),
        )
        for first, last in spans
    }


def _refreshed(layout: Layout, tallies: dict[int, IntArray], secret: Secret) -> Path:
    """One run of looks: what a stream does at its public times, without the sums."""
    threshold = layout.threshold
    assert isinstance(threshold, RefreshingThreshold)
    looks: tuple[Look, ...] = ()
    ranges: tuple[Range, ...] = ()
    pieces: list[Piece] = []
    last_removed, removed, removed_each = None, 0.0, 0.0
    for first, last in ((1, layout.lag), *((epoch.first, epoch.last) for epoch in layout.epochs)):
        if pieces:
            pieces.append(Piece(first, last, ranges[-1].upper, removed, removed_each))
            # The stream's secret moves on at public times.
            secret = secret.ratchet(
                layout.ratchet_steps(layout.complete_leaves(last)) - secret.epoch
            )
        if last not in tallies:
            continue
        noise = layout.look_at(last)
        draws = LatticeNoise(LAWS[noise.law], noise.scale, secret, ("look", last))
        noisy = tallies[last] + draws.draw(0, len(tallies[last]))
        looks = (*looks, Look(noisy, noise.observations, noise.scale, noise.law))
        finding = threshold.judge(layout.bounds, looks, ranges, layout.outlook(last))
        removed, removed_each = finding.removed, finding.removed_each
        if last == layout.length:
            last_removed = removed
        elif pieces:
            ranges = (*ranges, finding.range)
        else:  # the opening is clipped at what was learned from it
            ranges = (finding.range,)
            pieces.append(Piece(first, last, finding.range.upper, removed))
    if last_removed is None and len(pieces) == 1:
        last_removed = removed
    return Path(tuple(pieces), last_removed)


class Clipping:
    """What clipping does to running sums at chosen steps, for any path.

    Parameters
    ----------
    values : numpy.ndarray
        Public values, none of them below 0.
    steps : numpy.ndarray
        Observation numbers, rising; the last is the length.
    lowest : float
        The lowest range that will be asked for.
    """

    def __init__(self, values: FloatArray, steps: IntArray, lowest: float) -> None:
        self._steps = steps
        self._place = np.flatnonzero(values > lowest) + 1  # observation numbers
        self._large = values[self._place - 1]

    def __call__(self, path: Path) -> FloatArray:
        """Clipped and corrected sum minus exact sum, at each step."""
        steps = self._steps
        taken = np.zeros(len(steps))
        added = np.zeros(len(steps))
        for piece in path.pieces:
            start, stop = np.searchsorted(self._place, (piece.first, piece.last + 1))
            large, place = self._large[start:stop], self._place[start:stop]
            over = large > piece.upper
            at = np.searchsorted(steps, place[over])
            taken += np.bincount(at, large[over] - piece.upper, len(steps))
            inside = (steps >= piece.first) & (steps <= piece.last)
            since = steps[inside] - (piece.first - 1)
            added[inside] = piece.removed + piece.removed_each * since
        if path.last_removed is not None:
            added[-1] = path.last_removed
        result: FloatArray = added - np.cumsum(taken)
        return result


def noise_std(layout: Layout, path: Path, steps: IntArray) -> FloatArray:
    """Std of the noise of the sum at each of the steps, all after the lag."""
    if len(layout.epochs) < 2:
        width = path.pieces[-1].upper - layout.bounds.lower
        return _unit_std(layout, steps) * width
    result = np.empty(len(steps))
    weights: tuple[float, ...] = ()
    for epoch, upper in zip(layout.epochs, path.uppers, strict=True):
        width = upper - layout.bounds.lower
        weights = (*weights, width / epoch.steps)
        inside = (steps >= epoch.first) & (steps <= epoch.last)
        if inside.any():
            result[inside] = layout.unit_std(_leaves(layout, steps[inside]), weights) * width
    early = steps <= layout.lag
    first = path.pieces[0].upper - layout.bounds.lower
    result[early] = np.sqrt(layout.opening_unit_variance) * first
    return result


def _unit_std(layout: Layout, steps: IntArray) -> FloatArray:
    """One range throughout: noise of the sum per unit of range."""
    unit = np.full(len(steps), np.sqrt(layout.opening_unit_variance))
    later = steps > layout.lag
    if later.any():
        unit[later] = layout.unit_std(_leaves(layout, steps[later]))
    return unit


def _leaves(layout: Layout, steps: Sequence[int] | IntArray) -> IntArray:
    return np.array([layout.complete_leaves(int(t)) for t in steps], np.int64)
