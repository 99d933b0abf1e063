"""Totals of several keys: which there are, and readings that add up.

Beside the stream of its key an observation enters the streams of its totals: that of all keys, and
of the region, the district, … that its key belongs to.  Each level has a public share of the
budget.  What the streams release is then made consistent by least squares, so that every total is
the sum of its parts, and as accurate as all of it together allows.

**Privacy.** Public declarations, and post-processing of what was released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.release import Key

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
#: Leading parts of a key that name its group, or each group with its keys.
Groups: TypeAlias = int | tuple[tuple[Key, tuple[Key, ...]], ...]
Auto: TypeAlias = Literal["auto"]

#: By default, what the total of all keys gets of the budget, and all levels between it and the keys
#: together: what is left makes a key's noise at most 1.1 times as large.  Of μ² noise falls with
#: the square root, of ε with the share itself.
_SHARES: Final = {
    "gaussian": (Fraction(10, 100), Fraction(7, 100)),
    "laplace": (Fraction(5, 100), Fraction(4, 100)),
}
#: Numbers that least squares works on at a time, for each pair of readings.
_AT_A_TIME: Final = 2**21


def declared_keys(keys: Any) -> tuple[Key, ...]:
    """Check declared keys; a key that is not a tuple or a list is one part."""
    if not isinstance(keys, Iterable) or isinstance(keys, str | bytes | Mapping | Set):
        raise ParameterError("keys", "a list of keys", keys)
    listed: tuple[Any, ...] = tuple(keys)
    if set(map(type, listed)) == {str}:
        listed = tuple(zip(listed, strict=True))
    elif set(map(type, listed)) == {list}:  # from JSON
        listed = tuple(map(tuple, listed))
    if set(map(type, listed)) == {tuple} and all(listed):
        kinds = set(map(type, chain.from_iterable(listed)))
        if kinds == {str} and len(set(listed)) == len(listed):  # usual, and quick for a million
            return listed
    declared: dict[tuple[str, ...], Key] = {}
    for given in listed:
        parts = given if isinstance(given, tuple | list) else (given,)
        key = tuple(part.item() if isinstance(part, np.generic) else part for part in parts)
        if not key or not all(type(part) in (str, int) for part in key):
            raise ParameterError("keys", "text, whole numbers, or lists of them", given)
        same = declared.setdefault(_text(key), key)
        if same is not key:
            one, other = (own[0] if len(own) == 1 else own for own in (same, key))
            raise ParameterError("keys", "keys that differ as text", f"{one!r} and {other!r}")
    return tuple(declared.values())


def _text(key: Key) -> tuple[str, ...]:
    return tuple(map(str, key))


# --- Which totals there are ----------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Totals of one kind, such as regions.

    Parameters
    ----------
    name
        What they are called in descriptions.
    share
        What they get of the budget: of μ² with Gaussian noise, of ε with pure noise.
    of
        Each total with its keys.  None: keys that begin with the same parts, as many as there are
        levels above this one.
    """

    name: Any
    share: float | Auto = "auto"
    of: tuple[tuple[Key, tuple[Key, ...]], ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ParameterError("levels", "names", self.name)
        share = self.share
        if share != "auto" and not (type(share) in (int, float) and 0 < share < 1):
            expected = "a share of the budget between 0 and 1, both excluded, or auto"
            raise ParameterError(f"levels.{self.name}", expected, share)
        if share != "auto":
            object.__setattr__(self, "share", float(share))
        if self.of is not None:
            object.__setattr__(self, "of", _groups(self.name, self.of))

    def table(self) -> dict[str, Any]:
        """For JSON."""
        of = {} if self.of is None else {"of": self.of}
        return {"name": self.name, "share": self.share, **of}


def _groups(level: str, of: Any) -> tuple[tuple[Key, tuple[Key, ...]], ...]:
    """Totals with their keys, from a mapping or from pairs."""
    pairs = list(of.items() if isinstance(of, Mapping) else of)
    try:
        totals = declared_keys([total for total, _ in pairs])
        return tuple(
            (total, declared_keys(keys)) for total, (_, keys) in zip(totals, pairs, strict=True)
        )
    except (ParameterError, TypeError, ValueError):
        expected = "each total once, with the list of its keys"
        raise ParameterError(f"levels.{level}", expected, of) from None


def declared_groups(given: Any) -> Groups | None:
    """Groups of keys that share a clipping range: so many leading parts, or each with its keys."""
    if given is None or (type(given) is int and given > 0):
        return given
    if isinstance(given, str) and given.isdecimal() and int(given):
        return int(given)
    if isinstance(given, Mapping | list | tuple):
        return _groups("groups", given)
    expected = "a number of leading parts of a key, or each group with its keys"
    raise ParameterError("groups", expected, given)


def declared_levels(given: Any) -> tuple[Level, ...]:
    """Levels from the whole down: names, or names with shares, or with the keys of each total.

    Examples
    --------
    >>> declared_levels(["all", "region"])[1]
    Level(name='region', share='auto', of=None)
    >>> declared_levels("all=0.1,region=0.05")[1].share
    0.05
    >>> declared_levels({"all": "auto", "region": {"north": ["m1", "m2"]}})[1].of
    ((('north',), (('m1',), ('m2',))),)
    """
    if given is None:
        return ()
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",")]
        given = {name.strip(): _share(share) if equals else "auto" for name, equals, share in pairs}
    if isinstance(given, Mapping):
        return tuple(_level(name, what) for name, what in given.items())
    if not isinstance(given, list | tuple):
        raise ParameterError("levels", "names of totals, from that of all keys down", given)
    levels = []
    for each in given:
        if isinstance(each, Mapping):
            table = dict(each)
            levels.append(_level(table.pop("name", None), table))
        else:
            levels.append(each if isinstance(each, Level) else Level(each))
    return tuple(levels)


