"""The quick spelling of releases: the text of the slow one, to the last character."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rillet.sink.spelling
from rillet.sink import JsonLinesSink
from rillet.sink.digits import float_texts, integer_texts
from rillet.sink.spelling import key_text, spell
from sink.tables import STRANGE_KEYS, table


def texts_of(rows) -> list[str]:
    return [bytes(row).translate(None, b"\0").decode("ascii") for row in rows]


def spelled(values) -> list[str]:
    return texts_of(float_texts(np.array(values, np.float64)))


def expected(values) -> list[str]:
    return [repr(value) if np.isfinite(value) else "null" for value in map(float, values)]


@given(st.lists(st.floats(), max_size=40))
def test_any_doubles_are_spelled_as_repr_does(values):
    assert spelled(values) == expected(values)


@given(st.lists(st.floats(1e-5, 1e17) | st.integers(-(10**17), 10**17) | st.floats(-1e5, -1e-5)))
def test_ordinary_doubles_are_spelled_as_repr_does(values):
    assert spelled(values) == expected(values)


RANDOM = np.random.default_rng(3)
POWERS = np.concatenate([10.0 ** np.arange(-6, 19), 2.0 ** np.arange(-20, 60)])
MANY = {
    "all sizes": 10 ** RANDOM.uniform(-4.5, 16.5, 100_000) * RANDOM.choice([-1, 1], 100_000),
    "all bit patterns": RANDOM.integers(0, 2**63, 20_000, dtype=np.uint64).view(np.float64),
    "few digits": np.round(RANDOM.normal(size=30_000) * 1000, RANDOM.integers(1, 5)),
    "whole": np.round(10 ** RANDOM.uniform(0, 16, 30_000)),
    "lattice": RANDOM.integers(0, 2**52, 50_000) / 2.0 ** RANDOM.integers(0, 60, 50_000),
    # A decimal in the middle between two doubles: which of them is even decides.
    "halves": np.arange(2**53, 2**53 + 20_000, 2).astype(float),
    "powers": np.concatenate(
        [sign * np.nextafter(POWERS, to) for sign in (-1, 1) for to in (0, POWERS, np.inf)]
    ),
}


@pytest.mark.parametrize("kind", MANY)
def test_many_doubles_are_spelled_as_repr_does(kind):
    values = MANY[kind]
    assert spelled(values) == expected(values)


def test_whole_numbers():
    values = [RANDOM.integers(0, 10**digits, 200) for digits in range(1, 19)]
    for part in (*values, np.concatenate(values), -values[5], np.array([0, 9, 10, 10**16 - 1])):
        assert texts_of(integer_texts(part)) == list(map(str, part.tolist()))


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
    "changing ranges": replace(table(), threshold=np.arange(40) + 200.5),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("piece", [1, 5000, 1 << 20])
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
