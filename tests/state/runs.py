"""Durable runs through the real command line, in folders that can be copied and damaged."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rillet.cli
from helpers.records import NAMES, without_times
from rillet import Plan, Secret

KEYS = (("a",), ("b",), ("c",))
CONFIG = """
[plan]
file = "plan.json"

[source]
path = "in.csv"
column = "x"
block_rows = {block_rows}

[keys]
columns = ["k"]
values = ["a", "b", "c"]

[state]
folder = "live"

[[sink]]
kind = "jsonl"
path = "out/out.jsonl"

[log]
level = "debug"
"""


@dataclass(frozen=True)
class Ended:
    """How a run ended, and all that it said."""

    code: int
    said: str


@dataclass(frozen=True)
class Run:
    """A folder with an input, a configuration, a durable state and its sinks."""

    folder: Path

    @property
    def live(self) -> Path:
        return self.folder / "live"

    @property
    def database(self) -> Path:
        return self.live / "state.db"

    @property
    def out(self) -> Path:
        return self.folder / "out" / "out.jsonl"

    @property
    def command(self) -> list[str]:
        # From within the folder: the state knows a file of releases by its path.
        return ["run", "--config", "run.toml", "--quiet", "--secret", "secret"]

    def go(self, *more: str) -> Ended:
        """Run in this process."""
        said = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(said),
        ):
            code = rillet.cli.main([*self.command, *more])
        return Ended(code, said.getvalue())

    def spawn(self, *more: str, code: str = "") -> subprocess.Popen[bytes]:
        """Run in a process of its own; ``code`` is Python that comes first."""
        start = f"{code}\nimport sys\nfrom rillet.cli import main\nsys.exit(main(sys.argv[1:]))"
        return subprocess.Popen(
            [sys.executable, "-c", start, *self.command, *more],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def copy(self, to: Path) -> Run:
        shutil.copytree(self.folder, to)
        return Run(to)

    def give(self, rows: list[str]) -> None:
        """Let the input have these rows."""
        (self.folder / "in.csv").write_text("\n".join(["k,x", *rows]) + "\n")

    def published(self) -> tuple[bytes, list[tuple[object, ...]]]:
        """All that anybody could read but times: the file of releases, and the database's."""
        with contextlib.closing(sqlite3.connect(self.live / "releases.db")) as connection:
            rows = connection.execute(f"SELECT {NAMES} FROM releases ORDER BY key, t").fetchall()
        return without_times(self.out.read_bytes()) if self.out.exists() else b"", rows

    def files(self) -> dict[str, str]:
        """A digest of each file, but for what is kept beside databases and secrets."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.name.endswith(("-wal", "-shm", ".uses"))
        }


def rows_of(count: int, seed: int = 7) -> list[str]:
    """Rows of three declared keys, and of one that is not."""
    random = np.random.default_rng(seed)
    keys = random.choice(["a", "b", "c", "nobody"], count, p=[0.4, 0.3, 0.2, 0.1])
    values = random.exponential(8.0, count)
    return [f"{key},{value:.6f}" for key, value in zip(keys, values, strict=True)]


def prepared(folder: Path, *, block_rows: int = 16, plan: Plan | None = None) -> Run:
    """A run that has not begun."""
    (folder / "out").mkdir(parents=True, exist_ok=True)
    if plan is None:
        plan = Plan(epsilon=20.0, upper=100.0, length=120, lag=12, keys=KEYS)
    (folder / "plan.json").write_text(plan.to_json())
    # Known, so that what a test finds it finds again; not Secret.for_tests, which is refused.
    Secret(bytes(range(32))).save(folder / "secret")
    (folder / "run.toml").write_text(CONFIG.format(block_rows=block_rows))
    return Run(folder)
