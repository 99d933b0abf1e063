"""What every statistic must offer: both ends of what is asked.

The **private half** is a :class:`Leaf`: the integer vector that an observation adds to its leaf,
how far one unit can move it, and what one lattice unit of each column stands for.  The **public
half** turns noisy totals of these vectors, with the covariance of their noise, into the numbers of
a record.

**Privacy.** Pure maps and no data: both sides of the noise may import this package, and it imports
nothing that gathers, learns, steps or stores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from rillet.errors import ParameterError
from rillet.options import settle

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
#: For each reading, the worth of one lattice unit of each column.
Units: TypeAlias = tuple[tuple[float, ...], ...]


#: Stands for an upper bound where none is declared, and its negative for a lower one.
OPEN_END: Final = 2.0**64


@dataclass(frozen=True)
class Range:
    """A public range: declared, or released."""

    lower: float
    upper: float

    @property
    def is_open(self) -> bool:
        """Whether an end is not declared."""
        return self.upper == OPEN_END or self.lower == -OPEN_END

    @property
    def words(self) -> str:
        """From where to where, for people."""
        if not self.is_open:
            return f"from {self.lower:g} to {self.upper:g}"
        if self.lower != -OPEN_END:
            return f"of any size from {self.lower:g} up"
        return "of either sign and any size" if self.upper == OPEN_END else f"up to {self.upper:g}"

    @property
    def origin(self) -> float:
        """Where an open range begins: at the end that is declared, or at 0."""
        if self.lower != -OPEN_END:
            return self.lower
        return 0.0 if self.upper == OPEN_END else self.upper

    @property
    def width(self) -> float:
        """What one observation can move a sum by."""
        return self.upper - self.lower

    @property
    def middle(self) -> float:
        """Half-way between the ends."""
        return self.lower + self.width / 2


#: Deviations of the margins of a record: those of 95 %.
DEVIATIONS: Final = -float(ndtri(0.025))


class Margin(NamedTuple):
    """How far what clipping takes from an observation may be from its estimate: public.

    The mean of what it takes may be ``below`` less or ``above`` more, with 95 %; ``variance`` is
    how much observations differ in it, so that the mean of a few is off besides.  Numbers, or
    arrays over releases.
    """

    below: Any = 0.0
    above: Any = 0.0
    variance: Any = 0.0

    def plus(self, other: Margin, weight: Any = 1.0) -> Margin:
        """Together with some of another: what has one cause adds up."""
        return Margin(*(one + weight * more for one, more in zip(self, other, strict=True)))

    def times(self, factor: Any) -> Margin:
        """All of it so many times."""
        return Margin(*(one * factor for one in self))

    def of(self, observations: Any) -> tuple[Any, Any]:
        """Below and above of the mean of so many observations."""
        # Margins that have ended are taken away again, and rounding leaves less than nothing.
        variance = np.maximum(self.variance, 0.0)
        sampling = DEVIATIONS**2 * variance / np.maximum(observations, 1.0)
        below, above = self.below, self.above
        return np.sqrt(below * below + sampling), np.sqrt(above * above + sampling)


#: Of an estimate that is not off.
EXACT: Final = Margin()


@dataclass(frozen=True)
class Setting:
    """How a plan runs, as far as statistics and thresholds must know: public.

    ``by_clock``: neighbours have one observation more or less, and how many there are is protected;
    else one observation is replaced.  ``missing``: what is no number is left out, and how many were
    left out is protected.  ``law`` is that of the noise.
    """

    by_clock: bool = False
    missing: bool = False
    law: str = "laplace"

    @property
    def hides_count(self) -> bool:
        """Whether the number of values is protected."""
        return self.by_clock or self.missing


@dataclass(frozen=True)
class Memory:
    """What of the past a statistic looks back on, in leaves: all of it, a window, or a half-life.

    Windows and half-lives begin after the warm-up, whose sum could not be cut.
    """

    window: int | None = None
    half_life: float | None = None

    @property
    def forgets(self) -> bool:
        """Whether what is long ago no longer counts."""
        return self.window is not None or self.half_life is not None

    @property
    def span(self) -> int:
        """The leaves that matter: of a half-life, those that hold seven eighths of the weight."""
        assert self.forgets
        return self.window if self.window is not None else math.ceil(3 * (self.half_life or 0.0))


class Lattice(Protocol):
    """The clipping range in force, cut into steps (:class:`rillet.gather.grid.Grid`).

    Of many keys its numbers are arrays, with one for each value.
    """

    @property
    def lower(self) -> Any:
        """Lower end of the range."""

    @property
    def upper(self) -> Any:
        """Upper end of the range."""

    @property
    def steps(self) -> Any:
        """The largest integer that a value can become."""

    @property
    def count(self) -> Any:
        """What an observation adds to a column that counts."""

    def quantise(self, raw_values: Any) -> IntArray:
        """Clip to the range and round to 0 … steps; what is no number becomes the middle."""

    def quantiser(self, zero: int = 0) -> Callable[[float], int]:
        """What does the same with one number, less ``zero``, on a lattice for all values."""
        raise NotImplementedError

    def on(self, steps: int, count: int) -> Lattice:
        """The same range in other steps, for all values alike."""


def steps_of_all(lattice: Lattice) -> int:
    """The steps that all values have alike, of a leaf that does not split its budget."""
    steps = int(np.max(lattice.steps))
    if np.min(lattice.steps) != steps:  # public
        raise ValueError("expected the same steps for all keys")
    return steps


class Leaf(ABC):
    """The integer vector of one release interval: the private half of a statistic.

    *Readings* are the public numbers that follow from noisy totals, each a linear function of the
    columns, whose coefficients change only where the lattice does.
    """

    #: Number of columns.
    width: int
    #: Number of readings.
    readings: int = 1
    #: What the noise of the first reading is scaled to, in clipping ranges: 1 where one unit moves
    #: one column by the whole range.
    noise_factor: float = 1.0
    #: The same over all numbers, to compare mechanisms.
    typical_factor: float = 1.0
    #: Whether the budget is divided between values and counts anew at public times.
    splits: bool = False
    #: The reading that counts values, where there is one.
    count_reading: int | None = None
    #: Readings that lose mass by clipping, each with the reading that counts its values; None is
    #: the public number of observations.
    corrected: tuple[tuple[int, int | None], ...] = ((0, None),)
    #: Whether the second reading may be all observations, so that none is taken to be missing.
    may_be_complete: bool = False

    @abstractmethod
    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        """What each observation adds: one entry for each, or a row of :attr:`width` entries.

        **Privacy.** Touches raw data; total, and a map of each observation alone.
        """

    def contributor(self, lattice: Lattice, away: int = 0) -> Callable[[float], tuple[int, ...]]:
        """The same for one observation at a time, and ``away`` more in every column.

        Far away from 0, Python takes the same time for all integers; it keeps small ones at hand.
        """

        def of_one(raw_value: float) -> tuple[int, ...]:
            exact_units = self.contribute(np.array([raw_value]), lattice) + away
            return tuple(exact_units.reshape(-1).tolist())

        return of_one

    def contributor_of_one(self, lattice: Lattice, away: int = 0) -> Callable[[float], int] | None:
        """The same as a number, where one column is the one reading; None elsewhere."""
        return None

    @abstractmethod
    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        """How far one unit can move a leaf on a lattice of so many steps.

        Extreme movements, each as the magnitude of the movement of every column.  Every movement
        must be, column by column and after some permutation of its columns, at most a point of
        their convex hull: all columns have the same strategy and the same noise.
        """

    def cut(self, steps: int) -> tuple[int, int]:
        """The lattice that the movements of so many steps pay for: its steps, and a count's."""
        return steps, 0

    @abstractmethod
    def units(self, lattice: Lattice) -> Units:
        """For each reading, the worth of one lattice unit of each column."""

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        """For each reading, what every observation (public number of them) adds besides."""
        return ()

    def totals(self, observations: Any, mean: float, readings: int) -> tuple[Any, ...]:
        """The readings of so many values with this mean: for a forecast."""
        return tuple(
            observations * (1.0 if reading == self.count_reading else mean)
            for reading in range(readings)
        )


