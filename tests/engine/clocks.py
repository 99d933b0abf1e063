"""Runs by the clock: what they are given, and what each tick of what they released contains."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.jobs import Job
from rillet import Plan, Releases, Secret
from rillet.sink.spelling import spell
from rillet.times import moment, now

#: What is the secret of runs that draw a fresh one, where a test knows it.
SECRET = Secret.for_tests(13)

START = "2026-03-01T00:00Z"
BEGIN = moment(START)
HOUR = 3_600_000_000

#: So much ε that the noise of a count is a thousandth of an observation: what is in a tick can be
#: read off its release.
EXACT: dict[str, Any] = {
    "epsilon": 1e6,
    "delta": 2.0**-20,
    "upper": 50.0,
    "statistic": "count",
    "threshold": "fixed",
    "strategy": {"kind": "binary-tree", "law": "gaussian"},
}
#: A warm-up, and ranges that are learned again.
LEARNED: dict[str, Any] = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 50.0, "lag": 12}
HOURLY: dict[str, Any] = {"every": "1h", "start": START, "length": "10d"}


def hour(tick: float) -> int:
    """So many hours behind the start, in microseconds since 1970: 0.5 is in tick 1."""
    return BEGIN + round(tick * HOUR)


def random_rows(count: int, seed: int, keys: Sequence[str] = ("",)) -> list[tuple[str, float, int]]:
    """Key, value and time of observations, most of them in the 240 ticks of `HOURLY`."""
    random = np.random.default_rng(seed)
    values = random.exponential(10.0, count).round(3).tolist()
    times = [hour(tick) for tick in random.uniform(-5, 245, count)]
    names = [keys[index] for index in random.integers(0, len(keys), count)]
    return list(zip(names, values, times, strict=True))


def directly(plan: Plan, rows: Iterable[tuple[str, float, int]], until: str) -> Releases:
    """What the library releases, when a program passes all observations and closes all ticks."""
    streams = plan.open_many(secret=SECRET)
    declared = [own[0] for own in plan.keys]
    used = [row for row in rows if row[0] in declared or not declared]
    for part in (used[: len(used) // 3], used[len(used) // 3 :]):
        keys, values, times = zip(*part, strict=True)
        at = np.array(times) / 1e6
        streams.update_many(values, key=list(keys) if declared else (), at=at)
    return streams.advance(until=until)


def spelled(releases: Releases) -> bytes:
    """As a sink writes them."""
    return b"".join(spell(releases))


def counts(lines: Path | bytes) -> dict[tuple[str, int], int]:
    """How many observations each tick of each key has, of releases that count exactly.

    No (key, t, name) may come twice, and none may be left out.
    """
    text = lines.read_bytes() if isinstance(lines, Path) else lines
    running: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        record = json.loads(line)
        key, t, value = "/".join(map(str, record["key"])), record["t"], record["value"]
        assert record["name"] == "count"
        assert abs(value - round(value)) < 0.2, "noise that is not negligible"
        assert t not in running.setdefault(key, {}), f"{key} at {t} twice"
        running[key][t] = round(value)
    found = {}
    for key, counted in running.items():
        assert list(counted) == list(range(1, len(counted) + 1)), f"a tick of {key} is missing"
        before = 0
        for t, total in counted.items():
            found[key, t] = total - before
            before = total
    return found


def ticks(found: Mapping[tuple[str, int], int]) -> Counter[tuple[str, int]]:
    """Those that are not empty."""
    return Counter({place: count for place, count in found.items() if count})


# --- Live ----------------------------------------------------------------------------------------

#: A tick, in microseconds.
SECOND = 1_000_000
METERS = ("meter-1", "meter-2", "meter-3")


class LiveJob(Job):
    """A durable run by seconds, from soon on, that counts exactly and notes what arrives when."""

    def __init__(self, folder: Path, source: str, *, seconds: int, wait: int = 2, **plan: Any):
        self.begin = (now() // SECOND + wait) * SECOND
        self.seconds = seconds
        table = {**EXACT, "every": "1s", "start": self.begin // SECOND, "length": f"{seconds}s"}
        super().__init__(folder, toml({**table, **plan}), METERS, source, forked=True)
        self.arrivals = folder / "arrivals"

    def wait_for(self, second: float) -> None:
        """Until so many seconds behind the start."""
        time.sleep(max(0.0, (self.begin / 1e6 + second) - time.time()))

    def read(self) -> dict[tuple[str, float], list[tuple[int, int, bool]]]:
        """Each observation of a declared key, with its reads: stamp, own time, surely absorbed."""
        reads: dict[tuple[str, float], list[tuple[int, int, bool]]] = {}
        assert self.arrivals is not None
        lines = self.arrivals.read_text().splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            for index, which, arrived, own in [] if line == '"absorbed"' else json.loads(line):
                if index >= 0:
                    read = (arrived, own, after == '"absorbed"')
                    reads.setdefault((METERS[index], which), []).append(read)
        return reads

    def tick(self, at: int) -> int:
        """The tick of a time; 0 outside the schedule."""
        tick = (at - self.begin) // SECOND + 1
        return tick if 1 <= tick <= self.seconds else 0

    def counts(self) -> dict[tuple[str, int], int]:
        """What each tick has, of a run that came to its end."""
        found = counts(self.lines)
        assert len(found) == len(METERS) * self.seconds
        return found


def toml(table: Mapping[str, Any]) -> str:
    """A table of a configuration."""

    def spell(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{name} = {spell(one)}" for name, one in value.items()) + "}"
        return json.dumps(value)

    return "\n".join(f"{name} = {spell(value)}" for name, value in table.items())
