"""Messages of a real broker: each once where it can be, and none acknowledged before its time."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.properties import Properties

from helpers.servers import mosquitto
from helpers.sources import mqtt_source
from rillet import ParameterError, Plan
from rillet.source import UNDECLARED, DeclaredKeys, mqtt_link

PATIENCE = 30.0
KEYS = DeclaredKeys([("a",), ("b",), (3,)])


def address(server):
    return f"{server.host}:{server.port}"


@pytest.fixture
def name(request):
    """A client name and a folder of topics of the test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


def publish(server, messages, *, qos=1, retain=False, properties=None):
    """Publish (topic, payload) pairs in order and wait until the broker has them."""
    version = mqtt.MQTTv311 if properties is None else mqtt.MQTTv5
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=version)
    client.max_inflight_messages_set(1)  # keeps the order
    client.connect(server.host, server.port)
    client.loop_start()
    sent = [
        client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        for topic, payload in messages
    ]
    for one in sent:
        one.wait_for_publish(PATIENCE)
        assert one.is_published()
    client.disconnect()
    client.loop_stop()


def numbered(folder, numbers):
    """Messages of one key with sequence numbers."""
    return [(f"{folder}/a", json.dumps({"x": n + 0.5, "n": n})) for n in numbers]


class Taking:
    """The blocks of a source, with an end to all patience."""

    def __init__(self, server, topic, **options):
        self.stop = threading.Event()
        self.source = mqtt_source(address(server), topic, stop=self.stop, **options)
        self.blocks = self.source.blocks()

    def next(self):
        alarm = threading.Timer(PATIENCE, self.stop.set)
        alarm.start()
        try:
            return next(self.blocks)
        except StopIteration:
            pytest.fail("no message came")
        finally:
            alarm.cancel()

    def rows(self, count, field="raw_values"):
        """Rows of as many blocks as it takes; the last one is not acknowledged."""
        found = []
        while len(found) < count:
            found += getattr(self.next(), field).tolist()
        return found

    def nothing_for(self, seconds):
        threading.Timer(seconds, self.stop.set).start()
        return next(self.blocks, None) is None

    def finish(self):
        """Ask for the next block, which acknowledges, and stop there."""
        self.stop.set()
        assert next(self.blocks, None) is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.blocks.close()


def subscribe(server, topic, **options):
    """Make the session and leave it."""
    with Taking(server, topic, **options):
        pass


# --- What is in a message ----------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_payloads_and_keys(broker, name, protocol):
    options = {"client_id": name, "keys": KEYS, "protocol": protocol, "wait": 0.3}
    with Taking(broker, f"{name}/{{meter}}/reading", **options) as taking:
        payloads = [b"12.5", b" 7\n", b"late", b"", b"1e400", b"\xff\x00", b"1_0", b"-3"]
        topics = ["a", "b", "3", "c", "a", "b", "03", "3"]
        publish(broker, [(f"{name}/{t}/reading", p) for t, p in zip(topics, payloads, strict=True)])
        values, places = [], []
        while len(values) < 8:
            block = taking.next()
            assert (block.start, block.position, block.fraction) == (None, None, None)
            assert block.sequence is None
            values += block.raw_values.tolist()
            places += block.key_of.tolist()
    np.testing.assert_array_equal(
        values, [12.5, 7, math.nan, math.nan, math.inf, math.nan, math.nan, -3]
    )
    assert places == [0, 1, 2, UNDECLARED, 0, 1, UNDECLARED, 2]


