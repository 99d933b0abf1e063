"""What goes to workers loads little, and what they open serves all queries of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import rillet
from helpers.spark import planned, saved
from rillet.spark.group import check_of
from rillet.spark.shipped import Columns, Setup


def test_a_processor_that_only_names_its_state_loads_little() -> None:
    heavy = "{'numpy', 'pandas', 'pyarrow', 'scipy', 'rillet.plan', 'rillet.spark.group'}"
    code = f"import sys, rillet.spark.shipped; sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


def test_queries_of_one_process_share_a_plan_and_nothing_else(tmp_path: Path) -> None:
    plan = rillet.Plan(
        epsilon=1.0, upper=1.0, length=9, keys=["a", "b"], threshold=rillet.FixedThreshold()
    )
    secret = rillet.Secret.for_tests(3)
    path, own = planned(tmp_path, plan), str(saved(tmp_path, secret))
    setups = [
        Setup(path, Columns("v", ("k",)), own, check_of(plan, secret, name), name, 1)
        for name in ("01", "23")
    ]
    one, other = (setup.open() for setup in setups)
    assert one is not other and one is setups[0].open()
    assert one.plan is other.plan and one.declared is other.declared
    sealed = one.seal(b"content", "rows", 0)
    assert one.unseal(sealed, "rows", 0) == b"content"
    with pytest.raises(rillet.StateError, match="does not open"):
        other.unseal(sealed, "rows", 0)
