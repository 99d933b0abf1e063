"""What every sink promises: the shipped contract, for each kind and its modes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from rillet.release import Releases
from rillet.sink.base import Sink, SinkOptions, conflict
from rillet.testing import ContractViolation, check_sink
from rillet.testing.sink_contract import CHECKS
from sink.harness import FileHarness, Harness, ParquetHarness, PostgresHarness, SqliteHarness
from sink.listening import listening, wait_for
from sink.tables import records

KINDS = ["jsonl", "synced jsonl", "sqlite", "sqlite full", "parquet", "postgres", "mqtt", "stdout"]
NUMBERS = itertools.count()


class MqttHarness(Harness):
    """Everything that was published so far, heard by a client that was there before."""

    def __init__(self, server: Any, topic: str, heard: list[Any]) -> None:
        self.heard = heard
        address = f"{server.host}:{server.port}"
        self.options = {"kind": "mqtt", "address": address, "topic": topic}
        self.sent = 0

    def open(self, position: Any = None) -> Sink:
        sink = super().open(position)
        real = sink._deliver

        def counted(releases: Releases) -> None:
            real(releases)
            self.sent += len(releases) * len(releases.names)

        sink._deliver = counted
        return sink

    def records(self) -> list[dict[str, Any]]:
        wait_for(self.heard, self.sent)
        return [record for _, record, _ in self.heard]


class OutputHarness(Harness):
    def __init__(self, capsys: Any) -> None:
        self.options = {"kind": "stdout"}
        self.capsys, self.found = capsys, []

    def records(self) -> list[dict[str, Any]]:
        self.found += map(json.loads, self.capsys.readouterr().out.splitlines())
        return list(self.found)


@pytest.fixture(params=KINDS)
def new_target(request, tmp_path):
    kind = request.param
    if kind == "mqtt":
        server = request.getfixturevalue("broker")
        topic = f"contract/{next(NUMBERS)}"
        with listening(server, topic) as heard:
            yield lambda: MqttHarness(server, topic, heard)
        return
    yield {
        "jsonl": lambda: FileHarness(tmp_path),
        "synced jsonl": lambda: FileHarness(tmp_path, fsync=True),
        "sqlite": lambda: SqliteHarness(tmp_path),
        "sqlite full": lambda: SqliteHarness(tmp_path, synchronous="full"),
        "parquet": lambda: ParquetHarness(tmp_path),
        "stdout": lambda: OutputHarness(request.getfixturevalue("capsys")),
        "postgres": lambda: PostgresHarness(
            request.getfixturevalue("database"), f"contract_{next(NUMBERS)}"
        ),
    }[kind]


@pytest.mark.parametrize("check", CHECKS)
def test_every_kind_keeps_its_promises(new_target, check, request):
    weak = request.node.callspec.params["new_target"] in ("mqtt", "stdout")
    check_sink(new_target, exactly_once=not weak, checks=[check])


# --- Sinks that break a promise are found out ----------------------------------------------------


class ListTarget(Harness):
    """Rows in a mapping, behind a sink with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault, self.rows = fault, {}

    def open(self, position: Any = None) -> Sink:
        return ListSink(self).open(position)

    def records(self) -> list[dict[str, Any]]:
        return [row for rows in self.rows.values() for row in rows]


class ListSink(Sink):
    class Options(SinkOptions, frozen=True, tag="list"):
        pass

    name = "of rows"

    def __init__(self, target: ListTarget) -> None:
        super().__init__(self.Options())
        self.rows, self.fault = target.rows, target.fault

    def identity(self, folder=None):
        return "list" if self.fault == "name" else super().identity()

    def _open(self, position):
        if self.fault != "positions":
            self._no_position(position)

    def _deliver(self, releases):
        taken = self.rows if self.fault == "half" else dict(self.rows)
        # In any order: a sink need not look at the rows as they come.
        for row in reversed(records(releases)):
            identity = (tuple(row["key"]), row["t"], row["name"])
            identity = identity[:2] if self.fault == "several_names" else identity
            if self.fault == "exact" and row["clipped_share"] is None:
                row["clipped_share"] = 0.0
            known = taken.get(identity)
            if known and self.fault != "another_time":
                row["at"] = known[0]["at"]
            if known and self.fault == "again":
                known.append(row)
            elif known and known != [row] and self.fault != "other_values":
                raise conflict(self.name, identity[0], row["t"])
            taken[identity] = known or [row]
        self.rows.update(taken)

    def _close(self):
        self._is_open = self.fault == "closed"


@pytest.mark.parametrize(
    "fault",
    [
        "exact",
        "several_names",
        "again",
        "another_time",
        "other_values",
        "half",
        "closed",
        "positions",
        "name",
    ],
)
def test_a_broken_promise_is_found(fault):
    check = "other_values" if fault == "half" else fault
    check_sink(lambda: ListTarget("none"), checks=[check])
    with pytest.raises(ContractViolation):
        check_sink(lambda: ListTarget(fault), checks=[check])