def test_keys_in_the_payload(broker, name):
    keys = DeclaredKeys([("a", 1), ("b", 2)], ["meter", "phase"])
    options = {"client_id": name, "keys": keys, "field": "x", "wait": 0.3}
    payloads = [
        '{"meter": "a", "phase": 1, "x": 1.5}',
        '{"meter": "b", "phase": "2", "x": 2.5}',
        '{"meter": "a", "phase": 2, "x": 3.5}',
        '{"x": 4.5}',
        "5.5",
    ]
    with Taking(broker, f"{name}/readings", **options) as taking:
        publish(broker, [(f"{name}/readings", payload) for payload in payloads])
        places = taking.rows(len(payloads), "key_of")
    assert list(places) == [0, 1, UNDECLARED, UNDECLARED, UNDECLARED]
    with pytest.raises(
        ParameterError, match="field: expected the name of a field, since the topic"
    ):
        Taking(broker, f"{name}/readings", **{**options, "field": None}).__enter__()


@pytest.mark.parametrize(
    ("topic", "columns"),
    [
        ("readings", ["site", "meter"]),
        ("{site}/up", ["site", "meter"]),
        ("{gateway}/{meter}", ["site", "meter"]),
        ("{meter}/of/{site}", ["site", "meter"]),
    ],
    ids=["all in the payload", "in both", "a level that is no part", "another order"],
)
def test_keys_in_the_payload_in_the_topic_or_in_both(broker, name, topic, columns):
    declared = [("north", 1), ("north", 2), ("south", "x/y" if "{meter}" not in topic else "xy")]
    keys = DeclaredKeys(declared, columns)
    rows = [("north", 2), declared[2], ("west", 1), ("north", 1), ("north", "01"), ("south", 1)]
    found = [1, 2, UNDECLARED, 0, UNDECLARED, UNDECLARED]
    options = {"client_id": name, "keys": keys, "field": "kwh", "wait": 0.3}
    with Taking(broker, f"{name}/{topic}", **options) as taking:
        messages = []
        for kwh, (site, meter) in enumerate(rows):
            level = topic.format(site=site, meter=meter, gateway=kwh)
            messages.append(
                (f"{name}/{level}", json.dumps({"kwh": kwh, "site": site, "meter": meter}))
            )
        if topic == "readings":  # nothing raises, whatever the payload is
            messages += [(f"{name}/readings", payload) for payload in ("7", "{}", '{"site": []}')]
            found += [UNDECLARED] * 3
        publish(broker, messages)
        places = taking.rows(len(found), "key_of")
    assert places == found


def test_a_part_that_is_nowhere_is_refused():
    keys = DeclaredKeys([("north", 1)], ["site", "meter"])
    with pytest.raises(ParameterError, match=r"field: expected .* the topic has no \{meter\}"):
        mqtt_source("127.0.0.1:1", "{site}/reading", client_id="a", keys=keys)
    with pytest.raises(ParameterError, match="what is not in the topic is a field then"):
        mqtt_source("127.0.0.1:1", "{site}", client_id="a", keys=DeclaredKeys([("north", 1)]))


def test_a_payload_without_a_number_is_left_out_of_the_mean(broker, name):
    options = {"client_id": name, "field": "x", "wait": 0.3}
    with Taking(broker, f"{name}/reading", **options) as taking:
        payloads = ['{"x": 20}', '{"x": null}', '{"x": 20}', "gone", '{"y": 3}', '{"x": "none"}']
        publish(broker, [(f"{name}/reading", payload) for payload in payloads * 50])
        values = taking.rows(300)
    plan = Plan(epsilon=8.0, delta=1e-6, lower=-1000.0, upper=1000.0, length=300, lag=0)
    release = plan.open().update_many(values)[-1]
    assert abs(release.count - 100) < 6 * release.count_noise_std < 100
    low, high = release.noise_interval(0.999999)
    assert low < 20 < high


