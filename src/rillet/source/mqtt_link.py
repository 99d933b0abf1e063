"""A session with an MQTT broker: gathers messages, and acknowledges them when told.

paho speaks the protocol; here is only when. It is driven in the thread of whoever asks: messages
wait in the socket's buffer while a block is absorbed, no two threads fight for the interpreter, and
nothing needs a lock. The price: no sign of life goes out meanwhile, so a consumer that takes longer
than the keep-alive for one block is taken for dead by the broker, and gets again what it did not
acknowledge.

**Privacy.** Touches raw data: holds messages. Nothing is logged; errors name the address, the topic
filter and the broker's reason only.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import ssl
import threading
import time
from typing import Any

from rillet.broker import Broker, paho, reason_of
from rillet.errors import InputError
from rillet.times import now

log = logging.getLogger("rillet.source")

__all__ = ["MqttLink", "RawMessage"]

#: Topic, payload, the number to acknowledge, 0 if there is none to, and the time of receipt.
RawMessage = tuple[bytes, bytes, int, int]
#: The topic of what is not wanted: no message can have it.
NO_TOPIC = b""

#: Seconds without traffic after which one side takes the other for dead.
KEEP_ALIVE = 60
#: Seconds to wait for the answer when connecting.
PATIENCE = 5.0
#: Seconds between two looks at ``stop``, and at most that many messages.
POLL_SECONDS, POLL_MESSAGES = 0.1, 1000
#: Seconds before the first attempt to reconnect, and at most before a later one.
SHORTEST_DELAY, LONGEST_DELAY = 0.1, 10.0
#: A connection that is lost sooner than this is a short one; number of them in a row to give up.
SHORT_SECONDS, MOST_SHORT = 2.0, 5

#: How many messages the broker may send ahead of our acknowledgements: all that have a number.
RECEIVE_MAXIMUM = 65_535
_NEVER = 0xFFFF_FFFF

# A reason code of MQTT 5, and one of our own.
_TAKEN_OVER, _NO_SUBSCRIPTION = 142, -1
# The client's name, its password, what it is allowed to do, a ban, the way to log in.
_PERMANENT = {133, 134, 135, 138, 140, _TAKEN_OVER, _NO_SUBSCRIPTION}


class _Refused(Exception):
    """The broker did not let us in, or not now."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class MqttLink:
    """The session ``client_id`` with a broker, over as many connections as it takes.

    It is subscribed to one topic filter. If it is ``persistent`` the broker keeps it while we are
    away. With ``keep_gathered`` messages of a lost connection stay although they come again. The
    event ``stop`` ends any waiting.

    **Privacy.** Touches raw data.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        subscription: str,
        *,
        protocol: str,
        persistent: bool = True,
        keep_gathered: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._broker, self._client_id, self._subscription = broker, client_id, subscription
        self._keep_gathered = keep_gathered
        self._stop = threading.Event() if stop is None else stop
        self._raw_messages: list[RawMessage] = []
        #: Everything received before this time was returned by an earlier `gather`.
        self.heard_until = 0
        # The numbers of what was gathered last, in order.
        self._raw_numbers: list[int] = []
        # Whether the broker knew the session, and we are subscribed; what it has against us.
        self._resumed = self._subscribed = False
        self._problem: _Refused | None = None
        # When the connection began, and how many before it were short ones.
        self._begun, self._short = 0.0, 0
        self._wish: dict[str, Any] = {"qos": 1}
        clean: dict[str, Any] = {"clean_session": not persistent}
        properties: dict[str, Any] = {}
        if protocol == "5":
            mqtt = paho()
            wanted = mqtt.Properties(mqtt.PacketTypes.CONNECT)
            wanted.ReceiveMaximum = RECEIVE_MAXIMUM
            wanted.SessionExpiryInterval = _NEVER if persistent else 0
            clean, properties = {}, {"clean_start": not persistent, "properties": wanted}
            # 2: do not send what is retained.
            self._wish = {"options": mqtt.SubscribeOptions(qos=1, retainHandling=2)}
        client = self._client = broker.client(
            client_id, protocol, manual_ack=True, reconnect_on_failure=False, **clean
        )
        client.connect_timeout = PATIENCE
        client.connect_async(broker.host, broker.port, KEEP_ALIVE, **properties)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe, client.on_message = self._on_subscribe, self._on_message

    def __repr__(self) -> str:
        return f"MqttLink({self._broker.address!r}, {self._client_id!r})"

    def connect(self) -> None:
        """Connect for the first time, or raise `InputError`."""
        try:
            self._open()
        except (_Refused, OSError, ValueError) as error:
            self.close()
            raise self._failed(error) from None

    def gather(self, most: int, seconds: float) -> list[RawMessage]:
        """Wait for a message, then ``seconds`` for more of them; none if the link was stopped.

        A fifth of that without a message ends the waiting too: a broker that sends no more before
        something is acknowledged would wait for us as long as we for it.

        Raises `InputError` if the broker refuses us for good.

        **Privacy.** Touches raw data. How many there are depends on when messages come.
        """
        end, quiet, count = math.inf, math.inf, 0
        while not self._stop.is_set():
            self._hear()
            turn = time.monotonic()
            if len(self._raw_messages) != count:
                end = turn + seconds if count == 0 else end
                count, quiet = len(self._raw_messages), turn + seconds / 5
            if count == 0:
                end = quiet = math.inf
            elif self._keep_gathered and self._client.socket() is None:
                end = turn  # How long the broker will be away, nobody knows.
            if count >= most or turn >= min(end, quiet):
                raw_taken = self._raw_messages[:most]
                del self._raw_messages[:most]
                self._raw_numbers = [number for _, _, number, _ in raw_taken if number]
                return raw_taken
            if self._client.socket() is None:
                self._reconnect()
                continue
            self._turn(min(end - turn, quiet - turn, POLL_SECONDS), most)
            if self._problem is not None:
                raise self._failed(self._problem)
        return []

    def acknowledge(self) -> None:
        """Tell the broker that what was gathered last is safe, in its order.

        A number belongs to the connection that the message came over: after a reconnection the
        broker sends what was not acknowledged again, and maybe other messages under the same
        numbers. So numbers of an earlier connection are never sent.
        """
        raw_numbers, self._raw_numbers = self._raw_numbers, []
        for number in raw_numbers:
            if self._client.socket() is None:
                return
            self._client.ack(number, 1)

    def close(self) -> None:
        """Say good-bye to the broker; what is not acknowledged stays with it."""
        client, end = self._client, time.monotonic() + 1.0
        if client.socket() is None:
            return
        # paho closes the socket with its good-bye. If messages were still unread in it, the system
        # would reset the connection, and acknowledgements on their way might be lost: so a second
        # handle keeps it open until the broker has closed its end.
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(client.socket().fileno())) as line,
        ):
            line.settimeout(POLL_SECONDS)
            client.disconnect()
            while time.monotonic() < end:
                client.loop_write()
                if client.socket() is None:
                    line.shutdown(socket.SHUT_WR)
                with contextlib.suppress(TimeoutError):
                    if not line.recv(1 << 16):
                        break
        if client.socket() is not None:
            client.socket().close()

    # --- Inside --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect and subscribe, or raise `_Refused`, OSError or ValueError."""
        self._problem, self._subscribed = None, False
        self._client.reconnect()
        end = time.monotonic() + PATIENCE
        while not self._stop.is_set() and (self._client.want_write() or not self._subscribed):
            self._turn(POLL_SECONDS, RECEIVE_MAXIMUM)
            if self._problem is not None:
                raise self._problem
            if self._client.socket() is None:
                raise _Refused("a closed connection")
            if time.monotonic() > end:
                raise _Refused(f"no answer in {PATIENCE:g} s")

    def _reconnect(self) -> None:
        """Connect again, as often as it takes, with growing pauses."""
        # Two clients of one name throw each other out for ever, and not every broker says why.
        short = time.monotonic() - self._begun < SHORT_SECONDS
        self._short = self._short + 1 if short else 0
        if self._short >= MOST_SHORT:
            found = f"the connection closed {MOST_SHORT} times at once"
            raise self._failed(_Refused(found, _TAKEN_OVER))
        delay = SHORTEST_DELAY * 2**self._short
        log.info("%s: connection lost, trying again", self._broker.address)
        while self._pause(delay):
            delay = min(2 * delay, LONGEST_DELAY)
            try:
                self._open()
            except _Refused as error:
                if error.code in _PERMANENT:
                    raise self._failed(error) from None
            except (OSError, ValueError):
                pass  # Not there yet.
            else:
                log.info("%s: connected again", self._broker.address)
                return

    def _pause(self, seconds: float) -> bool:
        """Wait; False if the link was stopped."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._stop.wait(min(left, POLL_SECONDS)):
                return False
            self._hear()
        return True

    def _hear(self) -> None:
        """Note the time before which nothing is held.

        What is held while there is no connection comes again, or counts as received with the next.
        """
        held = self._raw_messages if self._client.socket() is not None else []
        self.heard_until = held[0][3] if held else now()

    def _turn(self, seconds: float, most: int) -> None:
        """Let paho write what it has, and read what there is or comes within ``seconds``."""
        client, sock = self._client, self._client.socket()
        if sock is None:
            return
        # Over TLS bytes may have left the socket and not yet been read.
        if not (self._broker.tls and sock.pending()):
            poll = select.poll()  # Unlike ``select``, for any number of open files.
            poll.register(sock, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
            poll.poll(seconds * 1000)
        if client.want_write():
            client.loop_write()
        for _ in range(POLL_MESSAGES):
            count = len(self._raw_messages)
            if count >= most:
                break
            client.loop_read()
            if len(self._raw_messages) == count:
                break  # That was all, or something else than a message.
        client.loop_misc()

    def _on_connect(self, client: Any, _data: Any, flags: Any, reason: Any, *_: Any) -> None:
        if reason.is_failure:
            self._problem = _Refused(str(reason), reason.value)
            return
        self._begun = time.monotonic()
        self._raw_numbers = []
        self._resumed = flags.session_present
        kept = self._raw_messages if self._keep_gathered or not self._resumed else []
        # The others come again.
        self._raw_messages = [(topic, payload, 0, now()) for topic, payload, *_ in kept]
        # Also in a session that has it already: the template may have changed. There the answer may
        # come behind many thousand messages, so it is not waited for.
        client.subscribe(self._subscription, **self._wish)
        self._subscribed = self._resumed

    def _on_subscribe(self, _client: Any, _data: Any, _mid: int, reasons: Any, *_: Any) -> None:
        self._subscribed = all(reason.value == 1 for reason in reasons)
        if not self._subscribed:
            found = "only QoS 0" if reasons[0].value == 0 else str(reasons[0])
            self._problem = _Refused(
                f"{found} for the topics {self._subscription}", _NO_SUBSCRIPTION
            )

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: Any, *_: Any) -> None:
        if reason.value == _TAKEN_OVER:
            self._problem = _Refused("that another one has taken the session over", _TAKEN_OVER)

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        try:
            raw_topic = NO_TOPIC if message.retain else message.topic.encode()
        except UnicodeDecodeError:
            raw_topic = NO_TOPIC
        self._raw_messages.append((raw_topic, message.payload, message.mid, now()))

    def _failed(self, error: Exception) -> InputError:
        address, code = self._broker.address, getattr(error, "code", None)
        if code == _TAKEN_OVER:
            return InputError(
                f"{address}: expected to be the only client {self._client_id!r}, found {error}; "
                "if there are two, stop one, or give each its own client_id"
            )
        if code in _PERMANENT:
            hint = "check client_id, username, password_file and what the broker allows them"
        elif isinstance(error, ssl.SSLError):
            hint = "check ca_file, and that the port speaks TLS"
        else:
            hint = "check that it runs there, and the address"
        return InputError(
            f"{address}: expected an MQTT broker that lets us in, found: {reason_of(error)}; {hint}"
        )
