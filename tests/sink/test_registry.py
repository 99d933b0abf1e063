"""From options to sinks: what is accepted, what is refused, and checks that leave no trace."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import psycopg
import pytest

from helpers.servers import free_port
from rillet.errors import OutputError, ParameterError
from rillet.sink import SINKS, make_sink
from rillet.testing import check_sink
from sink.harness import FileHarness
from sink.tables import table


def options_of(kind, tmp_path, request):
    if kind == "jsonl":
        return {"kind": kind, "path": str(tmp_path / "out.jsonl"), "fsync": True}
    if kind == "sqlite":
        return {"kind": kind, "path": str(tmp_path / "out.db"), "synchronous": "full"}
    if kind == "parquet":
        return {"kind": kind, "path": str(tmp_path / "out")}
    if kind == "postgres":
        server = request.getfixturevalue("database")
        return {"kind": kind, "dsn": server.dsn(), "table": "opened", "patience": 5}
    if kind == "mqtt":
        server = request.getfixturevalue("broker")
        address = f"{server.host}:{server.port}"
        return {"kind": kind, "address": address, "topic": "opened/{region}", "retain": True}
    return {"kind": kind}


@pytest.mark.parametrize("kind", ["jsonl", "stdout", "sqlite", "parquet", "postgres", "mqtt"])
def test_every_kind_opens_and_goes_on_at_its_position(kind, tmp_path, request, capsys):
    options = options_of(kind, tmp_path, request)
    sink = make_sink(options, key_columns=["region"])
    sink.check()
    assert list(tmp_path.iterdir()) == []
    position = None
    for turn in range(2):
        with make_sink(options, key_columns=["region"]).open(position) as one:
            one.deliver(table(first=51 + 20 * turn))
            position = one.position()
        sink.check(position)
    if kind == "stdout":
        assert len(capsys.readouterr().out.splitlines()) == 80


def test_all_kinds_are_listed():
    assert SINKS.names() == ("jsonl", "stdout", "sqlite", "parquet", "postgres", "mqtt")


def test_a_check_makes_no_table(database):
    make_sink({"kind": "postgres", "dsn": database.dsn(), "table": "only_checked"}).check()
    with psycopg.connect(database.dsn()) as connection:
        assert connection.execute("SELECT to_regclass('only_checked')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"sink\.kind: expected a sink, one of jsonl, stdout, .* found nothing"),
        ({"kind": "json"}, r"sink\.kind: expected a sink, one of .*, found 'json'"),
        ({"kind": ["jsonl"]}, r"sink\.kind: expected a sink, one of"),
        ({"kind": "jsonl"}, r"sink\.path: expected an option that has no default, found none"),
        ({"kind": "jsonl", "path": ""}, r"sink\.path"),
        ({"kind": "jsonl", "path": "x", "fsnc": True}, "did you mean fsync"),
        ({"kind": "jsonl", "path": "x", "fsync": 1}, r"sink\.fsync: expected true or false"),
        ({"kind": "stdout", "path": "x"}, r"sink\.path: expected no options"),
        (
            {"kind": "sqlite", "path": "x", "synchronous": "off"},
            r"sink\.synchronous: expected one of (full, normal|normal, full)",
        ),
        ({"kind": "postgres", "dsn": 5}, r"sink\.dsn: expected text, found 5"),
        ({"kind": "postgres", "patience": -1}, r"sink\.patience: expected a number > 0"),
        ({"kind": "mqtt", "address": "127.0.0.1"}, r"sink\.topic: expected an option"),
        ({"kind": "mqtt", "address": "127.0.0.1", "topic": "{meter}"}, "topic: expected names"),
    ],
)
def test_wrong_options(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=message):
        make_sink(options, key_columns=["region"])


def test_no_text_of_an_option_is_shown():
    """It may be a password at the wrong place."""
    wrong = [
        {"kind": "jsonl", "path": "x", "fsync": "pass-phrase"},
        {"kind": "postgres", "dsn": "", "patience": "pass-phrase"},
        {"kind": "mqtt", "address": "a", "topic": "t", "tls": "pass-phrase"},
    ]
    for options in wrong:
        with pytest.raises(ParameterError) as caught:
            make_sink(options)
        assert "pass-phrase" not in str(caught.value)


def test_checks_find_what_opening_would(tmp_path):
    gone = make_sink({"kind": "jsonl", "path": str(tmp_path / "no" / "out.jsonl")})
    with pytest.raises(OutputError, match=r"found no .*/no; make it"):
        gone.check()
    for kind in ("sqlite", "jsonl"):
        with pytest.raises(OutputError, match=r"regular file|unable to open"):
            make_sink({"kind": kind, "path": str(tmp_path)}).check()
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE x(y)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(OutputError, match="a database of something else"):
        make_sink({"kind": "sqlite", "path": str(other)}).check()
    assert other.read_bytes() == before
    with pytest.raises(OutputError, match="refused"):
        make_sink({"kind": "mqtt", "address": f"127.0.0.1:{free_port()}", "topic": "x"}).check()
    with pytest.raises(OutputError, match="refused"):
        make_sink({"kind": "postgres", "dsn": f"host=127.0.0.1 port={free_port()}"}).check()


def test_a_check_of_a_lost_file_makes_none(tmp_path):
    lost = make_sink({"kind": "jsonl", "path": str(tmp_path / "out.jsonl")})
    with pytest.raises(OutputError, match="expected at least 7 bytes"):
        lost.check({"offset": 7})
    assert list(tmp_path.iterdir()) == []


def test_a_state_knows_a_file_as_seen_from_its_folder(tmp_path):
    sink = make_sink({"kind": "jsonl", "path": str(tmp_path / "a" / "out.jsonl")})
    assert sink.identity(tmp_path) == "jsonl:a/out.jsonl"
    assert sink.identity(tmp_path / "b") == sink.identity() == f"jsonl:{tmp_path}/a/out.jsonl"


# --- a sink of another package -------------------------------------------------------------------

PACKAGE = """
from pathlib import Path

