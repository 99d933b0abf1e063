"""A lower bound on ε by trials: the likelihood ratio on decoded noise, for the most exposed unit.

Each key of a fleet, or of a crowd, is a trial: half of them have the unit, half have not.  They go
through the code that releases many keys, with fresh secrets; where a plan cannot be run for many
keys at once, through its encoder and its noise.  What is looked at are the noisy nodes, from which
everything that is released follows.  The draws behind them are decoded, and scored by
how much likelier they are with the unit than without.  Which scores to count is chosen on trials of
their own; the others are counted, and exact binomial intervals give a bound on ε that holds with
confidence ``1 − α``, whatever the law of the noise is in truth.

**Privacy.** For audits, on made-up streams with fresh secrets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from rillet.fleet import draw, rows_of_state
from rillet.noise import FloatArray, IntArray, Secret
from rillet.plan import Plan
from rillet.statistic import Range
from rillet.strategy.base import Encoder
from rillet.testing.shifts import least_shift, noise_matrix
from rillet.testing.statistics import (
    clopper_pearson,
    laplace_scale_p_value,
    normal_scale_p_value,
    sign_p_value,
)

__all__ = ["Bound", "Trials", "epsilon_bound"]

#: Keys that are run at once.
BATCH: Final = 2**16
#: So many leaves are looked at: those of later ones can only add to what is seen.
MOST_SHOWN: Final = 8
#: The part of all trials on which the event is chosen.
PILOT: Final = 0.125
#: As many are enough for a mean and a deviation.
MOST_OF_NORMAL: Final = 2**18
#: Fewer hits than this among the pilot's trials are no ground to choose an event on.
_FEWEST_HITS: Final = 16
#: A value as small as can be, and one as large.
_ENDS: Final = (-math.inf, math.inf)
#: Draws that are tested for their scale and independence.
_TESTED: Final = 2**15


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε: with confidence ``1 − alpha`` no smaller one holds at ``delta``."""

    epsilon: float
    trials: int
    hits: tuple[int, int]
    alpha: float

    @classmethod
    def of(
        cls, hits: tuple[int, int], trials: tuple[int, int], delta: float, alpha: float
    ) -> Bound:
        """From how often an event came with the unit, and without it."""
        least = clopper_pearson(hits[0], trials[0], alpha)[0]
        most = clopper_pearson(hits[1], trials[1], alpha)[1]
        found = math.log((least - delta) / most) if least > delta else 0.0
        return cls(max(0.0, found), sum(trials), hits, alpha)


def epsilon_bound(
    scores: Iterator[tuple[FloatArray, FloatArray]],
    trials: int,
    delta: float,
    alpha: float,
    *,
    normal: bool = False,
) -> Bound:
    """Choose an event on the first scores, and count it among ``trials`` others.

    ``scores`` gives batches: of runs with the unit, and of runs without it.  ``normal`` says that
    they should have a normal law: the event is then chosen by its tails, where no few runs are
    lucky; the bound does not depend on it.
    """
    pilot, seen = [], 0
    while seen < min(PILOT * trials, MOST_OF_NORMAL if normal else trials):
        pilot.append(next(scores))
        seen += sum(map(len, pilot[-1]))
    with_unit, without = (np.concatenate(each) for each in zip(*pilot, strict=True))
    chances = _normal_tails if normal else _counted_tails
    threshold = _best_threshold(chances(with_unit, without), trials, delta, alpha)
    hits, counted = [0, 0], [0, 0]
    while sum(counted) < trials:
        for world, batch in enumerate(next(scores)):
            hits[world] += int(np.count_nonzero(batch >= threshold))
            counted[world] += len(batch)
    return Bound.of((hits[0], hits[1]), (counted[0], counted[1]), delta, alpha)


class _Tails(NamedTuple):
    """Thresholds, and how likely scores are to reach them, with the unit and without it.

    ``wrong`` is the variance of such a chance, over the chance itself.
    """

    thresholds: FloatArray
    likely: FloatArray
    unlikely: FloatArray
    wrong: float


