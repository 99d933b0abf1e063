"""A driver to be killed: ``python drive.py JOB.json``.

Runs one query over a folder of batches, and kills itself and its Java process when it is told to:
before a batch is written, behind it and before Spark notes that, or while workers are at work.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import rillet
from helpers.spark import Frames, run, session
from rillet.spark import release, to_parquet


def end() -> None:
    """As kill -9 of the driver, whose Java process is in its group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(job: dict[str, Any]) -> None:
    """Run it."""
    plan = rillet.Plan.from_json(Path(job["plan"]).read_text(encoding="utf-8"))
    spark = session(job["master"], **job["settings"])
    frames = Frames(Path(job["rows"]), job["schema"])
    clock = None if job["clock"] is None else Frames(Path(job["clock"]), "until TIMESTAMP")
    releases = release(
        frames.stream(spark),
        plan,
        **job["columns"],
        clock=None if clock is None else clock.stream(spark),
        secret=job["secret"],
        checkpoint=job["checkpoint"],
        keys_in_group=job["keys_in_group"],
    )
    write = to_parquet(job["out"])
    when, number = job["kill"] or ("never", -1)

    def sink(batch: Any, own: int) -> None:
        if own == number and when == "before":
            end()
        if own == number and when == "during":
            timer = threading.Timer(job["seconds"], end)
            timer.start()
        write(batch, own)
        if own == number and when == "behind":
            end()

    run(releases, sink, Path(job["checkpoint"]))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
