"""What a source is, and what it yields: blocks of raw values with opaque positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from rillet.errors import ParameterError

if TYPE_CHECKING:
    from msgspec import Struct

__all__ = ["Block", "FloatArray", "IntArray", "Position", "RawRows", "Source", "is_integer"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: A point between two rows of a source. Only the source that made it knows what is in it; for
#: everybody else it is JSON that can be kept, compared for equality, and given back.
Position = Mapping[str, int]

#: Half a megabyte of float64: large enough that the work per block is NumPy's, small enough that
#: memory and the wait for the first release stay small.
DEFAULT_BLOCK_ROWS = 1 << 16


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether this is an ``int`` and no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def rows_to_a_block(block_rows: int | None, default: int) -> int:
    """Return a number of rows, or the default for None; raise `ParameterError` if it is none."""
    if block_rows is None:
        return default
    if not is_integer(block_rows) or block_rows < 1:
        raise ParameterError("block_rows", "an integer of at least 1", block_rows)
    return block_rows


class RawRows(NamedTuple):
    """What a format reads from some rows. **Privacy.** Touches raw data."""

    raw_values: FloatArray
    key_of: IntArray | None = None
    sequence: IntArray | None = None
    at: IntArray | None = None
    person: npt.NDArray[Any] | None = None

    def part(self, rows: slice) -> RawRows:
        """Return some of the rows."""
        raw_others: list[Any] = [None if column is None else column[rows] for column in self[1:]]
        return RawRows(self.raw_values[rows], *raw_others)

    def joined(self, raw_more: RawRows) -> RawRows:
        """Return these rows and others behind them."""

        def both(one: Any, other: Any) -> Any:
            return None if one is None or other is None else np.concatenate((one, other))

        raw_values = np.concatenate((self.raw_values, raw_more.raw_values))
        return RawRows(raw_values, *map(both, self[1:], raw_more[1:]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Block:
    """Consecutive observations.

    **Privacy.** Touches raw data: values, keys, sequence numbers, times and persons are unreleased.
    So are positions, which may count the bytes of rows. ``repr`` shows the number of rows alone.

    ``numpy.asarray(block)`` gives the values, so a block can be passed where an array is wanted.

    Parameters
    ----------
    raw_values : numpy.ndarray
        float64, one dimension, NaN where there was no number; never empty.
    position, start : Position or None
        Behind the last row, and in front of the first one; None if the source has no positions,
        because somebody else remembers what was acknowledged.
    fraction : float or None
        How much of the source lies before the end of this block, for a progress bar; None if the
        source has no known end.
    key_of : numpy.ndarray or None
        int64, for each observation the index of its key among the declared ones, -1 if its key is
        none of them; None if the source was given no keys.
    sequence : numpy.ndarray or None
        int64, the sequence number of each observation, -1 if it has none; None if the source was
        not asked for them.
    at : numpy.ndarray or None
        int64, the time that each observation tells, in microseconds since 1970,
        `rillet.gather.clock.NO_TIME` if it tells none; None if the source was not asked for them.
    person : numpy.ndarray or None
        Whose each observation is: objects of bytes, the text of the id, empty if there is none.
        In the order of ticks (`rillet.source.by_tick`) uint64, pseudonyms in place of ids. None if
        the source was not asked for them.
    arrived : numpy.ndarray or None
        int64, when this machine received each observation, in the same unit, whenever it is
        absorbed; None if the source is not a live one. Not the same if the rows are read again.
    """

    raw_values: FloatArray
    position: Position | None = None
    fraction: float | None = None
    start: Position | None = None
    key_of: IntArray | None = None
    sequence: IntArray | None = None
    at: IntArray | None = None
    person: npt.NDArray[Any] | None = None
    arrived: IntArray | None = None

    def __len__(self) -> int:
        return int(self.raw_values.size)

    def __repr__(self) -> str:
        return f"Block({len(self)} rows)"

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy:
            return np.array(self.raw_values, dtype=dtype)
        return np.asarray(self.raw_values, dtype=dtype)


class Source(ABC):
    """Where observations come from.

    A kind of source is a class with its schema of options, made as ``Kind(options, keys=…,
    stop=…)`` by `rillet.source.open_source`. Making one opens nothing. Every source promises, and
    `rillet.testing.check_source` tests:

    - **One row, one observation.** A cell that is empty, missing or no number is NaN. No value
      makes a source raise, warn, skip or add a row.
    - **Keys, sequence numbers, times and persons.** On request each observation has the index of
      its key among the declared ones, its sequence number, its time and its person. A
      row with no such key stays, marked `rillet.source.UNDECLARED`; who absorbs the block drops it.
      From a live source (a broker, a pipe, a file that is followed) it also has the time when it
      was received.
    - **Bounded memory.** At most ``block_rows`` rows are held at a time, and a chunk of those
      behind.
    - **Resume.** ``blocks(block.position)`` continues behind that block, ``blocks(block.start)``
      gives it again, if the source is replayable.
    - **Stop.** When ``stop`` is set, the blocks end between two of them, and all waiting ends.
    - **Asking is acknowledging.** Who asks for the next block has safely absorbed the one before.
      A source over a broker acknowledges then, so a consumer must not read ahead of what it has
      made durable.

    **Privacy.** Touches raw data. Names, options and the number of rows are public.

    Attributes
    ----------
    Options : type of msgspec.Struct
        The schema: frozen, by keyword, unknown fields forbidden, tagged ``kind``.
    name : str
        What is read, in messages.
    identity : str
        What is read, without the way to it: part of what noise is keyed by.
    replayable : bool
        Whether rows can be read again, from any position. If not, nothing but `blocks` reads.
    redelivers : bool
        Whether an observation may come again, which only a durable run can notice.
    live : bool
        Whether it goes on for ever, and its blocks have the times of arrival.
    """

    Options: ClassVar[type[Struct]]
    name: str
    identity: str
    replayable: bool
    redelivers: bool
    live: bool = False

    @property
    def heard_until(self) -> int:
        """Of a live source: what arrived before this time was handed over with earlier blocks.

        In microseconds since 1970. While nothing comes it moves on, several times a second: by it
        a clock knows that a tick has all it will get.
        """
        return 0

    @abstractmethod
    def check(self) -> None:
        """Check all that is public about the source and can be seen without consuming anything.

        Raises
        ------
        InputError
            If it cannot be read, or lacks a column.
        ParameterError
            If an option does not fit it.
        MissingExtra
            If it needs a package that is not installed.
        """

    @abstractmethod
    def blocks(
        self, start: Position | None = None, *, block_rows: int | None = None
    ) -> Iterator[Block]:
        """Open the source, check what is public about it, and return its blocks from a position.

        **Privacy.** Touches raw data.

        Parameters
        ----------
        start : Position, optional
            Of a block read before; by default the beginning.
        block_rows : int, optional
            Most rows in a block; by default what the options say.

        Raises
        ------
        InputError, ParameterError, MissingExtra
            As `check`; also if the source has no such position.
        """

    def replay(self, start: Position | None, rows: int) -> Iterator[Block]:
        """Return again up to ``rows`` rows behind a position, without waiting.

        Fewer come if the source has become shorter. Only a replayable source can.

        **Privacy.** Touches raw data.
        """
        for block in self.blocks(start, block_rows=rows):
            rows -= len(block)
            yield block
            if rows <= 0:
                return

    def close(self) -> None:
        """Let go of everything that is open; what was not asked beyond is not acknowledged."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
