"""A database that neither answers nor leaves, and a second signal (FINDINGS D4, D5)."""

from __future__ import annotations

import os
import signal
import time

import pytest

from trust import faults
from trust.runs import PLAN, ends_within, wait_until

CONFIG = """
[plan]
mechanism = "baseline"
epsilon = 1.0
upper = 1000.0
length = 1000

[source]
path = "in.csv"
follow = true

[state]
folder = "live"

[[sink]]
kind = "postgres"
dsn = "{dsn}"
table = "{table}"
patience = 1.0

[[sink]]
kind = "jsonl"
path = "out.jsonl"
"""


@pytest.fixture
def hung(desk, database, request):
    """A run that delivers to a database whose process for it has stopped."""
    psycopg = pytest.importorskip("psycopg")
    table = f"hung_{abs(hash(request.node.name)) % 10**9}"
    (desk / "run.toml").write_text(CONFIG.format(dsn=database.dsn(), table=table))
    desk.csv("in.csv", [10, 20])
    process = desk.spawn("run", "--config", "run.toml", "--quiet")
    assert wait_until(lambda: len(desk.sums("out.jsonl")) == 2), process.poll()
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rillet'"
        backends = [pid for (pid,) in connection.execute(query).fetchall()]
    for backend in backends:
        os.kill(backend, signal.SIGSTOP)
    try:
        desk.append("in.csv", [30])
        yield process
        process.kill()
    finally:
        for backend in backends:
            os.kill(backend, signal.SIGCONT)


def test_patience_ends_although_the_database_is_silent(desk, hung):
    assert ends_within(hung, 4.0)
    assert hung.returncode == 5


def test_other_sinks_are_served_meanwhile(desk, hung):
    assert wait_until(lambda: len(desk.sums("out.jsonl")) == 3, 2.5)


def test_two_signals_end_it(desk, hung):
    for row in (40, 50, 60):  # so many batches that nobody can take another one
        time.sleep(0.3)
        desk.append("in.csv", [row])
    time.sleep(0.3)
    for _ in range(2):
        if hung.poll() is None:
            hung.send_signal(signal.SIGTERM)
        if ends_within(hung, 1.0):
            break
    assert ends_within(hung, 0.5)


def test_a_second_signal_closes_no_sink_that_is_in_use(desk):
    """The courier still holds it: with SQLite and libpq that can be a crash."""
    desk.csv("in.csv", [10, 20])
    command = ("run", "in.csv", "--state", "live", "--follow", *PLAN, "--quiet")
    process = desk.spawn(*command, before=faults.SLOW_DELIVERY)
    assert wait_until((desk / "delivering").exists)
    process.send_signal(signal.SIGTERM)
    assert not ends_within(process, 0.3)
    process.send_signal(signal.SIGTERM)
    assert ends_within(process, 10.0)
    assert not (desk / "closed-under-way").exists()
