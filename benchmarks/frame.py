"""What a benchmark is, how it is timed, and how the one table is made.

A file ``bench_<subject>.py`` in this folder holds functions ``bench_<what>()``. Each returns a
`Comparison`: rillet's way first, then the others that do the same job. All contenders of a
comparison are timed in the same process, in turns, so that a busy machine slows them alike; the
ratio of their best times is what counts.
"""

from __future__ import annotations

import gc
import importlib.util
import inspect
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table

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
    """

    name: str
    run: Callable[[], object]
    operations: int
    rillet_within: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The same job done by rillet (first) and by others."""

    title: str
    operation: str
    contenders: Sequence[Contender]


@dataclass(frozen=True)
class Row:
    """One line of the table. ``rillet_ratio`` is rillet's time over this contender's."""

    comparison: str
    operation: str
    contender: str
    operations: int
    seconds: float
    nanoseconds_per_operation: float
    rillet_ratio: float
    rillet_within: float | None
    kept: bool | None


def measure(comparison: Comparison, rounds: int, budget_seconds: float) -> list[Row]:
    """Time every contender of a comparison in turns and relate them to the first.

    Rounds stop early, though never before the second, when the comparison has used its time.
    """
    if not comparison.contenders:
        raise ValueError(f"{comparison.title}: a comparison needs contenders, rillet first")
    best = [float("inf")] * len(comparison.contenders)
    begun = time.perf_counter()
    for done in range(rounds):
        if done >= 2 and time.perf_counter() - begun > budget_seconds:
            break
        for place, contender in enumerate(comparison.contenders):
            best[place] = min(best[place], _seconds(contender.run))

    own = best[0] / comparison.contenders[0].operations
    rows = []
    for contender, seconds in zip(comparison.contenders, best, strict=True):
        each = seconds / contender.operations
        ratio = own / each
        within = contender.rillet_within
        rows.append(
            Row(
                comparison=comparison.title,
                operation=comparison.operation,
                contender=contender.name,
                operations=contender.operations,
                seconds=seconds,
                nanoseconds_per_operation=each * 1e9,
                rillet_ratio=ratio,
                rillet_within=within,
                kept=None if within is None else ratio <= within,
            )
        )
    return rows


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    finally:
        if collecting:
            gc.enable()


def discover(folder: Path) -> dict[str, Callable[[], Comparison]]:
    """Every function ``bench_*`` of every file ``bench_*.py``, by "file:function"."""
    found: dict[str, Callable[[], Comparison]] = {}
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
    spec.loader.exec_module(module)
    return module


def render(rows: Iterable[Row], console: Console) -> None:
    """Print the table."""
    table = Table(title="rillet beside others, best of several turns in one process")
    table.add_column("job")
    table.add_column("by")
    table.add_column("ns each", justify="right")
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
            f"{row.nanoseconds_per_operation:,.1f}",
            f"{row.rillet_ratio:.3g} ×",
            "" if row.rillet_within is None else f"≤ {row.rillet_within:.3g} ×",
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
