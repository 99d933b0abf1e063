"""The gate of a durable state: as private, durable and whole as the streams that it belongs to."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from hashlib import blake2b, sha256

import numpy as np
import pytest

import rillet
from gather.test_gate import accepted_one_by_one
from rillet import Person, Plan
from rillet.errors import OutputError, ParameterError, StateError
from rillet.gather.gate import GateRule
from rillet.state import folder as folders
from rillet.state import store as stores
from rillet.state.store import SqliteStore

#: So much ε that what is in a tick can be read off its release.
EXACT = {
    "epsilon": 1e9,
    "delta": 2.0**-20,
    "upper": 50.0,
    "statistic": rillet.Count(),
    "threshold": rillet.FixedThreshold(),
    "strategy": rillet.BinaryTree(law="gaussian"),
    "every": "1h",
    "start": 0,
    "length": "200h",
}
HOUR = 3600


def plan_of(unit=None, **options):
    return Plan(**{**EXACT, "unit": unit or Person(most=3, apart="5h"), **options})


def rows_of(count, seed, persons=12):
    """Ids, hours in ascending order, values."""
    random = np.random.default_rng(seed)
    ids = [f"person-{number}" for number in random.integers(0, persons, count)]
    return ids, np.sort(random.integers(0, 200, count)), random.uniform(0, 50, count)


def entered(releases):
    """How many observations entered up to each tick."""
    return np.rint(releases.count).astype(int).tolist()


def expected(rule, ids, hours, length=200):
    accepted = accepted_one_by_one(rule, [one.encode() for one in ids], (hours + 1).tolist())
    return np.cumsum(np.bincount(hours[accepted], minlength=length)).tolist()


def absorb(plan, ids, hours, values, folder=None, parts=7, **options):
    """Everything in parts, with the state closed and opened again between them."""
    counts = []
    streams = plan.open_many() if folder is None else plan.open_folder(folder, **options)
    for part in np.array_split(np.arange(len(ids)), parts):
        until = plan.clock.start / 1e6 + HOUR * int(hours[part[0]])
        counts += entered(streams.advance(until=until))
        streams.update_many(
            values[part], at=hours[part] * HOUR + 1.0, person=[ids[row] for row in part]
        )
        if folder is not None:
            streams.close()
            streams = plan.open_folder(folder)
    counts += entered(streams.advance(until=200 * HOUR))
    streams.close()
    return counts


@pytest.fixture
def state(tmp_path):
    """A state with persons in several rows of the gate, and what came after them."""
    plan, (ids, hours, values) = plan_of(), rows_of(600, 1)
    half = 300
    with plan.open_folder(tmp_path / "live") as streams:
        for part in np.array_split(np.arange(half), 4):
            streams.update_many(
                values[part], at=hours[part] * HOUR, person=[ids[row] for row in part]
            )
            streams.advance(until=int(hours[part[-1]]) * HOUR)
    return plan, tmp_path / "live"


def rows_in(path, query="SELECT number, sealed FROM gate ORDER BY number", *values):
    with contextlib.closing(sqlite3.connect(path / "state.db")) as connection:
        rows = connection.execute(query, values).fetchall()
        connection.commit()
    return rows


# --- what enters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("unit", "rule"),
    [
        (Person(most=3, apart="5h"), GateRule(3, 5)),
        (Person(most=2), GateRule(2)),
        (Person(most=2, apart="3h", within="40h"), GateRule(2, 3, 40)),
    ],
)
def test_what_enters_is_what_the_rule_says(tmp_path, durable, unit, rule):
    ids, hours, values = rows_of(400, 2)
    counts = absorb(plan_of(unit), ids, hours, values, tmp_path / "live" if durable else None)
    assert counts == expected(rule, ids, hours)
    assert counts[-1] < 400


def test_keys_share_one_quota(tmp_path):
    plan = plan_of(Person(most=1), keys=["north", "south"])
    with plan.open_folder(tmp_path / "live") as streams:
        streams.update_many([1.0, 2.0], key=["north", "south"], at=[1, HOUR + 1], person="ann")
        streams.update(3.0, key="south", at=1, person="bob")
        streams.advance(until=3 * HOUR)
        assert [round(streams.latest(key).count) for key in ("north", "south")] == [1, 1]
    with pytest.raises(ParameterError, match="open_many"):
        plan.open(key="north")


def test_what_is_left_out_before_the_gate_uses_no_quota():
    streams = plan_of(Person(most=1), keys=["north"]).open_many()
    streams.advance(until=2 * HOUR)
    nan = float("nan")
    streams.update_many([nan, 1.0, 1.0], key="north", at=[2.5 * HOUR, 1, 900 * HOUR], person="ann")
    streams.absorb_ticks(
        np.ones(2), np.array([-1, 0]), np.array([3, 1]), 2,
        person_of=streams.store.gate.pseudonyms([b"ann", b"ann"]),
    )  # fmt: skip
    assert len(streams.store.gate) == 1  # late by default: the one of hour 1 entered tick 3
    streams = plan_of(Person(most=1), late="drop").open_many()
    streams.advance(until=2 * HOUR)
    streams.update_many([nan, 1.0, 1.0], at=[2.5 * HOUR, 1, 900 * HOUR], person="ann")
    assert len(streams.store.gate) == 0
    streams.update(1.0, at=2.5 * HOUR, person="ann")
    assert round(streams.advance(until=3 * HOUR)[-1].count) == 1


def test_a_missing_value_that_something_stands_in_for_uses_quota():
    streams = plan_of(Person(most=1), missing=7.0).open_many()
    streams.update(float("nan"), at=1, person="ann")
    assert len(streams.store.gate) == 1


def test_what_is_held_is_counted_when_it_arrives():
    stream = plan_of(Person(most=1)).open()
    stream.update(1.0, at=50 * HOUR, person="ann")
    stream.update(1.0, at=1, person="ann")
    counts = entered(stream.advance(until=100 * HOUR))
    assert counts[49] == 0
    assert counts[50] == counts[-1] == 1


def test_ids_of_several_kinds_are_one_person():
    stream = plan_of(Person(most=1)).open()
    stream.update_many([1.0] * 5, at=1, person=[7, "7", b" 7", 7.0, np.int64(7)])
    stream.update_many([1.0] * 4, at=1, person=[None, "", float("nan"), object()])
    assert entered(stream.advance(until=HOUR)) == [1]


def test_a_person_is_given_exactly_where_one_is_protected():
    protected, plain = plan_of().open(), Plan(**EXACT).open()
    by_count = Plan(epsilon=1.0, upper=5.0, length=10).open()
    for stream in (protected, protected._streams):
        for call in (
            lambda stream=stream: stream.update(1.0, at=1),
            lambda stream=stream: stream.update_many([1.0], at=1),
        ):
            with pytest.raises(ParameterError, match=r"^person: expected whose each"):
                call()
    for stream in (plain, by_count):
        for call, value in ((stream.update, 1.0), (stream.update_many, [1.0])):
            with pytest.raises(ParameterError, match=r"^person: expected none.*unit=Person") as e:
                call(value, person="planted-name")
            assert "planted" not in str(e.value)
    with pytest.raises(ParameterError, match="person: expected one id for each value, 2"):
        protected.update_many([1.0, 2.0], at=1, person=["a"])
    assert protected.t == 0


def test_there_are_no_snapshots_of_it():
    for secret in (None, rillet.Secret.for_tests(1)):
        with pytest.raises(StateError, match="kept in a folder"):
            plan_of().open(secret=secret).snapshot()


# --- on disk -------------------------------------------------------------------------------------


def test_nothing_on_disk_tells_who_is_in_it(state):
    _, live = state
    content = b"".join(path.read_bytes() for path in live.iterdir())
    assert len(rows_in(live)) >= 3
    for number in range(12):
        raw_id = f"person-{number}".encode()
        for form in (
            raw_id,
            sha256(raw_id).digest(),
            sha256(raw_id).hexdigest().encode(),
            blake2b(raw_id, digest_size=16).digest(),
            blake2b(raw_id, digest_size=16, person=b"rillet gate").digest(),
        ):
            assert form not in content


def test_it_goes_on_under_another_key_and_from_a_backup(state, tmp_path):
    plan, live = state
    before = {tuple(row.tolist()) for row in opened(plan, live)}
    folders.rotate_key(live)
    assert {tuple(row.tolist()) for row in opened(plan, live)} == before
    folders.back_up(live, tmp_path / "backup")
    key = tmp_path / "key"
    shutil.copy(live / "key", key)
    folders.restore(tmp_path / "backup", tmp_path / "again")
    again = opened(plan, tmp_path / "again", restored=True, key_file=key)
    assert {tuple(row.tolist()) for row in again} == before


def opened(plan, live, **options):
    with plan.open_folder(live, **options) as streams:
        return streams.store.gate.entries()


def test_pseudonyms_have_a_key_of_their_own(state, tmp_path):
    plan, live = state
    with plan.open_folder(live) as one, plan.open_folder(tmp_path / "other") as other:
        first, second = one.store.gate, other.store.gate
        assert first.key != second.key
        assert not (first.pseudonyms([b"a"]) == second.pseudonyms([b"a"])).any()
    master = rillet.Secret.for_tests(5)
    assert plan._new_gate(master, "").key == plan._new_gate(master, "").key
    assert plan._new_gate(master, "").key != plan._new_gate(master, "again").key
    assert master.to_bytes().find(plan._new_gate(master, "").key.hex().encode()) == -1


def test_it_is_written_anew_before_it_takes_twice_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_GATE_SLACK", 0)
    plan = plan_of(Person(most=100))
    with plan.open_folder(tmp_path / "live") as streams:
        sizes = []
        for hour in range(60):
            streams.update_many(np.ones(70), at=hour * HOUR, person=list(range(70)))
            streams.advance(until=(hour + 1) * HOUR)
            sizes.append(sum(streams.store._gate_rows.values()))
        # 70 persons fill a row of 128.
        assert max(sizes) <= 2 * 128 * 28
        kept = {tuple(row.tolist()) for row in streams.store.gate.entries()}
    assert {tuple(row.tolist()) for row in opened(plan, tmp_path / "live")} == kept
    assert {used for *_, used in kept} == {60}


def test_persons_go_from_the_disk_with_their_block(tmp_path):
    plan = plan_of(Person(most=1, within="10h"))
    with plan.open_folder(tmp_path / "live") as streams:
        streams.update_many(np.ones(900), at=1, person=list(range(900)))
        early = [(0, b"early")]
        streams.update_many([1.0], at=15 * HOUR, person=[b"early"])
        size = streams.store.gate_bytes
        streams.advance(until=9 * HOUR)
        assert streams.store.gate_bytes == size
        assert len(streams.store.gate) == 901
        streams.advance(until=10 * HOUR)
        assert streams.store.gate_bytes < size / 5
        assert len(streams.store.gate) == len(early)
    assert len(opened(plan, tmp_path / "live")) == 1
    with plan.open_folder(tmp_path / "live") as streams:
        streams.update_many(np.ones(2), at=11 * HOUR, person=[1, b"early"])
        assert entered(streams.advance(until=16 * HOUR))[-1] == 902


def test_sizes_are_powers_of_two(tmp_path):
    plan = plan_of(Person(most=1))
    lengths = []
    for count in (1, 2, 60, 64, 65, 128):
        with plan.open_folder(tmp_path / str(count)) as streams:
            streams.update_many(np.ones(count), at=1, person=list(range(count)))
        lengths.append([len(sealed) for _, sealed in rows_in(tmp_path / str(count))][1:])
    assert lengths[0] == lengths[1] == lengths[2] == lengths[3] != lengths[4] == lengths[5]


def test_a_disk_that_is_full_lets_nobody_in(state, monkeypatch):
    plan, live = state
    with plan.open_folder(live) as streams:
        before = len(streams.store.gate)

        def fail(*_):
            raise OutputError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "_put", fail)
            with pytest.raises(OutputError):
                streams.update(1.0, at=199 * HOUR, person="new")
        assert len(streams.store.gate) == before
        streams.update(1.0, at=199 * HOUR, person="new")
        assert len(streams.store.gate) == before + 1


# --- damage --------------------------------------------------------------------------------------


def lose_one(live):
    rows_in(live, "DELETE FROM gate WHERE number = (SELECT max(number) FROM gate)")


def lose_all(live):
    rows_in(live, "DELETE FROM gate WHERE number > 0")


def lose_the_key(live):
    rows_in(live, "DELETE FROM gate WHERE number = 0")


def truncate(live):
    rows_in(live, "UPDATE gate SET sealed = substr(sealed, 1, length(sealed) - 1) WHERE number = 2")


def turn_a_bit(live):
    ((number, sealed),) = rows_in(live)[2:3]
    changed = bytes([*sealed[:-5], sealed[-5] ^ 1, *sealed[-4:]])
    rows_in(live, "UPDATE gate SET sealed = ? WHERE number = ?", changed, number)


def swap(live):
    (one, other) = (sealed for _, sealed in rows_in(live)[1:3])
    rows_in(live, "UPDATE gate SET sealed = ? WHERE number = 1", other)
    rows_in(live, "UPDATE gate SET sealed = ? WHERE number = 2", one)


def repeat(live):
    ((_, sealed),) = rows_in(live)[1:2]
    rows_in(live, "INSERT INTO gate SELECT max(number) + 1, ? FROM gate", sealed)


def empty(live):
    rows_in(live, "UPDATE gate SET sealed = x'' WHERE number = 1")


@pytest.mark.parametrize(
    "damage", [lose_one, lose_all, lose_the_key, truncate, turn_a_bit, swap, repeat, empty]
)
def test_a_gate_that_is_not_whole_is_refused(state, damage):
    plan, live = state
    opened(plan, live)
    damage(live)
    with pytest.raises(StateError, match=r"damaged|put back"):
        plan.open_folder(live)


def test_rows_that_were_replaced_are_refused(state, monkeypatch):
    plan, live = state
    older = rows_in(live)[1:]
    monkeypatch.setattr(stores, "_GATE_SLACK", -(2**20))
    with plan.open_folder(live) as streams:
        streams.update(1.0, at=150 * HOUR, person="somebody else")
    newer = rows_in(live)[1:]
    assert not {number for number, _ in older} & {number for number, _ in newer}
    opened(plan, live)
    for number, sealed in older:
        rows_in(live, "INSERT INTO gate VALUES (?, ?)", number, sealed)
    with pytest.raises(StateError, match="put back"):
        plan.open_folder(live)
    rows_in(live, "DELETE FROM gate WHERE number > ?", older[-1][0])
    with pytest.raises(StateError, match="put back"):
        plan.open_folder(live)


def test_a_state_without_persons_has_no_gate(tmp_path):
    plan = Plan(**EXACT)
    with plan.open_folder(tmp_path / "live") as streams:
        streams.update(1.0, at=1)
        assert streams.store.gate is None
        assert streams.store.gate_bytes == 0
    assert rows_in(tmp_path / "live") == []
    with pytest.raises(StateError, match="another plan"):
        plan_of().open_folder(tmp_path / "live")
