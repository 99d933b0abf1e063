"""An ear at the broker."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import paho.mqtt.client as mqtt


@contextlib.contextmanager
def listening(server, topic):
    """Everything that is published meanwhile, as (topic, record, retained)."""
    received, ready = [], threading.Event()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=f"ear-{topic}", clean_session=False
    )
    client.on_message = lambda _client, _data, message: received.append(
        (message.topic, json.loads(message.payload), message.retain)
    )
    client.on_subscribe = lambda *_: ready.set()
    client.on_connect = lambda *_: client.subscribe(topic, qos=1)
    client.reconnect_delay_set(1, 1)
    client.connect(server.host, server.port)
    client.loop_start()
    assert ready.wait(10)
    try:
        yield received
    finally:
        client.disconnect()
        client.loop_stop()


def wait_for(received, count):
    end = time.monotonic() + 20
    while len(received) < count and time.monotonic() < end:
        time.sleep(0.01)
    return received
