"""What every sink of releases promises.

**Privacy.** Post-processing. A sink knows public releases and nothing else.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import msgspec

from rillet.errors import OutputError
from rillet.release import Key, Releases, key_text

__all__ = [
    "Position",
    "Seconds",
    "Sink",
    "SinkOptions",
    "Text",
    "conflict",
    "lost",
    "position_number",
]

#: Where a sink stands. Only the sink that made it knows what is in it; for everybody else it is
#: JSON that is kept with the acknowledgement and given back.
Position: TypeAlias = Mapping[str, int]

#: Seconds that a delivery has to end when the sink is closed.
_LONGEST_CLOSE = 10.0

#: Options: text that is not empty, and a time to wait.
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class SinkOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """Base of the schemas of options: by keyword, unknown fields forbidden, tagged ``kind``."""


class Sink(ABC):
    """Takes releases, in order.

    A kind of sink is a subclass with its schema of options, made as ``Kind(options,
    key_columns=…)`` by :func:`rillet.sink.make_sink`. Making one opens nothing. A kind gives
    itself a name and defines `_open`, `_deliver` and `_close`; `rillet.testing.check_sink` tests
    the promises:

    - **Again is harmless.** Who delivers keeps what :meth:`position` says together with its
      acknowledgement. After a crash it opens the sink at the position that it has kept, and
      delivers again what was not acknowledged: the same records in the same order, perhaps cut
      differently, perhaps with more behind them. A record whose (key, t, name) is there already,
      with the same numbers, changes nothing, also if it has another ``at``.
    - **All or nothing, never another value.** A delivery that fails has taken nothing, and may be
      tried again. A second, different record is refused, by its key and t.
    - **Close is safe.** Any thread may close a sink at any time. A delivery under way is broken off
      and fails, as if it had not begun.

    A kind that cannot look at what it published (a pipe, a broker) says so: it takes records *at
    least* once, and leaves the second promise to the durable state of the run.

    **Privacy.** Post-processing.

    Attributes
    ----------
    Options : type of SinkOptions
        The schema.
    name : str
        The target, in messages: public, without passwords, different for different targets.
    """

    Options: ClassVar[type[SinkOptions]]
    name: str

    def __init__(self, options: Any, *, key_columns: Sequence[str] = ()) -> None:
        self.options, self.key_columns = options, tuple(key_columns)
        self._lock = threading.Lock()
        self._is_open = self._closing = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def identity(self, folder: Path | None = None) -> str:
        """What a state knows it by: kind and name, a path as seen from this folder if it is there.

        So the folder of a configuration may move.
        """
        return f"{self.options.__struct_config__.tag}:{self.name}"

    def check(self, position: Position | None = None) -> None:
        """See whether it could be opened, publishing and leaving nothing; raises as `open`."""
        self.open(position).close()

    def open(self, position: Position | None = None) -> Self:
        """Open it at the position of the last acknowledgement; None: nothing was acknowledged.

        Raises
        ------
        OutputError
            If it cannot be opened, or has lost what was acknowledged.
        """
        with self._lock:
            if self._is_open:
                raise OutputError(f"{self.name}: expected a sink to open, found it open already")
            self._closing = False
            self._open(position)
            self._is_open = True
        return self

    def deliver(self, releases: Releases) -> None:
        """Take all releases; when this returns they are as durable as the sink promises.

        Raises
        ------
        OutputError
            If the sink cannot be written, or has another value for a record, which is named.
        """
        with self._lock:
            if not self._is_open or self._closing:
                raise OutputError(f"{self.name}: expected an open sink, found it closed")
            if len(releases):
                self._deliver(releases)

    def position(self) -> Position | None:
        """Where the sink stands after what was delivered; None if it has no such thing."""
        return None

    def close(self) -> None:
        """Let go of the file or the connection; closing again does nothing.

        Raises
        ------
        OutputError
            If a delivery does not end, as into a pipe without a reader; the sink stays open then.
        """
        self._closing = True
        if not self._lock.acquire(blocking=False):
            self._break_off()
            if not self._lock.acquire(timeout=_LONGEST_CLOSE):
                raise OutputError(
                    f"{self.name}: expected the delivery under way to end, found that it does not"
                )
        try:
            if self._is_open:
                self._is_open = False
                self._close()
        finally:
            self._lock.release()

    @abstractmethod
    def _open(self, position: Position | None) -> None:
        """Open it; whatever was opened is closed again if this raises."""

    @abstractmethod
    def _deliver(self, releases: Releases) -> None:
        """Take releases, of which there is at least one; they may know keys that have none."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of everything."""

    def _break_off(self) -> None:  # noqa: B027 - most deliveries are short
        """Make a delivery in another thread end soon, if it could wait for long."""

    def _no_position(self, position: Position | None) -> None:
        if position is not None:
            raise OutputError(f"{self.name}: expected no position, found {dict(position)}")


def conflict(name: str, key: Key, t: int) -> OutputError:
    """The refusal of a second, different value."""
    return OutputError(
        f"{name}: expected the release of key {key_text(key)} at t = {t:,} to be what is published "
        "there already, found a different one; a published value is never replaced. Either two "
        "runs write to one target, or a state was restored from an old backup: give each its own"
    )


def lost(name: str, expected: str, found: str) -> OutputError:
    """What was acknowledged is not there any more."""
    return OutputError(
        f"{name}: expected at least {expected}, which were delivered before, found {found}; what "
        "is missing was published and cannot be drawn again. Restore it from a backup, or give "
        "the sink another name to go on without it"
    )


def position_number(position: Position | None, name: str, key: str) -> int:
    """The number that a position holds, 0 if there is none yet."""
    if position is None:
        return 0
    found = position.get(key)
    if set(position) != {key} or type(found) is not int or found < 0:
        raise OutputError(
            f"{name}: expected a position such as {{'{key}': 0}}, found {dict(position)}; it "
            "belongs to another kind of sink"
        )
    return found
