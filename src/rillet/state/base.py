"""What streams need of a store: states of keys, how far they are, and one way to move on.

**Privacy.** A store holds unreleased data; what it shows and raises is public.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rillet.crowd import Crowd
from rillet.fleet import Fleet
from rillet.gather.gate import Entries, Gate
from rillet.layout import Layout
from rillet.noise import FloatArray, IntArray, Secret
from rillet.release import Releases
from rillet.statistic import Range
from rillet.step import StreamState, start

#: Stands for what all keys learn from together, where learning buffers are numbered.
POOL: Final = -1


@dataclass(frozen=True)
class Pool:
    """The first observations of all keys together, from which they learn one clipping range.

    **Privacy.** Holds raw data until the range is released.
    """

    secret: Secret = field(repr=False)
    key_of: tuple[IntArray, ...] = field(default=(), repr=False)
    raw_values: tuple[FloatArray, ...] = field(default=(), repr=False)

    @property
    def observations(self) -> int:
        """How many there are so far: public, as the number of observations of a stream is."""
        return sum(map(len, self.raw_values))


@dataclass(frozen=True)
class Absorbed:
    """The last block of a source: from where to where (opaque to all but the source), and what.

    **Privacy.** The digest is keyed; all is kept sealed.
    """

    start: Any
    end: Any
    rows: int
    digest: str


@dataclass(frozen=True)
class Progress:
    """How far the streams of a plan are.

    ``batch`` counts blocks that released something, ``range`` is the clipping range that keys
    share once it is known, ``absorbed`` the last block of the source.  By the clock ``ticks`` are
    closed, and observations are not counted.
    """

    batch: int = 0
    observations: int = 0
    range: Range | None = None
    absorbed: Absorbed | None = None
    ticks: int = 0


@dataclass(frozen=True)
class Kept:
    """One key's stream: its state, and the last sequence number that was absorbed."""

    state: StreamState
    sequence: int = -1


class Store(Protocol):
    """Where the states of streams live; everything moves forward together in :meth:`commit`.

    ``commits_later`` allows a commit to return before it is safe: what it releases may be handed
    out once ``safe_batch`` has reached its batch.
    """

    commits_later: bool

    @property
    def safe_batch(self) -> int:
        """The last batch that is safe."""
        ...

    @property
    def progress(self) -> Progress:
        """How far the streams are."""
        ...

    @property
    def pool(self) -> Pool | None:
        """What a shared range is still being learned from."""
        ...

    @property
    def fleet(self) -> Fleet | None:
        """All streams at once, where keys tick together; they change in place."""
        ...

    @property
    def crowd(self) -> Crowd | None:
        """All streams at once by count, where their range is known; they change in place."""
        ...

    @property
    def gate(self) -> Gate | None:
        """Who entered when, where persons are protected; it changes in :meth:`commit` alone."""
        ...

    def read(self, layout: Layout, index: int) -> Kept:
        """One key's stream, at its beginning under this layout if it has not begun."""
        ...

    def commit(
        self,
        progress: Progress,
        kept: Mapping[int, Kept],
        pool: Pool | None,
        releases: Releases,
        entries: Entries | None = None,
    ) -> None:
        """Take over all of it, or nothing.

        ``releases`` are to be delivered as this batch; ``entries`` are what the gate decided.  What
        happened to a fleet is taken over with the rest.
        """
        ...

    def sinks(self) -> dict[str, tuple[int, Any]]:
        """For each sink the last batch that it has, and its position."""
        ...

    def undelivered(self) -> list[tuple[int, Releases]]:
        """Batches of releases that were committed and not acknowledged."""
        ...

    def acknowledge(self, batch: int, positions: Mapping[str, Any]) -> None:
        """Note that these sinks, which are all there are, have everything up to ``batch``."""
        ...

    def settle(self) -> None:
        """Let nothing that was noted wait for the next commit."""
        ...

    def wait(self) -> None:
        """Until the last commit is safe."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class MemoryStore:
    """States that are gone with the process."""

    commits_later = False

    def __init__(
        self,
        secrets: Iterable[Secret],
        shared: Secret | None = None,
        gate: Gate | None = None,
        fleet: Fleet | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.progress, self.gate, self.fleet, self.crowd = Progress(), gate, fleet, crowd
        self.pool = None if shared is None else Pool(shared)
        # A secret is needed until its stream has begun, then it is in the state, and moves on.
        self._secrets = dict(enumerate(secrets))
        self._kept: dict[int, Kept] = {}

    @classmethod
    def of(cls, kept: Mapping[int, Kept], observations: int, ticks: int = 0) -> MemoryStore:
        """Streams that have begun elsewhere."""
        store = cls(())
        store.progress = Progress(observations=observations, ticks=ticks)
        store._kept.update(kept)
        return store

    @property
    def safe_batch(self) -> int:
        """All are."""
        return self.progress.batch

    def read(self, layout: Layout, index: int) -> Kept:
        """One key's stream."""
        if self.crowd is not None:
            return Kept(self.crowd.state(layout, index), int(self.crowd.sequence[index]))
        kept = self._kept.get(index)
        return Kept(start(layout, self._secrets[index])) if kept is None else kept

    def commit(
        self,
        progress: Progress,
        kept: Mapping[int, Kept],
        pool: Pool | None,
        releases: Releases,
        entries: Entries | None = None,
    ) -> None:
        """Take over all of it."""
        if self.gate is not None:
            self.gate.take_over(entries, progress.ticks)
        for together in (self.fleet, self.crowd):
            if together is not None:
                together.forget_changes()
        self.progress, self.pool = progress, pool
        self._kept.update(kept)
        for index in kept:
            self._secrets.pop(index, None)

    def sinks(self) -> dict[str, tuple[int, Any]]:
        """None: nothing is remembered."""
        return {}

    def undelivered(self) -> list[tuple[int, Releases]]:
        """None: nothing is remembered."""
        return []

    def acknowledge(self, batch: int, positions: Mapping[str, Any]) -> None:
        """Nothing to note."""

    def settle(self) -> None:
        """Nothing waits."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to close."""
