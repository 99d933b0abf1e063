"""Killed at any instant, a query goes on: each (key, t) once, with the value that it had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_release import BY_CLOCK, BY_COUNT, FIXED, World, by_clock, by_count

from helpers.spark import need_java, records

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),
]

TESTS = Path(__file__).parents[1]
_PATIENCE = 180.0


def start(
    world: World,
    kill: Sequence[Any] | None = None,
    *,
    master: str = "local[1]",
    seconds: float = 0.0,
    settings: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own."""
    by_count = world.plan.clock is None
    (world.folder / "plan.json").write_text(world.plan.to_json(), encoding="utf-8")
    job = {
        "plan": str(world.folder / "plan.json"),
        "rows": str(world.frames.folder),
        "schema": BY_COUNT if by_count else BY_CLOCK,
        "clock": None if by_count else str(world.clock.folder),
        "columns": world.columns(),
        "secret": str(world.secret),
        "checkpoint": str(world.checkpoint),
        "out": str(world.out),
        "keys_in_group": 64,
        "master": master,
        "settings": dict(settings or {}),
        "kill": kill,
        "seconds": seconds,
    }
    (world.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with (world.folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, TESTS / "spark" / "drive.py", world.folder / "job.json"],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            stdout=log,
            stderr=log,
        )


def killed(world: World, when: str, number: int, seconds: float = 0.0, **options: Any) -> None:
    process = start(world, (when, number), seconds=seconds, **options)
    assert process.wait(_PATIENCE) == -signal.SIGKILL, (world.folder / "log").read_text()


def finished(world: World, **options: Any) -> None:
    process = start(world, **options)
    assert process.wait(_PATIENCE) == 0, (world.folder / "log").read_text()


def batches(world: World) -> tuple[int, int]:
    """How many were written, and how many Spark noted as done."""
    commits = (world.checkpoint / "commits").glob("[0-9]*")
    return len(list(world.out.glob("batch=*"))), len(list(commits))


def test_a_driver_that_is_killed_goes_on(tmp_path: Path) -> None:
    need_java()
    world, expected = by_count(tmp_path, 300, 6, **FIXED)
    killed(world, "behind", 1)
    assert batches(world) == (2, 1)  # the second was written, and Spark does not know
    killed(world, "during", 2, 0.4)
    finished(world)
    assert records(world.out) == expected


@pytest.mark.parametrize("name", ["by count", "by the clock"])
def test_a_driver_that_is_killed_anywhere_goes_on(name: str, tmp_path: Path) -> None:
    need_java()
    world, expected = {
        "by count": lambda: by_count(tmp_path, 300, 8, **FIXED),
        "by the clock": lambda: by_clock(tmp_path, 300, 4, **FIXED),
    }[name]()
    killed(world, "before", 0)
    killed(world, "during", 0, 0.2)
    killed(world, "behind", 0)
    assert batches(world) == (1, 0)
    killed(world, "during", 1, 0.8, master="local[2]")
    killed(world, "behind", 1, master="local[2]")
    killed(world, "before", 2)
    killed(world, "behind", 2)
    finished(world, master="local[2]")
    assert records(world.out) == expected
