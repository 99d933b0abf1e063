"""A fleet on disk goes on as if it had never stopped, and what was not delivered comes again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import test_crowd as crowds
from tests.test_fleet import BUSY, STATISTICS, arrivals, busy, columns, make, run

import rillet
import rillet.layout
import rillet.plan.calibrate
from rillet import fleet
from rillet.errors import StateError
from rillet.state import fleets


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pages, which are written whole now and then."""
    monkeypatch.setattr(fleet, "PAGE", 4)
    monkeypatch.setattr(fleets, "PAGE", 4)
    monkeypatch.setattr(fleets, "_FEWEST_CHANGES", 2**12)


def _kill(streams: rillet.Streams) -> None:
    """What a process leaves behind that stops without a word."""
    store: Any = streams.store
    store._connection.close()
    store.lock.close()


def _blocks(data: Any, cuts: Any) -> list[tuple[Any, ...]]:
    raw_values, key_of, tick_of = data
    parts = [rows for rows in np.split(np.arange(len(raw_values)), np.sort(cuts)) if len(rows)]
    return [
        (raw_values[rows], key_of[rows], tick_of[rows], int(tick_of[rows[-1]]) - 1)
        for rows in parts
    ]


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("delta", [1e-6, 0.0], ids=["gaussian", "pure"])
def test_after_kills_and_restarts_as_without(tmp_path: Path, statistic: str, delta: float) -> None:
    shared = statistic != "count"
    plan = make(statistic=STATISTICS[statistic], delta=delta, shared_threshold=shared)
    _compare_with_kills(tmp_path, plan, arrivals(seed=8), bool(delta))


@pytest.mark.parametrize("statistic", ["mean", "window"])
def test_keys_that_learn_alone_after_kills_as_without(tmp_path: Path, statistic: str) -> None:
    plan = make(**BUSY, statistic=STATISTICS[statistic])
    streams = _compare_with_kills(tmp_path, plan, busy(), True)
    assert streams.store.fleet.common.own == [2, 5]


def test_pages_from_before_a_key_learned_alone_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Noise of this tree is drawn leaf by leaf: others have their pages written with each block.
    plan = make(**BUSY, strategy=rillet.BinaryTree())
    secret = rillet.Secret.for_tests(12)
    expected = run(plan.open_many(secret=secret), busy()).latest()
    streams = plan.open_folder(tmp_path / "state", secret=secret)
    raw_values, key_of, tick_of = busy()
    for first, last, size in ((1, 6, 0), (7, 58, 2**30), (59, 60, 2**30)):
        monkeypatch.setattr(fleets, "_FEWEST_CHANGES", size)
        monkeypatch.setattr(fleet.Fleet, "bytes_of_pages", size)
        rows = (tick_of >= first) & (tick_of <= last)
        streams.absorb_ticks(raw_values[rows], key_of[rows], tick_of[rows], last)
        _kill(streams)
        streams = plan.open_folder(tmp_path / "state")
    assert streams.store.fleet.common.own == [2, 5]
    assert [streams.latest(f"k{i}") for i in (2, 5, 0)] == [expected[f"k{i}",] for i in (2, 5, 0)]
    streams.close()


def _compare_with_kills(
    tmp_path: Path, plan: rillet.Plan, data: Any, gaussian: bool
) -> rillet.Streams:
    rng = np.random.default_rng(3)
    secret = rillet.Secret.for_tests(12)
    expected = run(plan.open_many(secret=secret), data)
    streams = plan.open_folder(tmp_path / "state", secret=secret)
    delivered: dict[int, Any] = {}
    blocks = _blocks(data, rng.integers(0, len(data[0]), 30))
    nothing = np.empty(0, np.int64)
    blocks.append((np.empty(0), nothing, nothing, 60))
    written_whole = 0
    for block in blocks:
        streams.absorb_ticks(*block)
        if rng.random() < 0.5:
            _kill(streams)
            streams = plan.open_folder(tmp_path / "state")
            assert streams.absorbed == block[-1]
        for batch, releases in streams.store.undelivered():
            if batch in delivered:
                assert columns(releases) == columns(delivered[batch])
            delivered[batch] = releases
        if rng.random() < 0.5:
            streams.store.acknowledge(streams.store.progress.batch, {"sink": None})
        written_whole += streams.store.has(("page", 0))
    assert written_whole or gaussian
    assert list(delivered) == list(range(1, len(delivered) + 1))
    assert columns(rillet.Releases.join(list(delivered.values()))) == columns(expected)
    assert streams.latest("k3") == expected.latest()["k3",]
    streams.close()
    return streams


def test_sequence_numbers_come_back(tmp_path: Path) -> None:
    plan = make(shared_threshold=True)
    streams = plan.open_folder(tmp_path / "state")
    values, keys, ticks = np.ones(3), np.array([0, 5, 0]), np.ones(3, np.int64)
    streams.absorb_ticks(values, keys, ticks, 0, sequence=np.array([4, 9, 6]))
    _kill(streams)
    streams = plan.open_folder(tmp_path / "state")
    assert streams.store.fleet.sequence[[0, 5, 1]].tolist() == [6, 9, -1]
    streams.close()


