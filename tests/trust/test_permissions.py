"""Files, modes and messages: what is small, and still lets somebody in (FINDINGS D12)."""

from __future__ import annotations

import contextlib
import grp
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rillet
from helpers.servers import free_port
from trust.runs import DONE, FAILED, PLAN, REFUSED, WRONG, Desk, mode, wait_until

CONFIG = """
[plan]
mechanism = "baseline"
epsilon = 1.0
upper = 1000.0
length = 1000

[source]
path = "in.csv"
block_rows = 2

[state]
folder = "live"
"""


def sink(**options):
    """A table of a configuration."""
    words = {
        name: f'"{value}"' if isinstance(value, str) else value for name, value in options.items()
    }
    return "\n[[sink]]\n" + "\n".join(f"{name} = {value}" for name, value in words.items()) + "\n"


# --- Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["live/opening.new", "live/plan.json.new", "secret.uses"])
def test_nothing_is_written_through_a_link_that_somebody_planted(desk, name):
    desk.csv("in.csv", [10, 20])
    secret = desk.secret()
    (desk / "live").mkdir()
    (desk / name).symlink_to(desk / "victim")
    desk.run("in.csv", "--state", "live", "--secret", secret)
    assert not (desk / "victim").exists()


def test_modes_do_not_depend_on_the_umask(desk):
    desk.csv("in.csv", [10, 20])
    secret = desk.secret()
    before = os.umask(0)
    try:
        assert desk.run("in.csv", "--state", "live", "--secret", secret).code == DONE
    finally:
        os.umask(before)
    modes = {path.name: mode(path) for path in [*(desk / "live").iterdir(), desk / "secret.uses"]}
    assert not {name for name, found in modes.items() if found & 0o022}
    assert modes["state.db"] == 0o600


# --- Who may read --------------------------------------------------------------------------------

READERS = {"owner": 0o600, "everyone": 0o644, "group": 0o640}


def some_group() -> grp.struct_group:
    """A group that files can be given to; if there is a choice, one that new files do not have."""
    groups = [one for one in grp.getgrall() if os.geteuid() == 0 or one.gr_gid in os.getgroups()]
    return next((one for one in groups if one.gr_gid != os.getegid()), groups[0])


def published(live: Path) -> list[Path]:
    """What a run writes for readers."""
    names = ["releases.db*", "releases/*.parquet", "about.json", "progress.json"]
    return [path for name in names for path in live.glob(name)]


@pytest.mark.parametrize("umask", [0, 0o077])
@pytest.mark.parametrize("form", ["sqlite", "parquet"])
@pytest.mark.parametrize("who", READERS)
def test_those_who_are_named_may_read_whatever_the_umask(desk, who, form, umask):
    """Mode and group of each file, while the run lives and when it has ended."""
    desk.csv("in.csv", [10, 20])
    group = some_group()
    readers = group.gr_name if who == "group" else who
    seen = {}

    def look(_):
        seen.update({path.name: path.stat() for path in published(desk / "live")})

    before = os.umask(umask)
    try:
        with contextlib.chdir(desk.folder):
            rillet.run(config(releases=form, readers=readers), watch=look)
    finally:
        os.umask(before)
    ended = {path.name: path.stat() for path in published(desk / "live")}
    assert len(ended) == 3
    assert form == "parquet" or {"releases.db-wal", "releases.db-shm"} <= set(seen)
    for found in (*seen.values(), *ended.values()):
        assert stat.S_IMODE(found.st_mode) == READERS[who]
        assert who != "group" or found.st_gid == group.gr_gid
    # The way to them, and no way to the rest.
    enter = {"owner": 0o700, "everyone": 0o711, "group": 0o710}[who]
    assert mode(desk / "live") == enter
    assert form == "sqlite" or mode(desk / "live" / "releases") == enter | (enter & 0o011) << 2
    assert mode(desk / "live" / "state.db") == mode(desk / "live" / "key") == 0o600


def config(**state):
    """A run of the file in the folder ``live``."""
    plan = {"mechanism": "baseline", "epsilon": 1.0, "upper": 1000.0, "length": 1000}
    return {"plan": plan, "source": {"path": "in.csv"}, "state": {"folder": "live", **state}}


