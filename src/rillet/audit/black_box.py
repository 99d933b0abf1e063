"""Tiny streams through the public interface alone: what an outsider could tell.

Streams with the unit and without it are opened with fresh secrets, as a user opens them; of what
they return, numbers and clipping ranges, a linear score is learned on some runs, an event chosen on
others, and counted on the rest.  It sees less than :mod:`rillet.audit.trials`, but nothing lies
between it and a user: clock, gate, conversion of values, range and post-processing are all in it.

**Privacy.** For audits, on made-up streams with fresh secrets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rillet.audit.replay import Diverged
from rillet.audit.trials import Bound, epsilon_bound
from rillet.errors import RilletError
from rillet.noise import FloatArray
from rillet.plan import Plan
from rillet.release import Releases
from rillet.times import show_moment

__all__ = ["BlackBox"]

#: Keys that are run at once, where there are many.
_KEYS: Final = 2**10
#: Runs on which the score is learned, of all.
_LEARNED: Final = 0.25
_SEEN: Final = ("value", "sum", "count", "clip_lower", "clip_upper")


@dataclass(frozen=True)
class BlackBox:
    """A plan as a user sees it."""

    plan: Plan

    def bound(self, runs: int, alpha: float) -> Bound:
        """A lower bound on ε from so many runs.

        Raises
        ------
        Diverged
            If runs with the unit and without it differ in what is released at all, or raise.
        """
        try:
            with_unit, without = self._outcomes(runs // 2)
        except (RilletError, ValueError, ArithmeticError) as error:
            raise Diverged(f"a made-up stream raises {type(error).__name__}") from error
        scores = _scored(with_unit, without)
        start = int(_LEARNED * len(with_unit))
        middle = start + (len(with_unit) - start) // 3
        parts = slice(start, middle), slice(middle, None)
        batches = iter([(scores[0][part], scores[1][part]) for part in parts])
        counted = 2 * (len(with_unit) - middle)
        return epsilon_bound(batches, counted, self.plan.delta, alpha)

    def _outcomes(self, runs: int) -> tuple[FloatArray, FloatArray]:
        """What was released, a row for each run."""
        rows: tuple[list[FloatArray], list[FloatArray]] = ([], [])
        if not self.plan.layout.lag:
            keys = tuple((number,) for number in range(_KEYS))
            plan = replace(self.plan, keys=keys, amendments=(), levels=())
            while sum(map(len, rows[0])) < runs:
                seen = _by_key(_run_keys(plan), _KEYS)
                rows[0].append(seen[1::2])
                rows[1].append(seen[::2])
            return np.concatenate(rows[0]), np.concatenate(rows[1])
        for _ in range(runs):
            for world, own in enumerate(rows):
                own.append(_seen(_run_one(self.plan, bool(1 - world))))
        shapes = {len(row) for own in rows for row in own}
        if len(shapes) > 1:
            raise Diverged("runs with the unit and without it release more or fewer records")
        return np.array(rows[0]), np.array(rows[1])


def _run_one(plan: Plan, unit: bool) -> Releases:
    """One stream that learns its range; the unit is the first after the warm-up, or is not."""
    lag, length = plan.layout.lag, plan.layout.length
    stream = plan.open_many().stream(plan.keys[0] if plan.keys else ())
    if plan.clock is None:
        values = np.resize(np.array([20.0, -math.inf, 30.0, 5.0]), length)
        values[lag] = math.inf if unit else -math.inf
        return stream.update_many(values)
    times = _times(plan, np.arange(1, length + 1))
    persons: Any = {} if plan.unit is None else {"person": [f"p{t}" for t in range(length)]}
    stream.update_many(np.resize([20.0, 5.0], length), at=times, **persons)
    if unit:
        own: Any = {} if plan.unit is None else {"person": "unit"}
        after = times[lag : lag + 1] if plan.unit is None else times
        stream.update_many([math.inf] * len(after), at=after, **own)
    return stream.advance(until=_times(plan, np.array([length + 2]))[0])


def _times(plan: Plan, ticks: Any) -> list[str]:
    """Moments inside of ticks."""
    clock = plan.clock
    assert clock is not None
    ends = clock.end_of(np.asarray(ticks, np.int64))
    return [show_moment(int(end) - clock.every // 2) for end in ends]


def _run_keys(plan: Plan) -> Releases:
    """Many keys, every second one with the unit: of a person all it would give."""
    lag, length = plan.layout.lag, plan.layout.length
    streams = plan.open_many()
    if plan.clock is None:
        values = np.full((length, len(plan.keys)), -math.inf)
        values[0, 1::2] = math.inf
        return streams.update_many(values.reshape(-1), key=list(plan.keys) * length)
    ticks = [lag + 1] if plan.unit is None else range(1, length + 1)
    keys = [key for key in plan.keys[1::2] for _ in ticks]
    times = _times(plan, ticks) * (len(keys) // len(ticks))
    persons = {} if plan.unit is None else {"person": [str(key) for key in keys]}
    streams.update_many(np.full(len(keys), math.inf), key=keys, at=times, **persons)
    return streams.advance(until=_times(plan, np.array([length + 2]))[0])


def _seen(releases: Releases) -> FloatArray:
    columns = [np.asarray(releases.rows(name), np.float64).reshape(-1) for name in _SEEN]
    return np.asarray(np.nan_to_num(np.concatenate(columns), posinf=0.0, neginf=0.0))


def _by_key(releases: Releases, keys: int) -> FloatArray:
    """A row for each key: releases come tick after tick, in the order of the keys."""
    if len(releases) != keys * len(np.unique(releases.t)):
        raise Diverged("some keys release more or fewer records than others")
    columns = [np.asarray(releases.rows(name), np.float64) for name in _SEEN]
    of_keys = [own.reshape(len(releases) // keys, keys, -1) for own in columns]
    wide = np.concatenate([own.transpose(1, 0, 2).reshape(keys, -1) for own in of_keys], 1)
    return np.asarray(np.nan_to_num(wide, posinf=0.0, neginf=0.0))


def _scored(with_unit: FloatArray, without: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A linear score, learned on the first runs: Fisher's discriminant of clipped columns."""
    learned = int(_LEARNED * len(with_unit))
    both = np.concatenate([with_unit[:learned], without[:learned]])
    centre, spread = np.median(both, 0), np.std(both, 0)
    scale = np.where(spread > 0, spread, 1.0)
    parts = [np.clip((own - centre) / scale, -4, 4) for own in (with_unit, without)]
    means = [own[:learned].mean(0) for own in parts]
    within = np.concatenate([own[:learned] - mean for own, mean in zip(parts, means, strict=True)])
    pooled = within.T @ within / len(within) + 0.01 * np.eye(within.shape[1])
    weights = np.linalg.solve(pooled, means[0] - means[1])
    return parts[0] @ weights, parts[1] @ weights
