"""Releases of one stream as JSON lines, for the command line.

**Privacy.** Post-processing of released values.
"""

from __future__ import annotations

from collections.abc import Iterator

from rillet.release import Releases
from rillet.sink import JsonLinesSink
from rillet.sink.spelling import spell as spell_bytes

__all__ = ["ReleaseSink", "spell"]

ReleaseSink = JsonLinesSink


def spell(releases: Releases) -> Iterator[str]:
    """Yield the lines of :func:`rillet.sink.spelling.spell` as text, many at a time."""
    return (piece.decode("ascii") for piece in spell_bytes(releases))
