"""Streams of many keys that tick together: arrays with a row for each key.

By the clock all keys are at the same tick.  So one step advances them all in a few array
operations, page after page of keys: the same arithmetic as :mod:`rillet.step`, key by key.  Keys
learn their clipping ranges together, in groups, from one look at all that their keys had; a key
whose released counts say that it has enough for that becomes a group of its own.

Noise is a function of the fleet's secret and of an address: at each tick the secret moves on, one
way, and a key's draws are those at its number.  So nothing has to be drawn ahead, and what is kept
between two ticks holds no key of a tick that is over.

**Privacy.** Touches raw data.  Each observation enters one key and one group's counts; it is
charged what ``layout`` says of its segment, once.  All that leaves is noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rillet.errors import StateError
from rillet.gather.grid import LARGEST_SUM, Grids
from rillet.layout import COUNT_SHARES, Layout, Margins, Segment, Worth, nearest_share
from rillet.levels import Added, Tree
from rillet.noise import FloatArray, IntArray, LatticeNoise, NoiseSource, Secret
from rillet.release import Release, Releases
from rillet.statistic import Leaf, Margin, Range, Units
from rillet.step import (
    Anchor,
    counted,
    filled,
    first_look,
    later_look,
    look_noise,
    no_releases,
    ranges,
    read,
    removed_by,
    rows_again,
    times_of,
    values_of,
)
from rillet.strategy import Mechanism
from rillet.strategy.base import State
from rillet.threshold import Look


class Whole:
    """What changes in place: from the beginning of a block until it is kept, nothing may be shown.

    **Privacy.** A block that was cut short, or not written, may be given again, and with other
    values: what it released must not be seen, and what it added must not count twice.
    """

    _whole = True

    def check_whole(self) -> None:
        """Refuse to go on after a block that was not kept."""
        if not self._whole:
            raise StateError(
                "state: the last block was interrupted or could not be written, so memory is ahead "
                "of what was kept; open the state again: it goes on where it stopped"
            )


#: Keys in a page: their arrays fit the second-level cache one at a time.
PAGE: Final = 2**14
#: Contributions are worked out for so many observations at a time.
_AT_A_TIME: Final = 2**16
_SHARES: Final = len(COUNT_SHARES)
#: Keys that may have a range of their own: their counts are written with each block.
MOST_OWN_RANGES: Final = 1000
#: The released count that says that a key has enough data may be too high by so many deviations.
_DOUBT: Final = 2.0


class Found(NamedTuple):
    """What was learned at one time, for each group: public."""

    lower: FloatArray
    upper: FloatArray
    removed_each: FloatArray
    clipped_share: FloatArray
    margin_below: FloatArray
    margin_above: FloatArray
    margin_variance: FloatArray

    def margin_of(self, group: IntArray) -> Margin:
        """How far clipping is off in each key, by its group."""
        margin = self.margin_below, self.margin_above, self.margin_variance
        return Margin(*(each[group] for each in margin))

    def range_of(self, group: IntArray) -> Range:
        """The clipping range of each key, by its group."""
        return ranges(self.lower[group], self.upper[group])

    def with_more(self, parents: list[int]) -> Found:
        """The same with further groups, which had the ranges of these until now."""
        return Found(*(np.append(each, each[parents]) for each in self))


@dataclass
class Common:
    """What all keys have in common.  Holds unreleased data: protect it as the data themselves.

    ``secret`` is that of the next tick.  ``raw_buffer`` are the values of the warm-up with their
    keys, ``raw_held`` those of ticks that are not open yet, with keys and ticks; ``exact_counts``
    are the counts of each group's next look, around its own of the ``centres``.  ``looks`` and
    ``ranges`` are those of each group, and ``found`` what was learned after the warm-up and after
    each segment.  ``own`` are the keys that have become groups of their own, behind the declared.
    """

    secret: Secret = field(repr=False)
    t: int = 0
    raw_buffer: list[tuple[IntArray, FloatArray]] = field(default_factory=list, repr=False)
    raw_held: tuple[IntArray, FloatArray, IntArray] | None = field(default=None, repr=False)
    exact_counts: IntArray | None = field(default=None, repr=False)
    looks: list[tuple[Look, ...]] = field(default_factory=list, repr=False)
    ranges: list[tuple[Range, ...]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    centres: list[float | None] = field(default_factory=list)
    own: list[int] = field(default_factory=list)


@dataclass
class Page:
    """Some keys in a row: from number ``first`` on.  Holds unreleased data.

    ``exact_partial`` are the leaves of the open tick.  The anchor of each key is in ``sums``,
    ``prefixes`` and ``removed``, all after ``after`` ticks.  ``shares`` says for each segment,
    beginning after leaf ``begins``, which share of the budget counting has in each key.  ``before``
    are the running readings at the last leaves of a window, by the number of the leaf.  ``latest``
    are the numbers of the last release.

    Keys that were added later have come after ``added_after`` ticks, and count their leaves from
    there; their noise has the ``name`` of what added them.
    """

    first: int
    group: IntArray
    exact_partial: list[IntArray]
    added_after: int = 0
    name: str = ""
    t: int = 0
    after: int = 0
    segment: int = -1
    begins: list[int] = field(default_factory=list)
    shares: list[NDArray[np.uint8]] = field(default_factory=list)
    sums: list[FloatArray] = field(default_factory=list)
    prefixes: list[FloatArray] = field(default_factory=list)
    removed: FloatArray = field(default_factory=lambda: np.zeros(0))
    encoders: list[State] = field(default_factory=list, repr=False)
    decoders: list[State] = field(default_factory=list, repr=False)
    processes: list[State] = field(default_factory=list, repr=False)
    before: Any = field(default=None, repr=False)
    latest: dict[str, FloatArray] = field(default_factory=dict, repr=False)
    #: What lattice units are worth now: derived.
    units: Units = ()

    def __len__(self) -> int:
        return len(self.group)

    def leaf_of(self, layout: Layout, t: int) -> int:
        """The leaf of these keys that a tick is."""
        return layout.leaf_of(t) - max(0, layout.leaf_of(self.added_after))

    def warmed_up(self, layout: Layout) -> bool:
        """Whether these keys were there in a warm-up whose sums were released."""
        return layout.warm_up is not None and self.added_after < layout.lag

    def with_units(self, layout: Layout, found: list[Found]) -> Page:
        """The same with what is derived."""
        if self.begins:
            self.units = _units(layout, self, len(self.begins) - 1, found)
        return self


class Closed(NamedTuple):
    """A tick of a page as it was closed: exact leaves and noisy nodes, by column.

    The warm-up is closed with noisy nodes alone.
    """

    exact_leaves: list[IntArray]
    noisy: list[IntArray]


class Fleet(Whole):
    """The streams of a plan by the clock, all keys at once.

    Totals are further streams behind those of the keys, and come with them in ``tree``.  ``pages``
    gives the pages in order; what it gives is changed in place.  ``offset`` is the number of the
    first key among those of the plan.
    """

    def __init__(
        self,
        layout: Layout,
        tree: Tree,
        common: Common,
        pages: list[Page],
        offset: int = 0,
    ) -> None:
        assert layout.fleet
        self.offset = offset
        self.layout, self.tree, self.common, self.pages = layout, tree, common, pages
        self._note_groups()
        self._firsts = np.array([first for first, *_ in spans(tree)])
        #: The last sequence number of each key that was absorbed.
        self.sequence = np.full(len(tree), -1)
        #: What happened since the last commit, by page.
        self.closed: dict[int, list[Closed]] = {}
        self.touched: set[int] = set()

    @classmethod
    def begin(
        cls,
        layout: Layout,
        tree: Tree,
        secret: Secret,
        offset: int = 0,
    ) -> Fleet:
        """All keys and totals at their beginning."""
        pages = [
            new_page(layout, first, tree.group_of[first : first + count])
            for first, count, *_ in spans(tree)
        ]
        fleet = cls(layout, tree, Common(secret), pages, offset)
        if layout.declared_range is not None:
            declared = layout.declared_range.lower, layout.declared_range.upper, 0.0, np.nan
            lower, upper, nothing, unknown = (np.full(fleet.groups, one) for one in declared)
            off = layout.margin((), 0, ranges(lower, upper))
            fleet.common.found.append(Found(lower, upper, nothing, unknown, *off[:2], nothing))
            fleet._begin_main()
            for page in pages:
                begin_main(layout, page, fleet.common.found, ())
        return fleet

    def amended(self, layout: Layout, tree: Tree, name: str) -> Fleet:
        """The same with keys that were added, which begin with the open tick, or another promise.

        **Privacy.** Nothing is drawn, and keys that are added change nothing of the others.  With
        another promise noise goes on under the ``name`` of the amendment: it has nothing to do with
        what a copy of the state would draw that was not amended.
        """
        common = self.common
        if layout.later != self.layout.later:
            common.secret = common.secret.derive("amended", name)
        fleet = Fleet(layout, tree, common, self.pages)
        fleet.sequence[: len(self.sequence)] = self.sequence
        for first, count, after, own_name in list(spans(tree))[len(self.pages) :]:
            page = new_page(layout, first, tree.group_of[first : first + count])
            page.added_after, page.name, page.t = after, own_name, common.t
            if common.found:
                page.segment = len(common.found) - 2
                begin_main(layout, page, common.found, ())
            fleet.pages.append(page)
        return fleet

    def _note_groups(self) -> None:
        """Which group each key is in, and how many are in each."""
        tree, own = self.tree, self.common.own
        declared, self.group_of = len(tree.groups), tree.group_of.copy()
        self.groups = declared + len(own)
        self.group_of[own] = np.arange(declared, self.groups)
        self._in_group = np.bincount(self.group_of[: len(tree.keys)], minlength=self.groups)

    # --- absorbing -------------------------------------------------------------------------------

    def advance(
        self, key_of: IntArray, raw_values: FloatArray, tick_of: IntArray, until: int
    ) -> Releases:
        """Absorb values of ticks and close all ticks up to ``until``, empty or not.

        As :func:`rillet.step.advance`, for all keys; ``tick_of`` has no closed tick.  Releases come
        tick after tick, in the order of the keys.
        """
        self.check_whole()
        self._whole = False
        common = self.common
        raw_values = filled(self.layout, raw_values)
        if common.raw_held is not None:
            held_key, raw_held, held_tick = common.raw_held
            key_of = np.concatenate([held_key, key_of])
            raw_values = np.concatenate([raw_held, raw_values])
            tick_of = np.concatenate([held_tick, tick_of])
            common.raw_held = None
        if len(tick_of) and not (tick_of[1:] >= tick_of[:-1]).all():
            order = np.argsort(tick_of, kind="stable")
            key_of, raw_values, tick_of = key_of[order], raw_values[order], tick_of[order]
        parts, done = [], 0
        while True:
            here = int(np.searchsorted(tick_of, common.t + 1, side="right"))
            self._add(key_of[done:here], raw_values[done:here])
            done = here
            if common.t == until:
                break
            parts.append(self._close())
        if done < len(tick_of):
            common.raw_held = key_of[done:].copy(), raw_values[done:].copy(), tick_of[done:].copy()
        parts = [part for part in parts if len(part)]
        return Releases.join(parts) if parts else no_releases(self.layout)

    def _add(self, key_of: IntArray, raw_values: FloatArray) -> None:
        """Take values into the open tick.  **Privacy.** Touches raw data."""
        common, layout = self.common, self.layout
        if not len(key_of):
            return
        if common.t < layout.lag:
            common.raw_buffer.append((key_of.copy(), raw_values.copy()))
            return
        if common.exact_counts is not None:
            self._count(common.exact_counts, key_of, raw_values)
        for own_of in (key_of, *(total_of[key_of] for total_of in self.tree.total_of)):
            for number, rows, raw_part in self._by_page(own_of, raw_values):
                page = self.pages[number]
                add_up(layout.leaf, self._grids(page, rows), page.exact_partial, rows, raw_part)
                self.touched.add(number)

    def _by_page(
        self, key_of: IntArray, raw_values: FloatArray
    ) -> Iterator[tuple[int, IntArray, FloatArray]]:
        """For each page that occurs, its number, rows and values, in order."""
        if len(self.pages) == 1 or not len(key_of):
            yield 0, key_of, raw_values
            return
        page_of = self._page_of(key_of)
        if not (page_of[1:] >= page_of[:-1]).all():
            order = np.argsort(page_of, kind="stable")
            key_of, raw_values, page_of = key_of[order], raw_values[order], page_of[order]
        starts = np.flatnonzero(np.diff(page_of, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(key_of)], strict=True):
            number = int(page_of[start])
            yield number, key_of[start:end] - self.pages[number].first, raw_values[start:end]

    def _page_of(self, key_of: Any) -> Any:
        """The number of the page that keys are in."""
        if not self.tree.roster.added:
            return key_of // PAGE
        return np.searchsorted(self._firsts, key_of, side="right") - 1

    def _grids(self, page: Page, rows: IntArray) -> Callable[[slice], Grids]:
        """The lattices of some values, by the rows of their keys."""
        found, layout = self.common.found[page.segment], self.layout
        steps, count = _cuts(layout, page, page.t + 1, page.shares[-1])

        def of(part: slice) -> Grids:
            own = rows[part]
            group = page.group[own]
            return Grids(found.range_of(group), steps[own], count[own])

        return of

    def _count(self, exact_counts: IntArray, key_of: IntArray, raw_values: FloatArray) -> None:
        """Add values to the counts of their groups' next looks.  **Privacy.** Touches raw data."""
        layout, centres = self.layout, self.common.centres
        for group, raw_own in self._by_group(key_of, raw_values):
            exact_counts[group] += layout.threshold.count(
                counted(layout, raw_own), layout.bounds, centres[group]
            )

    def _by_group(
        self, key_of: IntArray, raw_values: FloatArray
    ) -> Iterator[tuple[int, FloatArray]]:
        """For each group that occurs, its number and values, in order."""
        if self.groups == 1:
            yield 0, raw_values
            return
        group_of = self.group_of[key_of]
        order = np.argsort(group_of, kind="stable")
        group_of, raw_values = group_of[order], raw_values[order]
        starts = np.flatnonzero(np.diff(group_of, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(key_of)], strict=True):
            yield int(group_of[start]), raw_values[start:end]

    def _no_counts(self, segment: Segment) -> IntArray | None:
        """Counts for the look at the end of a segment, if there is one."""
        if segment.look is None:
            return None
        layout = self.layout
        size = len(layout.threshold.count(np.empty(0), layout.bounds, self.common.centres[0]))
        return np.zeros((self.groups, size), np.int64)

    # --- closing ticks ---------------------------------------------------------------------------

    def _close(self) -> Releases:
        """Close the open tick of every key; returns what it releases."""
        layout, common = self.layout, self.common
        common.t += 1
        if common.t < layout.lag:
            return no_releases(layout)
        table = Table(layout, self.tree, common.t)
        if common.t == layout.lag:
            self._finish_warm_up(table)
            return table.releases()
        segment = layout.segment_at(common.t)
        if common.t == segment.last and common.t < layout.length:
            self._learn_again(segment)
        for number, page in enumerate(self.pages):
            exact_leaves = leaves_of(layout.largest_leaf, page)
            first, processes = page.first + self.offset, page.processes
            secret, leaf = self._secret_of(page), page.leaf_of(layout, common.t)
            noise = draw(layout.main, secret, "main", first, len(page), processes, leaf)
            closed = close_tick(layout, page, exact_leaves, noise, table, common.found)
            self.closed.setdefault(number, []).append(closed)
        common.secret = common.secret.ratchet()
        if common.t == segment.last and common.t < layout.length:
            self._part_ways(layout.segment_at(common.t + 1))
        return table.releases()

    def _secret_of(self, page: Page) -> Secret:
        """Where the noise of a page comes from in this tick."""
        secret = self.common.secret
        return secret.derive("added", page.name) if page.name else secret

    def _finish_warm_up(self, table: Table) -> None:
        """Learn the ranges, release the sums of the warm-up, forget its values.

        **Privacy.** Costs each observation of the warm-up the threshold's cost plus its sum's.
        """
        layout, common = self.layout, self.common
        key_of = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in common.raw_buffer)])
        raw_values = np.concatenate([np.empty(0), *(values for _, values in common.raw_buffer)])
        found = []
        for group in range(self.groups):
            raw_own = raw_values[self.group_of[key_of] == group]
            secret = common.secret.derive("group", group)
            look = first_look(layout, secret, counted(layout, raw_own))
            common.looks.append(())
            common.ranges.append(())
            common.centres.append(look.centre)
            rate = look.observations / layout.lag / int(self._in_group[group])
            found.append(self._judge(group, look, layout.lag, rate))
        common.found.append(Found(*np.array(found).T))
        common.raw_buffer = []
        mechanism, leaf = layout.warm_up, layout.warm_up_leaf
        if mechanism is not None:
            learned = common.found[0]
            for own_of in (key_of, *(total_of[key_of] for total_of in self.tree.total_of)):
                for number, rows, raw_part in self._by_page(own_of, raw_values):
                    page = self.pages[number]
                    cuts = _warm_up_cuts(layout, page)

                    def grids(
                        part: slice, page: Page = page, rows: IntArray = rows, cuts: Any = cuts
                    ) -> Grids:
                        own = rows[part]
                        ends = learned.range_of(page.group[own])
                        return Grids(ends, *(cut[own] if len(cut) > 1 else cut for cut in cuts))

                    add_up(leaf, grids, page.exact_partial, rows, raw_part)
        for number, page in enumerate(self.pages):
            warm_up: list[IntArray] = []
            if mechanism is not None:
                exact_sums, secret = leaves_of(LARGEST_SUM, page), self._secret_of(page)
                warm_up = _warm_up_nodes(layout, secret, page, exact_sums, self.offset)
            self.closed[number] = [Closed([], warm_up)]
            page.t = layout.lag
            begin_main(layout, page, common.found, warm_up, table)
        self._begin_main()

    def _begin_main(self) -> None:
        """Leave the key of the warm-up behind."""
        layout, common = self.layout, self.common
        common.secret = common.secret.ratchet()
        if layout.segments:
            common.exact_counts = self._no_counts(layout.segments[0])

    def _learn_again(self, segment: Segment) -> None:
        """At the end of a segment, look at the counts of each group and learn its range again.

        **Privacy.** Costs the observations of the segment what the look says.
        """
        layout, common, noise = self.layout, self.common, segment.look
        if noise is None:
            common.found.append(common.found[-1])
            return
        assert common.exact_counts is not None
        found, threshold = [], layout.threshold
        for group, exact_counts in enumerate(common.exact_counts):
            if not self._in_group[group]:  # all its keys have left it
                found.append(tuple(each[group] for each in common.found[-1]))
                continue
            secret = common.secret.derive("group", group)
            draws = look_noise(noise, secret, common.t, len(exact_counts))
            look = later_look(noise, exact_counts, draws, common.centres[group])
            look = replace(look, observations=threshold.observed(look.noisy))
            ticks = segment.last - segment.first + 1
            rate = look.observations / ticks / int(self._in_group[group])
            found.append(self._judge(group, look, common.t, rate))
            if look.centre is not None and look.centre == self._centre_of_parent(group):
                # Its own level is known from now on, and is what later looks count around.
                common.centres[group] = threshold.centre_of(layout.bounds, look)
                common.looks[group] = ()
        common.found.append(Found(*np.array(found).T))

    def _centre_of_parent(self, group: int) -> float | None:
        """What a key that is a group of its own was counted around before; None for others."""
        declared = len(self.tree.groups)
        if group < declared:
            return None
        parent = int(self.tree.group_of[self.common.own[group - declared]])
        return self.common.centres[parent]

    def _part_ways(self, segment: Segment) -> None:
        """Before a segment: keys with enough data for a look of their own become groups.

        **Privacy.** Post-processing of released counts.  An observation is still in one look: in
        that of its key instead of the one of its group.
        """
        common, layout = self.common, self.layout
        room = MOST_OWN_RANGES - len(common.own)
        enough = layout.enough_to_learn_alone(segment)
        if enough is not None:
            expected = np.concatenate([_expected(layout, page, segment) for page in self.pages])
            able = (expected >= enough) & (self._in_group[self.group_of] > 1)
            most = np.argsort(-expected, kind="stable")
            new = np.sort(most[able[most]][:room])
            parents = self.group_of[new].tolist()
            common.own += new.tolist()
            for parent in parents:
                common.looks.append(())
                common.ranges.append(common.ranges[parent])
                common.centres.append(common.centres[parent])
            if parents:
                common.found = [each.with_more(parents) for each in common.found]
                self._note_groups()
                for page in self.pages:
                    page.group = self.group_of[page.first : page.first + len(page)]
        common.exact_counts = self._no_counts(segment)

    def _judge(self, group: int, look: Look, t: int, rate: float) -> tuple[float, ...]:
        """The next range of a group.  **Privacy.** Post-processing of released looks."""
        layout, common = self.layout, self.common
        looks, ranges = (*common.looks[group], look), common.ranges[group]
        finding = layout.threshold.judge(layout.bounds, looks, ranges, layout.outlook(t, rate))
        ranges = (*ranges, finding.range)
        if layout.memory.forgets:
            kept = layout.threshold.looks_kept(looks)
            looks, ranges = looks[-kept:], ranges[-kept:]
        common.looks[group], common.ranges[group] = looks, ranges
        each = finding.removed_each if layout.statistic.clips else 0.0
        learned = finding.range
        return learned.lower, learned.upper, each, finding.clipped_share, *finding.margin_each

    def note_sequence(self, numbers: Mapping[int, int]) -> None:
        """The last sequence number of some keys that was absorbed."""
        for index, number in numbers.items():
            self.sequence[index] = number
            self.touched.add(int(self._page_of(index)))

    @property
    def bytes_of_pages(self) -> int:
        """What all pages take, about."""
        page = self.pages[0]
        parts = [
            part for states in (page.encoders, page.decoders) for own in states for part in own
        ]
        each = sum(part.nbytes for part in parts) // len(page) + 32 * len(page.exact_partial)
        return (each + 8 * len(page.latest)) * len(self.tree)

    def forget_changes(self) -> None:
        """What happened has been committed."""
        self.closed, self.touched = {}, set()
        self._whole = True

    # --- reading ---------------------------------------------------------------------------------

    def latest(self, index: int) -> Release | None:
        """The last release of a key."""
        self.check_whole()
        page = self.pages[int(self._page_of(index))]
        if not page.latest:
            return None
        layout, width = self.layout, len(self.layout.statistic.names)
        own = slice((index - page.first) * width, (index - page.first + 1) * width)
        rows = rows_again(layout, {number: one[own] for number, one in page.latest.items()})
        (at,) = times_of(layout, np.array([page.t]), 0).tolist()
        return Release(self.tree.all_keys[index], page.t, at, rows)


