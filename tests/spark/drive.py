"""A driver to be killed: ``python drive.py JOB.json``.

Runs one query over a folder of batches.  ``stops`` are instants of a batch, by its number: before
it is written, behind it and before Spark notes that, or so many seconds into it, while workers are
at work.  There the driver kills itself and its Java process, or it tells the test, which kills a
worker, and waits until that is done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import rillet
from helpers.spark import PATIENCE, Frames, run, session
from rillet.spark import release, to_parquet


def end() -> None:
    """As kill -9 of the driver, whose Java process is in its group."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def tell(mark: Path) -> None:
    """Let the test do what it wants to do here."""
    mark.touch()
    until = time.monotonic() + PATIENCE
    while mark.exists() and time.monotonic() < until:
        time.sleep(0.02)


def main(job: dict[str, Any]) -> None:
    """Run it."""
    plan = rillet.Plan.from_json(Path(job["plan"]).read_text(encoding="utf-8"))
    spark = session(job["master"], **job["settings"])
    if job["log"]:
        spark.sparkContext.setLogLevel(job["log"])
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
    stops = {(when, number): seconds for when, number, seconds in job["stops"]}
    done: set[tuple[str, int]] = set()

    def stop(when: str, number: int) -> None:
        if (when, number) not in stops or (when, number) in done:
            return
        done.add((when, number))  # a batch that is started again does not stop again
        act = (lambda: tell(Path(job["marks"]) / f"{when} {number}")) if job["marks"] else end
        if when == "during":
            threading.Timer(stops[when, number], act).start()
        else:
            act()

    def sink(batch: Any, number: int) -> None:
        stop("before", number)
        stop("during", number)
        write(batch, number)
        stop("behind", number)

    run(releases, sink, Path(job["checkpoint"]))
    if job["pages"] is not None:
        keep_pages(spark, Path(job["pages"]))
    spark.stop()


def keep_pages(spark: Any, folder: Path) -> None:
    """What the user interface shows, and its programming interface."""
    root, own = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    folder.mkdir()
    pages = ["jobs", "stages", "environment", "executors", "SQL", "StreamingQuery", "storage"]
    pages += [f"SQL/execution/?id={number}" for number in range(4)]
    pages += [f"api/v1/applications/{own}/{name}" for name in ("environment", "sql", "stages")]
    for number, name in enumerate(pages):
        try:
            with urllib.request.urlopen(f"{root}/{name}", timeout=30) as found:
                (folder / f"{number}").write_bytes(found.read())
        except urllib.error.HTTPError as error:
            (folder / f"{number}.missing").write_text(f"{name}: {error}")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
