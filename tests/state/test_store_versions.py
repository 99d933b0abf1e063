"""States that earlier releases wrote are gone on with, exactly."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rillet import Plan
from rillet.durable import DurableStreams
from rillet.errors import StateError
from rillet.state.store import VERSION
from rillet.table import ReleaseTable
from state.make_store_fixture import FIXTURES, blocks, released, unpack

STORED = {
    (version, name): case
    for version in (VERSION,)  # earlier ones were never published
    for name, case in json.loads((FIXTURES / f"store-v{version}.json").read_text(encoding="ascii"))[
        "cases"
    ].items()
}


def put(folder: Path, case) -> Plan:
    folder.mkdir()
    for name, text in case["files"].items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(unpack(text))
    return Plan.from_json((folder / "plan.json").read_text())


@pytest.fixture(params=STORED, ids=lambda place: f"version {place[0]}, {place[1]}")
def case(request):
    return STORED[request.param]


def test_stored_state_goes_on_as_it_did(tmp_path, case):
    plan = put(tmp_path / "live", case)
    with DurableStreams(tmp_path / "live", plan, run="fixture") as streams:
        streams.check()
        assert streams.observations == case["observations"]
        assert streams.places() == case["places"]
        waiting = [(batch, table.to_bytes()) for batch, table in streams.undelivered()]
        assert waiting == [(batch, unpack(text)) for batch, text in case["undelivered"]]
        # What was absorbed last is known again; something else there is refused.
        rows = case["kept"]
        again = list(blocks(plan, (rows - 1) // 40 * 40, rows, case["sequences"]))
        streams.check_absorbed(again)
        again[0].raw_values[0] += 1
        with pytest.raises(StateError, match="is not what was absorbed"):
            streams.check_absorbed(again)
        found = released(streams, blocks(plan, rows, case["last"], case["sequences"]))
    assert list(map(unpack, found)) == list(map(unpack, case["released"]))
    assert sum(len(ReleaseTable.from_bytes(unpack(text))) for text in found) > 20


def test_fixtures_have_what_an_upgrade_must_keep():
    """Every kind of content is there in some case of the version in force."""
    cases = {name: case for (version, name), case in STORED.items() if version == VERSION}
    assert any(case["undelivered"] for case in cases.values())
    assert any(case["places"] for case in cases.values())
    counts = {}
    for name, case in cases.items():
        with closing(sqlite3.connect(":memory:")) as connection:
            # Not in WAL mode, which a database in memory cannot have.
            content = bytearray(unpack(case["files"]["state.db"]))
            content[18:20] = b"\1\1"
            connection.deserialize(bytes(content))
            for table in ("streams", "learning", "outbox", "progress", "sinks"):
                query = f"SELECT count(*) FROM {table}"
                counts[name, table] = connection.execute(query).fetchone()[0]
    assert counts["learning", "learning"]
    assert counts["pool", "learning"]
    assert counts["keys", "streams"] == 3
    assert counts["keys", "outbox"]
    assert not counts["learned together", "learning"]
