"""Tables of releases for tests: made up, so that they can be large and strange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rillet.release import Key
from rillet.table import ReleaseTable

STRANGE_KEYS: tuple[Key, ...] = (
    (),
    ("north", 3),
    ("1",),
    (1,),
    ("Zürich", "東京"),
    ('quote " and \\ and %s %% {}',),
    ("tab\tline\nnull\0",),
    ("x" * 300, -(10**30)),
    ("lone \ud800",),
)


def table(
    keys: tuple[Key, ...] = (("north",), ("south",)),
    rows: int = 20,
    *,
    first: int = 51,
    seed: int = 1,
    statistic: str = "mean",
    scale: float = 1000.0,
) -> ReleaseTable:
    """``rows`` releases of every key, in turn; the same arguments give the same numbers."""
    random = np.random.default_rng(seed)
    count = rows * len(keys)
    key_of = np.tile(np.arange(len(keys)), rows)
    t = np.repeat(np.arange(first, first + rows), len(keys))
    shares = np.where(np.arange(len(keys)) % 2 == 0, np.nan, random.random(len(keys)))
    return ReleaseTable(
        keys,
        key_of,
        t,
        random.normal(size=count) * scale * t,
        random.random(count) * 30,
        (100 + random.random(len(keys)) * 50)[key_of],
        (-random.random(len(keys)))[key_of],
        shares[key_of],
        statistic,
        "laplace",
        ("clamped",) if statistic == "sum" else (),
    )


def changed(original: ReleaseTable, place: int, name: str = "sum") -> ReleaseTable:
    """The same but for the last bit of one number."""
    column = getattr(original, name).copy()
    column[place] = np.nextafter(column[place], np.inf)
    return replace(original, **{name: column})
