"""What every sink that remembers must do: the same tests for each of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from rillet.errors import OutputError
from rillet.sink.spelling import key_text
from rillet.table import ReleaseTable
from sink.harness import FileHarness, PostgresHarness, SqliteHarness
from sink.tables import STRANGE_KEYS, changed, table

KINDS = ["file", "synced file", "sqlite", "sqlite full", "postgres"]


@pytest.fixture(params=KINDS)
def harness(request, tmp_path):
    kind = request.param
    if kind == "file":
        return FileHarness(tmp_path)
    if kind == "synced file":
        return FileHarness(tmp_path, fsync=True)
    if kind == "sqlite":
        return SqliteHarness(tmp_path)
    if kind == "sqlite full":
        return SqliteHarness(tmp_path, synchronous="full")
    name = f"releases_{random.Random(request.node.nodeid).getrandbits(60):x}"
    return PostgresHarness(request.getfixturevalue("database"), name)


def delivered(harness, tables, place=None):
    """Deliver, close, and give the place."""
    sink = harness.open(place)
    try:
        for one in tables:
            sink.deliver(one)
        return sink.place()
    finally:
        sink.close()


@pytest.mark.parametrize("statistic", ["mean", "sum"])
def test_what_is_delivered_is_there_exactly(harness, statistic):
    tables = [
        table(STRANGE_KEYS, 7, first=1 + 7 * turn, seed=turn, statistic=statistic)
        for turn in range(3)
    ]
    delivered(harness, tables)
    records = harness.records()
    assert records == harness.expected(tables)
    assert {record["clipped_share"] is None for record in records} == {True, False}
    assert len(records) == 3 * 7 * len(STRANGE_KEYS)


@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1e18, 1e290])
def test_doubles_of_any_size_come_back(harness, scale):
    tables = [table(scale=scale)]
    delivered(harness, tables)
    assert harness.records() == harness.expected(tables)


def test_a_table_of_nothing_changes_nothing(harness):
    tables = [table(), table()[:0]]
    place = delivered(harness, tables[1:])
    place = delivered(harness, tables, place)
    delivered(harness, tables[1:], place)
    assert harness.records() == harness.expected(tables)


def test_the_same_again_changes_nothing(harness):
    """A crash between delivery and acknowledgement: the place is the old one."""
    tables = [table(rows=6, first=1 + 6 * turn, seed=turn) for turn in range(3)]
    before = delivered(harness, tables[:1])
    after = delivered(harness, tables[1:], before)
    assert delivered(harness, tables[1:], before) == after
    assert delivered(harness, tables[1:2], before) != after or after is None or "rows" in after
    assert delivered(harness, tables[1:], before) == after
    assert harness.records() == harness.expected(tables)


@pytest.mark.parametrize("cut", [1, 17, 39, 40, 55])
def test_the_same_rows_cut_differently_and_more_behind_them(harness, cut):
    whole = table(rows=40)
    before = delivered(harness, [whole[:10]])
    delivered(harness, [whole[10:20], whole[20:40]], before)
    sink = harness.open(before)
    try:
        sink.deliver(whole[10 : 10 + cut])
        sink.deliver(whole[10 + cut :])
    finally:
        sink.close()
    assert harness.records() == harness.expected([whole])


@pytest.mark.parametrize("name", ["sum", "unit_std", "threshold", "clip_lower"])
@pytest.mark.parametrize("place", [0, 13, 38])
def test_another_value_is_refused_by_name_and_nothing_changes(harness, name, place):
    original = table((("north", 1), ("east",)), 20)
    more = table((("north", 1), ("east",)), 5, first=71)
    before = delivered(harness, [original[:0]])
    delivered(harness, [original], before)
    wrong = changed(original, place, name)
    release = wrong[place]
    sink = harness.open(before)
    try:
        with pytest.raises(OutputError) as caught:
            sink.deliver(ReleaseTable.join([wrong, more]))
        assert key_text(release.key) in str(caught.value)
        assert f"t = {release.t:,} " in str(caught.value)
        assert harness.records() == harness.expected([original])
        # The sink is as it was: what is right is taken.
        sink.deliver(ReleaseTable.join([original, more]))
    finally:
        sink.close()
    assert harness.records() == harness.expected([original, more])


def test_an_unknown_share_is_not_a_known_one(harness):
    original = table()
    before = delivered(harness, [original[:0]])
    delivered(harness, [original], before)
    shares = original.clipped_share.copy()
    assert np.isnan(shares[2])
    shares[2] = 0.0
    sink = harness.open(before)
    with pytest.raises(OutputError, match="a published value is never replaced"):
        sink.deliver(replace(original, clipped_share=shares))
    sink.close()
    assert harness.records() == harness.expected([original])


def test_many_keys(harness):
    keys = tuple((f"meter {place}", place) for place in range(3000))
    tables = [table(keys, 2, seed=1), table(keys, 1, first=53, seed=2)]
    delivered(harness, tables)
    assert harness.records() == harness.expected(tables)


def test_keys_that_a_table_knows_but_has_no_row_of_leave_no_trace(harness):
    whole = table((("a",), ("b",), ("c",)), 5)
    place = delivered(harness, [whole[1:2], whole[5:6]])
    delivered(harness, [whole[6:]], place)
    rows = [whole[1:2], whole[5:6], whole[6:]]
    assert harness.records() == harness.expected(rows)


def test_a_closed_sink_says_so(harness):
    sink = harness.open()
    sink.deliver(table())
    sink.close()
    sink.close()
    with pytest.raises(OutputError, match="closed"):
        sink.deliver(table())


def test_a_place_of_another_kind_is_refused(harness):
    with pytest.raises(OutputError, match=r"expected (a|no) place"):
        harness.open({"nonsense": 1})
    if isinstance(harness, (FileHarness, SqliteHarness)):
        name = "offset" if isinstance(harness, FileHarness) else "rows"
        for bad in ({name: -1}, {name: 1.5}, {name: 1, "more": 2}, {}):
            with pytest.raises(OutputError, match="expected a place"):
                harness.open(bad)


def test_lost_content_is_noticed(harness):
    if isinstance(harness, PostgresHarness):
        assert delivered(harness, [table()]) is None
        return
    place = delivered(harness, [table()])
    (name,) = place
    with pytest.raises(OutputError, match=r"expected at least .* which were delivered before"):
        harness.open({name: place[name] + 1})


def test_the_name_is_public(harness):
    sink = harness.open()
    try:
        assert isinstance(sink.name, str)
        assert sink.name
        password = "drawer"
        assert password not in sink.name + repr(sink)
    finally:
        sink.close()
