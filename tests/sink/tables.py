"""Releases for tests: made up, so that they can be large and strange."""

from __future__ import annotations

from typing import Any

from rillet.release import Releases
from rillet.testing.sink_contract import STRANGE_KEYS, changed, made_up_releases, replaced

__all__ = ["STRANGE_KEYS", "changed", "records", "replaced", "table"]

table = made_up_releases


def records(*tables: Releases) -> list[dict[str, Any]]:
    return [row for one in tables for release in one for row in release]
