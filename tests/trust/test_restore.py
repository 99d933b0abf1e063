"""Going back to a backup after a crash (FINDINGS D6)."""

from __future__ import annotations

import shutil

import pytest

from trust.runs import DONE, PLAN, REFUSED, wait_until

COMMAND = ("run", "in.csv", "--state", "live", *PLAN, "--quiet")


@pytest.fixture
def crashed(desk):
    """A state with a backup of three observations, killed after five."""
    desk.csv("in.csv", [10, 20, 30])
    assert desk.rillet(*COMMAND).code == DONE
    assert desk.rillet("state", "live", "--backup", "monday").code == DONE
    desk.append("in.csv", [40, 50])
    process = desk.spawn(*COMMAND, "--follow")
    assert wait_until(lambda: desk.count() == 5)
    process.kill()
    process.wait(20)
    assert (desk / "live/state.db-wal").stat().st_size
    return desk


def test_a_backup_is_restored(crashed):
    published = crashed.stored()
    ended = crashed.rillet("state", "restore", "monday", "live")
    assert ended.code == DONE, ended.said
    looked = crashed.rillet("state", "live")
    assert looked.code == DONE
    assert "3 observations" in looked.said
    # The same observations follow, so the same values are published again.
    assert crashed.rillet(*COMMAND, "--restored").code == DONE
    assert crashed.stored() == published


def test_a_restored_state_does_not_run_unasked(crashed):
    assert crashed.rillet("state", "restore", "monday", "live").code == DONE
    assert crashed.rillet(*COMMAND).code == REFUSED


def test_a_copy_put_back_by_hand_is_not_destroyed(crashed):
    """It opens as it was backed up, or it is refused and left as it is."""
    shutil.copyfile(crashed / "monday/state.db", crashed / "live/state.db")
    looked = crashed.rillet("state", "live")
    if looked.code == DONE:
        assert "3 observations" in looked.said
    else:
        assert (crashed / "live/state.db").read_bytes() == (
            crashed / "monday/state.db"
        ).read_bytes()