def test_fields_and_sequence_numbers(broker, name):
    options = {"client_id": name, "field": "x", "sequence": "n", "wait": 0.3}
    payloads = [
        '{"x": 1.5, "n": 7}',
        '{"x": "2.5", "n": "8"}',
        '{"n": 9}',
        "[1]",
        "7",
        '{"x": 4.5, "n": 9223372036854775807}',
        '{\n"x": 5.5,\n"n": 10\n}',
        b"\xff",
    ]
    with Taking(broker, f"{name}/{{k}}", **options) as taking:
        publish(broker, [(f"{name}/a", payload) for payload in payloads])
        blocks = []
        while sum(map(len, blocks)) < len(payloads):
            blocks.append(taking.next())
    nan = math.nan
    np.testing.assert_array_equal(np.concatenate(blocks), [1.5, 2.5, nan, nan, nan, 4.5, 5.5, nan])
    sequence = np.concatenate([block.sequence for block in blocks]).tolist()
    assert sequence == [7, 8, 9, -1, -1, 2**63 - 1, 10, -1]
    assert all(block.key_of is None for block in blocks)


def test_a_payload_cannot_move_its_neighbours(broker, name):
    """Joined to one array these would be three objects as well, but three other ones."""
    payloads = ['{"x": 1},\n{"x": 2}', '{"x": 3', '"y": 4}']
    options = {"client_id": name, "field": "x"}
    subscribe(broker, f"{name}/{{k}}", **options)
    publish(broker, [(f"{name}/a", payload) for payload in payloads])
    with Taking(broker, f"{name}/{{k}}", block_rows=3, wait=10.0, **options) as taking:
        np.testing.assert_array_equal(taking.next(), [math.nan] * 3)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_messages_with_properties(broker, name, protocol):
    properties = Properties(mqtt.PacketTypes.PUBLISH)
    properties.UserProperty = [("unit", "kWh" * 100)]
    with Taking(broker, f"{name}/{{k}}", client_id=name, protocol=protocol) as taking:
        publish(broker, [(f"{name}/a", "12.5"), (f"{name}/a", "")], properties=properties)
        np.testing.assert_array_equal(taking.rows(2), [12.5, math.nan])


def test_topics_of_an_older_template_are_dropped_and_acknowledged(broker, name):
    subscribe(broker, f"{name}/weather/{{k}}", client_id=name)
    topic = f"{name}/{{k}}/reading"
    with Taking(broker, topic, client_id=name, keys=KEYS) as taking:
        publish(broker, [(f"{name}/weather/a", "1"), (f"{name}/weather/b", "2")])
        publish(broker, [(f"{name}/a/reading", "3"), (f"{name}/weather/b", "4")])
        assert taking.rows(1) == [3]
        taking.finish()
    with Taking(broker, topic, client_id=name, keys=KEYS) as taking:
        publish(broker, [(f"{name}/a/reading", "5")])
        assert taking.rows(1) == [5]


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_retained_messages_are_not_taken(broker, name, protocol):
    publish(broker, [(f"{name}/a", "1")], retain=True)
    with Taking(broker, f"{name}/{{k}}", client_id=name, protocol=protocol) as taking:
        publish(broker, [(f"{name}/a", "2")], retain=True)  # as it is published, it counts
        assert taking.rows(1) == [2]


def test_retained_messages_match_no_template(broker, name):
    """Not even one that takes any topic of one level."""
    publish(broker, [(name, "1")], retain=True)
    with Taking(broker, "{k}", client_id=name) as taking:
        publish(broker, [(name, "2")])
        assert taking.rows(1) == [2]
    publish(broker, [(name, "")], retain=True)  # forgets it


# --- When it is acknowledged -------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_asking_is_acknowledging(broker, name, protocol):
    options = {"client_id": name, "protocol": protocol, "wait": 0.2}
    topic = f"{name}/{{k}}"
    with Taking(broker, topic, **options) as taking:
        publish(broker, [(f"{name}/a", n) for n in range(5)])
        assert taking.rows(5) == [0, 1, 2, 3, 4]
    with Taking(broker, topic, **options) as taking:  # not asked for more: they come again
        assert taking.rows(5) == [0, 1, 2, 3, 4]
        publish(broker, [(f"{name}/a", n) for n in range(5, 8)])
        assert taking.rows(3) == [5, 6, 7]
    with Taking(broker, topic, **options) as taking:  # asked for more: only those behind
        assert taking.rows(3) == [5, 6, 7]
        taking.finish()
    with Taking(broker, topic, **options) as taking:  # asked, and stopped
        assert taking.nothing_for(0.3)


