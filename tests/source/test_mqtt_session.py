"""How a session with a broker begins and ends: clear errors, no secrets, no private words."""

from __future__ import annotations

import contextlib
import datetime
import gc
import ipaddress
import logging
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from helpers.servers import HOST, free_port, mosquitto
from helpers.sources import mqtt_source
from rillet.broker import Broker
from rillet.errors import InputError, ParameterError
from rillet.source import DeclaredKeys, mqtt_link
from source.test_mqtt import PATIENCE, Taking, address, publish

PASSWORD = "drawer-with-a-lock"


def refused(server_address, **options):
    source = mqtt_source(server_address, "t/{k}", **{"client_id": "r", **options})
    with pytest.raises(InputError) as caught:
        source.blocks()
    assert PASSWORD not in str(caught.value)
    with pytest.raises(InputError):
        source.check()
    return str(caught.value)


def test_a_broker_that_is_not_there():
    port = free_port()
    message = refused(f"{HOST}:{port}")
    assert message.startswith(f"{HOST}:{port}: expected an MQTT broker that lets us in, found: ")
    assert "Connection refused" in message


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A broker that wants a password."""
    program = shutil.which("mosquitto_passwd")
    if program is None:
        pytest.skip("mosquitto_passwd is not installed; type: apt-get install mosquitto")
    folder = tmp_path_factory.mktemp("locked")
    subprocess.run([program, "-b", "-c", folder / "users", "meter", PASSWORD], check=True)
    (folder / "users").chmod(0o600)
    lines = [f"password_file {folder / 'users'}"]
    with mosquitto(folder, config_lines=lines) as server:
        yield server


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_the_password_comes_from_a_file(locked, tmp_path, protocol):
    (tmp_path / "password").write_text(PASSWORD + "\n")
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "wrong").write_text("open sesame\n")
    (tmp_path / "wrong").chmod(0o600)
    options = {"username": "meter", "protocol": protocol, "client_id": f"lock{protocol}"}
    with Taking(locked, "t/{k}", password_file=tmp_path / "password", **options) as taking:
        assert PASSWORD not in repr(taking.source)
        assert PASSWORD not in repr(vars(taking.source))
    message = refused(address(locked), password_file=tmp_path / "wrong", **options)
    assert "ot authori" in message or "password" in message.partition("found")[2].partition(";")[0]
    assert "check client_id, username, password_file" in message
    with pytest.raises(InputError, match=r"password_file: expected .*nowhere, found: No such"):
        mqtt_source(
            "h", "t", client_id="c", username="m", password_file=tmp_path / "nowhere"
        ).check()


def test_two_clients_of_one_name_do_not_fight_for_ever(broker, monkeypatch):
    """mosquitto 2.0 throws the older one out without a word; the one that gives up says why."""
    monkeypatch.setattr(mqtt_link, "SHORTEST_DELAY", 0.02)
    with (
        ThreadPoolExecutor() as pool,
        Taking(broker, "twins/{k}", client_id="twin") as first,
        Taking(broker, "twins/{k}", client_id="twin") as second,
    ):
        waiting = {pool.submit(first.next), pool.submit(second.next)}
        done, waiting = wait(waiting, PATIENCE, FIRST_COMPLETED)
        with pytest.raises(InputError, match="expected to be the only client 'twin', found"):
            done.pop().result()
        publish(broker, [("twins/a", "1")])
        assert waiting.pop().result(PATIENCE).raw_values.tolist() == [1]


def test_a_broker_that_says_so_is_believed():
    with (
        fake_broker([CONNACK_5, SUBACK_5 + packet(0xE0, b"\x8e\x00")]) as (place, _),
        pytest.raises(InputError, match="found that another one has taken the session over"),
    ):
        next(iter(mqtt_source(place, "t/{k}", client_id="c", protocol="5").blocks()))


def test_a_check_takes_nothing_and_disturbs_nobody(broker):
    with Taking(broker, "checked/{k}", client_id="checked", wait=0.2) as taking:
        taking.source.check()
        publish(broker, [("checked/a", "1")])
        taking.source.check()
        assert taking.rows(1) == [1]
        taking.finish()
    kept = mqtt_source(address(broker), "checked/{k}", client_id="checked-check")
    link = kept._link()
    link.connect()
    assert not link._resumed  # the check left no session behind
    link.close()


# --- TLS ---------------------------------------------------------------------------------------


def certificate(folder, name):
    """A self-signed certificate for loopback and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / f"{name}.pem").write_bytes(made.public_bytes(encoding))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            encoding,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / f"{name}.pem", folder / f"{name}.key"


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning")
def test_tls(tmp_path):
    cert, key = certificate(tmp_path, "broker")
    other, _ = certificate(tmp_path, "other")
    lines = [f"certfile {cert}", f"keyfile {key}"]
    with mosquitto(tmp_path / "tls", config_lines=lines) as server:
        options = {"client_id": "tls", "ca_file": cert, "wait": 0.1}
        count = 3000
        with Taking(server, "t/{k}", **options) as taking:
            with Taking(server, "t/{k}", **{**options, "client_id": "early"}):
                pass
            sender = Broker.at(address(server), InputError, ca_file=cert).client("sender", "3.1.1")
            sender.max_inflight_messages_set(1)
            sender.connect(HOST, server.port)
            sender.loop_start()
            sent = [sender.publish("t/a", n, qos=1) for n in range(count)]
            sent[-1].wait_for_publish(PATIENCE)
            sender.disconnect()
            sender.loop_stop()
            assert taking.rows(count) == list(range(count))
        with Taking(server, "t/{k}", **{**options, "client_id": "early"}) as taking:
            assert taking.rows(count) == list(range(count))
        message = refused(address(server), ca_file=other)
        assert "check ca_file" in message
        assert refused(address(server))  # without TLS
        assert "certificates that can be read" in refused(address(server), ca_file=key)
    gc.collect()


