"""Many keys under one plan: each is the stream that it would be alone, whatever comes between."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import rillet.streams
from helpers.records import unstamped
from helpers.streams import DELTA, SECRET, awkward_values, recorded, small_chunks
from rillet import BinaryTree, Mean, Plan, Sum
from rillet.errors import BudgetExceeded, NotReady, ParameterError, StateError, StreamEnded
from rillet.privacy import Cost, Guarantee
from rillet.release import NUMBERS, Releases
from rillet.sink import make_sink
from rillet.state.base import Absorbed
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.threshold import Finding, FixedThreshold, Range, SmoothQuantile, TailHistogram

KEYS = (("north", 1), ("south", 3), ("south", "north"))
COUNT = 260


def keyed(**more) -> Plan:
    fields = {"epsilon": 1.0, "upper": 100.0, "length": 100, "keys": KEYS, **more}
    return Plan(**fields)


PLANS = {
    "tree": lambda: keyed(lag=0, threshold=FixedThreshold(), strategy=BinaryTree()),
    "tree, every 7": lambda: keyed(lag=0, threshold=FixedThreshold(), every=7),
    "signed digits, learned": lambda: keyed(lag=20),
    "signed digits, learned, every 4": lambda: keyed(lag=20, every=4),
    "toeplitz": lambda: keyed(lag=15, delta=DELTA),
    "backfilled": lambda: keyed(
        lag=21, every=5, delta=DELTA, backfill=True, threshold=SmoothQuantile(), missing="none"
    ),
    "backfilled, may be missing": lambda: keyed(lag=21, every=5, delta=DELTA, backfill=True),
    "no end known": lambda: keyed(lag=20, length=None),
}
SHARED = {
    "tail": lambda: keyed(lag=60, shared_threshold=True),
    "tail, tree": lambda: keyed(lag=60, shared_threshold=True, strategy=BinaryTree()),
    "smooth": lambda: keyed(
        lag=60,
        delta=DELTA,
        shared_threshold=True,
        threshold=SmoothQuantile(),
        missing="none",
        strategy=SignedDigitTree(),
        every=3,
    ),
    "toeplitz": lambda: keyed(lag=60, delta=DELTA, shared_threshold=True),
}


def data(count: int = COUNT, seed: int = 4):
    random = np.random.default_rng(seed)
    return random.integers(-1, len(KEYS), count), awkward_values(count, seed)


def columns(table) -> np.ndarray:
    names = ("t", *NUMBERS)
    return np.array([np.asarray(getattr(table, name), np.float64) for name in names])


def fed(plan: Plan, key_of, values, cuts=()) -> tuple[rillet.Streams, Releases]:
    streams = plan.open_many(secret=SECRET)
    edges = sorted({0, len(values), *cuts})
    tables = [streams.absorb(values[a:b], key_of[a:b]) for a, b in pairwise(edges)]
    return streams, Releases.join(tables)


CUTS = st.sets(st.integers(0, COUNT), max_size=12)


# --- The same as separate streams ----------------------------------------------------------------


@lru_cache
def alone(name: str) -> tuple[Plan, dict[tuple[object, ...], rillet.Stream], dict]:
    """Each key's own stream, and what it releases."""
    plan, streams, released = PLANS[name](), {}, {}
    key_of, values = data()
    for place, key in enumerate(KEYS):
        stream = streams[key] = plan.open(secret=SECRET, key=key)
        released[key] = columns(stream.update_many(values[key_of == place]))
    return plan, streams, released


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(cuts=CUTS)
@example(cuts=set())
@example(cuts=set(range(COUNT)))
def test_equals_one_stream_for_each_key(name, cuts):
    with small_chunks(ratchet=16):
        plan, separate, released = alone(name)
        key_of, values = data()
        streams, table = fed(plan, key_of, values, cuts)
        for key, stream in separate.items():
            own = columns(table)[:, table.key_of == table.keys.index(key)]
            assert np.array_equal(own, released[key], equal_nan=True)
            assert streams.latest(key) == stream.latest()
            assert streams.t(key) == stream.t
            assert str(streams.charges(key)) == str(stream.charges)
        assert streams.observations == int((key_of >= 0).sum())