def _expected(layout: Layout, page: Page, segment: Segment) -> FloatArray:
    """How many observations each key will have in a segment, by what was released."""
    width = len(layout.statistic.names)
    sure = page.latest["count"] - _DOUBT * page.latest["count_noise_std"]
    after = max(layout.lag, page.added_after) if page.added_after else None
    ticks = float(layout.remembered(page.t, after))
    expected = np.fmax.reduce(sure.reshape(-1, width), axis=1) * (
        (segment.last - segment.first + 1) / ticks
    )
    return np.where(np.isnan(expected), -np.inf, expected)


# --- one page ------------------------------------------------------------------------------------


def spans(tree: Tree) -> Iterator[Added]:
    """The keys of each page: those of the plan, then those that were added together."""
    added = tree.roster.added
    at_first = added[0].first if added else len(tree)
    for first, count, after, name in (Added(0, at_first, 0, ""), *added):
        for begin in range(first, first + count, PAGE):
            yield Added(begin, min(PAGE, first + count - begin), after, name)


def new_page(layout: Layout, first: int, group: IntArray) -> Page:
    """Keys at their beginning."""
    return Page(first, group, [np.zeros(len(group), np.int64) for _ in range(layout.leaf.width)])


def rows_of_state(state: State, count: int) -> State:
    """The same state for each of many keys, one number of all keys beside the next."""
    return tuple(
        np.asfortranarray(np.broadcast_to(part, (count, *part.shape)).copy(order="F"))
        for part in state
    )


