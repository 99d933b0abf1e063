"""Releases as messages to an MQTT broker.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

from rillet.broker import Broker, check_protocol, reason_of
from rillet.errors import OutputError, ParameterError
from rillet.release import Key
from rillet.sink.base import Place
from rillet.sink.spelling import key_text, spell
from rillet.table import ReleaseTable

__all__ = ["MqttSink", "escape_level"]

_KEEP_ALIVE = 60
_FIRST_PAUSE, _LONGEST_PAUSE = 1, 5
#: Seconds between two looks at whether acknowledgements still come.
_LOOK = 0.5
#: Messages handed over before their acknowledgements are waited for.
_MESSAGES = 1000
#: More bytes than that the protocol has no number for.
_LONGEST_TOPIC = 65_535
#: Reasons from here on are refusals.
_FAILURE = 128

_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Separators and wildcards, our own escape, and what a topic should not hold: control characters
# and halves of surrogate pairs.
_ESCAPED = re.compile("[/+#%\0-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_level(text: str) -> str:
    """Make any text one level of a topic: what cannot stand there becomes ``%`` and its number.

    Different texts stay different.

    Examples
    --------
    >>> escape_level("north/south"), escape_level("100 %"), escape_level("Zürich")
    ('north%2Fsouth', '100 %25', 'Zürich')
    """
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


class MqttSink:
    """Publishes each release as JSON, on a topic that may hold the parts of its key.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** At least once (QoS 1): `deliver` returns when the broker has acknowledged every
    message. A message may come twice, after a lost connection or a crash, and then carries the
    same (key, t) with the same numbers. What was published before cannot be looked up, so nothing
    is compared: the durable state of the run alone keeps a second, different value from being
    published. If `deliver` fails, some messages may have gone out; delivering the table again
    repeats them.

    Parameters
    ----------
    address : str
        ``"host:port"``; without a port 1883, or 8883 with TLS.
    topic : str
        A template such as ``"rillet/{region}/{meter}"``: each level is plain text or one name in
        braces, of a key column or ``statistic``. Parts of keys are made fit by `escape_level`.
    key_columns : sequence of str
        The names of the parts of a key; none: ``key0``, ``key1``, …
    retain : bool
        Whether the broker keeps the last message of each topic for those who come later.
    client_id : str
        The name to connect by; none: any.
    username, password_file : str, optional
        To log in; the password is the first line of the file.
    tls : bool
        Speak TLS, trusting the authorities that the system trusts, or that of ``ca_file``.
    ca_file : str, optional
        The authority that the broker's certificate must be from; implies ``tls``.
    protocol : {"5", "3.1.1"}
        The version to speak. In 3.1.1 a broker cannot say that it did not take a message.
    patience : float
        Seconds to wait for the next acknowledgement, over as many connections as it takes.
    place : None
        A broker has none.

    Raises
    ------
    MissingExtra
        If paho-mqtt is not installed.
    OutputError
        If the broker cannot be reached, or refuses us.
    ParameterError
        If a parameter is wrong.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        key_columns: Sequence[str] = (),
        retain: bool = False,
        client_id: str = "",
        username: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        tls: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
        protocol: str = "5",
        patience: float = 30.0,
        place: Place | None = None,
    ) -> None:
        self._broker = Broker.at(
            address,
            OutputError,
            username=username,
            password_file=password_file,
            tls=tls,
            ca_file=ca_file,
        )
        self._protocol = check_protocol(protocol)
        self._levels = _levels(topic, key_columns)
        self._columns = tuple(key_columns)
        self.name = f"topic {topic} on {self._broker.address}"
        if place is not None:
            raise OutputError(f"{self.name}: expected no place, found {dict(place)}")
        self._retain, self._client_id = retain, client_id
        self._patience = patience
        self._topics: dict[Key, str] = {}
        self._closed = False
        self._link: _Link | None = None
        self._connected()

    def __repr__(self) -> str:
        return f"MqttSink({self.name!r})"

    def deliver(self, table: ReleaseTable) -> None:
        """Publish every release and wait for the acknowledgements; see the class."""
        if self._closed:
            raise OutputError(f"{self.name}: expected an open sink, found it closed")
        table = table.compact()
        topics = [self._topic(table, key) for key in table.keys]
        for first in range(0, len(table), _MESSAGES):
            part = table[first : first + _MESSAGES]
            lines = b"".join(spell(part)).split(b"\n")[:-1]
            link = self._connected()
            problem = link.publish(
                [topics[place] for place in part.key_of.tolist()], lines, self._retain
            )
            if problem is not None:
                # What it still holds must not go out later, behind what is delivered then.
                self._disconnect()
                raise OutputError(
                    f"{self.name}: expected the broker to acknowledge every message, "
                    f"found: {problem}"
                )

    def place(self) -> None:
        """A broker has none."""

    def close(self) -> None:
        """Say good-bye to the broker."""
        self._closed = True
        self._disconnect()

    def _topic(self, table: ReleaseTable, key: Key) -> str:
        if key not in self._topics:
            if len(key) != len(self._columns) and self._columns:
                raise OutputError(
                    f"{self.name}: expected keys of {len(self._columns)} parts, "
                    f"{', '.join(self._columns)}, found {key_text(key)}"
                )
            columns = self._columns or [f"key{place}" for place in range(len(key))]
            parts = dict(zip(columns, map(str, key), strict=True), statistic=table.statistic)
            unknown = [name for name, plain in self._levels if not plain and name not in parts]
            if unknown:
                raise OutputError(
                    f"{self.name}: expected keys with {unknown[0]}, found {key_text(key)}"
                )
            topic = "/".join(
                text if plain else escape_level(parts[text]) for text, plain in self._levels
            )
            if topic.startswith("$") and not self._levels[0][1]:
                topic = f"%24{topic[1:]}"  # such topics are the broker's own
            if not topic or len(topic.encode()) > _LONGEST_TOPIC:
                raise OutputError(
                    f"{self.name}: expected a topic of 1 to {_LONGEST_TOPIC:,} bytes, found "
                    f"{len(topic.encode()):,} for key {key_text(key)[:60]}; change the template"
                )
            self._topics[key] = topic
        return self._topics[key]

    def _connected(self) -> _Link:
        if self._link is None:
            client = self._broker.client(self._client_id, self._protocol)
            client.reconnect_delay_set(_FIRST_PAUSE, _LONGEST_PAUSE)
            link = _Link(client, self._patience)
            try:
                problem = link.connect(self._broker.host, self._broker.port)
            except (OSError, ValueError) as error:
                problem = reason_of(error)
            if problem is not None:
                link.disconnect()
                raise OutputError(
                    f"{self.name}: expected a broker that lets us in, found: {problem}"
                )
            self._link = link
        return self._link

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.disconnect()
            self._link = None


