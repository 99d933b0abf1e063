"""Releases as JSON lines, quickly: whole columns are spelled at once.

**Privacy.** Post-processing of released values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.release import Releases
from rillet.table import ReleaseTable

__all__ = ["key_text", "spell"]

#: Releases to a piece of text: about a megabyte.
_PIECE = 4096


def key_text(key: tuple[str | int, ...]) -> str:
    """The one way to write a key as text: compact JSON, in ASCII."""
    return _compact(key)


def spell(releases: ReleaseTable | Releases) -> Iterator[bytes]:
    r"""Yield the lines of JSON of all releases, many at a time, each line with its ``"\n"``.

    The text is that of ``release.to_record()`` to the last character. The first release says which
    names a record has; those that the table has as arrays are columns, the others are the same in
    every line.

    **Privacy.** Post-processing.
    """
    table = ReleaseTable.of(releases) if isinstance(releases, Releases) else releases
    for first in range(0, len(table), _PIECE):
        yield _lines(table[first : first + _PIECE].compact())


def _lines(table: ReleaseTable) -> bytes:
    columns: list[list[str]] = []
    # Some columns are there twice, as the mean is under "value" too: spelled once.
    spelled: dict[bytes, list[str]] = {}
    cells = []
    for name, constant in table[0].to_record().items():
        column = getattr(table, name, None)
        if name == "key":
            texts = list(map(key_text, table.keys))
            columns.append([texts[place] for place in table.key_of.tolist()])
        elif isinstance(column, np.ndarray):
            content = column.tobytes()
            if content not in spelled:
                spelled[content] = _texts(table, column)
            columns.append(spelled[content])
        else:
            cells.append(f"{_compact(name)}:{_compact(constant)}".replace("%", "%%"))
            continue
        cells.append(f"{_compact(name)}:%s")
    line = "{" + ",".join(cells) + "}\n"
    return "".join(map(line.__mod__, zip(*columns, strict=True))).encode("ascii")


def _texts(table: ReleaseTable, column: NDArray[Any]) -> list[str]:
    if column.dtype.kind != "f":
        return list(map(str, column.tolist()))
    # Clipping ranges rarely change: where they do not, once for each key.
    by_key = table.by_key(column) if len(table.keys) < len(table) else None
    if by_key is not None:
        texts = list(map(_text, by_key.tolist()))
        return [texts[place] for place in table.key_of.tolist()]
    if np.isfinite(column).all():
        return list(map(float.__repr__, column.tolist()))
    return list(map(_text, column.tolist()))


def _text(value: float) -> str:
    """What JSON has no number for is null."""
    return float.__repr__(value) if math.isfinite(value) else "null"


_compact = json.JSONEncoder(separators=(",", ":")).encode
