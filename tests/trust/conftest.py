"""A desk for each test; a broker and a database for all of them."""

from __future__ import annotations

import pytest

from helpers.servers import broker, database
from trust.runs import Desk

__all__ = ["broker", "database"]


@pytest.fixture
def desk(tmp_path):
    """An empty folder in which the command line works."""
    with Desk(tmp_path / "desk") as made:
        yield made
