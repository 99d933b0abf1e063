"""The one simulator behind all experiments: a plan run many times, at one step or at many.

A released sum is the exact sum, less what clipping takes, plus what is added back, plus noise. So a
run needs little: its *path* (the clipping range of every segment, and what is added back), prefix
sums of the sorted values, and the noise of the running sum, whose law is public.

- Where the range is learned again and again, run ``i`` takes the looks and the decisions of
  ``plan.open(secret=Secret.for_tests(seed), key=(i,))``; bit for bit, but for long streams, whose
  counts are read off sorted values.
- Where it is learned once, it is drawn by the threshold's own code, which sorts once.
- The noise is drawn afresh: as many whole draws of exact lattice noise as the stream adds up, or
  normal from its exact variance.

Left out is the rounding of values to the lattice, which moves a sum by at most half a step for each
observation, far below the noise. Tests hold all of it to whole streams.

**Privacy.** For public data only: errors are measured against the exact sum, and the noise comes
from published secrets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.errors import ParameterError
from rillet.layout import Layout, Margins
from rillet.noise import LAWS, LatticeNoise, Secret
from rillet.plan import Plan
from rillet.statistic import Range
from rillet.step import later_look, look_noise
from rillet.strategy import BinaryTree, Independent, Mechanism, SignedDigitTree
from rillet.strategy.signed_digit import SignedDigitNoise
from rillet.threshold import ExponentialQuantile, Look, SmoothQuantile, TailHistogram
from rillet.threshold.base import clip_to_bounds
from rillet.threshold.centre import centre_cells, draw_centre
from rillet.threshold.rank import Cells
from rillet.threshold.tail import CENTRE_SHARE, PARTS
from rillet.threshold.tail_model import mean_absolute

__all__ = ["Paths", "Runs", "clipping", "draw_noise", "draw_paths", "improvement", "noise_std"]
__all__ += ["expected_errors", "simulate", "simulation_secret"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Strategies whose prefix sums carry the noise of whole draws, as many as ``weights`` says.
_COUNTED: Final = (BinaryTree, Independent, SignedDigitTree)
#: The sum of more draws than this is normal for all purposes.
_MOST_DRAWS: Final = 1000
#: Draws at a time: 32 MiB.
_BATCH: Final = 1 << 22
#: Up to so many values looks are counted one by one, as a stream does.
_COUNTED_EXACTLY: Final = 1 << 18
#: Normal draws as whole numbers of this scale: normal to nine digits.
_FINE: Final = 2.0**30


def simulation_secret(seed: int) -> Secret:
    """The published secret of everything that no stream would draw in the same way."""
    return Secret.for_tests(seed).derive("simulate")


# --- Paths ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Paths:
    """The clipping ranges that runs go through: one row a run, one column a segment.

    The segments are public: the warm-up, where there is one, then those of the main mechanism.

    Attributes
    ----------
    ends : numpy.ndarray
        The last observation of each segment.
    lowers, uppers : numpy.ndarray
        Ends of the clipping range.
    added, added_each : numpy.ndarray
        What is added back from the start of the segment, and more for each observation since.
    added_last : numpy.ndarray, optional
        What is added back at the very last step, where a last look corrects once more.
    margins : list, optional
        Of each run, how far what is added back may be off: in each segment, and at the last step.
    """

    ends: IntArray
    lowers: FloatArray
    uppers: FloatArray
    added: FloatArray
    added_each: FloatArray
    added_last: FloatArray | None = None
    margins: list[list[Margins]] = field(default_factory=list)

    @classmethod
    def constant(cls, uppers: ArrayLike, ends: ArrayLike, lower: float = 0.0) -> Paths:
        """A range for each run that never changes, with nothing added back."""
        last = np.asarray(ends, np.int64)
        rows = np.repeat(np.asarray(uppers, np.float64)[:, None], len(last), axis=1)
        return cls(last, np.full_like(rows, lower), rows, np.zeros_like(rows), np.zeros_like(rows))

    @property
    def widths(self) -> FloatArray:
        """Width of the clipping range."""
        return self.uppers - self.lowers

    def added_at(self, steps: IntArray) -> FloatArray:
        """What is added back at each step: one row a run."""
        segment = np.searchsorted(self.ends, steps)
        since = steps - np.concatenate(([0], self.ends))[segment]
        result: FloatArray = self.added[:, segment] + self.added_each[:, segment] * since
        if self.added_last is not None:
            result[:, steps == self.ends[-1]] = self.added_last[:, None]
        return result


def draw_paths(plan: Plan, values: FloatArray, runs: int, seed: int) -> Paths:
    """Draw the ranges of many runs, by the code that streams use.

    **Privacy.** For public data only.
    """
    layout = plan.layout
    ends = np.array(
        [*([layout.lag] if layout.lag else ()), *(part.last for part in layout.segments)]
    )
    declared, threshold = layout.declared_range, layout.threshold
    lower = layout.bounds.lower
    if declared is not None:
        return Paths.constant(np.full(runs, declared.upper), ends, declared.lower)
    if not isinstance(threshold, TailHistogram):
        learned = _learned_once(layout, values[: layout.lag], runs, simulation_secret(seed))
        return Paths.constant([one.upper for one in learned], ends, lower)
    secret, counted = Secret.for_tests(seed), _Counted(layout, threshold, values, ends)
    rows, lasts, margins = [], [], []
    for run in range(runs):
        row, last, off = _refreshed(layout, ends, counted, plan.stream_secret(secret, (run,), ""))
        rows.append(row)
        lasts.append(last)
        margins.append(off)
    lowers, uppers, added, added_each = np.moveaxis(np.array(rows), 2, 0)
    last_look = int(ends[-1]) in counted.looks and len(ends) > 1
    added_last = np.array(lasts) if last_look else None
    return Paths(ends, lowers, uppers, added, added_each, added_last, margins)


def _learned_once(layout: Layout, values: FloatArray, runs: int, secret: Secret) -> list[Range]:
    threshold, bounds, budget = layout.threshold, layout.bounds, layout.threshold_budget
    delta = layout.guarantee.delta
    if isinstance(threshold, SmoothQuantile):  # sort once, draw often
        unreleased = threshold.prepare(values, bounds, budget, delta)
        return [threshold.draw(unreleased, secret, run) for run in range(runs)]
    if isinstance(threshold, ExponentialQuantile):
        cells = threshold.prepare(values, bounds)
        return [threshold.draw(cells, bounds, budget, secret, run) for run in range(runs)]
    return [
        threshold.learn(values, bounds, budget, delta, secret.derive("run", run))
        for run in range(runs)
    ]


class _Counted:
    """The counts of each look, around any centre.

    Of a long stream they are read off sorted values: shares are then rounded in sum and not one by
    one, which moves a count by a small part of one observation.
    """

    def __init__(
        self, layout: Layout, threshold: TailHistogram, values: FloatArray, ends: IntArray
    ) -> None:
        self._threshold, self._bounds = threshold, layout.bounds
        self.looks = {layout.lag, *(part.last for part in layout.segments if part.look is not None)}
        self._parts = {
            last: values[first:last]
            for first, last in pairwise([0, *ends.tolist()])
            if last in self.looks
        }
        self._sorted = {}
        if len(values) > _COUNTED_EXACTLY:
            self._sorted = {
                last: _Sorted.of(clip_to_bounds(part, layout.bounds))
                for last, part in self._parts.items()
            }
        self.centre_cells: Cells | None = None
        if threshold.two_sided:
            self.centre_cells = centre_cells(values[: layout.lag], layout.bounds)

    def at(self, last: int, centre: float | None) -> IntArray:
        """The exact counts of the look after ``last`` observations."""
        if last not in self._sorted:
            return self._threshold.count(self._parts[last], self._bounds, centre)
        places = self._threshold.places(self._bounds, centre)
        origin = self._bounds.lower if centre is None else centre
        return self._sorted[last].counts(places, origin)


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Sorted values, and sums of their distances from one of them."""

    values: FloatArray
    sums: FloatArray

    @classmethod
    def of(cls, values: FloatArray) -> _Sorted:
        ordered = np.sort(values)
        distances = ordered - ordered[len(ordered) // 2]
        return cls(ordered, np.concatenate(([0.0], np.cumsum(distances))))

    def counts(self, places: FloatArray, origin: float) -> IntArray:
        """As `TailHistogram.count`, rounded once a knot."""
        edges = np.searchsorted(self.values, origin + places)
        edges[0], edges[-1] = 0, len(self.values)
        number, total = np.diff(edges) * 1.0, np.diff(self.sums[edges])
        height = total - number * (places[:-1] + (origin - self.values[len(self.values) // 2]))
        upper = np.clip(height / np.diff(places), 0.0, number)
        counts = np.append(number - upper, 0.0)
        counts[1:] += upper
        whole: IntArray = np.rint(PARTS * counts).astype(np.int64)
        return whole


def _refreshed(
    layout: Layout, ends: IntArray, counted: _Counted, secret: Secret
) -> tuple[list[tuple[float, float, float, float]], float, list[Margins]]:
    """One run: range, added back and added for each observation in every segment; at the end.

    And how far that may be off, in every segment and at the end.

    What a stream with this secret does at its public times, without the sums.
    """
    threshold = layout.threshold
    looks: tuple[Look, ...] = ()
    ranges: tuple[Range, ...] = ()
    segments: list[tuple[float, float, float, float]] = []
    removed = removed_each = 0.0
    margins: list[Margins] = []
    off: Margins = ()
    for t in ends.tolist():
        if ranges:
            margins.append(off)
            segments.append((ranges[-1].lower, ranges[-1].upper, removed, removed_each))
            ahead = layout.ratchet_steps(layout.complete_leaves(t)) - secret.epoch
            secret = secret.ratchet(ahead)
        if t not in counted.looks:
            continue
        centre = looks[0].centre if looks else None
        looks = (*looks, _take_look(layout, counted, secret, t, centre))
        finding = threshold.judge(layout.bounds, looks, ranges, layout.outlook(t))
        removed, removed_each = finding.removed, finding.removed_each
        off = (0, finding.margin), (t, finding.margin_each)
        if not ranges:  # the warm-up is clipped at what was learned from it
            segments.append((finding.range.lower, finding.range.upper, removed, 0.0))
            margins.append(off)
        ranges = (*ranges, finding.range)
    return segments, removed, [*margins, off]


def _take_look(
    layout: Layout, counted: _Counted, secret: Secret, t: int, centre: float | None
) -> Look:
    """The look that a stream with this secret takes after ``t`` observations."""
    threshold = layout.threshold
    if t == layout.lag:
        assert isinstance(threshold, TailHistogram)
        budget, unreleased = layout.threshold_budget, counted.centre_cells
        if unreleased is not None:
            centre = draw_centre(unreleased, layout.bounds, budget * CENTRE_SHARE, secret)
        return threshold.first_look(counted.at(t, centre), t, budget, secret, centre)
    noise, exact_counts = layout.segment_at(t).look, counted.at(t, centre)
    assert noise is not None
    return later_look(noise, exact_counts, look_noise(noise, secret, t, len(exact_counts)), centre)


# --- Clipping ------------------------------------------------------------------------------------


def clipping(paths: Paths, values: FloatArray, steps: IntArray) -> FloatArray:
    """Clipped sum minus exact sum at each step, exactly 0 where nothing is outside: one row a run.

    Between two steps (or ends of segments) values are sorted once and looked up for all runs.

    **Privacy.** For public data only.

    Examples
    --------
    >>> paths = Paths.constant([4.0, 100.0], [3], lower=2.0)
    >>> clipping(paths, np.array([1.0, 5.0, 9.0]), np.array([2, 3])).tolist()
    [[0.0, -5.0], [1.0, 1.0]]
    """
    observed = values[: steps[-1]]
    cuts = np.union1d(paths.ends[paths.ends < steps[-1]], steps)
    segment = np.searchsorted(paths.ends, cuts)
    change = _beyond(-observed, cuts, -paths.lowers[:, segment])
    change -= _beyond(observed, cuts, paths.uppers[:, segment])
    result: FloatArray = np.cumsum(change, axis=1, out=change)[:, np.searchsorted(cuts, steps)]
    return result


def _beyond(observed: FloatArray, cuts: IntArray, ends: FloatArray) -> FloatArray:
    """By how much the values up to each cut, from the last one on, exceed each run's end."""
    number = np.flatnonzero(observed > ends.min())
    large = observed[number]
    excess = np.zeros(ends.shape)
    parts = pairwise([0, *np.searchsorted(number, cuts).tolist()])
    for column, (first, last) in enumerate(parts):
        if first == last:
            continue
        ordered = np.sort(large[first:last])
        sums = np.append(np.cumsum(ordered[::-1])[::-1], 0.0)  # of each value and all above it
        end = ends[:, column]
        within = np.searchsorted(ordered, end)
        excess[:, column] = sums[within] - end * (len(ordered) - within)
    return excess


# --- Noise ---------------------------------------------------------------------------------------


def noise_std(layout: Layout, widths: FloatArray, steps: IntArray) -> FloatArray:
    """Std of the noise of the sum at each step from the lag on, given the ranges of every run.

    ``widths`` has a row for each run, and a column for each segment as in `Paths`.
    """
    later = steps > layout.lag
    leaves = np.array([layout.complete_leaves(t) for t in steps[later].tolist()], np.int64)
    result = np.empty((len(widths), len(steps)))
    result[:, ~later] = widths[:, :1] * math.sqrt(layout.warm_up_unit_variance)
    if len(layout.segments) == 1 and len(leaves):
        result[:, later] = widths[:, -1:] * layout.unit_std(leaves)
    elif len(leaves):
        lattice = np.array([part.steps for part in layout.segments])
        segment = np.searchsorted([part.last for part in layout.segments], steps[later])
        parts = [(number, segment == number) for number in np.unique(segment).tolist()]
        for row, width in zip(result, widths[:, -len(lattice) :], strict=True):
            worth = tuple((width / lattice).tolist())
            found = np.empty(len(leaves))
            for number, inside in parts:
                unit = layout.unit_std(leaves[inside], worth[: number + 1])
                found[inside] = unit * width[number]
            row[later] = found
    return result


def draw_noise(layout: Layout, widths: FloatArray, t: int, secret: Secret) -> FloatArray:
    """A draw of the noise of the sum at ``t`` for each row of widths, as in `noise_std`."""
    noise, first = np.zeros(len(widths)), widths[:, 0]
    warm_up, main = layout.warm_up, layout.main
    if warm_up is not None:
        one = np.array([warm_up.leaves])
        std = first * math.sqrt(layout.warm_up_unit_variance)
        noise += _sum_noise(warm_up, one, (first / warm_up.steps)[:, None], std, secret, "warm-up")
    if t > layout.lag and main is not None:
        # The error is Σ_j c_j·E(T_j): E(T_j) is the noise of the prefix at the end of segment j in
        # lattice units, and c_j the worth of a unit in segment j less that in the next.
        last = int(np.searchsorted([part.last for part in layout.segments], t))
        ends = [*(part.last for part in layout.segments[:last]), t]
        leaves = np.array([layout.complete_leaves(end) for end in ends])
        lattice = np.array([part.steps for part in layout.segments])
        worth = (widths[:, -len(lattice) :] / lattice)[:, : last + 1]
        change = worth - np.column_stack((worth[:, 1:], np.zeros(len(worth))))
        whole = noise_std(layout, widths, np.array([t]))[:, 0]
        std = np.sqrt(np.maximum(whole**2 - first**2 * layout.warm_up_unit_variance, 0.0))
        noise += _sum_noise(main, leaves, change, std, secret, "main")
    return noise


def _sum_noise(
    mechanism: Mechanism,
    leaves: IntArray,
    factors: FloatArray,
    std: FloatArray,
    secret: Secret,
    purpose: str,
) -> FloatArray:
    """Noise of prefix sums, added up with a row of factors for each run; its std is known.

    Each run takes draws of its own; signs of a symmetric law do not matter where there is one leaf.
    """
    strategy = mechanism.strategy
    weight = float(strategy.weights(mechanism.leaves, leaves[-1:])[0])
    counted = isinstance(strategy, _COUNTED) and weight <= _MOST_DRAWS
    label = ("simulate", purpose)
    if strategy.law == "gaussian" or not counted:  # normal, exactly or by the central limit theorem
        draws = LatticeNoise(LAWS["gaussian"], _FINE, secret, label).draw(0, len(std))
        return np.asarray(std * draws / _FINE)
    nodes = np.ones((1, round(weight))) if len(leaves) == 1 else node_matrix(mechanism, leaves)
    noise, sums = LatticeNoise(mechanism.law, mechanism.scale, secret, label), np.empty(len(std))
    size = nodes.shape[1]
    batch = max(1, _BATCH // size)
    for first in range(0, len(std), batch):
        some = factors[first : first + batch] @ nodes
        some *= noise.draw(first * size, some.size).reshape(some.shape)
        sums[first : first + batch] = some.sum(axis=1)
    return sums


def node_matrix(mechanism: Mechanism, leaves: IntArray) -> FloatArray:
    """Which nodes the signed-digit tree adds (1) or subtracts (−1) at each of these leaves."""
    process = mechanism.strategy.noise_process(mechanism.leaves)
    if not isinstance(process, SignedDigitNoise):
        raise ParameterError("strategy", SignedDigitTree.name, mechanism.strategy.name)
    entries: list[dict[tuple[int, int], float]] = []
    for leaf in leaves.tolist():
        whole = process._whole(leaf)
        found: dict[tuple[int, int], float] = {}
        for level in range(process.depth):
            origin, here = process.arity * whole[level + 1], whole[level]
            found |= {(level, node): 1.0 for node in range(origin, here)}
            found |= {(level, node): -1.0 for node in range(here, origin)}
        entries.append(found)
    names = sorted(set().union(*entries))
    return np.array([[entry.get(name, 0.0) for name in names] for entry in entries])


def expected_errors(
    layout: Layout, widths: FloatArray, bias: FloatArray, draws: int, secret: Secret
) -> FloatArray:
    """Mean |error| of each run at the last step, over the noise alone.

    Exact for normal noise, and taken as normal where the range changes; else a mean over draws
    that all runs share.
    """
    if len(layout.segments) > 1 or layout.noise_law == "gaussian":
        return mean_absolute(bias, noise_std(layout, widths, np.array([layout.length]))[:, 0])
    one = np.ones((draws, widths.shape[1]))
    unit = draw_noise(layout, one, layout.length, secret)
    pairs = zip(bias, widths[:, -1], strict=True)
    return np.array([np.abs(mean + width * unit).mean() for mean, width in pairs])


# --- Runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Runs:
    """Errors of many runs at one step: released sum minus exact sum of the unclipped values.

    Attributes
    ----------
    t : int
        The step.
    exact_sum : float
        Sum of the first ``t`` values, unclipped.
    paths : Paths
        The ranges that the runs go through.
    clipping, added_back, noise : numpy.ndarray
        What each error is made of: what clipping did to the sum, the estimate of it that is added
        back, and a draw of the noise.
    noise_std : numpy.ndarray
        Std of each run's noise, given its ranges.
    """

    t: int
    exact_sum: float
    paths: Paths
    clipping: FloatArray
    added_back: FloatArray
    noise: FloatArray
    noise_std: FloatArray

    @property
    def thresholds(self) -> FloatArray:
        """Upper end of the clipping range in force at the step."""
        return self.paths.uppers[:, int(np.searchsorted(self.paths.ends, self.t))]

    @cached_property
    def errors(self) -> FloatArray:
        """Clipping, what is added back, and noise."""
        return self.clipping + self.added_back + self.noise

    @property
    def mean_absolute_error(self) -> float:
        """Mean of |error| over the runs."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def expected_errors(self) -> FloatArray:
        """Mean |error| of every run over its noise, taken as normal: their mean has less chance."""
        return mean_absolute(self.clipping + self.added_back, self.noise_std)


def improvement(baseline: Runs, other: Runs) -> float:
    """Mean |error| of the baseline over that of the other: the paper's improvement factor."""
    return baseline.mean_absolute_error / other.mean_absolute_error


def simulate(
    plan: Plan, values: ArrayLike, runs: int, *, t: int | None = None, seed: int = 0
) -> Runs:
    """Run a plan many times and look at step ``t``.

    **Privacy.** For public data only.

    Parameters
    ----------
    plan : Plan
        Any plan with ``missing="none"``. Where the range changes, a strategy with Laplace noise
        must be the signed-digit tree.
    values : array_like
        The observations in order, at least ``t`` (where the range changes: the plan's length), all
        finite.
    runs : int
        How many runs.
    t : int, optional
        An observation number at which the plan releases; the plan's length by default.
    seed : int
        Number of the published secret that all draws come from.

    Examples
    --------
    >>> plan = Plan.baseline(epsilon=1.0, upper=100.0, length=1000)
    >>> simulate(plan, np.ones(1000), 5).errors.shape
    (5,)
    """
    if runs < 1:
        raise ParameterError("runs", "at least 1", runs)
    if plan.layout.leaf.width > 1:
        raise ParameterError("missing", '"none", as the values are all there', plan.missing)
    layout, step = plan.layout, plan.layout.length if t is None else t
    observed = _observed(layout, values, step)
    paths, steps = draw_paths(plan, observed, runs, seed), np.array([step])
    widths = paths.widths
    return Runs(
        t=step,
        exact_sum=float(np.sum(observed[:step])),
        paths=paths,
        clipping=clipping(paths, observed, steps)[:, 0],
        added_back=paths.added_at(steps)[:, 0],
        noise=draw_noise(layout, widths, step, simulation_secret(seed)),
        noise_std=noise_std(layout, widths, steps)[:, 0],
    )


def _observed(layout: Layout, values: ArrayLike, step: int) -> FloatArray:
    """The values that a run needs, if the plan releases at ``step``."""
    if not layout.lag <= step <= layout.length or step < 1:
        raise ParameterError("t", f"from {max(layout.lag, 1):,} to {layout.length:,}", step)
    if (step - layout.lag) % layout.every and step != layout.length:
        raise ParameterError("t", f"a multiple of {layout.every:,} after the lag", step)
    needed = layout.length if len(layout.segments) > 1 else step
    observed = np.asarray(values, np.float64)[:needed]
    if len(observed) < needed or not np.isfinite(observed).all():
        found = f"{len(observed):,}, or some that are not finite"
        raise ParameterError("values", f"at least {needed:,} finite observations", found)
    return observed
