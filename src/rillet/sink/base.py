"""What every sink of releases promises.

**Privacy.** Post-processing. A sink knows public releases and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rillet.errors import OutputError
from rillet.release import Key
from rillet.sink.spelling import key_text
from rillet.table import ReleaseTable

__all__ = ["Place", "Sink", "check_place", "conflict", "lost"]

#: Public: where a sink stands, kept by the engine with its acknowledgement.
Place = Mapping[str, int]


class Sink(Protocol):
    """Takes tables of releases, in order.

    The engine delivers a table, keeps what :meth:`place` says together with its acknowledgement,
    and delivers the next. After a crash it opens the sink at the place that it has kept, and what
    was not acknowledged is delivered again: the same rows in the same order, perhaps cut
    differently, perhaps with more behind them. The sink makes that harmless.

    **Privacy.** Post-processing.
    """

    #: Public, for messages; holds no password.
    name: str

    def deliver(self, table: ReleaseTable) -> None:
        """Take all rows; when this returns they are as durable as the sink promises.

        A row whose (key, t) is there already, with the same numbers, changes nothing.

        Raises
        ------
        OutputError
            If the sink cannot be written, or has another value for a (key, t), which the message
            names. Nothing of the table has been taken then, and the same table may be delivered
            again.
        """
        ...

    def place(self) -> dict[str, int] | None:
        """Where the sink stands after what was delivered; None if it has no such thing."""
        ...

    def close(self) -> None:
        """Let go of the file or the connection; closing again does nothing."""
        ...


def conflict(name: str, key: Key, t: int) -> OutputError:
    """The refusal of a second, different value."""
    return OutputError(
        f"{name}: expected the release of key {key_text(key)} at t = {t:,} to be what is published "
        "there already, found a different one; a published value is never replaced. Two runs "
        "write to one place, or a state was restored from an old backup: give each its own"
    )


def lost(name: str, expected: str, found: str) -> OutputError:
    """What was acknowledged is not there any more."""
    return OutputError(
        f"{name}: expected at least {expected}, which were delivered before, found {found}; what "
        "is missing was published and cannot be drawn again. Restore it from a backup, or give "
        "the sink another name to go on without it"
    )


def check_place(place: Place | None, name: str, key: str) -> int:
    """The number that a place holds, 0 if there is none yet."""
    if place is None:
        return 0
    found = place.get(key)
    if set(place) != {key} or type(found) is not int or found < 0:
        raise OutputError(
            f"{name}: expected a place such as {{'{key}': 0}}, found {dict(place)}; it belongs to "
            "another kind of sink"
        )
    return found
