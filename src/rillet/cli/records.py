"""Releases as JSON lines, quickly: whole arrays are spelled at once.

**Privacy.** Post-processing of released values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rillet.release import Releases
from rillet.sink import JsonLinesSink

__all__ = ["ReleaseSink", "spell"]

#: Releases to a piece of text: about a megabyte.
_PIECE = 4096


class ReleaseSink(JsonLinesSink):
    """A :class:`rillet.sink.JsonLinesSink` that takes many releases of one stream at once.

    **Privacy.** Post-processing.

    **Delivery.** That of the sink; the text is the same to the last character.
    """

    def write_releases(self, releases: Releases) -> int:
        """Write every release, in order, and return how many there were."""
        for first in range(0, len(releases), _PIECE):
            self._put("".join(spell(releases[first : first + _PIECE])))
        return len(releases)


def spell(releases: Releases) -> Iterator[str]:
    """Yield the line of JSON of each release: that of ``release.to_record()``, and faster.

    The first release says which names a record has; those that ``releases`` has as arrays are
    columns, the others are the same in every line.
    """
    if not len(releases):
        return iter(())
    columns: list[list[str]] = []
    # Some columns are there twice, as the mean is under "value" too: spelled once.
    spelled: dict[bytes, list[str]] = {}
    cells = []
    for name, constant in releases[0].to_record().items():
        column = getattr(releases, name)
        if not isinstance(column, np.ndarray):
            cells.append(f"{_compact(name)}:{_compact(constant)}".replace("%", "%%"))
            continue
        cells.append(f"{_compact(name)}:%s")
        content = column.tobytes()
        if content not in spelled:
            spelled[content] = _texts(column)
        columns.append(spelled[content])
    line = "{" + ",".join(cells) + "}\n"
    return map(line.__mod__, zip(*columns, strict=True))


def _texts(column: np.ndarray[Any, Any]) -> list[str]:
    if column.dtype.kind != "f":
        return list(map(str, column.tolist()))
    if (column == column[0]).all():  # Clipping ranges rarely change.
        return [_text(float(column[0]))] * len(column)
    if np.isfinite(column).all():
        return list(map(float.__repr__, column.tolist()))
    return list(map(_text, column.tolist()))


def _text(value: float) -> str:
    """As the sink: what JSON has no number for is null."""
    return float.__repr__(value) if math.isfinite(value) else "null"


_compact = json.JSONEncoder(separators=(",", ":")).encode
