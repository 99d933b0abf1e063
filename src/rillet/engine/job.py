"""A job: blocks from a source, through streams, to sinks, until the source ends or is stopped.

The order is that of the guarantee: absorb a block durably, hand its releases to the sinks, then ask
the source for the next one, which acknowledges the last.  Each sink has a courier, a thread of its
own, so that one that hangs does not hold up the others.

**Privacy.** Blocks go to the streams and nowhere else; what is counted, reported or logged is
public.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from rillet.engine.learning import Learning
from rillet.engine.reader import Ended, Reader
from rillet.errors import StateError, StreamEnded
from rillet.gather.clock import Clock
from rillet.gather.gate import NO_PERSONS
from rillet.noise import IntArray
from rillet.plan import Plan
from rillet.privacy import Charges
from rillet.release import Releases
from rillet.sink.base import Position, Sink
from rillet.source import Block, Source
from rillet.source.by_tick import ByTick, TickBlock
from rillet.state.base import Absorbed, Store
from rillet.state.store import SqliteStore
from rillet.streams import Streams
from rillet.times import now

#: Names the points that a job passes (level DEBUG), for those who follow it closely.
log = logging.getLogger("rillet.job")

#: Releases that may wait for one sink; beyond, the job waits for it.
MOST_WAITING: Final = 2**18
#: By the clock ticks are closed in parts of so many releases.
_RELEASES_AT_ONCE: Final = 2**16
#: Seconds to wait for a block: while a tick is due, and at most, since the clock may be set; and
#: for the reader at the end.
_SHORTEST_WAIT, _LONGEST_WAIT, _LONGEST_CLOSE = 0.02, 1.0, 5.0


@dataclass(frozen=True)
class Summary:
    """How far a job is, in public numbers.

    ``observations`` are those of declared keys since the streams began, ``before`` of them before
    this process; by the clock both count ticks, and nothing counts observations.  ``releases`` are
    those that this process had to deliver, ``valued`` those of them that have a value (a mean has
    none while its count is lost in noise), ``outside`` those that are means outside of their
    clipping range, ``delivered`` those that every sink has; ``left_out``
    are observations that came again, by their sequence numbers; ``last_release`` is the largest t
    released; ``last_block`` is when a block was absorbed, by the clock when a tick was closed;
    ``fraction`` tells how much of the source was read; ``of_keys`` how far each of several keys is
    that has released nothing, in a run by count.
    """

    plan: Plan = field(repr=False)
    sinks: tuple[str, ...] = ()
    observations: int = 0
    before: int = 0
    releases: int = 0
    valued: int = 0
    outside: int = 0
    delivered: int = 0
    left_out: int = 0
    last_release: int = 0
    last_block: float = 0.0
    fraction: float | None = None
    seconds: float = 0.0
    of_keys: Learning | None = field(default=None, repr=False, compare=False)

    @property
    def charges(self) -> Charges:
        """What each observation has been charged so far; of keys, that of the furthest one."""
        t = self.last_release if self.plan.keys else self.observations
        return self.plan.layout.charges().after(t)

    @property
    def learning(self) -> str:
        """How far the warm-up is, as "learning, 3,412 of 10,000"; empty once it is over."""
        lag = self.plan.layout.lag
        if not lag or self.plan.shared_threshold:
            return ""
        if self.of_keys is not None:
            return f"learning, {self.of_keys}" if self.of_keys.left else ""
        if self.last_release:
            return ""
        what = "observations" if self.plan.clock is None else "ticks"
        return f"learning, {min(self.observations, lag):,} of {lag:,} {what}"

    def __str__(self) -> str:
        """For a person: what came in, what went out, what it cost."""
        rate = (self.observations - self.before) / max(self.seconds, 1e-9)
        what = "observations" if self.plan.clock is None else "ticks"
        counts = f"{self.observations:,} {what}, {self.releases:,} releases"
        speed = f"{self.seconds:.1f} s ({rate:,.0f} {what} a second)"
        lines = [f"{counts} to {', '.join(self.sinks)}, {speed}"]
        rest = self.observations - self.last_release
        if self.plan.clock is None and not self.plan.keys and self.last_release and rest:
            lines.append(
                f"the last release is at observation {self.last_release:,}: the {rest:,} after it "
                "are fewer than --every"
            )
        if learning := self.learning:
            lines.append(learning if self.last_release else f"nothing released yet: {learning}")
        if 2 * self.valued < self.releases:
            without = self.releases - self.valued
            lines.append(
                f"{without:,} of {self.releases:,} releases have no value: so few observations "
                "have one that their number is lost in noise. Is it the right column? Is the "
                "decimal mark a comma (--decimal ,)?"
            )
        if self.outside:
            lines.append(
                f"noise put {self.outside:,} of {self.releases:,} means outside of their range; "
                "--sane keeps them within it"
            )
        if self.left_out:
            lines.append(f"{self.left_out:,} observations left out, seen before (sequence numbers)")
        if len(self.plan.keys) > 1:
            count = len(self.plan.keys_now)
            lines.append(f"for each of {count:,} keys, up to the latest release:")
        return "\n".join([*lines, str(self.charges)])


class Courier:
    """Delivers batches to one open sink, in order, in a thread of its own, which also closes it.

    **Privacy.** Public releases only.
    """

    def __init__(self, sink: Sink, failed: Callable[[], None]) -> None:
        self.sink, self._failed = sink, failed
        #: Releases and batches that the sink has.
        self.delivered = self.last = 0
        self.failure: BaseException | None = None
        self._batches: deque[tuple[int, Releases]] = deque()
        self._positions: deque[tuple[int, Position | None]] = deque()
        self._position: Position | None = None
        self._waiting, self._ending = 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._carry, name="rillet-courier", daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        try:
            while (batch := self._next()) is not None:
                number, releases = batch
                log.debug("delivering")
                self.sink.deliver(releases)
                log.debug("delivered")
                with self._changed:
                    self._positions.append((number, self.sink.position()))
                    self.last, self.delivered = number, self.delivered + len(releases)
                    self._waiting -= len(releases)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._fail(error)
        try:
            self.sink.close()
        except BaseException as error:  # noqa: BLE001
            self._fail(error)

    def _next(self) -> tuple[int, Releases] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._ending)
            return self._batches.popleft() if self._batches else None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        self._failed()

    def take(self, batch: int, releases: Releases) -> None:
        """Take a batch along; waits while too many releases are under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting < MOST_WAITING or self.failure)
            self._batches.append((batch, releases))
            self._waiting += len(releases)
            self._changed.notify_all()

    def wait(self) -> None:
        """Until the sink has everything, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self.failure)

    def position(self, batch: int) -> Position | None:
        """Where the sink stood after this batch, which it has; asked for in order."""
        while self._positions and self._positions[0][0] <= batch:
            self._position = self._positions.popleft()[1]
        return self._position

    def end(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Deliver what is under way, close the sink and join the thread.

        Interrupted, leave it alone: a sink is not closed while it is delivered to.
        """
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        with self._changed:
            self._ending = True
            if interrupted:
                self._batches.clear()
            self._changed.notify_all()
        if not interrupted:
            self._thread.join()