class _Link:
    """One client of paho, its thread, and the count of what was acknowledged."""

    def __init__(self, client: Any, patience: float) -> None:
        self._client, self._patience = client, patience
        self._changed = threading.Condition()
        self._answer: str | None = None
        self._connected = False
        self._sent = self._acknowledged = 0
        self._refusal: str | None = None
        client.on_connect = self._on_connect
        client.on_publish = self._on_publish

    def connect(self, host: str, port: int) -> str | None:
        """Connect, and say what is wrong if that fails."""
        self._client.connect(host, port, _KEEP_ALIVE)
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._connected or self._answer is not None, self._patience
            )
            if self._connected:
                return None
            return self._answer or f"no answer in {self._patience:g} s"

    def publish(self, topics: list[str], payloads: list[bytes], retain: bool) -> str | None:
        """Publish all and wait for the acknowledgements; say what is wrong if they do not come."""
        for topic, payload in zip(topics, payloads, strict=True):
            self._client.publish(topic, payload, qos=1, retain=retain)
        with self._changed:
            self._sent += len(topics)
            seen, end = self._acknowledged, time.monotonic() + self._patience
            while self._acknowledged < self._sent and self._refusal is None:
                self._changed.wait(min(self._patience, _LOOK))
                if self._acknowledged > seen:
                    seen, end = self._acknowledged, time.monotonic() + self._patience
                elif time.monotonic() > end:
                    return f"no acknowledgement in {self._patience:g} s"
            return self._refusal

    def disconnect(self) -> None:
        """End the connection and the thread; what was not acknowledged is dropped."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        with self._changed:
            self._connected = not reason.is_failure
            self._answer = str(reason)
            self._changed.notify_all()

    def _on_publish(
        self, _client: Any, _data: Any, _mid: int, reason: Any, _properties: Any
    ) -> None:
        with self._changed:
            self._acknowledged += 1
            if reason.value >= _FAILURE:
                self._refusal = str(reason)
            if self._acknowledged >= self._sent or self._refusal is not None:
                self._changed.notify_all()


def _levels(template: str, key_columns: Sequence[str]) -> list[tuple[str, bool]]:
    """The levels of a template, each with whether it is plain text."""
    example = 'such as "rillet/{region}/{meter}"'
    if not template or "\0" in template:
        raise ParameterError("topic", "a topic template", template, example)
    levels = []
    for level in template.split("/"):
        match = _NAME.fullmatch(level)
        if match is None and set(level) & set("{}+#"):
            raise ParameterError(
                "topic", "levels that are plain text or one name in braces", template, example
            )
        known = [*key_columns, "statistic"]
        if match is not None and key_columns and match[1] not in known:
            raise ParameterError("topic", f"names out of {', '.join(known)}", match[1], example)
        if (
            match is not None
            and not key_columns
            and not re.fullmatch(r"key\d+|statistic", match[1])
        ):
            raise ParameterError("topic", "the names key0, key1, … or statistic", match[1])
        levels.append((level, True) if match is None else (match[1], False))
    return levels
