"""Tables of releases: order, exact bytes, and the same numbers as the single releases."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.streams import SECRET, awkward_values, paper
from rillet import ParameterError, StateError, Sum
from rillet.table import ReleaseTable

KEYS = [("north", 3), ("south", -1), (), ("1",), (1,), ("Zürich\n\0\ud800 %s",), ("10**30", 10**30)]


def parts_and_arrivals(plan, keys, cuts, count=120, seed=5):
    """Streams fed in blocks: observation i of the input goes to a key at random."""
    random = np.random.default_rng(seed)
    whose = random.integers(0, len(keys), count * len(keys))
    values = awkward_values(len(whose), 9)
    streams = [plan.open(secret=SECRET, key=key) for key in keys]
    tables = []
    for first, last in zip([0, *cuts], [*cuts, len(whose)], strict=True):
        parts, arrivals = [], []
        for place, stream in enumerate(streams):
            raw_places = np.flatnonzero(whose[first:last] == place) + first
            room = plan.most_observations - stream.t
            raw_places = raw_places[:room]
            before = stream.t
            parts.append(stream.update_many(values[raw_places]))
            arrivals.append(raw_places[parts[-1].t - before - 1])
        tables.append(ReleaseTable.merge(parts, arrivals))
    return tables


def table_of(keys=KEYS, *, lag=40, **more) -> ReleaseTable:
    (table,) = parts_and_arrivals(paper(150, lag, **more), keys, [])
    return table


@cache
def whole_table() -> ReleaseTable:
    return table_of()


def same(one: ReleaseTable, other: ReleaseTable) -> bool:
    columns = ("t", "sum", "unit_std", "threshold", "clip_lower", "clipped_share")
    return (
        [one.keys[place] for place in one.key_of] == [other.keys[place] for place in other.key_of]
        and all(getattr(one, n).tobytes() == getattr(other, n).tobytes() for n in columns)
        and one.common == other.common
    )


def test_a_table_has_the_releases_of_its_parts():
    plan = paper(150, 40)
    parts = [
        plan.open(secret=SECRET, key=key).update_many(awkward_values(100, place))
        for place, key in enumerate(KEYS)
    ]
    arrivals = [np.arange(len(part)) * len(KEYS) + place for place, part in enumerate(parts)]
    table = ReleaseTable.merge(parts, arrivals)
    in_turn = [release for turn in zip(*parts, strict=True) for release in turn]
    assert list(table) == in_turn
    assert len(table) == len(in_turn) > 300
    assert table.keys == tuple(KEYS)
    assert [table[place] for place in (0, 7, -1)] == [in_turn[place] for place in (0, 7, -1)]
    assert [r.to_record() for r in table[5:50:3]] == [r.to_record() for r in in_turn[5:50:3]]
    for name in ("mean", "value", "noise_std", "sum_noise_std", "mean_noise_std"):
        assert getattr(table, name).tolist() == [getattr(release, name) for release in in_turn]


@settings(max_examples=12)
@given(st.lists(st.integers(0, 7 * 120), max_size=6).map(sorted))
def test_the_order_does_not_depend_on_the_cuts(cuts):
    whole = whole_table()
    tables = parts_and_arrivals(paper(150, 40), KEYS, cuts)
    assert same(ReleaseTable.join(tables), whole)
    assert ReleaseTable.join(tables).to_bytes() == whole.to_bytes()


def test_equal_arrivals_keep_the_order_of_the_parts():
    stream = paper(150, 40).open(secret=SECRET, key=("a",)).update_many(awkward_values(100, 1))
    pieces = [stream[:20], stream[20:]]
    merged = ReleaseTable.merge(pieces, [np.zeros(20, int), np.zeros(len(stream) - 20, int)])
    assert list(merged) == list(stream) == list(ReleaseTable.of(stream))
    assert merged.keys == (("a",),)


def test_keys_stand_in_the_order_in_which_they_first_appear():
    parts = [
        paper(150, 40).open(secret=SECRET, key=(key,)).update_many(awkward_values(43, 1))
        for key in "abc"
    ]
    arrivals = [np.array([3, 4, 5, 6]), np.array([2, 7, 8, 9]), np.array([0, 1, 10, 11])]
    assert ReleaseTable.merge(parts, arrivals).keys == (("c",), ("b",), ("a",))


def test_a_compact_table_knows_its_own_keys_only():
    whole = whole_table()
    part = whole[30:33]
    assert part.keys == whole.keys
    assert list(part.compact()) == list(part)
    assert set(part.compact().keys) == {release.key for release in part} < set(whole.keys)
    assert whole[:0].compact().keys == ()


def test_merge_refuses_what_does_not_fit():
    releases = paper(150, 40).open(secret=SECRET).update_many(awkward_values(60, 1))
    other = paper(150, 40, delta=2.0**-30, statistic=Sum()).open(secret=SECRET)
    other_releases = other.update_many(awkward_values(60, 1))
    with pytest.raises(ParameterError, match="arrivals"):
        ReleaseTable.merge([releases], [np.arange(3)])
    with pytest.raises(ParameterError, match="arrivals"):
        ReleaseTable.merge([], [])
    count = np.arange(len(releases))
    with pytest.raises(ParameterError, match="parts: expected releases of one plan"):
        ReleaseTable.merge([releases, other_releases], [count, np.arange(len(other_releases))])
    with pytest.raises(ParameterError, match="columns: expected arrays of one length"):
        ReleaseTable(
            ((),), np.zeros(2, int), *(np.ones(n) for n in (2, 2, 2, 3, 2, 2)), "mean", "laplace"
        )


# --- Bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", [slice(None), slice(0, 0), slice(3, 4), slice(10, 300, 7)], ids=str
)
@pytest.mark.parametrize("more", [{}, {"statistic": Sum()}, {"lower": -3.5}], ids=str)
def test_bytes_come_back_exactly(place, more):
    table = table_of(**more)[place]
    back = ReleaseTable.from_bytes(table.to_bytes())
    assert same(table, back)
    assert back.to_bytes() == table.to_bytes()
    assert list(back) == list(table)


@given(
    st.lists(st.tuples(st.integers(0, 3), *[st.floats(width=64)] * 5), max_size=20),
    st.lists(
        st.lists(st.text() | st.integers(), max_size=3).map(tuple),
        min_size=4,
        max_size=4,
        unique=True,
    ),
)
def test_any_doubles_and_keys_come_back(rows, keys):
    columns = list(zip(*rows, strict=True)) or [()] * 6
    table = ReleaseTable(
        tuple(keys),
        np.array(columns[0], np.int64),
        np.arange(1, len(rows) + 1) * 10**17,
        *(np.array(column, np.float64) for column in columns[1:]),
        "sum",
        "gaussian",
        ("rounded",),
    )
    assert same(table, ReleaseTable.from_bytes(table.to_bytes()))


def test_bytes_are_compact():
    table = table_of([("key", place) for place in range(40)])
    assert len(table) > 2000
    own = 50.0 + np.arange(40.0)
    table = replace(table, threshold=own[table.key_of])
    assert len(table.to_bytes()) < 25 * len(table)
    # Keys that are not in the rows cost nothing.
    assert len(table[:1].to_bytes()) < 500


def test_bytes_of_another_version_are_refused():
    content = bytearray(table_of().to_bytes())
    content[8:12] = struct.pack("<I", 2)
    with pytest.raises(StateError, match="expected version 1, found 2"):
        ReleaseTable.from_bytes(bytes(content))


def test_damaged_bytes_are_refused():
    content = table_of().to_bytes()
    header = json.loads(content[16 : 16 + struct.unpack("<II", content[8:16])[1]])
    assert header["statistic"] == "mean"
    for place in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[place] ^= 4
        with pytest.raises(StateError):
            ReleaseTable.from_bytes(bytes(damaged))
    for length in (0, 5, 12, 20, len(content) // 2, len(content) - 1):
        with pytest.raises(StateError):
            ReleaseTable.from_bytes(content[:length])
    assert zlib.crc32(content[:-4]) == struct.unpack("<I", content[-4:])[0]


def test_a_table_says_little_about_itself():
    assert repr(table_of([("a",)])[:3]) == "ReleaseTable(3 releases of the mean, 1 keys)"