class Job:
    """Run blocks through streams to sinks.

    Parameters
    ----------
    plan, streams, source
        Where observations come from and go to.
    couriers
        By the name that the state knows a sink by; every release goes to each.
    last_release
        Largest t released before.
    until_tick
        Of a finished source by the clock: ticks behind this one stay open.
    stop
        Set when the last tick of a clock has closed: a live source has no end of its own.
    of_keys
        How far each key is before its first release, by count.
    """

    def __init__(
        self,
        plan: Plan,
        streams: Streams,
        source: Source,
        couriers: Mapping[str, Courier],
        *,
        last_release: int = 0,
        until_tick: int | None = None,
        stop: threading.Event | None = None,
        of_keys: Learning | None = None,
    ) -> None:
        self._plan, self._streams, self._source = plan, streams, source
        self._until_tick = until_tick
        self._stop = threading.Event() if stop is None else stop
        self._store, self._couriers = streams.store, couriers
        self._acknowledged = 0
        #: Batches whose commit may be under way.
        self._committing: deque[tuple[int, Releases]] = deque()
        self._begun, self._told = time.perf_counter(), 0
        self._summary = Summary(
            plan,
            tuple(courier.sink.name for courier in couriers.values()),
            observations=streams.absorbed,
            before=streams.absorbed,
            last_release=last_release,
            of_keys=of_keys,
        )

    @property
    def summary(self) -> Summary:
        """How far it is now; may be asked for by any thread."""
        return replace(
            self._summary,
            delivered=min(courier.delivered for courier in self._couriers.values()),
            seconds=time.perf_counter() - self._begun,
        )

    def run(self, watch: Callable[[Summary], None] | None = None) -> None:
        """Until the blocks end; ``watch`` is called at the start, after each block and at the end.

        **Privacy.** Touches raw data; see :class:`rillet.streams.Streams`.
        """
        watch = watch or (lambda _: None)
        watch(self.summary)
        try:
            self._deliver_what_was_left()
            last = self._store.progress.absorbed
            start = None if last is None else last.end
            if self._plan.clock is not None and self._source.live:
                self._run_live(self._plan.clock, start, watch)
            else:
                # While the disk writes a block the next one is absorbed; there it must be, so not
                # from a pipe; and by the clock the releases of two ticks take too much memory.
                there = self._source.replayable and not self._source.live
                self._store.commits_later = there and self._plan.clock is None
                for block in self._source.blocks(start):
                    self._absorb(block)
                    self._acknowledge()
                    watch(self.summary)
                if self._plan.clock is not None and not self._stop.is_set():
                    self._close_ticks(self._last_tick(self._plan.clock))
                    self._acknowledge()
                    watch(self.summary)
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._finish()
            watch(self.summary)
            raise
        self._finish()
        watch(self.summary)
        self._raise_failure()

    def _deliver_what_was_left(self) -> None:
        """Before anything new is absorbed: against a dead sink no restart may add to the heap."""
        for batch, releases in self._store.undelivered():
            self._hand_out(batch, releases)
        for courier in self._couriers.values():
            courier.wait()
        self._acknowledge()

    # --- by the clock ----------------------------------------------------------------------------

    def _run_live(self, clock: Clock, start: Any, watch: Callable[[Summary], None]) -> None:
        """Absorb what comes, and close each tick when its time has come, until the last.

        A tick is closed when the source has handed over all that arrived before its end: with a
        block of later arrivals, or while nothing comes.  How long that takes moves no observation.
        """
        reader = Reader(lambda: self._source.blocks(start))
        reader.ask()
        try:
            while (closed := self._store.progress.ticks) < self._plan.last_t:
                left = clock.seconds_until_close(closed + 1, now())
                block = reader.wait(min(max(left, _SHORTEST_WAIT), _LONGEST_WAIT))
                if block is None:
                    self._close_ticks(clock.closed_by(min(now(), self._source.heard_until)))
                else:
                    self._absorb(block)
                self._acknowledge()
                if self._store.progress.ticks > closed:
                    watch(self.summary)
                if block is not None:
                    reader.ask()
                else:
                    self._store.settle()
        except Ended:
            pass
        finally:
            # A live source has no end of its own, and is not to be closed while it is read.
            self._stop.set()
            reader.close(_LONGEST_CLOSE)

    def _last_tick(self, clock: Clock) -> int:
        """Where a finished source ends: as was said, by the schedule, or now if that has no end."""
        layout = self._plan.layout
        if self._until_tick is not None:
            return self._until_tick
        return layout.length if layout.length_is_known else clock.closed_by(now())

    def _close_ticks(self, until: int) -> None:
        """Close ticks, in flat memory however many they are; a stop ends it between two parts."""
        until = min(until, self._plan.last_t)
        nothing = np.empty(0, np.int64)
        while self._store.progress.ticks < until and not self._stop.is_set():
            part = self._part(until)
            self._take(self._streams.absorb_ticks(np.empty(0), nothing, nothing, part))
            self._acknowledge()

    def _part(self, until: int) -> int:
        """How far to close ticks at once."""
        return min(until, self._store.progress.ticks + ticks_at_once(len(self._streams.keys)))

    def _absorb_by_clock(self, clock: Clock, block: Block, key_of: IntArray) -> None:
        """Absorb the block into the ticks that its observations enter, and close those before."""
        block = _pseudonymous(self._store, block)
        closed = self._store.progress.ticks
        if isinstance(block, TickBlock):
            assert block.at is not None
            tick_of = clock.tick_of(block.at)
            until = min(block.complete_until, self._last_tick(clock))
        else:
            assert block.arrived is not None
            # What this machine's clock says, unless it was put back: closed ticks stay closed.
            opened = np.maximum(clock.open_at(block.arrived), closed + 1)
            begun = np.maximum(clock.tick_of(block.arrived), closed and closed + 1)
            tick_of = begun if block.at is None else clock.tick_of(block.at)
            tick_of = clock.entering(tick_of, opened, begun)
            until = int(opened.max()) - 1
        until = min(max(until, closed), self._plan.last_t)
        releases = self._streams.absorb_ticks(
            block.raw_values,
            key_of,
            tick_of,
            self._part(until),
            person_of=NO_PERSONS if block.person is None else block.person,
            sequence=block.sequence,
            absorbed=_absorbed(self._store, block),
        )
        log.debug("committed")
        self._take(releases, block.fraction)
        self._close_ticks(until)

    def _take(self, releases: Releases, fraction: float | None = None) -> None:
        """Note how far the clock is, and hand out what was released.

        Between two ticks nothing is noted: that a block came is private.
        """
        ticks = self._store.progress.ticks
        if ticks > self._summary.observations:
            self._summary = replace(
                self._summary,
                observations=ticks,
                last_block=time.time(),
                fraction=fraction or self._summary.fraction,
            )
        if len(releases):
            self._hand_out(self._store.progress.batch, releases)

    # --- blocks ----------------------------------------------------------------------------------

    def _absorb(self, block: Block) -> None:
        """Absorb a block, durably, and hand out what it releases."""
        log.debug("read")
        streams, store, summary = self._streams, self._store, self._summary
        raw_values, key_of, sequence = block.raw_values, block.key_of, block.sequence
        if key_of is None:
            key_of = np.zeros(len(block), np.int64)
        if self._plan.clock is not None:
            self._absorb_by_clock(self._plan.clock, block, key_of)
            return
        # A single stream takes what still fits; its number of rows is public.
        room = self._plan.last_t - streams.observations
        too_long = not self._plan.keys and sequence is None and len(block) > room
        if room or not too_long:
            releases = streams.absorb(
                raw_values[:room] if too_long else raw_values,
                key_of[:room] if too_long else key_of,
                sequence=sequence,
                absorbed=_absorbed(store, block),
            )
            log.debug("committed")
            if summary.of_keys is not None:
                summary.of_keys.note(streams, key_of)
            left_out = 0
            if sequence is not None:
                declared = int(np.count_nonzero(key_of >= 0))
                left_out = declared - (streams.observations - summary.observations)
            self._summary = replace(
                summary,
                observations=streams.observations,
                left_out=summary.left_out + left_out,
                last_block=time.time(),
                fraction=None if self._plan.keys else block.fraction,
            )
            self._tell_left_out()
            if len(releases):
                self._committing.append((store.progress.batch, releases))
            self._hand_out_safe()
        if too_long:
            most = self._plan.last_t
            raise StreamEnded(
                f"length: expected at most {most:,} observations, as the plan promises, found more "
                f"in {self._source.name}; the first {most:,} were released and written, the "
                "others were not used. Plan with a larger length for them"
            )

    def _tell_left_out(self) -> None:
        """Warn of rows whose numbers are not above the last one: again whenever they doubled."""
        if self._summary.left_out > 2 * self._told:
            self._told = self._summary.left_out
            log.warning(
                "%s observations left out: their sequence numbers are not above the last one of "
                "their key, so they count as seen before. A device whose counter restarts needs "
                "another key",
                f"{self._told:,}",
            )

    def _hand_out_safe(self) -> None:
        """Hand out batches that are on disk: most often all but the last."""
        while self._committing and self._committing[0][0] <= self._store.safe_batch:
            self._hand_out(*self._committing.popleft())

    def _hand_out(self, batch: int, releases: Releases) -> None:
        # Before couriers have them: columns are worked out when they are first asked for.
        valued, outside = int(np.isfinite(releases.value).sum()), 0
        if self._summary.plan.statistic.kinds[0] == "mean":
            low, high = releases.clip_lower, releases.clip_upper
            outside = int(((releases.value < low) | (releases.value > high)).sum())
        for courier in self._couriers.values():
            courier.take(batch, releases)
        self._summary = replace(
            self._summary,
            releases=self._summary.releases + len(releases),
            valued=self._summary.valued + valued,
            outside=self._summary.outside + outside,
            last_release=max(self._summary.last_release, int(releases.t.max())),
        )

    def _acknowledge(self) -> None:
        """Note in the state what every sink has; raise what a sink raised."""
        couriers = self._couriers.items()
        batch = min(courier.last for _, courier in couriers)
        if batch > self._acknowledged:
            positions = {name: courier.position(batch) for name, courier in couriers}
            self._store.acknowledge(batch, positions)
            self._acknowledged = batch
            log.debug("acknowledged")
        self._raise_failure()

    def _finish(self) -> None:
        """Deliver what is under way and acknowledge it."""
        self._store.commits_later = False
        try:
            self._store.wait()
            self._hand_out_safe()
        finally:
            for courier in self._couriers.values():
                courier.end()
        if not any(courier.failure for courier in self._couriers.values()):
            self._acknowledge()
        self._store.settle()

    def _raise_failure(self) -> None:
        for courier in self._couriers.values():
            if courier.failure is not None:
                raise courier.failure


