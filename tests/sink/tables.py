"""Releases for tests: made up, so that they can be large and strange."""

from __future__ import annotations

from typing import Any

from rillet.release import NUMBERS, Releases
from rillet.testing.sink_contract import STRANGE_KEYS, changed, made_up_releases

__all__ = ["STRANGE_KEYS", "changed", "records", "replaced", "table"]

table = made_up_releases


def replaced(original: Releases, *, at: Any = None, **columns: Any) -> Releases:
    """The same with other columns."""
    known = {name: original.rows(name) for name in NUMBERS}
    return Releases(
        original.keys,
        original.key_of,
        original.t,
        original.at if at is None else at,
        original.names,
        {**known, **columns},
        **original.common,
    )


def records(*tables: Releases) -> list[dict[str, Any]]:
    return [row for one in tables for release in one for row in release]
