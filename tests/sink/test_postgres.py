"""Releases in PostgreSQL: the real server, restarted under the sink's hands."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import msgspec
import psycopg
import pytest

from helpers.servers import free_port
from rillet.errors import OutputError, ParameterError
from rillet.plan import Plan
from rillet.release import Releases, key_shown
from rillet.sink import make_sink
from sink.harness import PostgresHarness
from sink.tables import changed, table


def postgres(dsn="", **more):
    return make_sink({"kind": "postgres", "dsn": dsn, **more}).open()


def rows(server, name):
    with psycopg.connect(server.dsn()) as connection:
        return connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]


def test_a_name_with_a_schema_and_odd_letters(database):
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute('CREATE SCHEMA IF NOT EXISTS "Live data"')
    sink = postgres(database.dsn(), table='Live data.re"leases;--')
    sink.deliver(table())
    sink.close()
    assert rows(database, '"Live data"."re""leases;--"') == 40
    with pytest.raises(OutputError, match='schema "nowhere" does not exist'):
        postgres(database.dsn(), table="nowhere.releases")


@pytest.mark.parametrize("name", ["", ".", "a.b.c", "a.", ".b"])
def test_a_wrong_name_is_refused(database, name):
    with pytest.raises(ParameterError, match=r"table: expected (a name|text)"):
        postgres(database.dsn(), table=name)


def test_another_table_is_refused_and_left_alone(database):
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE others (key text, t bigint, value text)")
        connection.execute("INSERT INTO others VALUES ('a', 1, 'mine')")
    with pytest.raises(OutputError, match="found one without at, name, noise_std"):
        postgres(database.dsn(), table="others")
    assert rows(database, "others") == 1


def test_a_server_that_goes_away_and_comes_back(database):
    harness = PostgresHarness(database, "restarted")
    whole = table(releases=60)
    sink = harness.open()
    sink.deliver(whole[:40])
    database.restart()
    sink.deliver(whole[40:80])  # the connection is found dead
    database.stop()
    back = threading.Thread(target=lambda: (time.sleep(1.0), database.start()))
    back.start()
    try:
        sink.deliver(whole[80:])  # nobody answers for a while
    finally:
        back.join()
    sink.close()
    assert harness.records() == harness.expected([whole])


def test_patience_ends_and_the_sink_can_go_on(database):
    harness = PostgresHarness(database, "impatient")
    sink = postgres(database.dsn(), table="impatient", patience=0.5)
    sink.deliver(table())
    more = table(first=71)
    database.stop()
    try:
        begun = time.monotonic()
        with pytest.raises(
            OutputError, match=r"table impatient of postgres on 127.0.0.1:\d+: .*refused"
        ):
            sink.deliver(more)
        assert time.monotonic() - begun < 15
    finally:
        database.start()
    sink.deliver(more)
    sink.close()
    assert harness.records() == harness.expected([table(), more])


def test_a_connection_ended_by_the_server(database):
    harness = PostgresHarness(database, "ended")
    sink = harness.open()
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'rillet'"
        )
    sink.deliver(table())
    sink.close()
    assert harness.records() == harness.expected([table()])


def every_text(error):
    found = []
    while error is not None:
        found += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " ".join(found)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 port={port} user=rillet password=pass-phrase dbname=postgres",
        "host=127.0.0.1 port={free} user=rillet password=pass-phrase dbname=postgres",
        "postgresql://rillet:pass-phrase@127.0.0.1:{port}/postgres",
        "postgresql://rillet:pass-phrase@127.0.0.1:{free}/postgres",
        "postgresql://rillet:pass-phrase@127.0.0.1:{port}/postgres?nonsense=1",
        "host=127.0.0.1 password = 'pass-phrase",
        "pass-phrase",
        "host=127.0.0.1 pass-phrase",
    ],
)
def test_no_message_holds_the_password(database, dsn):
    filled = dsn.format(port=database.port, free=free_port())
    with pytest.raises((OutputError, ParameterError)) as caught:
        postgres(filled)
    assert "pass-phrase" not in every_text(caught.value)


def test_a_password_in_the_drivers_own_words_is_masked(database, monkeypatch):
    def refuse(dsn, **_more):
        raise psycopg.OperationalError(f"cannot use {dsn}")

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(OutputError, match=r"password=\*\*\*") as caught:
        postgres(database.dsn())
    assert database.password not in every_text(caught.value)


def test_the_environment_says_what_the_dsn_leaves_out(database, tmp_path, monkeypatch):
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{database.password}\n")
    passwords.chmod(0o600)
    for name, value in {
        "PGHOST": database.host,
        "PGPORT": str(database.port),
        "PGUSER": database.user,
        "PGDATABASE": "postgres",
        "PGPASSFILE": str(passwords),
    }.items():
        monkeypatch.setenv(name, value)
    sink = postgres(table="from_environment")
    sink.deliver(table())
    sink.close()
    assert rows(database, "from_environment") == 40


def test_two_that_start_at_once(database):
    sinks, errors = [], []

    def start():
        try:
            sinks.append(postgres(database.dsn(), table="at_once"))
        except OutputError as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.deliver(table())
        sink.close()
    assert not errors
    assert rows(database, "at_once") == 40


# --- a server that says nothing ------------------------------------------------------------------


@pytest.fixture
def hung(database):
    """A sink whose process at the server has stopped."""
    sink = postgres(database.dsn(), table="hung", patience=1)
    sink.deliver(table())
    pid = sink._connection.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield sink
    finally:
        os.kill(pid, signal.SIGCONT)
        sink.close()


def test_patience_ends_although_the_server_is_silent(database, hung):
    begun = time.monotonic()
    with pytest.raises(OutputError, match=r"found: no answer in 1 s"):
        hung.deliver(table(first=71))
    assert 1 <= time.monotonic() - begun < 15
    hung.deliver(table(first=71))  # by a new connection
    hung.deliver(table())
    assert rows(database, "hung") == 80


def test_closing_ends_a_delivery_that_waits(hung):
    errors = []

    def deliver():
        try:
            hung.deliver(table(first=200))
        except OutputError as error:
            errors.append(error)

    hung.options = msgspec.structs.replace(hung.options, patience=60.0)
    thread = threading.Thread(target=deliver)
    thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    hung.close()
    thread.join()
    assert time.monotonic() - begun < 15
    assert len(errors) == 1


def test_a_table_that_somebody_locks(database):
    sink = postgres(database.dsn(), table="locked", patience=1)
    with psycopg.connect(database.dsn()) as other:
        other.execute("LOCK TABLE locked")
        begun = time.monotonic()
        with pytest.raises(OutputError, match="statement timeout"):
            sink.deliver(table())
        assert time.monotonic() - begun < 15
    sink.deliver(table())
    sink.close()
    assert rows(database, "locked") == 40


def test_a_server_that_accepts_and_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        with pytest.raises(OutputError, match="timeout"):
            postgres(f"host=127.0.0.1 port={silent.getsockname()[1]}", patience=1)
        assert time.monotonic() - begun < 15


def test_one_table_in_two_databases_are_two_sinks(database):
    options = {"kind": "postgres", "table": "both"}
    names = {
        make_sink({**options, "dsn": database.dsn(name)}).identity() for name in ("one", "two")
    }
    assert names == {
        f"postgres:table both of {name} on 127.0.0.1:{database.port}" for name in ("one", "two")
    }


def test_more_rows_than_fit_one_statement(database, monkeypatch):
    monkeypatch.setattr("rillet.sink.postgres._RELEASES", 7)
    harness = PostgresHarness(database, "in_parts")
    whole = table(names=("mean", "more"))
    with harness.open() as sink:
        sink.deliver(whole[:20])
        sink.deliver(whole)
        with pytest.raises(OutputError, match="never replaced"):
            sink.deliver(changed(whole, 75))
    assert harness.records() == harness.expected([whole])


def test_a_number_and_its_digits_cannot_both_be_keys(database):
    with (
        postgres(database.dsn(), table="digits") as sink,
        pytest.raises(OutputError, match="expected keys that differ as text"),
    ):
        sink.deliver(table((("7",), (7,)), 1))


def test_views_for_dashboards(database):
    """The latest release of each key, and all keys together, by level and in all."""
    sink = postgres(database.dsn(), table="viewed")
    releases = table()
    sink.deliver(releases)
    sink.close()
    postgres(database.dsn(), table="viewed").close()  # once more: they are there
    with psycopg.connect(database.dsn()) as connection:
        latest = connection.execute("SELECT key, t, value, at FROM viewed_latest").fetchall()
        expected = {str(key_shown(key)): found for key, found in releases.latest().items()}
        assert {row[0] for row in latest} == set(expected)
        for key, t, value, at in latest:
            assert (t, value, at) == (expected[key].t, expected[key].value, expected[key].at)
        columns = "level, keys, count, sum, sum_noise_std, mean"
        levels = connection.execute(f"SELECT {columns} FROM viewed_levels").fetchall()
        whole = next(row for row in levels if row[0] is None)
        found = list(expected.values())
        assert whole[1] == len(found)
        assert whole[2] == sum(release.count for release in found)
        assert whole[3] == pytest.approx(sum(release.sum for release in found))
        noise = sum(release.sum_noise_std**2 for release in found) ** 0.5
        assert whole[4] == pytest.approx(noise)
        assert whole[5] == pytest.approx(whole[3] / whole[2])
        assert sum(row[1] for row in levels) == 2 * len(found)


def test_released_totals_stand_for_their_parts(database):
    """With levels in the plan, totals are keys as others: nothing is counted twice."""
    keys = [(), ("north",), ("north", "a"), ("north", "b"), ("south", "c")]
    plan = Plan.baseline(epsilon=1.0, upper=60.0, length=10)
    parts = [plan.open(key=key).update_many([30.0] * 3) for key in keys]
    with postgres(database.dsn(), table="totals") as sink:
        sink.deliver(Releases.join(parts))
    last = {key: part[-1] for key, part in zip(keys, parts, strict=True)}
    with psycopg.connect(database.dsn()) as connection:
        found = connection.execute("SELECT level, keys, sum, sum_noise_std FROM totals_levels")
        rows = {level: numbers for level, *numbers in found.fetchall()}
    expected = {None: (), "north": ("north",), "south": ("south", "c")}
    assert rows == {
        level: [1, last[key].sum, pytest.approx(last[key].sum_noise_std)]
        for level, key in expected.items()
    }
