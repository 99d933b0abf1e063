"""Write ``fixtures/store-vN.json``: durable states of the version in force, and what they release.

Run once for each version of the store, by its own release, and never again: a later release must
go on from these states as this one does.

    python tests/state/make_store_fixture.py
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rillet import BinaryTree, Plan, Secret
from rillet.durable import DurableStreams
from rillet.source import Block
from rillet.state.store import VERSION
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.threshold import FixedThreshold

FIXTURES = Path(__file__).with_name("fixtures")
KEYS = (("north",), ("south",), ("late",))
FILES = ("state.db", "key", "plan.json", "opening")


def cases() -> dict[str, tuple[Plan, int, int]]:
    """A plan, the rows that were absorbed when the state was kept, and the rows in all."""
    one = {"epsilon": 1.0, "upper": 100.0}
    return {
        "learning": (Plan(**one, length=400, lag=50, strategy=SignedDigitTree()), 30, 120),
        "running": (Plan(**one, length=400, lag=20, every=3, strategy=BinaryTree()), 70, 200),
        # Two keys pass a step of the ratchet after the state was kept.
        "keys": (
            Plan(**one, length=1500, lag=0, keys=KEYS, threshold=FixedThreshold(), every=2),
            3300,
            4200,
        ),
        "pool": (Plan(**one, length=100, lag=80, keys=KEYS, shared_threshold=True), 60, 180),
        "learned together": (
            Plan(**one, length=100, lag=80, keys=KEYS, shared_threshold=True),
            130,
            240,
        ),
    }


def blocks(plan: Plan, first: int, last: int, sequences: bool) -> Iterator[Block]:
    """The rows of a case, in blocks; all numbers are exact in binary."""
    random = np.random.default_rng(2026)
    values = np.floor(random.exponential(8.0, 5000) * 1024) / 1024
    keys = random.integers(-1, 2, 5000)
    keys[::7] = 2
    keys[:100][keys[:100] == 2] = 0  # the last key begins late
    for start in range(first, last, 40):
        end = min(last, start + 40)
        yield Block(
            values[start:end],
            {"rows": end},
            None,
            {"rows": start},
            keys[start:end] if plan.keys else None,
            np.arange(start, end) if sequences else None,
        )


def released(streams: DurableStreams, parts: Iterator[Block]) -> list[str]:
    """What comes out, exactly."""
    found = (streams.absorb(block) for block in parts)
    return [pack(table.to_bytes()) for _, table in filter(None, found)]


def pack(content: bytes) -> str:
    """Bytes as text; a database is mostly zeros."""
    return base64.b85encode(zlib.compress(content, 9)).decode("ascii")


def unpack(text: str) -> bytes:
    """Undo :func:`pack`."""
    return zlib.decompress(base64.b85decode(text))


def make() -> dict[str, Any]:
    """All cases."""
    made = {}
    for number, (name, (plan, kept, last)) in enumerate(cases().items()):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "live"
            secret, sequences = Secret.for_tests(number), name == "keys"
            streams = DurableStreams(folder, plan, secret=secret, run="fixture")
            for block in blocks(plan, 0, kept, sequences):
                batch = streams.absorb(block)
                # The last batch but one is the last that a sink has.
                if batch is not None and block.position["rows"] + 40 < kept:
                    streams.acknowledge(batch[0], {"releases.db": {"rows": 7}, "stdout": None})
            streams.close()
            files = {file: pack((folder / file).read_bytes()) for file in FILES}
            with DurableStreams(folder, plan) as streams:
                waiting = [[batch, pack(t.to_bytes())] for batch, t in streams.undelivered()]
                places = streams.places()
                observations = streams.observations
                later = released(streams, blocks(plan, kept, last, sequences))
        made[name] = {
            "files": files,
            "sequences": sequences,
            "kept": kept,
            "last": last,
            "observations": observations,
            "places": places,
            "undelivered": waiting,
            "released": later,
        }
    return {"version": VERSION, "cases": made}


if __name__ == "__main__":
    path = FIXTURES / f"store-v{VERSION}.json"
    if path.exists():
        sys.exit(f"{path} exists: a fixture of a version is made once")
    path.write_text(json.dumps(make(), indent=1) + "\n", encoding="ascii")