@lru_cache
def whole(name: str) -> tuple[Plan, bytes]:
    plan = SHARED[name.removeprefix("shared ")]() if name[:6] == "shared" else PLANS[name]()
    return plan, unstamped(fed(plan, *data())[1]).to_bytes()


@pytest.mark.parametrize("name", [*PLANS, *(f"shared {name}" for name in SHARED)])
@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(cuts=CUTS)
def test_table_does_not_depend_on_cuts(name, cuts):
    with small_chunks(ratchet=16):
        plan, expected = whole(name)
        _, parts = fed(plan, *data(), cuts)
        assert unstamped(parts).to_bytes() == expected


def test_one_at_a_time():
    plan = PLANS["signed digits, learned"]()
    key_of, values = data()
    many, table = fed(plan, key_of, values)
    one = plan.open_many(secret=SECRET)
    latest = [
        release
        for place, value in zip(key_of, values, strict=True)
        if place >= 0 and (release := one.update(value, key=KEYS[place])) is not None
    ]
    assert latest == list(table)
    assert one.rollup() == many.rollup()


def test_order_is_that_of_the_observations_that_completed_releases():
    plan = PLANS["tree"]()
    key_of, values = data()
    _, table = fed(plan, key_of, values)
    declared = key_of[key_of >= 0]
    assert [table.keys[place] for place in table.key_of] == [KEYS[place] for place in declared]


# --- Undeclared keys, lengths, secrets -----------------------------------------------------------


@pytest.mark.parametrize("name", ["tree", "signed digits, learned", "shared"])
def test_undeclared_keys_change_nothing(name):
    plan = SHARED["tail"]() if name == "shared" else PLANS[name]()
    key_of, values = data()
    declared = key_of >= 0
    streams, table = fed(plan, key_of[declared], values[declared])
    others = np.insert(key_of, [0, 5, 5, 100], -1)
    noisy = np.insert(values, [0, 5, 5, 100], [1e9, np.nan, 3.0, -1.0])
    more, same = fed(plan, others, noisy)
    assert unstamped(same).to_bytes() == unstamped(table).to_bytes()
    assert repr(more) == repr(streams)
    assert more.observations == streams.observations
    # Typed in by a program it is a mistake: also parts of declared ones, or of another type.
    fresh = plan.open_many(secret=SECRET)
    for key in (("nobody",), (), ("north", "1"), ("north",), (1, "north"), ("north", 1, "")):
        with pytest.raises(ParameterError, match="one of the declared keys"):
            fresh.update(1.0, key=key)
        with pytest.raises(ParameterError, match="one of the declared keys"):
            fresh.update_many([1.0, 2.0], key=[KEYS[0], key])
    assert fresh.observations == 0
    with pytest.raises(NotReady):
        fresh.rollup()


def test_asking_for_an_undeclared_key_is_an_error():
    streams = PLANS["tree"]().open_many()
    for ask in (streams.latest, streams.t, streams.charges, streams.stream):
        with pytest.raises(ParameterError, match="one of the declared keys"):
            ask(("nobody",))
    with pytest.raises(NotReady):
        streams.latest(KEYS[0])
    with pytest.raises(ParameterError, match="one key per value, 2 in all"):
        streams.update_many([1.0, 2.0], key=[KEYS[0]])


