"""The experiments by name, in the order of the paper."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, Final

from rillet.errors import ParameterError
from rillet.reproduce.accuracy import accuracy
from rillet.reproduce.context import Context
from rillet.reproduce.distributions import fig_cdf, fig_days, fig_hours, fig_pmax, fig_tail
from rillet.reproduce.errata import errata
from rillet.reproduce.errors import fig_error, fig_outlier
from rillet.reproduce.memory import memory, people
from rillet.reproduce.result import Result
from rillet.reproduce.tables import fig_eps, fig_lag, table1, table2

__all__ = ["EXPERIMENTS", "numbers_of", "reproduce"]

EXPERIMENTS: Final[dict[str, Callable[[Context], Result]]] = {
    "fig-error": fig_error,
    "table1": table1,
    "table2": table2,
    "fig-cdf": fig_cdf,
    "fig-tail": fig_tail,
    "fig-pmax": fig_pmax,
    "fig-eps": fig_eps,
    "fig-lag": fig_lag,
    "fig-outlier": fig_outlier,
    "fig-hours": fig_hours,
    "fig-days": fig_days,
    "accuracy": accuracy,
    "memory": memory,
    "people": people,
    "errata": errata,
}


#: They take minutes.
_LONGEST: Final = ("accuracy", "memory", "people", "errata", "fig-error", "fig-outlier")


def reproduce(
    names: Sequence[str] = ("all",),
    *,
    quick: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    processes: int = 1,
) -> Iterator[Result]:
    """Run experiments, the headline first.

    **Privacy.** Public data and published secrets only; nothing here may see private data.

    Parameters
    ----------
    names : sequence of str
        Names of `EXPERIMENTS`, or ``"all"``.
    quick : bool
        Fewer runs and coarser curves.
    tell : callable
        Called with a few words before each longer step, where there is one process.
    processes : int
        Run so many at a time; the same numbers in the same order.

    Examples
    --------
    >>> [result.name for result in reproduce([])]
    []
    """
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            expected = f"all or some of {', '.join(EXPERIMENTS)}"
            raise ParameterError("names", expected, name)
    wanted = [name for name in EXPERIMENTS if "all" in names or name in names]
    if min(processes, len(wanted)) < 2:
        context = Context(quick=quick, tell=tell)
        yield from (EXPERIMENTS[name](context) for name in wanted)
        return
    # Spawned, so that none inherits threads; the longest begin first.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(wanted)), spawn) as pool:
        first = sorted(wanted, key=lambda name: name not in _LONGEST)
        results = {name: pool.submit(_run_one, name, quick) for name in first}
        yield from (results[name].result() for name in wanted)


def _run_one(name: str, quick: bool) -> Result:
    """One experiment in a process that runs several, with data that are loaded once."""
    return EXPERIMENTS[name](_context(quick))


@cache
def _context(quick: bool) -> Context:
    return Context(quick=quick)


def numbers_of(results: Sequence[Result], quick: bool) -> dict[str, Any]:
    """All numbers, as ``rillet reproduce --json`` prints them."""
    return {"quick": quick, "results": {result.name: result.numbers for result in results}}
