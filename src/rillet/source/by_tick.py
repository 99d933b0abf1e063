"""A finished source in the order of ticks, out of core.

The rows are read once, sorted in runs that fit into memory, and merged as they are asked for:
memory depends neither on the number of rows nor on that of ticks. The runs lie in a temporary file
that only its owner can read and that has no name, so nothing is left of it when the process ends,
however it ends.

**Privacy.** Touches raw data; ids of persons are in the file as pseudonyms only. How many rows a
tick has, and so how blocks are cut and how large the temporary file is, is private.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from rillet.errors import InputError, OutputError, ParameterError
from rillet.gather.clock import Clock
from rillet.gather.gate import Pseudonyms
from rillet.source.base import (
    Block,
    IntArray,
    Position,
    Source,
    is_integer,
    rows_to_a_block,
)
from rillet.source.keys import UNDECLARED

__all__ = ["ByTick", "TickBlock"]

#: Rows that are sorted at a time, and rows in all that a merge holds of its runs, at least so many
#: of each.
RUN_ROWS: Final = 1 << 19
MERGE_ROWS: Final = 1 << 18
LEAST_ROWS: Final = 1 << 10
DEFAULT_BLOCK_ROWS: Final = 1 << 18

#: Rows as they lie in the file: the columns of a block that the source has.
RawRecords = npt.NDArray[np.void]

_COLUMNS: Final[dict[str, Any]] = {
    "raw_values": "f8",
    "key_of": "i8",
    "sequence": "i8",
    "at": "i8",
    "person": ("u8", (2,)),
}
_NO_TICK: Final = 2**63 - 1
_BEGINNING: Final[Position] = {"tick": 0, "rows": 0}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TickBlock(Block):
    """Observations in the order of their ticks; those of one tick in the order of the source.

    **Privacy.** Touches raw data, as `Block`.

    Parameters
    ----------
    complete_until : int
        All observations of this tick and of those before it have come, with this block; 0 if there
        is no such tick. Behind the last block every tick is complete.
    """

    complete_until: int = 0


class ByTick(Source):
    """The rows of a finished source, sorted by tick, stable.

    Rows that belong to no tick of the clock are left out, and so are those of undeclared keys:
    without a usable time, before the start, after the last tick. How many were is written nowhere.

    **Privacy.** Touches raw data. A row's tick depends on its own time alone, and no order of rows
    makes this raise.

    **Delivery.** As that of the source it reads. A position is a tick and a number of its rows, so
    that a run goes on in the middle of a tick that is too large for one block.

    Parameters
    ----------
    source
        Where the rows are, with their times; one that ends.
    clock, length
        The ticks, and how many there are; None if no end is known.
    block_rows, block_ticks
        A block has whole ticks, as many as fit into so many rows, and at most so many; a tick with
        more rows is cut.
    pseudonyms
        What ids of persons become, where the source has them.
    folder
        For the temporary file; by default the system's.
    stop
        Once it is set, no further block comes.
    """

    def __init__(
        self,
        source: Source,
        clock: Clock,
        length: int | None = None,
        *,
        block_rows: int | None = None,
        block_ticks: int | None = None,
        pseudonyms: Pseudonyms | None = None,
        folder: str | os.PathLike[str] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._source, self._clock, self._length = source, clock, length
        self._pseudonyms = pseudonyms
        self._block_rows = rows_to_a_block(block_rows, DEFAULT_BLOCK_ROWS)
        self._block_ticks = block_ticks
        self._folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._stop = threading.Event() if stop is None else stop
        self._runs: _Runs | None = None
        self.name, self.identity = source.name, source.identity
        self.replayable, self.redelivers = source.replayable, source.redelivers

    def check(self) -> None:
        """Check the source that is sorted; see `Source`."""
        self._source.check()

    def sort(self, watch: Callable[[float | None], None] | None = None) -> None:
        """Read and sort the rows, unless that is done; `blocks` does so too.

        ``watch`` is called with the fraction of the source that was read.

        **Privacy.** Touches raw data.

        Raises
        ------
        ParameterError
            If the source was not asked for times.
        InputError, MissingExtra
            As the source.
        OutputError
            If there is no room for the temporary file.
        """
        if self._runs is not None:
            return
        try:
            with contextlib.ExitStack() as opened:
                file = opened.enter_context(tempfile.TemporaryFile(dir=self._folder, buffering=0))
                runs = _Runs(file)
                self._fill(runs, watch)
                if not self._stop.is_set():  # else the rows are not all there
                    self._runs = runs
                    opened.pop_all()
        except OSError as error:
            raise OutputError(
                f"{self._folder}: expected room for the rows of {self.name} in the order of time, "
                f"found: {error.strerror}; name another folder for temporary files"
            ) from error

    def _fill(self, runs: _Runs, watch: Callable[[float | None], None] | None) -> None:
        raw_held: list[RawRecords] = []
        for block in self._source.blocks():
            raw_held.append(self._records(block))
            if sum(map(len, raw_held)) >= RUN_ROWS:
                self._write(runs, raw_held)
                raw_held = []
            if watch is not None:
                watch(block.fraction)
        self._write(runs, raw_held)

    def _records(self, block: Block) -> RawRecords:
        """Return the rows of a block that belong to a tick and to a key."""
        if block.at is None:
            raise ParameterError(
                "time", f"the column of {self.name} with the time of each row", None
            )
        raw_ticks = self._clock.tick_of(block.at)
        used = raw_ticks >= 1
        if self._length is not None:
            used &= raw_ticks <= self._length
        if block.key_of is not None:
            used &= block.key_of != UNDECLARED
        raw_columns = {
            name: raw_column[used]
            for name in _COLUMNS
            if (raw_column := getattr(block, name)) is not None
        }
        if "person" in raw_columns:
            assert self._pseudonyms is not None
            raw_columns["person"] = self._pseudonyms(raw_columns["person"].tolist())
        kinds = [(name, _COLUMNS[name]) for name in raw_columns]
        raw_records = np.empty(int(np.count_nonzero(used)), kinds)
        for name, raw_column in raw_columns.items():
            raw_records[name] = raw_column
        return raw_records

    def _write(self, runs: _Runs, raw_held: list[RawRecords]) -> None:
        if any(map(len, raw_held)):
            raw_run = np.concatenate(raw_held)
            raw_ticks = self._clock.tick_of(raw_run["at"])
            if (raw_ticks[1:] < raw_ticks[:-1]).any():
                order = np.argsort(raw_ticks, kind="stable")
                raw_run, raw_ticks = raw_run[order], raw_ticks[order]
            runs.add(raw_run, int(raw_ticks[0]), int(raw_ticks[-1]))

    def blocks(
        self, start: Position | None = None, *, block_rows: int | None = None
    ) -> Iterator[TickBlock]:
        """Sort the rows if that was not done, and return them from a position; see `Source`.

        **Privacy.** Touches raw data.
        """
        return self._from(start, rows_to_a_block(block_rows, self._block_rows), whole_ticks=True)

    def replay(self, start: Position | None, rows: int) -> Iterator[Block]:
        """Return again up to ``rows`` rows behind a position, as one block; see `Source`.

        **Privacy.** Touches raw data.
        """
        return islice(self._from(start, rows, whole_ticks=False), 1)

    def _from(self, start: Position | None, rows: int, *, whole_ticks: bool) -> Iterator[TickBlock]:
        start = _BEGINNING if start is None else start
        tick, taken = start.get("tick"), start.get("rows")
        if not is_integer(tick) or not is_integer(taken) or min(tick, taken) < 0:
            raise ParameterError("start", "a position by tick", type(start).__name__)
        self.sort()
        if self._runs is None:
            return iter(())
        cursors = self._cursors(self._runs, tick, taken)
        return self._blocks(cursors, {"tick": tick, "rows": taken}, rows, whole_ticks=whole_ticks)

    def behind(self, position: Position, closed: int) -> Position:
        """A position for other keys than those that it was found with, behind all closed ticks.

        Raises
        ------
        InputError
            If it is within a tick that is not closed: how many of its rows were read is not known.
        """
        if position["tick"] > closed:
            raise InputError(
                f"{self.name}: keys were changed while tick {closed + 1:,} was half read; restore "
                "the state from before, and stop it between two ticks: rillet run --until TIME"
            )
        return {"tick": closed + 1, "rows": 0}

    def close(self) -> None:
        """Close the source, and forget what was sorted."""
        self._source.close()
        if self._runs is not None:
            self._runs.close()
            self._runs = None

    def _cursors(self, runs: _Runs, tick: int, taken: int) -> list[_Cursor]:
        """Return where each run goes on behind so many rows of a tick."""

        def tick_at(row: int) -> int:
            return int(self._clock.tick_of(runs.read(row, 1)["at"])[0])

        window = max(LEAST_ROWS, MERGE_ROWS // max(1, len(runs.spans)))
        cursors = []
        for span in runs.spans:
            first = span.start + bisect_left(span, tick, key=tick_at)
            behind = span.start + bisect_left(span, tick + 1, key=tick_at)
            passed = min(taken, behind - first)
            taken -= passed
            cursors.append(_Cursor(runs, self._clock, range(first + passed, span.stop), window))
        if taken:
            raise InputError(
                f"{self.name}: expected more rows before the position to continue from, found "
                "fewer; this is not the file that was read before"
            )
        return cursors

    def _blocks(
        self, cursors: list[_Cursor], start: Position, rows: int, *, whole_ticks: bool
    ) -> Iterator[TickBlock]:
        """Cut by ticks and numbers of rows alone, so that the same blocks come again."""
        raw_groups = _merged(cursors, self._clock)
        raw_held = next(raw_groups, None)
        while raw_held is not None and not self._stop.is_set():
            raw_parts, held = [raw_held], len(raw_held)
            # One row more, to know which tick the next block begins with.
            while held <= rows and (raw_more := next(raw_groups, None)) is not None:
                raw_parts.append(raw_more)
                held += len(raw_more)
            raw_held = np.concatenate(raw_parts) if len(raw_parts) > 1 else raw_held
            cut = self._cut(raw_held, rows) if whole_ticks else rows
            raw_rows, raw_held = raw_held[:cut], raw_held[cut:] if held > cut else None
            block = self._block(raw_rows, raw_held, start)
            assert block.position is not None
            start = block.position
            yield block

    def _cut(self, raw_held: RawRecords, rows: int) -> int:
        """Return how many of these rows are the next block."""
        raw_ticks = self._clock.tick_of(raw_held["at"][: rows + 1])
        last = int(raw_ticks[-1])
        if len(raw_ticks) <= rows:
            last += 1  # they are all there are
        if self._block_ticks is not None:
            last = min(last, int(raw_ticks[0]) + self._block_ticks)
        # The rows of whole ticks, unless the first has too many.
        return int(np.searchsorted(raw_ticks, last)) or rows

    def _block(
        self, raw_rows: RawRecords, raw_next: RawRecords | None, start: Position
    ) -> TickBlock:
        raw_ticks = self._clock.tick_of(raw_rows["at"])
        last = int(raw_ticks[-1])
        count = int(np.count_nonzero(raw_ticks == last))
        if start["tick"] == last:
            count += start["rows"]
        if raw_next is None:
            complete_until = last if self._length is None else self._length
        else:
            complete_until = int(self._clock.tick_of(raw_next["at"][:1])[0]) - 1
        raw_columns: dict[str, Any] = {
            name: np.ascontiguousarray(raw_rows[name]) for name in raw_rows.dtype.names or ()
        }
        return TickBlock(
            position={"tick": last, "rows": count},
            fraction=None if self._length is None else complete_until / self._length,
            start=start,
            complete_until=complete_until,
            **raw_columns,
        )


class _Runs:
    """Sorted runs of rows in a file without a name. **Privacy.** Touches raw data."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._dtype: np.dtype[np.void] | None = None
        #: The rows of each run, numbered through the whole file.
        self.spans: list[range] = []
        self._last_tick = 0

    def add(self, raw_run: RawRecords, first_tick: int, last_tick: int) -> None:
        """Write one run behind the others; one run with the last, if its ticks follow."""
        self._dtype = raw_run.dtype
        first = self.spans[-1].stop if self.spans else 0
        raw_bytes = raw_run.view(np.uint8).data
        while raw_bytes:
            raw_bytes = raw_bytes[self._file.write(raw_bytes) :]
        end = first + len(raw_run)
        if self.spans and first_tick >= self._last_tick:
            first = self.spans.pop().start
        self._last_tick = last_tick
        self.spans.append(range(first, end))

    def read(self, first: int, rows: int) -> RawRecords:
        """Return consecutive rows."""
        assert self._dtype is not None
        raw_records = np.empty(rows, self._dtype)
        size = self._dtype.itemsize
        if (
            os.preadv(self._file.fileno(), [raw_records.view(np.uint8).data], first * size)
            < rows * size
        ):
            raise InputError("temporary file: expected the rows that were written, found fewer")
        return raw_records

    def close(self) -> None:
        """Close the file, which ends it."""
        self._file.close()


