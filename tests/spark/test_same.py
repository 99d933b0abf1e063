"""Large inputs: ``rillet run`` and Spark, however many cores and workers, release the same.

A thousand keys with a million observations by count, and a hundred thousand keys by the clock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.driven import finished
from tests.spark.test_release import BATCHES, FIXED, OPTIONS, World

import rillet
from helpers.spark import (
    ON_CLUSTER,
    PATIENCE,
    QUIET,
    Cluster,
    need_java,
    records,
    saved,
    sorted_records,
    worker_python,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),
]

TICK = 60 * 10**6
#: Keys, observations or ticks of each, and what makes a plan of them.
SIZES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "by count": (1_000, 1_000, {"length": 1_000}),
    "by the clock": (
        *(100_000, 10),
        {"every": "1m", "start": "2026-01-01T00:00Z", "length": "10m"},
    ),
}
CONFIG = """
[plan]
epsilon = 1.0
delta = 1e-6
upper = 10.0
threshold = {kind = "fixed"}
OPTIONS

[keys]
columns = ["meter"]
file = "meters.txt"

[source]
path = "rows.parquet"
column = "kwh"
ORDER

[state]
folder = "live"
releases = "parquet"

[[sink]]
kind = "parquet"
path = "releases"

[spark]
checkpoint = "checkpoint"
UNTIL
"""


class Input:
    """Batches of rows in any order, the same rows in one file, and what ``rillet run`` released."""

    def __init__(self, folder: Path, name: str) -> None:
        keys, each, options = SIZES[name]
        self._folder, self.by_clock = folder, "every" in options
        self.world = World(folder, keys, **OPTIONS, **FIXED, **options)
        rng, tables = np.random.default_rng(5), []
        names = np.array([key[0] for key in self.world.plan.keys])
        clock, part = self.world.plan.clock, -(-each // BATCHES)
        for first in range(0, each, part):
            numbers = np.arange(first, min(first + part, each))
            key_of, t = np.tile(np.arange(keys), len(numbers)), np.repeat(numbers, keys)
            order = rng.permutation(len(t))
            columns: dict[str, Any] = {"meter": names[key_of]}
            if clock is None:
                columns["number"] = t
            else:
                at = clock.start + t * TICK + rng.integers(0, TICK, len(t))
                columns["time"] = pa.array(at, pa.timestamp("us", "UTC"))
                until = clock.start + (int(numbers[-1]) + 1) * TICK
                self.world.clock.add(until=pa.array([until], pa.timestamp("us", "UTC")))
            columns["kwh"] = rng.exponential(2.0, len(t))
            if clock is not None:
                columns["kwh"] = columns["kwh"].astype(str)
            tables.append(pa.table(columns))
            mixed = tables[-1].take(order)
            self.world.frames.add(**{name: mixed[name] for name in mixed.column_names})
        self._whole = pa.concat_tables(tables)
        self._secret = saved(folder, rillet.Secret.generate(), "own")
        here = self.job("one")
        program = [sys.executable, "-m", "rillet", "run", "--quiet", "--config", "job.toml"]
        subprocess.run([*program, "--secret", "secret"], cwd=here, check=True, timeout=PATIENCE)
        files = sorted((here / "releases").glob("*.parquet"))
        self.expected = sorted_records(pa.concat_tables(map(pq.read_table, files)))
        assert len(self.expected) == keys * each

    def job(self, name: str) -> Path:
        """A folder with the job as a file, and a copy of the secret."""
        folder = self._folder / name
        folder.mkdir()
        shutil.copy(self._secret, folder / "secret")
        pq.write_table(self._whole, folder / "rows.parquet")
        (folder / "meters.txt").write_text(
            "".join(f"{key[0]}\n" for key in self.world.plan.keys), encoding="utf-8"
        )
        plan = SIZES["by the clock" if self.by_clock else "by count"][2]
        text = CONFIG.replace("OPTIONS", "\n".join(f"{k} = {v!r}" for k, v in plan.items()))
        text = text.replace("ORDER", 'time = "time"' if self.by_clock else 'sequence = "number"')
        text = text.replace("UNTIL", 'until = "2026-01-01T00:10Z"' if self.by_clock else "")
        (folder / "job.toml").write_text(text, encoding="utf-8")
        return folder

    def on_spark(self, name: str, **options: Any) -> pa.Table:
        """Batch after batch, in a folder of its own."""
        world, folder = self.world, self._folder / name
        folder.mkdir()
        shutil.copy(self._secret, folder / "secret")
        world.secret, world.checkpoint = folder / "secret", folder / "checkpoint"
        world.out = folder / "out"
        finished(world, keys_in_group=None, **options)
        return records(world.out)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Input]:
    """Each is made once."""
    need_java()
    made: dict[str, Input] = {}

    def of(name: str) -> Input:
        if name not in made:
            made[name] = Input(tmp_path_factory.mktemp("input"), name)
        return made[name]

    return of


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("cores", [1, 2])
def test_cores(name: str, cores: int, inputs: Callable[[str], Input]) -> None:
    own = inputs(name)
    assert own.on_spark(f"local {cores}", master=f"local[{cores}]") == own.expected


@pytest.mark.parametrize("name", SIZES)
def test_two_workers(name: str, inputs: Callable[[str], Input], cluster: Cluster) -> None:
    own = inputs(name)
    on_cluster: dict[str, Any] = {"master": cluster.master, "settings": ON_CLUSTER}
    assert own.on_spark("cluster", **on_cluster) == own.expected


@pytest.mark.parametrize("name", SIZES)
def test_a_job_that_is_submitted(
    name: str, inputs: Callable[[str], Input], cluster: Cluster
) -> None:
    import pyspark

    own, home = inputs(name), Path(pyspark.__file__).parent
    here = own.job("submitted")
    settings = [f"{name}={value}" for name, value in {**QUIET, **ON_CLUSTER}.items()]
    program: list[Any] = [home / "bin" / "spark-submit", "--master", cluster.master]
    for setting in settings:
        program += ["--conf", setting]
    script = Path(rillet.__file__).parent / "spark" / "job.py"
    subprocess.run(
        [*program, script, "job.toml", "--secret", here / "secret"],
        cwd=here,
        env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": worker_python()},
        check=True,
        timeout=PATIENCE,
    )
    assert records(here / "releases") == own.expected