def _counted_tails(with_unit: FloatArray, without: FloatArray) -> _Tails:
    """As often as they were reached."""
    found = np.unique(np.quantile(with_unit, 1 - np.geomspace(1, 1e-5, 120)[1:]))
    found -= 1e-9 * np.abs(found)  # scores have atoms, and floats around them
    reached = [1 - np.searchsorted(np.sort(own), found) / len(own) for own in (with_unit, without)]
    often = reached[0] * len(with_unit) >= _FEWEST_HITS
    # Two deviations of the pilot itself count: else the luckiest event is chosen.
    return _Tails(found[often], reached[0][often], reached[1][often], 4 / len(without))


def _normal_tails(with_unit: FloatArray, without: FloatArray) -> _Tails:
    """As often as normal laws of their means and deviations would reach them."""
    found = with_unit.mean() + with_unit.std() * np.linspace(0.0, 6.0, 121)
    likely, unlikely = (ndtr((own.mean() - found) / own.std()) for own in (with_unit, without))
    return _Tails(found, likely, unlikely, 0.0)


def _best_threshold(tails: _Tails, trials: int, delta: float, alpha: float) -> float:
    """The threshold whose bound would be largest; out of reach where there is none."""
    thresholds, likely, unlikely, wrong = tails
    if not len(thresholds):
        return math.inf
    spread = math.sqrt(4 * math.log(2 / alpha) / trials + wrong)
    least = likely - spread * np.sqrt(likely) - delta
    most = unlikely + spread * np.sqrt(np.maximum(unlikely, 2 / trials))
    bounds = np.where(least > 0, np.log(np.maximum(least, 1e-300) / most), -np.inf)
    return float(thresholds[int(np.argmax(bounds))])


# --- Many keys -----------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Some trials: noisy nodes and exact leaves by column, of keys and then of totals."""

    noisy: list[IntArray]
    exact_leaves: list[IntArray]


class _Score(NamedTuple):
    """How draws are decoded and scored: one for each column that the unit moves."""

    exact_nodes: IntArray
    decode: FloatArray | None
    shift: FloatArray


