"""Observations from an MQTT broker: one message, one observation.

The payload is a bare number, read as a CSV cell would be, or a JSON object with the number in a
field. The topic tells the key. A payload without a number is NaN; nothing raises because of one.

Messages that the broker had *retained* are not taken: such a message repeats what was published
before, at some other time, and would count an observation twice or out of turn.

**Privacy.** Touches raw data. Neither payloads nor topics are logged or repeated in an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np

from rillet.broker import Broker, check_protocol
from rillet.errors import InputError, ParameterError
from rillet.source.block import Block, Position, check_block_rows
from rillet.source.json_lines import raw_fields
from rillet.source.keys import DeclaredKeys, RawRows, Wanted
from rillet.source.mqtt_link import MqttLink, RawMessage
from rillet.source.number import numbers
from rillet.source.topic import NO_MATCH, TopicTemplate

__all__ = ["MqttSource"]

#: Named points around the acknowledgement to the broker, as in :mod:`rillet.durable`.
log = logging.getLogger("rillet.mqtt")

# As many as the broker can have under way, so that one block can hold them all.
DEFAULT_BLOCK_ROWS = 1 << 16


class MqttSource:
    r"""Messages of an MQTT broker as blocks; needs paho-mqtt, ``rillet[mqtt]``.

    Iterating connects, and yields blocks until ``stop`` is set. Asking for the next block
    acknowledges the one before; to close the iterator instead (``blocks.close()``) does not.

    **Privacy.** Touches raw data. When messages come is visible to whoever sees when releases do;
    see the threat model.

    **Delivery.** At least once: what was not acknowledged comes again, over the next connection or
    to the next process of the same ``client_id``. With ``sequence`` each block carries the sequence
    numbers, and whoever absorbs it can drop what it has seen: exactly once. Messages published with
    QoS 0 come at most once.

    Parameters
    ----------
    address : str
        ``"host:port"``; without a port 1883, or 8883 with TLS.
    topic : str
        A template such as ``"meters/{meter}/reading"``: each name takes one level of the topic and
        gives one part of the key, in order.
    client_id : str
        The fixed name of the broker's session: it keeps messages for this name while nobody is
        connected. Two processes must not share it.
    field : str, optional
        The field of a JSON payload that holds the number; None if the payload is the number.
    sequence : str, optional
        The field that holds a number which grows with each message of a key.
    keys : DeclaredKeys, optional
        The declared keys, with as many parts as the template has names.
    username, password_file : str, optional
        To log in; the password is the first line of the file.
    tls : bool
        Speak TLS, trusting the authorities that the system trusts; implied by the files.
    ca_file, cert_file, key_file : str, optional
        The authority that the broker's certificate must be from; our own certificate and its key.
    block_rows : int
        At most so many messages to a block.
    wait : float
        Seconds to gather a block, from its first message on.
    start : Position, optional
        Where to go on counting rows; the broker itself knows what is left to send.
    stop : threading.Event, optional
        Once it is set, no further block comes.
    protocol : {"3.1.1", "5"}
        The version to speak. In 5, which costs half as much time again, rillet itself asks for as
        many messages ahead of their acknowledgement as there can be; in 3.1.1 that is a setting of
        the broker.

    Raises
    ------
    MissingExtra
        If paho-mqtt is not installed, when iterated.
    ParameterError
        If a parameter is wrong.
    InputError
        If the password cannot be read; when iterated, if the broker cannot be reached or refuses
        us. Once connected, a lost connection is made again, for as long as it takes.

    Examples
    --------
    >>> keys = DeclaredKeys([("north", 1), ("south", 1)])
    >>> MqttSource("localhost:1883", "meters/{region}/{meter}", client_id="rillet", keys=keys)
    MqttSource('localhost:1883', 'meters/+/+', client_id='rillet')
    """

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        client_id: str,
        field: str | None = None,
        sequence: str | None = None,
        keys: DeclaredKeys | None = None,
        username: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        tls: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        block_rows: int = DEFAULT_BLOCK_ROWS,
        wait: float = 0.05,
        start: Position | None = None,
        stop: threading.Event | None = None,
        protocol: str = "3.1.1",
    ) -> None:
        template = TopicTemplate(topic)
        _check(client_id, field, sequence, wait)
        self._broker = Broker.at(
            address,
            InputError,
            username=username,
            password_file=password_file,
            tls=tls,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._client_id = client_id
        self._subscription = template.subscription
        self._places = template.table(keys)
        self._keys = keys
        self._raw_rows_of = _raw_payloads(Wanted(field, sequence_column=sequence))
        self._has_sequence = sequence is not None
        self._block_rows = check_block_rows(block_rows)
        self._wait = wait
        self._start = start or Position()
        self._stop = stop
        self._protocol = check_protocol(protocol)

    def __repr__(self) -> str:
        return (
            f"MqttSource({self._broker.address!r}, {self._subscription!r}, "
            f"client_id={self._client_id!r})"
        )

    def __iter__(self) -> Iterator[Block]:
        """Connect, then return the blocks.

        **Privacy.** Touches raw data.
        """
        link = self._link()
        link.connect()
        return self._blocks(link)

    def check(self) -> None:
        """Connect and subscribe under another name, take nothing, and leave no trace.

        The session of ``client_id`` and a process that uses it stay as they are.

        Raises
        ------
        InputError
            If the broker cannot be reached or refuses us.
        """
        with contextlib.closing(self._link(check=True)) as link:
            link.connect()

    def _link(self, *, check: bool = False) -> MqttLink:
        return MqttLink(
            self._broker,
            f"{self._client_id}-check" if check else self._client_id,
            self._subscription,
            protocol=self._protocol,
            persistent=not check,
            # With sequence numbers a message too many is harmless, and one too few is not.
            keep_gathered=self._has_sequence,
            stop=self._stop,
        )

    def _blocks(self, link: MqttLink) -> Iterator[Block]:
        rows = self._start.rows
        with contextlib.closing(link):
            while raw_messages := link.gather(self._block_rows, self._wait):
                raw_rows = self._raw_rows(raw_messages)
                if raw_rows is not None:
                    before, rows = Position(rows), rows + raw_rows.raw_values.size
                    yield Block(
                        raw_rows.raw_values,
                        Position(rows),
                        start=before,
                        key_of=raw_rows.key_of,
                        sequence=raw_rows.sequence,
                    )
                log.debug("confirming")
                link.acknowledge()
                log.debug("confirmed")

    def _raw_rows(self, raw_messages: list[RawMessage]) -> RawRows | None:
        """Return what the messages hold, or None if none of them is an observation."""
        raw_found = [self._places[raw_topic] for raw_topic, *_ in raw_messages]
        raw_payloads = [
            raw_payload
            for place, (_, raw_payload, _) in zip(raw_found, raw_messages, strict=True)
            if place != NO_MATCH
        ]
        raw_places = np.array([place for place in raw_found if place != NO_MATCH], dtype=np.int64)
        if not raw_payloads:
            return None
        raw_rows = self._raw_rows_of(raw_payloads)
        return raw_rows if self._keys is None else raw_rows._replace(key_of=raw_places)


def _raw_payloads(wanted: Wanted) -> Callable[[list[bytes]], RawRows]:
    if wanted.column is None:
        return lambda raw_payloads: RawRows(numbers(raw_payloads))
    raw_rows_of = raw_fields(wanted)

    def raw_rows_of_payloads(raw_payloads: list[bytes]) -> RawRows:
        # A reader of lines may rely on there being no line end inside; to JSON it is white space.
        if b"\n" in b"".join(raw_payloads):
            raw_payloads = [payload.replace(b"\n", b" ") for payload in raw_payloads]
        return raw_rows_of(raw_payloads)

    return raw_rows_of_payloads


def _check(client_id: object, field: object, sequence: object, wait: object) -> None:
    if not isinstance(client_id, str) or not client_id:
        raise ParameterError("client_id", "a name for the session at the broker", client_id)
    for name, value in (("field", field), ("sequence", sequence)):
        if value is not None and not isinstance(value, str):
            raise ParameterError(name, "the name of a field", value)
    if sequence is not None and field is None:
        raise ParameterError("field", "the name of a field, since sequence names one", None)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 60:
        raise ParameterError("wait", "seconds from 0 to 60", wait)
