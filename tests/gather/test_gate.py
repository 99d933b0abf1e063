"""The gate against a plain rendering of its rule, and what it may depend on."""

import uuid
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rillet.errors import ParameterError
from rillet.gather import gate as gates
from rillet.gather.gate import ENTRY, Gate, GateRule, Pseudonyms, as_ids, id_text

KEY = bytes(range(32))


def accepted_one_by_one(rule, ids, ticks):
    """The rule, as it is written down."""
    known, accepted = {}, []
    for name, tick in zip(ids, ticks, strict=True):
        block = 0 if rule.within is None else (tick - 1) // rule.within
        used = known.setdefault((name, block), [])
        ok = bool(name) and (not used or (len(used) < rule.most and tick >= used[-1] + rule.apart))
        accepted.append(ok)
        if ok:
            used.append(tick)
    return accepted


def through(rule, blocks, *, gate=None):
    """What enters, of blocks of (ids, ticks)."""
    gate = Gate(rule, KEY) if gate is None else gate
    entered = []
    for ids, ticks in blocks:
        enters, entries = gate.decide(gate.pseudonyms(ids), np.array(ticks, np.int64))
        gate.take_over(entries)
        entered += enters.tolist()
    return entered


RULES = st.builds(
    GateRule,
    most=st.integers(1, 4),
    apart=st.integers(1, 6),
    within=st.none() | st.integers(6, 12),
)
NAMES = st.sampled_from([b"", b"ann", b"bob", b"eve", b"zoe"])
ROWS = st.lists(st.tuples(NAMES, st.integers(1, 40)), max_size=60)


@given(
    rule=RULES,
    rows=ROWS,
    cuts=st.lists(st.integers(0, 60), max_size=4),
    rounds=st.sampled_from([0, 1, 32]),
)
def test_it_is_the_rule_however_the_rows_are_cut_into_blocks(rule, rows, cuts, rounds):
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    blocks = [
        ([name for name, _ in part], [tick for _, tick in part])
        for part in (rows[start:end] for start, end in pairwise(edges))
    ]
    expected = accepted_one_by_one(rule, [name for name, _ in rows], [tick for _, tick in rows])
    with mock.patch.object(gates, "_ROUNDS", rounds):
        assert through(rule, blocks) == expected


@given(rule=RULES, rows=ROWS)
def test_nobody_is_over_the_bound(rule, rows):
    entered = through(rule, [([name for name, _ in rows], [tick for _, tick in rows])])
    for name in {name for name, _ in rows}:
        ticks = [tick for ok, (own, tick) in zip(entered, rows, strict=True) if ok and own == name]
        blocks = rule.block_of(np.array(ticks, np.int64)).tolist()
        assert name or not ticks
        for block in set(blocks):
            own = [tick for tick, its in zip(ticks, blocks, strict=True) if its == block]
            assert len(own) <= rule.most
            assert all(after >= before + rule.apart for before, after in pairwise(own))


@given(rule=RULES, rows=ROWS, gone=st.integers(0, 59))
def test_a_reading_less_changes_nobody_elses_acceptance(rule, rows, gone):
    entered = through(rule, [([name for name, _ in rows], [tick for _, tick in rows])])
    if gone >= len(rows):
        return
    rest = rows[:gone] + rows[gone + 1 :]
    without = through(rule, [([name for name, _ in rest], [tick for _, tick in rest])])
    without.insert(gone, False)
    person = rows[gone][0]
    others = [index for index, (name, _) in enumerate(rows) if name != person]
    assert [entered[index] for index in others] == [without[index] for index in others]


@given(rule=RULES, rows=ROWS, gone=st.integers(0, 6))
def test_a_block_less_of_a_person_changes_no_other_block(rule, rows, gone):
    """Also where observations of a later block come first, and are held."""
    rows = [(b"ann" if name == b"bob" else name, tick) for name, tick in rows]
    entered = through(rule, [([name for name, _ in rows], [tick for _, tick in rows])])
    blocks = rule.block_of(np.array([tick for _, tick in rows], np.int64)).tolist()
    kept = [
        index for index, (name, _) in enumerate(rows) if name != b"ann" or blocks[index] != gone
    ]
    rest = [rows[index] for index in kept]
    without = through(rule, [([name for name, _ in rest], [tick for _, tick in rest])])
    assert [entered[index] for index in kept] == without


