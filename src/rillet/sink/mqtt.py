"""Releases as messages to an MQTT broker.

**Privacy.** Post-processing: takes public releases, knows nothing else.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rillet.broker import Broker, reason_of
from rillet.errors import OutputError, ParameterError
from rillet.release import Key, Releases, key_text
from rillet.sink.base import Position, Seconds, Sink, SinkOptions, Text
from rillet.sink.spelling import spell

__all__ = ["MqttSink", "escape_level"]

log = logging.getLogger("rillet.sink")

_KEEP_ALIVE = 60
_FIRST_PAUSE, _LONGEST_PAUSE = 1, 5
#: Seconds between two looks at whether acknowledgements still come.
_LOOK = 0.5
#: Messages handed over before their acknowledgements are waited for.
_MESSAGES = 1000
#: In place of the parts that the key of a total lacks; `escape_level` gives it to no part.
_TOTAL = "%total"
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


class MqttSink(Sink):
    """Publishes each record as JSON, on a topic that may hold the parts of its key.

    **Privacy.** Post-processing: takes public releases, knows nothing else.

    **Delivery.** At least once (QoS 1): `deliver` returns when the broker has acknowledged every
    message. A message may come twice, after a lost connection or a crash, and then carries the
    same (key, t, name) with the same numbers. What was published before cannot be looked up, so
    nothing is compared: the durable state of the run alone keeps a second, different value from
    being published. If `deliver` fails, some messages may have gone out; delivering again repeats
    them.
    """

    class Options(SinkOptions, frozen=True, tag="mqtt"):
        """``[[sink]]`` with ``kind = "mqtt"``.

        Parameters
        ----------
        address : str
            ``"host:port"``; without a port 1883, or 8883 with TLS.
        topic : str
            A template such as ``"rillet/{region}/{meter}"``: each level is plain text or one name
            in braces, of a key column (``key0``, ``key1``, … where they have no names) or ``name``.
            Parts of keys are made fit by `escape_level`; those that the key of a total lacks are
            ``%total``.
        retain : bool
            Whether the broker keeps the last message of each topic for those who come later.
        client_id : str
            The name to connect by; empty: any.
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
        """

        address: Text
        topic: Text
        retain: bool = False
        client_id: str = ""
        username: str | None = None
        password_file: str | None = None
        tls: bool = False
        ca_file: str | None = None
        protocol: Literal["5", "3.1.1"] = "5"
        patience: Seconds = 30.0

    def __init__(self, options: Any, *, key_columns: Sequence[str] = ()) -> None:
        super().__init__(options, key_columns=key_columns)
        self._broker = Broker.at(
            options.address,
            OutputError,
            username=options.username,
            password_file=options.password_file,
            tls=options.tls,
            ca_file=options.ca_file,
        )
        self._levels = _levels(options.topic, key_columns)
        self.name = f"topic {options.topic} on {self._broker.address}"
        self._topics: dict[tuple[Key, str], str] = {}
        self._link: _Link | None = None

    def _open(self, position: Position | None) -> None:
        self._no_position(position)
        if self._broker.password_file is not None and not (self._broker.tls or self._is_local()):
            log.warning(
                "%s: the password is sent in the clear; use tls = true or ca_file", self.name
            )
        self._connected()

    def _is_local(self) -> bool:
        host = self._broker.host
        return host in ("localhost", "::1") or host.startswith("127.")

    def _deliver(self, releases: Releases) -> None:
        releases, names = releases.compact(), releases.names
        topics = [self._topic(key, name) for key in releases.keys for name in names]
        step = max(_MESSAGES // len(names), 1)
        for first in range(0, len(releases), step):
            part = releases[first : first + step]
            series = (part.key_of[:, None] * len(names) + np.arange(len(names))).reshape(-1)
            lines = b"".join(spell(part)).split(b"\n")[:-1]
            link = self._connected()
            problem = link.publish(
                [topics[index] for index in series.tolist()], lines, self.options.retain
            )
            if problem is not None:
                # What it still holds must not go out later, behind what is delivered then.
                self._close()
                raise OutputError(
                    f"{self.name}: expected the broker to acknowledge every message, "
                    f"found: {problem}"
                )

    def _topic(self, key: Key, name: str) -> str:
        if (key, name) not in self._topics:
            if len(key) > len(self.key_columns) and self.key_columns:
                raise OutputError(
                    f"{self.name}: expected keys of {len(self.key_columns)} parts, "
                    f"{', '.join(self.key_columns)}, found {key_text(key)}"
                )
            columns = self.key_columns or [f"key{index}" for index in range(len(key))]
            texts = [*map(escape_level, map(str, key)), *[_TOTAL] * (len(columns) - len(key))]
            parts = {"name": escape_level(name), **dict(zip(columns, texts, strict=True))}
            unknown = [text for text, plain in self._levels if not plain and text not in parts]
            if unknown:
                raise OutputError(
                    f"{self.name}: expected keys with {unknown[0]}, found {key_text(key)}"
                )
            topic = "/".join(text if plain else parts[text] for text, plain in self._levels)
            if topic.startswith("$") and not self._levels[0][1]:
                topic = f"%24{topic[1:]}"  # such topics are the broker's own
            if not topic or len(topic.encode()) > _LONGEST_TOPIC:
                raise OutputError(
                    f"{self.name}: expected a topic of 1 to {_LONGEST_TOPIC:,} bytes, found "
                    f"{len(topic.encode()):,} for key {key_text(key)[:60]}; change the template"
                )
            self._topics[key, name] = topic
        return self._topics[key, name]

    def _connected(self) -> _Link:
        if self._link is None:
            client = self._broker.client(self.options.client_id, self.options.protocol)
            client.reconnect_delay_set(_FIRST_PAUSE, _LONGEST_PAUSE)
            link = _Link(client, self.options.patience)
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

    def _close(self) -> None:
        if self._link is not None:
            self._link.disconnect()
            self._link = None

    def _break_off(self) -> None:
        if (link := self._link) is not None:
            link.refuse("the sink was closed")


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
                lambda: self._connected or self._answer or self._refusal, self._patience
            )
            if self._connected:
                return None
            return self._answer or self._refusal or f"no answer in {self._patience:g} s"

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

    def refuse(self, reason: str) -> None:
        """End all waiting, from another thread."""
        with self._changed:
            self._refusal = reason
            self._changed.notify_all()

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
    if "\0" in template:
        raise ParameterError("topic", "a topic template", template, example)
    columns = "|".join(map(re.escape, key_columns)) or r"key\d+"
    known = ", ".join(key_columns) or "key0, key1, …"
    levels = []
    for level in template.split("/"):
        match = _NAME.fullmatch(level)
        if match is None and set(level) & set("{}+#"):
            raise ParameterError(
                "topic", "levels that are plain text or one name in braces", template, example
            )
        if match is not None and not re.fullmatch(f"{columns}|name", match[1]):
            raise ParameterError("topic", f"names out of {known}, name", match[1], example)
        levels.append((level, True) if match is None else (match[1], False))
    return levels