class Totals:
    """Noisy readings and the covariance of their noise: public.

    Single numbers, or arrays over releases.

    Attributes
    ----------
    count
        The public number of observations that the statistic looks back on, in a half-life each
        with its weight; by the clock there is none, and this is None.
    sums
        One entry for each reading: for a statistic of your own, one for each column of a leaf.
    complete
        Where missing values are left out, and their number is released: whether it was within what
        its noise explains, so that none is taken to be missing.
    clipping
        The clipping range in force; its ends are arrays where the readings are.
    margin
        Gives how far what clipping takes from an observation may be off, on average over those
        that the statistic looks back on; None where nothing is clipped, or nobody knows.
    """

    __slots__ = ("_covariance", "clipping", "complete", "count", "margin", "sums")

    def __init__(
        self,
        count: Any,
        sums: tuple[Any, ...],
        covariance: Callable[[int, int], Any],
        clipping: Range,
        complete: Any = None,
        margin: Callable[[], Margin] | None = None,
    ) -> None:
        self.count, self.sums, self.complete, self.clipping = count, sums, complete, clipping
        self._covariance = covariance
        self.margin = margin

    def covariance(self, one: int, other: int) -> Any:
        """Covariance of the noise of two readings."""
        return self._covariance(one, other)

    def std(self, reading: int = 0) -> Any:
        """Standard deviation of the noise of a reading."""
        return np.sqrt(np.maximum(self._covariance(reading, reading), 0.0))


