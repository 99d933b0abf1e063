"""A key that lies elsewhere (FINDINGS D7)."""

from __future__ import annotations

from trust.runs import DONE, mode

COMMAND = ("in.csv", "--state", "live", "--key-file", "elsewhere/key")


def test_what_the_check_passes_runs(desk):
    desk.csv("in.csv", [10, 20])
    assert desk.run(*COMMAND, "--check").code == DONE
    ended = desk.run(*COMMAND)
    assert ended.code == DONE, ended.said
    assert desk.count() == 2
    assert not (desk / "live/key").exists()


def test_a_key_is_made_by_a_command(desk):
    ended = desk.rillet("state", "new-key", "elsewhere/key")
    assert ended.code == DONE, ended.said
    assert mode(desk / "elsewhere/key") == 0o600
    made = (desk / "elsewhere/key").read_bytes()
    assert desk.rillet("state", "new-key", "elsewhere/key").code != DONE  # never overwritten
    desk.csv("in.csv", [10, 20])
    assert desk.run(*COMMAND).code == DONE
    assert (desk / "elsewhere/key").read_bytes() == made
    assert desk.rillet("state", "live", "--key-file", "elsewhere/key").code == DONE
