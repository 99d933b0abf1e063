"""A followed file that is cut and outgrows its old length (FINDINGS D10)."""

from __future__ import annotations

import os
import signal

import pytest

from trust.runs import DONE, PLAN, ends_within, wait_until

COMMAND = ("run", "in.csv", "--state", "live", *PLAN, "--quiet")


@pytest.fixture
def cut(desk):
    """A process that follows a file, which is now another one of twice the length."""
    desk.csv("in.csv", range(100, 140))
    process = desk.spawn(*COMMAND, "--follow")
    assert wait_until(lambda: desk.count() == 40)
    content = "x\n" + "".join(f"{row}\n" for row in range(500, 580))
    file = os.open(desk / "in.csv", os.O_WRONLY)
    os.ftruncate(file, 0)
    os.write(file, content.encode())
    os.close(file)
    return process


def test_a_file_that_was_cut_ends_the_run(desk, cut):
    assert ends_within(cut, 2.0)
    assert cut.returncode in (4, 5)
    assert desk.count() == 40


def test_a_file_that_was_cut_is_noticed_at_the_next_start(desk, cut):
    wait_until(lambda: desk.count() == 80 or cut.poll() is not None, 2.0)
    if cut.poll() is None:
        cut.send_signal(signal.SIGTERM)
    assert ends_within(cut, 10.0)
    assert desk.rillet(*COMMAND).code != DONE
