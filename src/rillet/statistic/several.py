"""Several statistics of one stream under one promise, of which each has a public share.

Their leaves stand side by side, each on as many steps as its share allows: a unit moves all of
them at once, and its movements add up in L1, their squares in L2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, product
from math import isclose, sqrt
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from rillet.errors import ParameterError
from rillet.statistic.base import (
    FloatArray,
    IntArray,
    Lattice,
    Leaf,
    Memory,
    Range,
    Setting,
    Statistic,
    Totals,
    Units,
    steps_of_all,
)

#: The lattice on which movements are compared.
_USUAL_STEPS: Final = 2**20


class _Place(NamedTuple):
    """Where the leaf of a statistic is among the others: its first column and first reading."""

    leaf: Leaf
    share: float
    column: int
    reading: int


def _places(leaves: list[Leaf], shares: list[float]) -> list[_Place]:
    """In the order of the statistics; what may be complete is read first, as a stream expects."""
    order = sorted(range(len(leaves)), key=lambda index: not leaves[index].may_be_complete)
    columns = accumulate((leaves[index].width for index in order), initial=0)
    readings = accumulate((leaves[index].readings for index in order), initial=0)
    found = dict(zip(order, zip(columns, readings, strict=True), strict=False))
    return [_Place(leaf, shares[i], *found[i]) for i, leaf in enumerate(leaves)]


class _Beside(Leaf):
    """Leaves side by side.

    **Privacy.** A unit moves each of them by one of its movements: together by one of each.
    """

    def __init__(self, leaves: list[Leaf], shares: list[float], law: str) -> None:
        places = _places(leaves, shares)
        self.width = sum(leaf.width for leaf in leaves)
        self.readings = sum(leaf.readings for leaf in leaves)
        self.may_be_complete = any(leaf.may_be_complete for leaf in leaves)
        counts = (p.leaf.count_reading and p.reading + p.leaf.count_reading for p in places)
        self.count_reading = next((count for count in counts if count is not None), None)
        self.corrected = tuple(
            (place.reading + reading, None if count is None else place.reading + count)
            for place in places
            for reading, count in place.leaf.corrected
        )
        fine = [_finest(place.leaf, place.share, law) for place in places]
        self._parts = [steps / max(fine) for steps in fine]
        self._places = places
        # The range is chosen for what is clipped, if anything is.
        first = min(range(len(places)), key=lambda i: not places[i].leaf.corrected)
        self.noise_factor = places[first].leaf.noise_factor / self._parts[first]
        squares = [
            (p.leaf.typical_factor / own) ** 2 for p, own in zip(places, self._parts, strict=True)
        ]
        self.typical_factor = sqrt(sum(squares) / len(squares))
        self._by_column = sorted(zip(places, self._parts, strict=True), key=lambda p: p[0].column)

    def _cut(self, steps: int) -> list[tuple[Leaf, int]]:
        """The leaves in the order of their columns, each with its steps."""
        return [(place.leaf, max(2, int(steps * part))) for place, part in self._by_column]

    def _lattices(self, lattice: Lattice) -> list[tuple[Leaf, Lattice]]:
        cuts = self._cut(steps_of_all(lattice))
        return [(leaf, lattice.on(*leaf.cut(steps))) for leaf, steps in cuts]

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        exact_units = np.empty((self.width, len(raw_values)), np.int64)
        column = 0
        for leaf, own in self._lattices(lattice):
            exact_part = leaf.contribute(raw_values, own).reshape(len(raw_values), -1).T
            exact_units[column : column + leaf.width] = exact_part
            column += leaf.width
        return exact_units.T

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        each = [leaf.contributor(own, away) for leaf, own in self._lattices(lattice)]
        return lambda raw_value: tuple(chain.from_iterable(one(raw_value) for one in each))

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        each = (leaf.moves(own) for leaf, own in self._cut(steps))
        return tuple(tuple(chain.from_iterable(together)) for together in product(*each))

    def units(self, lattice: Lattice) -> Units:
        before, found = 0, []
        for leaf, own in self._lattices(lattice):
            after = self.width - before - leaf.width
            found += [(0.0,) * before + row + (0.0,) * after for row in leaf.units(own)]
            before += leaf.width
        return tuple(found)

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        each = ((place.leaf.offsets(clipping), place.leaf.readings) for place, _ in self._by_column)
        return tuple(chain.from_iterable(own or (0.0,) * count for own, count in each))

    def totals(self, observations: Any, mean: float, readings: int) -> tuple[Any, ...]:
        leaves = (place.leaf for place, _ in self._by_column)
        return tuple(
            chain.from_iterable(leaf.totals(observations, mean, leaf.readings) for leaf in leaves)
        )


def _finest(leaf: Leaf, share: float, law: str) -> float:
    """Steps at which a leaf takes its share of the promise, up to a factor that all have."""
    norms = []
    for move in leaf.moves(_USUAL_STEPS):
        sizes = np.array(move) / _USUAL_STEPS
        norms.append(float(sizes.sum()) if law == "laplace" else sqrt(float(sizes @ sizes)))
    return (share if law == "laplace" else sqrt(share)) / max(norms)


@dataclass(frozen=True)
class Several(Statistic):
    """A list of statistics of one stream: ``statistic=[Mean(share=0.7), Quantile(0.5, 0.9)]``.

    All of them look back on the same.  A share that is not given is an equal part of the rest.
    """

    parts: tuple[Statistic, ...]
    name: ClassVar[str] = "list"
    one_lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        repeated = {name for name in self.names if self.names.count(name) > 1}
        if not self.parts or repeated:
            expected = "a statistic, or several whose numbers differ in their names"
            raise ParameterError("statistic", expected, ", ".join(sorted(repeated)) or [])
        given = [part.share for part in self.parts if part.share is not None]
        rest = 1 - sum(given)
        whole = isclose(rest, 0.0, abs_tol=1e-9)
        if whole != (len(given) == len(self.parts)) or (rest < 0 and not whole):
            raise ParameterError("statistic", "shares that add up to 1", sum(given))

    @property
    def shares(self) -> list[float]:
        """The share of each."""
        given = [part.share for part in self.parts if part.share is not None]
        others = (1 - sum(given)) / max(1, len(self.parts) - len(given))
        return [others if part.share is None else part.share for part in self.parts]

    @property
    def clips(self) -> bool:  # type: ignore[override]
        """Whether any does."""
        return any(part.clips for part in self.parts)

    @property
    def learns_once(self) -> bool:  # type: ignore[override]
        """Whether any does."""
        return any(part.learns_once for part in self.parts)

    @property
    def post_processing(self) -> tuple[str, ...]:  # type: ignore[override]
        """What each does."""
        return tuple(dict.fromkeys(chain.from_iterable(p.post_processing for p in self.parts)))

    @property
    def clipping_moves(self) -> bool:
        """Whether it moves the first."""
        return self.parts[0].clipping_moves

    @property
    def spread_evenly(self) -> bool:  # type: ignore[override]
        """Whether the first does."""
        return self.parts[0].spread_evenly

    @property
    def names(self) -> tuple[str, ...]:
        """The rows of all of them, one after the other."""
        return tuple(chain.from_iterable(part.names for part in self.parts))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of all of them."""
        return tuple(chain.from_iterable(part.kinds for part in self.parts))

    def memory(self, leaves: Callable[[str, Any], float]) -> Memory:
        """What they all look back on."""
        first, *others = (part.memory(leaves) for part in self.parts)
        if any(other != first for other in others):
            expected = "statistics that all have the same window or half-life"
            raise ParameterError("statistic", expected, "different ones", "give it to each of them")
        return first

    def leaf(self, setting: Setting) -> Leaf:
        """Their leaves side by side."""
        return _Beside([part.leaf(setting) for part in self.parts], self.shares, setting.law)

    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """Each from its own readings; what it does not know is NaN."""
        rows = [len(part.names) for part in self.parts]
        shape, clipping = np.shape(totals.sums[0]), totals.clipping
        found: list[dict[str, Callable[[], Any]]] = []
        for part, place in zip(self.parts, self._divided(totals), strict=True):
            ends = (clipping.lower, clipping.upper) if part.clips else (np.nan, np.nan)
            same = (partial(_of_each, end, shape, len(part.names)) for end in ends)
            known = dict(zip(("clip_lower", "clip_upper"), same, strict=True))
            if totals.margin is not None and not place.leaf.corrected:
                nothing = partial(_of_each, 0.0, shape, len(part.names))
                known |= {"clipping_below": nothing, "clipping_above": nothing}
            found.append({**known, **part.numbers(_own(totals, place))})

        def of_all(name: str) -> Callable[[], Any]:
            def numbers() -> Any:
                each = []
                for own, count in zip(found, rows, strict=True):
                    number = own[name]() if name in own else np.nan
                    if count == 1 or name not in own:
                        number = np.repeat(np.broadcast_to(number, shape), count)
                    each.append(np.reshape(number, (*shape, count)))
                return np.concatenate(each, axis=-1).reshape(-1)

            return numbers

        return {name: of_all(name) for name in dict.fromkeys(chain.from_iterable(found))}

    def _divided(self, totals: Totals) -> list[_Place]:
        """Whose readings are whose: how many each has depends on what is public."""
        by_clock = totals.count is None
        leaves = [part.leaf(Setting(by_clock)) for part in self.parts]
        if sum(leaf.readings for leaf in leaves) != len(totals.sums):
            leaves = [part.leaf(Setting(by_clock, missing=True)) for part in self.parts]
        return _places(leaves, self.shares)


def _of_each(end: Any, shape: tuple[int, ...], rows: int) -> Any:
    """What is the same for all rows of a release."""
    found = np.broadcast_to(end, shape)
    return found if rows == 1 else np.repeat(found, rows)


def _own(totals: Totals, place: _Place) -> Totals:
    """The totals of one of several."""
    first, count = place.reading, place.leaf.readings
    return Totals(
        totals.count,
        totals.sums[first : first + count],
        lambda one, other: totals.covariance(one + first, other + first),
        totals.clipping,
        totals.complete if place.leaf.may_be_complete else None,
        totals.margin,
    )
