"""The quick spelling of releases: the text of the slow one, to the last character."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import rillet.sink.spelling
from rillet.sink import JsonLinesSink
from rillet.sink.spelling import key_text, spell
from sink.tables import STRANGE_KEYS, table


def lines_of(releases) -> bytes:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return "".join(encode(release.to_record()) + "\n" for release in releases).encode("ascii")


TABLES = {
    "two keys": table(),
    "strange keys": table(STRANGE_KEYS, 30),
    "a sum": table(statistic="sum"),
    "more keys than rows": table(tuple((f"key {place}",) for place in range(500)), 1),
    "small": table(scale=1e-9),
    "one": table((("a",),), 1),
    "none": table((("a",),), 0),
    "no estimate": replace(table(), clipped_share=np.full(40, np.nan)),
    "percent signs": table((("100 %s", 3), ("%d",)), 20),
    "changing ranges": replace(table(), threshold=np.arange(40) + 200.5),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_a_table_is_spelled_as_its_records(kind, piece, monkeypatch):
    monkeypatch.setattr(rillet.sink.spelling, "_PIECE", piece)
    releases = TABLES[kind]
    pieces = list(spell(releases))
    assert b"".join(pieces) == lines_of(releases)
    assert all(part.endswith(b"\n") for part in pieces)


def test_the_sink_writes_what_write_many_writes(tmp_path):
    releases = TABLES["strange keys"]
    with JsonLinesSink(tmp_path / "quick") as sink:
        assert sink.write_releases(releases) == len(releases)
    with JsonLinesSink(tmp_path / "slow") as sink:
        sink.write_many(release.to_record() for release in releases)
    assert (tmp_path / "quick").read_bytes() == (tmp_path / "slow").read_bytes()


def test_keys_are_written_in_one_way():
    assert key_text(("Zürich", 3)) == '["Z\\u00fcrich",3]'
    for key in STRANGE_KEYS:
        assert tuple(json.loads(key_text(key))) == key