from rillet.sink.base import Sink, SinkOptions, conflict

import json


class FolderSink(Sink):
    '''A file for each record, in a folder that exists.'''

    class Options(SinkOptions, frozen=True, tag="folder"):
        folder: str

    def __init__(self, options, *, key_columns=()):
        super().__init__(options, key_columns=key_columns)
        self.name = options.folder

    def _open(self, position):
        self._no_position(position)

    def _deliver(self, releases):
        new = {}
        for release in releases:
            for record in release:
                name = json.dumps([record["key"], record["t"], record["name"]])
                path = Path(self.name, name.encode().hex()[-200:])
                text = json.dumps(record)
                if path.exists() and path.read_text() != text:
                    raise conflict(self.name, release.key, release.t)
                new[path] = text
        for path, text in new.items():
            path.write_text(text)

    def _close(self):
        pass
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A package that is installed beside rillet."""
    site = tmp_path / "site"
    info = site / "folders-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: folders\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rillet.sinks]\nfolder = folders_sink:FolderSink\n")
    (site / "folders_sink.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(site)


class FolderTarget(FileHarness):
    def __init__(self, path):
        self.path = path
        self.options = {"kind": "folder", "folder": str(path)}
        path.mkdir()

    def records(self):
        import json

        return [json.loads(path.read_text()) for path in self.path.iterdir()]


def test_a_sink_of_another_package_is_found_and_checked(outside, tmp_path):
    assert "folder" in SINKS.names()
    assert "folders_sink" not in sys.modules
    with pytest.raises(ParameterError, match=r"sink\.folder: expected an option that has no def"):
        make_sink({"kind": "folder"})
    numbers = iter(range(100))
    quick = ["several_names", "again", "cut_differently", "other_values", "closed", "name"]
    check_sink(lambda: FolderTarget(tmp_path / str(next(numbers))), checks=quick)


def test_rillet_imports_no_sink():
    code = (
        "import sys, rillet, rillet.sink\n"
        "names = ('psycopg', 'paho', 'msgspec', 'rillet.sink.sqlite', 'rillet.sink.json_lines')\n"
        "print([name for name in names if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- files that sinks make -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@pytest.mark.parametrize(("umask", "mode"), [(0, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_only_the_owner_may_write_whatever_the_umask(kind, umask, mode, tmp_path):
    path = tmp_path / "out"
    before = os.umask(umask)
    try:
        sink = make_sink({"kind": kind, "path": str(path)}).open()
        sink.deliver(table())
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        sink.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {mode}, modes


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@pytest.mark.parametrize("exists", [True, False])
def test_no_file_is_written_through_a_link(kind, exists, tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "out"
    if exists:
        victim.write_text("")
    link.symlink_to(victim)
    with pytest.raises(OutputError, match="found a symbolic link; name the file"):
        make_sink({"kind": kind, "path": str(link)}).open()
    assert victim.exists() == exists
    assert not exists or victim.read_text() == ""