# --- A broker of our own making, for what mosquitto does not do -----------------------------------


def packet(first, body):
    return bytes([first, len(body)]) + body


@contextlib.contextmanager
def fake_broker(*conversations):
    """Serve one connection after the other: (what to send at once, then after each packet)."""
    listener = socket.create_server((HOST, 0))
    heard = []

    def serve():
        for answers in conversations:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(PATIENCE)
                    for answer in answers:
                        heard.append(connection.recv(1 << 16))
                        if answer is None:
                            break
                        connection.sendall(answer)
                    else:
                        while received := connection.recv(1 << 16):
                            heard.append(received)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{listener.getsockname()[1]}", heard
    finally:
        listener.close()


CONNACK_5 = packet(0x20, b"\x00\x00\x00")
CONNACK_311 = packet(0x20, b"\x00\x00")
SUBACK_5 = packet(0x90, b"\x00\x01\x00\x01")
SUBACK_311 = packet(0x90, b"\x00\x01\x01")
MESSAGE_311 = packet(0x32, b"\x00\x03t/a\x00\x07" + b"12.5")
MESSAGE_5 = packet(0x32, b"\x00\x03t/a\x00\x07\x00" + b"12.5")


@pytest.mark.parametrize(
    ("protocol", "answers"),
    [
        ("3.1.1", [CONNACK_311, SUBACK_311 + MESSAGE_311]),
        ("5", [CONNACK_5, SUBACK_5 + MESSAGE_5]),
    ],
)
def test_acknowledged_and_then_good_bye(protocol, answers):
    stop = threading.Event()
    with fake_broker(answers) as (place, heard):
        blocks = mqtt_source(place, "t/{k}", client_id="c", stop=stop, protocol=protocol).blocks()
        assert next(blocks).raw_values.tolist() == [12.5]
        assert len(heard) == 2  # a connection and a subscription
        stop.set()
        assert list(blocks) == []
        end = time.monotonic() + PATIENCE
        while not heard[-1].endswith(b"\xe0\x00"):
            assert time.monotonic() < end
            time.sleep(0.01)
    assert heard[0][8] == {"3.1.1": 4, "5": 5}[protocol]
    assert b"".join(heard[2:]) == b"\x40\x02\x00\x07\xe0\x00"


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [("5", packet(0x20, b"\x00\x01")), ("5", packet(0x20, b"\x00\x84\x00")), ("3.1.1", None)],
)
def test_a_broker_that_does_not_speak_the_protocol(protocol, answer):
    """It refuses in the old words or in the new, or hangs up."""
    with (
        fake_broker([answer]) as (place, _),
        pytest.raises(InputError, match="expected an MQTT broker that lets us in, found: "),
    ):
        mqtt_source(place, "t/{k}", client_id="old", protocol=protocol).blocks()


def test_a_topic_that_is_no_text_is_dropped_and_acknowledged():
    strange = packet(0x32, b"\x00\x03t/\xff\x00\x06" + b"1")
    stop = threading.Event()
    with fake_broker([CONNACK_311, SUBACK_311 + strange + MESSAGE_311]) as (place, heard):
        blocks = mqtt_source(place, "t/{k}", client_id="c", stop=stop).blocks()
        assert next(blocks).raw_values.tolist() == [12.5]
        stop.set()
        assert list(blocks) == []
        assert b"".join(heard[2:]).startswith(b"\x40\x02\x00\x06\x40\x02\x00\x07")


@pytest.mark.parametrize(
    ("code", "found"), [(0x87, "Not authorized"), (0x00, "only QoS 0"), (0x97, "Quota exceeded")]
)
def test_a_refused_subscription(code, found):
    with (
        fake_broker([CONNACK_5, packet(0x90, b"\x00\x01\x00" + bytes([code]))]) as (place, _),
        pytest.raises(InputError, match=f"found: {found} for the topics t/\\+;"),
    ):
        mqtt_source(place, "t/{k}", client_id="c", protocol="5").blocks()


def test_a_server_that_says_nothing(monkeypatch):
    monkeypatch.setattr(mqtt_link, "PATIENCE", 0.2)
    with (
        fake_broker([b""]) as (place, _),
        pytest.raises(InputError, match=r"found: no answer in 0\.2 s"),
    ):
        mqtt_source(place, "t/{k}", client_id="c").blocks()