def _share(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _level(name: Any, what: Any) -> Level:
    """One level, from its share, from its totals, or from a table of both."""
    if not isinstance(what, Mapping):
        return Level(name, what)
    return Level(name, **what) if what.keys() <= {"share", "of"} else Level(name, of=what)  # type: ignore[arg-type]


def with_shares(levels: tuple[Level, ...], law: str) -> tuple[Level, ...]:
    """The same with a share for each; refuses those that leave nothing for the keys."""
    whole, between = _SHARES[law]
    below = len(levels) - 1
    shares = [whole, *[between / max(1, below)] * below][: len(levels)]
    levels = tuple(
        replace(level, share=round(float(share), 6)) if level.share == "auto" else level
        for level, share in zip(levels, shares, strict=True)
    )
    if key_share(levels) <= 0:
        found = [level.share for level in levels]
        raise ParameterError("levels", "shares that leave some of the budget for the keys", found)
    return levels


def share_of(level: Level) -> Fraction:
    """The share as the decimal that was typed."""
    return Fraction(repr(level.share))


def key_share(levels: Iterable[Level]) -> Fraction:
    """What all levels leave for the stream of a key."""
    return 1 - sum(map(share_of, levels), Fraction(0))


class Added(NamedTuple):
    """Keys that came together: from number ``first`` on, after so many ticks.

    ``name`` is that of all amendments up to theirs: other keys that were added in their place in a
    copy of the state would have other noise.
    """

    first: int
    keys: int
    after: int
    name: str


class Roster(NamedTuple):
    """The keys of a state in the order of their numbers, each by its present name."""

    keys: tuple[Key, ...]
    added: tuple[Added, ...] = ()
    retired: frozenset[int] = frozenset()
    #: Those of the plan, by the names that they began with.
    at_first: tuple[Key, ...] | None = None

    @property
    def live(self) -> tuple[Key, ...]:
        """Those that are not retired."""
        if not self.retired:
            return self.keys
        return tuple(key for number, key in enumerate(self.keys) if number not in self.retired)


class Tree:
    """The streams of a plan with levels: first those of the keys, then those of the totals.

    Totals come level by level, from the whole down; ``total_of[level]`` has for each key the index
    of its total, among all streams.

    Examples
    --------
    >>> keys = (("north", 1), ("north", 2), ("south", 1))
    >>> tree = Tree(keys, declared_levels(["all", "region"]))
    >>> tree.totals
    ((), ('north',), ('south',))
    >>> [own.tolist() for own in tree.total_of]
    [[3, 3, 3], [4, 4, 5]]
    """

    def __init__(
        self,
        keys: tuple[Key, ...] | Roster,
        levels: tuple[Level, ...] = (),
        groups: Groups | None = None,
    ) -> None:
        self.roster = keys if isinstance(keys, Roster) else Roster(keys)
        self._groups = groups
        keys = self.keys = self.roster.keys
        self.names = tuple(level.name for level in levels)
        if len(set(self.names)) < len(levels):
            raise ParameterError("levels", "names that differ", list(self.names))
        totals: dict[Key, int] = {}
        self.total_of: list[IntArray] = []
        self._ends = [len(keys)]
        for number, level in enumerate(levels):
            own = _totals_of_keys(keys, number, level)
            before = len(totals)
            self.total_of.append(
                np.array(
                    [len(keys) + totals.setdefault(total, len(totals)) for total in own], np.int64
                )
            )
            if self.total_of[-1].min() < len(keys) + before:
                shared = next(total for total in own if totals[total] < before)
                raise ParameterError(f"levels.{level.name}", "other totals than above it", shared)
            self._ends.append(len(keys) + len(totals))
        self.totals: tuple[Key, ...] = tuple(totals)
        for key in keys if levels else ():
            if key in totals:
                raise ParameterError("levels", "totals that are not keys themselves", key)
        if levels and self._ends[1] != len(keys) + 1:
            expected = "the total of all keys as the first level"
            raise ParameterError("levels", expected, f"{len(totals):,} totals in {levels[0].name}")
        self._check_nested()

    def _check_nested(self) -> None:
        """Each total must lie in one of those above it, or their sums could not agree."""
        for name, upper, lower in zip(
            self.names[1:], self.total_of, self.total_of[1:], strict=False
        ):
            above = np.empty(len(self), np.int64)
            above[lower] = upper
            if (outside := np.flatnonzero(above[lower] != upper)).size:
                total = self.totals[lower[outside[0]] - len(self.keys)]
                raise ParameterError(
                    f"levels.{name}", "totals that each lie in one of those above", total
                )

    def __len__(self) -> int:
        return len(self.keys) + len(self.totals)

    @cached_property
    def all_keys(self) -> tuple[Key, ...]:
        """The keys of all streams, those of totals included."""
        return (*self.keys, *self.totals)

    @cached_property
    def indices(self) -> dict[Key, int]:
        """The index of each stream that is not retired."""
        gone = self.roster.retired
        return {key: index for index, key in enumerate(self.all_keys) if index not in gone}

    @cached_property
    def groups(self) -> dict[Key, int]:
        """The groups of keys that share a clipping range, with their numbers."""
        numbers: dict[Key, int] = {}
        for group in self._group_of_keys[: len(self.keys_at_first)]:
            numbers.setdefault(group, len(numbers))
        return numbers

    @cached_property
    def _group_of_keys(self) -> list[Key]:
        if self._groups is None:
            return [()] * len(self)
        if isinstance(self._groups, int):
            own = Level("groups")
            return _totals_of_keys(self.keys, self._groups, own)
        return _totals_of_keys(self.keys, 0, Level("groups", of=self._groups))

    @cached_property
    def group_of(self) -> IntArray:
        """The number of each stream's group."""
        try:
            return np.array([self.groups[group] for group in self._group_of_keys], np.int64)
        except KeyError as error:
            raise ParameterError(
                "amendments", "keys of the groups that there are", error.args[0]
            ) from None

    @property
    def keys_at_first(self) -> tuple[Key, ...]:
        """The keys of all streams when they began, as the plan has them."""
        first = self.roster.at_first
        return self.all_keys if first is None else (*first, *self.totals)

    @cached_property
    def _gone(self) -> NDArray[np.bool_]:
        found = np.zeros(len(self) + 1, bool)  # -1, which no key is, takes the last
        found[list(self.roster.retired)] = True
        return found

    def live(self, key_of: IntArray) -> IntArray:
        """The same with -1 for keys that are retired."""
        return np.where(self._gone[key_of], -1, key_of) if self.roster.retired else key_of

    @cached_property
    def live_rows(self) -> IntArray | None:
        """The streams that release; None: all."""
        return np.flatnonzero(~self._gone[:-1]) if self.roster.retired else None

    @cached_property
    def added_after(self) -> IntArray:
        """After how many ticks each stream came."""
        found = np.zeros(len(self), np.int64)
        for first, count, after, _ in self.roster.added:
            found[first : first + count] = after
        return found

    def level_of(self, index: int) -> int | None:
        """The level of a stream; None for that of a key."""
        if index < len(self.keys):
            return None
        return int(np.searchsorted(self._ends, index, side="right")) - 1

    def rows(self, level: int) -> slice:
        """The streams of a level's totals."""
        return slice(self._ends[level], self._ends[level + 1])

    @cached_property
    def _below(self) -> list[tuple[slice, IntArray]]:
        """For each level its parts: their streams, and for each the total, counted from 0."""
        parts = []
        for level, total_of in enumerate(self.total_of):
            below, children = slice(0, len(self.keys)), np.arange(len(self.keys))
            if level + 1 < len(self.total_of):
                below, children = self.rows(level + 1), self.total_of[level + 1]
            parent = np.empty(len(self), np.int64)
            parent[children] = total_of - self._ends[level]
            parts.append((below, parent[below]))
        return parts

    # --- readings that add up ----------------------------------------------------------------

    def consistent(
        self, readings: FloatArray, covariances: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The generalised least squares estimates, in which every total is the sum of its parts.

        ``readings`` has the shape (readings, streams, times), ``covariances`` that of the noise of
        each stream, (readings, readings, streams, times); the noise of different streams is
        independent.  Returns the same of the estimates.  At each time by itself: bit for bit the
        same, however times are cut into blocks.

        Two passes: from the keys up, what each total's parts and its own reading say together;
        from the whole down, what is known of a total beyond its parts, handed to each of them by
        its share of their variance.

        **Privacy.** Post-processing.
        """
        times = readings.shape[-1]
        step = max(1, _AT_A_TIME // len(self))
        if times > step:
            parts = [
                self.consistent(readings[..., i : i + step], covariances[..., i : i + step])
                for i in range(0, times, step)
            ]
            estimates, spreads = zip(*parts, strict=True)
            return np.concatenate(estimates, -1), np.concatenate(spreads, -1)
        best, spread = readings.copy(), covariances.copy()
        sums: list[tuple[FloatArray, FloatArray]] = []
        for level in reversed(range(len(self.total_of))):
            own, (below, parent) = self.rows(level), self._below[level]
            total = _added_up(best[:, below], parent)
            variance = _added_up(spread[:, :, below], parent)
            sums.append((total, variance))
            gain = _times(variance, _inverse(variance + spread[:, :, own]))
            best[:, own] = total + _applied(gain, best[:, own] - total)
            spread[:, :, own] = _times(gain, spread[:, :, own])
        for level, (total, variance) in enumerate(reversed(sums)):
            own, (below, parent) = self.rows(level), self._below[level]
            inverse = _inverse(variance)
            share = _times(spread[:, :, below], inverse[:, :, parent])
            best[:, below] += _applied(share, (best[:, own] - total)[:, parent])
            known = (variance - spread[:, :, own])[:, :, parent]
            spread[:, :, below] -= _times(_times(share, known), share.swapaxes(0, 1))
        return best, spread


def _totals_of_keys(keys: tuple[Key, ...], number: int, level: Level) -> list[Key]:
    """The total that each key belongs to."""
    if level.of is None:
        for key in keys:
            if len(key) <= number:
                raise ParameterError(
                    f"levels.{level.name}",
                    f"keys of at least {number + 1} parts, of which the first "
                    f"{'is its total' if number == 1 else f'{number} are its totals'}",
                    key,
                    "or name the keys of each total",
                )
        return [key[:number] for key in keys]
    known: dict[tuple[str, ...], Key] = {}
    for total, members in level.of:
        for key in members:
            if known.setdefault(_text(key), total) is not total:
                raise ParameterError(f"levels.{level.name}", "each key in one total", key)
    own = [known.pop(_text(key), None) for key in keys]
    found = [total for total in own if total is not None]
    if len(found) < len(keys):
        missing = keys[own.index(None)]
        expected = f"a total for each key ({len(keys) - len(found):,} have none)"
        raise ParameterError(f"levels.{level.name}", expected, missing)
    if known:
        raise ParameterError(f"levels.{level.name}", "declared keys", next(iter(known)))
    return found


# Small matrices with an entry of each for every stream and time: (row, column, streams, times).
# Written out, since every number must come out the same whatever stands beside it.


def _times(one: FloatArray, other: FloatArray) -> FloatArray:
    count = range(len(one))
    return np.array([[_dot(one[i], other[:, k]) for k in count] for i in count])


def _applied(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    return np.array([_dot(row, vector) for row in matrix])


def _dot(row: FloatArray, column: FloatArray) -> FloatArray:
    total: FloatArray = row[0] * column[0]
    for one, other in zip(row[1:], column[1:], strict=True):
        total += one * other
    return total


def _inverse(matrix: FloatArray) -> FloatArray:
    """Of symmetric positive definite matrices: Gauss-Jordan, which needs no pivoting there."""
    left, count = matrix.copy(), range(len(matrix))
    right = np.zeros_like(left)
    for i in count:
        right[i, i] = 1.0
    for i in count:
        pivot = 1 / left[i, i]
        left[i] *= pivot
        right[i] *= pivot
        for j in count:
            if j != i:
                factor = left[j, i].copy()
                left[j] -= factor * left[i]
                right[j] -= factor * right[i]
    return right


def _added_up(parts: FloatArray, parent: IntArray) -> FloatArray:
    """Sums over the streams of each parent, one after the other in the order of the streams."""
    *outer, _, times = parts.shape
    totals = int(parent.max()) + 1
    place = (parent[:, None] * times + np.arange(times)).ravel()
    flat = parts.reshape(-1, len(place))
    added = np.array([np.bincount(place, each, totals * times) for each in flat], np.float64)
    return added.reshape(*outer, totals, times)