class Statistic(ABC):
    """A public, frozen description; the subclasses are frozen dataclasses.

    A statistic of your own declares :attr:`width`, :meth:`contribute`, :meth:`moves` and
    :meth:`spans`, of which a leaf is made; those here that can run by the clock have leaves of
    their own (:meth:`leaf`).
    """

    #: Tag in JSON and TOML.
    name: ClassVar[str]
    #: Raised when anything about the contribution of an observation changes.
    version: ClassVar[int] = 1
    #: In a list of statistics, the part of the promise that this one gets, if one is given.
    share: float | None = None
    #: Whether values are clipped to a range, which may then be learned.
    clips: ClassVar[bool] = True
    #: Whether its noise by the clock grows with the distance of the range from 0.
    from_zero: ClassVar[bool] = False
    #: Whether that range must stay as it was learned first.
    learns_once: ClassVar[bool] = False
    #: Whether all keys must have the same steps, so that totals cannot have a share of their own.
    one_lattice: ClassVar[bool] = False
    #: Whether a forecast takes values to be spread evenly over bins.
    spread_evenly: ClassVar[bool] = False
    #: What :meth:`numbers` does to decoded sums beyond linear maps and ratios, in words.
    post_processing: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        settle(self)

    def memory(self, leaves: Callable[[str, Any], float]) -> Memory:
        """What it looks back on; ``leaves`` turns an option and its value into leaves."""
        return Memory()

    @property
    def clipping_moves(self) -> bool:
        """Whether clipping moves its first number, by what it takes from a sum."""
        return self.clips and not self.spread_evenly and self.kinds[0] != "count"

    # --- private half ----------------------------------------------------------------------------

    def leaf(self, setting: Setting) -> Leaf:
        """What an observation contributes under this setting."""
        return _Declared(self, setting)

    @property
    def width(self) -> int:
        """Number of columns of a leaf."""
        return 1

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        """What each observation adds to its leaf: integers from 0 to ``lattice.steps``.

        One entry for each observation, or a row of :attr:`width` entries.  **Privacy.** Touches raw
        data; total, and a map of each observation alone.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither contribute() nor leaf()")

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        """How far one observation can move its leaf, when it is replaced, added or removed.

        As :meth:`Leaf.moves`.
        """
        return ((steps,) * self.width,)

    def spans(self, clipping: Range) -> tuple[Range, ...]:
        """What 0 and ``steps`` stand for in each column, when values are clipped to this range.

        By the clock, and where missing values are left out, 0 must stand for 0.
        """
        return (clipping,) * self.width

    # --- public half -----------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The rows of its record."""
        return (self.name,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the value of each row is: ``"mean"``, ``"sum"``, ``"count"``, or something else."""
        return ("other",) * len(self.names)

    @abstractmethod
    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """How the numbers of the record follow, by the names of :data:`rillet.release.FIELDS`.

        ``value`` and ``noise_std`` at least, each a function without arguments that gives a number
        or an array, as ``totals`` has them.  With several :attr:`names` an array has one entry for
        each row, the rows of a release beside each other.  The clipping range is added, unless it
        is here.

        **Privacy.** Post-processing.
        """

    def count_share(self, sums: tuple[Any, ...], clipping: Range) -> Any:
        """Share of the budget that counting is worth, where a leaf splits it: from releases.

        Of numbers, or of arrays over keys.
        """
        return 0.5


class _Declared(Leaf):
    """The leaf that a statistic's own declarations make; a reading for each column."""

    def __init__(self, statistic: Statistic, setting: Setting) -> None:
        self._statistic, self._setting = statistic, setting
        self.width = self.readings = statistic.width
        spans = statistic.spans(Range(1.0, 2.0))
        if setting.hides_count and any(span.lower for span in spans):
            raise ParameterError(
                "statistic",
                "one whose spans begin at 0, since the number of values is protected",
                statistic.name,
                'run it by count, with missing="none"',
            )

    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        """As the statistic says; nothing where a value is missing and is left out."""
        exact_units = self._statistic.contribute(raw_values, lattice)
        if self._setting.missing:
            exact_units[np.isnan(raw_values)] = 0
        return exact_units

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        """As the statistic says: between contributions, and so between one and none."""
        return self._statistic.moves(steps)

    def units(self, lattice: Lattice) -> Units:
        """The width of each column's span, in steps."""
        spans = self._statistic.spans(Range(lattice.lower, lattice.upper))
        return tuple(
            tuple(span.width / lattice.steps if c == r else 0.0 for c in range(self.width))
            for r, span in enumerate(spans)
        )

    def offsets(self, clipping: Range) -> tuple[float, ...]:
        """What 0 stands for."""
        return tuple(span.lower for span in self._statistic.spans(clipping))
