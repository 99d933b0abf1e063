"""The real command line, in a process of its own."""

import subprocess

import pytest

from helpers.prompt import prompt_folder

# A value that no release, count or parameter has; if it shows, something leaked.
MARKER = 123.456789


@pytest.fixture
def rillet(tmp_path):
    """Run ``rillet`` in an empty folder; returns the finished process."""

    def run(*arguments, stdin="", timeout=120):
        return subprocess.run(
            [prompt_folder() / "rillet", *map(str, arguments)],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def marker():
    return MARKER


@pytest.fixture
def complains(marker):
    """Check an error: the code, one line of reason, no traceback, no private value."""

    def check(done, code, *words):
        assert done.returncode == code, done.stderr
        reasons = [line for line in done.stderr.splitlines() if line.startswith("rillet: ")]
        assert reasons, done.stderr
        for word in words:
            assert word in reasons[-1], reasons[-1]
        assert "Traceback" not in done.stderr
        assert str(marker)[:7] not in done.stderr
        assert "123.45" not in done.stderr

    return check