def test_a_number_and_its_text_are_not_both_declared_and_the_error_says_which_is():
    """In a source they are the same; what is typed must be what was declared."""
    plan = {"epsilon": 1.0, "upper": 50.0, "length": 10}
    with pytest.raises(ParameterError, match="keys that differ as text, found \"1 and '1'\""):
        Plan.baseline(**plan, keys=[1, 2, "1"])
    streams = Plan.baseline(**plan, keys=["7", 8]).open_many()
    table = streams.update_many([1.0, 2.0, 3.0], key=np.array(["7", "7", "7"]))
    assert table.keys == (("7",),)
    assert streams.update_many([4.0], key=np.array([8])).keys == ((8,),)
    for wrong, hint in ((7, "it was declared as '7'"), ("8", "it was declared as 8")):
        with pytest.raises(ParameterError, match=rf"declared keys \('7', 8\), found .*{hint}"):
            streams.update(1.0, key=wrong)
    for wrong in ("07", 7.5, None, ""):
        with pytest.raises(ParameterError, match=r"key: expected one of the declared keys \('7'"):
            streams.update(1.0, key=wrong)
    with pytest.raises(ParameterError, match="for a key of each value pass a list"):
        streams.update_many([1.0, 2.0], key=("7", 8))
    assert (streams.t("7"), streams.t(8)) == (3, 1)


def test_each_key_has_its_own_length():
    plan = keyed(lag=0, threshold=FixedThreshold(), length=10)
    streams = plan.open_many(secret=SECRET)
    table = streams.update_many(np.ones(14), key=[KEYS[0]] * 10 + [KEYS[1]] * 4)
    assert len(table) == 14
    # Beyond it nothing of a block is absorbed, whatever other keys it has.
    for block in ([KEYS[0]], [KEYS[1], KEYS[0]], [KEYS[1]] * 7, [KEYS[2], *[KEYS[1]] * 7]):
        with pytest.raises(StreamEnded, match="nothing of the block"):
            streams.update_many(np.ones(len(block)), key=block)
    assert [streams.t(key) for key in KEYS] == [10, 4, 0]
    assert streams.update(5.0, key=KEYS[1]).t == 5
    assert streams.observations == 15


def test_a_key_that_fills_the_pool_beyond_its_length_is_refused():
    streams = keyed(lag=60, shared_threshold=True, length=50).open_many(secret=SECRET)
    streams.update_many(np.ones(50), key=KEYS[0])
    with pytest.raises(StreamEnded, match="nothing of the block"):
        streams.update_many(np.ones(1), key=KEYS[0])
    assert streams.observations == 50
    assert len(streams.update_many(np.ones(10), key=KEYS[1])) == 60


def test_keys_have_secrets_and_noise_of_their_own():
    plan = PLANS["tree"]()
    streams = plan.open_many(secret=SECRET)
    secrets = list(streams._store._secrets.values())
    assert len({secret.scope for secret in secrets}) == len(KEYS)
    assert len({secret._material for secret in secrets}) == len(KEYS)
    count = 60
    table = streams.absorb(np.full(3 * count, 5.0), np.tile(np.arange(3), count))
    noise = np.array([table.sum[table.key_of == place] for place in range(3)])
    steps = np.diff(noise, axis=1)
    # The same data for each: what differs is noise, and it differs everywhere.
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not np.isin(steps[one], steps[other]).any()
        correlation = np.corrcoef(steps[one], steps[other])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(count)
    again = plan.open_many(secret=SECRET, run="another")
    other = again.absorb(np.full(3 * count, 5.0), np.tile(np.arange(3), count))
    assert not np.isin(other.sum, table.sum).any()


def test_each_draw_of_each_key_is_made_once():
    plan = PLANS["signed digits, learned"]()
    with recorded() as recording, pytest.MonkeyPatch.context() as patch:
        seen: set[tuple[object, ...]] = set()
        draw = rillet.noise.LatticeNoise.draw

        def once(self, start, count):
            for index in range(start, start + count):
                address = (self.secret._material, self.purpose, index)
                assert address not in seen
                seen.add(address)
            return draw(self, start, count)

        patch.setattr(rillet.noise.LatticeNoise, "draw", once)
        fed(plan, *data(), cuts=(3, 50, 51, 200))
    assert len(seen) > 300
    assert recording.draws