def test_a_later_run_may_give_the_releases_to_others(desk):
    desk.csv("in.csv", [10, 20])
    modes = []
    for who in ("everyone", "owner"):
        assert desk.run("in.csv", "--state", "live", "--readers", who).code == DONE
        modes.append({path.name: mode(path) for path in published(desk / "live")})
    assert [set(found.values()) for found in modes] == [{0o644}, {0o600}]


READ = """
import os, sqlite3, sys
path, group = sys.argv[1], int(sys.argv[2])
if os.geteuid() == 0:
    os.setgroups([group] if group else [])
    os.setgid(65534)
    os.setuid(65534)
    for name in ("state.db", "key"):
        try:
            open(f"{path}/{name}")
        except PermissionError:
            continue
        sys.exit(f"{name} can be opened")
open(f"{path}/about.json"), open(f"{path}/progress.json")
database = sqlite3.connect(f"file:{path}/releases.db?mode=ro", uri=True)
print(database.execute("SELECT count(*) FROM releases").fetchone()[0])
"""


@pytest.mark.parametrize("open_meanwhile", [True, False])
def test_a_member_of_the_group_can_read_and_a_stranger_cannot(open_meanwhile):
    """Other accounts, in processes of their own, while the run writes and afterwards.

    Only root can become another account: elsewhere the run's own account reads.
    """
    group = some_group()
    found = {}

    def read(live, own):
        command = [sys.executable, "-S", "-c", READ, str(live), str(own)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    def look(summary):
        if not open_meanwhile or summary.delivered == 2:
            found.update({own: read(folder / "live", own) for own in (group.gr_gid, 0)})

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        Desk(folder / "desk").csv("../in.csv", [10, 20])
        with contextlib.chdir(folder):
            rillet.run(config(readers=group.gr_name), watch=look if open_meanwhile else None)
        if not open_meanwhile:
            look(None)
    assert found[group.gr_gid] == "2"
    assert os.geteuid() != 0 or "PermissionError" in found[0]


SHOW = """
import os, sys
from rillet.sink.reading import read_releases
import pyarrow.parquet, pyarrow.compute
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(65534)
try:
    print(len(read_releases(sys.argv[1])))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_what_shows_releases_says_when_it_may_not_read_them(form):
    group = some_group()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        (folder / "in.csv").write_text("x\n10\n20\n", encoding="utf-8")
        with contextlib.chdir(folder):
            rillet.run(config(releases=form, readers=group.gr_name))
        shown = [
            subprocess.run(
                [sys.executable, "-c", SHOW, str(folder / "live"), str(own)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for own in (group.gr_gid, 65534)
        ]
    assert shown == ["2", "InputError" if os.geteuid() == 0 else "2"]


def test_a_group_that_there_is_not_is_refused_before_anything_is_made(desk):
    desk.csv("in.csv", [10, 20])
    for more in (["--check"], []):
        ended = desk.run("in.csv", "--state", "live", "--readers", "nobody-has-this-name", *more)
        assert ended.code == WRONG
        assert "expected owner, everyone, or the name of a group" in ended.said
    assert not (desk / "live").exists()


def test_a_group_of_others_is_refused(desk, monkeypatch):
    desk.csv("in.csv", [10, 20])
    group = some_group().gr_name
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "getegid", lambda: 12345)
    monkeypatch.setattr(os, "getgroups", list)
    ended = desk.run("in.csv", "--state", "live", "--readers", group)
    assert ended.code == WRONG
    assert "expected a group that this account belongs to" in ended.said


def test_a_sink_elsewhere_has_readers_too(desk):
    desk.csv("in.csv", [10, 20])
    sinks = [sink(kind=kind, path=f"out.{kind}", readers="owner") for kind in ("jsonl", "sqlite")]
    (desk / "run.toml").write_text(CONFIG + "".join(sinks))
    assert desk.rillet("run", "--config", "run.toml", "--quiet").code == DONE
    assert {mode(desk / f"out.{kind}") for kind in ("jsonl", "sqlite")} == {0o600}


# --- Files that must be private ------------------------------------------------------------------


def test_a_secret_that_others_can_read_is_refused(desk):
    desk.csv("in.csv", [10, 20])
    secret = desk.secret()
    (desk / secret).chmod(0o644)
    ended = desk.run("in.csv", "--secret", secret, "--out", "out.jsonl")
    assert ended.code == REFUSED
    assert "chmod 600" in ended.said


def test_a_password_file_that_others_can_read_is_refused(desk, broker):
    desk.csv("in.csv", [10, 20])
    (desk / "password").write_text("drawer\n")
    (desk / "password").chmod(0o644)
    address = f"{broker.host}:{broker.port}"
    named = {"username": "me", "password_file": "password", "topic": "trust/modes"}
    (desk / "run.toml").write_text(CONFIG + sink(kind="mqtt", address=address, **named))
    ended = desk.rillet("run", "--config", "run.toml", "--check")
    assert ended.code != DONE
    assert "chmod 600" in ended.said


# --- PostgreSQL ----------------------------------------------------------------------------------


def test_the_page_on_sinks_says_how_a_connection_is_protected():
    page = Path(__file__).parents[2] / "docs" / "sinks.md"
    assert "sslmode" in page.read_text(encoding="utf-8")


def test_two_databases_may_have_a_table_of_one_name(desk, database):
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE trust_other")
    desk.csv("in.csv", [10, 20])
    sinks = [
        sink(kind="postgres", dsn=database.dsn(name), table="twice")
        for name in ("postgres", "trust_other")
    ]
    (desk / "run.toml").write_text(CONFIG + "".join(sinks))
    ended = desk.rillet("run", "--config", "run.toml", "--quiet")
    assert ended.code == DONE, ended.said


# --- Running -------------------------------------------------------------------------------------


def test_restarts_against_a_dead_sink_absorb_no_more(desk, database):
    """A table that can be opened and takes nothing more."""
    psycopg = pytest.importorskip("psycopg")
    desk.csv("in.csv", range(2))
    (desk / "run.toml").write_text(CONFIG + sink(kind="postgres", dsn=database.dsn(), table="dead"))
    assert desk.rillet("run", "--config", "run.toml", "--quiet").code == DONE
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("ALTER TABLE dead ADD CHECK (t <= 2)")
    desk.append("in.csv", range(40))
    absorbed = []
    for _ in range(3):
        assert desk.rillet("run", "--config", "run.toml", "--quiet").code == FAILED
        said = desk.rillet("state", "live").said
        absorbed.append(re.search(r"absorbed +([\d,]+)", said)[1])
    assert absorbed[1:] == absorbed[:1] * 2


def test_idle_connections_to_the_metrics_do_not_pile_up(desk):
    pytest.importorskip("prometheus_client")
    desk.csv("in.csv", [10, 20])
    port = free_port()
    process = desk.spawn(
        *("run", "in.csv", "--state", "live", "--follow", "--metrics", f"127.0.0.1:{port}"),
        *(*PLAN, "--quiet"),
    )
    assert wait_until(lambda: desk.count() == 2)
    tasks = Path(f"/proc/{process.pid}/task")
    before = len(list(tasks.iterdir()))
    idle = [socket.create_connection(("127.0.0.1", port), 2.0) for _ in range(30)]
    try:
        wait_until(lambda: len(list(tasks.iterdir())) >= before + 30, 1.0)
        assert len(list(tasks.iterdir())) < before + 20
    finally:
        for connection in idle:
            connection.close()


# --- Messages ------------------------------------------------------------------------------------


def test_the_first_row_of_a_file_without_a_header_is_not_shown(desk):
    desk.csv("in.csv", ["2026-03-02,9.5kWh"], header="2026-03-01,12.5kWh")
    ended = desk.run("in.csv", "--column", "x", "--out", "out.jsonl")
    assert ended.code != DONE
    assert "12.5kWh" not in ended.said


def test_a_deeply_nested_plan_is_a_wrong_parameter(desk):
    desk.csv("in.csv", [10, 20])
    (desk / "plan.json").write_text("[" * 100_000 + "]" * 100_000)
    ended = desk.run("in.csv", "--plan", "plan.json", plan=())
    assert ended.code == WRONG, ended.said
    assert "unforeseen" not in ended.said
