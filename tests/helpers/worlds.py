"""Two neighbouring streams with the same releases: what meets the noise in either of them.

A mechanism is private because a transcript (all noisy numbers, in order) is nearly as likely under
one stream as under its neighbour.  Here the neighbour is run on the transcript of the first stream:
its exact numbers are computed by the code under test, and what is released is that of the first.
So the movements are those that an observer of the first stream would have to explain, with ranges
and splits that were chosen from these very releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import rillet.step
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.release import Releases
from rillet.statistic import Range
from rillet.step import advance, start, step
from rillet.strategy import STRATEGIES, HonakerTree, RestartedTree, SignedDigitTree
from rillet.testing.lattice import TAILS, lattice_probability
from rillet.threshold import Finding, TailHistogram
from rillet.threshold.rank import Cells, weight_table

_KINDS = [STRATEGIES.get(name, "strategy") for name in STRATEGIES.names()]


@dataclass
class Meeting:
    """Exact integers that meet noise: ``noisy`` is released, ``cells`` stand for a drawn rank."""

    label: str
    exact: list[int] = field(default_factory=list)
    noisy: list[int] = field(default_factory=list)
    law: str = ""
    scale: float = 0.0
    column: int = 0
    cells: Cells | None = None
    budget: Fraction = Fraction(0)


@dataclass
class World:
    """One run: everything that met noise, in order, and what was released."""

    meetings: list[Meeting] = field(default_factory=list)
    releases: Releases | None = None
    state: Any = None

    def public(self) -> str:
        """All that is public at the end, but for what follows from it."""
        releases, state = self.releases, self.state
        assert releases is not None
        looks = [(look.observations, look.noisy.tolist(), look.centre) for look in state.looks]
        decided = (state.anchor, state.ranges, state.worth, state.warm_up_units, state.cut)
        return repr((releases.t.tolist(), releases.value.tolist(), state.complete, looks, decided))


class _Watch:
    """Hooks between the exact numbers and the noise; replays ``given`` where there is one."""

    def __init__(self, layout: Layout, given: World | None) -> None:
        self.layout, self.world = layout, World()
        self._given = iter(given.meetings) if given is not None else None
        self.part, self.column = "", 0

    def meet(self, meeting: Meeting) -> Meeting:
        """Note a meeting; returns the one whose numbers are released."""
        self.world.meetings.append(meeting)
        if self._given is None:
            return meeting
        released = next(self._given)
        assert released.label == meeting.label
        assert (released.law, released.scale) == (meeting.law, meeting.scale)
        meeting.noisy = released.noisy
        return released


class _Encoder:
    def __init__(self, own: Any, watch: _Watch) -> None:
        self._own, self._watch = own, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def encode(self, state: Any, first: int, exact_leaves: Any) -> Any:
        following, exact_nodes = self._own.encode(state, first, exact_leaves)
        self._watch.exact = exact_nodes.tolist()
        return following, exact_nodes


class _Decoder(_Encoder):
    def decode(self, state: Any, first: int, noisy: Any) -> Any:
        watch = self._watch
        mechanism = watch.layout.warm_up if watch.part == "warm-up" else watch.layout.main
        released = watch.meet(
            Meeting(
                watch.part,
                watch.exact,
                noisy.tolist(),
                mechanism.strategy.law,
                mechanism.scale,
                watch.column,
            )
        )
        watch.column += 1
        return self._own.decode(state, first, np.array(released.noisy, np.int64))


def quick_judge(self: Any, bounds: Range, looks: Any, ranges: Any, outlook: Any) -> Finding:
    """A range that depends on everything that a look says: as a judge, only much faster."""
    seen = sum(int(np.dot(look.noisy, np.arange(len(look.noisy)) % 7)) for look in looks)
    seen += sum(look.observations + round(1000 * (look.centre or 0.0)) for look in looks)
    seen += outlook.length + 3 * outlook.until + 5 * outlook.after
    width = bounds.width * (0.3 + 0.4 * (seen % 97) / 97)
    lower = bounds.lower + (0.2 * bounds.width if self.two_sided else 0.0)
    return Finding(Range(lower, lower + width), 0.01 * width, 0.001 * width, 0.02)


@contextmanager
def watched(layout: Layout, given: World | None, *, quick: bool = True) -> Iterator[_Watch]:
    """Hook into everything that meets noise."""
    watch = _Watch(layout, given)

    def within(part: str, original: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            watch.part, watch.column = part, 0
            return original(*arguments, **named)

        return run

    def look_again(noise: Any, exact_counts: Any, draws: Any, *more: Any) -> Any:
        noisy = exact_counts + draws
        released = watch.meet(
            Meeting("look", exact_counts.tolist(), noisy.tolist(), noise.law, noise.scale)
        )
        return later(noise, np.array(released.noisy) - draws, draws, *more)

    def look_first(
        self: Any, exact_counts: Any, observations: Any, *more: Any, **named: Any
    ) -> Any:
        look = first(self, exact_counts, observations, *more, **named)
        released = watch.meet(
            Meeting("first look", exact_counts.tolist(), look.noisy.tolist(), look.law, look.scale)
        )
        draws = look.noisy - exact_counts
        return first(self, np.array(released.noisy) - draws, observations, *more, **named)

    def draw_rank(self: Cells, budget: Fraction, *more: Any) -> int:
        drawn = [rank(self, budget, *more)]
        return watch.meet(Meeting("rank", [], drawn, cells=self, budget=budget)).noisy[0]

    later, first, rank = rillet.step.later_look, TailHistogram.first_look, Cells.draw
    with pytest.MonkeyPatch.context() as patch:
        for kind in _KINDS:
            encoder, decoder = kind.encoder, kind.decoder
            patch.setattr(
                kind, "encoder", lambda self, n, own=encoder: _Encoder(own(self, n), watch)
            )
            patch.setattr(
                kind, "decoder", lambda self, n, own=decoder: _Decoder(own(self, n), watch)
            )
        for name, part in (("_finish_warm_up", "warm-up"), ("_release_leaves", "main")):
            patch.setattr(rillet.step, name, within(part, getattr(rillet.step, name)))
        patch.setattr(rillet.step, "later_look", look_again)
        patch.setattr(TailHistogram, "first_look", look_first)
        patch.setattr(Cells, "draw", draw_rank)
        if quick:
            patch.setattr(TailHistogram, "judge", quick_judge)
        yield watch


def by_clock(
    layout: Layout,
    stream: list[tuple[int, float]],
    given: World | None = None,
    *,
    secret: int = 1,
    cuts: tuple[int, ...] = (),
    quick: bool = True,
) -> World:
    """Run a stream of (tick, value) by the clock, ticks being closed in the steps of ``cuts``.

    What belongs to a tick comes while an earlier one is open, or in it.
    """
    stream = sorted(stream, key=lambda pair: pair[0])
    ticks = np.array([tick for tick, _ in stream], np.int64)
    values = np.array([value for _, value in stream], np.float64)
    parts, ends, before = [], sorted({*cuts, layout.length}), 0
    with watched(layout, given, quick=quick) as watch:
        state = start(layout, Secret.for_tests(secret))
        for end in ends:
            # Early ones of the next two ticks come already now, and are held.
            now = (ticks > before) & (ticks <= min(end + 2, layout.length))
            state, releases = advance(layout, (), state, values[now], ticks[now], end)
            before = min(end + 2, layout.length)
            parts.append(releases)
        watch.world.releases, watch.world.state = Releases.join(parts), state
    return watch.world


def by_count(
    layout: Layout,
    values: list[float],
    given: World | None = None,
    *,
    secret: int = 1,
    cuts: tuple[int, ...] = (),
    quick: bool = True,
) -> World:
    """Run a stream by count, in blocks."""
    parts, begin = [], 0
    with watched(layout, given, quick=quick) as watch:
        state = start(layout, Secret.for_tests(secret))
        for end in sorted({*cuts, len(values)}):
            state, releases = step(layout, (), state, np.array(values[begin:end]), 0)
            begin = end
            parts.append(releases)
        watch.world.releases, watch.world.state = Releases.join(parts), state
    return watch.world


# --- What neighbours pay ---------------------------------------------------------------------


@dataclass
class Paid:
    """What the movements of one pair of neighbours cost, exactly."""

    epsilon: Fraction = Fraction(0)
    mu_squared: Fraction = Fraction(0)
    by_label: dict[str, Fraction] = field(default_factory=dict)

    def add(self, label: str, law: str, amount: Fraction) -> None:
        self.by_label[label] = self.by_label.get(label, Fraction(0)) + amount
        if law == "gaussian":
            self.mu_squared += amount
        else:
            self.epsilon += amount


def paid(layout: Layout, one: World, two: World) -> Paid:
    """What the noise between two worlds with the same transcript costs."""
    assert len(one.meetings) == len(two.meetings)
    total = Paid()
    prefixes: dict[int, list[int]] = {}
    for first, second in zip(one.meetings, two.meetings, strict=True):
        if first.cells is not None:
            assert second.cells is not None
            total.add("rank", "laplace", rank_cost(first.cells, second.cells, first.budget))
            continue
        moved = [b - a for a, b in zip(first.exact, second.exact, strict=True)]
        scale, main = Fraction(first.scale), layout.main
        if first.label == "main" and isinstance(
            main.strategy, HonakerTree | RestartedTree | SignedDigitTree
        ):
            # The exact numbers are prefix sums: what moved is a leaf, and with it nodes of a tree.
            before = prefixes.setdefault(first.column, [])
            leaves = np.diff([before[-1] if before else 0, *moved]).tolist()
            numbers = range(len(before) + 1, len(before) + len(leaves) + 1)
            before += moved
            moved = [
                size
                for number, size in zip(numbers, leaves, strict=True)
                for _ in range(memberships(main.strategy, main.leaves, number) if size else 0)
            ]
        if first.law == "laplace":
            total.add(first.label, "laplace", sum(map(abs, moved)) / scale)
        else:
            total.add(first.label, "gaussian", sum(m * m for m in moved) / scale**2)
    return total


def memberships(strategy: Any, leaves: int, leaf: int) -> int:
    """Nodes of the tree behind the noise that hold a leaf, of those that are drawn at all."""
    if isinstance(strategy, SignedDigitTree):
        return strategy.shape(leaves)[1]
    if isinstance(strategy, RestartedTree):
        return int(strategy.constants(leaves)[1])
    return sum(
        (((leaf - 1) >> level) + 1) << level <= leaves for level in range(leaves.bit_length())
    )


def rank_cost(one: Cells, two: Cells, budget: Fraction) -> Fraction:
    """The largest log ratio of the chances of any grid point, rounded up a little."""
    edges = np.unique(
        np.concatenate(
            [c.exact_first for c in (one, two)]
            + [c.exact_first + c.exact_count for c in (one, two)]
        )
    )[:-1]
    chances = []
    for cells in (one, two):
        used = cells.exact_count > 0
        firsts, distances = cells.exact_first[used], cells.exact_distance[used]
        weights = weight_table(budget, int(distances.max()) + 1)
        weight = [weights[min(d, len(weights) - 1)] for d in distances.tolist()]
        total = sum(w * n for w, n in zip(weight, cells.exact_count[used].tolist(), strict=True))
        at = np.searchsorted(firsts, edges, side="right") - 1
        chances.append([Fraction(weight[i], total) for i in at.tolist()])
    ratios = [a / b for a, b in zip(*chances, strict=True)]
    largest = max(*ratios, 1 / min(ratios))
    with mpmath.workprec(200):
        found = mpmath.log(mpmath.mpf(largest.numerator) / largest.denominator)
        return Fraction(int(mpmath.ceil(mpmath.ldexp(found, 100))), 2**100)


def log_ratio(one: World, two: World) -> float:
    """Log of how much likelier the transcript is under the first stream, from the laws' tails."""
    total = mpmath.mpf(0)
    for first, second in zip(one.meetings, two.meetings, strict=True):
        assert first.cells is None
        for a, b, noisy in zip(first.exact, second.exact, first.noisy, strict=True):
            if a != b:
                p, q = (
                    lattice_probability(TAILS[first.law], first.scale, noisy - exact)
                    for exact in (a, b)
                )
                total += mpmath.log(p / q)
    return float(total)


def saturating(layout: Layout, ranges: float) -> Layout:
    """The same layout, whose ticks are full when their sum is so many times the clipping range."""
    assert layout.main is not None
    changed = replace(layout)
    changed.__dict__["largest_leaf"] = round(ranges * layout.main.steps)
    return changed


__all__ = [
    "Meeting",
    "Paid",
    "World",
    "by_clock",
    "by_count",
    "log_ratio",
    "paid",
    "quick_judge",
    "rank_cost",
    "saturating",
    "watched",
]
