"""A live job by the clock, driven step by step: a source, a clock and a sink that do as told."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest

from engine.clocks import BEGIN, EXACT, HOUR, HOURLY, SECRET, counts, hour, spelled, ticks
from rillet import Plan, Releases
from rillet.engine.job import Courier, Job
from rillet.errors import InputError, OutputError
from rillet.source import Block, Source

#: Seconds in which a job does what it is expected to do, on a busy machine.
PATIENCE = 20.0


class Given(Source):
    """Yields the blocks that it is given; ``asked`` counts how often it was asked for one."""

    name = identity = "given"
    replayable = redelivers = False
    live = True

    def __init__(self, clock, stop):
        self.clock, self.stop, self.held = clock, stop, None
        self.asked = 0
        self._given, self._more = [], threading.Condition()

    @property
    def heard_until(self):
        return self.clock[0] if self.held is None else self.held

    def check(self):
        pass

    def give(self, what):
        with self._more:
            self._given.append(what)
            self._more.notify_all()

    def blocks(self, start=None, *, block_rows=None):
        while True:
            self.asked += 1
            with self._more:
                while not self._given and not self.stop.is_set():
                    self._more.wait(0.01)
                if self.stop.is_set():
                    return
                what = self._given.pop(0)
            if isinstance(what, Exception):
                raise what
            yield what


class Kept:
    """A sink that keeps what it gets, or fails."""

    name = "kept"
    fails = False

    def __init__(self):
        self.parts = []

    def deliver(self, releases):
        if self.fails:
            raise OutputError("kept: full")
        self.parts.append(releases)

    def position(self):
        return None

    def close(self):
        pass


class Driven:
    """A job in a thread, with a clock that the test sets."""

    def __init__(self, monkeypatch, **plan):
        self.time = [hour(0.0)]
        monkeypatch.setattr("rillet.engine.job.now", lambda: self.time[0])
        monkeypatch.setattr("rillet.engine.job._LONGEST_WAIT", 0.02)
        self.plan = Plan.from_table({**HOURLY, **EXACT, "length": "6h", **plan})
        self.stop = threading.Event()
        self.source, self.sink = Given(self.time, self.stop), Kept()
        self.streams = self.plan.open_many(secret=SECRET)
        self.courier = Courier(self.sink, failed=self.stop.set)
        self.job = Job(self.plan, self.streams, self.source, {"kept": self.courier}, stop=self.stop)
        self.error, self.seen = None, []
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.job.run(self.seen.append)
        except BaseException as error:  # noqa: BLE001 - compared by the test
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def give(self, *arrived, at=None):
        """One block of observations that arrived at these hours."""
        stamps = np.array([hour(one) for one in arrived])
        own = None if at is None else np.array([hour(one) for one in at])
        self.source.give(Block(np.ones(len(stamps)), at=own, arrived=stamps))

    def wait_for(self, what):
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end
            time.sleep(0.005)

    def closed(self):
        return self.streams.store.progress.ticks

    def counts(self):
        return ticks(counts(spelled(Releases.join(self.sink.parts))))

    def stays(self, what):
        time.sleep(0.3)
        assert what()


@pytest.fixture
def driven(monkeypatch):
    return Driven(monkeypatch)


def test_a_tick_waits_for_what_arrived_before_its_end(driven):
    with driven:
        driven.time[0] = hour(0.9)
        driven.source.held = hour(0.9)  # received, and gathered for a block
        driven.time[0] = hour(1.5)
        driven.stays(lambda: driven.closed() == 0)
        driven.give(0.9, 0.95, 1.2)
        driven.wait_for(lambda: driven.closed() == 1)
        driven.source.held = None
        driven.time[0] = hour(6.1)
        driven.thread.join(PATIENCE)
    assert driven.counts() == {("", 1): 2, ("", 2): 1}


def test_a_late_block_enters_the_ticks_of_its_stamps(driven):
    """Absorbed hours later, as by a slow disk: the stamps decide."""
    with driven:
        driven.source.held = hour(0.5)
        driven.time[0] = hour(5.5)
        driven.give(0.5, 1.5, 1.6, 4.9)
        driven.wait_for(lambda: driven.closed() == 4)
        driven.source.held = None
        driven.time[0] = hour(7)
        driven.thread.join(PATIENCE)
    assert driven.counts() == {("", 1): 1, ("", 2): 2, ("", 5): 1}


def test_a_clock_that_is_put_back_opens_no_tick_again(driven):
    with driven:
        driven.give(0.5)
        driven.wait_for(lambda: driven.source.asked == 2)
        driven.time[0] = hour(3.1)
        driven.wait_for(lambda: driven.closed() == 3)
        driven.time[0] = hour(1.2)
        driven.give(1.2, 1.3)
        driven.wait_for(lambda: driven.source.asked == 3)
        driven.stays(lambda: driven.closed() == 3)
        driven.time[0] = hour(6)
        driven.thread.join(PATIENCE)
    assert driven.counts() == {("", 1): 1, ("", 4): 2}


def test_without_times_of_their_own_they_are_never_late_or_early(monkeypatch):
    """Also while the tick before is open for a grace."""
    with Driven(monkeypatch, late="drop", early="drop", grace="30m") as driven:
        driven.give(-0.5, 0.9, 1.2, 1.4, 1.6)
        driven.wait_for(lambda: driven.closed() == 1)
        driven.give(2.2, 3.1)
        driven.time[0] = hour(3.2)
        driven.wait_for(lambda: driven.closed() == 2)
        driven.stays(lambda: driven.closed() == 2)
        driven.time[0] = hour(6.5)
        driven.thread.join(PATIENCE)
    assert driven.counts() == {("", 1): 1, ("", 2): 3, ("", 3): 1, ("", 4): 1}


def test_during_a_grace_two_ticks_are_open(monkeypatch):
    with Driven(monkeypatch, late="drop", early="drop", grace="30m") as driven:
        # Arrived at 1.2: those of ticks 1 and 2 are in time, of 3 early; at 1.7 those of 1 late.
        driven.give(1.2, 1.2, 1.2, 1.7, 1.7, at=(0.5, 1.1, 2.5, 0.5, 1.9))
        driven.time[0] = hour(6.5)
        driven.thread.join(PATIENCE)
    assert driven.counts() == {("", 1): 1, ("", 2): 2}


def test_blocks_without_a_pause(driven):
    """The clock goes on with their stamps, and every one is counted."""
    with driven:
        for number in range(120):
            driven.give(number / 20, (number + 0.5) / 20)
        driven.time[0] = hour(6)
        driven.thread.join(PATIENCE)
    assert driven.counts() == {("", tick): 40 for tick in range(1, 7)}


def test_the_end(driven):
    """What arrives behind the last tick is in none, and is not said to be safe."""
    with driven:
        driven.give(5.5)
        driven.wait_for(lambda: driven.source.asked == 2)
        driven.time[0] = hour(6)
        driven.thread.join(PATIENCE)
        assert not driven.thread.is_alive()
    assert driven.error is None
    assert driven.counts() == {("", 6): 1}
    assert driven.source.asked == 2
    assert driven.job.summary.observations == 6


def test_a_stop_while_it_waits(driven):
    with driven:
        driven.give(0.5)
        driven.time[0] = hour(2.5)
        driven.wait_for(lambda: driven.closed() == 2)
        begun = time.monotonic()
        driven.stop.set()
        driven.thread.join(PATIENCE)
        assert time.monotonic() - begun < 15
    assert driven.error is None
    assert driven.closed() == 2
    assert driven.counts() == {("", 1): 1}


def test_a_source_that_fails(driven):
    """What it had given is absorbed and released as before."""
    with driven:
        driven.give(0.5)
        driven.time[0] = hour(1.5)
        driven.wait_for(lambda: driven.closed() == 1)
        driven.source.give(InputError("given: gone"))
        driven.thread.join(PATIENCE)
    assert str(driven.error) == "given: gone"
    assert driven.counts() == {("", 1): 1}


def test_a_sink_that_fails_while_it_waits(driven):
    with driven:
        driven.sink.fails = True
        driven.time[0] = hour(1.5)
        driven.thread.join(PATIENCE)
    assert str(driven.error) == "kept: full"
    assert driven.closed() == 1


def test_nothing_says_that_something_came(driven):
    """Between two ticks no number moves, and nobody is called."""
    with driven:
        driven.wait_for(lambda: driven.source.asked == 1)
        before, seen = driven.job.summary, len(driven.seen)
        driven.give(0.1, 0.2, 0.3)
        driven.wait_for(lambda: driven.source.asked == 2)
        after = driven.job.summary
        for name in ("observations", "before", "releases", "delivered", "left_out", "last_block"):
            assert getattr(after, name) == getattr(before, name)
        assert len(driven.seen) == seen
        assert driven.streams.observations == 0
        driven.time[0] = hour(1)
        driven.wait_for(lambda: driven.closed() == 1)
        driven.wait_for(lambda: len(driven.seen) == seen + 1)
    assert driven.seen[-1].observations == 1
    assert driven.counts() == Counter({("", 1): 3})
    assert BEGIN + HOUR == driven.time[0]