class Trials:
    """A plan run for many keys at once, those with odd numbers with the unit.

    **Privacy.** The unit is the one that is most exposed in every strategy: the first observation
    after the warm-up, as large as can be, in a stream with nothing else (by count: as small as can
    be otherwise); of a person all that the gate lets in, as close as can be from there on.
    """

    def __init__(self, plan: Plan, keys: int = BATCH) -> None:
        self.keys, self.plan = keys, plan
        #: All keys once, under one master secret.
        self.run: Callable[[Secret], _Batch] = self._noise_alone
        if plan.layout.crowd:
            assert len(plan.keys) == keys
            self.run = self._by_count
        elif _fits_a_fleet(plan):
            own: Any = [(f"r{i}", i) for i in range(keys)] if plan.levels else range(keys)
            self.plan = replace(plan, keys=own, groups=None, amendments=())
            self.run = self._by_clock
        self.layout = self.plan.layout
        assert self.layout.main is not None
        self.mechanism = self.layout.main
        self.shown = min(self.mechanism.leaves, MOST_SHOWN)
        gate = self.layout.gate
        self.moments = [1]
        if gate is not None:
            self.moments = list(range(1, self.shown + 1, gate.apart))[: gate.most]
        self._worlds = np.arange(keys) % 2
        strategy = self.mechanism.strategy
        self._noise = noise_matrix(strategy, self.mechanism.leaves, self.shown)[0]
        self._scores: list[_Score] | None = None

    # --- running ---------------------------------------------------------------------------------

    def _by_clock(self, secret: Secret) -> _Batch:
        fleet = self.plan.memory_store(self.plan.tree, secret, "").fleet
        assert fleet is not None
        lag, keys = self.layout.lag, np.flatnonzero(self._worlds)
        key_of = np.tile(keys, len(self.moments))
        tick_of = np.repeat(lag + np.array(self.moments), len(keys))
        fleet.advance(key_of, np.full(len(key_of), np.inf), tick_of, lag + self.shown)
        closed = [fleet.closed[number][-self.shown :] for number in sorted(fleet.closed)]

        def joined(part: str) -> list[IntArray]:
            return [
                np.concatenate(
                    [np.stack([getattr(tick, part)[c] for tick in page], 1) for page in closed]
                )
                for c in range(self.layout.leaf.width)
            ]

        return _Batch(joined("noisy"), joined("exact_leaves"))

    def _by_count(self, secret: Secret) -> _Batch:
        crowd = self.plan.memory_store(self.plan.tree, secret, "").crowd
        assert crowd is not None
        noisy, exact = [], []
        rows = np.arange(self.keys)
        for leaf in range(1, self.shown + 1):
            for place in range(self.layout.every):
                first = leaf == 1 and place == 0
                values = np.where(self._worlds & first, np.inf, -np.inf)
                crowd.absorb(self.layout, rows, values, 0)
                block = crowd.changed
                assert block is not None and block.noisy is not None
                exact.append(block.exact_units)
                if block.noisy.shape[1]:
                    noisy.append(block.noisy)
                crowd.forget_changes()
        leaves = np.add.reduceat(np.array(exact), range(0, len(exact), self.layout.every))
        return _Batch(
            [np.stack([part[c] for part in noisy], 1) for c in range(len(noisy[0]))],
            [leaves[:, :, c].T for c in range(leaves.shape[2])],
        )

    def _noise_alone(self, secret: Secret) -> _Batch:
        """Where keys are not stepped together: the nodes once for each world, and all the noise."""
        layout, mechanism = self.layout, self.mechanism
        width, strategy = layout.leaf.width, mechanism.strategy
        # In lattice units, in which it moves as far whatever the range.
        grid = layout.grid(Range(0.0, 1.0), layout.segments[0], 0.5)
        ends = [np.reshape(layout.leaf.contribute(np.array([end]), grid), width) for end in _ENDS]
        leaves = np.zeros((2, width, self.shown), np.int64)
        leaves[1][:, np.array(self.moments) - 1] = ends[1][:, None]
        if layout.clock is None:
            leaves[0][:, 0] = ends[0]
        process = strategy.noise_process(mechanism.leaves)
        processes = [rows_of_state(process.start(), self.keys) for _ in range(width)]
        noisy = np.empty((width, self.keys, self.shown), np.int64)
        secret = self.plan.stream_secret(secret, (), "")
        for leaf in range(1, self.shown + 1):
            secret = secret.ratchet()
            noise = draw(mechanism, secret, "main", 0, self.keys, processes, leaf)
            for column, drawn in enumerate(noise):
                noisy[column, :, leaf - 1] = drawn
        for column in range(width):
            nodes = np.array([self._encoded(own) for own in leaves[:, column]])
            noisy[column] += nodes[self._worlds]
        return _Batch(list(noisy), [own[self._worlds] for own in leaves.transpose(1, 0, 2)])

    def _encoded(self, exact_leaves: IntArray) -> IntArray:
        encoder = self.mechanism.strategy.encoder(self.mechanism.leaves)
        return encoder.encode(encoder.start(), 1, np.ascontiguousarray(exact_leaves))[1]

    # --- scoring ---------------------------------------------------------------------------------

    def scores(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Batches of scores, of keys with the unit and of keys without, without end."""
        while True:
            found = self._scored(self.run(Secret.generate()))
            yield found[1::2], found[::2]

    def _rows(self) -> list[IntArray]:
        """For every key the rows of the streams that it is in: its own, and its totals'."""
        total_of = self.plan.tree.total_of
        return [np.arange(self.keys), *(own[: self.keys] for own in total_of)]

    def _scored(self, batch: _Batch) -> FloatArray:
        """For every key, how much likelier its noise is with the unit than without, as a log."""
        if self._scores is None:
            self._scores = [
                self._score(exact[rows]) for rows in self._rows() for exact in batch.exact_leaves
            ]
        total, numbers = np.zeros(self.keys), iter(self._scores)
        for rows in self._rows():
            for noisy in batch.noisy:
                score = next(numbers)
                if not score.shift.any():
                    continue
                drawn = (noisy[rows] - score.exact_nodes).astype(np.float64)
                if score.decode is not None:
                    drawn = drawn @ score.decode.T
                scaled, shift = drawn / self.mechanism.scale, score.shift / self.mechanism.scale
                if self.mechanism.strategy.law == "laplace":
                    total += (np.abs(scaled) - np.abs(scaled - shift)).sum(1)
                else:
                    total += scaled @ shift
        return total

    def _score(self, exact_leaves: IntArray) -> _Score:
        """Of one column: where it is without the unit, and how far the unit moves its draws."""
        without, with_unit = (self._encoded(exact_leaves[world]) for world in (0, 1))
        for world in (0, 1):
            assert (exact_leaves[world::2] == exact_leaves[world]).all(), "trials differ"
        moved = (with_unit - without).astype(np.float64)
        if np.array_equal(self._noise, np.eye(self.shown)):
            return _Score(without, None, moved)
        shift = least_shift(self.mechanism.strategy.law, self._noise, moved)
        assert shift is not None, "no noise hides this unit"
        return _Score(without, np.asarray(np.linalg.pinv(self._noise), np.float64), shift)

    # --- the noise itself ------------------------------------------------------------------------

    def noise_p_values(self, secret: Secret) -> dict[str, float]:
        """p-values of what is claimed of node noise: its scale, and what is independent of what.

        Draws of different leaves, keys and columns, of two secrets, and of two plans under one
        secret.
        """
        other_plan = replace(self.plan, epsilon=self.plan.epsilon * 0.9)
        runs = [
            self._draws(secret),
            self._draws(Secret.generate()),
            Trials(other_plan, self.keys)._draws(secret),
        ]
        first = runs[0]
        scale, law = self.mechanism.scale, self.mechanism.strategy.law
        fits = laplace_scale_p_value if law == "laplace" else normal_scale_p_value
        found = {
            "scale": min(1.0, len(first) * min(fits(own, scale, error=0.5) for own in first)),
            "repeats": _repeats_p_value(first, scale),
            "between keys": sign_p_value(first[:, 1:] * np.sign(first[:, :-1])),
            "between secrets": sign_p_value(first * np.sign(runs[1])),
            "between plans": sign_p_value(first * np.sign(runs[2])),
        }
        pairs = list(combinations(np.sign(first), 2))
        if pairs:
            least = min(sign_p_value(one * other) for one, other in pairs)
            found["between nodes"] = min(1.0, len(pairs) * least)
        return found

    def _draws(self, secret: Secret) -> NDArray[np.float64]:
        """Decoded draws of keys without the unit: a row for each draw of each column."""
        batch = self.run(secret)
        drawn = []
        for column, noisy in enumerate(batch.noisy):
            own = noisy[: self.keys : 2][:_TESTED]
            without = self._encoded(batch.exact_leaves[column][0])
            decoded = own - without
            if self._noise.shape[0] == self._noise.shape[1]:
                decoded = np.linalg.solve(self._noise, decoded.T * 1.0).T
            else:
                decoded = decoded[:, :1]  # the first leaf has a draw of its own
            drawn.append(decoded.T)
        return np.concatenate(drawn)


def _repeats_p_value(draws: FloatArray, scale: float) -> float:
    """How likely it is that so many draws equal an earlier one.

    No integer has a chance above ``1/(2·scale)`` (Laplace; a Gaussian one has less), so each draw
    repeats with a chance of at most ``n/(2·scale)``, whatever came before it.
    """
    repeated = draws.size - len(np.unique(np.rint(draws)))
    return float(binom.sf(repeated - 1, draws.size, min(1.0, draws.size / (2 * scale))))


def _fits_a_fleet(plan: Plan) -> bool:
    """Whether keys are stepped together, with a code that does many at once."""
    layout = plan.layout
    if layout.clock is None or (layout.lag and not plan.shared_threshold):
        return False
    assert layout.main is not None
    encoder = layout.main.strategy.encoder(layout.main.leaves)
    return type(encoder).encode_each is not Encoder.encode_each
