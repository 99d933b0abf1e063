"""A finished file in the order of ticks: a stable sort, whatever does not fit into memory."""

from __future__ import annotations

import os
import resource
import sys
import threading
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet import OutputError, ParameterError
from rillet.errors import InputError
from rillet.gather.clock import NO_TIME, Clock
from rillet.gather.gate import Pseudonyms
from rillet.source import Block, DeclaredKeys, Source, by_tick, open_source
from rillet.source.by_tick import ByTick
from rillet.testing import check_source
from rillet.times import HOUR, SECOND, moment, show_moment

CLOCK = Clock(moment("2026-01-01T00:00Z"), HOUR)


class Rows(Source):
    """Values 0, 1, 2, … with given times, in blocks."""

    replayable, redelivers = True, False
    name = identity = "rows"

    def __init__(self, at, key_of=None, sequence=None, stop=None, person=None):
        self.at, self.key_of, self.sequence, self.person = at, key_of, sequence, person
        self.values = np.arange(float(len(at)))
        self.stop = threading.Event() if stop is None else stop
        self.passes = 0

    def check(self):
        pass

    def blocks(self, start=None, *, block_rows=None):
        self.passes += 1
        for row in range(0, len(self.values), 100):
            if self.stop.is_set():
                return
            rows = slice(row, row + 100)
            columns = {
                name: None if column is None else column[rows]
                for name, column in vars(self).items()
                if name in ("at", "key_of", "sequence", "person")
            }
            yield Block(
                self.values[rows], fraction=min(1.0, (row + 100) / len(self.values)), **columns
            )


@pytest.fixture
def small(monkeypatch):
    """Runs and windows so small that every way through is taken."""
    monkeypatch.setattr(by_tick, "RUN_ROWS", 150)
    monkeypatch.setattr(by_tick, "MERGE_ROWS", 40)
    monkeypatch.setattr(by_tick, "LEAST_ROWS", 3)


def times(ticks, within=0):
    return CLOCK.start + (np.asarray(ticks, np.int64) - 1) * HOUR + within


def test_persons_are_sorted_along_as_pseudonyms_alone(small):
    random = np.random.default_rng(8)
    ids = np.array([b"household-%d" % number for number in random.integers(0, 40, 1000)], object)
    at = times(random.integers(0, 30, 1000))
    pseudonyms = Pseudonyms(bytes(32))
    with ByTick(Rows(at, person=ids), CLOCK, 25, pseudonyms=pseudonyms) as source:
        blocks = list(source.blocks(block_rows=77))
        raw_file = os.pread(source._runs._file.fileno(), 1 << 20, 0)
    assert len(raw_file) > 25_000
    assert b"household" not in raw_file
    rows = by_definition(at, 25)
    expected = pseudonyms(ids[rows].tolist())
    assert np.array_equal(np.concatenate([block.person for block in blocks]), expected)
    assert np.array_equal(np.concatenate([block.raw_values for block in blocks]), rows)


def by_definition(at, length, key_of=None):
    ticks = CLOCK.tick_of(at)
    used = (ticks >= 1) & (ticks <= length)
    if key_of is not None:
        used &= key_of >= 0
    rows = np.flatnonzero(used)
    return rows[np.argsort(ticks[rows], kind="stable")]


def check_blocks(blocks, at, length, rows):
    """The sorted rows, and no tick complete before all of it has come."""
    values = np.concatenate([np.empty(0), *(block.raw_values for block in blocks)])
    assert values.astype(int).tolist() == rows.tolist()
    ticks = CLOCK.tick_of(at[rows])
    seen = 0
    for block in blocks:
        assert np.array_equal(block.at, at[rows[seen : seen + len(block)]])
        seen += len(block)
        left = ticks[seen:]
        assert block.complete_until == (left[0] - 1 if left.size else length)
        assert block.fraction == block.complete_until / length


def check_cuts(blocks, block_rows, block_ticks):
    """As many whole ticks as fit, or so many rows of one that does not."""
    for block, following in pairwise(blocks):
        own, others = CLOCK.tick_of(block.at), CLOCK.tick_of(following.at)
        if own[-1] == others[0]:
            assert len(block) == block_rows
            assert own[0] == own[-1]
        else:
            assert len(block) <= block_rows
            assert own[-1] < own[0] + block_ticks
            more = len(block) + np.count_nonzero(others == others[0])
            assert more > block_rows or others[0] >= own[0] + block_ticks


