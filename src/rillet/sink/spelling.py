"""Releases as JSON lines, quickly: whole columns are spelled at once.

**Privacy.** Post-processing of released values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rillet.release import FIELDS, Releases, key_text, time_text

__all__ = ["spell"]

#: Rows to a piece of text: about a megabyte.
_PIECE = 4096


def spell(releases: Releases) -> Iterator[bytes]:
    r"""Yield the lines of JSON of all records, many at a time, each line with its ``"\n"``.

    The text is that of the records that a `rillet.release.Release` iterates as, to the last
    character.

    **Privacy.** Post-processing.
    """
    step = max(_PIECE // max(len(releases.names), 1), 1)
    for first in range(0, len(releases), step):
        yield _lines(releases[first : first + step].compact())


def _lines(releases: Releases) -> bytes:
    width = len(releases.names)
    key_of = releases.key_of if width == 1 else np.repeat(releases.key_of, width)
    t = releases.rows("t")
    steps = list(map(str, t.tolist()))
    # Some columns are there twice, as the mean is under "value" too: spelled once.
    spelled = {t.astype(np.float64).tobytes(): [f"{step}.0" for step in steps]}
    line, columns = [], []
    for field in FIELDS:
        cells: list[str]
        if field.common:
            cells = [_compact(releases.common[field.name])]
        elif field.kind == "key":
            texts = list(map(key_text, releases.keys))
            cells = [texts[index] for index in key_of.tolist()]
        elif field.kind == "text":
            cells = list(map(_compact, releases.names)) * (len(releases) if width > 1 else 1)
        elif field.kind == "integer":
            cells = steps
        elif field.kind == "time":
            at = releases.at[:1] if (releases.at == releases.at[0]).all() else releases.rows("at")
            cells = [f'"{text}"' for text in time_text(at)]
        else:
            column = releases.rows(field.name)
            content = column.tobytes()
            if content not in spelled:
                spelled[content] = _texts(releases, key_of, column)
            cells = spelled[content]
        if len(cells) == 1:  # the same in every line
            line.append(f"{_compact(field.name)}:{cells[0]}".replace("%", "%%"))
        else:
            line.append(f"{_compact(field.name)}:%s")
            columns.append(cells)
    template = "{" + ",".join(line) + "}\n"
    if not columns:
        return (template % ()).encode("ascii")
    return "".join(map(template.__mod__, zip(*columns, strict=True))).encode("ascii")


def _texts(releases: Releases, key_of: NDArray[np.int64], column: NDArray[np.float64]) -> list[str]:
    """The text of each number, or a single one if all are the same."""
    bits = column.view(np.uint64)
    if bits[0] == bits[-1] and (bits == bits[0]).all():
        return [_text(column[0].item())]
    # Clipping ranges rarely change: where they do not, once for each key.
    by_key = releases.by_key(column) if len(releases.keys) < len(column) else None
    if by_key is not None:
        texts = list(map(_text, by_key.tolist()))
        return [texts[index] for index in key_of.tolist()]
    if np.isfinite(column).all():
        return list(map(float.__repr__, column.tolist()))
    return list(map(_text, column.tolist()))


def _text(value: float) -> str:
    """What JSON has no number for is null."""
    return float.__repr__(value) if math.isfinite(value) else "null"


_compact = json.JSONEncoder(separators=(",", ":")).encode
