"""What a benchmark is, how it is timed, and how the one table is made.

A file ``bench_<subject>.py`` in this folder holds functions ``bench_<what>()``. Each returns a
`Comparison`: rillet's way first, then the others that do the same job. All contenders of a
comparison are timed in one process, in turns, and the ratio of their best times is what counts:
of processor time, so that a busy machine matters little, unless one of them mostly waits. What is
not a time, such as memory, is a `Figure`.
"""

from __future__ import annotations

import gc
import importlib.util
import inspect
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table

#: A run that uses less of the processor than this share of its time is waiting for something.
_WAITING = 0.05
_SHOWN_VERSIONS = ("rillet", "numpy", "scipy", "cryptography", "numba", "opendp", "jax-privacy")


@dataclass(frozen=True)
class Contender:
    """One way to do the job.

    Parameters
    ----------
    name : str
        As it appears in the table.
    run : callable
        Does the job once; takes nothing, its result is thrown away.
    operations : int
        How many draws, observations or calls one run is. A slow contender may do fewer.
    rillet_within : float, optional
        The promise: rillet takes at most this many times what this contender takes for one
        operation. 1.5 lets rillet be half as slow again; 0.01 asks for a hundred times the speed.
    within_nanoseconds : float, optional
        A promise about this contender by itself: at most so long for one operation on one core.
        Processor time counts, so that what else a machine does is left out.
    prepare : callable, optional
        Called before each run, and not timed.
    most_rounds : int, optional
        For one that takes a minute: at most so many turns.
    """

    name: str
    run: Callable[[], object]
    operations: int
    rillet_within: float | None = None
    within_nanoseconds: float | None = None
    prepare: Callable[[], object] | None = None
    most_rounds: int | None = None


@dataclass(frozen=True)
class Comparison:
    """The same job done by rillet (first) and by others."""

    title: str
    operation: str
    contenders: Sequence[Contender]
    #: Each starts a process of its own: time on the clock counts.
    processes: bool = False


@dataclass(frozen=True)
class Figure:
    """A number that is not a time, measured once, and what is promised of it."""

    title: str
    name: str
    unit: str
    measure: Callable[[], float]
    at_most: float


@dataclass(frozen=True)
class Row:
    """One line of the table. ``rillet_ratio`` is rillet's time over this contender's."""

    comparison: str
    operation: str
    contender: str
    operations: int
    seconds: float | None
    nanoseconds_per_operation: float | None
    processor_nanoseconds_per_operation: float | None
    rillet_ratio: float | None
    rillet_within: float | None
    kept: bool | None
    #: In words, with units.
    measured: str
    processor: str
    promised: str


def measure(benchmark: Comparison | Figure, rounds: int, budget_seconds: float) -> list[Row]:
    """Time every contender of a comparison in turns and relate them to the first.

    Rounds stop early, though never before the second, when the comparison has used its time.
    """
    if isinstance(benchmark, Figure):
        return [_figure_row(benchmark)]
    comparison = benchmark
    if not comparison.contenders:
        raise ValueError(f"{comparison.title}: a comparison needs contenders, rillet first")
    best = [_Times()] * len(comparison.contenders)
    begun = time.perf_counter()
    for done in range(rounds):
        if done >= 2 and time.perf_counter() - begun > budget_seconds:
            break
        for place, contender in enumerate(comparison.contenders):
            if contender.most_rounds is None or done < contender.most_rounds:
                if contender.prepare is not None:
                    contender.prepare()
                best[place] = best[place].least(_times(contender.run))

    waits = any(times.processor < _WAITING * times.wall for times in best)
    seconds = [times.wall if waits or comparison.processes else times.processor for times in best]
    own = seconds[0] / comparison.contenders[0].operations
    return [
        _row(comparison, contender, times, own * contender.operations / taken)
        for contender, times, taken in zip(comparison.contenders, best, seconds, strict=True)
    ]


