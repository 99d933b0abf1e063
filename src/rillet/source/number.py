"""One rule for what counts as a number in text, for every source.

A cell is a number if Python's ``float`` reads its bytes, without underscores: decimal or
scientific notation in ASCII, with ``nan``, ``inf`` and ``infinity`` in any case and white space
around it. Numbers beyond the largest double are ±inf. Everything else is NaN.

**Privacy.** Touches raw data. Total: no cell raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rillet.source.block import FloatArray

__all__ = ["number", "numbers"]


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
