"""Durable runs to be killed: what they read, what they published, and what it must be."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset

from helpers.crash import PATIENCE, Kill, Leg, Report, carry_out
from helpers.records import NAMES, without_times
from helpers.uses import forget_uses
from rillet.engine import Config, load_config
from rillet.source import DeclaredKeys, open_source
from rillet.streams import Streams

#: Keys of some plan, and two that were never declared.
METERS = tuple(f"meter-{number:02}" for number in range(20))
GHOSTS = ("ghost-1", "ghost-2")

#: Learning, then releases; refreshed thresholds and one that is learned once; every and some.
PLANS = {
    "default": """
        epsilon = 1.0
        delta = "2^-20"
        upper = 500.0
        length = 20_000
        lag = 50
        """,
    "paper": """
        mechanism = "paper"
        epsilon = 1.0
        delta = "2^-20"
        upper = 500.0
        length = 20_000
        lag = 60
        every = 5
        """,
}


#: By the clock: 300 hours from 2026-01-01T00:00Z on.
CLOCK_START, HOURS = 1_767_225_600, 300
#: Fewer keys: each of them moves with every tick.
CLOCK_METERS = METERS[:4]
CLOCK_PLANS = {
    "clock": f"""
        epsilon = 1.0
        delta = "2^-20"
        upper = 500.0
        every = "1h"
        start = {CLOCK_START}
        length = "{HOURS}h"
        lag = 10
        """,
    "clock, pure": f"""
        epsilon = 1.0
        upper = 500.0
        every = "1h"
        start = {CLOCK_START}
        length = "{HOURS}h"
        threshold = "fixed"
        """,
    "clock, persons": f"""
        epsilon = 1.0
        delta = "2^-20"
        upper = 500.0
        every = "1h"
        start = {CLOCK_START}
        length = "{HOURS}h"
        lag = 10
        unit = {{kind = "person", most = 3, apart = "10h", within = "90h"}}
        """,
}
#: Whose rows are, where there are persons; of some it is not known.
PERSONS = (*(f"person-{number}" for number in range(200)), "")


@dataclass(frozen=True)
class Input:
    """Rows for all keys, declared and not, in a CSV file."""

    path: Path
    counts: Counter[str]

    @classmethod
    def make(cls, path: Path, rows: int, seed: int, *, hours: int = 0) -> Input:
        """With times, in any order, within so many hours and somewhat beyond, if there are any."""
        chance = random.Random(seed)
        meters = CLOCK_METERS if hours else METERS
        keys = [chance.choice((*meters, *GHOSTS)) for _ in range(rows)]
        times = [int(chance.uniform(-10, hours + 10) * 3600) for _ in keys] if hours else [0] * rows
        lines = [
            f"{key},{chance.lognormvariate(2.0, 0.6):.3f},{CLOCK_START + seconds},"
            f"{chance.choice(PERSONS)}\n"
            for key, seconds in zip(keys, times, strict=True)
        ]
        path.write_text("meter,kwh,when,who\n" + "".join(lines), encoding="ascii")
        if hours:
            return cls(path, Counter(dict.fromkeys(meters, hours)))
        return cls(path, Counter(key for key in keys if key in METERS))


class Job:
    """A durable run in a folder of its own: the configuration, its legs, what it published."""

    def __init__(
        self, folder: Path, plan: str, meters: Sequence[str], source: str, *, forked: bool
    ) -> None:
        folder.mkdir(parents=True)
        self.folder, self.legs, self._forked = folder, 0, forked
        #: Where to note what arrived when, by the clock.
        self.arrivals: Path | None = None
        self.state, self.lines = folder / "state", folder / "releases.jsonl"
        self.dataset = folder / "dataset"
        self.config_file = folder / "run.toml"
        names = ", ".join(f'"{meter}"' for meter in meters)
        self.config_file.write_text(
            f"[plan]\n{plan}\n[keys]\ncolumns = ['meter']\nvalues = [{names}]\n[source]\n{source}\n"
            "[state]\nfolder = 'state'\n[[sink]]\nkind = 'jsonl'\npath = 'releases.jsonl'\n"
            "[[sink]]\nkind = 'parquet'\npath = 'dataset'\n",
            encoding="utf-8",
        )

    @property
    def config(self) -> Config:
        return load_config(str(self.config_file))

    def leg(self, kill: Kill | None = None, *options: str) -> Leg:
        """Start it, or go on."""
        self.legs += 1
        log = self.folder / f"log-{self.legs:03}"
        words = ["--config", str(self.config_file), *options]
        return Leg(words, log, kill, forked=self._forked, arrivals=self.arrivals)

    def text(self) -> bytes:
        """The JSON lines so far, without their times."""
        return without_times(self.lines.read_bytes()) if self.lines.exists() else b""

    def lines_of_keys(self) -> dict[str, list[bytes]]:
        """The lines of each key; no (key, t) may come twice."""
        lines = defaultdict(list)
        seen = set()
        for line in self.text().splitlines():
            record = json.loads(line)
            (key,), t = record["key"], record["t"]
            assert (key, t) not in seen, f"{key} at {t} twice"
            seen.add((key, t))
            lines[key].append(line)
        return dict(lines)

    def check_dataset(self) -> None:
        """The Parquet files have the records of the JSON lines, in their order."""
        found = pyarrow.dataset.dataset(self.dataset, format="parquet").to_table().to_pylist()
        for record in found:
            record |= {"key": [record["key"]], "at": f"{record['at']:%Y-%m-%dT%H:%M:%S.%fZ}"}
        assert found == [json.loads(line) for line in self.lines.read_bytes().splitlines()]

    def rows(self) -> dict[tuple[str, int], tuple[float, ...]]:
        """What a reader of releases.db sees, without times.

        From a copy: a reader that leaves last would tidy up what a kill has left behind.
        """
        with tempfile.TemporaryDirectory() as name:
            for file in self.state.glob("releases.db*"):
                if not file.name.endswith("-shm"):
                    shutil.copy(file, name)
            connection = sqlite3.connect(Path(name) / "releases.db")
            try:
                if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                    return {}
                found = connection.execute(
                    f"SELECT {NAMES} FROM releases ORDER BY key, t"
                ).fetchall()
            finally:
                connection.close()
        return {row[:2]: row[2:] for row in found}

    def dump(self) -> list[str]:
        """All of releases.db but times, as statements; of a run that has ended."""
        connection = sqlite3.connect(self.state / "releases.db")
        try:
            connection.execute("UPDATE release_rows SET at = 0")  # not committed
            return list(connection.iterdump())
        finally:
            connection.close()

    def check_times(self) -> None:
        """Every sink has the time at which a release was first committed."""
        connection = sqlite3.connect(self.state / "releases.db")
        try:
            stored = connection.execute("SELECT key, t, at FROM releases").fetchall()
        finally:
            connection.close()
        records = map(json.loads, self.lines.read_bytes().splitlines())
        assert sorted(stored) == sorted((r["key"][0], r["t"], r["at"]) for r in records)

    def open(self, **options: object) -> Streams:
        """Its streams, while it does not run."""
        config = self.config
        keys = DeclaredKeys(config.plan.keys, config.key_columns)
        source = open_source(config.source, keys=keys).identity
        return config.plan.open_folder(self.state, source=source, **options)

    def absorbed(self) -> dict[str, int]:
        """How many observations, or ticks of the clock, the stream of each key has counted."""
        with self.open(only_look=True) as streams:
            counts = {key[0]: streams.t(key) for key in streams.keys}
            counted = sum(counts.values()) if self.config.plan.clock is None else 0
            assert streams.observations == counted
        return counts


class FileJob(Job):
    """Reads a CSV file in small blocks."""

    def __init__(
        self,
        folder: Path,
        plan: str,
        given: Input,
        secret: Path,
        *,
        forked: bool,
        follow: bool = False,
    ) -> None:
        source = f"path = '{given.path}'\ncolumn = 'kwh'\nblock_rows = 100\n"
        source += f"follow = {str(follow).lower()}\n"
        meters = METERS
        if plan in CLOCK_PLANS:
            source, meters = source + "time = 'when'\n", CLOCK_METERS
        if "unit" in CLOCK_PLANS.get(plan, ""):
            source += "person = 'who'\n"
        super().__init__(folder, {**PLANS, **CLOCK_PLANS}[plan], meters, source, forked=forked)
        # A copy: to the guard against reuse these are secrets of different jobs.
        self.given, self._secret = given, folder / "secret"
        shutil.copy(secret, self._secret)

    def leg(self, kill: Kill | None = None, *options: str) -> Leg:
        """With the secret until there is a state, which has its own from then on."""
        if not (self.state / "state.db").exists():
            options = (*options, "--secret", str(self._secret))
        return super().leg(kill, *options)


@dataclass
class Uninterrupted:
    """A run that nobody killed: what others must equal, and how long it took."""

    text: bytes
    dump: list[str]
    rows: dict[tuple[str, int], tuple[float, ...]]
    starting: float
    whole: float

    @classmethod
    def of(cls, job: FileJob) -> Uninterrupted:
        with job.leg() as leg:
            assert leg.wait_until_opened(), leg.tail()
            opened = time.monotonic()
            assert leg.end() == 0, leg.tail()
            ended = time.monotonic()
        assert job.absorbed() == job.given.counts
        assert set(job.lines_of_keys()) == set(job.given.counts)
        return cls(job.text(), job.dump(), job.rows(), opened - leg.launched, ended - opened)

    def check_so_far(self, job: Job) -> None:
        """What a killed run has published is part of what this one did."""
        text = job.text()
        pairs = zip(text.splitlines(), self.text.splitlines(), strict=False)
        assert self.text.startswith(text), next(pair for pair in pairs if pair[0] != pair[1])
        rows = job.rows()
        assert rows.items() <= self.rows.items()

    def check(self, job: FileJob) -> None:
        """A run that came to its end has published the same, and counted every row once."""
        assert job.text() == self.text
        assert job.dump() == self.dump
        job.check_times()
        job.check_dataset()
        assert job.absorbed() == job.given.counts
        job.lines_of_keys()


def killed(leg: Leg, kill: Kill, *, starting: float, whole: float) -> bool:
    """Carry out a kill; False if the run had come to its end before."""
    with leg:
        code = carry_out(leg, kill, starting=starting, whole=whole)
    assert code in (0, -signal.SIGKILL), f"ended with {code} instead of a kill:\n{leg.tail()}"
    return code != 0


def crash_file_runs(
    make: Callable[[int], tuple[FileJob, Uninterrupted]],
    kills: Sequence[Kill],
    report: Report,
    *,
    together: int,
) -> int:
    """Kill runs over a file, ``together`` times each, let them end, and check; return how many."""
    left, runs, in_vain = deque(kills), 0, 0
    while left:
        job, expected = make(runs)
        runs += 1
        hits = 0
        while left and hits < together:
            leg = job.leg(left[0])
            if not killed(leg, left[0], starting=expected.starting, whole=expected.whole):
                break
            expected.check_so_far(job)
            report.add(left.popleft(), leg.point())
            hits += 1
        else:
            with job.leg() as leg:
                assert leg.end() == 0, leg.tail()
        expected.check(job)
        in_vain = 0 if hits else in_vain + 1
        assert in_vain < 3, f"a whole run, and never at {left[0].point or 'that instant'}"
    return runs


# --- with a broker -------------------------------------------------------------------------------

#: Fewer, so that each has many messages.
BROKER_METERS = METERS[:8]


class BrokerJob(Job):
    """Reads from a broker, in small blocks; the session is there before the first message."""

    def __init__(
        self,
        folder: Path,
        plan: str,
        place: tuple[str, str],
        client: str,
        *,
        block_rows: int = 100,
        forked: bool,
    ) -> None:
        address, topic = place
        super().__init__(
            folder,
            PLANS[plan],
            BROKER_METERS,
            f"kind = 'mqtt'\naddress = '{address}'\ntopic = '{topic}/{{meter}}'\n"
            f"client_id = '{client}'\nfield = 'kwh'\nsequence = 'number'\n"
            f"block_rows = {block_rows}\nwait = 0.01",
            forked=forked,
        )
        self._address, self._topic, self._client = address, topic, client

    def begin(self, secret: object) -> None:
        """Make state and session, so that two runs have the same secret and the same messages."""
        forget_uses()  # Each as in a process of its own: a secret serves one state.
        self.open(secret=secret).close()
        subscribe(self._address, f"{self._topic}/+", self._client)

    def latest(self) -> dict[str, int]:
        """The t of each key's latest release, of a run that is under way."""
        try:
            uri = f"{(self.state / 'releases.db').as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, uri=True)
        except sqlite3.OperationalError:
            return {}
        try:
            return {
                json.loads(key)[0] if key.startswith("[") else key: t
                for key, t in connection.execute("SELECT key, t FROM latest")
            }
        except sqlite3.OperationalError:  # it is being made
            return {}
        finally:
            connection.close()

    def finish(self, counts: dict[str, int]) -> None:
        """Go on until everything is published; then the broker has nothing left to send."""
        with self.leg() as leg:
            assert leg.wait_until_opened(), leg.tail()
            end = time.monotonic() + PATIENCE
            while (latest := self.latest()) != counts:
                assert leg.process.poll() is None, leg.tail()
                missing = {key: (latest.get(key), counts[key]) for key in counts}
                late = time.monotonic() > end or any(t > counts[key] for key, t in latest.items())
                assert not late, f"released and published: {missing}\n{leg.tail()}"
                time.sleep(0.05)
            assert leg.terminate() == 0, leg.tail()
        # The last block may have been absorbed and not confirmed: it comes again, once.
        for _ in range(2):
            with self.leg() as leg:
                assert leg.wait_until_opened(), leg.tail()
                time.sleep(0.5)
                assert leg.terminate() == 0, leg.tail()
        assert "read" not in [record["message"] for record in leg.records()], leg.tail()
        assert self.absorbed() == counts


