"""Sources and their blocks in one call, for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rillet.source import Block, DeclaredKeys, Position, Source, open_source


def read(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    start: Position | None = None,
    keys: DeclaredKeys | None = None,
    key_columns: Sequence[str] = (),
    stop: threading.Event | None = None,
    **options: Any,
) -> Iterator[Block]:
    declared = None if keys is None else DeclaredKeys(keys.keys, key_columns)
    table = {"path": path, "column": column, **options}
    return open_source(table, keys=declared, stop=stop).blocks(start)


read_csv = partial(read, format="csv")
read_json_lines = partial(read, format="jsonl")
read_parquet = partial(read, format="parquet")


def mqtt_source(
    address: str,
    topic: str,
    *,
    keys: DeclaredKeys | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Source:
    table = {"kind": "mqtt", "address": address, "topic": topic, **options}
    return open_source(table, keys=keys, stop=stop)