def test_messages_wait_while_nobody_is_there(broker, name):
    subscribe(broker, f"{name}/{{k}}", client_id=name)
    publish(broker, [(f"{name}/a", n) for n in range(300)])
    options = {"client_id": name, "block_rows": 100, "wait": 10.0, "protocol": "5"}
    with Taking(broker, f"{name}/{{k}}", **options) as taking:
        assert [len(taking.next()) for _ in range(3)] == [100, 100, 100]


@pytest.mark.parametrize(("protocol", "window"), [("5", 10), ("3.1.1", 20)])
def test_a_small_window_moves_on_with_the_acknowledgements(
    broker, name, monkeypatch, protocol, window
):
    """In version 5 it is ours, in 3.1.1 the broker's: 20 if it is not told otherwise."""
    monkeypatch.setattr(mqtt_link, "RECEIVE_MAXIMUM", 10)
    options = {"client_id": name, "protocol": protocol}
    subscribe(broker, f"{name}/{{k}}", **options)
    publish(broker, [(f"{name}/a", n) for n in range(65)])
    with Taking(broker, f"{name}/{{k}}", wait=0.5, **options) as taking:
        assert len(taking.next()) == window
        assert taking.rows(65 - window) == list(range(window, 65))


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_good_bye_with_messages_unread_loses_no_acknowledgement(tmp_path, name, protocol):
    options = {"client_id": name, "protocol": protocol, "block_rows": 50, "wait": 5.0}
    with mosquitto(tmp_path, config_lines=["max_inflight_messages 0"]) as server:
        subscribe(server, "t/{k}", **options)
        publish(server, [("t/a", n) for n in range(2000)])
        for first in range(0, 500, 50):
            with Taking(server, "t/{k}", **options) as taking:
                assert taking.next().raw_values.tolist() == list(range(first, first + 50))
                taking.finish()


PROGRAM = """
import sys
from rillet.source import open_source
names = dict(zip(("address", "topic", "client_id"), sys.argv[1:]))
source = open_source({"kind": "mqtt", "wait": 5.0, **names})
print("connected" if (blocks := source.blocks()) else "", flush=True)
for block in blocks:
    print(block.raw_values.tolist(), flush=True)
"""


def test_a_killed_consumer_gets_only_what_it_did_not_acknowledge(broker, name):
    topic = f"{name}/{{k}}"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, address(broker), topic, name],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as process:
        assert process.stdout.readline() == "connected\n"
        publish(broker, [(f"{name}/a", n) for n in range(3)])
        assert process.stdout.readline() == "[0.0, 1.0, 2.0]\n"
        process.send_signal(signal.SIGSTOP)  # it may have asked for more, or not yet
        process.send_signal(signal.SIGCONT)
        time.sleep(0.5)  # now it has
        publish(broker, [(f"{name}/a", n) for n in range(3, 5)])
        time.sleep(0.05)  # less than it gathers for
        process.kill()
    with Taking(broker, topic, client_id=name) as taking:
        assert taking.rows(2) == [3, 4]


# --- When the broker goes away -----------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_broker_that_restarts_loses_nothing(tmp_path, name, protocol, caplog):
    caplog.set_level("INFO", "rillet")
    options = {"client_id": name, "field": "x", "sequence": "n", "protocol": protocol}
    with mosquitto(tmp_path / "broker") as server:
        taking = Taking(server, "t/{k}", **options)
        with taking, ThreadPoolExecutor() as pool:
            found = []
            for first in (0, 100):
                publish(server, numbered("t", range(first, first + 60)))
                found += taking.rows(60, "sequence")
                publish(server, numbered("t", range(first + 60, first + 80)))
                waiting = pool.submit(taking.next) if first else None
                server.restart()
                publish(server, numbered("t", range(first + 80, first + 100)))
                if waiting:
                    found += waiting.result(PATIENCE).sequence.tolist()
            while max(found) < 199:
                found += taking.next().sequence.tolist()
        assert sorted(set(found)) == list(range(200))
        seen, kept = -1, []
        for number in found:  # what an engine does with sequence numbers
            if number > seen:
                kept.append(number)
                seen = number
        assert kept == list(range(200))
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert "connection lost, trying again" in said
    assert "connected again" in said