def test_a_failed_commit_is_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(shared_threshold=True)
    streams = plan.open_folder(tmp_path / "state")
    one = np.ones(1), np.zeros(1, np.int64), np.ones(1, np.int64)
    streams.absorb_ticks(*one, 0)

    def fails(*_: object, **__: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(streams.store, "_write", fails)
        with pytest.raises(OSError, match="no space"):
            streams.absorb_ticks(*one, 1)
    with pytest.raises(StateError, match="open the state again"):
        streams.absorb_ticks(*one, 1)
    streams.close()
    again = plan.open_folder(tmp_path / "state")
    assert again.absorbed == 0
    again.close()


def test_a_key_takes_less_than_a_kilobyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PAGE", 2**14)
    monkeypatch.setattr(fleets, "PAGE", 2**14)
    keys = [f"meter-{number}" for number in range(4096)]
    plan = make(keys=keys, length="365d", shared_threshold=True)
    streams = plan.open_folder(tmp_path / "state")
    everybody = np.arange(len(keys))
    rng = np.random.default_rng(0)
    largest = 0
    for tick in range(1, 40):
        values = rng.exponential(2.0, len(keys))
        streams.absorb_ticks(values, everybody, np.full(len(keys), tick), tick)
        streams.store.acknowledge(streams.store.progress.batch, {"sink": None})
        kept = streams.store._kept_fleet
        changes = sum(sum(sizes.values()) for sizes in kept._changes.values())
        page = len(fleets.encode_page(streams.store.fleet.pages[0], streams.store.fleet.sequence))
        assert changes <= streams.store.fleet.bytes_of_pages + 2**14
        largest = max(largest, page)
    assert largest < 1000 * len(keys)
    streams.close()


# --- by count ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", crowds.PLANS)
def test_by_count_after_kills_and_restarts_as_without(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rillet.layout, "MANY_KEYS", 4)
    monkeypatch.setattr(rillet.plan.calibrate, "MANY_KEYS", 4)
    monkeypatch.setattr(rillet.layout, "KEYED_RATCHET_EVERY", 16)
    plan, rng = crowds.make(name), np.random.default_rng(6)
    data = crowds.observations(3)
    alone = crowds.one_by_one(plan)
    streams = plan.open_folder(tmp_path / "state", secret=crowds.SECRET)
    assert streams.store.crowd is not None
    written_whole = 0
    for raw_values, key_of in crowds.blocks(data, np.sort(rng.integers(0, len(data[0]), 25))):
        expected = alone.absorb(raw_values, key_of)
        got = streams.absorb(raw_values, key_of)
        if rng.random() < 0.5:
            _kill(streams)
            streams = plan.open_folder(tmp_path / "state")
            if len(expected):
                ((_, got),) = streams.store.undelivered()
        assert columns(got) == columns(expected)
        streams.store.acknowledge(streams.store.progress.batch, {"sink": None})
        written_whole += streams.store.has(("page", 0))
    assert written_whole
    for key in plan.keys:
        assert streams.latest(key) == alone.latest(key)
        assert streams.t(key) == alone.t(key)
    streams.close()


def test_by_count_sequence_numbers_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rillet.layout, "MANY_KEYS", 4)
    monkeypatch.setattr(rillet.plan.calibrate, "MANY_KEYS", 4)
    plan = crowds.make("mean")
    streams = plan.open_folder(tmp_path / "state")
    numbers = np.array([4, 9, 6])
    streams.absorb(np.ones(3), np.array([0, 5, 0]), sequence=numbers)
    _kill(streams)
    streams = plan.open_folder(tmp_path / "state")
    assert streams.store.crowd.sequence[[0, 5, 1]].tolist() == [6, 9, -1]
    streams.absorb(np.ones(3), np.array([0, 5, 1]), sequence=numbers)
    assert [streams.t(key) for key in ("k0", "k5", "k1")] == [2, 1, 1]
    streams.close()


@pytest.mark.parametrize("by_clock", [True, False], ids=["by the clock", "by count"])
def test_after_an_interrupt_nothing_is_shown_and_nothing_counts_twice(
    by_clock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another value could be given in place of the one that was cut short, under the same noise."""
    monkeypatch.setattr(rillet.layout, "MANY_KEYS", 4)
    monkeypatch.setattr(rillet.plan.calibrate, "MANY_KEYS", 4)
    plan = make(threshold=rillet.FixedThreshold()) if by_clock else crowds.make("mean")
    streams = plan.open_many()
    one = np.ones(1), np.zeros(1, np.int64)
    absorb = (
        (lambda t: streams.absorb_ticks(*one, np.full(1, t), t))
        if by_clock
        else (lambda _: streams.absorb(*one))
    )
    absorb(1)
    assert streams.latest("k0").t == 1

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for module in ("rillet.fleet.read", "rillet.crowd.read"):
        monkeypatch.setattr(module, interrupted)
    with pytest.raises(KeyboardInterrupt):
        absorb(2)
    monkeypatch.undo()
    with pytest.raises(StateError, match="interrupted"):
        absorb(2)
    with pytest.raises(StateError, match="interrupted"):
        streams.latest("k0")
