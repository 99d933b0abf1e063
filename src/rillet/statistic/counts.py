"""Counts of values in bins: histograms, and quantiles from cumulated counts.

Bins are fixed: by declared edges, or as equal parts of the clipping range, which is then learned
once.  A value on an edge belongs to the bin below it.

=====================  ============================  ============================================
leaf                   columns                       one unit moves it by
=====================  ============================  ============================================
histogram              κ in the column of its bin    κ; replaced, κ in two columns
quantiles, Laplace     the same; one bin needs no    the same
                       column if counts are public
quantiles, Gaussian    the square root over bins:    the norm of a column; replaced, that of the
                       rint(κ·f_k) k bins above      difference of two
=====================  ============================  ============================================

With the square root a cumulated count has ``F(b)`` times the noise of a single count, 2.4 at 64
bins, where adding up plain bins has √64 = 8 (docs/proofs/counts.md).  Norms in L1, which Laplace
noise is scaled to, favour plain bins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import fsum, inf, isfinite, isnan
from typing import Any, ClassVar, Final

import numpy as np

from rillet.errors import ParameterError
from rillet.options import option
from rillet.release import INTERVAL_KEPT, noise_deviations
from rillet.statistic.base import (
    FloatArray,
    IntArray,
    Lattice,
    Leaf,
    Range,
    Setting,
    Totals,
    Units,
    steps_of_all,
)
from rillet.statistic.running import LOST, Remembering

#: The most bins, and how many a quantile has by default.
_MOST_BINS: Final = 1024
_USUAL_BINS: Final = 128
#: The lattice on which noise is compared.
_USUAL_STEPS: Final = 2**20


# --- The private half ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Encoding:
    """The public map from a bin to the integers of its columns, and back to counts.

    ``without`` is the bin that has no column: what is in none of the others is in it, where the
    number of values is public.  ``cumulated`` readings count the values up to the end of a bin.
    """

    bins: int
    cumulated: bool
    by_root: bool
    without: int | None

    @property
    def width(self) -> int:
        return self.bins - (self.without is not None)

    @property
    def readings(self) -> int:
        """A count for each bin; up to the end of the last one are all, if that is public."""
        return self.bins - (self.without is not None)

    @cached_property
    def column_of(self) -> list[int]:
        """The column of each bin that has one, in order."""
        return [each for each in range(self.bins) if each != self.without]

    def table(self, steps: int) -> IntArray:
        """What a value adds to each column, by its bin; behind the bins, a value that is missing.

        Columns by bins.
        """
        found = np.zeros((self.width, self.bins + 1), np.int64)
        for column, each in enumerate(self.column_of):
            if self.by_root:
                found[column:, each] = _root_steps(steps, self.width - column)
            else:
                found[column, each] = steps
        return found

    def units(self, steps: int) -> Units:
        """For each reading, the worth of one lattice unit of each column."""
        readings = self.readings
        if self.by_root:
            inverse = _cumulated_inverse(steps, self.width)
            return tuple(
                tuple(inverse[reading::-1]) + (0.0,) * (self.width - reading - 1)
                for reading in range(readings)
            )
        each = 1 / steps

        def worth(reading: int, of: int) -> float:
            if not self.cumulated:
                return each * (of == reading)
            if self.without is not None and reading >= self.without:
                return -each * (of > reading)  # all but those above
            return each * (of <= reading)

        return tuple(
            tuple(worth(reading, of) for of in self.column_of) for reading in range(readings)
        )

    def offsets(self) -> tuple[float, ...]:
        """What each observation adds to a reading: where it is all but those above, one."""
        if self.without is None or self.by_root:
            return ()
        return tuple(float(reading >= self.without) for reading in range(self.bins - 1))

    def largest_move(self, *, replaced: bool) -> tuple[tuple[float, ...], bool]:
        """The sizes of a movement that no other exceeds, and whether integers round them.

        Per step.  No sum of the largest ``k`` sizes of any movement is more than that of the first
        ``k`` here, whatever ``k``: so no norm of it is either.
        """
        if not self.by_root:
            moved = min(1 + replaced, self.width)
            return (1.0,) * moved + (0.0,) * (self.width - moved), False
        return _largest_of_root(self.width, replaced), True


def _root(count: int) -> FloatArray:
    """Coefficients of (1 − z)^(−1/2), whose square adds up."""
    k = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod(1 - 0.5 / k)])


def _root_steps(steps: int, count: int) -> IntArray:
    return np.rint(steps * _root(count)).astype(np.int64)


@lru_cache(maxsize=64)
def _cumulated_inverse(steps: int, width: int) -> tuple[float, ...]:
    """Coefficients of 1/((1 − z)·m(z)), ``m`` the integers of the root: exact up to floats."""
    exact = _root_steps(steps, width).tolist()
    inverse: list[float] = []
    for k in range(width):
        known = fsum(exact[j] * inverse[k - j] for j in range(1, k + 1))
        inverse.append(((k == 0) - known) / exact[0])
    return tuple(np.cumsum(inverse).tolist())


@lru_cache(maxsize=64)
def _largest_of_root(width: int, replaced: bool) -> tuple[float, ...]:
    """As :meth:`_Encoding.largest_move`: partial sums of sorted sizes, the largest of any movement.

    A column of the root is the first one moved down and cut off, and so is the difference of two,
    as far apart: those that involve the first column exceed all others.
    """
    first = _root(width)
    if not replaced:
        return tuple(first.tolist())
    others = (np.append(np.zeros(d), first[: width - d]) for d in range(1, width + 1))
    sizes = -np.sort([-np.abs(first - other) for other in others], axis=1)
    largest = np.diff(np.cumsum(sizes, axis=1).max(axis=0), prepend=0.0)
    return tuple((-np.sort(-largest)).tolist())


class _Bins(Leaf):
    """What a value adds to the columns of bins.

    **Privacy.** A table of integers, which is public, looked up by the value's bin: a map of each
    observation alone, and total.  A missing value adds nothing where it is left out, and counts in
    the middle of the range where none is expected.
    """

    corrected = ()

    def __init__(self, edges: _Edges, setting: Setting, *, cumulated: bool) -> None:
        self._edges, self._setting = edges, setting
        by_root = cumulated and setting.law == "gaussian"
        without = None
        if cumulated and not setting.hides_count:
            without = edges.bins - 1 if by_root else edges.bins // 2
        self._encoding = _Encoding(edges.bins, cumulated, by_root, without)
        self.width, self.readings = self._encoding.width, self._encoding.readings
        if cumulated:
            self.count_reading = edges.bins - 1 if without is None else None
            rows = np.array(self._encoding.units(_USUAL_STEPS)) * _USUAL_STEPS
            self.typical_factor = float(np.sqrt(np.mean(np.sum(rows * rows, axis=1))))

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        clipping = Range(lattice.lower, lattice.upper)
        if np.ndim(clipping.lower) and self._edges.declared is None:
            # Each value has bins of its own.
            edges = self._edges.ends(clipping)[1:-1]
            place: IntArray = np.array([edge < raw_values for edge in edges]).sum(axis=0)
        else:
            place = np.searchsorted(self._edges.inner(clipping), raw_values)
        place[np.isnan(raw_values)] = self._of_missing
        return self._encoding.table(steps_of_all(lattice))[:, place].T

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        inner = self._edges.inner(Range(lattice.lower, lattice.upper))
        # One object for equal numbers: many would not all stay in the processor's nearest cache,
        # and values that are usual would be found faster.
        table = (self._encoding.table(lattice.steps) + away).T.tolist()
        known: dict[int, int] = {}
        listed = [tuple(known.setdefault(units, units) for units in row) for row in table]
        missing = listed[self._of_missing]
        # One less than a power of 2: every search takes as many comparisons, whatever the value.
        edges = inner.tolist()
        edges += [inf] * ((1 << len(edges).bit_length()) - 1 - len(edges))
        return lambda raw_value: (listed[bisect_left(edges, raw_value)], missing)[isnan(raw_value)]

    @cached_property
    def _of_missing(self) -> int:
        """Where a missing value is found in the table: behind the bins, or in the middle."""
        if self._setting.missing:
            return self._edges.bins
        inner = self._edges.inner(Range(0.0, 1.0))
        return int(np.searchsorted(inner, (inner[0] + inner[-1]) / 2))

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        sizes, rounded = self._encoding.largest_move(replaced=not self._setting.by_clock)
        # Two rounded integers differ by at most one more; and one for the sizes' own floats.
        return (tuple(int(steps * size) + 3 * rounded for size in sizes),)

    def units(self, lattice: Lattice) -> Units:
        return self._encoding.units(steps_of_all(lattice))

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        return self._encoding.offsets()

    def totals(self, observations: Any, mean: float, readings: int) -> tuple[Any, ...]:
        """As if values were spread evenly over the bins' range."""
        ends = np.array(self._edges.ends(Range(0.0, 1.0)))
        shares = np.diff(ends) / (ends[-1] - ends[0])
        if self._encoding.cumulated:
            shares = np.cumsum(shares)
        return tuple(observations * share for share in shares[:readings].tolist())


