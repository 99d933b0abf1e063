"""A real Chromium for all tests of the page, with every network but loopback cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rillet.errors import InputError
from rillet.web.app import check_page

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No name is found and no proxy asked: the page has loopback or nothing.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """Debian's browser, driven by Playwright, with a fresh profile for each test."""
    from playwright.sync_api import sync_playwright

    try:
        check_page()
    except InputError as error:
        pytest.skip(str(error))
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed; type: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots go, to be looked at."""
    folder = Path(__file__).parents[2] / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
