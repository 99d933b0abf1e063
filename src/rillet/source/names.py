"""Find a column among names, and say so if it is not there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rillet.errors import InputError, ParameterError
from rillet.source.number import number

__all__ = ["find_column", "listed"]

_MOST_NAMES = 20
_LONGEST_NAME = 40


def find_column(source: str, names: Sequence[str], column: str | None) -> int:
    """Return the index of ``column`` among ``names``, or of the only one if it is None.

    **Privacy.** Names are public. A file without a header has an observation where the names
    should be, so names of which any reads as a number are not repeated in an error.

    Raises
    ------
    InputError
        If the column is not there, or there twice, or the names look like data.
    ParameterError
        If ``column`` is None and there are several.
    """
    if column is not None and not isinstance(column, str):
        raise ParameterError("column", "the name of a column", column)
    if column is None:
        if _looks_like_data(names):
            raise InputError(
                f"{source}: expected a header line with names, found numbers; put a name on the "
                'first line, or read bare numbers, one to a line, with format="jsonl"'
            )
        if len(names) > 1:
            raise ParameterError("column", f"one of {listed(names)}", None)
        return 0
    wanted = column.strip()
    if wanted not in names:
        raise InputError(
            f"{source}: expected a column {wanted!r}, found {listed(names)}; "
            "name one of those, spelled as there"
        )
    if list(names).count(wanted) > 1:
        raise InputError(
            f"{source}: expected one column {wanted!r}, found several; rename all but one"
        )
    return list(names).index(wanted)


def listed(names: Sequence[str]) -> str:
    """Spell names for an error, unless they look like data."""
    if not names:
        return "no column"
    if _looks_like_data(names):
        return "numbers in place of names (not shown: they may be data)"
    shown = [
        repr(name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…")
        for name in names[:_MOST_NAMES]
    ]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _looks_like_data(names: Sequence[str]) -> bool:
    return any(not math.isnan(number(name.encode("utf-8", "replace"))) for name in names)