# --- Bins ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Edges:
    """The bins: so many equal parts of the clipping range, or those between declared edges.

    Declared edges have a bin more at either end, for values beyond them, which count as the edge.
    """

    given: int | tuple[float, ...]

    @property
    def bins(self) -> int:
        return self.given if isinstance(self.given, int) else len(self.given) + 1

    @property
    def declared(self) -> Range | None:
        """The range of declared edges."""
        return None if isinstance(self.given, int) else Range(self.given[0], self.given[-1])

    def ends(self, clipping: Range) -> list[Any]:
        """Where bins begin, and where the last one ends; arrays where the range's ends are."""
        if not isinstance(self.given, int):
            return [self.given[0], *self.given, self.given[-1]]
        parts = (clipping.lower + clipping.width * (k / self.given) for k in range(self.given))
        return [*parts, clipping.upper]

    def inner(self, clipping: Range) -> FloatArray:
        """The edges between bins."""
        return np.array(self.ends(clipping)[1:-1])

    def names(self) -> tuple[str, ...]:
        """By declared edges, or which part of the clipping range a bin is."""
        if isinstance(self.given, int):
            return tuple(f"{k + 1}/{self.given}" for k in range(self.given))
        shown = [f"{edge:.12g}" for edge in self.given]
        between = (f"{low} to {high}" for low, high in pairwise(shown))
        return (f"up to {shown[0]}", *between, f"above {shown[-1]}")


