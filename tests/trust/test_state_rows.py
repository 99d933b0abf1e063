"""Rows of ``state.db`` belong together: who has no key cannot put an old one back (FINDINGS D2)."""

from __future__ import annotations

import shutil

import pytest

from trust import faults
from trust.runs import DONE, PLAN, REFUSED

LEARNS = ("--epsilon", "20", "--upper", "1000", "--length", "1000", "--lag", "100")


@pytest.fixture
def keyed(desk):
    """A state that ran twice, with a copy from between."""
    (desk / "keys").write_text("a\nb\n")
    desk.csv("in.csv", ["a,10", "b,20", "a,30"], header="k,x")
    go(desk)
    shutil.copytree(desk / "live", desk / "older")
    desk.append("in.csv", ["a,40", "b,50"])
    go(desk)
    return desk


def go(desk, plan=PLAN):
    words = ("--column", "x", "--key-column", "k", "--keys", "keys", "--state", "live")
    ended = desk.run("in.csv", *words, plan=plan)
    assert ended.code == DONE, ended.said


def is_refused(desk):
    """Both by who looks and by who runs."""
    looked = desk.rillet("state", "live")
    assert looked.code == REFUSED, looked.said


def test_an_older_row_of_a_key_is_noticed(keyed):
    faults.replay_stream(keyed / "live/state.db", keyed / "older/state.db")
    is_refused(keyed)


def test_an_older_row_never_gives_a_second_value(keyed):
    before = {(key, t): total for key, t, total in keyed.stored()}
    faults.replay_stream(keyed / "live/state.db", keyed / "older/state.db")
    faults.forget_releases(keyed / "live/releases.db", "a", after=2)
    keyed.append("in.csv", ["a,940"])
    words = ("--column", "x", "--key-column", "k", "--keys", "keys", "--state", "live")
    ended = keyed.run("in.csv", *words)
    after = {(key, t): total for key, t, total in keyed.stored()}
    twice = {point for point in before.keys() & after.keys() if before[point] != after[point]}
    # With the same noise: the difference is that of the raw values, 940 - 40.
    assert not twice, {point: after[point] - before[point] for point in twice}
    assert ended.code == REFUSED


def test_an_older_progress_is_noticed(keyed):
    faults.replay_progress(keyed / "live", keyed / "older")
    is_refused(keyed)


def test_an_older_progress_counts_nothing_twice(keyed):
    before = keyed.count()
    faults.replay_progress(keyed / "live", keyed / "older")
    words = ("--column", "x", "--key-column", "k", "--keys", "keys", "--state", "live")
    ended = keyed.run("in.csv", *words)
    assert (ended.code, keyed.count()) == (REFUSED, before)


def test_a_deleted_part_of_learning_is_noticed(desk):
    desk.csv("in.csv", range(60))
    assert desk.run("in.csv", "--state", "live", plan=LEARNS).code == DONE
    faults.forget_learning(desk / "live/state.db")
    is_refused(desk)


def test_a_planted_trigger_is_noticed(keyed):
    faults.plant_trigger(keyed / "live/state.db")
    is_refused(keyed)


def test_a_planted_trigger_keeps_nothing(keyed):
    faults.plant_trigger(keyed / "live/state.db")
    keyed.append("in.csv", ["a,60"])
    words = ("--column", "x", "--key-column", "k", "--keys", "keys", "--state", "live")
    keyed.run("in.csv", *words)
    assert faults.kept_by_trigger(keyed / "live/state.db") == 0