@pytest.mark.usefixtures("small")
@settings(max_examples=60)
@given(data=st.data())
def test_equals_a_stable_sort_in_memory(data):
    count = data.draw(st.integers(0, 1200))
    seed = data.draw(st.integers(0, 2**32))
    length = data.draw(st.sampled_from([1, 3, 50, 2000]))
    block_rows = data.draw(st.sampled_from([1, 7, 100, 5000]))
    rng = np.random.default_rng(seed)
    kind = data.draw(st.sampled_from(["sorted", "backwards", "random", "one tick", "two"]))
    ticks = {
        "sorted": np.sort(rng.integers(-3, length + 4, count)),
        "backwards": np.sort(rng.integers(-3, length + 4, count))[::-1],
        "random": rng.integers(-3, length + 4, count),
        "one tick": np.ones(count, int),
        "two": rng.integers(0, 2, count) + 1,
    }[kind]
    at = times(ticks, rng.integers(0, HOUR, count))
    at[rng.random(count) < 0.05] = NO_TIME
    key_of = rng.integers(-1, 3, count)
    sequence = np.arange(count) * 3
    block_ticks = data.draw(st.sampled_from([None, 1, 20]))
    with ByTick(Rows(at, key_of, sequence), CLOCK, length, block_ticks=block_ticks) as source:
        blocks = list(source.blocks(block_rows=block_rows))
        rows = by_definition(at, length, key_of)
        check_blocks(blocks, at, length, rows)
        check_cuts(blocks, block_rows, block_ticks or 2**40)
        if blocks:
            assert np.array_equal(np.concatenate([b.key_of for b in blocks]), key_of[rows])
            assert np.array_equal(np.concatenate([b.sequence for b in blocks]), sequence[rows])
            assert blocks[0].raw_values.flags.c_contiguous
        # From any position, in blocks of another size.
        for index in range(0, len(blocks), 1 + len(blocks) // 5):
            behind = sum(map(len, blocks[: index + 1]))
            rest = list(source.blocks(blocks[index].position, block_rows=block_rows + 1))
            found = np.concatenate([np.empty(0), *(block.raw_values for block in rest)])
            assert found.astype(int).tolist() == rows[behind:].tolist()
            assert not rest or rest[0].start == blocks[index].position
            (again,) = source.replay(blocks[index].start, len(blocks[index]))
            assert np.array_equal(again.raw_values, blocks[index].raw_values)
            assert (again.start, again.position) == (blocks[index].start, blocks[index].position)
        assert source._source.passes == 1


@pytest.mark.usefixtures("small")
def test_a_tick_too_large_for_a_block_comes_in_several():
    at = times(np.repeat([2, 1, 2, 3], [500, 3, 400, 5]))
    with ByTick(Rows(at), CLOCK, 10) as source:
        blocks = list(source.blocks(block_rows=250))
        check_blocks(blocks, at, 10, by_definition(at, 10))
        assert [block.complete_until for block in blocks] == [1, 1, 1, 1, 10]
        assert [len(block) for block in blocks] == [3, 250, 250, 250, 155]
        assert blocks[2].position == {"tick": 2, "rows": 500}
        assert blocks[0].key_of is None


@pytest.mark.usefixtures("small")
def test_what_is_in_order_already_is_one_run():
    """So that a merge reads as many rows of it at once as it can hold."""
    with ByTick(Rows(times(np.sort(np.arange(3000) % 40))), CLOCK, 40) as source:
        source.sort()
        assert source._runs.spans == [range(2925)]
    with ByTick(Rows(times(np.arange(3000) % 40)), CLOCK, 40) as source:
        source.sort()
        assert len(source._runs.spans) > 10


def test_the_contract_of_sources(tmp_path):
    path = tmp_path / "d.csv"
    ticks = [3, 1, 99, 2, 3, 0, 1, 3, 2, 1, 1, 5]
    at = [show_moment(int(when)) for when in times(ticks, 5 * SECOND)]
    at[8] = "x"
    keys = ["north", "south", "west"] * 4
    body = "".join(
        f"{k},{i}.625,{when}\n" for i, (k, when) in enumerate(zip(keys, at, strict=True))
    )
    path.write_text("line,x,at\n" + body)
    declared = DeclaredKeys([("north",), ("south",)], ["line"])
    options = {"path": path, "column": "x", "time": "at"}

    def make(stop):
        return ByTick(open_source(options, keys=declared, stop=stop), CLOCK, 4, stop=stop)

    order = [1, 6, 9, 10, 3, 0, 4, 7]
    check_source(
        make,
        np.array(order) + 0.625,
        key_of=[1, 0, 0, 1, 0, 0, 1, 1],
        at=times([ticks[row] for row in order], 5 * SECOND),
    )


@pytest.mark.parametrize("rows", [0, 5])
def test_no_row_of_any_tick(rows):
    with ByTick(Rows(np.full(rows, NO_TIME)), CLOCK, 4) as source:
        assert list(source.blocks()) == []
        with pytest.raises(InputError, match="not the file that was read before"):
            source.blocks({"tick": 2, "rows": 1})


def test_without_an_end_the_last_tick_is_that_of_the_last_row():
    with ByTick(Rows(times([7, 2])), CLOCK) as source:
        (block,) = source.blocks()
        assert (block.complete_until, block.fraction) == (7, None)


def test_what_is_refused():
    for position in ({"rows": 1}, {"tick": -1, "rows": 0}, {"tick": 1, "rows": True}):
        with ByTick(Rows(times([1])), CLOCK, 4) as source, pytest.raises(ParameterError):
            source.blocks(position)
    untimed = Rows(times([1]))
    untimed.at = None
    with ByTick(untimed, CLOCK, 4) as source, pytest.raises(ParameterError, match=r"^time: "):
        source.blocks()


def test_no_room_is_said_without_numbers(tmp_path):
    with (
        ByTick(Rows(times([1])), CLOCK, 4, folder=tmp_path / "nowhere") as source,
        pytest.raises(OutputError, match=r"nowhere: expected room .* name another folder"),
    ):
        source.blocks()


def test_the_temporary_file_has_no_name_and_one_owner(tmp_path):
    with ByTick(Rows(times([2, 1])), CLOCK, 4, folder=tmp_path) as source:
        source.sort()
        assert list(tmp_path.iterdir()) == []
        file = source._runs._file
        there = os.fstat(file.fileno())
        assert (there.st_mode & 0o777, there.st_nlink, there.st_size) == (0o600, 0, 2 * 16)
        assert there.st_dev == tmp_path.stat().st_dev
    assert file.closed


def test_a_stop_while_rows_are_read_gives_none(tmp_path):
    stop = threading.Event()
    source = ByTick(Rows(times(np.ones(1000)), stop=stop), CLOCK, 4, stop=stop)
    seen = []

    def watch(fraction):
        seen.append(fraction)
        if fraction >= 0.5:
            stop.set()

    with source, warnings.catch_warnings():
        warnings.simplefilter("error")
        source.sort(watch)
        assert list(source.blocks()) == []
    assert seen == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["random", "one tick", "sorted"])
def test_ten_million_rows_in_bounded_memory(kind):
    class Many(Source):
        replayable, redelivers = True, False
        name = identity = "many"

        def check(self):
            pass

        def blocks(self, start=None, *, block_rows=None):
            for part in range(100):
                rng = np.random.default_rng(part)
                ticks = {
                    "random": rng.integers(1, 8761, 100_000),
                    "one tick": np.full(100_000, 4000),
                    "sorted": np.arange(part * 100_000, (part + 1) * 100_000) // 1200 + 1,
                }[kind]
                yield Block(np.arange(100_000.0) + part * 100_000, at=times(ticks))

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )

    before, rows, last = peak(), 0, (0, -1.0)
    with ByTick(Many(), CLOCK, 8760) as source:
        for block in source.blocks():
            ticks = CLOCK.tick_of(block.at)
            assert (int(ticks[0]), block.raw_values[0]) > last
            same = np.diff(ticks) == 0
            assert np.all(np.diff(ticks) >= 0)
            assert np.all(np.diff(block.raw_values)[same] > 0)
            last = int(ticks[-1]), block.raw_values[-1]
            rows += len(block)
    assert rows == 10_000_000
    assert peak() - before < 150e6  # the rows themselves are 160 MB
