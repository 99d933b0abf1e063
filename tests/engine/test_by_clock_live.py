"""Live by the clock: every observation once, in the tick of its arrival, whatever is killed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from engine.clocks import METERS, SECOND, LiveJob, ticks
from engine.jobs import Publisher, subscribe
from helpers.crash import PATIENCE, Kill, Leg
from helpers.servers import mosquitto
from rillet.times import now

#: Seconds by which a release may come late on a busy machine.
LATE = 12.0


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory):
    """Import everything before the clock starts."""
    folder = tmp_path_factory.mktemp("imported")
    with Leg(["--help"], folder / "log", forked=True) as leg:
        assert leg.end() == 0


class Writer:
    """Appends rows to a file, in bursts and with pauses, in a thread, until it is told to stop."""

    def __init__(self, path, row, *, pause=0.03, seed=1):
        self.path, self.rows, self._row, self._pause = path, 0, row, pause
        self._chance, self._stop = random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer")

    def _write(self):
        while not self._stop.wait(self._chance.choice((0.0, self._pause, 3 * self._pause))):
            with self.path.open("a") as stream:
                for _ in range(self._chance.choice((1, 1, 1, 5, 40))):
                    self.rows += 1
                    stream.write(self._row(self._chance, self.rows))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def meter(chance, number):
    """A row of one of the meters, or of one that was not declared; its value is its number."""
    return f"{chance.choice((*METERS, 'ghost'))},{number}\n"


def followed(path, **more):
    """The source of a run that follows a file."""
    options = {"path": str(path), "column": "kwh", "follow": True, "block_rows": 200, **more}
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())


# --- A followed file -----------------------------------------------------------------------------


def test_ticks_are_released_at_their_times_while_nothing_comes(tmp_path):
    """Before there is a first line, too; and it ends by itself."""
    path = tmp_path / "meters.csv"
    path.write_text("")
    job = LiveJob(tmp_path / "job", followed(path), seconds=5)
    seen = {}
    with job.leg() as leg:
        while leg.process.poll() is None:
            done = len(job.text().splitlines()) // len(METERS)
            seen.setdefault(done, time.time())
            time.sleep(0.02)
        assert leg.end() == 0, leg.tail()
    seen.setdefault(5, time.time())
    assert not ticks(job.counts())
    for tick in range(1, 6):
        # Several may come at once where the machine was busy; never early.
        came = min(when for done, when in seen.items() if done >= tick)
        due = job.begin / 1e6 + tick
        assert due < came < due + LATE
    assert len(seen) > 2


def test_killed_and_stopped_it_counts_every_row_once_in_the_tick_of_its_arrival(tmp_path):
    path = tmp_path / "meters.csv"
    path.write_text("meter,kwh\n")
    job = LiveJob(tmp_path / "job", followed(path), seconds=12)
    with Writer(path, meter) as writer:
        for kill in (Kill("committing", 6), Kill("delivering", 2), Kill("committed", 4)):
            with job.leg(kill) as leg:
                assert leg.end() == -9, leg.tail()
        down = (now() - job.begin) / 1e6
        time.sleep(2.2)  # at least one tick passes while it is down
        with job.leg() as leg:
            assert leg.wait_until_opened(), leg.tail()
            end = time.monotonic() + PATIENCE  # ticks that passed are released at the restart
            while max(json.loads(line)["t"] for line in job.text().splitlines()) < min(
                down + 1, 12
            ):
                assert time.monotonic() < end, leg.tail()
                time.sleep(0.05)
            running = leg.process.poll() is None  # unless the machine is so slow that it is over
            assert (leg.terminate() if running else leg.end()) == 0, leg.tail()
        messages = [str(record["message"]) for record in leg.records()]
        assert any(message.startswith("SIGTERM") for message in messages) or not running
        with job.leg() as leg:
            assert leg.end(60.0) == 0, leg.tail()
    assert now() > job.begin + 12 * SECOND
    expected = Counter()
    reads = job.read()
    for (key, _), own in reads.items():
        # One that is read again was not committed before.
        expected[key, job.tick(own[-1][0])] += 1
        assert not any(sure for *_, sure in own[:-1])
    inside = Counter({place: count for place, count in expected.items() if place[1]})
    assert ticks(job.counts()) == inside
    assert inside.total() > 100
    # What was written before the last tick was read, all of it.
    rows = path.read_text().splitlines()[1:]
    last = max(which for _, which in reads)
    written = {(row.split(",")[0], float(row.split(",")[1])) for row in rows[: int(last)]}
    assert set(reads) == {row for row in written if row[0] in METERS}
    assert writer.rows >= last
    with job.leg() as leg:  # It has ended: nothing more to do.
        assert leg.end() == 0, leg.tail()
    assert ticks(job.counts()) == inside


@pytest.mark.parametrize(
    ("late", "early", "grace"),
    [
        ("enter", "hold", 0),
        ("drop", "drop", 1),
        pytest.param("enter", "drop", 1, marks=pytest.mark.long),
        pytest.param("drop", "hold", 0, marks=pytest.mark.long),
    ],
)
def test_own_times(tmp_path, late, early, grace):
    """In its own tick while that is open; else as the plan says."""
    path = tmp_path / "meters.csv"
    path.write_text("meter,kwh,when\n")
    rules = {"late": late, "early": early} | ({"grace": f"{grace}s"} if grace else {})
    source = followed(path, time="when")
    job = LiveJob(tmp_path / "job", source, seconds=7, **rules)

    def row(chance, number):
        at = now() / 1e6 + chance.choice((0.0, 0.0, 0.0, -0.7, -1.2, -3.1, 0.8, 1.3, 2.9))
        text = datetime.fromtimestamp(at, UTC).isoformat()
        text = chance.choice((text, text, text, text, "", "2099-01-01T00:00Z", "1970-01-01", "now"))
        return f"{chance.choice(METERS)},{number},{text}\n"

    with Writer(path, row, seed=grace + len(late)):
        with job.leg(Kill("committed", 9)) as leg:
            assert leg.end() == -9, leg.tail()
        with job.leg() as leg:
            assert leg.end(60.0) == 0, leg.tail()
    expected, rule = Counter(), Counter()
    for (key, _), reads in job.read().items():
        arrived, own, _ = reads[-1]
        tick = (own - job.begin) // SECOND + 1
        first_open = max(1, (arrived - grace * SECOND - job.begin) // SECOND + 1)
        begun = (arrived - job.begin) // SECOND + 1
        if own < job.begin:
            kind, entered = "before the start", 0
        elif tick < first_open:
            kind, entered = "late", first_open if late == "enter" else 0
        elif tick > begun:
            kind, entered = "early", tick if early == "hold" else 0
        else:
            kind, entered = "open", tick
        rule[kind] += 1
        if 1 <= entered <= 7:
            expected[key, entered] += 1
    assert ticks(job.counts()) == expected
    assert min(rule[kind] for kind in ("before the start", "late", "early", "open")) > 5, rule


# --- A broker ------------------------------------------------------------------------------------


def test_killed_while_it_reads_from_a_broker_it_counts_every_message_once(tmp_path, broker):
    pytest.importorskip("paho.mqtt")
    address, topic = f"{broker.host}:{broker.port}", f"clock-{tmp_path.name}"
    source = {
        "kind": "mqtt",
        "address": address,
        "topic": f"{topic}/{{meter}}",
        "client_id": topic,
        "field": "kwh",
        "sequence": "number",
        "block_rows": 100,
        "wait": 0.05,
    }
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in source.items())
    job = LiveJob(tmp_path / "job", text, seconds=18)
    subscribe(address, f"{topic}/+", topic)
    publisher = Publisher(address, topic, rate=200, seed=1, meters=METERS)
    with publisher:
        publisher.allow(100_000)
        for kill in (Kill("confirming", 3), Kill("committing", 5), Kill("confirmed", 4)):
            with job.leg(kill) as leg:
                assert leg.end() == -9, leg.tail()
        time.sleep(1.5)
        with job.leg() as leg:
            job.wait_for(17)
            published = publisher.stop()
            assert leg.end(60.0) == 0, leg.tail()
    found = job.counts()
    sure, either, possible = Counter(), 0, Counter()
    reads = job.read()
    for (key, _), own in reads.items():
        # The first read that was surely absorbed, or one before it: the others are repetitions.
        first = next((index for index, one in enumerate(own) if one[2]), len(own) - 1)
        stamped = {(key, job.tick(arrived)) for arrived, *_ in own[: first + 1]}
        if len(stamped) == 1:
            sure.update(stamped)
        else:
            either += 1
            possible.update(stamped)
    sure = Counter({place: count for place, count in sure.items() if place[1]})
    # None is lost in between; those behind the last tick may still be with the broker.
    for key, count in published.items():
        read = sorted(number for own, number in reads if own == key)
        assert read == list(range(1, len(read) + 1))
        assert len(read) <= count
    rest = Counter(found)
    rest.subtract(sure)
    assert min(rest.values()) >= 0
    assert rest.total() == either
    assert all(count <= possible[place] for place, count in rest.items())
    assert sure.total() > 300
    assert len({tick for _, tick in sure}) > 3


def test_ticks_go_on_while_the_broker_is_away(tmp_path):
    pytest.importorskip("paho.mqtt")
    lines = ["max_inflight_messages 0"]
    with mosquitto(tmp_path / "broker", config_lines=lines) as server:
        address = f"{server.host}:{server.port}"
        source = f"kind = 'mqtt'\naddress = '{address}'\ntopic = 'm/{{meter}}'\n"
        source += "client_id = 'away'\nfield = 'kwh'\nsequence = 'number'\nwait = 0.05\n"
        subscribe(address, "m/+", "away")  # what comes before that is nobody's
        job = LiveJob(tmp_path / "job", source, seconds=9)
        leg = job.leg()
        assert leg.wait_until_opened(), leg.tail()
        with Publisher(address, "m", rate=100, seed=2, meters=METERS) as publisher:
            publisher.allow(100)
            published = publisher.stop()
        job.wait_for(3)
    with leg:
        assert leg.end(60.0) == 0, leg.tail()
    assert now() > job.begin + 9 * SECOND
    found = Counter()
    for (key, tick), count in job.counts().items():
        found[key] += count
        assert tick <= 4 or not count
    before = Counter(key for (key, _), own in job.read().items() if not job.tick(own[0][0]))
    found.update(before)
    assert found == published
