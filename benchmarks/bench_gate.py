"""The gate with a million persons: time for an observation, bytes for a person."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import sqlite3
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np

import rillet
from frame import Comparison, Contender, Figure
from rillet.gather.gate import Gate, GateRule
from rillet.state.store import SqliteStore

PERSONS = 1_000_000
BLOCK = 1 << 18
RULE = GateRule(most=50, apart=24)
KEY = bytes(range(32))


@cache
def _full() -> Gate:
    """Everybody has entered once."""
    gate = Gate(RULE, KEY)
    for first in range(0, PERSONS, BLOCK):
        raw_ids = [b"household-%d" % person for person in range(first, min(first + BLOCK, PERSONS))]
        _, entries = gate.decide(gate.pseudonyms(raw_ids), np.ones(len(raw_ids), np.int64))
        gate.take_over(entries)
    return gate


@cache
def _ids() -> list[bytes]:
    """Persons at random."""
    random = np.random.default_rng(2026)
    return [b"household-%d" % person for person in random.integers(0, PERSONS, BLOCK).tolist()]


@cache
def _ticks() -> list[int]:
    """Of their observations: some are too soon."""
    ticks: list[int] = np.random.default_rng(2027).integers(2, 60, BLOCK).tolist()
    return ticks


@cache
def _digests() -> list[bytes]:
    """As objects, for those who need them so."""
    raw_digests = _full().pseudonyms(_ids()).tobytes()
    return [raw_digests[first : first + 16] for first in range(0, len(raw_digests), 16)]


@cache
def _everybody() -> list[bytes]:
    entries = _full().entries()
    raw_digests = np.stack([entries["low"], entries["high"]], axis=1).tobytes()
    return [raw_digests[first : first + 16] for first in range(0, len(raw_digests), 16)]


@cache
def _dictionary() -> dict[bytes, tuple[int, int]]:
    return dict.fromkeys(_everybody(), (1, 1))


def _through_dict() -> None:
    """As a program would: a dictionary of tuples."""
    known = _dictionary()
    for person, tick in zip(_digests(), _ticks(), strict=True):
        last, used = known.get(person, (-RULE.apart, 0))
        if used < RULE.most and tick >= last + RULE.apart:
            known[person] = tick, used + 1


@cache
def _table() -> sqlite3.Connection:
    table = sqlite3.connect(":memory:")
    table.execute(
        "CREATE TABLE gate (person BLOB PRIMARY KEY, last INTEGER, used INTEGER) WITHOUT ROWID"
    )
    table.executemany("INSERT INTO gate VALUES (?, 1, 1)", ((one,) for one in _everybody()))
    table.commit()
    return table


def _through_sqlite() -> None:
    """As a program would: an upsert for each observation, in memory, in one transaction."""
    _table().executemany(
        "INSERT INTO gate VALUES (?, ?, 1) ON CONFLICT (person) DO UPDATE SET "
        "last = excluded.last, used = used + 1 "
        f"WHERE used < {RULE.most} AND excluded.last >= last + {RULE.apart}",
        zip(_digests(), _ticks(), strict=True),
    )


def bench_decide() -> Comparison:
    """Whether each of many observations enters, by the digests of their persons."""
    gate = _full()
    everybody, persons, tick_of = gate.entries(), gate.pseudonyms(_ids()), np.array(_ticks())

    def through_gate() -> None:
        _, entries = gate.decide(persons, tick_of)
        gate.take_over(entries)

    return Comparison(
        f"a gate with {PERSONS:,} persons, {BLOCK:,} observations at a time",
        "observation",
        [
            Contender(
                "rillet",
                through_gate,
                BLOCK,
                within_nanoseconds=1500,
                prepare=lambda: gate.take_over(everybody),
            ),
            Contender(
                "Python, a dictionary",
                _through_dict,
                BLOCK,
                rillet_within=1.0,
                prepare=lambda: _dictionary().update(dict.fromkeys(_everybody(), (1, 1))),
            ),
            Contender(
                "SQLite, upsert in memory",
                _through_sqlite,
                BLOCK,
                rillet_within=0.3,
                prepare=lambda: _table().rollback(),
            ),
        ],
    )


def bench_pseudonyms() -> Comparison:
    """From ids to keyed digests of 128 bits, nearly all of them different."""
    raw_ids, pseudonyms = _ids(), _full().pseudonyms

    def through_hmac() -> object:
        return [hmac.digest(KEY, raw_id, hashlib.sha256)[:16] for raw_id in raw_ids]

    return Comparison(
        f"pseudonyms of {BLOCK:,} ids",
        "id",
        [
            Contender("rillet", lambda: pseudonyms(raw_ids), BLOCK, within_nanoseconds=2500),
            Contender("Python, HMAC-SHA256", through_hmac, BLOCK, rillet_within=1.0),
        ],
    )


# --- On disk --------------------------------------------------------------------------------------


@cache
def _state() -> dict[str, float]:
    """A durable run in which everybody enters twice; what it takes."""
    folder = Path(tempfile.mkdtemp(prefix="rillet-bench-"))
    plan = rillet.Plan(
        epsilon=1.0,
        delta=1e-6,
        upper=50.0,
        every="1h",
        start=0,
        length="365d",
        statistic=rillet.Count(),
        threshold=rillet.FixedThreshold(),
        unit=rillet.Person(most=50, apart="24h"),
    )
    try:
        sizes = []
        with plan.open_folder(folder / "live") as streams:
            store = streams.store
            assert isinstance(store, SqliteStore)
            for day in range(2):
                for first in range(0, PERSONS, BLOCK):
                    ids = range(first, min(first + BLOCK, PERSONS))
                    at = 86_400 * day + 1
                    streams.update_many(np.ones(len(ids)), at=at, person=[f"h{i}" for i in ids])
                    sizes.append(store.gate_bytes / PERSONS)
        begun = time.perf_counter()
        with plan.open_folder(folder / "live") as streams:
            opened = time.perf_counter() - begun
            gate = streams.store.gate
            assert gate is not None and len(gate) == PERSONS
            memory = sum(
                array.nbytes for array in vars(gate).values()
                if isinstance(array, np.ndarray)
            )  # fmt: skip
        return {
            "first": sizes[len(sizes) // 2 - 1],
            "most": max(sizes),
            "opened": opened,
            "memory": memory / PERSONS,
        }
    finally:
        shutil.rmtree(folder)


def _figure(title: str, name: str, unit: str, at_most: float) -> Figure:
    title = f"a durable gate with {PERSONS:,} persons, {title}"
    return Figure(title, "rillet", unit, lambda: _state()[name], at_most)


def bench_disk() -> Figure:
    """When everybody has entered once."""
    return _figure("written once", "first", "bytes a person", 32)


def bench_disk_most() -> Figure:
    """At its largest, before it is written anew."""
    return _figure("at its largest", "most", "bytes a person", 64)


def bench_memory() -> Figure:
    """Of the open gate: between 42 and 84, as full as its table is."""
    return _figure("while it is open", "memory", "bytes a person", 84)


def bench_opening() -> Figure:
    """Reading, checking and unsealing all of it."""
    return _figure("opened", "opened", "s", 15)
