"""The contract of a source: rows, blocks, positions, stop, silence, memory."""

from __future__ import annotations

import itertools
import json
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.source import Block, Position, Source
from rillet.testing.violation import ContractViolation
from rillet.times import now

__all__ = ["check_source"]

#: Rows to a block; the last stands for more than there are.
BLOCK_ROWS = (1, 2, 3, 7, 1 << 16)
#: Rows of a long source, and of one that is twice as long.
LONG = 200_000
LONG_BLOCK = 1_000


def check_source(
    make: Callable[[threading.Event], Source],
    raw_values: ArrayLike,
    *,
    key_of: ArrayLike | None = None,
    sequence: ArrayLike | None = None,
    at: ArrayLike | None = None,
    person: Sequence[bytes] | None = None,
    make_long: Callable[[int], Source] | None = None,
) -> None:
    """Check every promise of `rillet.source.Source`.

    Parameters
    ----------
    make
        Makes the source over the same rows each time, with the event that stops it. Give it rows
        that others get wrong: empty, no number, infinite, quoted, too long.
    raw_values
        What it must yield, NaN where there is no number; at least two rows.
    key_of, sequence, at, person
        The keys, sequence numbers, times and persons that it must yield; None if it was asked for
        none. White space around the text of a person does not count.
    make_long
        Makes the source over a given number of rows, to see that memory does not grow with them.

    Raises
    ------
    ContractViolation
        Naming the broken promise.
    """
    expected = {"key_of": key_of, "sequence": sequence, "at": at, "person": person}
    probe = _Probe(make, np.asarray(raw_values, np.float64), expected)
    # Nothing may be raised or said because of a value.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block_rows in BLOCK_ROWS:
            probe.check_rows(block_rows)
        probe.check_silence()
        probe.check_stop()
        if make(threading.Event()).replayable:
            for block_rows in BLOCK_ROWS:
                probe.check_resume(block_rows)
    if make_long is not None:
        _check_memory(make_long)


class _Probe:
    def __init__(
        self,
        make: Callable[[threading.Event], Source],
        raw_values: NDArray[np.float64],
        expected: Mapping[str, Any],
    ) -> None:
        self._make, self._raw_values = make, raw_values
        self._expected: dict[str, Any] = {"raw_values": raw_values, **expected}
        self._subject = make(threading.Event())

    def _violation(self, promise: str, detail: str) -> ContractViolation:
        return ContractViolation(promise, self._subject, detail)

    def _blocks(
        self, block_rows: int, start: Position | None = None, rows: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks of a source of its own until all rows have come, then stop it."""
        stop, rows = threading.Event(), self._raw_values.size if rows is None else rows
        with self._make(stop) as source:
            source.check()
            if rows == 0:
                stop.set()
            for block in source.blocks(start, block_rows=block_rows):
                rows -= len(block)
                yield block
                if rows <= 0:
                    stop.set()

    def _compare(self, blocks: list[Block], first: int, promise: str) -> None:
        for name, expected in self._expected.items():
            parts = [getattr(block, name) for block in blocks]
            if expected is None:
                if any(part is not None for part in parts):
                    raise self._violation(promise, f"expected no {name}, found some")
                continue
            if name == "person":
                raw_texts = [raw_text.strip() for part in parts for raw_text in part.tolist()]
                if raw_texts != list(self._expected["person"])[first:]:
                    raise self._violation(promise, f"expected other persons from row {first:,} on")
                continue
            whole = np.concatenate([np.asarray(expected)[:0], *parts])
            if not np.array_equal(whole, np.asarray(expected)[first:], equal_nan=True):
                raise self._violation(promise, f"expected other {name} from row {first:,} on")

    def check_rows(self, block_rows: int) -> None:
        """One row is one observation, in blocks of at most ``block_rows``; `check` takes none."""
        began = now()
        blocks = list(self._blocks(block_rows))
        for block in blocks:
            if not 0 < len(block) <= block_rows:
                expected = f"expected 1 to {block_rows:,} rows to a block"
                raise self._violation("blocks", f"{expected}, found {len(block):,}")
            if block.raw_values.dtype != np.float64 or block.raw_values.ndim != 1:
                raise self._violation("blocks", "expected float64 of one dimension")
            self._check_arrival(block, began)
        self._compare(blocks, 0, "one row, one observation")
        for before, after in itertools.pairwise(blocks):
            if before.position != after.start:
                raise self._violation("positions", "expected each block to start behind the last")

    def _check_arrival(self, block: Block, began: int) -> None:
        """Every row of a live source has the time when it was received; no other source has any."""
        if block.arrived is None:
            return
        if block.arrived.dtype != np.int64 or block.arrived.shape != block.raw_values.shape:
            raise self._violation("arrival", "expected int64, one for each row")
        if not np.all((began <= block.arrived) & (block.arrived <= now())):
            raise self._violation("arrival", "expected times between the start and now")

    def check_resume(self, block_rows: int) -> None:
        """Any position gives the rest again, and positions survive being kept as JSON."""
        first = 0
        for block in self._blocks(block_rows):
            if block.position is None or block.start is None:
                raise self._violation("positions", "expected some, as the source is replayable")
            position, start = (json.loads(json.dumps(p)) for p in (block.position, block.start))
            if (position, start) != (block.position, block.start):
                raise self._violation("positions", "expected JSON that compares equal")
            behind, rows = first + len(block), self._raw_values.size
            for other_rows in (block_rows, block_rows + 1):
                again = list(self._blocks(other_rows, start, rows - first))
                self._compare(again, first, "resume")
                rest = list(self._blocks(other_rows, position, rows - behind))
                self._compare(rest, behind, "resume")
            with self._make(threading.Event()) as source:
                replayed = list(source.replay(start, len(block)))
            ends = replayed and (replayed[0].start, replayed[-1].position) == (start, position)
            if not ends or sum(map(len, replayed)) != len(block):
                raise self._violation("resume", "expected a replay of the very same rows")
            first = behind

    def check_stop(self) -> None:
        """No block comes after a stop."""
        stop = threading.Event()
        with self._make(stop) as source:
            blocks = source.blocks(block_rows=1)
            next(blocks)
            stop.set()
            if next(blocks, None) is not None:
                raise self._violation("stop", "expected no block after it, found one")

    def check_silence(self) -> None:
        """No value is shown by ``repr``."""
        stop = threading.Event()
        with self._make(stop) as source:
            blocks = source.blocks()
            shown: list[Any] = [source, next(blocks), source.name, source.identity]
            stop.set()
        texts = [f"{value:g}" for value in self._raw_values[np.isfinite(self._raw_values)].tolist()]
        texts += [
            raw_text.decode("utf-8", "replace") for raw_text in self._expected["person"] or ()
        ]
        for text in texts:
            if len(text) > 3 and any(text in repr(thing) for thing in shown):
                raise self._violation("silence", "expected no value in repr or name, found one")


def _check_memory(make_long: Callable[[int], Source]) -> None:
    def peak(rows: int) -> int:
        source, count = make_long(rows), 0
        tracemalloc.start()
        try:
            with source:
                for block in source.blocks(block_rows=LONG_BLOCK):
                    count += len(block)
                    if count >= rows:
                        break
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(LONG_BLOCK)  # what is imported or cached at the first time
    short, long = peak(LONG), peak(2 * LONG)
    if long > 1.25 * short + 10_000:
        raise ContractViolation(
            "bounded memory",
            make_long(LONG_BLOCK),
            f"expected the same for {2 * LONG:,} rows as for {LONG:,}, found {long:,} bytes "
            f"and {short:,}",
        )
