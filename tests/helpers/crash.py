"""Kill ``rillet run`` with SIGKILL, at a named point or at any instant, and say where it was hit.

The process is the real one.  A run that logs at level DEBUG names the points it passes; as
``python -m helpers.crash POINT N run …`` the same command kills itself when it passes a point for
the n-th time, by a log handler that is installed here: the program has no hook for it.

Starting costs a second or two, nearly all of it imports.  Where that is too long, the process is
forked from one that has imported everything and done nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "BROKER_POINTS",
    "POINTS",
    "Hit",
    "Kill",
    "Leg",
    "Report",
    "carry_out",
    "kills_at_points",
    "random_kills",
]

#: What a durable run names between opening a state and acknowledging to it, in order.
POINTS = (
    "counted",  # this opening is in the state, and not yet beside it
    "read",  # a block is there, nothing was done with it
    "committing",  # inside the transaction
    "committed",  # states, position and outbox are on disk
    "delivering",  # from the outbox to a sink
    "delivered",  # to it
    "acknowledged",  # the outbox knows that every sink has it
)
#: With a broker, also before and behind the acknowledgement that it gets.
BROKER_POINTS = (*POINTS, "confirming", "confirmed")

#: Those in the threads that deliver.
DELIVERY = ("delivering", "delivered")
#: Where a kill at random may hit besides: before and behind all points.
_AROUND = ("starting", "opened", "stopping")
#: Seconds after which a process is taken to hang, on a busy machine.
PATIENCE = 120.0


# --- in the process that is killed ---------------------------------------------------------------


class _Killer(logging.Handler):
    """Kills this process at the n-th record that says ``point``."""

    def __init__(self, point: str, number: int) -> None:
        super().__init__()
        self._point, self._left = point, number

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self._point:
            self._left -= 1
            if not self._left:
                os.write(2, json.dumps({"part": "crash", "message": self._point}).encode() + b"\n")
                os.kill(os.getpid(), signal.SIGKILL)


def _note_arrivals(path: str) -> None:
    """Note what each block by the clock holds, before and behind its commit: with its stamps."""
    from rillet.engine.job import Job

    absorb = Job._absorb_by_clock
    notes = Path(path).open("ab", buffering=0)  # noqa: SIM115 - as long as the process lives

    def noted(self, clock, block, key_of):
        own = block.arrived if block.at is None else block.at
        which = block.raw_values if block.sequence is None else block.sequence
        columns = (key_of, which, block.arrived, own)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        notes.write(json.dumps(rows).encode() + b"\n")
        absorb(self, clock, block, key_of)
        notes.write(b'"absorbed"\n')

    Job._absorb_by_clock = noted


def main() -> int:
    """``POINT N``, perhaps a file to note arrivals in, and the arguments of rillet."""
    from rillet.cli import main as rillet

    point, number, *arguments = sys.argv[1:]
    if arguments[0] != "run":
        _note_arrivals(arguments.pop(0))
    if point != "-":
        logging.getLogger("rillet").addHandler(_Killer(point, int(number)))
    return rillet(arguments)


def _forked(words: Sequence[str], log: str) -> None:
    """As :func:`main`, with the log where a process of its own would have it."""
    for number, path in ((1, os.devnull), (2, log)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.argv[1:] = words
    raise SystemExit(main())


# --- in the test ---------------------------------------------------------------------------------


_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = (
    *("cli.run", "engine", "state.folder", "sink.sqlite", "sink.json_lines"),
    *("source.file", "source.mqtt"),
)


class _Forked:
    """A process that was forked, with what is used here of :class:`subprocess.Popen`."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        _FORKS.set_forkserver_preload(
            [__name__, "scipy.signal", *(f"rillet.{name}" for name in _PRELOADED)]
        )
        before = os.environ.get("PYTHONPATH")
        # The server is not told our path.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        try:
            self._process = _FORKS.Process(target=_forked, args=(tuple(words), str(log)))
            self._process.start()
        finally:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("rillet", seconds or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


@dataclass(frozen=True)
class Hit:
    """Where a kill hit: the last point passed; delivering has a thread, and a point, of its own."""

    work: str
    delivery: str | None = None
    exact: bool = False


@dataclass(frozen=True)
class Kill:
    """When to kill: at a point, or so many seconds after a moment, launched or opened."""

    point: str | None = None
    number: int = 1
    since: str = "opened"
    #: Part of how long starting takes if ``since`` is launched, else of a whole run.
    share: float = 0.0


def random_kills(count: int, seed: str, *, together: int) -> list[Kill]:
    """Kills at instants that are uniform over a run, ``together`` of them to one run.

    One of eight comes while the process starts, uniformly over that.
    """
    chance = random.Random(seed)
    kills: list[Kill] = []
    while len(kills) < count:
        instants = sorted(chance.random() for _ in range(together))
        for before, instant in zip([0.0, *instants], instants, strict=False):
            kills.append(Kill(share=instant - before))
            if len(kills) % 8 == 4:
                kills.append(Kill(since="launched", share=chance.random()))
    return kills[:count]


def kills_at_points(points: Sequence[str], count: int, seed: str) -> list[Kill]:
    """``count`` kills at each point, in any order; sometimes twice at the same one."""
    chance = random.Random(seed)
    kills = [
        Kill(point, 1 if point == "counted" else chance.randint(1, 8))
        for point in points
        for _ in range(count)
    ]
    chance.shuffle(kills)
    # Killed there twice without any progress between, a run must go on all the same.
    if count > 1:
        kills.sort(key=lambda kill: kill.point == "counted")
        middle = len(kills) // 2
        kills = kills[:middle] + kills[-2:] + kills[middle:-2]
    return kills


class Leg:
    """One process of a run: from its launch to its end or its kill.

    Its log goes to ``log``, as JSON at level DEBUG.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        kill: Kill | None = None,
        *,
        forked: bool = False,
        arrivals: Path | None = None,
    ) -> None:
        self.log = log
        options = ["--log-level", "debug", "--log-format", "json", "--quiet"]
        words = ["run", *arguments, *options]
        if arrivals is not None:
            words.insert(0, str(arrivals))
        point = None if kill is None else kill.point
        at_point = ["-", "0"] if arrivals is not None else []
        if kill is not None and point is not None:
            at_point = [point, str(kill.number)]
        self.process: subprocess.Popen[bytes] | _Forked
        with log.open("wb") as stream:
            if forked:
                self.process = _Forked([*(at_point or ["-", "0"]), *words], log)
            else:
                program = ["helpers.crash", *at_point] if at_point else ["rillet"]
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *program, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
        self.launched = time.monotonic()

    def records(self) -> list[dict[str, object]]:
        """What it has logged."""
        records = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # the last line may be torn
                records.append(json.loads(line))
        return records

    def point(self) -> Hit:
        """The last points that it passed, in its work and in delivering."""
        work, delivery = "starting", None
        for record in self.records():
            message = str(record["message"])
            if record["part"] == "crash":
                return Hit(message, exact=True)
            if message.startswith(("beginning", "going on")):
                work = "opened"
            elif message.startswith("stopped"):
                work = "stopping"
            elif message in DELIVERY:
                delivery = message
            elif work != "starting" and message in BROKER_POINTS:
                work = message
        return Hit(work, delivery)

    def wait_until_opened(self) -> bool:
        """Until it has opened everything and begins to read; False if it ended before."""
        while self.process.poll() is None:
            log = self.log.read_bytes()
            if b'"beginning' in log or b'"going on' in log:
                return True
            self._check_patience()
            time.sleep(0.005)
        return False

    def kill(self, after: float = 0.0) -> int:
        """Kill it after so many seconds, unless it ends before; return its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(max(0.0, after))
        self.process.kill()
        return self.process.wait()

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still there after {seconds} s:\n{self.tail()}") from None

    def terminate(self) -> int:
        """Ask it to stop (SIGTERM), wait, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def tail(self) -> str:
        """The end of its log, for messages."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def _check_patience(self) -> None:
        if time.monotonic() > self.launched + PATIENCE:
            self.kill()
            raise AssertionError(f"did not start:\n{self.tail()}")

    def __enter__(self) -> Leg:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def carry_out(leg: Leg, kill: Kill, *, starting: float, whole: float) -> int:
    """Kill a leg as wanted; return its exit code, which is 0 if it had ended before.

    ``starting`` and ``whole`` are the seconds that starting and an uninterrupted run take.
    """
    if kill.point is not None:
        return leg.end()
    if kill.since == "launched":
        return leg.kill(kill.share * starting)
    leg.wait_until_opened()
    return leg.kill(kill.share * whole)


@dataclass
class Report:
    """Which point each kill hit."""

    source: str
    points: Sequence[str]
    hits: list[Hit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, kill: Kill, hit: Hit) -> None:
        """Note a kill that took place."""
        assert hit.exact == (kill.point is not None)
        assert kill.point in (None, hit.work), f"not at {kill.point}, but at {hit.work}"
        self.hits.append(hit)

    @property
    def at_points(self) -> Counter[str]:
        """How many kills there were exactly at each point."""
        return Counter(hit.work for hit in self.hits if hit.exact)

    @property
    def at_random(self) -> list[Hit]:
        """The other kills."""
        return [hit for hit in self.hits if not hit.exact]

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Each point with the kills at it and, of those at random, how many came behind it."""
        exact = self.at_points
        work = Counter(hit.work for hit in self.at_random)
        delivery = Counter(hit.delivery or "nothing yet" for hit in self.at_random)
        yield "last point passed", "at the point", "at random", "delivery then"
        for point in ("starting", "opened", *self.points, "stopping", "nothing yet"):
            around = point in _AROUND or point == "nothing yet"
            beside = point in DELIVERY or point == "nothing yet"
            yield (
                point,
                "" if around else str(exact[point]),
                "" if beside else str(work[point]),
                str(delivery[point]) if beside else "",
            )
        random_ones = str(len(self.at_random))
        yield "all", str(exact.total()), random_ones, random_ones

    def __str__(self) -> str:
        lines = [f"Killed while reading from {self.source}: {len(self.hits)} times", ""]
        lines += ["  ".join(f"{cell:>17}" for cell in row) for row in self.rows()]
        return "\n".join([*lines, "", *self.notes])

    def check(self, *, at_each_point: int, at_random: int) -> None:
        """Fail unless there were so many kills, at every named point."""
        missed = [point for point in self.points if self.at_points[point] < at_each_point]
        assert not missed, f"fewer than {at_each_point} kills at {', '.join(missed)}"
        assert len(self.at_random) >= at_random

    def publish(self, name: str) -> None:
        """Print it, and write it to the folder that ``RILLET_CRASH_REPORT`` names."""
        print(self)  # noqa: T201 - pytest -rP shows it
        if folder := os.environ.get("RILLET_CRASH_REPORT"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.txt").write_text(f"{self}\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
