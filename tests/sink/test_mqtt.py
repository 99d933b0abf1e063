"""Releases as messages: a real broker, one that goes away, and keys that are no topics."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest

from helpers.servers import free_port, mosquitto
from rillet.errors import OutputError, ParameterError
from rillet.sink import make_sink
from rillet.sink.mqtt import escape_level
from sink.listening import listening, wait_for
from sink.tables import STRANGE_KEYS, records, table


def address(server):
    return f"{server.host}:{server.port}"


def mqtt(where, topic, *, key_columns=(), **more):
    options = {"kind": "mqtt", "address": where, "topic": topic, **more}
    return make_sink(options, key_columns=key_columns).open()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_each_release_is_published_once_in_order(broker, protocol):
    tables = [table(STRANGE_KEYS, 100, names=("mean", "more")), table((("a", 1),), 3)[:0]]
    folder = f"once{protocol}"
    with listening(broker, f"{folder}/#") as received:
        sink = mqtt(address(broker), f"{folder}/x", protocol=protocol)
        for one in tables:
            sink.deliver(one)
        assert sink.position() is None
        sink.close()
        expected = records(tables[0])
        wait_for(received, len(expected))
    assert [record for _, record, _ in received] == expected
    assert {topic for topic, *_ in received} == {f"{folder}/x"}


def test_the_same_again_comes_twice_with_the_same_numbers(broker):
    with listening(broker, "twice/#") as received:
        sink = mqtt(address(broker), "twice/{key0}")
        sink.deliver(table())
        sink.deliver(table())
        sink.close()
        wait_for(received, 80)
    assert [record for _, record, _ in received[:40]] == [record for _, record, _ in received[40:]]


def test_topics_hold_the_parts_of_the_key(broker):
    keys = (("north", 7), ("a/b+c#", 1), ("100 %", 2), ("Zürich\0\ud800", 3), ("", 4))
    totals = (("north",), ())
    with listening(broker, "parts/#") as received:
        sink = mqtt(
            address(broker),
            "parts/{region}/{name}/{meter}",
            key_columns=("region", "meter"),
        )
        sink.deliver(table((*keys, *totals), 1))
        with pytest.raises(
            OutputError, match=r'expected keys of 2 parts, region, meter, found .*"x"'
        ):
            sink.deliver(table((("x", "y", "z"),), 1))
        sink.close()
        wait_for(received, len(keys) + len(totals))
    assert {tuple(record["key"]): topic for topic, record, _ in received} == {
        ("north", 7): "parts/north/mean/7",
        ("a/b+c#", 1): "parts/a%2Fb%2Bc%23/mean/1",
        ("100 %", 2): "parts/100 %25/mean/2",
        ("Zürich\0\ud800", 3): "parts/Zürich%00%D800/mean/3",
        ("", 4): "parts//mean/4",
        ("north",): "parts/north/mean/%total",
        (): "parts/%total/mean/%total",
    }


def test_escapes_keep_texts_apart():
    texts = ["a/b", "a%2Fb", "a%252Fb", "a+b", "ab", "#", "%23", "", "\x7f", "\x9f", "%"]
    assert len({escape_level(text) for text in texts}) == len(texts)
    assert not set("/+#\0") & set("".join(map(escape_level, texts)))


def test_a_topic_that_a_key_would_make_the_brokers_own(broker):
    sink = mqtt(address(broker), "{key0}/x")
    with listening(broker, "%24SYS/#") as received:
        sink.deliver(table((("$SYS",),), 1))
        wait_for(received, 1)
    sink.close()
    assert [topic for topic, *_ in received] == ["%24SYS/x"]


@pytest.mark.parametrize("retain", [True, False])
def test_the_last_is_kept_for_those_who_come_later(broker, retain):
    sink = mqtt(address(broker), f"kept{retain}/{{key0}}", retain=retain)
    sink.deliver(table())
    sink.close()
    with listening(broker, f"kept{retain}/#") as received:
        wait_for(received, 2 if retain else 0)
        if not retain:
            time.sleep(0.2)
    last = sorted((topic, record["t"], kept) for topic, record, kept in received)
    assert last == ([("keptTrue/north", 70, True), ("keptTrue/south", 70, True)] if retain else [])


@pytest.mark.parametrize(
    ("topic", "columns"),
    [
        ("", ()),
        ("a/+/b", ()),
        ("a/#", ()),
        ("a/x{key0}", ()),
        ("a/{nonsense}", ()),
        ("a/{key0}", ("region",)),
        ("nul\0", ()),
        ("{}", ()),
    ],
)
def test_wrong_templates(broker, topic, columns):
    with pytest.raises(ParameterError, match="topic: expected"):
        mqtt(address(broker), topic, key_columns=columns)


@pytest.mark.parametrize("bad", ["", ":1883", "host:", "host:0", "host:70000", "a b", "::1"])
def test_wrong_addresses(bad):
    with pytest.raises(ParameterError, match=r"address: expected (a host and a port|text)"):
        mqtt(bad, "x")


def test_nobody_there():
    with pytest.raises(OutputError, match="refused"):
        mqtt(f"127.0.0.1:{free_port()}", "x")


def test_somebody_who_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(OutputError, match=r"found: no answer in 0\.3 s"):
            mqtt(f"127.0.0.1:{port}", "x", patience=0.3)


def test_a_broker_that_goes_away_and_comes_back(tmp_path):
    whole = table((("a",), ("b",)), 600)
    with mosquitto(tmp_path) as server:
        sink = mqtt(address(server), "back/{key0}")
        sink.deliver(whole[:200])
        server.stop()
        back = threading.Thread(target=lambda: (time.sleep(0.5), server.start()))
        back.start()
        try:
            sink.deliver(whole[200:400])
        finally:
            back.join()
        with listening(server, "back/#") as received:
            sink.deliver(whole[400:])
            sink.close()
            wait_for(received, 800)
    assert [record for _, record, _ in received] == records(whole[400:])


def test_patience_ends_and_what_was_not_sent_is_dropped(tmp_path):
    with mosquitto(tmp_path) as server:
        sink = mqtt(address(server), "end/{key0}", patience=0.5)
        sink.deliver(table())
        server.stop()
        with pytest.raises(OutputError, match=r"no acknowledgement in 0\.5 s"):
            sink.deliver(table(first=71))
        with pytest.raises(OutputError, match="refused"):
            sink.deliver(table(first=71))
        server.start()
        with listening(server, "end/#") as received:
            sink.deliver(table(first=71))
            sink.close()
            wait_for(received, 40)
            time.sleep(0.2)
    assert [record for _, record, _ in received] == records(table(first=71))


def test_a_broker_that_does_not_let_us_write_says_so(tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("topic read #\n")
    with mosquitto(tmp_path / "broker", config_lines=[f"acl_file {rules}"]) as server:
        sink = mqtt(address(server), "forbidden")
        with pytest.raises(OutputError, match="Not authorized"):
            sink.deliver(table())
        sink.close()


def test_log_in_with_a_password_that_is_not_shown(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("pass-phrase\n")
    secret.chmod(0o600)
    with mosquitto(tmp_path / "broker", config_lines=["allow_anonymous false"]) as server:
        with pytest.raises(OutputError, match="Not authorized") as caught:
            mqtt(address(server), "x", username="rillet", password_file=str(secret))
        assert "pass-phrase" not in str(caught.value)
    with pytest.raises(OutputError, match=r"password_file: .*No such file"):
        mqtt(address(server), "x", username="rillet", password_file=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("host", "tls", "warns"),
    [("broker.example", False, True), ("broker.example", True, False), ("127.0.0.1", False, False)],
)
def test_a_password_in_the_clear_is_warned_of(tmp_path, monkeypatch, caplog, host, tls, warns):
    secret = tmp_path / "secret"
    secret.write_text("pass-phrase\n")
    secret.chmod(0o600)
    monkeypatch.setattr("rillet.sink.mqtt.MqttSink._connected", lambda _self: None)
    with caplog.at_level(logging.WARNING, "rillet.sink"):
        mqtt(host, "x", username="rillet", password_file=str(secret), tls=tls)
    assert ("the password is sent in the clear" in caplog.text) == warns
    assert "pass-phrase" not in caplog.text


def test_closing_ends_a_delivery_that_waits(tmp_path):
    with mosquitto(tmp_path) as server:
        sink = mqtt(address(server), "waits", patience=60)
        server.stop()
        errors = []

        def deliver():
            try:
                sink.deliver(table())
            except OutputError as error:
                errors.append(str(error))

        thread = threading.Thread(target=deliver)
        thread.start()
        time.sleep(0.3)
        begun = time.monotonic()
        sink.close()
        thread.join()
    assert time.monotonic() - begun < 10
    assert "the sink was closed" in errors[0]