# --- Roll-ups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("statistic", ["mean", "sum"])
def test_rollup_adds_up_and_agrees_with_the_database(tmp_path, statistic):
    plan = keyed(lag=20, statistic={"mean": Mean(), "sum": Sum()}[statistic])
    key_of, values = data()
    streams, table = fed(plan, key_of, values)
    latest = [streams.latest(key) for key in KEYS]
    rollup = streams.rollup()
    assert rollup.t == sum(release.t for release in latest)
    assert rollup.at == max(release.at for release in latest)
    assert rollup.sum == sum(release.sum for release in latest)
    variance = sum(release.sum_noise_std**2 for release in latest)
    assert rollup.sum_noise_std == pytest.approx(variance**0.5, rel=1e-12)
    assert f"added up over {len(KEYS)} keys" in rollup.post_processing
    sink = make_sink({"kind": "sqlite", "path": str(tmp_path / "releases.db")})
    sink.open()
    for start in range(0, len(table), 50):
        sink.deliver(table[start : start + 50])
    sink.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "releases.db")) as connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute("SELECT * FROM rollup").fetchall()
        assert datetime.fromisoformat(row["at"]) == rollup.at
    assert row["keys"] == len(KEYS)
    for name in ("count", "sum", "sum_noise_std", "mean", "mean_noise_std"):
        assert row[name] == pytest.approx(getattr(rollup, name), rel=1e-12), name


