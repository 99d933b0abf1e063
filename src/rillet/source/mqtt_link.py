"""A session with an MQTT broker: takes messages, and acknowledges them when told.

paho connects, logs in and subscribes; from then on the bytes are read here (see `mqtt_frames`), and
acknowledgements go out all in one write.

Everything runs in the thread of whoever asks. A network thread beside a busy one would get the
interpreter's lock only every few milliseconds; here messages wait in the socket's buffer while a
block is absorbed, and nothing needs a lock. The price: a consumer that takes longer than the
keep-alive for one block is taken for dead by the broker, and gets again what it did not
acknowledge.

**Privacy.** Touches raw data: holds messages. Nothing is logged; errors name the address, the topic
filter and the broker's reason only.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from typing import Any

from rillet.errors import InputError
from rillet.source.mqtt_broker import PATIENCE, Broker, paho, reason_of
from rillet.source.mqtt_frames import FrameReader, RawMessages

__all__ = ["MqttLink"]

#: Seconds without traffic after which the broker takes us for dead.
KEEP_ALIVE = 60
#: Seconds between two looks at ``stop``.
POLL_SECONDS = 0.1
#: Seconds before the first attempt to reconnect, and at most before a later one.
SHORTEST_DELAY, LONGEST_DELAY = 0.1, 10.0
#: A connection that is lost within so many seconds is a short one, and so many are too many.
SHORT_SECONDS, MOST_SHORT = 2.0, 5

#: How many messages the broker may send ahead of our acknowledgements: all that have a number.
RECEIVE_MAXIMUM = 65_535
_NEVER_EXPIRES = 0xFFFF_FFFF

# Reason codes of MQTT 5, to which paho translates those of 3.1.1.
_UNSUPPORTED_PROTOCOL = 132
_TAKEN_OVER = 142
# And two of our own.
_NO_SUBSCRIPTION, _NO_ANSWER = -1, -2
# The client's name, its password, what it is allowed to do, a ban, the way to log in.
_PERMANENT = {133, 134, 135, 138, 140, _NO_SUBSCRIPTION}

_SUBSCRIPTION_REASONS = {0: "only QoS 0", 128: "a refusal", 135: "Not authorized"}

_CHUNK_BYTES, _CHUNKS_AT_ONCE = 1 << 16, 16
# The same bytes in both versions of the protocol.
_PUBACK = b"\x40\x02"
_PINGREQ = b"\xc0\x00"
_DISCONNECT = b"\xe0\x00"
_SUBACK = 0x90


class _Refused(Exception):
    """The broker did not let us in, or not now."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class MqttLink:
    """One session with a broker, over as many connections as it takes.

    Parameters
    ----------
    broker : Broker
        Where to connect.
    client_id : str
        The name of the session.
    subscription : str
        The topic filter.
    persistent : bool
        Whether the broker keeps the session while we are away.
    protocols : sequence of str
        What to speak, ``"5"`` and ``"3.1.1"``, in the order of preference.
    keep_gathered : bool
        Whether messages that were gathered over a lost connection are kept although the broker
        will send them again.
    stop : threading.Event, optional
        Ends any waiting.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        subscription: str,
        *,
        persistent: bool = True,
        protocols: tuple[str, ...] = ("5", "3.1.1"),
        keep_gathered: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.subscription = subscription
        self.connections = 0
        self._persistent = persistent
        self._protocols = protocols
        self._keep_gathered = keep_gathered
        self._stop = stop
        self._client: Any = None
        self._version_5 = True
        self._wish: dict[str, Any] = {}
        # What the broker said to the connection, and whether it knew the session and has answered
        # to the subscription; why the connection was lost.
        self._accepted: Any = None
        self._resumed = False
        self._granted = False
        self._lost: Any = None
        self._frames = FrameReader(properties=True)
        # So many of the first messages there came over earlier connections.
        self._outdated = 0
        # The packet numbers of what was gathered last, in order.
        self._raw_numbers: list[int] = []
        # When the broker last heard of us, and we of it; when it was asked to say something.
        self._said = self._heard = 0.0
        # When the connection began, and how many before it were short ones.
        self._begun, self._short = 0.0, 0
        self._asked: float | None = None
        self._keep_alive = KEEP_ALIVE

    def __repr__(self) -> str:
        return f"MqttLink({self.broker.address!r}, {self.client_id!r})"

    def __enter__(self) -> MqttLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_stopped(self) -> bool:
        """Whether the link was asked to stop."""
        return self._stop is not None and self._stop.is_set()

    def connect(self) -> None:
        """Connect for the first time, in the best protocol that the broker speaks.

        Raises
        ------
        InputError
            If the broker cannot be reached, or refuses us or the subscription.
        """
        for protocol in self._protocols:
            self._version_5 = protocol == "5"
            self._client = self.broker.client(self.client_id, protocol, persistent=self._persistent)
            self._client.on_connect = self._on_connect
            self._client.on_disconnect = self._on_disconnect
            try:
                self._open(protocol)
            except InputError:
                self.close()
                raise
            except (_Refused, OSError, ValueError) as error:
                self.close()
                # A broker that does not know version 5 says so, or just hangs up.
                code = error.code if isinstance(error, _Refused) else _NO_ANSWER
                if code not in (None, _UNSUPPORTED_PROTOCOL) or protocol == self._protocols[-1]:
                    raise self._failed(error) from None
            else:
                return

    def gather(self, most: int, seconds: float) -> RawMessages | None:
        """Wait for a message, then for more of them; return None if the link was stopped.

        **Privacy.** Touches raw data. How many there are depends on when messages come.

        Parameters
        ----------
        most : int
            Return at the latest when there are so many.
        seconds : float
            Return at the latest so long after the first.

        Raises
        ------
        InputError
            If the broker refuses us for good.
        """
        end: float | None = None
        while not self.is_stopped():
            now = time.monotonic()
            count = self._frames.messages.size
            if count and end is None:
                end = now + seconds
            if count >= most or (end is not None and now >= end):
                return self._take(most)
            if self._client.socket() is None:
                self._reconnect()
            self._receive(POLL_SECONDS if end is None else end - now, most - count)
        return None

    def _take(self, most: int) -> RawMessages:
        taken = self._frames.messages.take(most)
        self._raw_numbers = [number for number in taken.raw_numbers[self._outdated :] if number]
        self._outdated = max(0, self._outdated - most)
        return taken

    def acknowledge(self) -> None:
        """Tell the broker that what was gathered last is safe, in its order, all in one write.

        A packet number belongs to the connection that it came over: after a reconnection the broker
        sends what was not acknowledged again, and maybe other messages under the same numbers. So
        numbers of an earlier connection are never sent.
        """
        raw_numbers, self._raw_numbers = self._raw_numbers, []
        raw_packets = b"".join(_PUBACK + number.to_bytes(2, "big") for number in raw_numbers)
        if raw_packets:
            self._send(raw_packets)

    def close(self) -> None:
        """Say good-bye to the broker; what is not acknowledged stays with it."""
        client = self._client
        if client is None or client.socket() is None:
            return
        try:
            # paho would close the socket at once; with messages still unread in it the system then
            # resets the connection, and acknowledgements on their way might be lost.
            _send_all(client.socket(), _DISCONNECT)
            client.socket().shutdown(socket.SHUT_WR)
            end = time.monotonic() + 1.0
            while _ready(client.socket(), select.POLLIN, end - time.monotonic()):
                if not client.socket().recv(1 << 16):
                    break
        except (OSError, ValueError):
            pass  # It is closed either way.
        self._hang_up()

    # --- Inside --------------------------------------------------------------------------------

    def _open(self, protocol: str | None = None) -> None:
        """Connect and subscribe, or raise `_Refused`, OSError or ValueError."""
        client, mqtt, broker = self._client, paho(), self.broker
        self._accepted = self._lost = None
        self._granted = False
        if protocol is None:
            client.reconnect()
        elif protocol == "5":
            properties = mqtt.Properties(mqtt.PacketTypes.CONNECT)
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
            if self._persistent:
                properties.SessionExpiryInterval = _NEVER_EXPIRES
            clean = not self._persistent
            client.connect(
                broker.host, broker.port, KEEP_ALIVE, clean_start=clean, properties=properties
            )
            # 2: do not send what is retained.
            self._wish = {"options": mqtt.SubscribeOptions(qos=1, retainHandling=2)}
        else:
            client.connect(broker.host, broker.port, KEEP_ALIVE)
            self._wish = {"qos": 1}
        end = time.monotonic() + PATIENCE
        while self._accepted is None:
            if self.is_stopped():
                return
            self._pump(end)
        if self._accepted.is_failure:
            raise _Refused(str(self._accepted), self._accepted.value)
        # Also in a session that has it already: the template may have changed. There the answer may
        # come behind many thousand messages, so it is not waited for.
        client.subscribe(self.subscription, **self._wish)
        while client.want_write() or not (self._resumed or self._granted or self.is_stopped()):
            if client.want_write():
                self._pump(end)
            else:
                self._receive(POLL_SECONDS, RECEIVE_MAXIMUM)
                if client.socket() is None or time.monotonic() > end:
                    raise _Refused("no answer to the subscription", _NO_ANSWER)

    def _reconnect(self) -> None:
        """Connect again, as often as it takes, with growing pauses."""
        # Two clients of one name throw each other out for ever, and not every broker says why.
        short = time.monotonic() - self._begun < SHORT_SECONDS
        self._short = self._short + 1 if short else 0
        if self._short >= MOST_SHORT:
            raise self._taken_over(f"the connection closed {MOST_SHORT} times at once")
        delay = SHORTEST_DELAY * 2**self._short
        while not self.is_stopped():
            if self._stop is None:
                time.sleep(delay)
            elif self._stop.wait(delay):
                return
            delay = min(2 * delay, LONGEST_DELAY)
            try:
                self._open()
            except _Refused as error:
                if error.code in _PERMANENT:
                    raise self._failed(error) from None
            except (OSError, ValueError):
                pass  # Not there yet.
            else:
                return
            self._hang_up()

    def _pump(self, end: float) -> None:
        """Let paho write what it has and read one packet, until the broker has let us in."""
        client = self._client
        sock = client.socket()
        if sock is None:
            raise _Refused("a closed connection" if self._lost is None else str(self._lost))
        if time.monotonic() > end:
            raise _Refused(f"no answer in {PATIENCE:g} s", _NO_ANSWER)
        if client.want_write():
            _ready(sock, select.POLLOUT, POLL_SECONDS)
            client.loop_write()
        elif (self.broker.tls and sock.pending()) or _ready(sock, select.POLLIN, POLL_SECONDS):
            client.loop_read()

    def _receive(self, seconds: float, most: int) -> None:
        """Wait for the socket and take what it has, up to about so many messages."""
        sock = self._client.socket()
        if sock is None:
            return
        # Over TLS bytes may have left the socket and not yet been read.
        if not (self.broker.tls and sock.pending()):
            _ready(sock, select.POLLIN, seconds)
        messages = self._frames.messages
        enough = messages.size + most
        try:
            for _ in range(_CHUNKS_AT_ONCE):
                raw_chunk = sock.recv(_CHUNK_BYTES)
                if not raw_chunk:
                    self._hang_up()
                    break
                self._frames.feed(raw_chunk)
                self._heard = time.monotonic()
                if messages.size >= enough:
                    break
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # That was all.
        except (OSError, ValueError):
            self._hang_up()
        for first, body in self._frames.answers:
            self._answer(first & 0xF0, body)
        self._frames.answers.clear()
        self._show_life()

    def _answer(self, kind: int, body: bytes) -> None:
        """Take a packet from the broker that is no message."""
        if kind == _SUBACK:
            code = body[-1] if body else 128
            if code != 1:
                reason = _SUBSCRIPTION_REASONS.get(code, f"reason code {code}")
                raise self._failed(
                    _Refused(f"{reason} for the topics {self.subscription}", _NO_SUBSCRIPTION)
                )
            self._granted = True
        elif kind == _DISCONNECT[0]:
            self._hang_up()
            if body[:1] == bytes([_TAKEN_OVER]):
                raise self._taken_over("that another one has taken the session over")

    def _show_life(self) -> None:
        """Show the broker that we are there, and hang up if it is not."""
        now = time.monotonic()
        if self._asked is not None and self._heard > self._asked:
            self._asked = None
        if self._asked is not None:
            if now > self._asked + PATIENCE:
                self._hang_up()
        elif now > min(self._said, self._heard) + self._keep_alive / 2:
            self._asked = now
            self._send(_PINGREQ)

    def _send(self, data: bytes) -> None:
        sock = self._client.socket()
        if sock is None:
            return
        try:
            _send_all(sock, data)
            self._said = time.monotonic()
        except (OSError, ValueError):
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection at once, without a word to the broker."""
        sock = self._client.socket()
        if sock is not None:
            sock.close()
            self._client.loop_read()  # Finds it closed.

    def _on_connect(
        self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self._accepted = reason
        if reason.is_failure:
            return
        self.connections += 1
        self._resumed = flags.session_present
        self._raw_numbers = []
        older = self._frames.messages
        self._frames = FrameReader(properties=self._version_5)
        self._begun = self._said = self._heard = time.monotonic()
        self._asked = None
        self._keep_alive = getattr(properties, "ServerKeepAlive", 0) or KEEP_ALIVE
        if self._keep_gathered or not self._resumed:
            # Otherwise they come again.
            self._frames.messages.extend(older)
        self._outdated = self._frames.messages.size

    def _on_disconnect(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        self._lost = reason

    def _taken_over(self, found: str) -> InputError:
        return InputError(
            f"{self.broker.address}: expected to be the only client {self.client_id!r}, found "
            f"{found}; if there are two, stop one, or give each its own client_id"
        )

    def _failed(self, error: Exception) -> InputError:
        address = self.broker.address
        if isinstance(error, _Refused) and error.code in _PERMANENT:
            hint = "check client_id, username, password_file and what the broker allows them"
        elif isinstance(error, ssl.SSLError):
            hint = "check ca_file, and that the port speaks TLS"
        else:
            hint = "check that it runs there, and the address"
        return InputError(
            f"{address}: expected an MQTT broker that lets us in, found: {reason_of(error)}; {hint}"
        )


def _ready(sock: Any, wish: int, seconds: float) -> bool:
    """Wait until a socket can be read or written; unlike ``select`` takes any number of files."""
    poll = select.poll()
    poll.register(sock, wish)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _send_all(sock: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            ready = _ready(sock, select.POLLOUT, PATIENCE)
        except ssl.SSLWantReadError:
            ready = _ready(sock, select.POLLIN, PATIENCE)
        else:
            continue
        if not ready:
            raise TimeoutError
