"""RILLET_STRICT=1 leaves no test unrun without saying so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = {
    "mark": "@pytest.mark.skip(reason='no broker')\ndef test_it():\n    pass\n",
    "call": "def test_it():\n    pytest.skip('no broker')\n",
    "fixture": (
        "@pytest.fixture\ndef broker():\n    pytest.skip('no broker')\n"
        "def test_it(broker):\n    pass\n"
    ),
    "module": "pytest.importorskip('a_part_that_nobody_has', reason='no broker')\n"
    "def test_it():\n    pass\n",
}


def run(folder: Path, body: str, strict: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    settings = f"[pytest]\npythonpath = {Path(__file__).parent}\n"
    (folder / "pytest.ini").write_text(settings, encoding="utf-8")
    (folder / "test_part.py").write_text("import pytest\n" + body, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "RILLET_STRICT": strict, "PYTEST_ADDOPTS": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("body", SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_fails_when_strict(tmp_path, body):
    done = run(tmp_path, body, "1")
    assert done.returncode in (1, 2), done.stdout
    assert "no broker" in done.stdout
    assert "RILLET_STRICT" in done.stdout


@pytest.mark.parametrize("strict", ["", "0"])
def test_a_skip_is_a_skip_otherwise(tmp_path, strict):
    done = run(tmp_path, SKIPS["call"], strict)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


def test_an_expected_failure_is_not_a_skip(tmp_path):
    done = run(tmp_path, "@pytest.mark.xfail\ndef test_it():\n    assert False\n", "1")
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout
