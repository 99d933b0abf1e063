"""The quick spelling of releases: the text of the slow one, to the last character."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rillet.sink.spelling
from rillet.release import key_text
from rillet.sink.spelling import spell
from sink.tables import STRANGE_KEYS, records, replaced, table


def lines_of(releases) -> bytes:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return "".join(encode(record) + "\n" for record in records(releases)).encode("ascii")


TABLES = {
    "two keys": table(),
    "strange keys": table(STRANGE_KEYS, 30),
    "several names": table(STRANGE_KEYS, 5, names=("mean", "0.5", "100 %s")),
    "more keys than rows": table(tuple((f"key {index}",) for index in range(500)), 1),
    "small": table(scale=1e-9),
    "one": table((("a",),), 1),
    "none": table((("a",),), 0),
    "no estimate": replaced(table(), clipped_share=np.full(40, np.nan)),
    "percent signs": table((("100 %s", 3), ("%d",)), 20),
    "changing ranges": replaced(table(), clip_upper=np.arange(40) + 200.5),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_a_table_is_spelled_as_its_records(kind, piece, monkeypatch):
    monkeypatch.setattr(rillet.sink.spelling, "_PIECE", piece)
    releases = TABLES[kind]
    pieces = list(spell(releases))
    assert b"".join(pieces) == lines_of(releases)
    assert all(part.endswith(b"\n") for part in pieces)


def test_keys_are_written_in_one_way():
    assert key_text(("Zürich", 3)) == '["Z\\u00fcrich",3]'
    for key in STRANGE_KEYS:
        assert tuple(json.loads(key_text(key))) == key
