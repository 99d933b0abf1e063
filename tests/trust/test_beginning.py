"""A state is begun by one process (FINDINGS D3)."""

from __future__ import annotations

import pytest

from trust import faults
from trust.runs import DONE, PLAN, REFUSED, wait_until

COMMAND = ("run", "in.csv", "--state", "live", *PLAN, "--quiet")


@pytest.fixture
def late(desk):
    """A process that has found no state and is about to make one."""
    desk.csv("in.csv", [10, 20, 30])
    process = desk.spawn(*COMMAND, before=faults.HOLD_BEFORE_STATE_IS_MADE)
    assert wait_until((desk / "held").exists)
    return process


def test_a_second_process_is_refused_while_a_state_is_begun(desk, late):
    assert desk.rillet(*COMMAND).code == REFUSED


def test_a_state_is_not_replaced_by_one_who_came_late(desk, late):
    first = desk.rillet(*COMMAND)  # refused, or the state is its own
    (desk / "go").touch()
    late.wait(20)
    assert sorted([first.code, late.returncode]) == [DONE, REFUSED]
    assert desk.rillet("state", "live").code == DONE
    desk.append("in.csv", [40])
    assert desk.rillet(*COMMAND).code == DONE
    assert [t for _, t, _ in desk.stored()] == [1, 2, 3, 4]


def test_a_running_state_is_not_replaced(desk, late):
    running = desk.spawn(*COMMAND, "--follow")
    if not wait_until(lambda: desk.count() == 3 or running.poll() is not None):
        pytest.fail("neither ran nor refused")
    if running.poll() is None:
        file = (desk / "live/state.db").stat().st_ino
        (desk / "go").touch()
        late.wait(20)
        assert (desk / "live/state.db").stat().st_ino == file
        assert late.returncode == REFUSED
