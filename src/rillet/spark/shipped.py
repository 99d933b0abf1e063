"""What the driver sends to its workers: the processor, and what it is told.

For every query Spark starts a Python process that only asks the processor for the names of its
state, and waits for it.  So this module loads little; what works on rows is loaded where that is
done.

**Privacy.** Public: which columns, which files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import DataFrameLike
    from pyspark.sql.streaming.stateful_processor import TimerValues

    from rillet.spark.group import Opened


class Columns(NamedTuple):
    """The columns of a data frame: of values, of the parts of keys, of times and of numbers."""

    value: str
    key: tuple[str, ...] = ()
    at: str | None = None
    sequence: str | None = None

    def named(self) -> list[tuple[str, ...]]:
        """The same for JSON."""
        roles = (self.value,), self.key, (self.at,), (self.sequence,)
        return [tuple(name for name in role if name is not None) for role in roles]


@dataclass(frozen=True)
class Setup:
    """What the driver tells the workers: public, but for nothing.

    ``plan`` is the path of a file, or the name of one that Spark brings to all workers: with many
    keys it is large, and what a processor holds goes to every task.  ``secret`` is the path of the
    secret's file, which each worker has, and ``check`` tells whether it is the right one;
    ``identity`` is that of the query, whose state is in ``partitions``.
    """

    plan: str
    columns: Columns
    secret: str
    check: str
    identity: str
    keys_in_group: int
    partitions: int = 1
    run: str = ""

    def open(self) -> Opened:
        """The plan and the secret; made once in each process."""
        from rillet.spark.group import open_setup

        return open_setup(self)


class GroupProcessor(StatefulProcessor):
    """Advances all keys of a group, whose sealed parts are its state.

    **Privacy.** Touches raw data; see :class:`rillet.spark.group.Group`.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name what is kept of a group."""
        self._parts = handle.getMapState("parts", "name STRING", "sealed BINARY")

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[DataFrameLike]:
        """All that came for a group in a batch."""
        from rillet.spark.processor import advanced

        return advanced(self._setup, int(key[0]), rows, self._parts)

    def close(self) -> None:
        """Nothing to close."""
