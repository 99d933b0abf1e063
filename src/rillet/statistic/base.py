"""What every statistic must offer: both ends of what is asked.

The **private half** turns an observation into the integer vector that it adds to its leaf, and says
how far one observation can move that vector.  The **public half** turns noisy totals of these
vectors, with the standard deviation of their noise, into the numbers of a record.

**Privacy.** Pure maps and no data: both sides of the noise may import this package, and it imports
nothing that gathers, learns, steps or stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.options import settle

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Range:
    """A public range: declared, or released."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        """What one observation can move a sum by."""
        return self.upper - self.lower


class Lattice(Protocol):
    """The clipping range in force, cut into steps (:class:`rillet.gather.grid.Grid`)."""

    @property
    def steps(self) -> int:
        """The largest integer that a value can become."""

    def quantise(self, raw_values: Any) -> IntArray:
        """Clip to the range and round to 0 … steps."""

    def quantise_one(self, raw_value: float) -> int:
        """The same of one number."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Noisy totals of the leaf vectors after ``count`` observations: public.

    Single numbers, or arrays over releases.  ``sums`` has one entry for each column of a leaf;
    ``unit_stds()`` gives for each the standard deviation of its noise per unit of the range that
    the column spans, worked out when it is asked for; ``widths`` are the widths of these ranges.
    """

    count: Any
    sums: tuple[Any, ...]
    unit_stds: Callable[[], tuple[Any, ...]]
    widths: tuple[float, ...]


class Statistic(ABC):
    """A public, frozen description; the subclasses are frozen dataclasses."""

    #: Tag in JSON and TOML.
    name: ClassVar[str]
    #: Raised when anything about the contribution of an observation changes.
    version: ClassVar[int] = 1
    #: Whether values are clipped to a range, which may then be learned.
    clips: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)

    # --- private half ----------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Number of columns of a leaf."""
        return 1

    @abstractmethod
    def contribute(self, raw_values: FloatArray, lattice: Lattice) -> IntArray:
        """What each observation adds to its leaf: integers from 0 to ``lattice.steps``.

        One entry for each observation, or a row of :attr:`width` entries.  **Privacy.** Touches raw
        data; total, and a map of each observation alone.
        """

    def contributor(self, lattice: Lattice) -> Callable[[float], int]:
        """The same for one observation at a time, where a leaf has one column."""
        return lambda raw_value: int(self.contribute(np.array([raw_value]), lattice)[0])

    def moves(self, steps: int) -> tuple[tuple[int, ...], ...]:
        """How far one observation can move its leaf.

        The extreme movements when one observation is replaced, each as the magnitude of the
        movement of every column.
        """
        return ((steps,) * self.width,)

    def spans(self, clipping: Range) -> tuple[Range, ...]:
        """What 0 and ``steps`` stand for in each column, when values are clipped to this range."""
        return (clipping,) * self.width

    # --- public half -----------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The rows of its record."""
        return (self.name,)

    @abstractmethod
    def numbers(self, totals: Totals) -> Mapping[str, Callable[[], Any]]:
        """How the numbers of the record follow, by the names of :data:`rillet.release.FIELDS`.

        ``value`` and ``noise_std`` at least, each a function without arguments that gives a number
        or an array, as ``totals`` has them.  With several :attr:`names` an array has one entry for
        each row, the rows of a release beside each other.

        **Privacy.** Post-processing.
        """
