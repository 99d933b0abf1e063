"""Sinks behind one face: open at a place, deliver, and read back what is there by other means."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rillet.sink.file import FileSink
from rillet.sink.sqlite import SqliteSink
from rillet.table import ReleaseTable

Record = dict[str, Any]


class Harness:
    """One place that sinks write to."""

    #: Whether rows are read back in the order of delivery.
    ordered = False

    def open(self, place: Any = None) -> Any:
        raise NotImplementedError

    def records(self) -> list[Record]:
        """Everything that is published there, as records."""
        raise NotImplementedError

    def expected(self, tables: Iterable[ReleaseTable]) -> list[Record]:
        found = [release.to_record() for table in tables for release in table]
        return found if self.ordered else in_order(found)


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (json.dumps(record["key"]), record["t"]))


class FileHarness(Harness):
    ordered = True

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self.path, self.fsync = folder / "releases.jsonl", fsync

    def open(self, place: Any = None) -> FileSink:
        return FileSink(self.path, place=place, fsync=self.fsync)

    def records(self) -> list[Record]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


class SqliteHarness(Harness):
    def __init__(self, folder: Path, **more: Any) -> None:
        self.path, self.more = folder / "releases.db", more

    def open(self, place: Any = None) -> SqliteSink:
        return SqliteSink(self.path, place=place, **self.more)

    def records(self) -> list[Record]:
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            cursor = connection.execute("SELECT * FROM releases")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        finally:
            connection.close()
        for row in rows:
            row["key"] = json.loads(row["key"])
            row["post_processing"] = json.loads(row["post_processing"])
        return in_order(rows)


class PostgresHarness(Harness):
    def __init__(self, server: Any, table: str) -> None:
        self.server, self.table = server, table

    def open(self, place: Any = None) -> Any:
        from rillet.sink.postgres import PostgresSink

        return PostgresSink(self.server.dsn(), table=self.table, place=place)

    def records(self) -> list[Record]:
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(self.server.dsn(), row_factory=dict_row) as connection:
            rows = connection.execute(f"SELECT * FROM {self.table}").fetchall()
        for row in rows:
            row["key"] = json.loads(row["key"])
        return in_order(rows)


def disk_is_full() -> str:
    return os.strerror(28)
