"""A named pipe as the source of a durable run (FINDINGS D8)."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from trust.runs import DONE, PLAN, ends_within

COMMAND = ("run", "in", "--format", "csv", "--state", "live", *PLAN, "--quiet")


@pytest.fixture
def piped(desk):
    os.mkfifo(desk / "in")
    return desk


def write(pipe):
    """Write three rows; done when somebody has read them."""
    writer = threading.Thread(target=lambda: pipe.write_text("x\n1\n2\n3\n"), daemon=True)
    writer.start()
    return writer


def test_everything_that_comes_through_a_pipe_is_absorbed(piped):
    """Or a pipe is refused at once, with nothing eaten."""
    process = piped.spawn(*COMMAND)
    write(piped / "in").join(10.0)
    assert ends_within(process, 3.0)
    assert (process.returncode, piped.count()) in ((DONE, 3), (2, 0))


def test_a_run_that_waits_for_a_pipe_can_be_stopped(piped):
    process = piped.spawn(*COMMAND)
    write(piped / "in").join(10.0)
    if not ends_within(process, 1.0):  # it waits for another writer
        process.send_signal(signal.SIGTERM)
    assert ends_within(process, 2.0)
