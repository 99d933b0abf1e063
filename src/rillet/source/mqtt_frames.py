"""The packets that a broker sends to a subscriber, cut out of a run of bytes.

paho makes a dozen objects and three system calls for each message, and takes some seventy
microseconds; a subscriber needs four fields of one kind of packet. So paho connects, and this reads
what comes then, in MQTT 5 and 3.1.1 (OASIS standards, sections 2.1 and 3.3).

**Privacy.** Touches raw data: holds messages; `repr` shows their number only.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FrameReader", "RawMessages"]

_PUBLISH = 0x30
_RETAINED, _QUALITY, _KIND = 0x01, 0x06, 0xF0
#: A retained message has no topic here: none of the ways to ask for one matches it.
NO_TOPIC = b""


class RawMessages(NamedTuple):
    """Messages in the order in which they came, field by field. Touches raw data.

    Lists of plain bytes and integers are nothing to the garbage collector; as many small objects
    would cost it more time than reading them took.
    """

    raw_topics: list[bytes]
    raw_payloads: list[bytes]
    #: The packet number to acknowledge, 0 if the message needs none.
    raw_numbers: list[int]

    def __repr__(self) -> str:
        return f"RawMessages({self.size})"

    @property
    def size(self) -> int:
        """How many there are; ``len`` would be that of the tuple."""
        return len(self.raw_payloads)

    def take(self, most: int) -> RawMessages:
        """Take the first so many off and return them."""
        taken = RawMessages(
            self.raw_topics[:most], self.raw_payloads[:most], self.raw_numbers[:most]
        )
        for raw_list in self:
            del raw_list[:most]
        return taken

    def append(self, raw_topic: bytes, raw_payload: bytes, number: int) -> None:
        """Put one at the end."""
        self.raw_topics.append(raw_topic)
        self.raw_payloads.append(raw_payload)
        self.raw_numbers.append(number)

    def extend(self, others: RawMessages) -> None:
        """Put others at the end."""
        self.raw_topics.extend(others.raw_topics)
        self.raw_payloads.extend(others.raw_payloads)
        self.raw_numbers.extend(others.raw_numbers)


class FrameReader:
    """Cuts packets out of bytes as they come.

    **Privacy.** Touches raw data; no payload makes this raise.

    Parameters
    ----------
    properties : bool
        Whether packets have properties, as they do in MQTT 5.

    Attributes
    ----------
    messages : RawMessages
        What was published.
    answers : list of tuple
        The first byte and the body of every other packet.
    """

    def __init__(self, *, properties: bool) -> None:
        self.messages = RawMessages([], [], [])
        self.answers: list[tuple[int, bytes]] = []
        self._properties = properties
        self._raw_chunks: list[bytes] = []
        self._held = 0
        self._needed = 2

    def feed(self, raw_chunk: bytes) -> None:
        """Take more bytes.

        Raises
        ------
        ValueError
            If they are no packets of MQTT; says nothing about what was found.
        """
        self._raw_chunks.append(raw_chunk)
        self._held += len(raw_chunk)
        if self._held < self._needed:  # A long packet is joined once, when all of it is there.
            return
        raw_bytes = (
            self._raw_chunks[0] if len(self._raw_chunks) == 1 else b"".join(self._raw_chunks)
        )
        try:
            used = self._cut(raw_bytes)
        except IndexError:
            raise ValueError("a packet is shorter than what it should hold") from None
        self._raw_chunks = [raw_bytes[used:]]
        self._held = len(raw_bytes) - used

    def _cut(self, raw: bytes) -> int:
        """Take every whole packet and return how many bytes they have."""
        used, size = 0, len(raw)
        while True:
            self._needed = 2
            if size - used < 2:
                return used
            body, length = used + 2, raw[used + 1]
            if length > 127:
                found = _length(raw, used + 1)
                if found is None:
                    self._needed = size - used + 1
                    return used
                length, body = found
            end = body + length
            if end > size:
                self._needed = end - used
                return used
            first = raw[used]
            if first & _KIND == _PUBLISH:
                self._publish(raw, first, body, end)
            else:
                self.answers.append((first, raw[body:end]))
            used = end

    def _publish(self, raw: bytes, first: int, body: int, end: int) -> None:
        place = body + 2 + (raw[body] << 8 | raw[body + 1])
        raw_topic = raw[body + 2 : place]
        number = 0
        if first & _QUALITY:
            number = raw[place] << 8 | raw[place + 1]
            place += 2
        if self._properties:
            skipped = raw[place]
            if skipped > 127:
                found = _length(raw, place)
                skipped, place = found if found is not None else (end, end)
            else:
                place += 1
            place += skipped
        if place > end:
            raise ValueError("a message is shorter than its topic and properties")
        self.messages.append(NO_TOPIC if first & _RETAINED else raw_topic, raw[place:end], number)


def _length(raw: bytes, place: int) -> tuple[int, int] | None:
    """Read a length of one to four bytes and return it with the place behind, None if cut off."""
    value = 0
    for index, byte in enumerate(raw[place : place + 4]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, place + index + 1
    if len(raw) >= place + 4:
        raise ValueError("a length has more than four bytes")
    return None