def test_old_packet_numbers_do_not_acknowledge_new_messages(tmp_path, name):
    """A broker that forgets the session numbers from one again."""
    options = {"client_id": name, "block_rows": 5, "wait": 20.0}
    with mosquitto(tmp_path / "broker") as server:
        with Taking(server, "t/{k}", **options) as taking, ThreadPoolExecutor() as pool:
            waiting = pool.submit(taking.next)
            publish(server, [("t/a", n) for n in range(4)])
            time.sleep(0.3)  # gathered, one too few for a block
            server.stop()
            (server.folder / "mosquitto.db").unlink()
            server.start()
            end = time.monotonic() + PATIENCE
            while name not in server.log.read_text().rpartition("running")[2]:
                assert time.monotonic() < end
                time.sleep(0.01)
            time.sleep(0.2)  # subscribed again
            publish(server, [("t/a", n) for n in range(4, 10)])
            assert waiting.result(PATIENCE).raw_values.tolist() == [0, 1, 2, 3, 4]
            assert taking.next().raw_values.tolist() == [5, 6, 7, 8, 9]
        with Taking(server, "t/{k}", **options) as taking:
            assert taking.next().raw_values.tolist() == [5, 6, 7, 8, 9]


def test_what_was_gathered_and_comes_again_is_not_taken_twice(tmp_path, name):
    """Without sequence numbers the copies in hand make way for those that come again."""
    options = {"client_id": name, "block_rows": 5, "wait": 20.0}
    with (
        mosquitto(tmp_path / "broker") as server,
        ThreadPoolExecutor() as pool,
        Taking(server, "t/{k}", **options) as taking,
    ):
        waiting = pool.submit(taking.next)
        publish(server, [("t/a", n) for n in range(3)])
        time.sleep(0.2)
        server.restart()
        publish(server, [("t/a", n) for n in range(3, 5)])
        assert waiting.result(PATIENCE).raw_values.tolist() == [0, 1, 2, 3, 4]


def test_with_sequence_numbers_what_was_gathered_is_kept(tmp_path, name):
    """A broker may come back from an older copy, with the session and without the messages."""
    options = {"client_id": name, "field": "x", "sequence": "n"}
    with mosquitto(tmp_path / "broker") as server, ThreadPoolExecutor() as pool:
        subscribe(server, "t/{k}", **options)
        server.restart()
        shutil.copy(server.folder / "mosquitto.db", tmp_path / "copy.db")
        with Taking(server, "t/{k}", block_rows=5, wait=20.0, **options) as taking:
            waiting = pool.submit(taking.next)
            publish(server, numbered("t", range(3)))
            time.sleep(0.2)
            server.kill()
            shutil.copy(tmp_path / "copy.db", server.folder / "mosquitto.db")
            server.start()
            publish(server, numbered("t", range(3, 5)))
            # How long it will be away, nobody knows: a clock may be waiting for them.
            assert waiting.result(PATIENCE).sequence.tolist() == [0, 1, 2]
            assert taking.next().sequence.tolist() == [3, 4]


def test_a_stop_ends_the_search_for_a_broker(tmp_path, name):
    with (
        mosquitto(tmp_path / "broker") as server,
        Taking(server, "t/{k}", client_id=name) as taking,
    ):
        server.stop()
        begun = time.monotonic()
        assert taking.nothing_for(0.3)
        assert time.monotonic() - begun < 10
