"""The frame of the benchmarks: what it finds, what it measures, what it writes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"

EXAMPLE = """
import time
from frame import Comparison, Contender

def wait(seconds):
    return lambda: time.sleep(seconds)

def bench_waiting():
    return Comparison("waiting", "nap", [
        Contender("rillet", wait(0.02), 1),
        Contender("slow", wait(0.04), 1, rillet_within=0.9),
        Contender("in parts", wait(0.04), 4, rillet_within={limit}),
    ])

def helper_that_is_no_benchmark():
    raise AssertionError
"""


def run(folder: Path, *arguments: str, limit: float = 3.0) -> subprocess.CompletedProcess[str]:
    (folder / "bench_example.py").write_text(
        EXAMPLE.replace("{limit}", str(limit)), encoding="utf-8"
    )
    return subprocess.run(
        [sys.executable, RUN, "--folder", folder, "--rounds", "3", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_lists_what_it_finds(tmp_path):
    assert run(tmp_path, "--list").stdout.split() == ["example:waiting"]


def test_ratios_are_per_operation_and_relative_to_rillet(tmp_path):
    done = run(tmp_path, "--json", str(tmp_path / "new" / "out.json"), "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "new" / "out.json").read_text(encoding="utf-8"))
    assert [row["contender"] for row in result["rows"]] == ["rillet", "slow", "in parts"]
    ratios = [row["rillet_ratio"] for row in result["rows"]]
    assert ratios == pytest.approx([1.0, 0.5, 2.0], rel=0.3)
    assert [row["kept"] for row in result["rows"]] == [None, True, True]
    assert result["versions"]["rillet"]
    for word in ("waiting", "slow", "in parts", "yes"):
        assert word in done.stdout


def test_a_missed_promise_shows_and_fails_when_strict(tmp_path):
    done = run(tmp_path, "--strict", limit=0.5)
    assert done.returncode == 1
    assert "NO" in done.stdout
    assert run(tmp_path, limit=0.5).returncode == 0


def test_a_name_that_matches_nothing_is_an_error(tmp_path):
    done = run(tmp_path, "no-such")
    assert done.returncode == 2
    assert "no-such" in done.stderr


@pytest.fixture(scope="module")
def timing():
    spec = importlib.util.spec_from_file_location("timing", RUN.with_name("timing.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["timing"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["timing"]


@pytest.mark.parametrize(("leak", "found"), [(0, False), (20, True), (-20, True)])
def test_timing_finds_a_leak_under_drift_and_interrupts(timing, leak, found):
    draws = np.random.default_rng(1)
    second = timing.coins(20_000, draws)
    drift = 2_000 + 1_000 * np.sin(np.arange(40_000) / 3_000)
    interrupts = 50_000 * (draws.random(40_000) < 0.02)
    times = drift + draws.exponential(200, 40_000) + interrupts + leak * second
    row = timing.compared("made up", times.astype(np.int64), second)
    assert row.depends == found
    low, high = row.interval
    assert low < leak < high
    assert row.smallest < 20


def test_timing_by_size_has_two_halves_of_every_block(timing):
    sizes = np.random.default_rng(2).random(1_000) + np.arange(1_000)
    larger = timing.larger(sizes).reshape(-1, 100)
    assert (larger.sum(axis=1) == 50).all()
    assert (larger[:, 75:].sum(axis=1) == 25).all()