# --- One threshold for all -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED)
def test_shared_threshold_is_learned_once_for_all(name):
    plan = SHARED[name]()
    key_of, values = data()
    late = 2
    early = key_of[:150] == late  # a key that comes after the range is known
    key_of[:150][early] = np.arange(early.sum()) % 2
    need = int(np.flatnonzero(np.cumsum(key_of >= 0) == 60)[0]) + 1
    streams = plan.open_many(secret=SECRET)
    assert len(streams.absorb(values[: need - 1], key_of[: need - 1])) == 0
    first = streams.absorb(values[need - 1 : need], key_of[need - 1 : need])
    # Every observation of the pool is released now.
    assert len(first) == sum(streams.t(key) // plan.every for key in KEYS)
    assert sum(streams.t(key) for key in KEYS) == 60 == streams.observations
    table = streams.absorb(values[need:], key_of[need:])
    limits = {(release.clip_lower, release.clip_upper) for release in (*first, *table)}
    assert len(limits) == 1
    ((lower, upper),) = limits
    assert plan.lower <= lower < upper <= plan.upper
    assert streams.t(KEYS[late]) > 0
    assert streams.latest(KEYS[late]).clip_upper == upper


@pytest.mark.parametrize("cuts", [(), (10,), (63, 64), tuple(range(COUNT)), (30, 200)], ids=len)
def test_shared_threshold_is_learned_from_the_first_observations_alone(monkeypatch, cuts):
    key_of, values = data()
    learned_from = []
    learn = rillet.streams._learn_shared

    def learn_and_note(layout, shared, raw, secret):
        learned_from.append(raw)
        return learn(layout, shared, raw, secret)

    monkeypatch.setattr(rillet.streams, "_learn_shared", learn_and_note)
    fed(SHARED["tail"](), key_of, values, cuts)
    (raw,) = learned_from
    assert np.array_equal(raw, values[key_of >= 0][:60], equal_nan=True)


def test_the_block_of_a_view_that_completes_a_shared_range_returns_what_it_completes():
    plan = Plan(
        epsilon=1.0, upper=100.0, length=500, lag=60, keys=["a", "b"], shared_threshold=True
    )
    pool = plan.layout.shared.observations
    streams = plan.open_many()
    assert len(streams.update_many(np.arange(10.0), key="b")) == 0
    releases = streams.stream("a").update_many(np.arange(float(pool)))
    assert [release.t for release in releases if release.key == ("b",)] == list(range(1, 11))
    assert [release.t for release in releases if release.key == ("a",)] == [*range(1, pool + 1)]
    assert {release.key for release in streams.stream("a").update_many([1.0])} == {("a",)}


def test_shared_plan_has_no_single_streams():
    with pytest.raises(ParameterError, match="open_many"):
        SHARED["tail"]().open(key=KEYS[0])


@pytest.mark.parametrize("name", SHARED)
def test_shared_charges_keeps_the_promise(name):
    """The look and the sum together, of an observation that pays for both, in exact arithmetic."""
    plan = SHARED[name]()
    layout = plan.layout
    shared, main = layout.shared.cost, layout.main.cost
    both = shared + main
    assert both.within(plan.guarantee)
    assert layout.worst_cost() == both
    # Nothing to give away: a thousandth less promised, and it is refused.
    less = Guarantee(plan.epsilon * 0.999, plan.delta * 0.999)
    assert not both.within(less)
    with pytest.raises(BudgetExceeded):
        dataclasses.replace(layout, guarantee=less).charges()
    if not plan.delta:
        assert shared.epsilon + main.epsilon <= Fraction(plan.epsilon)
        share = Fraction(str(plan.threshold_share))  # as it was written
        assert shared.epsilon == share * Fraction(plan.epsilon)
    streams, _ = fed(plan, *data())
    for key in KEYS:
        charges = streams.charges(key).totals()
        assert charges
        assert all(charge.cost.within(plan.guarantee) for charge in charges)
    assert Cost() != both


def test_replacing_one_observation_moves_its_key_and_the_shared_look_only():
    plan = SHARED["tail, tree"]()
    layout, learned = plan.layout, Range(0.0, 30.0)
    threshold = layout.shared.threshold
    assert isinstance(threshold, TailHistogram)
    assert isinstance(layout.main.strategy, BinaryTree)
    key_of, values = data()

    def looked_at(raw_values):
        counted = []
        count = TailHistogram.count

        def count_and_note(self, raw, bounds, centre):
            counted.append(count(self, raw, bounds, centre))
            return counted[-1]

        with recorded() as recording, pytest.MonkeyPatch.context() as patch:
            patch.setattr(TailHistogram, "count", count_and_note)
            # What is learned is public; held fixed, the sums are compared on one lattice.
            patch.setattr(TailHistogram, "judge", lambda *_: JUDGED)
            fed(plan, key_of, raw_values)
        (exact_counts,) = counted
        nodes, first = {}, 0
        for place in range(len(KEYS)):
            count = layout.leaf.width * int((key_of == place).sum())
            nodes[place] = np.array(recording.nodes["tree"][first : first + count])
            first += count
        assert first == len(recording.nodes["tree"])
        return exact_counts, nodes

    JUDGED = Finding(learned)
    counts, nodes = looked_at(values)
    most_look = most_nodes = 0
    for row in (0, 1, 10, 40, 70, 150, 259):
        for value in (0.0, 1e-9, 7.0, 100.0, np.inf, np.nan):
            changed = values.copy()
            changed[row] = value
            other_counts, other_nodes = looked_at(changed)
            moved = int(np.abs(other_counts - counts).sum())
            pooled = (key_of[:row] >= 0).sum() < 60 and key_of[row] >= 0
            assert moved <= (threshold.count_sensitivity("laplace") if pooled else 0)
            most_look = max(most_look, moved)
            for place in range(len(KEYS)):
                distance = int(np.abs(other_nodes[place] - nodes[place]).sum())
                if place != key_of[row]:
                    assert distance == 0
                steps = layout.segments[0].steps
                assert distance <= layout.main.sensitivity(steps)
                most_nodes = max(most_nodes, distance)
    assert most_look > 0
    assert most_nodes >= layout.segments[0].steps
    # What this sensitivity costs at the noise in use is what is charged, and no less.
    look = threshold.first_look(counts, 60, layout.shared.budget, SECRET)
    assert Fraction(threshold.count_sensitivity("laplace")) / Fraction(look.scale) <= Fraction(
        layout.shared.cost.epsilon
    )


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_what_sharing_costs_in_noise(share):
    """Every observation gives up the share, so all noise is larger by 1/(1 − share)."""
    strategy = SignedDigitTree()
    shared = keyed(
        lag=60, shared_threshold=True, threshold_share=share, strategy=strategy, length=1000
    )
    own = keyed(lag=0, threshold=FixedThreshold(), strategy=strategy, length=1000)
    for t in (1, 10, 333, 1000):
        ratio = shared.layout.unit_std_at(t) / own.layout.unit_std_at(t)
        assert ratio == pytest.approx(1 / (1 - share), rel=2e-3)


# --- On disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PLANS, *(f"shared {name}" for name in SHARED)])
def test_durable_streams_equal_those_in_memory(tmp_path, name):
    with small_chunks(ratchet=16):
        plan = SHARED[name.removeprefix("shared ")]() if name[:6] == "shared" else PLANS[name]()
        key_of, values = data()
        memory = plan.open_many(secret=SECRET, run="run")
        streams = plan.open_folder(tmp_path / "live", secret=SECRET, run="run")
        edges, batches = [0, 1, 40, 90, 91, 170, COUNT], 0
        for number, (start, end) in enumerate(pairwise(edges)):
            part = slice(start, end)
            expected = memory.absorb(values[part], key_of[part])
            found = streams.absorb(
                values[part], key_of[part], absorbed=Absorbed([start], [end], 1, f"{number}")
            )
            assert unstamped(found).to_bytes() == unstamped(expected).to_bytes()
            batches += len(found) > 0
            assert streams.observations == memory.observations
            if number % 2:
                streams.close()
                streams = plan.open_folder(tmp_path / "live", run="run")
                assert streams._store.progress.absorbed == Absorbed([start], [end], 1, f"{number}")
        for key in KEYS:
            assert streams.t(key) == memory.t(key)
            if streams.t(key) > plan.lag:
                assert streams.latest(key) == memory.latest(key)
        waiting = streams._store.undelivered()
        streams.close()
        assert [batch for batch, _ in waiting] == list(range(1, batches + 1))


def test_states_on_disk_serve_more_keys_than_memory_does(tmp_path, monkeypatch):
    monkeypatch.setattr("rillet.state.store.CACHED_STATES", 2)
    plan = Plan(epsilon=1.0, upper=100.0, length=50, lag=4, keys=range(9))
    random = np.random.default_rng(1)
    memory = plan.open_many(secret=SECRET)
    with plan.open_folder(tmp_path / "live", secret=SECRET) as streams:
        for _ in range(10):
            values, keys = random.exponential(5.0, 20), random.integers(-1, 9, 20)
            expected, found = memory.absorb(values, keys), streams.absorb(values, keys)
            assert unstamped(found).to_bytes() == unstamped(expected).to_bytes()
        assert len(streams._store._cached) <= 2


def test_sequence_numbers_make_redelivery_harmless(tmp_path):
    plan = PLANS["signed digits, learned"]()
    key_of, values = data(120)
    numbers = np.empty(120, np.int64)
    for place in range(-1, len(KEYS)):
        own = key_of == place
        numbers[own] = np.arange(own.sum())
    expected = plan.open_many(secret=SECRET)
    with plan.open_folder(tmp_path / "live", secret=SECRET) as streams:
        absorbed = 0
        for start, end in ((0, 30), (10, 50), (0, 60), (60, 120), (0, 120)):
            part, new = slice(start, end), slice(absorbed, end)
            found = streams.absorb(values[part], key_of[part], sequence=numbers[part])
            wanted = expected.absorb(values[new], key_of[new])
            assert unstamped(found).to_bytes() == unstamped(wanted).to_bytes()
            absorbed = end
        assert streams.observations == int((key_of >= 0).sum())


def test_a_stream_in_a_folder_gives_no_snapshot(tmp_path):
    """Two states of one stream would put the same noise on what comes after."""
    with PLANS["tree"]().open_folder(tmp_path / "live") as streams:
        stream = streams.stream(KEYS[0])
        stream.update(1.0)
        with pytest.raises(StateError, match="kept in a folder"):
            stream.snapshot()
