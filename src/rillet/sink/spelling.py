"""Releases as JSON lines, quickly: whole columns are spelled at once.

**Privacy.** Post-processing of released values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.release import Releases
from rillet.sink.digits import Bytes, float_texts, integer_texts, text_rows
from rillet.table import ReleaseTable

__all__ = ["key_text", "spell"]

#: Bytes to a piece before its gaps are dropped: a few columns of it stay in the processor's cache.
_PIECE = 1 << 20


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
    if not len(table):
        return
    table = table.compact()
    form = _Form(table)
    rows = max(1, _PIECE // len(form.line))
    for first in range(0, len(table), rows):
        yield form.lines(table[first : first + rows])


@dataclass(frozen=True)
class _Gap:
    """A place in the line that differs: the texts of every key, or a column of the table."""

    start: int
    width: int
    name: str
    by_key: Bytes | None


class _Form:
    """A line with gaps, and what goes into them."""

    def __init__(self, table: ReleaseTable) -> None:
        pieces: list[bytes] = []
        self._gaps: list[_Gap] = []
        before = "{"
        for name, constant in table[0].to_record().items():
            pieces.append(f"{before}{_compact(name)}:".encode("ascii"))
            before = ","
            found = _keys(table) if name == "key" else _fixed_texts(table, name)
            if isinstance(found, bytes):
                pieces.append(found)
            elif found is None:
                pieces.append(_compact(constant).encode("ascii"))
            else:
                width, by_key = found
                self._gaps.append(_Gap(sum(map(len, pieces)), width, name, by_key))
                pieces.append(bytes(width))
        pieces.append(b"}\n")
        self.line = np.frombuffer(b"".join(pieces), np.uint8)

    def lines(self, part: ReleaseTable) -> bytes:
        """The lines of a part of the table."""
        texts = np.empty((len(part), len(self.line)), np.uint8)
        texts[:] = self.line
        # Some columns are there twice, as the mean is under "value" too: spelled once.
        spelled: dict[bytes, Bytes] = {}
        for gap in self._gaps:
            if gap.by_key is not None:
                cells = gap.by_key.take(part.key_of, axis=0)
            else:
                column = getattr(part, gap.name)
                content = column.tobytes()
                if content not in spelled:
                    spelled[content] = _texts(column)
                cells = spelled[content]
            texts[:, gap.start : gap.start + gap.width] = cells
        return texts.tobytes().translate(None, b"\0")


def _keys(table: ReleaseTable) -> tuple[int, Bytes]:
    texts = text_rows(list(map(_compact, table.keys)))
    return texts.shape[1], texts


def _fixed_texts(table: ReleaseTable, name: str) -> bytes | tuple[int, Bytes | None] | None:
    """What can be spelled before the rows: one text for all, or one for each key.

    Clipping ranges rarely change.  None: not a column of the table.
    """
    column = getattr(table, name)
    if not isinstance(column, np.ndarray):
        return None
    first = _texts(column[:1])
    bits = np.ascontiguousarray(column).view(np.uint64)
    if (bits == bits[0]).all():
        return first.tobytes().replace(b"\0", b"")
    width = first.shape[1]
    values = table.by_key(column) if len(table.keys) < len(table) // 4 else None
    return width, None if values is None else _texts(values)


def _texts(column: NDArray[Any]) -> Bytes:
    return float_texts(column) if column.dtype.kind == "f" else integer_texts(column)


_compact = json.JSONEncoder(separators=(",", ":")).encode