class _Cursor:
    """What is left of a run, of which some rows are held. **Privacy.** Touches raw data."""

    def __init__(self, runs: _Runs, clock: Clock, rows: range, window: int) -> None:
        self._runs, self._clock, self._rows, self._window = runs, clock, rows, window
        self._raw_held = runs.read(rows.start, 0)
        self._fill()

    def _fill(self) -> None:
        """Hold more rows, once half of them are taken."""
        more = min(self._window - self._raw_held.size, len(self._rows))
        if 2 * self._raw_held.size <= self._window:
            raw_more = self._runs.read(self._rows.start, more)
            self._raw_held = np.concatenate((self._raw_held, raw_more))
            self._rows = self._rows[more:]
        self._raw_ticks: IntArray = self._clock.tick_of(self._raw_held["at"])

    @property
    def head(self) -> int:
        """The tick of the next row; beyond all ticks if there is none."""
        return int(self._raw_ticks[0]) if self._raw_ticks.size else _NO_TICK

    @property
    def known_below(self) -> int:
        """Every row of a tick below this one is held."""
        return int(self._raw_ticks[-1]) if self._rows else _NO_TICK

    def take_below(self, tick: int) -> RawRecords:
        """Take the rows of ticks below one, as far as they are held."""
        count = int(np.searchsorted(self._raw_ticks, tick))
        raw_taken, self._raw_held = self._raw_held[:count], self._raw_held[count:]
        self._fill()
        return raw_taken


def _merged(cursors: list[_Cursor], clock: Clock) -> Iterator[RawRecords]:
    """Yield rows by tick, and within a tick in the order of runs, which is that of the source.

    **Privacy.** Touches raw data.
    """
    while (lowest := min((cursor.head for cursor in cursors), default=_NO_TICK)) < _NO_TICK:
        below = min(cursor.known_below for cursor in cursors)
        if below > lowest:
            raw_rows = np.concatenate([cursor.take_below(below) for cursor in cursors])
            yield raw_rows[np.argsort(clock.tick_of(raw_rows["at"]), kind="stable")]
            continue
        # A tick with more rows than are held: run after run.
        for cursor in cursors:
            while cursor.head == lowest:
                yield cursor.take_below(lowest + 1)
