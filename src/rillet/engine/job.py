"""A job: blocks from a source, through streams, to sinks, until the source ends or one says stop.

The order is that of the guarantee: absorb a block durably, hand its releases to the sinks, then ask
the source for the next one, which acknowledges the last.  Delivery runs beside the next block's
work, at most one batch behind.

**Privacy.** Blocks go to the streams and nowhere else; what is counted, reported or logged is
public.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rillet.keyed import KeyedStreams
from rillet.noise import Secret
from rillet.plan import Plan
from rillet.release import Key
from rillet.sink.base import Sink
from rillet.source import Block
from rillet.table import ReleaseTable

log = logging.getLogger("rillet.engine.job")

#: A number of a batch, and what it releases.
Batch = tuple[int, ReleaseTable]


class Streams(Protocol):
    """What a job feeds: :class:`rillet.durable.DurableStreams`, or :class:`MemoryStreams`."""

    plan: Plan
    keys: tuple[Key, ...]

    @property
    def observations(self) -> int:
        """Observations absorbed, of declared keys."""
        ...

    def absorb(self, block: Block) -> Batch | None:
        """Absorb a block; return what it releases."""
        ...

    def undelivered(self) -> list[Batch]:
        """Batches from before that no sink has acknowledged."""
        ...

    def acknowledge(self, batch: int, places: Mapping[str, dict[str, int] | None]) -> None:
        """All sinks have everything up to this batch."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class MemoryStreams:
    """Streams that are gone with the process.

    **Privacy.** As :class:`rillet.KeyedStreams`.
    """

    def __init__(self, plan: Plan, secret: Secret, run: str = "") -> None:
        self.plan = plan
        self.keys: tuple[Key, ...] = plan.keys or ((),)
        self._batch = 0
        secrets = (plan.stream_secret(secret, key, run) for key in self.keys)
        shared = plan.stream_secret(secret, (), run) if plan.shared_threshold else None
        self._streams = KeyedStreams(plan.layout, self.keys, secrets, shared)

    @property
    def observations(self) -> int:
        """Observations absorbed, of declared keys."""
        return self._streams.observations

    def absorb(self, block: Block) -> Batch | None:
        """Absorb a block.  **Privacy.** Touches raw data; what it returns is public."""
        key_of = np.zeros(len(block), np.int64) if block.key_of is None else block.key_of
        table = self._streams.absorb(key_of, block.raw_values)
        if table is None:
            return None
        self._batch += 1
        return self._batch, table

    def undelivered(self) -> list[Batch]:
        """None: nothing is remembered."""
        return []

    def acknowledge(self, batch: int, places: Mapping[str, dict[str, int] | None]) -> None:
        """Nothing to note."""

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Tally:
    """How far a job is, in public numbers."""

    observations: int = 0
    releases: int = 0
    delivered: int = 0
    #: Observation number of the last release of the last key that had one.
    last_release: int = 0
    fraction: float | None = None


class _Courier:
    """Hands batches to the sinks, in order, in a thread of its own."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = sinks
        self._bag: queue.Queue[Batch | None] = queue.Queue(maxsize=1)
        self._done: queue.SimpleQueue[tuple[int, int, dict[str, dict[str, int] | None]]]
        self._done = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._carry, name="rillet-courier", daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        while (batch := self._bag.get()) is not None:
            if self._failure is not None:
                continue  # Only emptying the bag, so that nobody waits for room in it.
            try:
                number, table = batch
                log.debug("delivering")
                for sink in self._sinks.values():
                    sink.deliver(table)
                    log.debug("taken")
                log.debug("delivered")
                places = {name: sink.place() for name, sink in self._sinks.items()}
                self._done.put((number, len(table), places))
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self._failure = error

    def take(self, batch: Batch) -> None:
        """Take a batch along; waits while two are under way."""
        self._bag.put(batch)

    def returned(self) -> list[tuple[int, int, dict[str, dict[str, int] | None]]]:
        """Batches that every sink has, each once."""
        done = []
        while not self._done.empty():
            done.append(self._done.get())
        return done

    def check(self) -> None:
        """Raise what a sink raised."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Deliver what is under way and come home."""
        self._bag.put(None)
        self._thread.join()


class Job:
    """Run blocks through streams to sinks.

    Parameters
    ----------
    streams
        Where observations go.
    sinks
        By name; every release goes to each.
    watch
        Called after each block with the tally.
    """

    def __init__(
        self,
        streams: Streams,
        sinks: Mapping[str, Sink],
        *,
        watch: Callable[[Tally], None] = lambda _: None,
    ) -> None:
        self._streams, self._sinks = streams, sinks
        self._watch = watch
        self.tally = Tally(observations=streams.observations)

    def run(self, blocks: Iterable[Block]) -> None:
        """Until the blocks end.

        **Privacy.** Touches raw data; see :class:`Streams`.
        """
        courier = _Courier(self._sinks)
        try:
            for batch in self._streams.undelivered():
                courier.take(batch)
            for block in blocks:
                released = self._streams.absorb(block)
                if released is not None:
                    courier.take(released)
                    self.tally.releases += len(released[1])
                    self.tally.last_release = int(released[1].t[-1])
                self.tally.observations = self._streams.observations
                self.tally.fraction = block.fraction
                self._collect(courier)
                self._watch(self.tally)
        finally:
            courier.finish()
        self._collect(courier)
        self._watch(self.tally)

    def _collect(self, courier: _Courier) -> None:
        for batch, releases, places in courier.returned():
            self._streams.acknowledge(batch, places)
            self.tally.delivered += releases
            log.debug("acknowledged")
        courier.check()