def test_many_observations_of_few_persons_are_decided_one_by_one_in_the_end():
    rule = GateRule(most=1000, apart=2, within=400)
    ticks = [*range(1, 400), 5, 399, *range(401, 500)]
    ids = [b"one"] * len(ticks)
    assert through(rule, [(ids, ticks)]) == accepted_one_by_one(rule, ids, ticks)


def test_persons_who_share_half_a_digest_are_two():
    gate = Gate(GateRule(most=1), KEY)
    persons = np.array([[7, 1], [7, 2], [7, 1], [7, 2], [0, 3], [3, 0]], np.uint64)
    enters, entries = gate.decide(persons, np.array([1, 1, 2, 2, 1, 1]))
    assert enters.tolist() == [True, True, False, False, True, True]
    gate.take_over(entries)
    assert len(gate) == 4
    assert not gate.decide(persons, np.full(6, 9))[0].any()


def test_it_grows_and_keeps_everybody():
    gate = Gate(GateRule(most=2), KEY)
    ids = [b"%d" % number for number in range(5000)]
    for start in range(0, 5000, 617):
        part = ids[start : start + 617]
        assert all(through(gate.rule, [(part, [1] * len(part))], gate=gate))
    assert len(gate) == len(gate.entries()) == 5000
    assert all(through(gate.rule, [(ids, [2] * 5000)], gate=gate))
    assert not any(through(gate.rule, [(ids, [3] * 5000)], gate=gate))
    again = Gate(gate.rule, KEY)
    again.take_over(gate.entries())
    assert len(again) == 5000
    assert not any(through(gate.rule, [(ids, [3] * 5000)], gate=again))


def test_deciding_changes_nothing_until_it_is_taken_over():
    gate = Gate(GateRule(most=1), KEY)
    persons = gate.pseudonyms([b"ann"])
    for _ in range(2):
        enters, _entries = gate.decide(persons, np.array([1]))
        assert enters.all()
    assert len(gate) == 0


def test_it_forgets_with_whole_blocks_only_and_that_changes_nothing():
    rule = GateRule(most=1, within=10)
    for closed, kept in ((9, 3), (10, 2), (19, 2), (20, 0)):
        gate = Gate(rule, KEY)
        through(rule, [([b"ann", b"bob", b"eve"], [10, 11, 20])], gate=gate)
        gate.take_over(None, closed)
        assert len(gate) == kept
        if closed >= 10:  # only ticks that are open come
            assert through(rule, [([b"ann", b"bob", b"eve"], [20, 20, 21])], gate=gate) == (
                [True, closed >= 20, True]
            )
    unending = Gate(GateRule(most=1), KEY)
    through(unending.rule, [([b"ann"], [1])], gate=unending)
    unending.take_over(None, 10**9)
    assert len(unending) == 1


@given(rule=RULES, rows=ROWS)
def test_forgetting_changes_no_decision(rule, rows):
    rows = sorted(rows, key=lambda row: row[1])
    ids, ticks = [name for name, _ in rows], [tick for _, tick in rows]
    gate, entered = Gate(rule, KEY), []
    for name, tick in rows:
        gate.take_over(None, tick - 1)
        entered += through(rule, [([name], [tick])], gate=gate)
    assert entered == accepted_one_by_one(rule, ids, ticks)


def test_an_empty_block_and_one_without_ids():
    gate = Gate(GateRule(most=1), KEY)
    for ids in ([], [b"", b" "]):
        enters, entries = gate.decide(gate.pseudonyms(ids), np.ones(len(ids), np.int64))
        assert not enters.any()
        assert len(entries) == 0
        gate.take_over(entries)


