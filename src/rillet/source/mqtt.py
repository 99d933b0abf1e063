"""Observations from an MQTT broker: one message, one observation.

The payload is a bare number, read as a CSV cell would be, or a JSON object with the number in a
field. In the template ``meters/{meter}/reading`` each name in braces takes one level of the topic.
The key is in the topic, in the payload, or in both: a key column is the name in braces, or the
field of the payload, that holds this part. Without key columns the names in braces are its parts,
in their order. A payload without a number is NaN; nothing raises because of one.

Messages that the broker had *retained* are not taken: such a message repeats what was published
before, at some other time, and would count an observation twice or out of turn.

**Privacy.** Touches raw data. Neither payloads nor topics are logged or repeated in an error; the
template and the declared keys are public.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct

from rillet.broker import Broker
from rillet.errors import InputError, ParameterError
from rillet.source.base import (
    DEFAULT_BLOCK_ROWS,
    Block,
    Position,
    Source,
    rows_to_a_block,
)
from rillet.source.json_lines import json_rows
from rillet.source.keys import UNDECLARED, DeclaredKeys, Wanted
from rillet.source.mqtt_link import MqttLink, RawMessage
from rillet.times import time_zone

__all__ = ["MqttOptions", "MqttSource"]

#: Named points around the acknowledgement to the broker, as in :mod:`rillet.engine.job`.
log = logging.getLogger("rillet.mqtt")

#: The index of a topic that the template does not match; `UNDECLARED` is one that it does.
NO_MATCH = -2

_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class MqttOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mqtt"
):
    """Options of an `MqttSource`.

    Parameters
    ----------
    address : str
        ``"host:port"``; without a port 1883, or 8883 with TLS.
    topic : str
        A template such as ``"meters/{meter}/reading"``.
    client_id : str
        The fixed name of the broker's session: it keeps messages for this name while no client
        is connected. Two processes must not share it.
    field : str, optional
        The field of a JSON payload that holds the number; None if the payload is the number.
    sequence : str, optional
        The field that holds a number which grows with each message of a key.
    time : str, optional
        The field that holds the time of the observation; see :mod:`rillet.gather.clock` for what is
        read. Without one the time of receipt stands for it.
    zone : str, optional
        The zone of times that name none, such as ``"Europe/Berlin"``.
    person : str, optional
        The field with the id of the person whose the observation is: text or an integer, compared
        as text.
    username, password_file : str, optional
        To log in; the password is the first line of the file.
    tls : bool
        Speak TLS, trusting the authorities that the system trusts; implied by the files.
    ca_file, cert_file, key_file : str, optional
        The authority that the broker's certificate must be from; our own certificate and its key.
    block_rows : int
        Most messages in a block. By default as many as the broker can have under way.
    wait : float
        Seconds to gather a block, from its first message on.
    protocol : {"3.1.1", "5"}
        The version to speak. In 5, which costs half as much time again, rillet itself asks for as
        many messages ahead of their acknowledgement as there can be; in 3.1.1 that is a setting of
        the broker.
    """

    address: str
    topic: str
    client_id: Annotated[str, Meta(min_length=1)]
    field: str | None = None
    sequence: str | None = None
    time: str | None = None
    zone: str | None = None
    person: str | None = None
    username: str | None = None
    password_file: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    block_rows: Annotated[int, Meta(ge=1)] = DEFAULT_BLOCK_ROWS
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.05
    protocol: Literal["3.1.1", "5"] = "3.1.1"

    def __post_init__(self) -> None:
        TopicTemplate(self.topic)
        self.broker()
        time_zone(self.zone)
        for name in ("sequence", "time", "person"):
            if getattr(self, name) is not None and self.field is None:
                raise ParameterError("field", f"the name of a field, since {name} names one", None)

    def broker(self) -> Broker:
        """Return where the broker is, and how to be let in."""
        return Broker.at(
            self.address,
            InputError,
            username=self.username,
            password_file=self.password_file,
            tls=self.tls,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )


class MqttSource(Source):
    """Messages of an MQTT broker; needs paho-mqtt, ``rillet[mqtt]``.

    `blocks` connects, and gives blocks until ``stop`` is set. Asking for the next block
    acknowledges the one before; to close the iterator, or the source, instead does not. The broker
    itself knows what is left to send: blocks have no positions.

    **Privacy.** Touches raw data. When messages come is visible to whoever sees when releases do;
    see the threat model.

    **Delivery.** At least once: what was not acknowledged comes again, over the next connection or
    to the next process of the same ``client_id``. With ``sequence`` each block carries the sequence
    numbers, and whoever absorbs it can drop what it has seen: exactly once. Messages published with
    QoS 0 come at most once.

    Parameters
    ----------
    options : MqttOptions
        Where to read what.
    keys : DeclaredKeys, optional
        The declared keys. Each of their columns is a name of the template or a field of the
        payload; without columns they have as many parts as the template has names.
    stop : threading.Event, optional
        Once it is set, no further block comes.

    Raises
    ------
    ParameterError
        If the keys do not fit the template.
    """

    Options: ClassVar[type[Struct]] = MqttOptions
    replayable = False
    redelivers = True
    live = True

    def __init__(
        self,
        options: MqttOptions,
        *,
        keys: DeclaredKeys | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._options, self._keys, self._stop = options, keys, stop
        self._broker = options.broker()
        template = TopicTemplate(options.topic)
        self._subscription, self._names = template.subscription, template.names
        columns = () if keys is None else keys.columns
        in_payload = [column for column in columns if column not in template.names]
        if in_payload and options.field is None:
            raise ParameterError(
                "field",
                f"the name of a field, since the topic has no {{{in_payload[0]}}}: this part of "
                "the key must be a field of the payload too",
                None,
            )
        #: Whether the topic alone does not tell the key; and from a topic to the index of its key,
        #: or to what the names of the template stand for.
        self._by_parts = bool(columns) and set(columns) != set(template.names)
        self._in_topic: Callable[[bytes], Any] = (
            template.parts if self._by_parts else template.table(keys).__getitem__
        )
        self._raw_rows_of = json_rows(
            Wanted(
                options.field,
                keys if self._by_parts else None,
                sequence=options.sequence,
                time=options.time,
                zone=options.zone,
                person=options.person,
            )
        )
        self._open: MqttLink | None = None
        self.name = self._broker.address
        self.identity = f"{options.topic}:{options.field or ''}"

    def __repr__(self) -> str:
        return (
            f"MqttSource({self.name!r}, {self._subscription!r}, "
            f"client_id={self._options.client_id!r})"
        )

    def check(self) -> None:
        """Connect and subscribe under another name, take nothing, and leave no trace.

        The session of ``client_id`` and a process that uses it stay as they are. See `Source`.
        """
        with contextlib.closing(self._link(check=True)) as link:
            link.connect()

    def blocks(
        self, start: Position | None = None, *, block_rows: int | None = None
    ) -> Iterator[Block]:
        """Connect, then return the blocks; see `Source`.

        Once connected, a lost connection is made again, for as long as it takes.

        **Privacy.** Touches raw data.
        """
        if start is not None:
            raise ParameterError("start", "None, as the broker knows what is left", "a position")
        rows = rows_to_a_block(block_rows, self._options.block_rows)
        self.close()
        link = self._open = self._link()
        link.connect()
        return self._blocks(link, rows)

    @property
    def heard_until(self) -> int:
        """Before which nothing is held back; see `Source`."""
        return 0 if self._open is None else self._open.heard_until

    def close(self) -> None:
        """Leave the broker; what is not acknowledged stays with it."""
        if self._open is not None:
            self._open.close()

    def _link(self, *, check: bool = False) -> MqttLink:
        client_id = self._options.client_id
        return MqttLink(
            self._broker,
            f"{client_id}-check" if check else client_id,
            self._subscription,
            protocol=self._options.protocol,
            persistent=not check,
            # With sequence numbers a message too many is harmless, and one too few is not.
            keep_gathered=self._options.sequence is not None,
            stop=self._stop,
        )

    def _blocks(self, link: MqttLink, block_rows: int) -> Iterator[Block]:
        with contextlib.closing(link):
            while raw_messages := link.gather(block_rows, self._options.wait):
                block = self._block(raw_messages)
                if len(block):
                    yield block
                log.debug("confirming")
                link.acknowledge()
                log.debug("confirmed")

    def _block(self, raw_messages: list[RawMessage]) -> Block:
        """Return what those of the messages hold that are observations."""
        raw_found = [self._in_topic(raw_message[0]) for raw_message in raw_messages]
        if NO_MATCH in raw_found:
            matching = [found != NO_MATCH for found in raw_found]
            raw_messages = list(compress(raw_messages, matching))
            raw_found = list(compress(raw_found, matching))
        raw_payloads = [
            # A reader of lines may rely on there being no line end inside; to JSON it is space.
            raw_payload.replace(b"\n", b" ") if b"\n" in raw_payload else raw_payload
            for _, raw_payload, *_ in raw_messages
        ]
        if self._by_parts:
            raw_parts = map(list, zip(*raw_found, strict=True))
            raw_rows = self._raw_rows_of(
                raw_payloads, dict(zip(self._names, raw_parts, strict=False))
            )
        else:
            raw_rows = self._raw_rows_of(raw_payloads)
            if self._keys is not None:
                raw_rows = raw_rows._replace(key_of=np.array(raw_found, dtype=np.int64))
        arrived = [raw_message[3] for raw_message in raw_messages]
        return Block(arrived=np.array(arrived, dtype=np.int64), **raw_rows._asdict())


class TopicTemplate:
    """A template, taken apart.

    Parameters
    ----------
    template : str
        Levels with slashes between them, each either plain text or one name in braces.

    Attributes
    ----------
    names : tuple of str
        The names in braces, in order.
    subscription : str
        What to subscribe to: each name replaced by the wildcard ``+``.

    Raises
    ------
    ParameterError
        If it is no such template.

    Examples
    --------
    >>> template = TopicTemplate("meters/{meter}/reading")
    >>> template.names, template.subscription
    (('meter',), 'meters/+/reading')
    """

    def __init__(self, template: str) -> None:
        self._levels = template.split("/")
        self.names = tuple(match[1] for level in self._levels if (match := _NAME.fullmatch(level)))
        plain = [level for level in self._levels if not _NAME.fullmatch(level)]
        expected = hint = None
        if self._levels[0] == "$share":
            expected, hint = "a topic of its own", "shared subscriptions split the stream"
        elif not template or any(set(level) & set("{}+#\0") for level in plain):
            expected = "levels that are plain text or one name in braces"
            hint = 'such as "meters/{meter}/reading"'
        elif len(set(self.names)) < len(self.names):
            expected = "each name once"
        if expected is not None:
            raise ParameterError("topic", expected, template, hint)
        self.subscription = self.filled(["+"] * len(self.names))
        self.pattern = re.compile(
            b"/".join(
                rb"([^/]*)" if _NAME.fullmatch(level) else re.escape(level.encode())
                for level in self._levels
            )
        )

    def table(self, keys: DeclaredKeys | None) -> TopicTable:
        """Return the table from topics to keys, or raise `ParameterError` if they do not fit."""
        if keys is not None and keys.parts != len(self.names):
            raise ParameterError(
                "topic",
                f"{keys.parts} names in braces, one for each part of a declared key",
                "/".join(self._levels),
                "or name the columns of the keys: what is not in the topic is a field then",
            )
        for key in () if keys is None else keys.keys:
            if any(set(str(part)) & set("/+#\0") for part in key):
                raise ParameterError(
                    "keys", "parts that can be a level of a topic, without / + #", key
                )
        return TopicTable(self, keys)

    def parts(self, raw_topic: bytes) -> tuple[bytes, ...] | int:
        """Return what the names stand for in a topic, or `NO_MATCH`.

        **Privacy.** Touches raw data; total.
        """
        raw_match = self.pattern.fullmatch(raw_topic) if raw_topic else None
        return NO_MATCH if raw_match is None else raw_match.groups()

    def filled(self, parts: Sequence[str]) -> str:
        """Return the topic with these in place of the names."""
        rest = iter(parts)
        return "/".join(next(rest) if _NAME.fullmatch(level) else level for level in self._levels)


class TopicTable(dict[bytes, int]):
    """From the topic of a message to the index of its key.

    **Privacy.** Touches raw data when it is asked; total. Topics of undeclared keys cost more time,
    before any release is made of them.

    Examples
    --------
    >>> table = TopicTemplate("meters/{meter}").table(DeclaredKeys([("a",), ("b",)]))
    >>> [table[topic] for topic in (b"meters/b", b"meters/c", b"weather")]
    [1, -1, -2]
    """

    def __init__(self, template: TopicTemplate, keys: DeclaredKeys | None) -> None:
        self._pattern, self._keys = template.pattern, keys
        columns = template.names if keys is None or not keys.columns else keys.columns
        #: For each name of the template the part of the key, and for each part the name.
        part_of = [columns.index(name) for name in template.names]
        self._name_of = [template.names.index(column) for column in columns]
        super().__init__(
            (template.filled([str(key[part]).strip() for part in part_of]).encode(), index)
            for index, key in enumerate(() if keys is None else keys.keys)
        )
        # No message is published there, whatever a name in braces would match.
        self[b""] = NO_MATCH

    def __missing__(self, raw_topic: bytes) -> int:
        raw_match = self._pattern.fullmatch(raw_topic)
        if raw_match is None:
            return NO_MATCH
        if self._keys is None:
            return UNDECLARED
        raw_groups = raw_match.groups()
        return int(self._keys.indexes(*([raw_groups[name]] for name in self._name_of))[0])
