"""Folders of runs to show: what a durable run leaves, made without running one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import rillet
from rillet.engine.about import about
from rillet.release import Key, Releases
from rillet.sink import make_sink

#: Microseconds since 1970 of the first release.
START = 1_790_000_000_000_000


class World:
    """A folder with releases, about.json and progress.json, to which releases are added."""

    def __init__(self, folder: Path, plan: rillet.Plan | None = None, form: str = "sqlite") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        name = {"sqlite": "releases.db", "parquet": "releases"}[form]
        self.sink = make_sink({"kind": form, "path": str(folder / name)}).open()
        if plan is not None:
            (folder / "about.json").write_text(json.dumps(about(plan)), encoding="utf-8")
            self.progress()

    def progress(
        self, *, absorbed: int = 0, running: bool = True, age: float = 0.0, **more: object
    ) -> None:
        content = {
            "running": running,
            "absorbed": absorbed,
            "releases": 0,
            "delivered": 0,
            "last_block": None,
            "updated": time.time() - age,
            **more,
        }
        (self.folder / "progress.json").write_text(json.dumps(content), encoding="utf-8")

    def add(self, releases: Releases) -> None:
        self.sink.deliver(releases)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close()


def releases(
    key: Key,
    t: Sequence[int],
    values: Sequence[Sequence[float]] | np.ndarray,
    *,
    names: tuple[str, ...] = ("mean",),
    std: float | np.ndarray = 1.0,
    every: float = 60.0,
    clip: float = 120.0,
    start: int = START,
) -> Releases:
    """Releases with these values, a row for each t and a column for each name."""
    value = np.asarray(values, float).reshape(len(t), len(names))
    steps = np.asarray(t, np.int64)
    at = (start + steps * int(every * 1e6)).astype(np.int64)
    rows = value.reshape(-1)
    noise = np.broadcast_to(np.asarray(std, float).reshape(-1, 1), value.shape).reshape(-1)
    numbers = {
        "value": rows,
        "noise_std": noise.copy(),
        "clip_lower": np.zeros(len(rows)),
        "clip_upper": np.full(len(rows), clip),
    }
    if names == ("mean",):
        count = steps.astype(float)
        numbers |= {
            "mean": rows,
            "mean_noise_std": noise.copy(),
            "sum": rows * count,
            "sum_noise_std": noise * count,
            "count": count,
            "count_noise_std": np.zeros(len(rows)),
        }
    return Releases(
        (key,), np.zeros(len(t), np.int64), steps, at, names, numbers, noise_law="gaussian"
    )


def wave(first: int, count: int, seed: int = 1, level: float = 38.0) -> tuple[range, np.ndarray]:
    """Times from ``first`` on, and values that settle, with a daily swing."""
    chance = np.random.default_rng(seed + first)
    t = range(first, first + count)
    steps = np.arange(first, first + count)
    swing = 3 * np.sin(steps / 230) + 2 * np.sin(steps / 37)
    return t, level + swing + chance.normal(0, 0.8, count)
