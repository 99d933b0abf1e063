"""What a source yields: a block of raw values and the public position behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from rillet.errors import ParameterError

__all__ = ["DEFAULT_BLOCK_ROWS", "Block", "FloatArray", "IntArray", "Position"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Half a megabyte of float64: large enough that the work per block is NumPy's, small enough that
# memory and the wait for the first release stay small.
DEFAULT_BLOCK_ROWS = 1 << 16


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether this is an ``int`` and no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of a source, to continue from.

    **Privacy.** Public: a count of rows and, for text files, of bytes.

    Parameters
    ----------
    rows : int
        Rows before this place; the header is no row.
    offset : int or None
        The byte where the next row starts, if the source has such a thing; without it a source
        counts rows to find the place again.
    """

    rows: int = 0
    offset: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("offset", self.offset)):
            if value is not None and (not is_integer(value) or value < 0):
                raise ParameterError(f"start.{name}", "an integer of at least 0", value)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A run of consecutive observations.

    **Privacy.** Touches raw data: ``raw_values``, ``key_of`` and ``sequence`` are unreleased, and
    ``repr`` leaves them out.

    ``numpy.asarray(block)`` gives the values, so a block can be passed where an array is wanted.

    Parameters
    ----------
    raw_values : numpy.ndarray
        float64, one dimension, NaN where there was no number; never empty.
    position : Position
        The place behind the last row of this block.
    fraction : float or None
        How much of the source lies before that place, for a progress bar; None if the source has
        no known end.
    start : Position
        The place in front of its first row.
    key_of : numpy.ndarray or None
        int64, for each observation the place of its key among the declared ones, -1 if its key is
        none of them; None if the source was given no keys.
    sequence : numpy.ndarray or None
        int64, the sequence number of each observation, -1 if it has none; None if the source was
        not asked for them.
    """

    raw_values: FloatArray = field(repr=False)
    position: Position
    fraction: float | None = None
    start: Position = Position()
    key_of: IntArray | None = field(default=None, repr=False)
    sequence: IntArray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self.raw_values.size)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy:
            return np.array(self.raw_values, dtype=dtype)
        return np.asarray(self.raw_values, dtype=dtype)


def check_block_rows(block_rows: object) -> int:
    """Return ``block_rows`` if it is a positive integer, else raise `ParameterError`."""
    if not is_integer(block_rows) or block_rows < 1:
        raise ParameterError("block_rows", "an integer of at least 1", block_rows)
    return block_rows
