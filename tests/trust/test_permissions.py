"""Files, modes and messages: what is small, and still lets somebody in (FINDINGS D12)."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from helpers.servers import free_port
from trust.runs import DONE, FAILED, PLAN, REFUSED, WRONG, mode, wait_until

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
