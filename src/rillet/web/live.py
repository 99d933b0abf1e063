"""What has been released since: one look at the database for all who watch.

**Privacy.** Post-processing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from rillet.errors import InputError
from rillet.release import Key, Releases, key_from_shown
from rillet.sink.reading import StoredReleases, open_releases, public_file, releases_in
from rillet.web.answers import columns, latest_rows

__all__ = ["Live", "Watcher"]

#: Seconds between two looks at the files, and between two signs of life to a client.
_LOOK, _HEARTBEAT = 0.25, 10.0
#: A file that was written this recently may change again within the grain of its time.
_GRAIN: Final = 0.1
#: Seconds that a client waits for the first look, at most.
_FIRST_LOOK: Final = 30.0
#: Releases of each key that a sparkline shows.
SPARK: Final = 48
#: Releases of one key that are sent at once to somebody who was away.
_CATCH_UP: Final = 5_000


class Live:
    """Follows the folder of a run, or a database of releases: the latest of each key, and news.

    **Privacy.** Post-processing.

    Parameters
    ----------
    path : path
        The folder of a state, a database of releases or a folder of Parquet files; it need not
        exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files = self._stamp()
        #: The latest release of each key, as :func:`rillet.web.answers.latest_rows` has it.
        self.latest: dict[Any, dict[str, Any]] = {}
        self.sparks: dict[Any, deque[float | None]] = {}
        self.names: tuple[str, ...] = ()
        self._known: dict[Key, int] = {}
        #: How many looks found something, and at which of them each key moved last.
        self.looks = 0
        self._moved_at: dict[Any, int] = {}
        self._watchers: set[Watcher] = set()
        self._looked = threading.Event()
        self._progress: dict[str, Any] | None = None

    # --- files -----------------------------------------------------------------------------------

    def open(self) -> StoredReleases:
        """The releases, opened to read."""
        return open_releases(self.path)

    def about(self) -> dict[str, Any] | None:
        """The public facts of the plan, if a run has written them."""
        return public_file(self.path, "about.json")

    def progress(self) -> dict[str, Any] | None:
        """How far the run is, if it says so, and how many seconds ago it did."""
        found = public_file(self.path, "progress.json")
        if found is not None:
            found["age"] = max(0.0, time.time() - float(found.get("updated") or 0))
        return found

    def _stamp(self) -> tuple[Any, ...]:
        """Changes whenever the database may have."""
        stamp: list[Any] = []
        database = releases_in(self.path)
        for path in (database, database.with_name(database.name + "-wal")):
            try:
                found = path.stat()
            except OSError:
                stamp.append(None)
                continue
            recent = time.time() - found.st_mtime < _GRAIN
            stamp.append((found.st_ino, found.st_size, found.st_mtime_ns, recent and time.time()))
        return tuple(stamp)

    def wait(self) -> None:
        """Until the first look is over."""
        self._looked.wait(_FIRST_LOOK)

    def keys(self) -> list[Key]:
        """All keys that there are: declared ones, and those that have releases."""
        declared = (self.about() or {}).get("keys", [])
        return [*self._known, *map(key_from_shown, declared)]

    # --- looking ---------------------------------------------------------------------------------

    def refresh(self) -> list[dict[str, Any]]:
        """Read what is new; return the latest release of each key that moved."""
        try:
            with self.open() as database:
                moved = database.latest(newer_than=self._known)
                first = not self._known
                self.names = database.names
                for key, t in zip(moved.keys, moved.t.tolist(), strict=True):
                    self._known[key] = t
                rows = latest_rows(moved)
                for key, row in zip(moved.keys, rows, strict=True):
                    self.latest[row["key"]] = row
                    self._moved_at[row["key"]] = self.looks + 1
                    spark = self.sparks.setdefault(row["key"], deque(maxlen=SPARK))
                    if first or not spark:
                        spark.extend(columns(database.read(key, most=SPARK))["value"][0])
                    else:
                        spark.append(row["value"][0])
        except InputError:
            return []
        self.looks += bool(rows)
        return rows

    def moved_since(self, look: int) -> list[dict[str, Any]]:
        """The latest release of each key that moved after so many looks."""
        return [self.latest[key] for key, at in list(self._moved_at.items()) if at > look]

    async def run(self) -> None:
        """Look again and again, and tell all watchers, until cancelled."""
        await asyncio.to_thread(self.refresh)
        self._looked.set()
        while True:
            await asyncio.sleep(_LOOK)
            stamp = self._stamp()
            if stamp != self._files:
                self._files = stamp
                if moved := await asyncio.to_thread(self.refresh):
                    self._tell("latest", {"names": self.names, "rows": moved})
            progress = await asyncio.to_thread(public_file, self.path, "progress.json")
            if progress != self._progress:
                self._progress = progress
                self._tell("progress", {**(progress or {}), "age": 0.0})

    def _tell(self, event: str, content: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.tell(event, content)

    def watch(self, key: Key | None, after: int | None, look: int | None = None) -> Watcher:
        """Events for one client, which has seen what there was after so many looks."""
        return Watcher(self, self._watchers, key, after, look)


class Watcher:
    """The events that one client gets: at most one of each kind waits, so that none piles up."""

    def __init__(
        self,
        live: Live,
        watchers: set[Watcher],
        key: Key | None,
        after: int | None,
        look: int | None,
    ) -> None:
        self._live, self._watchers, self._key, self._after = live, watchers, key, after
        self._look = look
        self._waiting: dict[str, dict[str, Any]] = {}
        self._news = asyncio.Event()

    def tell(self, event: str, content: dict[str, Any]) -> None:
        """Note an event; of several that wait, rows are merged and the last progress stays."""
        if event == "latest" and (before := self._waiting.get("latest")) is not None:
            rows = {row["key"]: row for row in [*before["rows"], *content["rows"]]}
            content = {**content, "rows": list(rows.values())}
        self._waiting[event] = content
        self._news.set()

    def _caught_up(self) -> dict[str, Any] | None:
        """All releases of the key behind the last one that was sent."""
        if self._key is None:
            return None
        try:
            with self._live.open() as database:
                found: Releases = database.read(
                    self._key, after=self._after, most=_CATCH_UP, thin=True
                )
        except InputError:
            return None
        if not len(found):
            return None
        self._after = int(found.t[-1])
        return columns(found)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, for ever; ``id`` is the last ``t`` of the key that is watched."""
        self._watchers.add(self)
        try:
            yield b"retry: 2000\n\n"
            new = await asyncio.to_thread(self._caught_up)
            if new is not None:
                yield self._spelled("releases", new)
            # What moved between the client's first question and this one.
            if self._look is not None and (rows := self._live.moved_since(self._look)):
                yield self._spelled("latest", {"names": self._live.names, "rows": rows})
            while True:
                try:
                    await asyncio.wait_for(self._news.wait(), _HEARTBEAT)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                self._news.clear()
                waiting, self._waiting = self._waiting, {}
                if "latest" in waiting:
                    new = await asyncio.to_thread(self._caught_up)
                    if new is not None:
                        yield self._spelled("releases", new)
                for event, content in waiting.items():
                    yield self._spelled(event, content)
        finally:
            self._watchers.discard(self)

    def _spelled(self, event: str, content: dict[str, Any]) -> bytes:
        identity = f"id: {self._after}\n" if event == "releases" else ""
        return f"event: {event}\n{identity}data: ".encode() + msgspec.json.encode(content) + b"\n\n"
