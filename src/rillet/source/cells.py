"""What a cell holds: one rule for numbers, sequence numbers and names, for every source.

A cell is a number if Python's ``float`` reads its bytes, without underscores: decimal or
scientific notation in ASCII, with ``nan``, ``inf`` and ``infinity`` in any case and white space
around it. Numbers beyond the largest double are ±inf. Everything else is NaN.

**Privacy.** Touches raw data. Total: each cell is read by itself, and none raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from rillet.errors import InputError, ParameterError
from rillet.source.base import FloatArray, IntArray, is_integer

__all__ = ["find_column", "listed", "number", "numbers", "sequence_numbers", "text_of"]

NO_SEQUENCE = -1
_LARGEST_SEQUENCE = 2**63 - 1
_MOST_NAMES = 20


def number(raw_cell: bytes) -> float:
    """Return the number that a cell holds, or NaN.

    **Privacy.** Touches raw data; total.

    Examples
    --------
    >>> number(b" 12.5"), number(b"1e400"), number(b"1_000"), number(b"")
    (12.5, inf, nan, nan)
    """
    # float() takes "1_000", a notation of programs that no data format shares.
    if b"_" in raw_cell:
        return math.nan
    try:
        return float(raw_cell)
    except ValueError:
        return math.nan


def numbers(raw_cells: Sequence[bytes], *, plain: bool = False) -> FloatArray:
    """Return `number` of each cell as an array.

    **Privacy.** Touches raw data; total. Cells that are no numbers cost more time, before any
    release is made of them.

    Parameters
    ----------
    raw_cells : sequence of bytes
        The cells.
    plain : bool
        Whether it is known that none has an underscore.
    """
    if plain or b"_" not in b"".join(raw_cells):
        try:
            return np.fromiter(map(float, raw_cells), dtype=np.float64, count=len(raw_cells))
        except ValueError:
            # Empty cells are common and cheap to replace.
            raw_cells = [cell or b"nan" for cell in raw_cells]
        try:
            return np.fromiter(map(float, raw_cells), dtype=np.float64, count=len(raw_cells))
        except ValueError:
            pass  # At least one cell is no number: read them one by one.
    return np.fromiter(map(number, raw_cells), dtype=np.float64, count=len(raw_cells))


def sequence_numbers(raw_cells: Sequence[bytes], *, plain: bool = False) -> IntArray:
    """Return the sequence number in each cell, or -1 where there is none.

    A sequence number is an integer from 0 to 2^63 - 1 in decimal notation. ``plain`` is as for
    `numbers`.

    **Privacy.** Touches raw data; total.

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


def text_of(raw_value: object) -> bytes:
    """Return the text of a value as a cell: text itself, integers in decimal, all else empty.

    **Privacy.** Touches raw data; total. No key has an empty part, so what is empty matches none.
    """
    if isinstance(raw_value, str):
        return raw_value.encode("utf-8", "surrogatepass")
    if isinstance(raw_value, bytes):
        return raw_value
    return str(raw_value).encode() if is_integer(raw_value) else b""


def find_column(
    source: str, names: Sequence[str], column: str | None, *, declared: bool = True
) -> int:
    """Return the index of ``column`` among ``names``, or of the only one if it is None.

    **Privacy.** Names are public. But where they are not ``declared`` as such, in the first line of
    CSV, a file without a header has an observation in their place: then errors repeat no name,
    unless it is close to the one that was asked for.

    Raises
    ------
    InputError
        If the column is not there, or there twice.
    ParameterError
        If ``column`` is None and there are several.
    """
    if column is None:
        if len(names) != 1:
            if declared:
                raise ParameterError("column", f"one of {listed(names)}", None)
            raise ParameterError(
                "column",
                f"one of the {len(names):,} columns of {source}",
                None,
                "its first line has their names",
            )
        return 0
    wanted = column.strip()
    if wanted not in names:
        near = get_close_matches(wanted, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "name one of those, spelled as there"
        found = listed(names) if declared else f"{len(names):,} with other names"
        raise InputError(f"{source}: expected a column {wanted!r}, found {found}; {hint}")
    if list(names).count(wanted) > 1:
        raise InputError(
            f"{source}: expected one column {wanted!r}, found several; rename all but one"
        )
    return list(names).index(wanted)


def listed(names: Sequence[str]) -> str:
    """Spell names for an error: not all of many, and long ones cut."""
    shown = [repr(name if len(name) < 40 else f"{name[:38]}…") for name in names[:_MOST_NAMES]]
    more = len(names) - len(shown)
    return (", ".join(shown) + (f" and {more:,} more" if more else "")) or "no column"