def _row(comparison: Comparison, contender: Contender, times: _Times, ratio: float) -> Row:
    each = times.wall / contender.operations
    processor = times.processor / contender.operations * 1e9
    within, limit = contender.rillet_within, contender.within_nanoseconds
    promises, kept = [], []
    if within is not None:
        promises.append(f"≤ {within:.3g} ×")
        kept.append(ratio <= within)
    if limit is not None:
        promises.append(f"≤ {_spelled(limit)} of a core")
        kept.append(processor <= limit)
    return Row(
        comparison=comparison.title,
        operation=comparison.operation,
        contender=contender.name,
        operations=contender.operations,
        seconds=times.wall,
        nanoseconds_per_operation=each * 1e9,
        processor_nanoseconds_per_operation=processor,
        rillet_ratio=ratio,
        rillet_within=within,
        kept=all(kept) if kept else None,
        measured=_spelled(each * 1e9),
        processor=_spelled(processor),
        promised=", ".join(promises),
    )


def _figure_row(figure: Figure) -> Row:
    found = figure.measure()
    return Row(
        comparison=figure.title,
        operation=figure.unit,
        contender=figure.name,
        operations=1,
        seconds=None,
        nanoseconds_per_operation=None,
        processor_nanoseconds_per_operation=None,
        rillet_ratio=None,
        rillet_within=None,
        kept=found <= figure.at_most,
        measured=f"{found:,.1f} {figure.unit}",
        processor="",
        promised=f"≤ {round(figure.at_most, 2):,} {figure.unit}",
    )


def _spelled(nanoseconds: float) -> str:
    """Nanoseconds, or milliseconds where there are millions of them."""
    if nanoseconds >= 1e6:
        return f"{nanoseconds / 1e6:,.1f} ms"
    return f"{nanoseconds:,.1f} ns"


@dataclass(frozen=True)
class _Times:
    """Seconds on the clock and seconds of the processor."""

    wall: float = float("inf")
    processor: float = float("inf")

    def least(self, other: _Times) -> _Times:
        return _Times(min(self.wall, other.wall), min(self.processor, other.processor))


def _times(run: Callable[[], object]) -> _Times:
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        wall, processor = time.perf_counter(), _processor()
        run()
        return _Times(time.perf_counter() - wall, _processor() - processor)
    finally:
        if collecting:
            gc.enable()


def _processor() -> float:
    """Seconds of the processor so far, of this process and of those that it started and ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def discover(folder: Path) -> dict[str, Callable[[], Comparison | Figure]]:
    """Every function ``bench_*`` of every file ``bench_*.py``, by "file:function"."""
    found: dict[str, Callable[[], Comparison | Figure]] = {}
    for path in sorted(folder.glob("bench_*.py")):
        module = _load(path)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("bench_") and function.__module__ == module.__name__:
                found[f"{path.stem.removeprefix('bench_')}:{name.removeprefix('bench_')}"] = (
                    function
                )
    return found


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def render(rows: Iterable[Row], console: Console) -> None:
    """Print the table."""
    table = Table(title="rillet beside others, best of several turns in one process")
    table.add_column("job")
    table.add_column("by")
    table.add_column("takes", justify="right")
    table.add_column("of a core", justify="right")
    table.add_column("rillet takes", justify="right")
    table.add_column("promised", justify="right")
    table.add_column("kept")
    previous = None
    for row in rows:
        if previous not in (None, row.comparison):
            table.add_section()
        first = row.comparison != previous
        table.add_row(
            f"{row.comparison} ({row.operation})" if first else "",
            row.contender,
            row.measured,
            row.processor,
            "" if row.rillet_ratio is None else f"{row.rillet_ratio:.3g} ×",
            row.promised,
            {None: "", True: "yes", False: "NO"}[row.kept],
        )
        previous = row.comparison
    console.print(table)


def report(rows: Iterable[Row]) -> str:
    """The same as JSON, with what it was measured on."""
    machine = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "processors": os.cpu_count(),
    }
    return json.dumps(
        {
            "format": 1,
            "machine": machine,
            "versions": _versions(),
            "rows": [asdict(r) for r in rows],
        },
        indent=2,
    )


def _versions() -> dict[str, str]:
    versions = {}
    for name in _SHOWN_VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