def test_a_silent_broker_is_asked_and_then_left(monkeypatch):
    monkeypatch.setattr(mqtt_link, "KEEP_ALIVE", 1)
    stop = threading.Event()
    with fake_broker([CONNACK_311, SUBACK_311], [CONNACK_311, SUBACK_311 + MESSAGE_311]) as (
        place,
        heard,
    ):
        blocks = mqtt_source(place, "t/{k}", client_id="c", stop=stop).blocks()
        assert next(blocks).raw_values.tolist() == [12.5]
        assert heard[2] == b"\xc0\x00"  # asked at the end of the keep-alive
        assert heard[3][:1] == b"\x10"  # and connected again, as no answer came
        blocks.close()


def test_a_broker_that_is_busy_is_asked_again_until_the_stop():
    busy = [packet(0x20, b"\x00\x03")]
    stop = threading.Event()
    with fake_broker([CONNACK_311, SUBACK_311 + b"\x00\x00"], *[busy] * 9) as (place, heard):
        blocks = mqtt_source(place, "t/{k}", client_id="c", stop=stop).blocks()
        threading.Timer(1.0, stop.set).start()
        assert list(blocks) == []
        assert len(heard) > 3


def test_what_was_discarded_is_waited_for(monkeypatch):
    """Also if the time to gather ended while the connection was made again."""
    monkeypatch.setattr(mqtt_link, "KEEP_ALIVE", 1)
    lost = [CONNACK_311, SUBACK_311 + MESSAGE_311 + b"\x00\x00"]
    resumed = [packet(0x20, b"\x01\x00"), SUBACK_311, b"\xd0\x00" + MESSAGE_311]
    with fake_broker(lost, resumed) as (place, heard):
        blocks = mqtt_source(place, "t/{k}", client_id="c", wait=0.05).blocks()
        assert next(blocks).raw_values.tolist() == [12.5]
        assert len(heard) == 5  # twice a connection and a subscription, and a sign of life
        blocks.close()


@pytest.mark.parametrize("nonsense", [b"\x30\x02\xff\xff", b"\x30\xff\xff\xff\xff\xff"])
def test_nonsense_from_a_broker_ends_the_connection_only(nonsense):
    """It comes as the answer to the first acknowledgement."""
    begin = [CONNACK_311, SUBACK_311 + MESSAGE_311]
    stop = threading.Event()
    with fake_broker([*begin, nonsense], begin) as (place, heard):
        blocks = mqtt_source(place, "t/{k}", client_id="c", stop=stop).blocks()
        assert [next(blocks).raw_values.tolist() for _ in range(2)] == [[12.5], [12.5]]
        assert heard[2] == b"\x40\x02\x00\x07"
        stop.set()
        assert list(blocks) == []


# --- What must not be seen, and parameters --------------------------------------------------------


def test_nothing_private_is_logged_or_shown(broker, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    keys = DeclaredKeys([("known",)])
    with Taking(broker, "secret/{k}", client_id="secret", keys=keys, wait=0.2) as taking:
        publish(broker, [("secret/known", "271.828"), ("secret/somebody", "271828e3")])
        block = taking.next()
        assert len(block) == 2
        shown = repr(block) + repr(taking.source) + repr(taking.source._link())
    printed = "".join(capfd.readouterr())
    for text in (shown, caplog.text, printed):
        # Six digits and a point: a port or a process id cannot spell either.
        assert "271.828" not in text and "271828" not in text
        assert "somebody" not in text


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        *(({"address": value}, "address") for value in ("", ":1", "h:0", "h:x", "::1", 3)),
        *(
            ({"topic": value}, "topic")
            for value in ("", "t/+", "t/#", "t/x{k}", "t/{k", "{k}/{k}", "$share/g/{k}", None)
        ),
        ({"client_id": ""}, "client_id"),
        ({"field": 3}, "field"),
        ({"sequence": "n"}, "field"),
        ({"field": "x", "sequence": 3}, "sequence"),
        *(({"wait": value}, "wait") for value in (-1, 61, "1", True)),
        ({"block_rows": 0}, "block_rows"),
        ({"protocol": "4"}, "protocol"),
        ({"protocol": "auto"}, "protocol"),
        ({"password_file": "p"}, "username"),
    ],
)
def test_wrong_parameters_are_named(options, parameter):
    given_options = {"address": "h:1883", "topic": "t/{k}", "client_id": "c", **options}
    with pytest.raises(ParameterError, match=rf"^source\.{parameter}: expected"):
        mqtt_source(given_options.pop("address"), given_options.pop("topic"), **given_options)


@pytest.mark.parametrize(
    ("topic", "key", "parameter"), [("t/{a}/{b}", "x", "topic"), ("t/{k}", "a/b", "keys")]
)
def test_keys_that_do_not_fit_the_topics_are_refused(topic, key, parameter):
    with pytest.raises(ParameterError, match=f"^{parameter}: expected"):
        mqtt_source("h:1883", topic, client_id="c", keys=DeclaredKeys([(key,)]))


def test_a_broker_has_no_positions():
    with pytest.raises(ParameterError, match=r"^start: expected None"):
        mqtt_source("h:1883", "t", client_id="c").blocks({"rows": 1})
