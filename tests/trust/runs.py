"""The command line as somebody at a desk uses it: files, runs, what they published."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rillet.cli
from rillet import Secret

#: Exit codes.
DONE, WRONG, REFUSED, FAILED = 0, 2, 4, 5
#: A plan whose range is declared: its releases are the exact sum plus noise, and nothing else.
PLAN = ("--mechanism", "baseline", "--epsilon", "1", "--upper", "1000", "--length", "1000")
#: Seconds that a process may take for anything.
PATIENCE = 20.0

Point = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class Ended:
    """How a run ended, and all that it said."""

    code: int
    said: str


class Desk:
    """A folder in which ``rillet`` is run; processes that a test leaves behind end with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate(timeout=PATIENCE)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    # --- input -----------------------------------------------------------------------------------

    def csv(self, name: str, rows: Iterable[object], *, header: str = "x", end: str = "\n") -> Path:
        """Write a file of rows; ``end`` is what the last one ends with."""
        path = self.folder / name
        path.write_text("\n".join([header, *map(str, rows)]) + end, encoding="utf-8")
        return path

    def append(self, name: str, rows: Iterable[object]) -> None:
        """Add rows to a file."""
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in rows)

    def secret(self, name: str = "secret") -> str:
        """A secret in a file."""
        Secret.generate().save(self.folder / name)
        return name

    # --- runs ------------------------------------------------------------------------------------

    def rillet(self, *words: object) -> Ended:
        """Run a command in this process."""
        said = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(said),
        ):
            try:
                code = rillet.cli.main([str(word) for word in words])
            except SystemExit as left:  # a command line that cannot be parsed
                code = int(str(left.code))
        return Ended(code, said.getvalue())

    def run(self, *words: object, plan: Iterable[object] = PLAN) -> Ended:
        """``rillet run`` under :data:`PLAN`."""
        return self.rillet("run", *words, *plan, "--quiet")

    def spawn(self, *words: object, before: str = "") -> subprocess.Popen[bytes]:
        """A command in a process of its own; ``before`` is Python that comes first."""
        start = f"{before}\nimport sys\nfrom rillet.cli import main\nsys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", start, *map(str, words)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)
        return process

    # --- output ----------------------------------------------------------------------------------

    def sums(self, name: str) -> dict[Point, float]:
        """The released sum of each (key, t) in a file of JSON lines."""
        path = self.folder / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines]
        return {(tuple(record["key"]), record["t"]): record["sum"] for record in records}

    def stored(self, folder: str = "live") -> list[tuple[Any, ...]]:
        """(key, t, sum) of each release in the folder of a state."""
        path = self.folder / folder / "releases.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT key, t, sum FROM releases ORDER BY key, t").fetchall()

    def count(self, folder: str = "live") -> int:
        """How many releases the folder of a state has."""
        with contextlib.suppress(sqlite3.Error):
            return len(self.stored(folder))
        return 0


def difference(
    first: dict[Point, float], second: dict[Point, float], t: int, key: tuple[str, ...] = ()
) -> float:
    """By how much two releases of one (key, t) differ; the true difference, if noise is shared."""
    return second[key, t] - first[key, t]


def wait_until(ready: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends by itself in time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def mode(path: Path) -> int:
    """The permissions of a file."""
    return path.stat().st_mode & 0o777
