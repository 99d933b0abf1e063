"""Record and replay: two neighbouring streams with the same releases, and what meets the noise.

A mechanism is private because a transcript (all noisy numbers, in order) is nearly as likely under
one stream as under its neighbour.  Here the neighbour is run on the transcript of the first stream:
its exact numbers are computed by the code under audit, and what is released is that of the first.
So the movements are those that an observer of the first stream would have to explain, with ranges
and splits that were chosen from these very releases; and everything public must come out the same.

**Privacy.** For audits and tests, on made-up streams: what is recorded is not private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final
from unittest.mock import patch

import mpmath
import numpy as np

import rillet.step
from rillet.audit.hockey_stick import smooth_delta
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.precision import precision
from rillet.privacy import Cost
from rillet.release import Releases
from rillet.statistic import Range, Setting
from rillet.step import advance, start, step
from rillet.testing.lattice import TAILS, lattice_probability
from rillet.testing.shifts import hiding_norms
from rillet.threshold import Finding, SmoothQuantile, TailHistogram, Threshold
from rillet.threshold.rank import Cells, weight_table
from rillet.threshold.smooth import Unreleased

#: Where nothing depends on which secret it is.
FIXED: Final = Secret.for_tests(1)


class Diverged(AssertionError):
    """Something public differs between neighbours although all releases are the same."""


@dataclass
class Meeting:
    """Exact numbers that meet noise.

    ``noisy`` is what was released.  ``cells`` stand for a rank that is drawn with ``budget``,
    ``unreleased`` for a quantile with its smooth sensitivity.
    """

    label: str
    exact: list[int] = field(default_factory=list)
    noisy: list[Any] = field(default_factory=list)
    law: str = ""
    scale: float = 0.0
    column: int = 0
    cells: Cells | None = None
    unreleased: Unreleased | None = None
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
        looks = [
            (look.observations, look.noisy.tolist(), look.centre, look.point)
            for look in state.looks
        ]
        decided = (state.anchor, state.ranges, state.worth, state.warm_up_units, state.cut)
        return repr((releases.t.tolist(), releases.value.tolist(), state.complete, looks, decided))


class _Watch:
    """Hooks between the exact numbers and the noise; replays ``given`` where there is one."""

    def __init__(self, layout: Layout | None, given: World | None) -> None:
        self.layout, self.world = layout, World()
        self._given = iter(given.meetings) if given is not None else None
        self.part, self.column = "", 0
        self.exact: list[int] = []
        self.budget = Fraction(0)

    def meet(self, meeting: Meeting) -> Meeting:
        """Note a meeting; returns the one whose numbers are released."""
        self.world.meetings.append(meeting)
        if self._given is None:
            return meeting
        released = next(self._given, None)
        kind = (meeting.label, meeting.law, meeting.scale, len(meeting.exact))
        if released is None or kind != (
            *(released.label, released.law, released.scale),
            len(released.exact),
        ):
            raise Diverged(f"{meeting.label} draws other noise on a neighbour")
        meeting.noisy = released.noisy
        return released


class _Encoder:
    def __init__(self, own: Any, watch: _Watch) -> None:
        self._own, self._watch = own, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def encode(self, state: Any, first: int, exact_leaves: Any) -> Any:
        following, exact_nodes = self._own.encode(state, first, exact_leaves)
        if exact_nodes.dtype != np.int64:
            raise Diverged(f"nodes are {exact_nodes.dtype}: expected integers left of the noise")
        self._watch.exact = exact_nodes.tolist()
        return following, exact_nodes


class _Decoder(_Encoder):
    def decode(self, state: Any, first: int, noisy: Any) -> Any:
        watch = self._watch
        assert watch.layout is not None
        if noisy.dtype != np.int64:
            raise Diverged(f"noisy nodes are {noisy.dtype}: expected integer noise")
        mechanism = watch.layout.warm_up if watch.part == "warm-up" else watch.layout.main
        assert mechanism is not None
        law, scale = mechanism.strategy.law, mechanism.scale
        released = watch.meet(
            Meeting(watch.part, watch.exact, noisy.tolist(), law, scale, watch.column)
        )
        watch.column += 1
        return self._own.decode(state, first, np.array(released.noisy, np.int64))


def quick_judge(self: Any, bounds: Range, looks: Any, _: Any, outlook: Any) -> Finding:
    """A range that depends on everything that a look says: as a judge, only much faster."""
    seen = sum(int(np.dot(look.noisy, np.arange(len(look.noisy)) % 7)) for look in looks)
    seen += sum(look.observations + round(1000 * (look.centre or 0.0)) for look in looks)
    seen += outlook.length + 3 * outlook.until + 5 * outlook.after
    width = bounds.width * (0.3 + 0.4 * (seen % 97) / 97)
    lower = bounds.lower + (0.2 * bounds.width if self.two_sided else 0.0)
    return Finding(Range(lower, lower + width), 0.01 * width, 0.001 * width, 0.02)


@contextmanager
def watched(
    layout: Layout | None, given: World | None = None, *, quick: bool = True
) -> Iterator[_Watch]:
    """Hook into everything that meets noise; ``quick`` puts :func:`quick_judge` in place."""
    watch = _Watch(layout, given)

    def within(part: str, original: Callable[..., Any]) -> Callable[..., Any]:
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
        return int(watch.meet(Meeting("rank", [], drawn, cells=self, budget=budget)).noisy[0])

    def draw_smooth(self: Any, unreleased: Unreleased, *more: Any) -> Range:
        drawn = [smooth(self, unreleased, *more)]
        meeting = Meeting("smooth", [], drawn, self.law, unreleased=unreleased)
        meeting.budget = watch.budget
        found: Range = watch.meet(meeting).noisy[0]
        return found

    def prepare(self: Any, raw_values: Any, bounds: Range, budget: Fraction, delta: float) -> Any:
        watch.budget = budget
        return prepared(self, raw_values, bounds, budget, delta)

    later, first = rillet.step.later_look, TailHistogram.first_look
    rank, smooth, prepared = Cells.draw, SmoothQuantile.draw, SmoothQuantile.prepare
    parts = [] if layout is None else [layout.main, layout.warm_up]
    with ExitStack() as stack:

        def put(owner: Any, name: str, stand_in: Any) -> None:
            stack.enter_context(patch.object(owner, name, stand_in))

        for kind in {type(part.strategy) for part in parts if part is not None}:
            encoder, decoder = kind.encoder, kind.decoder
            put(kind, "encoder", lambda self, n, own=encoder: _Encoder(own(self, n), watch))
            put(kind, "decoder", lambda self, n, own=decoder: _Decoder(own(self, n), watch))
        for name, part in (("_finish_warm_up", "warm-up"), ("_release_leaves", "main")):
            put(rillet.step, name, within(part, getattr(rillet.step, name)))
        put(rillet.step, "later_look", look_again)
        put(TailHistogram, "first_look", look_first)
        put(Cells, "draw", draw_rank)
        put(SmoothQuantile, "prepare", prepare)
        put(SmoothQuantile, "draw", draw_smooth)
        if quick:
            put(TailHistogram, "judge", quick_judge)
        yield watch


def by_clock(
    layout: Layout,
    stream: Sequence[tuple[int, float]],
    given: World | None = None,
    *,
    secret: Secret = FIXED,
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
        state = start(layout, secret)
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
    values: Sequence[float],
    given: World | None = None,
    *,
    secret: Secret = FIXED,
    cuts: tuple[int, ...] = (),
    quick: bool = True,
) -> World:
    """Run a stream by count, in blocks."""
    parts, begin = [], 0
    with watched(layout, given, quick=quick) as watch:
        state = start(layout, secret)
        for end in sorted({*cuts, len(values)}):
            state, releases = step(layout, (), state, np.array(values[begin:end]), 0)
            begin = end
            parts.append(releases)
        watch.world.releases, watch.world.state = Releases.join(parts), state
    return watch.world


def looked(
    threshold: Threshold,
    values: Sequence[float],
    bounds: Range,
    budget: Fraction,
    delta: float,
    setting: Setting,
    given: World | None = None,
    *,
    secret: Secret = FIXED,
) -> World:
    """The first look of a threshold alone, by which it learns a range."""
    with watched(None, given) as watch:
        raw_values = np.array(values, np.float64)
        watch.world.state = threshold.measure(raw_values, bounds, budget, delta, secret, setting)
    return watch.world


# --- What neighbours pay ---------------------------------------------------------------------


@dataclass
class Paid:
    """What the movements of one pair of neighbours cost, exactly."""

    epsilon: Fraction = Fraction(0)
    mu_squared: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    by_label: dict[str, Fraction] = field(default_factory=dict)

    def add(self, label: str, law: str, amount: Fraction) -> None:
        """Add what one meeting costs: ε, or μ² where the noise is Gaussian."""
        self.by_label[label] = self.by_label.get(label, Fraction(0)) + amount
        if law == "gaussian":
            self.mu_squared += amount
        else:
            self.epsilon += amount

    @property
    def cost(self) -> Cost:
        """All of it, as charges have it."""
        return Cost(epsilon=self.epsilon, delta=self.delta, mu_squared=self.mu_squared)


def paid(layout: Layout | None, one: World, two: World) -> Paid:
    """What the noise between two worlds with the same transcript costs.

    Memberships, column norms and Gram sums are all here: nodes are moved by the encoder itself.
    """
    if len(one.meetings) != len(two.meetings):
        raise Diverged("a neighbour meets noise more often")
    total = Paid()
    prefixes: dict[int, list[int]] = {}
    for first, second in zip(one.meetings, two.meetings, strict=True):
        if first.cells is not None:
            assert second.cells is not None
            total.add("rank", "laplace", rank_cost(first.cells, second.cells, first.budget))
            continue
        if first.unreleased is not None:
            assert second.unreleased is not None
            if first.unreleased != second.unreleased:
                pair, epsilon = (first.unreleased, second.unreleased), float(first.budget)
                total.add("smooth", "laplace", first.budget)
                total.delta += Fraction(smooth_delta(first.law, *pair, epsilon))
            continue
        moved = [b - a for a, b in zip(first.exact, second.exact, strict=True)]
        scale, power = Fraction(first.scale), 1 if first.law == "laplace" else 2
        norms = None
        if first.label == "main":
            assert layout is not None and layout.main is not None
            norms = hiding_norms(layout.main.strategy, layout.main.leaves)
        amount = Fraction(sum(abs(m) ** power for m in moved))
        if norms is not None:
            # The exact numbers are prefix sums: what moved is a leaf, and with it nodes of a tree.
            before = prefixes.setdefault(first.column, [])
            leaves = np.diff([before[-1] if before else 0, *moved]).tolist()
            of_leaves = norms[len(before) : len(before) + len(leaves)]
            before += moved
            sizes = (abs(size) ** power for size in leaves)
            amount = sum(
                (norm * size for norm, size in zip(of_leaves, sizes, strict=True)), Fraction(0)
            )
        total.add(first.label, first.law, amount / scale**power)
    return total


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
    with precision(200) as mp:
        found = mp.log(mp.mpf(largest.numerator) / largest.denominator)
        return Fraction(int(mp.ceil(mp.ldexp(found, 100))), 2**100)


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
