"""Many runs of a plan whose range is learned again and again, at its last step.

The error at the last step is known from little: the range of every epoch, the clipped sum of every
epoch under it, the mass that is added back, and the noise of the running sum at the ends of the
epochs.  So a run takes the looks that a stream with the same key releases, bit for bit, decides
what that stream decides, and reads clipped sums from sorted values.  Only the running sum's own
noise is drawn afresh, from its exact covariance (Gaussian) or from as many whole draws as the
stream adds up (signed-digit tree).  Left out is the rounding of values to the lattice, which moves
a sum by at most half a step for each observation.  Tests hold all of it to whole streams.

**Privacy.** For public data only: errors are measured against the exact sum, and the noise comes
from published seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.noise import LAWS, IntArray, LatticeNoise, Secret
from rillet.plan import Plan
from rillet.reproduce.simulate import ClippedSums, Simulated
from rillet.statistic import Sum
from rillet.strategy import Mechanism
from rillet.strategy.signed_digit import SignedDigitNoise, SignedDigitTree
from rillet.threshold import FixedThreshold, Look, Range
from rillet.threshold.base import learned_range
from rillet.threshold.tail import TailHistogram, _choose_ends, _sides
from rillet.threshold.tail_model import mean_absolute

__all__ = ["BestFixed", "Pipeline", "PipelineRuns", "best_fixed_threshold", "tree_error"]

FloatArray = NDArray[np.float64]

#: Gaussian draws as whole numbers of this scale: normal to nine digits.
_FINE: Final = 2.0**30
_DRAWS_AT_ONCE: Final = 1 << 21


@dataclass(frozen=True, eq=False)
class PipelineRuns(Simulated):
    """Errors of many runs, and what they are made of.

    ``clipping + added_back + noise`` is the error of every run.

    Attributes
    ----------
    widths : numpy.ndarray
        One row a run: width of the clipping range in the opening and in every epoch.
    added_back : numpy.ndarray
        The estimate of the clipped mass.
    noise_std : numpy.ndarray
        Standard deviation of the running sum's noise, given the ranges; the opening's is not in it.
    opening_noise : numpy.ndarray
        Noise of the opening's own sum, a part of ``noise``.
    """

    widths: FloatArray
    added_back: FloatArray
    noise_std: FloatArray
    opening_noise: FloatArray

    @property
    def errors(self) -> FloatArray:
        """Clipping, what is added back, and noise."""
        return self.clipping + self.added_back + self.noise

    @property
    def expected_errors(self) -> FloatArray:
        """Mean |error| of every run over the running sum's noise, taken as normal.

        Their mean is the mean |error| with less chance in it.
        """
        bias = np.abs(self.clipping + self.added_back + self.opening_noise)
        return mean_absolute(bias, self.noise_std)


class Pipeline:
    """A plan with :class:`~rillet.threshold.TailHistogram`, ready to be run often on one stream.

    **Privacy.** For public data only.

    Parameters
    ----------
    plan : Plan
        A plan of known length.
    values : array_like
        As many finite public values, in order.
    """

    def __init__(self, plan: Plan, values: ArrayLike) -> None:
        layout = plan.layout
        one_sided = isinstance(layout.threshold, TailHistogram) and not layout.threshold.two_sided
        if not one_sided or layout.main is None:
            raise ParameterError("threshold", "a one-sided TailHistogram", layout.threshold.name)
        observed = np.asarray(values, np.float64)
        if len(observed) != plan.length or not np.isfinite(observed).all():
            found = f"{len(observed):,}, or some that are not finite"
            raise ParameterError("values", f"{plan.length:,} finite observations", found)
        self.plan, self.layout, self.main = plan, layout, layout.main
        assert isinstance(layout.threshold, TailHistogram)
        self.threshold = layout.threshold
        self.exact_sum = math.fsum(observed)
        #: Ends of the opening and of the epochs.
        self.ends = (layout.lag, *(epoch.last for epoch in layout.epochs))
        parts = [observed[first:last] for first, last in pairwise((0, *self.ends))]
        self.sums = [ClippedSums(part, layout.bounds.lower) for part in parts]
        self.tallies = [self.threshold.tally(part, layout.bounds) for part in parts]
        below = np.maximum(layout.bounds.lower - observed, 0.0)
        self._unclipped = sum(one.total for one in self.sums) - math.fsum(below)
        self.leaves = np.array([layout.complete_leaves(end) for end in self.ends[1:]])

    def run(self, runs: int, *, seed: int = 0) -> PipelineRuns:
        """Run so often: run ``i`` decides as ``plan.open(secret=for_tests(seed), key=(i,))``."""
        if runs < 1:
            raise ParameterError("runs", "at least 1", runs)
        layout, lower = self.layout, self.layout.bounds.lower
        secret = Secret.for_tests(seed)
        widths = np.empty((runs, len(self.ends)))
        added_back, opening_noise = np.empty(runs), np.empty(runs)
        for run in range(runs):
            own = self.plan.stream_secret(secret, (run,), "")
            ranges, added_back[run] = self._decide(own)
            widths[run] = [kept.width for kept in ranges]
            opening_noise[run] = self._opening_draw(own)
        opening_noise *= widths[:, 0]
        clipped = sum(one(lower + widths[:, part]) for part, one in enumerate(self.sums))
        std, noise = self._main_noise(widths, secret.derive("pipeline"))
        return PipelineRuns(
            t=layout.length,
            exact_sum=self.exact_sum,
            thresholds=lower + widths[:, -1],
            clipping=np.asarray(clipped - self._unclipped),
            noise=noise + opening_noise,
            widths=widths,
            added_back=added_back,
            noise_std=std,
            opening_noise=opening_noise,
        )

    # --- one run ---------------------------------------------------------------------------------

    def looks(self, own: Secret) -> Iterator[tuple[int, Look]]:
        """The looks that a stream with the secret ``own`` releases, and when."""
        layout, secret = self.layout, own
        for end, tally in zip(self.ends, self.tallies, strict=True):
            if end > layout.lag:
                secret = secret.ratchet(
                    layout.ratchet_steps(layout.complete_leaves(end)) - secret.epoch
                )
                if layout.epoch_at(end).look is None:
                    return
            noise = layout.look_at(end)
            draws = LatticeNoise(LAWS[noise.law], noise.scale, secret, ("look", end))
            noisy = tally + draws.draw(0, len(tally))
            yield end, Look(noisy, noise.observations, noise.scale, noise.law)

    def _decide(self, own: Secret) -> tuple[list[Range], float]:
        """Ranges in force in the opening and in the epochs, and the mass added back at the end."""
        layout, ranges = self.layout, list[Range]()
        released = list(self.looks(own))
        looks = [look for _, look in released]
        for place, (end, _) in enumerate(released[:-1]):
            ranges.append(self._next_range(looks[: place + 1], ranges, end))
        last = released[-1][0]
        outlook = layout.outlook(last)
        finding = self.threshold.judge(layout.bounds, tuple(looks), tuple(ranges), outlook)
        if last == layout.length:  # the last look only corrects: nothing is left to clip
            return [ranges[0], *ranges], finding.removed
        removed = finding.removed + finding.removed_each * (layout.length - last)
        return [finding.range] * len(self.ends), removed

    def _next_range(self, looks: list[Look], ranges: list[Range], end: int) -> Range:
        """What ``judge`` chooses, without the estimate of the mass, which only the end needs."""
        bounds = self.layout.bounds
        past = [kept.width / bounds.width for kept in ranges]
        sides = _sides(bounds, tuple(looks), None)
        (part,) = _choose_ends(sides, self.layout.outlook(end), past)
        return learned_range(bounds, part * bounds.width)

    def _opening_draw(self, own: Secret) -> float:
        """Noise of the opening's sum per unit of its range: the stream's own draw."""
        opening = self.layout.opening
        assert opening is not None and opening.leaves == 1
        return int(opening.noise(own, "opening").draw(1, 1)[0]) / opening.steps

    # --- noise of the running sum ----------------------------------------------------------------

    def _main_noise(self, widths: FloatArray, secret: Secret) -> tuple[FloatArray, FloatArray]:
        """Standard deviation of every run's noise, and a draw of it.

        The error is ``Σ_j c_j·E(T_j)``: E(T_j) is the noise of the prefix at the end of epoch j in
        lattice units, and c_j the worth of a unit in epoch j less that in the next.
        """
        steps = np.array([epoch.steps for epoch in self.layout.epochs])
        worth = widths[:, 1:] / steps
        factors = worth - np.concatenate((worth[:, 1:], np.zeros((len(worth), 1))), axis=1)
        main, leaves = self.main, self.leaves
        low, high = np.minimum.outer(leaves, leaves), np.maximum.outer(leaves, leaves)
        shared = main.strategy.covariance(main.leaves, low, high) * main.node_variance
        std = np.sqrt(np.einsum("rj,jk,rk->r", factors, shared, factors))
        if main.strategy.law == "gaussian":
            normal = LatticeNoise(LAWS["gaussian"], _FINE, secret, ("normal",))
            return std, std * normal.draw(0, len(std)) / _FINE
        nodes = node_matrix(main, leaves)
        noise, batch = np.empty(len(std)), max(1, _DRAWS_AT_ONCE // nodes.shape[1])
        draws = main.noise(secret, "pipeline")
        for first in range(0, len(std), batch):
            some = factors[first : first + batch] @ nodes
            drawn = draws.draw(first * nodes.shape[1], some.size).reshape(some.shape)
            noise[first : first + batch] = (some * drawn).sum(1)
        return std, noise


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


# --- What to compare with ------------------------------------------------------------------------


@dataclass(frozen=True)
class BestFixed:
    """The best declared threshold, chosen with the data in hand: no release could know it."""

    threshold: float
    mean_absolute_error: float


def best_fixed_threshold(
    plan: Plan, values: ArrayLike, *, count: int = 200, draws: int = 20_000, seed: int = 0
) -> BestFixed:
    """Least mean |error| at the last step over ``count`` log-spaced declared thresholds.

    The plan is the same but for the threshold: same promise, strategy and cadence, no lag, nothing
    learned and nothing added back.  The thresholds run from the median of the values to the bound.
    Gaussian noise is integrated exactly; Laplace noise takes the mean over ``draws`` draws.

    **Privacy.** For public data only.
    """
    assert plan.length is not None
    observed = np.asarray(values, np.float64)
    lowest = max(float(np.median(observed)) - plan.lower, (plan.upper - plan.lower) * 2.0**-20)
    widths = np.geomspace(lowest, plan.upper - plan.lower, count)
    fixed = Plan(
        epsilon=plan.epsilon,
        delta=plan.delta,
        lower=plan.lower,
        upper=plan.upper,
        length=plan.length,
        every=plan.every,
        lag=0,
        statistic=Sum(),
        threshold=FixedThreshold(),
        strategy=plan.strategy,
    )
    clipped = ClippedSums(observed, plan.lower)
    bias = np.abs(clipped(plan.lower + widths) - math.fsum(observed))
    unit_std = fixed.layout.unit_std_at(plan.length)
    if fixed.layout.noise_law == "gaussian":
        errors = mean_absolute(bias, unit_std * widths)
    else:
        units = _unit_noise(fixed.layout, draws, seed)
        errors = np.array([np.abs(b + w * units).mean() for b, w in zip(bias, widths, strict=True)])
    best = int(np.argmin(errors))
    return BestFixed(plan.lower + float(widths[best]), float(errors[best]))


def _unit_noise(layout: Layout, runs: int, seed: int) -> FloatArray:
    """Noise of the last sum per unit of a declared range, for whole draws."""
    assert layout.main is not None
    main = layout.main
    count = round(float(main.strategy.weights(main.leaves, np.array([main.leaves]))[0]))
    secret = Secret.for_tests(seed).derive("best fixed")
    drawn = main.noise(secret, "best fixed").draw(0, runs * count).reshape(runs, count)
    return np.asarray(drawn.sum(axis=1) / main.steps)


def tree_error(upper: float, length: int, epsilon: float = 1.0) -> float:
    """Mean |error| of the plain binary tree at the last step, exactly.

    ``upper·L/ε`` times E |sum of q standard Laplace draws|, q the number of ones in ``length``,
    which is ``2·q·C(2q, q)/4^q``.  (Such a sum is the difference of two Gamma(q) variables.)
    """
    ones = length.bit_count()
    of_sum: float = 2 * ones * math.comb(2 * ones, ones) / 4**ones
    return upper * length.bit_length() / epsilon * of_sum
