"""Targets of sinks: open at a position, and read back what is there by other means."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC
from pathlib import Path
from typing import Any

from rillet.release import Releases, key_from_shown, key_shown
from rillet.sink import make_sink
from rillet.sink.base import Sink
from sink.tables import STRANGE_KEYS, records

Record = dict[str, Any]
#: A column of text cannot tell the number 18 from its digits.
SHOWN = {str(key_shown(key)): key for key in STRANGE_KEYS}


class Harness:
    """One target that sinks write to."""

    #: Whether rows are read back in the order of delivery.
    ordered = False
    options: dict[str, Any]

    def open(self, position: Any = None) -> Sink:
        return make_sink(self.options).open(position)

    def records(self) -> list[Record]:
        """Everything that is published there, as records."""
        raise NotImplementedError

    def expected(self, tables: list[Releases]) -> list[Record]:
        found = records(*tables)
        return found if self.ordered else in_order(found)


def in_order(rows: list[Record]) -> list[Record]:
    return sorted(rows, key=lambda row: (json.dumps(row["key"]), row["t"], row["name"]))


class FileHarness(Harness):
    ordered = True

    def __init__(self, folder: Path, **more: Any) -> None:
        self.path = folder / "releases.jsonl"
        self.options = {"kind": "jsonl", "path": str(self.path), **more}

    def records(self) -> list[Record]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


class SqliteHarness(Harness):
    def __init__(self, folder: Path, **more: Any) -> None:
        self.path = folder / "releases.db"
        self.options = {"kind": "sqlite", "path": str(self.path), **more}

    def records(self) -> list[Record]:
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            cursor = connection.execute("SELECT * FROM releases")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        finally:
            connection.close()
        return in_order(list(map(plain, rows)))


def plain(row: Record) -> Record:
    """A row of SQLite as a record."""
    key = list(key_from_shown(row["key"]))
    return {**row, "key": key, "post_processing": json.loads(row["post_processing"])}


class ParquetHarness(Harness):
    ordered = True

    def __init__(self, folder: Path, **more: Any) -> None:
        self.path = folder / "releases"
        self.options = {"kind": "parquet", "path": str(self.path), **more}

    def records(self) -> list[Record]:
        from pyarrow import dataset

        rows = dataset.dataset(self.path, format="parquet").to_table().to_pylist()
        for row in rows:
            row["at"] = f"{row['at']:%Y-%m-%dT%H:%M:%S.%fZ}"
            row["key"] = list(SHOWN.get(row["key"]) or key_from_shown(row["key"]))
        return rows


class PostgresHarness(Harness):
    def __init__(self, server: Any, table: str, **more: Any) -> None:
        self.server, self.table = server, table
        self.options = {"kind": "postgres", "dsn": server.dsn(), "table": table, **more}

    def records(self) -> list[Record]:
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(self.server.dsn(), row_factory=dict_row) as connection:
            rows = connection.execute(f"SELECT * FROM {self.table}").fetchall()
        for row in rows:
            row["at"] = f"{row['at'].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
            row["key"] = list(SHOWN.get(row["key"]) or key_from_shown(row["key"]))
        return in_order(rows)
