"""From options to sinks: what is accepted, what is refused, and checks that leave no trace."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from helpers.servers import free_port
from rillet.errors import OutputError, ParameterError
from rillet.sink.registry import SINK_KINDS, check_sink, open_sink
from sink.tables import table


def options_of(kind, tmp_path, request):
    if kind == "jsonl":
        return {"kind": kind, "path": str(tmp_path / "out.jsonl"), "fsync": True}
    if kind == "sqlite":
        return {"kind": kind, "path": str(tmp_path / "out.db"), "synchronous": "full"}
    if kind == "postgres":
        server = request.getfixturevalue("database")
        return {"kind": kind, "dsn": server.dsn(), "table": "opened", "patience": 5}
    if kind == "mqtt":
        server = request.getfixturevalue("broker")
        return {
            "kind": kind,
            "address": f"{server.host}:{server.port}",
            "topic": "opened/{region}",
            "retain": True,
        }
    return {"kind": kind}


@pytest.mark.parametrize("kind", SINK_KINDS)
def test_every_kind_opens_and_goes_on_at_its_place(kind, tmp_path, request, capsys):
    options = options_of(kind, tmp_path, request)
    assert check_sink(options, key_columns=["region"])
    assert list(tmp_path.iterdir()) == []
    place = None
    for turn in range(2):
        sink = open_sink(options, place=place, key_columns=["region"])
        sink.deliver(table(first=51 + 20 * turn))
        place = sink.place()
        sink.close()
        assert check_sink(options, place=place, key_columns=["region"]) == sink.name
    if kind == "stdout":
        assert len(capsys.readouterr().out.splitlines()) == 80


def test_a_check_makes_no_table(database):
    options = {"kind": "postgres", "dsn": database.dsn(), "table": "only_checked"}
    check_sink(options)
    with psycopg.connect(database.dsn()) as connection:
        assert connection.execute("SELECT to_regclass('only_checked')").fetchone() == (None,)


@pytest.mark.parametrize("opening", [open_sink, check_sink])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"sink\.kind: expected one of jsonl, sqlite, postgres, mqtt, stdout, found None"),
        ({"kind": "json"}, r"sink\.kind: expected one of .*, found 'json'"),
        ({"kind": ["jsonl"]}, r"sink\.kind: expected one of"),
        ({"kind": "jsonl"}, r"sink\.path: expected one for a sink of kind jsonl, found 'none'"),
        ({"kind": "jsonl", "path": ""}, r"sink\.path"),
        ({"kind": "jsonl", "path": "x", "fsnc": True}, "found 'fsnc'; did you mean fsync"),
        ({"kind": "jsonl", "path": "x", "fsync": 1}, r"sink\.fsync: expected true or false"),
        ({"kind": "stdout", "path": "x"}, "options of stdout: none, found 'path'"),
        (
            {"kind": "sqlite", "path": "x", "synchronous": "off"},
            r"sink\.synchronous: expected one of normal",
        ),
        ({"kind": "postgres", "dsn": 5}, r"sink\.dsn: expected text, found 'int'"),
        ({"kind": "postgres", "patience": -1}, r"sink\.patience: expected a positive number"),
        ({"kind": "mqtt", "address": "127.0.0.1"}, r"sink\.topic: expected one"),
        ({"kind": "mqtt", "address": "127.0.0.1", "topic": "{meter}"}, "topic: expected names"),
    ],
)
def test_wrong_options(opening, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=message):
        opening(options, key_columns=["region"])


def test_checks_find_what_opening_would(tmp_path):
    gone = {"kind": "jsonl", "path": str(tmp_path / "no" / "out.jsonl")}
    with pytest.raises(OutputError, match=r"found no .*/no; make it"):
        check_sink(gone)
    folder = {"kind": "sqlite", "path": str(tmp_path)}
    with pytest.raises(OutputError, match=r"found a folder|unable to open"):
        check_sink(folder)
    lost = {"kind": "jsonl", "path": str(tmp_path / "out.jsonl")}
    with pytest.raises(OutputError, match="expected at least 7 bytes"):
        check_sink(lost, place={"offset": 7})
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE x(y)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(OutputError, match="a database of something else"):
        check_sink({"kind": "sqlite", "path": str(other)})
    assert other.read_bytes() == before
    with pytest.raises(OutputError, match="refused"):
        check_sink({"kind": "mqtt", "address": f"127.0.0.1:{free_port()}", "topic": "x"})
    with pytest.raises(OutputError, match="refused"):
        check_sink({"kind": "postgres", "dsn": f"host=127.0.0.1 port={free_port()}"})


def test_a_check_of_a_lost_file_makes_none(tmp_path):
    lost = {"kind": "jsonl", "path": str(tmp_path / "out.jsonl")}
    with pytest.raises(OutputError, match="expected at least 7 bytes"):
        check_sink(lost, place={"offset": 7})
    assert list(tmp_path.iterdir()) == []