def subscribe(address: str, topic: str, client_id: str) -> None:
    """Make a session that lasts, as the source itself would."""
    import paho.mqtt.client as mqtt
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    host, port = address.split(":")
    subscribed = threading.Event()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
    )
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_connect = lambda *_: client.subscribe(topic, qos=1)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 0xFFFF_FFFF
    client.connect(host, int(port), clean_start=False, properties=properties)
    client.loop_start()
    assert subscribed.wait(PATIENCE)
    client.disconnect()
    client.loop_stop()


class Publisher:
    """Publishes messages at a pace, QoS 1, in a thread, until it is told to stop.

    No more than were allowed, so that on a busy machine there are not ever more to catch up with.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        rate: float,
        seed: int,
        meters: Sequence[str] = BROKER_METERS,
    ) -> None:
        import paho.mqtt.client as mqtt

        self.counts = dict.fromkeys(meters, 0)
        self.ghosts = self._done = self._allowed = 0
        self._topic, self._rate, self._chance = topic, rate, random.Random(seed)
        self._stop = threading.Event()
        self._waiting: deque[mqtt.MQTTMessageInfo] = deque()
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.max_inflight_messages_set(1000)
        host, port = address.split(":")
        self._client.connect(host, int(port))
        self._client.loop_start()
        self._thread = threading.Thread(target=self._publish, name="publisher")
        self._thread.start()

    @property
    def is_publishing(self) -> bool:
        return not self._stop.is_set() and self._done < self._allowed

    def allow(self, more: int) -> None:
        """Let it publish so many more."""
        self._allowed += more

    def _publish(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(min(int(self._rate * 0.02), self._allowed - self._done)):
                self._one(self._chance.choice((*self.counts, GHOSTS[0])))
                self._done += 1

    def _one(self, key: str) -> None:
        number = self.counts.get(key, self.ghosts)
        payload = {"number": number + 1, "kwh": round(self._chance.lognormvariate(2.0, 0.6), 3)}
        self._waiting.append(
            self._client.publish(f"{self._topic}/{key}", json.dumps(payload), qos=1)
        )
        if key in self.counts:
            self.counts[key] += 1
        else:
            self.ghosts += 1
        while self._waiting and self._waiting[0].is_published():
            self._waiting.popleft()

    def stop(self, *, multiple: int = 1) -> dict[str, int]:
        """Stop when each key has a multiple of so many, and the broker has them all."""
        self._stop.set()
        self._thread.join()
        for key in self.counts:
            while self.counts[key] % multiple or self.counts[key] < 100:
                self._one(key)
        for message in self._waiting:
            message.wait_for_publish(PATIENCE)
            assert message.is_published()
        self._client.disconnect()
        self._client.loop_stop()
        return dict(self.counts)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stop.is_set():
            self.stop()
