"""A sequence number that leaves no room for another (FINDINGS D9)."""

from __future__ import annotations

from trust.runs import DONE

COMMAND = ("in.csv", "--column", "x", "--sequence", "n", "--state", "live")


def absorbed_or_told(desk, rows):
    """Give all rows, then three of the same device; either they count or somebody is told."""
    desk.csv("in.csv", rows, header="n,x")
    assert desk.run(*COMMAND).code == DONE
    before = desk.count()
    desk.append("in.csv", ["1,10", "2,20", "3,30"])
    ended = desk.run(*COMMAND)
    return desk.count() == before + 3 or "sequence" in ended.said


def test_one_huge_number_does_not_silence_a_key(desk):
    assert absorbed_or_told(desk, ["0,5", f"{2**63 - 1},6"])


def test_a_device_whose_counter_restarts_is_told_of(desk):
    assert absorbed_or_told(desk, ["1001,5", "1002,6"])
