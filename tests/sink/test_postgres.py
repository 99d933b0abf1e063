"""Releases in PostgreSQL: the real server, restarted under the sink's hands."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from helpers.servers import free_port
from rillet.errors import OutputError, ParameterError
from rillet.sink.postgres import PostgresSink
from sink.harness import PostgresHarness
from sink.tables import table


def rows(server, name):
    with psycopg.connect(server.dsn()) as connection:
        return connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]


def test_a_name_with_a_schema_and_odd_letters(database):
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute('CREATE SCHEMA IF NOT EXISTS "Live data"')
    sink = PostgresSink(database.dsn(), table='Live data.re"leases;--')
    sink.deliver(table())
    sink.close()
    assert rows(database, '"Live data"."re""leases;--"') == 40
    with pytest.raises(OutputError, match='schema "nowhere" does not exist'):
        PostgresSink(database.dsn(), table="nowhere.releases")


@pytest.mark.parametrize("name", ["", ".", "a.b.c", "a.", ".b"])
def test_a_wrong_name_is_refused(database, name):
    with pytest.raises(ParameterError, match="table: expected a name"):
        PostgresSink(database.dsn(), table=name)


def test_another_table_is_refused_and_left_alone(database):
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE others (key text, t bigint, value text)")
        connection.execute("INSERT INTO others VALUES ('a', 1, 'mine')")
    with pytest.raises(OutputError, match="found one without noise_std, sum"):
        PostgresSink(database.dsn(), table="others")
    assert rows(database, "others") == 1


def test_a_server_that_goes_away_and_comes_back(database):
    harness = PostgresHarness(database, "restarted")
    whole = table(rows=60)
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
    sink = PostgresSink(database.dsn(), table="impatient", patience=0.5)
    sink.deliver(table())
    more = table(first=71)
    database.stop()
    try:
        begun = time.monotonic()
        with pytest.raises(
            OutputError, match=r"table impatient of postgres on 127.0.0.1: .*refused"
        ):
            sink.deliver(more)
        assert time.monotonic() - begun < 5
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
        PostgresSink(filled)
    assert "pass-phrase" not in every_text(caught.value)


def test_a_password_in_the_drivers_own_words_is_masked(database, monkeypatch):
    def refuse(dsn, **_more):
        raise psycopg.OperationalError(f"cannot use {dsn}")

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(OutputError, match=r"password=\*\*\*") as caught:
        PostgresSink(database.dsn())
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
    sink = PostgresSink(table="from_environment")
    sink.deliver(table())
    sink.close()
    assert rows(database, "from_environment") == 40


def test_two_that_start_at_once(database):
    sinks, errors = [], []

    def start():
        try:
            sinks.append(PostgresSink(database.dsn(), table="at_once"))
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
