"""Declared keys, found again in the cells of a row.

Which keys exist is said in the plan, never learned from data: a key that appears because somebody
is in it reveals that somebody. A row whose key was not declared stays in its block with the index
`UNDECLARED`; whoever absorbs the block drops it, silently.

**Privacy.** The declared keys are public. Which row has which key, and how many rows have none of
them, is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rillet.errors import ParameterError
from rillet.release import Key
from rillet.source.base import FloatArray, IntArray, RawRows, is_integer
from rillet.source.cells import sequence_numbers, text_of

__all__ = ["UNDECLARED", "DeclaredKeys", "Wanted"]

UNDECLARED = -1


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
        texts = [_texts(key) for key in self.keys]
        self.parts = len(texts[0])
        if any(len(text) != self.parts for text in texts):
            other = next(key for key in self.keys if len(key) != self.parts)
            raise ParameterError("keys", f"{self.parts} parts in each, as in the first", other)
        indexes = {text: index for index, text in enumerate(texts)}
        if len(indexes) < len(texts):
            twice = next(
                key for index, key in enumerate(self.keys) if indexes[texts[index]] != index
            )
            raise ParameterError("keys", "each key once, told apart by its text", twice)
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise ParameterError("key_columns", "a sequence of names", columns)
        self.columns = tuple(columns)
        if self.columns and len(self.columns) != self.parts:
            raise self.wrong_columns()
        self._one = _Table({text[0]: index for text, index in indexes.items()})
        self._many = _TupleTable(indexes)

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
        found = (
            map(self._one.__getitem__, raw_columns[0])
            if self.parts == 1
            else map(self._many.__getitem__, zip(*raw_columns, strict=True))
        )
        return np.fromiter(found, dtype=np.int64, count=count)


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
        plain: bool = False,
    ) -> RawRows:
        """Return values with keys, sequence numbers, times and persons, from the cells of `texts`.

        ``plain`` is as for `rillet.source.cells.numbers`.

        **Privacy.** Touches raw data; total.
        """
        parts = 0 if self.keys is None else len(self.keys.columns)
        return RawRows(
            raw_values,
            self.keys.indexes(*raw_columns[:parts]) if self.keys and parts else None,
            None if self.sequence is None else sequence_numbers(raw_columns[parts], plain=plain),
            raw_at,
            None if self.person is None else np.array(raw_columns[-1], object),
        )
