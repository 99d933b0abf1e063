"""A job from the TOML of ``rillet run`` gives what ``rillet run`` gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rillet
from helpers.spark import records, saved, sorted_records
from helpers.uses import forget_uses

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]

CONFIG = """
[plan]
epsilon = 1.0
delta = 1e-6
upper = 10.0
threshold = {kind = "fixed"}
every = "1h"
start = "2026-01-01T00:00Z"
length = "4h"

[keys]
columns = ["meter"]
values = ["m0", "m1", "m2"]

[source]
path = "rows.csv"
column = "kwh"
time = "time"

[state]
folder = "live"
releases = "parquet"

[[sink]]
kind = "parquet"
path = "releases"

[spark]
checkpoint = "checkpoint"
until = "2026-01-01T04:00Z"
"""


def test_the_same_file_and_the_same_table(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rillet.spark import job

    rng = np.random.default_rng(1)
    rows = [
        f"m{key},2026-01-01T0{hour}:{minute:02d}:00Z,{rng.exponential(2.0):.3f}"
        for hour in range(4)
        for minute in range(0, 60, 7)
        for key in range(4)
    ]
    rows[3] = "m1,soon,7.0"
    rows[5] = "m1,2026-01-01T00:30:00Z,broken"
    for name in ("one", "spark"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text("\n".join(["meter,time,kwh", *rows]) + "\n")
        (tmp_path / name / "job.toml").write_text(CONFIG)
    secret = saved(tmp_path / "one", rillet.Secret.generate())
    again = saved(tmp_path / "spark", rillet.Secret.load(secret))
    rillet.run(tmp_path / "one" / "job.toml", secret=secret)
    forget_uses()
    monkeypatch.chdir(tmp_path / "spark")
    assert job.main(["job.toml", "--secret", str(again)]) == 0
    expected = pa.concat_tables(map(pq.read_table, (tmp_path / "one" / "releases").glob("*")))
    assert len(expected) == 12
    assert records(tmp_path / "spark" / "releases") == sorted_records(expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('kind = "parquet"', 'kind = "jsonl"'), "parquet or postgres on Spark"),
        (('until = "2026-01-01T04:00Z"', ""), "when the last tick ends"),
        (("checkpoint =", "chekpoint ="), "chekpoint"),
        (('column = "kwh"', ""), "the column with the values"),
    ],
)
def test_what_is_wrong_is_said(
    change: tuple[str, str],
    reason: str,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rillet.spark import job

    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("meter,time,kwh\n")
    Path("job.toml").write_text(CONFIG.replace(*change))
    assert job.main(["job.toml", "--secret", str(saved(tmp_path, rillet.Secret.generate()))]) == 2
    assert re.search(reason, capsys.readouterr().err)
