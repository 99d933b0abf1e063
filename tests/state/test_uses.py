"""What a secret was used for: the same data are recognised, other data refused."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rillet.state.uses as uses_module
from helpers.uses import forget_uses
from rillet import OutputError, ParameterError, Plan, Secret, StateError, StreamEnded
from rillet.state.uses import CHUNK, Guard, UsesFile

PLAN = Plan.baseline(epsilon=1.0, upper=1000.0, length=50_000)
LEARNING = Plan(epsilon=1.0, delta=1e-6, upper=1000.0, length=5_000)
KEYED = Plan.baseline(epsilon=1.0, upper=1000.0, length=50_000, keys=["a", "b", "c"])
SHARED = Plan(epsilon=1.0, upper=1000.0, length=500, lag=60, keys=["a", "b"], shared_threshold=True)
VALUES = np.random.default_rng(1).uniform(0, 1000, 3 * CHUNK + 100)


@pytest.fixture
def secret():
    return Secret.generate()


@pytest.fixture
def another_process():
    """Go on as another process would."""
    return forget_uses


def released(stream, blocks):
    return np.concatenate([stream.update_many(block).sum for block in blocks])


def take(stream, blocks, out):
    for block in blocks:
        out.extend(stream.update_many(block).sum.tolist())


def take_late(stream, values):
    for value in values.tolist():
        assert stream.update(value) is None


def records(guard):
    (book, *_) = guard._books
    return [book.get(guard._cursor(index).address) for index in range(len(guard._keys))]


# --- Blocks ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(0, len(VALUES)), max_size=8))
def test_records_do_not_depend_on_how_blocks_are_cut(cuts):
    key = os.urandom(16)
    found = []
    for blocks in ([VALUES], np.split(VALUES, sorted(cuts))):
        forget_uses()
        guard = Guard(key, ((),))
        for block in blocks:
            with guard.locked():
                assert guard.compare(0, block) == len(block)
                guard.note()
        found += records(guard)
    one, other = found
    assert one.n == other.n == len(VALUES)
    assert one.digests == other.digests and len(one.digests) == 3 * 16
    assert one.opened.raw_values == other.opened.raw_values


@settings(deadline=None, max_examples=30)
@given(
    first=st.lists(st.integers(0, len(VALUES)), max_size=4),
    second=st.lists(st.integers(0, len(VALUES)), max_size=4),
)
def test_the_same_data_give_the_same_releases_however_they_are_cut(first, second):
    secret = Secret.generate()
    one = released(PLAN.open(secret=secret), np.split(VALUES, sorted(first)))
    two = released(PLAN.open(secret=secret), np.split(VALUES, sorted(second)))
    assert np.array_equal(one, two) and len(one) == len(VALUES)


def test_single_updates_leave_the_record_of_a_block(secret):
    one, many = PLAN.open(secret=secret, run="1"), PLAN.open(secret=secret, run="1")
    values = [0.0, -0.0, math.nan, math.inf, 3.5, *VALUES[:CHUNK].tolist()]
    for value in values:
        one.update(value)
    (after,) = records(one._streams._guard)
    assert after.n == len(values) and len(after.digests) == 16
    many.update_many(values)
    assert many.t == one.t


def test_every_nan_is_the_same_observation_and_so_is_every_zero(secret):
    odd = np.array([0x7FF8000000000001, 0xFFF0000000000001], np.uint64).view(float)
    PLAN.open(secret=secret).update_many([*odd, -0.0])
    assert len(PLAN.open(secret=secret).update_many([math.nan, -math.nan, 0.0])) == 3


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("at", [10, CHUNK + 10])
def test_a_stream_that_stayed_behind_in_a_chunk_goes_on_with_the_same_data(secret, at, size):
    streams = [PLAN.open(secret=secret) for _ in range(3)]
    for stream in streams:
        assert len(released(stream, np.array_split(VALUES[:at], 3))) == at
    ahead, same, other = streams
    first = released(ahead, [VALUES[at : at + 1], VALUES[at + 1 :]])
    blocks = np.split(VALUES[at:], range(size, len(VALUES) - at, size))
    assert released(same, blocks).tolist() == first.tolist()
    values = VALUES.copy()
    values[at] += 1.0
    with pytest.raises(StateError, match="other data"):
        take(other, np.split(values[at:], range(size, len(VALUES) - at, size)), [])
    assert other.t == at


def test_a_digest_is_as_wide_as_a_key(secret, tmp_path):
    stream = PLAN.open(secret=secret, uses=tmp_path / "uses")
    stream.update_many(VALUES)
    guard = stream._streams._guard
    process, file = (book.get(guard._cursor(0).address) for book in guard._books)
    assert len(process.digests) == len(file.digests) == 3 * 16
    assert process.digests == file.digests
    assert {at: len(mark) for at, mark in file.marks.items()} == {len(VALUES): 16}


# --- Other data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, CHUNK - 1, CHUNK, 2 * CHUNK + 7, len(VALUES) - 1])
@pytest.mark.parametrize("size", [1, 1000, CHUNK, 10**6])
def test_other_data_are_refused_before_they_count(secret, at, size):
    if size == 1 and at > CHUNK:
        size = 37
    first = PLAN.open(secret=secret).update_many(VALUES)
    other = VALUES.copy()
    other[at] += 1e-9
    stream, out = PLAN.open(secret=secret), []
    blocks = [other[start : start + size] for start in range(0, len(other), size)]
    with pytest.raises(StateError, match="used for other data"):
        take(stream, blocks, out)
    assert len(out) <= at
    assert out == first.sum[: len(out)].tolist()
    with pytest.raises(StateError, match="used for other data"):
        stream.update_many(VALUES)
    with pytest.raises(StateError, match="used for other data"):
        stream.update(1.0)


def test_other_data_are_refused_one_by_one_behind_the_open_chunk(secret):
    PLAN.open(secret=secret).update_many(VALUES)
    stream, other = PLAN.open(secret=secret), VALUES.copy()
    other[5] += 1.0
    with pytest.raises(StateError, match="used for other data"):
        take_late(stream, other)
    assert stream.t == 0


def test_single_updates_come_late_behind_the_open_chunk(secret):
    first = PLAN.open(secret=secret).update_many(VALUES)
    stream = PLAN.open(secret=secret)
    out = [stream.update(value) for value in VALUES.tolist()]
    there = [at for at, release in enumerate(out) if release is not None]
    assert there == [*(CHUNK * part - 1 for part in (1, 2, 3)), *range(3 * CHUNK, len(VALUES))]
    assert all(out[at].sum == first.sum[at] for at in there)
    assert stream.t == len(VALUES)


def test_another_run_mechanism_key_or_secret_is_another_noise(secret):
    PLAN.open(secret=secret).update_many([1.0, 2.0])
    other = Plan.baseline(epsilon=2.0, upper=1000.0, length=50_000)
    for stream in (
        PLAN.open(secret=secret, run="another"),
        PLAN.open(secret=secret, key="b"),
        PLAN.open(secret=Secret.generate()),
        other.open(secret=secret),
    ):
        assert len(stream.update_many([3.0])) == 1


def test_while_a_range_is_learned(secret):
    values = VALUES[:4_000]
    first = LEARNING.open(secret=secret).update_many(values)
    second = LEARNING.open(secret=secret)
    out = [second.update(value) for value in values.tolist()]
    assert [release.sum for release in out if release is not None] == first.sum.tolist()
    third = LEARNING.open(secret=secret)
    other = values.copy()
    other[0] += 1.0
    with pytest.raises(StateError, match="other data"):
        take_late(third, other)


def test_fresh_secrets_and_those_of_tests_are_not_guarded():
    assert PLAN.open()._streams._guard is None
    for _ in range(2):
        stream = PLAN.open(secret=Secret.for_tests(1))
        stream.update(np.random.default_rng().uniform())
        assert stream._streams._guard is None
    with pytest.raises(ParameterError, match="uses"):
        PLAN.open(uses="somewhere")


def test_a_full_stream_is_recorded_as_far_as_it_went(secret):
    plan = Plan.baseline(epsilon=1.0, upper=1000.0, length=3)
    stream = plan.open(secret=secret)
    stream.update_many([1.0, 2.0])
    with pytest.raises(StreamEnded):
        stream.update_many([3.0, 4.0])
    assert len(stream.update_many([5.0])) == 1


# --- Many keys ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(
    owners=st.lists(st.integers(0, 2), min_size=30, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_many_keys_are_recognised_in_any_interleaving(owners, cuts):
    secret, keys = Secret.generate(), np.array(["a", "b", "c"])[owners]
    values = VALUES[: len(owners)]
    first = KEYED.open_many(secret=secret).update_many(values, key=keys.tolist())
    sums = {}
    for release in first:
        sums[release.key, release.t] = release.sum
    order = np.argsort(owners, kind="stable")
    again = KEYED.open_many(secret=secret)
    for part in np.split(order, sorted(cuts)):
        for release in again.update_many(values[part], key=keys[part].tolist()):
            assert sums.pop((release.key, release.t)) == release.sum
    assert not sums


def test_a_long_key_waits_for_its_chunk_and_the_others_do_not(secret):
    keys = ["a"] * (CHUNK + 10) + ["b"] * 10
    values = VALUES[: len(keys)]
    KEYED.open_many(secret=secret).update_many(values, key=keys)
    again = KEYED.open_many(secret=secret)
    out = again.update_many([*values[:5], *values[-10:]], key=["a"] * 5 + ["b"] * 10)
    assert {release.key for release in out} == {("b",)} and len(out) == 10
    assert again.waiting == 5 and again.t("a") == 0
    assert len(again.update_many(values[5 : CHUNK + 10], key="a")) == CHUNK + 10
    assert again.waiting == 0


def test_the_pool_of_a_shared_range_is_guarded_in_its_order(secret):
    pool = SHARED.layout.shared.observations
    keys = (["a", "b"] * pool)[: pool + 20]
    values = VALUES[: len(keys)]
    first = SHARED.open_many(secret=secret).update_many(values, key=keys)
    again = SHARED.open_many(secret=secret)
    assert len(again.update_many(values[:7], key=keys[:7])) == 0
    assert again.update_many(values[7:], key=keys[7:]).sum.tolist() == first.sum.tolist()
    other = SHARED.open_many(secret=secret)
    with pytest.raises(StateError, match="other data"):
        other.update_many(values[::-1], key=keys[::-1])


# --- Snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False], ids=["given secret", "fresh secret"])
@pytest.mark.parametrize("at", [10, CHUNK, CHUNK + 10])
def test_streams_from_one_snapshot_take_one_continuation(secret, given, at):
    stream = PLAN.open(secret=secret if given else None)
    stream.update_many(VALUES[:at])
    master, blob = secret if given else stream.secret, stream.snapshot()
    first = stream.update_many(VALUES[at:])
    again = PLAN.resume(blob, secret=master)
    assert released(again, np.array_split(VALUES[at:], 5)).tolist() == first.sum.tolist()
    third, other = PLAN.resume(blob, secret=master), VALUES[at:].copy()
    other[3] += 1.0
    with pytest.raises(StateError, match="other data"):
        third.update_many(other)


def test_a_stream_does_not_go_on_otherwise_than_its_snapshot_did():
    stream = PLAN.open()
    stream.update_many([1.0, 2.0])
    PLAN.resume(stream.snapshot(), secret=stream.secret).update_many([3.0, 4.0])
    assert stream.update(3.0).t == 3
    with pytest.raises(StateError, match="other data"):
        stream.update(5.0)


def test_a_snapshot_that_went_further_elsewhere_closes_what_was_before(secret, another_process):
    stream = PLAN.open(secret=secret)
    stream.update_many(VALUES[:1000])
    early = stream.snapshot()
    stream.update_many(VALUES[1000:2000])
    late = stream.snapshot()
    another_process()
    PLAN.resume(late, secret=secret).update_many([7.0])
    with pytest.raises(StateError, match="no record"):
        PLAN.resume(early, secret=secret).update_many([1.0])


def test_no_snapshot_while_observations_wait(secret):
    PLAN.open(secret=secret).update_many(VALUES)
    stream = PLAN.open(secret=secret)
    stream.update_many(VALUES[:10])
    with pytest.raises(StateError, match="10 observations wait"):
        stream.snapshot()


def test_a_snapshot_says_nothing_of_a_signalling_nan(secret):
    stream = PLAN.open(secret=secret)
    stream.update_many(np.array([0x7FF0000000000001, 0], np.uint64).view(float))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = PLAN.resume(stream.snapshot(), secret=secret)
    assert len(again.update_many([1.0])) == 1


# --- Files ----------------------------------------------------------------------------------------


def test_a_file_remembers_beyond_the_process(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    first = PLAN.open(secret=secret, uses=path).update_many(VALUES)
    assert path.stat().st_mode & 0o777 == 0o600
    another_process()
    again = PLAN.open(secret=secret, uses=path)
    assert released(again, np.array_split(VALUES, 7)).tolist() == first.sum.tolist()
    assert len(again.update_many([1.0, 2.0])) == 2  # beyond: it grows
    another_process()
    other = VALUES.copy()
    other[CHUNK + 1] += 1.0
    with pytest.raises(StateError, match="other data"):
        PLAN.open(secret=secret, uses=path).update_many(other)
    another_process()
    with pytest.raises(StateError, match="other data"):
        PLAN.open(secret=secret, uses=path).update_many([*VALUES, 1.0, 3.0])


def test_the_last_chunk_of_a_file_is_compared_by_its_blocks(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    first = PLAN.open(secret=secret, uses=path)
    released(first, [VALUES[:100], VALUES[100:250]])
    another_process()
    again = PLAN.open(secret=secret, uses=path)
    assert len(again.update_many(VALUES[:180])) == 100
    assert len(again.update_many(VALUES[180:200])) == 0
    assert len(again.update_many(VALUES[200:300])) == 200
    another_process()
    other = VALUES[:250].copy()
    other[120] += 1.0
    stream = PLAN.open(secret=secret, uses=path)
    assert len(stream.update_many(other[:200])) == 100
    with pytest.raises(StateError, match="other data"):
        stream.update_many(other[200:])


def test_a_file_is_read_again_when_others_have_written(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    mine = PLAN.open(secret=secret, uses=path)
    mine.update(1.0)
    secret.save(tmp_path / "secret")
    code = (
        "import sys; from rillet import *; "
        "plan = Plan.baseline(epsilon=1.0, upper=1000.0, length=50_000); "
        "stream = plan.open(secret=Secret.load(sys.argv[1]), uses=sys.argv[2]); "
        "print(len(stream.update_many([1.0, 2.0])))"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "secret"), str(path)]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"2\n"
    with pytest.raises(StateError, match="other data"):
        mine.update(3.0)


def test_the_record_is_on_disk_before_anything_is_released(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    stream = PLAN.open(secret=secret, uses=path)
    stream.update_many([1.0, 2.0])

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    stream._streams._store.commit = killed
    with pytest.raises(Killed):
        stream.update_many([3.0])
    another_process()
    again = PLAN.open(secret=secret, uses=path)
    assert len(again.update_many([1.0, 2.0, 3.0])) == 3
    another_process()
    with pytest.raises(StateError, match="other data"):
        PLAN.open(secret=secret, uses=path).update_many([1.0, 2.0, 4.0])


def test_nothing_is_released_when_the_record_cannot_be_written(secret, tmp_path, monkeypatch):
    stream = PLAN.open(secret=secret, uses=tmp_path / "uses")
    stream.update(1.0)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OutputError, match="No space left"):
            stream.update_many([2.0])
    assert stream.t == 1
    assert len(stream.update_many([3.0])) == 1  # the 2 was not absorbed, so it is not recorded


def test_a_batch_that_was_cut_short_is_dropped(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    stream = PLAN.open(secret=secret, uses=path)
    stream.update(1.0)
    whole = path.read_bytes()
    stream.update(2.0)
    longer = path.read_bytes()
    for end in range(len(whole), len(longer)):
        path.write_bytes(longer[:end])
        another_process()
        assert len(PLAN.open(secret=secret, uses=path).update_many([1.0, 5.0])) == 2
        assert len(path.read_bytes()) == len(longer)


def test_a_damaged_file_is_refused(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    stream = PLAN.open(secret=secret, uses=path)
    for value in (1.0, 2.0, 3.0):
        stream.update(value)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        another_process()
        with pytest.raises(StateError, match="damaged"):
            PLAN.open(secret=secret, uses=path).update(1.0)


def test_a_file_that_goes_away_is_missed(secret, tmp_path):
    stream = PLAN.open(secret=secret, uses=tmp_path / "uses")
    stream.update(1.0)
    (tmp_path / "uses").unlink()
    with pytest.raises(StateError, match="is gone"):
        stream.update(2.0)


def test_a_file_is_written_anew_when_it_has_grown(secret, tmp_path, another_process, monkeypatch):
    monkeypatch.setattr(uses_module, "_COMPACT", 2_000)
    path = tmp_path / "uses"
    one, two = (PLAN.open(secret=secret, uses=path, key=key) for key in "ab")
    for value in VALUES[:100].tolist():
        one.update(value)
        two.update(value + 1)
    assert path.stat().st_size < 100 * 2 * 64
    assert path.stat().st_mode & 0o777 == 0o600
    another_process()
    assert len(PLAN.open(secret=secret, uses=path, key="b").update_many(VALUES[:100] + 1)) == 100
    with pytest.raises(StateError, match="other data"):
        PLAN.open(secret=secret, uses=path, key="a").update_many(VALUES[:100] + 1)
    assert isinstance(one._streams._guard._books[1], UsesFile)


def test_nothing_of_the_data_is_in_the_file(secret, tmp_path):
    path = tmp_path / "uses"
    PLAN.open(secret=secret, uses=path).update_many(VALUES)
    content = path.read_bytes()
    assert not any(value.tobytes() in content for value in VALUES[-100:])
    assert len(content) == 14 + 12 + 56 + 16 * 3 + 24 + 8


# --- Folders --------------------------------------------------------------------------------------


def test_a_secret_serves_one_state(secret, tmp_path, another_process):
    path = tmp_path / "uses"
    with PLAN.open_folder(tmp_path / "one", secret=secret, uses=path) as streams:
        streams.update_many([1.0, 2.0])
    another_process()
    for begin in (
        lambda: PLAN.open_folder(tmp_path / "two", secret=secret, uses=path),
        lambda: PLAN.open(secret=secret, uses=path).update_many([1.0, 2.0]),
    ):
        with pytest.raises(StateError, match="serves"):
            begin()
    with PLAN.open_folder(tmp_path / "one", secret=secret, uses=path) as streams:
        assert len(streams.update_many([3.0])) == 1


def test_a_state_needs_a_secret_that_was_not_used(secret, tmp_path):
    PLAN.open(secret=secret).update_many([1.0])
    with pytest.raises(StateError, match="state needs one of its own"):
        PLAN.open_folder(tmp_path / "one", secret=secret)


def test_a_beginning_that_was_cut_short_is_the_same_beginning(secret, tmp_path, monkeypatch):
    from rillet.state.store import SqliteStore

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "create", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            PLAN.open_folder(tmp_path / "one", secret=secret)
    with pytest.raises(StateError, match="serves another state"):
        PLAN.open_folder(tmp_path / "two", secret=secret)
    with PLAN.open_folder(tmp_path / "one", secret=secret) as streams:
        assert len(streams.update_many([3.0])) == 1
