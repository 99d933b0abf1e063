"""Declared keys, found again in the cells of a row.

Which keys exist is said in the plan, never learned from data: a key that appears because somebody
is in it reveals that somebody. A row whose key was not declared keeps its place in the block with
the number `UNDECLARED`; whoever absorbs the block drops it, silently.

**Privacy.** The declared keys are public. Which row has which key, and how many rows have none of
them, is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rillet.errors import ParameterError
from rillet.release import Key
from rillet.source.block import FloatArray, IntArray, is_integer

__all__ = ["UNDECLARED", "DeclaredKeys", "RawRows", "Wanted", "sequence_numbers"]

UNDECLARED = -1
NO_SEQUENCE = -1

_LARGEST_SEQUENCE = 2**63 - 1


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

    Raises
    ------
    ParameterError
        If there are none, if one is no such tuple, or if one is there twice.

    Examples
    --------
    >>> keys = DeclaredKeys([("north", 1), ("south", 1)])
    >>> keys.places([b"south", b"west", b" north"], [b"1", b"1", b"1\r"])
    array([ 1, -1,  0])
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys: tuple[Key, ...] = tuple(keys)
        if not self.keys:
            raise ParameterError("keys", "at least one declared key", keys)
        texts = [_texts(key) for key in self.keys]
        self.parts = len(texts[0])
        if any(len(text) != self.parts for text in texts):
            other = next(key for key in self.keys if len(key) != self.parts)
            raise ParameterError("keys", f"{self.parts} parts in each, as in the first", other)
        places = {text: place for place, text in enumerate(texts)}
        if len(places) < len(texts):
            twice = next(
                key for place, key in enumerate(self.keys) if places[texts[place]] != place
            )
            raise ParameterError("keys", "each key once, told apart by its text", twice)
        self._one = _Table({text[0]: place for text, place in places.items()})
        self._many = _TupleTable(places)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"DeclaredKeys({len(self)} keys of {self.parts} parts)"

    def places(self, *raw_columns: Sequence[bytes]) -> IntArray:
        """Return the place of each row's key, or `UNDECLARED`.

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


def text_of(raw_value: object) -> bytes:
    """Return the text of a value as a cell: text itself, integers in decimal, all else empty.

    **Privacy.** Touches raw data; total. No key has an empty part, so what is empty matches none.
    """
    if isinstance(raw_value, str):
        return raw_value.encode("utf-8", "surrogatepass")
    return str(raw_value).encode() if is_integer(raw_value) else b""


def sequence_numbers(raw_cells: Sequence[bytes], *, plain: bool = False) -> IntArray:
    """Return the sequence number in each cell, or -1 where there is none.

    A sequence number is an integer from 0 to 2^63 - 1 in decimal notation.

    **Privacy.** Touches raw data; total.

    Parameters
    ----------
    raw_cells : sequence of bytes
        The cells.
    plain : bool
        Whether it is known that none has an underscore.

    Examples
    --------
    >>> sequence_numbers([b" 7", b"", b"-3", b"1.5", b"9223372036854775808"])
    array([ 7, -1, -1, -1, -1])
    """
    if plain or b"_" not in b"".join(raw_cells):  # int() takes "1_000", as float() does.
        try:
            raw_found = np.fromiter(map(int, raw_cells), dtype=np.int64, count=len(raw_cells))
        except (ValueError, OverflowError):
            pass  # At least one cell holds none: read them one by one.
        else:
            return np.maximum(raw_found, NO_SEQUENCE)
    return np.fromiter(map(_sequence_number, raw_cells), dtype=np.int64, count=len(raw_cells))


def _sequence_number(raw_cell: bytes) -> int:
    try:
        raw_found = NO_SEQUENCE if b"_" in raw_cell else int(raw_cell)
    except ValueError:
        return NO_SEQUENCE
    return raw_found if 0 <= raw_found <= _LARGEST_SEQUENCE else NO_SEQUENCE


class RawRows(NamedTuple):
    """What a source takes from a run of rows. Touches raw data."""

    raw_values: FloatArray
    key_of: IntArray | None = None
    sequence: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which columns a reader takes from each row; checked when made.

    **Privacy.** Public names only.
    """

    column: str | None
    keys: DeclaredKeys | None = None
    key_columns: tuple[str, ...] = ()
    sequence_column: str | None = None

    @classmethod
    def checked(
        cls,
        column: str | None,
        keys: DeclaredKeys | None,
        key_columns: Sequence[str],
        sequence_column: str | None,
    ) -> Wanted:
        """Make one from a reader's parameters, or raise `ParameterError`."""
        if keys is not None and not isinstance(keys, DeclaredKeys):
            raise ParameterError("keys", "a DeclaredKeys or None", keys)
        if isinstance(key_columns, str) or not all(isinstance(name, str) for name in key_columns):
            raise ParameterError("key_columns", "a sequence of names", key_columns)
        parts = 0 if keys is None else keys.parts
        if len(key_columns) != parts:
            raise ParameterError(
                "key_columns",
                f"{parts} names, one for each part of a declared key"
                if parts
                else "none, as no keys are declared",
                tuple(key_columns),
            )
        if sequence_column is not None and not isinstance(sequence_column, str):
            raise ParameterError("sequence_column", "the name of a column", sequence_column)
        return cls(column, keys, tuple(key_columns), sequence_column)

    @property
    def only_values(self) -> bool:
        """Whether neither keys nor sequence numbers are asked for."""
        return self.keys is None and self.sequence_column is None
