"""Declared keys, found again in the cells of a row.

Which keys exist is said in the plan, never learned from data: a key that appears because somebody
is in it reveals that somebody. A row whose key was not declared stays in its block with the index
`UNDECLARED`; whoever absorbs the block drops it, silently.

**Privacy.** The declared keys are public. Which row has which key, and how many rows have none of
them, is private.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rillet.errors import ParameterError
from rillet.release import Key
from rillet.source.base import FloatArray, IntArray, RawRows, is_integer
from rillet.source.cells import sequence_numbers, text_of

__all__ = ["UNDECLARED", "DeclaredKeys", "RawTexts", "Wanted"]

UNDECLARED = -1

WordArray = npt.NDArray[np.uint64]


class RawTexts(NamedTuple):
    """Cells of a column, one behind the other. **Privacy.** Touches raw data."""

    #: Where in the bytes each cell begins, and where the last one ends.
    offsets: IntArray
    raw_bytes: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, raw_cells: Sequence[bytes]) -> RawTexts:
        """Put cells one behind the other."""
        offsets = np.fromiter(accumulate(map(len, raw_cells), initial=0), np.int64)
        return cls(offsets, np.frombuffer(b"".join(raw_cells), np.uint8))

    def cells(self, rows: IntArray) -> list[bytes]:
        """Return some of them."""
        starts, ends = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist()
        return [
            self.raw_bytes[start:end].tobytes() for start, end in zip(starts, ends, strict=True)
        ]


class DeclaredKeys:
    r"""The keys of a plan, numbered in the order of their declaration.

    A cell is a part of a key if its text, without the white space around it, is the part's text;
    the text of an integer is its decimal notation, so ``3`` is found in ``" 3"`` and not in
    ``"03"`` or ``"3.0"``.

    **Privacy.** The keys are public; what is looked up is private, and nothing raises because of
    it.

    Parameters
    ----------
    keys : sequence of tuple
        Each a tuple of text and integers, all of one length, no two of the same text.
    columns : sequence of str
        The columns or fields that hold the parts of a row's key, in the order of the parts; none
        for a source that finds keys elsewhere, as in the topic of a message.

    Raises
    ------
    ParameterError
        If there are no keys, if one is no such tuple or is there twice, or if there are not as many
        columns as parts.

    Examples
    --------
    >>> keys = DeclaredKeys([("north", 1), ("south", 1)])
    >>> keys.indexes([b"south", b"west", b" north"], [b"1", b"1", b"1\r"])
    array([ 1, -1,  0])
    """

    def __init__(self, keys: Sequence[Key], columns: Sequence[str] = ()) -> None:
        self.keys: tuple[Key, ...] = tuple(keys)
        if not self.keys:
            raise ParameterError("keys", "at least one declared key", keys)
        self._texts = texts = _all_texts(self.keys)
        self.parts = len(texts[0])
        if set(map(len, texts)) != {self.parts}:
            other = next(key for key in self.keys if len(key) != self.parts)
            raise ParameterError("keys", f"{self.parts} parts in each, as in the first", other)
        if len(set(texts)) < len(texts):
            last = {text: index for index, text in enumerate(texts)}
            twice = next(key for index, key in enumerate(self.keys) if last[texts[index]] != index)
            raise ParameterError("keys", "each key once, told apart by its text", twice)
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise ParameterError("key_columns", "a sequence of names", columns)
        self.columns = tuple(columns)
        if self.columns and len(self.columns) != self.parts:
            raise self.wrong_columns()

    def wrong_columns(self) -> ParameterError:
        """Return the error for too few or too many columns."""
        expected = f"{self.parts} names, one for each part of a declared key"
        return ParameterError("key_columns", expected, self.columns)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"DeclaredKeys({len(self)} keys of {self.parts} parts)"

    def indexes(self, *raw_columns: Sequence[bytes]) -> IntArray:
        """Return the index of each row's key, or `UNDECLARED`.

        **Privacy.** Touches raw data; total. Cells that match only without their white space, and
        those that match nothing, cost more time, before any release is made of them.

        Parameters
        ----------
        *raw_columns : sequence of bytes
            The cells of each key column, in the order of the parts, all of one length.
        """
        count = len(raw_columns[0])
        # One look-up in C for each row; what is not there goes through ``__missing__``.
        raw_keys: Iterable[Any] = (
            raw_columns[0] if self.parts == 1 else zip(*raw_columns, strict=True)
        )
        found = map(self._table.__getitem__, raw_keys)
        return np.fromiter(found, dtype=np.int64, count=count)

    def find(self, *raw_columns: RawTexts) -> IntArray:
        """As `indexes`, of all rows at once.

        **Privacy.** As `indexes`.
        """
        widths, table = self._words
        raw_parts = zip(raw_columns, widths, strict=True)
        raw_packed, raw_fit = zip(*(_packed(*raw_part) for raw_part in raw_parts), strict=True)
        raw_found = table.find([word for raw_words in raw_packed for word in raw_words])
        raw_found[~np.logical_and.reduce(raw_fit)] = UNDECLARED
        raw_others = np.flatnonzero(raw_found == UNDECLARED)
        if raw_others.size:
            raw_cells = [raw_column.cells(raw_others) for raw_column in raw_columns]
            raw_found[raw_others] = self.indexes(*raw_cells)
        return raw_found

    @cached_property
    def _table(self) -> dict[Any, int]:
        if self.parts == 1:
            return _Table({text: index for index, (text,) in enumerate(self._texts)})
        return _TupleTable({text: index for index, text in enumerate(self._texts)})

    @cached_property
    def _words(self) -> tuple[list[int], _WordTable]:
        """How many words each part takes, and all keys by their words."""
        parts = range(self.parts)
        columns = [RawTexts.of([text[part] for text in self._texts]) for part in parts]
        widths = [int(np.diff(column.offsets).max()) // 8 + 1 for column in columns]
        packed = (_packed(columns[part], widths[part])[0] for part in parts)
        return widths, _WordTable([word for words in packed for word in words])


def _packed(raw_texts: RawTexts, width: int) -> tuple[list[WordArray], npt.NDArray[np.bool_]]:
    """Return the cells as words of eight bytes, a 1 behind the last; and whether they fit.

    The 1 tells how long a cell is, so that different ones that fit have different words.
    """
    starts, lengths = raw_texts.offsets[:-1], np.diff(raw_texts.offsets)
    raw_bytes = np.concatenate([raw_texts.raw_bytes, np.zeros(8, np.uint8)])
    raw_words = np.ndarray(len(raw_bytes) - 7, "<u8", raw_bytes, strides=(1,))
    raw_packed = []
    for word in range(width):
        left = np.clip(lengths - 8 * word, -1, 8)
        raw_here = raw_words[np.minimum(starts + 8 * word, len(raw_words) - 1)]
        raw_packed.append((raw_here & _MASKS[left]) | _ENDS[left])
    return raw_packed, lengths < 8 * width


#: By how many bytes of a text are left, eight and more or none at all (-1): which bits of a word
#: are its own, and the 1 behind its end.
_MASKS = np.array([(1 << 8 * left) - 1 for left in range(9)] + [0], np.uint64)
_ENDS = np.array([1 << 8 * left for left in range(8)] + [0, 0], np.uint64)
#: Odd, with bits that look random: 2^64 divided by the golden ratio.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class _WordTable:
    """Numbers of rows of words, found for many at once: open addressing, at most half full."""

    def __init__(self, words: list[WordArray]) -> None:
        self._words, count = words, len(words[0])
        bits = max(4, (2 * count - 1).bit_length())
        self._shift, self._last = np.uint64(64 - bits), (1 << bits) - 1
        self._slots = np.full(1 << bits, UNDECLARED, np.int32)
        rows, slots = np.arange(count, dtype=np.int32), self._first(words)
        while rows.size:
            free = self._slots[slots] == UNDECLARED
            self._slots[slots[free]] = rows[free]  # of several that want it one gets it
            left = self._slots[slots] != rows
            rows, slots = rows[left], (slots[left] + 1) & self._last

    def find(self, raw_words: list[WordArray]) -> IntArray:
        """Return the number of each row, or `UNDECLARED`. **Privacy.** Touches raw data; total."""
        raw_found = np.full(len(raw_words[0]), UNDECLARED, np.int64)
        raw_rows, raw_slots = np.arange(len(raw_found)), self._first(raw_words)
        while raw_rows.size:
            raw_candidates = self._slots[raw_slots]
            raw_same = np.ones(len(raw_rows), bool)
            for word, raw_word in zip(self._words, raw_words, strict=True):
                raw_same &= word[raw_candidates] == raw_word[raw_rows]
            raw_taken = raw_candidates != UNDECLARED
            raw_same &= raw_taken
            raw_found[raw_rows[raw_same]] = raw_candidates[raw_same]
            raw_left = raw_taken & ~raw_same
            raw_rows, raw_slots = raw_rows[raw_left], (raw_slots[raw_left] + 1) & self._last
        return raw_found

    def _first(self, raw_words: list[WordArray]) -> IntArray:
        """Return the slot at which the search for each row begins."""
        raw_hash = raw_words[0] * _SPREAD
        for raw_word in raw_words[1:]:
            raw_hash = (raw_hash ^ (raw_hash >> np.uint64(32)) ^ raw_word) * _SPREAD
        raw_hash ^= raw_hash >> np.uint64(29)
        return ((raw_hash * _SPREAD) >> self._shift).astype(np.int64)


def _all_texts(keys: Sequence[Key]) -> list[tuple[bytes, ...]]:
    """Return the texts of each key."""
    if set(map(type, keys)) == {tuple} and set(map(len, keys)) == {1}:  # quick for a million
        parts = [part for (part,) in keys]
        if set(map(type, parts)) == {str}:
            texts = [str(part).encode("utf-8", "surrogatepass").strip() for part in parts]
            if all(texts):
                return list(zip(texts, strict=True))
    return [_texts(key) for key in keys]


def _texts(key: object) -> tuple[bytes, ...]:
    if not isinstance(key, tuple) or not key:
        raise ParameterError("keys", "tuples of text and integers", key)
    if not all(isinstance(part, str) or is_integer(part) for part in key):
        raise ParameterError("keys", "tuples of text and integers", key)
    texts = tuple(text_of(part).strip() for part in key)
    if not all(texts):
        raise ParameterError("keys", "parts with at least one visible character", key)
    return texts


class _Table(dict[bytes, int]):
    def __missing__(self, raw_cell: bytes) -> int:
        return self.get(raw_cell.strip(), UNDECLARED)


class _TupleTable(dict[tuple[bytes, ...], int]):
    def __missing__(self, raw_cells: tuple[bytes, ...]) -> int:
        return self.get(tuple(cell.strip() for cell in raw_cells), UNDECLARED)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a format takes from each row. **Privacy.** Public names only."""

    #: The column with the values; None if there is only one, or nothing but values.
    column: str | None
    keys: DeclaredKeys | None = None
    #: The column with sequence numbers.
    sequence: str | None = None
    #: The column with times, and the zone of those that name none.
    time: str | None = None
    zone: str | None = None
    #: The column with the id of each row's person.
    person: str | None = None

    @property
    def texts(self) -> list[str]:
        """The columns of text beside the values: the parts of the key, sequence numbers, person."""
        keys = [] if self.keys is None else list(self.keys.columns)
        return [*keys, *(name for name in (self.sequence, self.person) if name is not None)]

    @property
    def names(self) -> list[str]:
        """All columns beside the values: those of text, then the times."""
        return self.texts if self.time is None else [*self.texts, self.time]

    def raw_rows(
        self,
        raw_values: FloatArray,
        raw_columns: Sequence[Sequence[bytes]],
        raw_at: IntArray | None,
        *,
        raw_key_of: IntArray | None = None,
        plain: bool = False,
    ) -> RawRows:
        """Return values with keys, sequence numbers, times and persons, from the cells of `texts`.

        Where keys have been found already, ``raw_columns`` are those behind them.  ``plain`` is as
        for `rillet.source.cells.numbers`.

        **Privacy.** Touches raw data; total.
        """
        if self.keys is not None and self.keys.columns and raw_key_of is None:
            parts = len(self.keys.columns)
            raw_key_of, raw_columns = self.keys.indexes(*raw_columns[:parts]), raw_columns[parts:]
        return RawRows(
            raw_values,
            raw_key_of,
            None if self.sequence is None else sequence_numbers(raw_columns[0], plain=plain),
            raw_at,
            None if self.person is None else np.array(raw_columns[-1], object),
        )