def ticks_at_once(keys: int) -> int:
    """How many ticks of so many keys are closed at once: their releases fit into memory."""
    return max(1, _RELEASES_AT_ONCE // keys)


# --- what was absorbed ---------------------------------------------------------------------------


def _absorbed(store: Store, block: Block) -> Absorbed | None:
    """Which part of the source a block is, for a state; refuses one that is not the next.

    **Privacy.** Touches raw data: a keyed digest of them, kept sealed.
    """
    if not isinstance(store, SqliteStore) or block.position is None:
        return None
    last = store.progress.absorbed
    if last is not None and block.start != last.end:
        raise StateError(
            "state: expected the source to continue behind the last block absorbed, found another "
            "position; give the same source again"
        )
    return Absorbed(block.start, block.position, len(block), _digest(store, [block]))


def _pseudonymous(store: Store, block: Block) -> Block:
    """The block with pseudonyms in place of ids, if it has any."""
    if block.person is None or isinstance(block, TickBlock):
        return block
    assert store.gate is not None  # no source is asked for persons without
    return replace(block, person=store.gate.pseudonyms(block.person.tolist()))


def check_replay(source: Source, store: Store, folder: object) -> None:
    """Compare the last block absorbed with what the source has there now.

    **Privacy.** Touches raw data; decides by a digest of a whole block.
    """
    last = store.progress.absorbed
    if last is None or not isinstance(store, SqliteStore):
        return
    if not last.digest and isinstance(source, ByTick):  # keys have changed since, and so has it
        end = source.behind(last.end, store.progress.ticks)
        store.progress = replace(store.progress, absorbed=replace(last, start=end, end=end))
    if not last.digest or not source.replayable:
        return
    blocks = [_pseudonymous(store, block) for block in source.replay(last.start, last.rows)]
    if not blocks or not hmac.compare_digest(_digest(store, blocks), last.digest):
        raise StateError(
            f"{folder}: what the source has now is not what was absorbed from it; the same noise "
            "on other data would reveal the difference. Restore the source, or begin elsewhere"
        )


def _digest(store: SqliteStore, blocks: Sequence[Block]) -> str:
    """Keyed digest of consecutive rows, however they are cut into blocks.

    When they arrived is not part of it: read again, they arrive again.
    """
    raw_parts: list[bytes | memoryview] = [
        json.dumps([blocks[0].start, blocks[-1].position], sort_keys=True).encode()
    ]
    for name in ("raw_values", "key_of", "sequence", "at", "person"):
        raw_columns = [getattr(block, name) for block in blocks]
        if raw_columns[0] is not None:
            raw_parts += [np.ascontiguousarray(raw_column).data for raw_column in raw_columns]
    return store.digest(*raw_parts)
