"""Releases as answers: JSON, CSV and Arrow, with the 95 % interval beside each record.

**Privacy.** Post-processing.
"""

from __future__ import annotations

import csv
import io
from typing import Any, Final

import msgspec
import numpy as np

from rillet.release import FIELDS, FloatArray, Releases, key_shown, time_text

__all__ = ["FORMATS", "columns", "encoded", "latest_rows", "records"]

#: How an answer is written, by its name and its media type.
FORMATS: Final = {
    "json": "application/json",
    "columns": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
}
_CONFIDENCE: Final = 0.95


def _intervals(releases: Releases) -> tuple[FloatArray, FloatArray]:
    """Both ends for each row."""
    if not len(releases):
        return np.empty(0), np.empty(0)
    ends = [releases[name].band(_CONFIDENCE) for name in releases.names]
    low, high = (np.stack(side, axis=1).reshape(-1) for side in zip(*ends, strict=True))
    return low, high


def _known(numbers: FloatArray) -> list[float | None]:
    """As JSON has them: what is not known is null."""
    return [number if abs(number) < np.inf else None for number in numbers.tolist()]


def records(releases: Releases) -> list[dict[str, Any]]:
    """One mapping for each record, with the names of JSON lines, and ``low`` and ``high``."""
    low, high = map(_known, _intervals(releases))
    rows = [record for release in releases for record in release]
    for row, one, other in zip(rows, low, high, strict=True):
        row["key"] = key_shown(tuple(row["key"]))
        row["low"], row["high"] = one, other
    return rows


def columns(releases: Releases) -> dict[str, Any]:
    """The releases of one key for a chart: a list for each name, times in milliseconds."""
    width = len(releases.names)
    low, high = _intervals(releases)

    def by_name(numbers: FloatArray) -> list[list[float | None]]:
        return [_known(numbers[index::width]) for index in range(width)]

    return {
        "names": releases.names,
        "t": releases.t.tolist(),
        "at": (releases.at.view(np.int64) / 1000).tolist(),
        "value": by_name(releases.rows("value")),
        "low": by_name(low),
        "high": by_name(high),
        "clip_lower": _known(releases.clip_lower),
        "clip_upper": _known(releases.clip_upper),
    }


def latest_rows(releases: Releases) -> list[dict[str, Any]]:
    """One short mapping for each release, with a list of values by name: for many keys at once."""
    width = len(releases.names)
    low, high = map(_known, _intervals(releases))
    value = _known(releases.rows("value"))
    at = (releases.at.view(np.int64) / 1000).tolist()
    shown = [key_shown(key) for key in releases.keys]
    return [
        {
            "key": shown[key],
            "t": t,
            "at": at[index],
            "value": value[index * width : (index + 1) * width],
            "low": low[index * width : (index + 1) * width],
            "high": high[index * width : (index + 1) * width],
        }
        for index, (key, t) in enumerate(
            zip(releases.key_of.tolist(), releases.t.tolist(), strict=True)
        )
    ]


def encoded(releases: Releases, form: str) -> bytes:
    """All of them in one of :data:`FORMATS`."""
    if form == "columns":
        return msgspec.json.encode(columns(releases))
    if form == "csv":
        return _csv(releases)
    if form == "arrow":
        return _arrow(releases)
    return msgspec.json.encode({"releases": records(releases)})


def _csv(releases: Releases) -> bytes:
    fields = [field.name for field in FIELDS if not field.common]
    low, high = map(_known, _intervals(releases))
    cells: list[list[Any]] = []
    width = len(releases.names)
    for name in fields:
        if name == "key":
            shown = [key_shown(key) for key in releases.keys]
            cells.append([shown[key] for key in releases.key_of.tolist() for _ in range(width)])
        elif name == "at":
            cells.append([text for text in time_text(releases.at) for _ in range(width)])
        elif name in ("t", "name"):
            cells.append(releases.rows(name).tolist())
        else:
            cells.append(_known(releases.rows(name)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([*fields, "low", "high"])
    writer.writerows(zip(*cells, low, high, strict=True))
    return text.getvalue().encode()


def _arrow(releases: Releases) -> bytes:
    from rillet.extras import import_extra

    pa = import_extra("pyarrow", package="pyarrow", extra="parquet", purpose="to answer in Arrow")
    table = releases.to_arrow()
    for name, side in zip(("low", "high"), _intervals(releases), strict=True):
        table = table.append_column(name, pa.array(side, mask=~np.isfinite(side)))
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()