@dataclass(frozen=True)
class _Binned(Remembering):
    """A statistic that counts values in bins."""

    one_lattice: ClassVar[bool] = True

    bins: int | tuple[float, ...] = option(
        "the number of equal parts of the clipping range, which is then learned once, or declared "
        "edges, such as [0, 10, 20, 50], which need no clipping range",
        default=_USUAL_BINS,
        metavar="BINS",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given, most = self.bins, _MOST_BINS
        if isinstance(given, int):
            if not 2 <= given <= most:
                raise ParameterError("bins", f"2 to {most:,} bins, or a list of edges", given)
        elif not (
            2 <= len(given) < most
            and all(map(isfinite, given))
            and all(low < high for low, high in pairwise(given))
        ):
            expected = f"2 to {most - 1:,} edges, each a finite number above the one before"
            raise ParameterError("bins", expected, list(given))

    @property
    def clips(self) -> bool:  # type: ignore[override]
        """Whether bins are parts of a clipping range."""
        return isinstance(self.bins, int)

    @property
    def learns_once(self) -> bool:  # type: ignore[override]
        """Bins stay what they are."""
        return self.clips

    @property
    def _edges(self) -> _Edges:
        return _Edges(self.bins)


@dataclass(frozen=True)
class Histogram(_Binned):
    """How many values lie in each bin.

    A row for each, named by its edges: ``"10 to 20"`` has the values above 10 and not above 20,
    ``"up to 0"`` and ``"above 50"`` those beyond the edges.  Of bins that are equal parts of a
    learned clipping range the third of twenty is named ``"3/20"``; the first and the last have also
    what lies beyond the range.

    Parameters
    ----------
    bins
        The edges, or the number of equal parts of the clipping range.
    window, half_life, share
        As in :class:`rillet.Mean`.

    Examples
    --------
    >>> Histogram(bins=[0, 10, 20]).names
    ('up to 0', '0 to 10', '10 to 20', 'above 20')
    """

    name: ClassVar[str] = "histogram"

    def leaf(self, setting: Setting) -> Leaf:
        """A column for each bin."""
        return _Bins(self._edges, setting, cumulated=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The bins."""
        return self._edges.names()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Counts."""
        return ("count",) * len(self.names)

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """The counts."""
        sums = totals.sums

        def counts() -> Any:
            return beside(list(sums))

        def stds() -> Any:
            return beside([np.zeros_like(sums[0]) + totals.std(row) for row in range(len(sums))])

        known = {"count": counts, "count_noise_std": stds}
        return {"value": counts, "noise_std": stds, **known}


@dataclass(frozen=True, init=False)
class Quantile(_Binned):
    """Quantiles of the clipped values, from counts in bins: ``Quantile(0.5, 0.9)``.

    A row for each, named ``"0.5"``, ``"0.9"``: the least value that at least this share of the
    values does not exceed.  Its noise interval reaches out to the edges of bins.

    Parameters
    ----------
    levels
        The shares, each between 0 and 1.
    bins
        The number of equal parts of the clipping range, or declared edges.
    window, half_life, share
        As in :class:`rillet.Mean`.

    Examples
    --------
    >>> Quantile(0.5, 0.9).names
    ('0.5', '0.9')
    """

    name: ClassVar[str] = "quantile"
    spread_evenly: ClassVar[bool] = True
    post_processing: ClassVar[tuple[str, ...]] = ("cumulated counts made monotone",)

    levels: tuple[float, ...] = option(
        "the shares of values below, such as [0.5, 0.9]", default=(0.5,), metavar="LEVELS"
    )

    def __init__(self, *levels: float, **options: Any) -> None:
        if levels:
            options = {"levels": levels, **options}
        known = type(self).__dataclass_fields__
        for name, declared in known.items():
            object.__setattr__(self, name, options.pop(name, declared.default))
        if options:
            raise ParameterError(next(iter(options)), f"one of {', '.join(known)}", "another")
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = self.levels
        if not levels or not all(0 < level < 1 for level in levels):
            raise ParameterError("levels", "shares between 0 and 1, such as 0.5", list(levels))
        if len(set(self.names)) < len(levels):
            raise ParameterError("levels", "each share once", list(levels))

    def leaf(self, setting: Setting) -> Leaf:
        """Readings are the numbers of values up to the end of each bin."""
        return _Bins(self._edges, setting, cumulated=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The levels."""
        return tuple(f"{level:.12g}" for level in self.levels)

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """Quantiles, their noise, and the bin edges around them."""
        found = _Quantiles(totals, self.levels, self._edges)
        known = {
            "value": found.values,
            "noise_std": found.noise_std,
            "noise_lower": lambda: found.lower,
            "noise_upper": lambda: found.upper,
            "clipping_below": found.unknown_below,
            "clipping_above": found.unknown_above,
            "count": found.counts,
            "count_noise_std": found.count_noise_std,
        }
        declared = self._edges.declared
        if declared is not None:
            rows = len(self.levels)
            like = totals.sums[0] * 0.0
            known["clip_lower"] = lambda: beside([like + declared.lower] * rows)
            known["clip_upper"] = lambda: beside([like + declared.upper] * rows)
        return known


def beside(rows: list[Any]) -> Any:
    """Rows of a release beside each other, of numbers or of arrays over releases."""
    return rows[0] if len(rows) == 1 else np.stack(rows, axis=-1).reshape(-1)


class _Quantiles:
    """Quantiles from cumulated counts; the first axis of arrays is that of edges.

    The value comes from counts that are made monotone, and linear within a bin.  The interval comes
    from the counts as they are: with D(e) the noisy count up to an edge e less ``level`` times that
    of all, an edge is surely below the quantile where D(e) is below 0 by more than its noise
    explains, and surely not where it is above by more.  The interval begins with the last edge
    before the first that is not surely below, and ends with the first edge after the last that is
    not surely above; so at each side a single edge decides (docs/proofs/counts.md).
    """

    def __init__(self, totals: Totals, levels: tuple[float, ...], edges: _Edges) -> None:
        self._totals, self._levels = totals, levels
        self._hidden = len(totals.sums) == edges.bins
        self._count = totals.sums[-1] if self._hidden else totals.count * 1.0
        self._between = edges.bins - 1
        self._edges = edges

    @cached_property
    def _ends(self) -> FloatArray:
        like = self._count * 0.0
        return np.array([end + like for end in self._edges.ends(self._totals.clipping)])

    @cached_property
    def _counts(self) -> FloatArray:
        return np.array(self._totals.sums[: self._between])

    @cached_property
    def _monotone(self) -> FloatArray:
        """Counts up to each end of a bin, from none to all: the mean of the nearest that rise."""
        counts, like = self._counts, self._count * 0.0
        above = np.maximum.accumulate(counts, axis=0)
        below = np.minimum.accumulate(counts[::-1], axis=0)[::-1]
        between = np.clip((above + below) / 2, 0.0, np.maximum(self._count, 0.0))
        return np.concatenate([[like], between, [np.maximum(self._count, 0.0)]])

    def _distance_std(self, level: float) -> Any:
        """Standard deviations of the noise of a count up to each edge less ``level`` times all."""
        last, like = self._between, self._count * 0.0

        def covariance(one: int, other: int) -> Any:
            return self._totals.covariance(one, other) + like

        found = np.array([covariance(edge, edge) for edge in range(self._between)])
        if self._hidden:
            both = np.array([covariance(edge, last) for edge in range(self._between)])
            found = found - 2 * level * both + level * level * covariance(last, last)
        return np.sqrt(np.maximum(found, 0.0))

    @cached_property
    def _distance_stds(self) -> list[Any]:
        if self._hidden:
            return [self._distance_std(level) for level in self._levels]
        return [self._distance_std(0.0)] * len(self._levels)

    def _at(self, wanted: Any) -> tuple[Any, Any]:
        """Where the monotone counts reach a number: the value, and its bin."""
        counts, ends = self._monotone, self._ends
        place = np.minimum((counts[1:] < wanted).sum(axis=0), self._between)

        def of(array: FloatArray, index: Any) -> Any:
            return np.take_along_axis(array, index[None], axis=0)[0]

        low, high = of(counts, place), of(counts, place + 1)
        first, last = of(ends, place), of(ends, place + 1)
        part = np.where(high > low, (wanted - low) / np.where(high > low, high - low, 1.0), 0.5)
        return first + (last - first) * np.clip(part, 0.0, 1.0), place

    def _reached(self) -> list[tuple[Any, Any]]:
        return [self._at(level * self._count) for level in self._levels]

    def values(self) -> Any:
        lost = self._hidden & (self._count <= LOST * self._totals.std(len(self._totals.sums) - 1))
        return beside([np.where(lost, np.nan, value) for value, _ in self._reached()])

    def noise_std(self) -> Any:
        """A quarter of the way between the values two deviations of the count below and above."""
        found = []
        for level, stds, (_, place) in zip(
            self._levels, self._distance_stds, self._reached(), strict=True
        ):
            index = np.minimum(place, self._between - 1)
            std = np.take_along_axis(stds, index[None], axis=0)[0]
            wanted = level * self._count
            found.append((self._at(wanted + 2 * std)[0] - self._at(wanted - 2 * std)[0]) / 4)
        return beside(found)

    def _surely(self, sign: float) -> list[FloatArray]:
        """Which edges are surely below (-1) or not below (1) each quantile."""
        deviations = noise_deviations(INTERVAL_KEPT, "laplace")
        return [
            sign * (self._counts - level * self._count) > deviations * stds
            for level, stds in zip(self._levels, self._distance_stds, strict=True)
        ]

    @cached_property
    def lower(self) -> Any:
        return beside([self._end_after(np.logical_and.accumulate(e)) for e in self._surely(-1.0)])

    @cached_property
    def upper(self) -> Any:
        found = []
        for edges in self._surely(1.0):
            above = np.logical_and.accumulate(edges[::-1])
            index = self._between + 1 - above.sum(axis=0)
            found.append(np.take_along_axis(self._ends, index[None], axis=0)[0])
        return beside(found)

    def unknown_below(self) -> Any:
        """Without end where a quantile may lie beyond the outermost edge, which says no more."""
        return np.where(self.lower <= self._outermost(0), np.inf, 0.0)

    def unknown_above(self) -> Any:
        return np.where(self.upper >= self._outermost(-1), np.inf, 0.0)

    def _outermost(self, side: int) -> Any:
        return beside([self._ends[side]] * len(self._levels))

    def _end_after(self, passed: FloatArray) -> Any:
        index = passed.sum(axis=0)
        return np.take_along_axis(self._ends, index[None], axis=0)[0]

    def counts(self) -> Any:
        return beside([self._count] * len(self._levels))

    def count_noise_std(self) -> Any:
        std = self._count * 0.0
        if self._hidden:
            std = std + self._totals.std(self._between)
        return beside([std] * len(self._levels))
