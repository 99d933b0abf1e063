"""The servers that the tests start: really there, really stopped, nothing left behind."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import psycopg
import pytest

from helpers.servers import mosquitto


def talk(server, *, clean, publish=None, session="rillet-test-servers"):
    """Connect with a session that lasts, publish perhaps, and give what waits for us."""
    received, ready = [], threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=session, clean_session=clean)
    client.on_message = lambda _client, _data, message: (
        received.append(message.payload),
        ready.set(),
    )
    client.on_subscribe = lambda *_: ready.set()
    client.connect(server.host, server.port)
    client.loop_start()
    try:
        if publish is None:
            ready.wait(10)
        else:
            client.subscribe("servers/#", qos=1)
            assert ready.wait(10)
            ready.clear()
            client.publish("servers/x", publish, qos=1).wait_for_publish(10)
            assert ready.wait(10)
    finally:
        client.disconnect()
        client.loop_stop()
    return received


def queue_for_later(server, payload):
    """Publish from elsewhere while the session is away."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect(server.host, server.port)
    client.loop_start()
    client.publish("servers/x", payload, qos=1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


def test_mosquitto_delivers(broker):
    assert talk(broker, clean=True, publish=b"hello") == [b"hello"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_mosquitto_keeps_what_it_saved_over_a_restart(tmp_path, end):
    with mosquitto(tmp_path / "broker", save_always=end == "kill") as server:
        port, process = server.port, server.process
        assert talk(server, clean=False, publish=b"first") == [b"first"]
        queue_for_later(server, b"second")
        patience = time.monotonic() + 30
        while end == "kill" and not server.has_saved(b"second"):
            assert time.monotonic() < patience
            time.sleep(0.02)
        getattr(server, end)()
        assert process.poll() is not None
        server.start()
        assert server.port == port
        assert talk(server, clean=False) == [b"second"]
        last = server.process
    assert last.poll() is not None
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection((server.host, server.port), 1.0),
    ):
        pass


def test_mosquitto_takes_lines_of_configuration(tmp_path):
    with mosquitto(tmp_path, config_lines=["max_inflight_messages 7"]):
        assert "max_inflight_messages 7" in (tmp_path / "mosquitto.conf").read_text()
    with (
        pytest.raises(RuntimeError, match="nonsense"),
        mosquitto(tmp_path, config_lines=["nonsense 7"]),
    ):
        pass


def test_postgres_answers_with_its_password_only(database):
    with psycopg.connect(database.dsn()) as connection:
        assert connection.execute("SELECT 1.5::float8").fetchone() == (1.5,)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(database.dsn(password=False), passfile=os.devnull)


def test_postgres_runs_in_a_folder_of_its_own(database):
    assert Path(database.folder).name.startswith("rillet-postgres-")
    process = database.process
    database.restart()
    assert process.poll() is not None
    assert database.process.pid != process.pid
    with psycopg.connect(database.dsn()) as connection:
        assert connection.execute("SHOW data_directory").fetchone() == (str(database.data),)
