"""Blocks of a live source while the clock goes on: read in a thread of their own, one at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from rillet.source import Block


class Ended(Exception):
    """The source has ended, or was told to stop."""


class Reader:
    """Asks a source for its next block when it is told to, and never before.

    Asking is acknowledging (:class:`rillet.source.Source`): :meth:`ask` says that the block before
    is absorbed.  The source is opened in the thread as well, since that may wait for a first line.

    **Privacy.** Hands blocks on, and looks at none.
    """

    def __init__(self, open_blocks: Callable[[], Iterator[Block]]) -> None:
        self._open_blocks, self._closing = open_blocks, False
        self._asked = threading.Semaphore(0)
        self._read: queue.SimpleQueue[Block | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rillet-reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            blocks = self._open_blocks()
            while self._asked.acquire() and not self._closing:
                self._read.put(next(blocks))
        except StopIteration:
            self._read.put(Ended())
        except BaseException as error:  # noqa: BLE001 - raised again where the block is awaited
            self._read.put(error)

    def ask(self) -> None:
        """Ask for the next block: all before it are safe."""
        self._asked.release()

    def wait(self, seconds: float) -> Block | None:
        """The block that was asked for, or None if none came in this time.

        Raises
        ------
        Ended
            If there are no more.
        """
        try:
            read = self._read.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(read, BaseException):
            raise read
        return read

    def close(self, seconds: float) -> None:
        """Join the thread, for a source that was told to stop; what was not asked beyond stays."""
        self._closing = True
        self._asked.release()
        self._thread.join(seconds)
