"""Published records without their times: a run by count is stamped when it releases."""

from __future__ import annotations

import re

import numpy as np

from rillet.release import FIELDS, Releases

__all__ = ["NAMES", "unstamped", "without_times"]

#: The columns of a table of records but for the time, as SQL.
NAMES = ", ".join(field.name for field in FIELDS if field.name != "at")

_TIME = rb'"at":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z",'
_TORN = rb'"(?:a(?:t(?:"(?::(?:"[^"]*"?)?)?)?)?)?\Z'


def unstamped(releases: Releases) -> Releases:
    """The same releases, all of 1970."""
    return Releases(
        releases.keys,
        releases.key_of,
        releases.t,
        np.zeros(len(releases), np.int64),
        releases.names,
        releases._columns,
        **releases.common,
    )


def without_times(lines: bytes) -> bytes:
    """JSON lines without ``at``; of a line that is torn within it, what comes before."""
    return re.sub(_TORN, b"", re.sub(_TIME, b"", lines))
