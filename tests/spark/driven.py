"""Drivers in processes of their own, over the batches of a world: to be killed, or elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark.test_release import BY_CLOCK, BY_COUNT, World

from helpers.spark import PATIENCE, end

_TESTS = Path(__file__).parents[1]
#: When, in the batch with which number, and how many seconds into it.
Stop = tuple[str, int, float]


def start(
    world: World,
    *stops: Stop,
    master: str = "local[1]",
    settings: Mapping[str, str] | None = None,
    tells: bool = False,
    keys_in_group: int | None = 64,
    log: str | None = None,
    pages: Path | None = None,
) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own, that kills itself or ``tells`` where it stops."""
    counts = world.plan.clock is None
    (world.folder / "plan.json").write_text(world.plan.to_json(), encoding="utf-8")
    job = {
        "plan": str(world.folder / "plan.json"),
        "rows": str(world.frames.folder),
        "schema": BY_COUNT if counts else BY_CLOCK,
        "clock": None if counts else str(world.clock.folder),
        "columns": world.columns(),
        "secret": str(world.secret),
        "checkpoint": str(world.checkpoint),
        "out": str(world.out),
        "keys_in_group": keys_in_group,
        "master": master,
        "settings": dict(settings or {}),
        "stops": stops,
        "marks": str(world.folder) if tells else None,
        "log": log,
        "pages": None if pages is None else str(pages),
    }
    (world.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
    with log_of(world).open("ab") as own:
        return subprocess.Popen(
            [sys.executable, _TESTS / "spark" / "drive.py", world.folder / "job.json"],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            stdout=own,
            stderr=own,
        )


def log_of(world: World) -> Path:
    """What drivers printed."""
    return world.folder / "log"


def wait_for(world: World, process: subprocess.Popen[bytes], stop: Stop) -> Path:
    """Until a driver stands at a stop; it goes on when the file that comes back is deleted."""
    when, number, _ = stop
    mark, until = world.folder / f"{when} {number}", time.monotonic() + PATIENCE
    while not mark.exists():
        said = log_of(world).read_text()[-20_000:]
        assert process.poll() is None and time.monotonic() < until, said
        time.sleep(0.02)
    return mark


def wait(world: World, process: subprocess.Popen[bytes], code: int = 0) -> None:
    """For the end of a driver."""
    try:
        assert process.wait(PATIENCE) == code, log_of(world).read_text()[-20_000:]
    finally:
        end(process)


def killed(world: World, when: str, number: int, seconds: float = 0.0, **options: Any) -> None:
    """A driver that kills itself there."""
    wait(world, start(world, (when, number, seconds), **options), -signal.SIGKILL)


def finished(world: World, **options: Any) -> None:
    """A driver that goes on to the end."""
    wait(world, start(world, **options))


def batches(world: World) -> tuple[int, int]:
    """How many were written, and how many Spark noted as done."""
    commits = (world.checkpoint / "commits").glob("[0-9]*")
    return len(list(world.out.glob("batch=*"))), len(list(commits))
