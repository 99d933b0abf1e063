"""Groups of keys give what all keys give together, bit for bit, and their parts say nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

import rillet
from helpers.spark import joined, planned, saved, sorted_records
from rillet.errors import StateError
from rillet.release import Releases
from rillet.spark.group import (
    Group,
    Opened,
    Rows,
    _hash,
    by_group,
    check_of,
    labels_of,
)
from rillet.spark.shipped import Columns, Setup

SECRET = rillet.Secret.for_tests(7)
IDENTITY = "0123"
HOUR = 3600 * 10**6
BATCHES, EACH = 3, 12
MARKER = 7.1234567890123
COUNT: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "upper": 10.0, "length": BATCHES * EACH}
CLOCK: dict[str, Any] = {**COUNT, "every": "1h", "start": "2026-01-01T00:00Z", "length": "30h"}
FIXED = {"threshold": rillet.FixedThreshold()}
#: Options, keys, and keys in a group.
PLANS: dict[str, tuple[dict[str, Any], int, int]] = {
    "by count, together": ({**COUNT, **FIXED}, 300, 128),
    "by count, a window": ({**COUNT, **FIXED, "statistic": rillet.Sum(window=5)}, 257, 64),
    "by count, pure": ({**COUNT, **FIXED, "delta": 0.0, "every": 5}, 257, 256),
    "by count, each alone": ({**COUNT, "lag": 10}, 5, 2),
    "by count, no keys": ({**COUNT, "lag": 10}, 0, 4),
    "by the clock, together": ({**CLOCK, **FIXED}, 70, 32),
    "by the clock, pure": ({**CLOCK, **FIXED, "delta": 0.0}, 20, 8),
    "by the clock, bins": ({**CLOCK, **FIXED, "statistic": rillet.Histogram(bins=[2, 5])}, 9, 4),
    "by the clock, each alone": (CLOCK, 5, 2),
}


def plan_of(name: str) -> rillet.Plan:
    options, keys, _ = PLANS[name]
    return rillet.Plan(keys=[f"k{number}" for number in range(keys)], **options)


def opened(folder: Path, plan: rillet.Plan, size: int, secret: rillet.Secret = SECRET) -> Opened:
    path = folder / "secret"
    if not path.exists():
        saved(folder, secret)
    check = check_of(plan, SECRET, IDENTITY)
    columns = Columns("value", ("key",) * bool(plan.keys), "at", "sequence")
    return Setup(planned(folder, plan), columns, str(path), check, IDENTITY, size).open()


def batches(plan: rillet.Plan, seed: int = 1) -> list[tuple[Rows, int | None]]:
    """Rows in any order of arrival, and by the clock when their ticks are over."""
    rng = np.random.default_rng(seed)
    keys, clock = max(1, len(plan.keys)), plan.clock
    found: list[tuple[Rows, int | None]] = []
    for number in range(BATCHES):
        count = keys * EACH
        key_of = np.tile(np.arange(keys), EACH)
        sequence = np.repeat(np.arange(EACH), keys) + number * EACH
        raw_values = rng.exponential(2.0, count)
        raw_values[rng.random(count) < 0.03] = np.nan
        raw_values[key_of == 1] = MARKER
        until, raw_at = None, None
        if clock is not None:
            raw_at = clock.start + number * 10 * HOUR + rng.integers(0, 10 * HOUR, count)
            until = clock.start + (number + 1) * 10 * HOUR
        arrival = rng.permutation(count)
        rows = Rows(raw_values, key_of, sequence, raw_at).part(arrival)
        found.append((rows, until))
    return found


def absorbed(
    own: Opened,
    parts: dict[int, dict[str, bytes]],
    rows: Rows,
    until: Any,
    *,
    at_hand: bool = False,
) -> Any:
    """One batch, through groups that are read and written each time, or at hand."""
    sealed: dict[int, list[bytes]] = {}
    for half in (slice(0, 40), slice(40, None)):
        for group, content in by_group(own, rows.part(half), 0):
            assert np.float64(MARKER).tobytes() not in content
            sealed.setdefault(group, []).append(content)
    found = []
    for number in range(own.groups):
        if number not in sealed and until is None:
            continue
        kept = parts.setdefault(number, {})
        group = own.take(number, kept.get("progress"), kept.__getitem__) if at_hand else None
        group = group or Group(own, number, kept)
        found += list(group.absorb(sealed.get(number, []), until))
        for name, content in group.changed():
            if content is None:
                del kept[name]
            else:
                kept[name] = content
        own.keep(number, group)
    return [one for one in found if len(one)]


def in_one_process(plan: rillet.Plan) -> Releases:
    """The same batches through streams of all keys."""
    streams, found = plan.open_many(secret=SECRET), []
    for arrived, until in batches(plan):
        rows = arrived.part(np.argsort(arrived.sequence, kind="stable"))
        if plan.clock is None:
            found.append(streams.absorb(rows.raw_values, rows.key_of))
        else:
            ticks = plan.clock.tick_of(rows.raw_at)
            last = plan.clock.closed_by(until)
            found.append(streams.absorb_ticks(rows.raw_values, rows.key_of, ticks, last))
    return joined(found)


@pytest.mark.parametrize(
    ("name", "at_hand"),
    [
        *((name, False) for name in PLANS),
        ("by count, together", True),
        ("by the clock, pure", True),
    ],
)
def test_the_same_numbers_as_in_one_process(name: str, at_hand: bool, tmp_path: Path) -> None:
    plan, parts, found = plan_of(name), {}, []
    own = opened(tmp_path, plan, PLANS[name][2])
    for rows, until in batches(plan):
        found += absorbed(own, parts, rows, until, at_hand=at_hand)
    assert sorted_records(joined(found)) == sorted_records(in_one_process(plan))
    for content in (one for group in parts.values() for one in group.values()):
        assert np.float64(MARKER).tobytes() not in content
        assert SECRET._material not in content and SECRET._material.hex().encode() not in content


@pytest.mark.parametrize("name", ["by count, together", "by the clock, each alone"])
def test_a_batch_that_is_done_again_gives_the_same(name: str, tmp_path: Path) -> None:
    plan, parts = plan_of(name), {}
    own = opened(tmp_path, plan, PLANS[name][2])
    (rows, until), (more, later), _ = batches(plan)
    absorbed(own, parts, rows, until)
    before = {group: dict(content) for group, content in parts.items()}
    once = absorbed(own, parts, more, later)
    again = absorbed(own, before, more, later)
    assert once and sorted_records(joined(once)) == sorted_records(joined(again))


def test_groups_of_another_time_are_not_at_hand(tmp_path: Path) -> None:
    plan, parts = plan_of("by the clock, together"), {}
    own = opened(tmp_path, plan, 32)
    (rows, until), (more, later), _ = batches(plan)
    absorbed(own, parts, rows, until)
    before = {group: dict(content) for group, content in parts.items()}
    once = absorbed(own, parts, more, later, at_hand=True)
    # Nobody may go on from a later time.
    assert own.take(0, before[0]["progress"], before[0].__getitem__) is None
    absorbed(own, {}, rows, until)
    again = absorbed(own, before, more, later, at_hand=True)
    assert once and sorted_records(joined(once)) == sorted_records(joined(again))
    assert own.take(1, before[1]["progress"]) is not None
    assert own.take(1, before[1]["progress"]) is None  # it was taken


@pytest.mark.parametrize("turns", [(0,), (0, 1, 1, 0, 1)], ids=["one process", "in turns"])
def test_what_happened_is_kept_until_the_page_is_written_anew(
    turns: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**CLOCK, **FIXED, "length": "20000h"}  # long: noise that later leaves do not need
    plan, parts, sizes = rillet.Plan(keys=range(70), **options), {}, []
    own, clock = opened(tmp_path, plan, 70), plan.clock
    assert clock is not None
    processes, loads = (own, Opened(plan, SECRET, own.setup)), []
    load = Group._load
    monkeypatch.setattr(Group, "_load", lambda *given: loads.append(1) or load(*given))
    rng, streams = np.random.default_rng(3), plan.open_many(secret=SECRET)
    for number in range(60):  # two batches to a tick
        tick = number // 2
        at = np.full(70, clock.start + tick * HOUR + 1)
        rows = Rows(rng.exponential(2.0, 70), np.arange(70), None, at)
        until = clock.start + (tick + 1) * HOUR if number % 2 else None
        last = tick + number % 2
        expected = streams.absorb_ticks(rows.raw_values, rows.key_of, clock.tick_of(at), last)
        process = processes[turns[number % len(turns)]]
        found = absorbed(process, parts, rows, until, at_hand=len(turns) > 1)
        if found:
            assert sorted_records(joined(found)) == sorted_records(expected)
        sizes.append(len(parts[0]))
    # Common, learned, progress, and changes after changes; then a page in their place.
    assert sizes[:16] == list(range(4, 20)) and max(sizes) == 20
    assert sizes[16] == 4 and "page 0" in parts[0]
    # One that was not the last reads what happened since, and all of it where the page is new.
    assert len(loads) == 59 if len(turns) == 1 else 2 <= len(loads) <= 4


def test_rows_that_were_absorbed_are_left_out(tmp_path: Path) -> None:
    plan, parts = plan_of("by count, together"), {}
    own = opened(tmp_path, plan, 128)
    rows, until = batches(plan)[0]
    assert absorbed(own, parts, rows, until)
    assert not absorbed(own, parts, rows, until)


def test_rows_of_other_keys_or_without_a_number_are_left_out(tmp_path: Path) -> None:
    plan = plan_of("by count, together")
    own = opened(tmp_path, plan, 128)
    rows = Rows(np.ones(3), np.array([0, -1, 2]), np.array([-1, 0, 0]), None)
    parts: dict[int, dict[str, bytes]] = {}
    (releases,) = absorbed(own, parts, rows, None)
    assert [(one.key, one.t) for one in releases] == [(("k2",), 1)]


def test_the_plan_of_workers_does_not_hold_the_secret(tmp_path: Path) -> None:
    from rillet.spark.processor import sealed_rows
    from rillet.spark.shipped import GroupProcessor

    own = opened(tmp_path, plan_of("by count, together"), 128)
    for sent in (GroupProcessor(own.setup), own.setup):
        content = pickle.dumps(sent)
        assert SECRET._material not in content and SECRET._material.hex().encode() not in content
    assert sealed_rows(own.setup).__closure__ is not None
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(own.secret)


def test_groups_are_spread_evenly_over_partitions() -> None:
    assert [_hash(number) for number in (0, 1, 42)] == [933211791, -559580957, 29417773]
    for groups, partitions in ((1, 1), (8, 2), (611, 24), (3, 200)):
        labels = labels_of(groups, partitions)
        assert len(set(labels)) == groups
        used = np.bincount([_hash(label) % partitions for label in labels], minlength=partitions)
        assert used.max() == -(-groups // partitions)


def test_another_secret_on_a_worker_is_refused(tmp_path: Path) -> None:
    plan = plan_of("by count, together")
    with pytest.raises(StateError, match="is not the secret that the driver has"):
        opened(tmp_path, plan, 128, rillet.Secret.for_tests(8))
    (tmp_path / "secret").unlink()
    saved(tmp_path, SECRET).chmod(0o644)
    with pytest.raises(StateError, match="chmod 600"):
        opened(tmp_path, plan, 128)
    (tmp_path / "secret").unlink()
    setup = Setup(planned(tmp_path, plan), Columns("v"), str(tmp_path / "secret"), "", IDENTITY, 4)
    with pytest.raises(StateError, match="driver and workers need the same file"):
        setup.open()


@pytest.mark.parametrize("name", ["by count, together", "by the clock, together"])
def test_parts_of_another_time_group_or_query_are_refused(name: str, tmp_path: Path) -> None:
    plan, size = plan_of(name), PLANS[name][2]
    own, parts = opened(tmp_path, plan, size), {}
    (rows, until), (more, later), _ = batches(plan)
    absorbed(own, parts, rows, until)
    before = dict(parts[0])
    absorbed(own, parts, more, later)
    part = "crowd" if "crowd" in before else "common"
    for other in (
        {**parts[0], part: before[part]},
        {name: content for name, content in parts[0].items() if name != part},
        {part: parts[0][part]},
    ):
        with pytest.raises(StateError, match="not of one time"):
            Group(own, 0, other)
    with pytest.raises(StateError, match="does not open"):
        Group(own, 1, parts[0])
    damaged = {**parts[0], "progress": parts[0]["progress"][:-1] + b"x"}
    with pytest.raises(StateError, match="does not open"):
        Group(own, 0, damaged)
