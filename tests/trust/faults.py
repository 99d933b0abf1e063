"""Every fault that is made from within: the one place that knows how the code is built.

Tests in this folder use the public surface. What cannot be done through it (another version of the
code, a damaged row, a process held at a certain line) is a function here, named by what it does.
When the code is rebuilt, this file is what has to follow.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import rillet.gather.grid
import rillet.gather.observations
import rillet.layout
import rillet.state.uses
import rillet.strategy.base
import rillet.streams
from rillet import Plan, Stream, TailHistogram
from rillet.levels import Tree
from rillet.state.base import Kept, MemoryStore
from rillet.streams import Streams

# --- Another version of the code -----------------------------------------------------------------


def _larger_noise(patch: pytest.MonkeyPatch) -> None:
    """Calibration gives a tenth more noise for the same promise."""
    for name in ("laplace_scale", "gaussian_std"):
        exact = getattr(rillet.strategy.base, name)

        def scaled(*words: Any, exact: Callable[..., float] = exact) -> float:
            return 1.1 * exact(*words)

        patch.setattr(rillet.strategy.base, name, scaled)


def _finer_lattice(patch: pytest.MonkeyPatch) -> None:
    """A range is cut into twice as many steps."""
    for module in (rillet.gather.grid, rillet.strategy.base):
        patch.setattr(module, "USUAL_STEPS", 2 * rillet.gather.grid.USUAL_STEPS)


def _cheaper_looks(patch: pytest.MonkeyPatch) -> None:
    """Half as much of an observation's budget pays for learning the range again."""
    exact = TailHistogram.look_share

    def half(self: TailHistogram, end: int, length: int) -> Fraction:
        return exact(self, end, length) / 2

    patch.setattr(TailHistogram, "look_share", half)


def _earlier_looks(patch: pytest.MonkeyPatch) -> None:
    """The range is learned again one release earlier, at each end of a segment but the last."""
    exact = TailHistogram.segment_ends

    def earlier(self: TailHistogram, lag: int, length: int, every: int) -> tuple[int, ...]:
        ends = exact(self, lag, length, every)
        return tuple(end if end == length else end - every for end in ends)

    patch.setattr(TailHistogram, "segment_ends", earlier)


