"""A data frame in, a data frame out: pandas, Polars or Arrow, without depending on any of them.

**Privacy.** Touches raw data: columns go to the streams and nowhere else.  What kind of frame it
is, the names of its columns and the number of its rows are public, and only these raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rillet.errors import ParameterError
from rillet.gather.clock import as_times
from rillet.gather.gate import NO_PERSONS, as_ids
from rillet.gather.observations import as_observations
from rillet.noise import FloatArray, IntArray
from rillet.release import Releases
from rillet.source.cells import text_of
from rillet.source.keys import DeclaredKeys
from rillet.times import moment

if TYPE_CHECKING:
    from rillet.plan.plan import Plan

__all__ = ["release_frame"]

_BACK = {
    "pandas": Releases.to_pandas,
    "polars": Releases.to_polars,
    "pyarrow": Releases.to_arrow,
}


def release_frame(
    plan: Plan,
    frame: Any,
    value: str | None,
    key: str | Sequence[str] | None,
    at: str | None,
    person: str | None,
    until: object,
) -> Any:
    """See :meth:`rillet.Plan.release`."""
    library = type(frame).__module__.partition(".")[0]
    if library not in _BACK:
        expected = "a data frame of pandas, Polars or Arrow, or one column of it"
        raise ParameterError("frame", expected, f"a {type(frame).__name__}")
    keys = [key] if isinstance(key, str) else list(key or ())
    last = _check(plan, keys, at, person, until)
    if not hasattr(frame, "columns"):  # a single column
        frame, names = {None: frame}, []
    else:
        names = list(frame.column_names if library == "pyarrow" else frame.columns)
        value = names[0] if value is None and len(names) == 1 else value
    roles: dict[str, list[str | None]] = {
        "value": [value],
        "key": [*keys],
        "at": [at],
        "person": [person],
    }
    for role, wanted in roles.items():
        for name in wanted:
            if name not in names and (name is not None or (role == "value" and names)):
                found = f"one of the columns {', '.join(map(str, names))}" if names else "none"
                raise ParameterError(role, found, name)
    raw_values = as_observations(frame[value].to_numpy())
    key_of = np.zeros(len(raw_values), np.int64)
    if keys:
        raw_parts = ([text_of(part) for part in frame[name].to_numpy().tolist()] for name in keys)
        key_of = DeclaredKeys(plan.keys, keys).indexes(*raw_parts)
    if at is None:
        releases = plan.open_many().absorb(raw_values, key_of)
    else:
        raw_persons = None if person is None else frame[person]
        releases = _by_clock(plan, raw_values, key_of, frame[at], raw_persons, last)
    return _BACK[library](releases)


def _check(
    plan: Plan, keys: Sequence[str], at: str | None, person: str | None, until: object
) -> int:
    """Refuse columns that the plan has no use for, and the lack of others; the last tick."""
    for name, found, needed, what in (
        ("key", keys or None, bool(plan.keys), "the columns of the plan's declared keys"),
        ("at", at, plan.clock is not None, "the column with the time of each row"),
        ("person", person, plan.unit is not None, "the column with the person of each row"),
    ):
        if (found is not None) != needed:
            raise ParameterError(name, what if needed else "none, for this plan", found)
    if plan.clock is None or plan.length is not None:
        if until is not None:
            raise ParameterError("until", "none: the plan says when it ends", until)
        return plan.last_t
    if until is None:
        expected = "when to stop, since the plan has no end"
        raise ParameterError("until", expected, None, "it must be public")
    return min(plan.clock.closed_by(moment(until, plan.zone, "until")), plan.last_t)


def _by_clock(
    plan: Plan,
    raw_values: FloatArray,
    key_of: IntArray,
    raw_times: Any,
    raw_persons: Any,
    last: int,
) -> Releases:
    """Each row in the tick of its own time, in the order of time; all ticks up to the last."""
    assert plan.clock is not None
    at = as_times(raw_times, len(raw_values), plan.zone)
    order = np.argsort(at, kind="stable")
    with plan.open_many() as streams:
        person_of, gate = NO_PERSONS, streams.store.gate
        if gate is not None:
            person_of = gate.pseudonyms(as_ids(raw_persons, len(raw_values)))[order]
        return streams.absorb_ticks(
            raw_values[order],
            key_of[order],
            plan.clock.tick_of(at[order]),
            last,
            person_of=person_of,
        )
