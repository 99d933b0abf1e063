"""What holds for every test.

``RILLET_STRICT=1`` turns every skip into a failure: where all parts are meant to be installed, a
test that could not run is a fault, not a detail.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from helpers.uses import forget_uses

STRICT = os.environ.get("RILLET_STRICT", "") not in ("", "0")

# Time limits per example fail on a busy machine; a fixed order of examples makes what failed once
# fail again.
settings.register_profile("rillet", deadline=None, derandomize=True)
settings.load_profile("rillet")


@pytest.fixture(autouse=True)
def _uses_of_secrets() -> None:
    """A test may use the secret of another one: to the guard it is another process."""
    forget_uses()


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as a skip too, and is not one.
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"RILLET_STRICT is set, and this was not run. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
