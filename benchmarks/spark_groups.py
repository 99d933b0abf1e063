"""What a group of keys costs on Spark's workers, without Spark around it: one line of JSON a job.

    python benchmarks/spark_groups.py

Seconds of a core for each part of the work, and the size of the state; the releases are compared
with those of one process.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import rillet
from rillet.spark.group import (
    PROGRESS,
    Group,
    Rows,
    by_group,
    check_of,
    usual_keys_in_group,
)
from rillet.spark.processor import frame_of
from rillet.spark.record import sent
from rillet.spark.shipped import Columns, Setup

START, MINUTE = 1_767_225_600_000_000, 60_000_000
#: Of the state: two cores.
PARTITIONS = 2
PARTS = ("sealing rows", "opening state", "advancing", "to Arrow", "sealing state", "one process")


class Spent:
    """Seconds of a core, by part."""

    def __init__(self) -> None:
        self.seconds, self._last = dict.fromkeys(PARTS, 0.0), time.process_time()

    def on(self, part: str | None) -> None:
        """What was spent since the last call was spent on this; None: on nothing that counts."""
        now = time.process_time()
        if part is not None:
            self.seconds[part] += now - self._last
        self._last = time.process_time()


def in_order(releases: rillet.Releases) -> list[Any]:
    """Keys, times and numbers, whatever the order of releases."""
    numbers = np.array([int(key[0]) for key in releases.keys])[releases.key_of]
    rows = np.lexsort((releases.t, numbers))
    shown = (numbers, releases.t, releases.value, releases.noise_std)
    return [column[rows].tobytes() for column in shown]


def prepare(
    keys: int, each: int, folder: Path, *, by_clock: bool
) -> tuple[rillet.Plan, rillet.Secret, Setup]:
    """A plan of so many keys, and what workers get of it."""
    options: dict[str, Any] = {"length": each}
    if by_clock:
        options = {"length": "180d", "every": "1m", "start": START / 1e6}
    plan = rillet.Plan(
        epsilon=1.0,
        delta=1e-6,
        upper=10.0,
        statistic=rillet.Sum(),
        threshold=rillet.FixedThreshold(),
        keys=tuple((str(number),) for number in range(keys)),
        **options,
    )
    secret = rillet.Secret.for_tests(3)
    path = folder / f"secret of {keys}"
    if not path.exists():
        secret.save(path)
    (folder / f"plan of {keys}").write_text(plan.to_json(), encoding="utf-8")
    setup = Setup(
        *(str(folder / f"plan of {keys}"), Columns("v", ("k",)), str(path)),
        *(check_of(plan, secret, "ab"), "ab", usual_keys_in_group(plan.layout, PARTITIONS)),
    )
    return plan, secret, setup


def opening(keys: int, folder: Path) -> dict[str, Any]:
    """What a process takes to open a plan of so many keys."""
    _, _, setup = prepare(keys, 1, folder, by_clock=True)
    before, begun = _resident(), time.process_time()
    opened = setup.open()
    seconds = time.process_time() - begun
    more = (_resident() - before) / 2**20
    return {"keys": len(opened.keys), "seconds": round(seconds, 1), "MiB more": round(more)}


def _resident() -> int:
    """Bytes that this process has in memory; Linux."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(
    keys: int, each: int, batches: int, *, by_clock: bool, at_hand: bool, folder: Path
) -> dict[str, Any]:
    """So many keys with so many observations each; groups are at hand, or read in each batch."""
    plan, secret, setup = prepare(keys, each, folder, by_clock=by_clock)
    opened, random, part = setup.open(), np.random.default_rng(1), each // batches
    fields = sent(plan.layout)
    states: dict[int, dict[Any, Any]] = {group: {} for group in range(opened.groups)}
    streams, same, count, written, spent = plan.open_many(secret=secret), True, 0, 0, Spent()
    for batch in range(batches):
        t = np.repeat(np.arange(part), keys) + batch * part
        key_of, values = np.tile(np.arange(keys), part), random.exponential(2.0, len(t))
        at = START + t * MINUTE + random.integers(0, MINUTE, len(t)) if by_clock else None
        rows = Rows(values, key_of, None if by_clock else t, at).part(random.permutation(len(t)))
        packed: dict[int, list[Any]] = {}
        spent.on(None)
        for group, content in by_group(opened, rows, 1):
            packed.setdefault(group, []).append(content)
        spent.on("sealing rows")
        found = []
        for number, state in states.items():
            own = opened.take(number, state.get(PROGRESS)) if at_hand else None
            own = own or Group(opened, number, state)
            spent.on("opening state")
            until = START + (batch + 1) * part * MINUTE if by_clock else None
            releases = list(own.absorb(packed[number], until))
            spent.on("advancing")
            for one in releases:
                frame_of(one, fields)
            spent.on("to Arrow")
            for name, sealed in own.changed():
                if sealed is None:
                    del state[name]
                else:
                    state[name] = sealed
                    written += len(sealed)
            opened.keep(number, own)
            spent.on("sealing state")
            found += [one for one in releases if len(one)]
        if by_clock:
            assert plan.clock is not None and at is not None
            ticks = plan.clock.tick_of(at)
            wanted = streams.absorb_ticks(values, key_of, ticks, (batch + 1) * part)
        else:
            wanted = streams.absorb(values, key_of)
        spent.on("one process")
        same &= in_order(rillet.Releases.join(found)) == in_order(wanted)
        count += len(wanted)
    seconds = {name: round(each, 2) for name, each in spent.seconds.items()}
    on_workers = sum(spent.seconds.values()) - spent.seconds["one process"]
    return {
        "keys": keys,
        "at hand": at_hand,
        "groups": opened.groups,
        "releases": count,
        "the same": same,
        "seconds": seconds,
        "µs a release": round(1e6 * on_workers / count, 1),
        "µs in one process": round(1e6 * spent.seconds["one process"] / count, 1),
        "bytes a key": round(sum(len(x) for own in states.values() for x in own.values()) / keys),
        "written a key and batch": round(written / keys / batches),
    }


SIZES = ((100_000, 10, 5, True), (100_000, 40, 20, True), (1_000, 1_000, 4, False))

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(opening(1_000_000, Path(name))), flush=True)
        for (keys, each, batches, by_clock), at_hand in product(SIZES, (True, False)):
            options: dict[str, Any] = {"by_clock": by_clock, "at_hand": at_hand}
            found = measure(keys, each, batches, **options, folder=Path(name))
            print(json.dumps(found, ensure_ascii=False), flush=True)