def test_an_entry_has_a_fixed_size():
    assert ENTRY.itemsize == 28


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw_id", "text"),
    [
        ("h17", b"h17"),
        (" h17\r", b"h17"),
        (17, b"17"),
        (np.int32(17), b"17"),
        (17.0, b"17"),
        (np.float64(17.0), b"17"),
        (-3, b"-3"),
        (b"17", b"17"),
        (np.str_("17"), b"17"),
        ("héé", "héé".encode()),
        ("\udc80", b"\xed\xb2\x80"),
        (uuid.UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
        (None, b""),
        ("", b""),
        ("  ", b""),
        (float("nan"), b""),
        (float("inf"), b""),
        (1.5, b""),
        (True, b""),
        (object(), b""),
        ([1], b""),
    ],
)
def test_the_text_of_an_id(raw_id, text):
    assert id_text(raw_id) == text


def test_ids_of_containers_of_all_kinds():
    assert as_ids("h1", 2) == [b"h1", b"h1"]
    assert as_ids(7, 1) == as_ids(np.int64(7), 1) == [b"7"]
    expected = [b"1", b"2"]
    for ids in ([1, 2], (1, "2"), np.array([1, 2]), np.array(["1", "2"]), iter([1, b"2"])):
        assert as_ids(ids, 2) == expected
    assert as_ids(np.array([1.0, np.nan]), 2) == [b"1", b""]


def test_ids_of_data_frames():
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    assert as_ids(pandas.Series([1, 2]), 2) == [b"1", b"2"]
    assert as_ids(pandas.Series([1, None]), 2) == [b"1", b""]
    assert as_ids(pandas.Series([1, None], dtype="Int64"), 2) == [b"1", b""]
    assert as_ids(pandas.Series(["a", None]), 2) == [b"a", b""]
    assert as_ids(arrow.array(["a", None]), 2) == [b"a", b""]
    assert as_ids(arrow.array([1, 2]), 2) == [b"1", b"2"]


@pytest.mark.parametrize("person", [{"a"}, {"a": 1}, np.zeros((2, 2)), ["a"], np.array(["a"])])
def test_what_cannot_be_one_id_for_each_value_is_refused(person):
    with pytest.raises(ParameterError, match=r"^person: expected one id"):
        as_ids(person, 2)


def test_digests_are_keyed_and_the_same_for_the_same_text():
    one, other = Pseudonyms(KEY), Pseudonyms(bytes(32))
    digests = one([b"1", b" 1", b"2", b"", b"1"])
    assert digests.dtype == np.uint64
    assert digests.shape == (5, 2)
    assert (digests[0] == digests[1]).all()
    assert (digests[0] == digests[4]).all()
    assert not (digests[0] == digests[2]).any()
    assert not digests[3].any()
    assert not (digests[0] == other([b"1"])[0]).any()
    assert one([]).shape == (0, 2)
    assert "hidden" in repr(one)


def test_nothing_shows_who_is_in_it():
    gate = Gate(GateRule(most=1), KEY)
    through(gate.rule, [([b"ann"], [1])], gate=gate)
    assert repr(gate) == "Gate(GateRule(most=1, apart=1, within=None))"
    with pytest.raises(TypeError):
        gate.pseudonyms.__reduce__()


@pytest.mark.parametrize(
    "raw_id",
    [10**5000, -(10**4300), 2.0**1023, np.timedelta64("NaT"), np.datetime64("NaT"), None, object()],
    ids=lambda raw_id: type(raw_id).__name__,
)
def test_no_id_raises(raw_id):
    """Whatever is passed as an id, alone or among others."""
    text = id_text(raw_id)
    assert list(as_ids(raw_id, 2)) == [text, text]
    assert list(as_ids([raw_id, "a"], 2)) == [text, b"a"]


@pytest.mark.parametrize(
    "given", [bytearray(b"ab"), memoryview(b"ab"), {"a", "b"}, {"a": 1, "b": 2}]
)
def test_containers_that_are_no_sequence_of_ids_are_refused(given):
    with pytest.raises(ParameterError, match="person"):
        as_ids(given, 2)