def add_up(
    leaf: Leaf,
    grids: Callable[[slice], Grids],
    exact_sums: list[IntArray],
    rows: IntArray,
    raw_values: FloatArray,
) -> None:
    """Add what values contribute to the sums of their keys.  **Privacy.** Touches raw data."""
    for start in range(0, len(rows), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        exact_units = leaf.contribute(raw_values[part], grids(part))
        exact_columns = [exact_units] if exact_units.ndim == 1 else list(exact_units.T)
        for exact_sum, exact_column in zip(exact_sums, exact_columns, strict=True):
            np.add.at(exact_sum, rows[part], exact_column)
            # Whatever comes in one tick, 64 bits hold it: far beyond where a leaf saturates.
            np.clip(exact_sum, -2 * LARGEST_SUM, 2 * LARGEST_SUM, out=exact_sum)


def leaves_of(most: int, page: Page) -> list[IntArray]:
    """The leaves of the open tick, which is begun anew.  **Privacy.** A leaf saturates."""
    exact_leaves = [np.clip(partial, -most, most) for partial in page.exact_partial]
    for partial in page.exact_partial:
        partial[:] = 0
    return exact_leaves


class _Keys:
    """Draws of one tick for the keys of a page, a row for each."""

    def __init__(self, noise: LatticeNoise, first: int, count: int) -> None:
        self._noise, self._first, self._count = noise, first, count

    def draw(self, start: int, count: int) -> IntArray:
        """The draws of a key lie beside each other; which nodes they are for, the tick says."""
        found = self._noise.draw(self._first * count, self._count * count)
        return found.reshape(self._count, count)


def draw(
    mechanism: Mechanism | None,
    secret: Secret,
    purpose: str,
    first: int,
    count: int,
    processes: list[State],
    leaf: int,
) -> list[IntArray]:
    """The noise of the nodes of one leaf of so many keys, by column; ``first`` is their address."""
    assert mechanism is not None
    process, noise = mechanism.strategy.noise_process(mechanism.leaves), []
    for column, own in enumerate(processes):
        levels = mechanism.levels(secret, purpose, column=column)

        def of_keys(level: int, levels: Any = levels) -> NoiseSource:
            return _Keys(levels(level), first, count)

        processes[column], drawn = process.draw(own, of_keys, leaf, 1)
        noise.append(drawn[:, 0])
    return noise


def _warm_up_nodes(
    layout: Layout, secret: Secret, page: Page, exact_sums: list[IntArray], offset: int
) -> list[IntArray]:
    """Noisy sums of the warm-up, in lattice units, by column."""
    mechanism = layout.warm_up
    assert mechanism is not None
    strategy, leaves = mechanism.strategy, mechanism.leaves
    process = strategy.noise_process(leaves).start()
    processes = [rows_of_state(process, len(page)) for _ in exact_sums]
    first = page.first + offset
    noise = draw(mechanism, secret, "warm-up", first, len(page), processes, 1)
    encoder = strategy.encoder(leaves)
    return [
        encoder.encode_each(rows_of_state(encoder.start(), len(page)), slice(None), 1, exact)
        + drawn
        for exact, drawn in zip(exact_sums, noise, strict=True)
    ]


def begin_main(
    layout: Layout,
    page: Page,
    known: list[Found],
    warm_up: Sequence[IntArray],
    table: Table | None = None,
) -> None:
    """Release the sums of the warm-up, if there are any, and begin the main mechanism.

    **Privacy.** Post-processing of noisy nodes.
    """
    count, leaf, found = len(page), layout.warm_up_leaf, known[0]
    width, mechanism = layout.leaf.width, layout.warm_up
    if not page.warmed_up(layout):
        mechanism = None
    clipping = found.range_of(page.group)
    page.after, page.removed = page.t, np.zeros(count)
    page.prefixes = [np.zeros(count) for _ in range(width)]
    if mechanism is not None:
        grids = Grids(clipping, *_warm_up_cuts(layout, page))
        decoder = mechanism.strategy.decoder(mechanism.leaves)
        prefixes = [
            decoder.decode_each(rows_of_state(decoder.start(), count), slice(None), 1, nodes) * 1.0
            for nodes in warm_up
        ]
        units = leaf.units(grids)
        none = [0.0] * len(units)
        each = found.removed_each[page.group]
        nothing = _anchor(clipping, 0, none, [0.0] * width, 0.0, each)
        t = np.array([layout.lag])
        page.sums = read(layout, nothing, units, leaf.offsets(clipping), t, prefixes)
        sums = list(page.sums)
        for reading, counts in leaf.corrected:
            page.removed = removed_by(layout, nothing, counts, t, sums)
            sums[reading] = sums[reading] + page.removed
        page.units = units
        if table is not None:
            covariance = layout.covariances_of_warm_up(count, units)
            margins = ((0, found.margin_of(page.group)),)
            table.fill(page, sums, covariance, clipping, found.clipped_share[page.group], margins)
        latest: Sequence[FloatArray] = page.sums
    else:
        latest = ()
    if layout.main is None:
        return
    strategy, leaves = layout.main.strategy, layout.main.leaves
    page.encoders = [rows_of_state(strategy.encoder(leaves).start(), count) for _ in range(width)]
    page.decoders = [rows_of_state(strategy.decoder(leaves).start(), count) for _ in range(width)]
    page.processes = [
        rows_of_state(strategy.noise_process(leaves).start(), count) for _ in range(width)
    ]
    if not page.sums:
        page.sums = [np.zeros(count) for _ in range(layout.leaf.readings)]
    if layout.memory.window is not None:
        page.before = np.zeros((len(page.sums), count, layout.memory.window))
    _begin_segment(layout, page, known, latest)


def _cuts(
    layout: Layout, page: Page, t: int, share: NDArray[np.uint8]
) -> tuple[IntArray, IntArray]:
    """Steps of each key's lattice at a tick, and what an observation counts on it."""
    which: Any = share
    if layout.levels:
        which = share + _SHARES * layout.levels_of(page.first, len(page))
    used = np.bincount(which)
    cuts = np.zeros((len(used), 2), np.int64)
    for both in np.flatnonzero(used).tolist():
        level, number = divmod(both, _SHARES)
        own = layout.of_level(level - 1 if level else None)
        cuts[both] = own.cut(own.segment_at(t).steps, number)
    steps, count = cuts[which].T
    return np.ascontiguousarray(steps), np.ascontiguousarray(count)


def _begin_segment(
    layout: Layout, page: Page, found: list[Found], latest: Sequence[FloatArray]
) -> None:
    """Choose each key's lattice from now on; ``latest`` are the last released readings."""
    page.segment += 1
    learned = found[page.segment]
    clipping = learned.range_of(page.group)
    share = np.full(len(page), 0.5)
    if layout.leaf.splits and len(latest):
        share = layout.statistic.count_share(tuple(latest), clipping)
    page.shares.append(nearest_share(share).astype(np.uint8))
    page.begins.append(page.leaf_of(layout, page.t + 1) - 1)
    kept = len(layout.still_felt([(begin, ()) for begin in page.begins], page.begins[-1]))
    page.begins, page.shares = page.begins[-kept:], page.shares[-kept:]
    page.units = _units(layout, page, len(page.begins) - 1, found)


def _units(layout: Layout, page: Page, number: int, found: list[Found]) -> Units:
    """What lattice units are worth in the segment with this number of those still felt."""
    learned = found[page.segment - (len(page.begins) - 1 - number)]
    begin = max(layout.lag, page.added_after) + page.begins[number] + 1  # a leaf is a tick
    clipping = learned.range_of(page.group)
    return layout.leaf.units(Grids(clipping, *_cuts(layout, page, begin, page.shares[number])))


def close_tick(
    layout: Layout,
    page: Page,
    exact_leaves: list[IntArray],
    noise: list[IntArray],
    table: Table | None,
    found: list[Found],
    noisy: list[IntArray] | None = None,
) -> Closed:
    """Encode, add noise, decode, read; at the end of a segment begin the next.

    ``found`` is all that was learned so far, at the end of a segment also from that one.  ``noisy``
    are the nodes as they were released, when what happened is repeated.
    """
    mechanism, leaf = layout.main, layout.leaf
    assert mechanism is not None
    page.t += 1
    number = page.leaf_of(layout, page.t)
    encoder = mechanism.strategy.encoder(mechanism.leaves)
    decoder = mechanism.strategy.decoder(mechanism.leaves)
    nodes, prefixes = [], []
    for column, exact in enumerate(exact_leaves):
        exact_nodes = encoder.encode_each(page.encoders[column], slice(None), number, exact)
        nodes.append(exact_nodes + noise[column] if noisy is None else noisy[column])
        prefixes.append(
            decoder.decode_each(page.decoders[column], slice(None), number, nodes[column])
        )
    learned = found[page.segment]
    group = page.group
    clipping = learned.range_of(group)
    anchor = _anchor(
        clipping, page.after, page.sums, page.prefixes, page.removed, learned.removed_each[group]
    )
    t = np.array([page.t])
    last_prefixes = [prefix * 1.0 for prefix in prefixes]
    plain = read(
        layout, anchor, page.units, leaf.offsets(clipping), t, [one.copy() for one in last_prefixes]
    )
    sums = list(plain)
    for reading, counts in leaf.corrected:
        sums[reading] = sums[reading] + removed_by(layout, anchor, counts, t, sums)
    if page.before is not None:
        ring = page.before[:, :, number % page.before.shape[2]]
        sums, running = [total - past for total, past in zip(sums, ring, strict=True)], sums
        ring[:] = running
    if table is not None:
        _tell(layout, page, table, number, sums, found)
    segment = layout.segment_at(page.t)
    if page.t == segment.last and page.t < layout.length:
        if leaf.corrected:
            page.removed = removed_by(layout, anchor, leaf.corrected[0][1], t, plain)
        page.after, page.sums, page.prefixes = page.t, plain, last_prefixes
        _begin_segment(layout, page, found, sums)
    return Closed(exact_leaves, nodes)


def _tell(
    layout: Layout,
    page: Page,
    table: Table,
    number: int,
    sums: list[FloatArray],
    found: list[Found],
) -> None:
    """Release the readings at a leaf."""
    learned, group = found[page.segment], page.group
    worth: list[Worth] = [
        *((begin, _units(layout, page, at, found)) for at, begin in enumerate(page.begins[:-1])),
        (page.begins[-1], page.units),
    ]
    warm_up = _warm_up_units(layout, page, found[0])
    covariance = layout.covariances(np.array([number]), worth, warm_up)
    margins: Margins = ()
    if layout.has_margins:
        felt = zip(page.begins, found[page.segment + 1 - len(page.begins) :], strict=False)
        margins = tuple(
            (layout.lag + begin * layout.every, one.margin_of(group)) for begin, one in felt
        )
    clipping, share = learned.range_of(group), learned.clipped_share[group]
    table.fill(page, sums, covariance, clipping, share, margins)


def _anchor(
    clipping: Range, after: int, sums: list[Any], prefixes: list[Any], removed: Any, each: Any
) -> Anchor:
    """From where many keys count on."""
    return Anchor(clipping, after, tuple(sums), tuple(prefixes), removed, each)


def _warm_up_units(layout: Layout, page: Page, found: Found) -> Units:
    if not page.warmed_up(layout):
        return ()
    clipping = found.range_of(page.group)
    return layout.warm_up_leaf.units(Grids(clipping, *_warm_up_cuts(layout, page)))


def _warm_up_cuts(layout: Layout, page: Page) -> tuple[IntArray, IntArray]:
    """As :func:`_cuts`, in the warm-up: one for all keys, or for each where there are totals."""
    mechanisms = [layout.warm_up, *(level.warm_up for level in layout.levels)]
    cuts = np.array([layout.warm_up_leaf.cut(each.steps) for each in mechanisms if each], np.int64)
    if layout.levels:
        cuts = cuts[layout.levels_of(page.first, len(page))]
    steps, count = cuts.T
    return np.ascontiguousarray(steps), np.ascontiguousarray(count)


class _Readings(NamedTuple):
    """What a page released, before totals and their parts are made consistent."""

    page: Page
    sums: FloatArray
    spread: FloatArray
    clipping: Range
    clipped_share: FloatArray
    margins: Margins


class Table:
    """The releases of one tick, filled page by page; with totals, once all pages are there."""

    def __init__(self, layout: Layout, tree: Tree, t: int) -> None:
        self._layout, self._tree, self._t = layout, tree, t
        rows = len(tree) * len(layout.statistic.names)
        #: Pages that wait for the others: totals and their parts are made consistent together.
        self._waiting: list[_Readings] = []
        self._names = layout.numbers
        self._columns = {name: np.empty(rows) for name in layout.columns}
        self._filled = False

    def fill(
        self,
        page: Page,
        sums: list[FloatArray],
        covariance: Callable[[int, int], Any],
        clipping: Range,
        clipped_share: FloatArray,
        margins: Margins,
    ) -> None:
        """Take the readings of a page."""
        if not self._tree.totals:
            self._work_out(page, sums, covariance, clipping, clipped_share, margins)
            return
        count = range(len(sums))
        spread = np.empty((len(sums), len(sums), len(page)))
        for one, other in product(count, count):
            spread[one, other] = covariance(one, other)
        self._waiting.append(
            _Readings(page, np.array(sums), spread, clipping, clipped_share, margins)
        )
        if sum(len(each.page) for each in self._waiting) == len(self._tree):
            self._make_consistent()

    def _make_consistent(self) -> None:
        """Work out all pages, with totals that are the sums of their parts."""
        waiting, self._waiting = self._waiting, []
        sums, spread = self._tree.consistent(
            np.concatenate([each.sums for each in waiting], -1)[..., None],
            np.concatenate([each.spread for each in waiting], -1)[..., None],
        )
        for page, _, _, clipping, clipped_share, margins in waiting:
            own = slice(page.first, page.first + len(page))

            def covariance(one: int, other: int, own: slice = own) -> FloatArray:
                return spread[one, other, own, 0]

            own_sums = list(sums[:, own, 0])
            self._work_out(page, own_sums, covariance, clipping, clipped_share, margins)

    def _work_out(
        self,
        page: Page,
        sums: list[FloatArray],
        covariance: Callable[[int, int], Any],
        clipping: Range,
        clipped_share: FloatArray,
        margins: Margins,
    ) -> None:
        """Work out the numbers of a page, and keep them as its latest."""
        layout, count = self._layout, len(page)
        width = len(layout.statistic.names)
        part = slice(page.first * width, (page.first + count) * width)
        t = np.full(count, self._t)
        numbers = values_of(layout, t, sums, covariance, clipping, margins)
        for name in self._names:
            self._columns[name][part] = numbers[name]
        for name, column in layout.of_clipping(clipping, clipped_share).items():
            if name in self._names:
                continue
            self._columns[name][part] = np.repeat(np.broadcast_to(column, count), width)
        page.latest = {name: column[part] for name, column in self._columns.items()}
        self._filled = True

    def releases(self) -> Releases:
        """All of them."""
        layout, rows, columns = self._layout, self._tree.live_rows, self._columns
        if not self._filled:
            return no_releases(layout)
        if rows is None:
            rows = np.arange(len(self._tree))
        else:
            width = len(layout.statistic.names)
            columns = {
                name: column.reshape(-1, width)[rows].reshape(-1)
                for name, column in columns.items()
            }
        t = np.full(len(rows), self._t)
        return Releases(
            self._tree.all_keys,
            rows,
            t,
            times_of(layout, t, 0),
            layout.statistic.names,
            columns,
            **layout.common,
        )
