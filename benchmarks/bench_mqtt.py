"""Observations from a real mosquitto: through durable streams, and to a bare paho subscriber."""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import rillet
from frame import Comparison, Contender

MESSAGES = 20_000
KEYS = 20
_HOST = "127.0.0.1"


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="rillet-bench-"))


@cache
def _broker() -> int:
    """Start the broker on loopback; its port."""
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        raise RuntimeError("mosquitto is not installed; type: apt-get install mosquitto")
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        port = int(listener.getsockname()[1])
    config = _folder() / "mosquitto.conf"
    config.write_text(
        f"listener {port} {_HOST}\nallow_anonymous true\nset_tcp_nodelay true\n"
        "max_inflight_messages 0\nmax_queued_messages 0\n",
        encoding="ascii",
    )
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    atexit.register(_stop, process)
    for _ in range(200):
        try:
            socket.create_connection((_HOST, port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return port
    raise RuntimeError("mosquitto did not start in 10 s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


def _client(name: str) -> Any:
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False, manual_ack=True)
    client.max_inflight_messages_set(MESSAGES)
    return client


def _fill(name: str, topic: str) -> None:
    """Let the broker keep messages for a session that is away."""
    subscriber = _client(name)
    subscribed = threading.Event()
    subscriber.on_subscribe = lambda *_: subscribed.set()
    subscriber.connect(_HOST, _broker())
    subscriber.loop_start()
    subscriber.subscribe(topic.replace("{meter}", "+"), qos=1)
    if not subscribed.wait(10):
        raise RuntimeError("the broker did not answer")
    subscriber.disconnect()
    subscriber.loop_stop()
    publisher = _client(f"{name}-publisher")
    publisher.connect(_HOST, _broker())
    publisher.loop_start()
    sent = [
        publisher.publish(
            topic.replace("{meter}", f"m{number % KEYS}"),
            f'{{"kwh": {number % 97}.5, "seq": {number}}}',
            qos=1,
        )
        for number in range(MESSAGES)
    ]
    for message in sent:
        message.wait_for_publish(60)
    publisher.disconnect()
    publisher.loop_stop()


def _bare() -> None:
    """A subscriber that does nothing but acknowledge."""
    client, left = _client("bare"), MESSAGES
    client.connect(_HOST, _broker())

    def on_message(_client: Any, _data: Any, message: Any) -> None:
        nonlocal left
        client.ack(message.mid, message.qos)
        left -= 1
        if not left:
            client.disconnect()

    client.on_message = on_message
    client.loop_forever()


def _rillet() -> None:
    """The whole way: decoded, absorbed, committed, delivered, acknowledged."""
    keys = [f"m{number}" for number in range(KEYS)]
    folder = _folder() / "state"
    shutil.rmtree(folder, ignore_errors=True)
    stop = threading.Event()

    def watch(summary: Any) -> None:
        if summary.observations == MESSAGES:
            stop.set()

    tables = {
        "plan": {
            "mechanism": "baseline",
            "epsilon": 1.0,
            "upper": 100.0,
            "length": 2 * MESSAGES,
        },
        "keys": {"columns": ["meter"], "values": keys},
        "source": {
            "kind": "mqtt",
            "address": f"{_HOST}:{_broker()}",
            "topic": "rillet/{meter}",
            "client_id": "rillet",
            "field": "kwh",
            "sequence": "seq",
        },
        "state": {"folder": str(folder)},
        "log": {"level": "warning"},
    }
    rillet.run(tables, watch=watch, stop=stop)


def bench_mqtt() -> Comparison:
    """The broker's own speed is the limit of both."""
    return Comparison(
        f"{MESSAGES:,} messages of QoS 1 that a broker has kept, {KEYS} keys",
        "message",
        [
            Contender(
                "rillet, durable",
                _rillet,
                MESSAGES,
                prepare=lambda: _fill("rillet", "rillet/{meter}"),
                most_rounds=3,
            ),
            Contender(
                "paho, acknowledges only",
                _bare,
                MESSAGES,
                rillet_within=2.0,
                prepare=lambda: _fill("bare", "bare/{meter}"),
                most_rounds=3,
            ),
        ],
    )