def _faster_ratchet(patch: pytest.MonkeyPatch) -> None:
    """Secrets move on twice as often."""
    for name in ("RATCHET_EVERY", "KEYED_RATCHET_EVERY"):
        patch.setattr(rillet.layout, name, getattr(rillet.layout, name) // 2)


#: Constants of a mechanism that the JSON of a plan does not show, by what they decide.
CHANGES = {
    "noise": _larger_noise,
    "lattice": _finer_lattice,
    "cost of looks": _cheaper_looks,
    "times of looks": _earlier_looks,
    "ratchet": _faster_ratchet,
}


@contextlib.contextmanager
def another_version(change: str) -> Iterator[Callable[[Plan], Plan]]:
    """Run under code in which one constant is another; gives what re-reads a plan there."""
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[change](patch)
        # A plan that exists has been calibrated already; the other version reads its JSON.
        yield lambda plan: Plan.from_json(plan.to_json())


# --- A state.db that somebody without the key has written to -------------------------------------


def _change(database: Path, script: str, *parameters: object) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        # A fault that changes nothing would be noticed by nobody.
        assert connection.execute(script, parameters).rowcount


def _rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def replay_stream(database: Path, older: Path, index: int = 0) -> None:
    """Put back the sealed row of one key from an older copy of the state."""
    ((sealed,),) = _rows(older, f"SELECT sealed FROM streams WHERE key_index = {index}")
    _change(database, "UPDATE streams SET sealed = ? WHERE key_index = ?", sealed, index)


def replay_progress(folder: Path, older: Path) -> None:
    """Put back the sealed progress from an older copy of the folder, and empty the outbox.

    With it goes the file that says which opening of the state was the last.
    """
    ((sealed,),) = _rows(older / "state.db", "SELECT sealed FROM progress")
    _change(folder / "state.db", "UPDATE progress SET sealed = ?", sealed)
    if _rows(folder / "state.db", "SELECT batch FROM outbox"):
        _change(folder / "state.db", "DELETE FROM outbox")
    shutil.copyfile(older / "opening", folder / "opening")


def forget_releases(database: Path, key: str, after: int) -> None:
    """Delete later releases of a key from the public database."""
    of_key = "(SELECT id FROM series WHERE key = ?)"
    _change(database, f"DELETE FROM release_rows WHERE series_id IN {of_key} AND t > ?", key, after)


def forget_learning(database: Path) -> None:
    """Delete the last part of what is being learned from."""
    _change(database, "DELETE FROM learning WHERE part = (SELECT max(part) FROM learning)")


def plant_trigger(database: Path) -> None:
    """Let the database keep every sealed row that is overwritten from now on."""
    _change(database, "CREATE TABLE kept (sealed BLOB)")
    _change(
        database,
        "CREATE TRIGGER keep BEFORE UPDATE ON streams BEGIN "
        "INSERT INTO kept VALUES (old.sealed); END",
    )


def kept_by_trigger(database: Path) -> int:
    """How many sealed rows :func:`plant_trigger` has kept."""
    return len(_rows(database, "SELECT * FROM kept"))


# --- Python that a process runs before its command, to hold it at a certain line -----------------

#: A new state is about to be made, nothing of it is on disk: say so in ``held``, wait for ``go``.
HOLD_BEFORE_STATE_IS_MADE = """
import pathlib, time
from rillet.state.store import SqliteStore as Store
make = Store.create
def held(*words, **more):
    pathlib.Path("held").touch()
    for _ in range(1000):
        if pathlib.Path("go").exists():
            break
        time.sleep(0.01)
    return make(*words, **more)
Store.create = held
"""

#: Delivering to a database of releases takes a second; note in ``delivering`` that it has begun,
#: and in ``closed-under-way`` that a sink was closed meanwhile.
SLOW_DELIVERY = """
import pathlib, time
from rillet.sink.sqlite import SqliteSink
deliver, close = SqliteSink.deliver, SqliteSink.close
under_way = []
def slow(self, table):
    under_way.append(self)
    pathlib.Path("delivering").touch()
    time.sleep(1.5)
    under_way.remove(self)
    return deliver(self, table)
def noted(self):
    if self in under_way:
        pathlib.Path("closed-under-way").touch()
    return close(self)
SqliteSink.deliver, SqliteSink.close = slow, noted
"""


# --- What a search needs from within --------------------------------------------------------------


@contextlib.contextmanager
def small_chunks() -> Iterator[None]:
    """Let the guard compare by chunks of a few observations, so that short streams have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rillet.state.uses, "CHUNK", 8)
        forget_what_the_process_knows()
        yield
        forget_what_the_process_knows()


def forget_what_the_process_knows() -> None:
    """Let the guard know as little as a process that has just been started."""
    rillet.state.uses._IN_PROCESS.records.clear()
    rillet.state.uses._FILES.clear()


@contextlib.contextmanager
def threads_meet_in_a_step(seconds: float = 0.02) -> Iterator[None]:
    """Hold a thread inside a step until another one is there too, or for so long."""
    meeting = threading.Barrier(2)

    def held(exact: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*words: Any) -> Any:
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(seconds)
            return exact(*words)

        return waits

    with pytest.MonkeyPatch.context() as patch:
        for name in ("step", "step_parts"):  # of one key that occurs, of several
            patch.setattr(rillet.streams, name, held(getattr(rillet.streams, name)))
        yield


# --- Faults that once were there, to be put back --------------------------------------------------


def _key_noise_by_json(patch: pytest.MonkeyPatch) -> None:
    """A1: the noise belongs to the plan's JSON, whatever the code makes of it."""
    for name in ("stream_secret", "guard"):
        exact = getattr(Plan, name)

        def keyed(self: Plan, *words: Any, exact: Callable[..., Any] = exact) -> Any:
            self.layout.__dict__["digest"] = self.digest
            return exact(self, *words)

        patch.setattr(Plan, name, keyed)


def _guard_nothing(patch: pytest.MonkeyPatch) -> None:
    """A2: nobody remembers what a secret was used for."""
    patch.setattr(Plan, "guard", lambda *_: None)
    patch.setattr(Stream, "_guarded", lambda *_: b"")


def _lock_nothing(patch: pytest.MonkeyPatch) -> None:
    """A5: two threads may be inside one stream."""

    class NoLock(contextlib.nullcontext[None]):
        def acquire(self) -> None: ...

        def release(self) -> None: ...

    patch.setattr(rillet.streams, "threading", types.SimpleNamespace(RLock=NoLock))


def _allow_copies(patch: pytest.MonkeyPatch) -> None:
    """A5: a copy of a stream goes its own way."""

    def copied(self: Stream) -> Stream:
        streams, state = self._streams, self._state()
        store = MemoryStore.of({0: Kept(state)}, state.t)
        return Streams(streams.layout, Tree((self.key,)), store).stream(self.key)

    patch.setattr(Stream, "__copy__", copied)
    patch.setattr(Stream, "__deepcopy__", lambda self, _: copied(self))


def _flatten(patch: pytest.MonkeyPatch) -> None:
    """A4: what is nested counts as several observations."""
    exact = rillet.streams.as_observations

    def flat(values: Any) -> Any:
        nested = [value if isinstance(value, list) else [value] for value in values]
        return exact([value for part in nested for value in part])

    patch.setattr(rillet.streams, "as_observations", flat)


def _separate_views(patch: pytest.MonkeyPatch) -> None:
    """Each view of a key has single updates of its own, which the others do not know."""
    patch.setattr(Streams, "stream", lambda self, key=(): Stream(self, self._index(key)))


def convert_plainly(patch: pytest.MonkeyPatch) -> None:
    """A6: what warns when it is converted does so."""

    def plain(raw_value: Any) -> float:
        try:
            return float(raw_value)
        except Exception:  # noqa: BLE001 - as it was
            return float("nan")

    patch.setattr(rillet.streams, "as_float", plain)
    patch.setattr(rillet.gather.observations, "as_float", plain)


#: By what they are; the searches of this folder must find each of them.
PUT_BACK = {
    "noise keyed by JSON": _key_noise_by_json,
    "no guard": _guard_nothing,
    "no lock": _lock_nothing,
    "copies": _allow_copies,
    "flattened": _flatten,
    "separate views": _separate_views,
}
