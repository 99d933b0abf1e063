"""On Spark the releases are those of one process, bit for bit; what is not the same is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rillet
from helpers.spark import (
    Frames,
    files_with,
    joined,
    last_t,
    records,
    run,
    saved,
    sorted_records,
    spellings,
)
from helpers.uses import forget_uses
from rillet.errors import ParameterError, StateError

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]

SECRET = rillet.Secret.for_tests(11)
MINUTE, HOUR = 60 * 10**6, 3600 * 10**6
BATCHES = 3
OPTIONS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "upper": 10.0}
FIXED = {"threshold": rillet.FixedThreshold()}
BY_COUNT = "meter STRING, number BIGINT, kwh DOUBLE"
BY_CLOCK = "meter STRING, time TIMESTAMP, kwh STRING"


class World:
    """A plan, batches of rows in a folder, and the releases of one process."""

    def __init__(self, folder: Path, keys: int, **options: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.plan = rillet.Plan(keys=[f"m{number}" for number in range(keys)], **options)
        schema = BY_COUNT if self.plan.clock is None else BY_CLOCK
        self.frames = Frames(folder / "rows", schema)
        self.clock = Frames(folder / "clock", "until TIMESTAMP")
        self.secret = saved(folder, SECRET)
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"

    def columns(self) -> dict[str, Any]:
        order = {"sequence": "number"} if self.plan.clock is None else {"at": "time"}
        return {"value": "kwh", "key": "meter", **order}

    def releases(self, spark: Any, plan: rillet.Plan | None = None, **options: Any) -> Any:
        """A streaming data frame of releases."""
        from rillet.spark import release

        given = {"secret": self.secret, "checkpoint": self.checkpoint, **self.columns()}
        if self.plan.clock is not None:
            given["clock"] = self.clock.stream(spark)
        return release(self.frames.stream(spark), plan or self.plan, **{**given, **options})

    def run(self, spark: Any, **options: Any) -> None:
        from rillet.spark import to_parquet

        run(self.releases(spark, **options), to_parquet(str(self.out)), self.checkpoint)


def by_count(folder: Path, keys: int, each: int, **options: Any) -> tuple[World, Any]:
    """Rows that arrive in another order than their numbers; rows of no declared key."""
    world = World(folder, keys, length=each * BATCHES, **OPTIONS, **options)
    rng, found = np.random.default_rng(3), []
    streams = world.plan.open_many(secret=SECRET)
    for number in range(BATCHES):
        key_of = np.tile(np.arange(keys), each)
        numbers = np.repeat(np.arange(each), keys) + number * each
        values = rng.exponential(2.0, keys * each)
        found.append(streams.absorb(values, key_of))
        order = rng.permutation(keys * each)
        names = [f"m{key}" for key in key_of[order]]
        names[0:0], more = ["nobody"], [0]
        world.frames.add(
            meter=names,
            number=np.concatenate([more, numbers[order]]),
            kwh=np.concatenate([more, values[order]]).astype(float),
        )
    return world, sorted_records(joined(found))


def by_clock(folder: Path, keys: int, each: int, **options: Any) -> tuple[World, Any]:
    """Ten hours in a batch, and the clock's row behind them; values as text, some missing."""
    options = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "30h", **options}
    world = World(folder, keys, **OPTIONS, **options)
    clock = world.plan.clock
    assert clock is not None
    rng, found = np.random.default_rng(4), []
    streams = world.plan.open_many(secret=SECRET)
    for number in range(BATCHES):
        key_of = np.tile(np.arange(keys), each)
        at = clock.start + number * 10 * HOUR + rng.integers(0, 10 * HOUR, keys * each)
        values = np.round(rng.exponential(2.0, keys * each), 3)
        values[::17] = np.nan
        ticks = clock.tick_of(at)
        found.append(streams.absorb_ticks(values, key_of, ticks, 10 * number + 10))
        order = rng.permutation(keys * each)
        texts = ["-" if np.isnan(value) else repr(float(value)) for value in values[order]]
        world.frames.add(
            meter=[f"m{key}" for key in key_of[order]],
            time=pa.array(at[order], pa.timestamp("us", "UTC")),
            kwh=texts,
        )
        until = [clock.start + (number + 1) * 10 * HOUR]
        world.clock.add(until=pa.array(until, pa.timestamp("us", "UTC")))
    return world, sorted_records(joined(found))


WORLDS: dict[str, Any] = {
    "by count": lambda folder: by_count(folder, 300, 8, **FIXED),
    "by count, each key learns": lambda folder: by_count(folder, 5, 20, lag=15),
    "by the clock": lambda folder: by_clock(folder, 300, 4, **FIXED),
    "by the clock, each key learns": lambda folder: by_clock(folder, 4, 30),
}


@pytest.mark.parametrize("name", [name for name in WORLDS if name != "by count"])
def test_the_same_releases_as_in_one_process(name: str, spark: Any, tmp_path: Path) -> None:
    world, expected = WORLDS[name](tmp_path)
    world.run(spark, keys_in_group=128)
    assert len(expected["t"]) > BATCHES
    assert records(world.out) == expected


def test_the_same_releases_as_rillet_run_and_the_secret_nowhere(spark: Any, tmp_path: Path) -> None:
    from rillet.spark import whole_records

    (tmp_path / "spark").mkdir()
    world, _ = by_count(tmp_path / "spark", 300, 4, **FIXED)
    own = rillet.Secret.generate()
    secret, world.secret = saved(tmp_path, own, "one"), saved(tmp_path, own, "other")
    files = sorted(world.frames.folder.glob("*.parquet"))
    tables = [pq.read_table(path).sort_by("number") for path in files]
    pq.write_table(pa.concat_tables(tables), tmp_path / "rows.parquet")
    rillet.run(
        {
            "plan": world.plan,
            "source": {"path": str(tmp_path / "rows.parquet"), "column": "kwh"},
            "keys": {"columns": ["meter"], "values": [key[0] for key in world.plan.keys]},
            "sink": [{"kind": "parquet", "path": str(tmp_path / "releases")}],
        },
        secret=secret,
    )
    forget_uses()
    world.run(spark)
    files = sorted((tmp_path / "releases").glob("*.parquet"))
    expected = sorted_records(pa.concat_tables(map(pq.read_table, files)))
    assert records(world.out) == expected
    written = spark.read.parquet(str(world.out))
    assert not {"mean", "noise_law", "clip_upper"} & set(written.columns)
    assert sorted_records(whole_records(written).toArrow()) == expected
    assert world.secret.with_name("other.uses").exists()
    check_nowhere(world, own, spark)


def check_nowhere(world: World, own: rillet.Secret, spark: Any) -> None:
    """Neither the secret nor values are in the checkpoint, the plan, or what a page would show."""
    words, folder = spellings(own), world.folder.parent
    assert files_with(folder, words) == [folder / "one", world.secret]  # it would be found
    events = Path(urlparse(spark.conf.get("spark.eventLog.dir")).path)
    identity = json.loads((world.checkpoint / "metadata").read_text())["id"].encode()
    assert files_with(events, [identity]) and not files_with(events, words)
    values = pq.read_table(next(world.frames.folder.glob("*.parquet")))["kwh"].to_numpy()
    raw = [np.float64(value).tobytes() for value in values[1:9]]
    assert files_with(world.frames.folder, raw) and not files_with(world.checkpoint, raw)
    plan = world.releases(spark)._jdf.queryExecution().toString()
    assert "TransformWithState" in plan and not any(word in plan.encode() for word in words)


# --- what is not the same is refused -------------------------------------------------------------


def test_a_query_goes_on_and_another_plan_secret_or_version_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    world, expected = by_count(tmp_path, 20, 4, **FIXED)
    later = sorted(world.frames.folder.glob("*.parquet"))[1:]
    for path in later:
        path.rename(tmp_path / path.name)
    world.run(spark)
    assert last_t(world.out) == 4
    for path in later:
        (tmp_path / path.name).rename(path)
    other = rillet.Plan(keys=world.plan.keys, length=12, **{**OPTIONS, "epsilon": 0.5}, **FIXED)
    with pytest.raises(StateError, match=r"another plan: epsilon was 1.0, is 0.5"):
        world.releases(spark, other)
    fewer = rillet.Plan(keys=[*world.plan.keys[1:], ("x",)], length=12, **OPTIONS, **FIXED)
    with pytest.raises(StateError, match="begun with other keys"):
        world.releases(spark, fewer)
    with pytest.raises(StateError, match="begun with other run"):
        world.releases(spark, run="2")
    with pytest.raises(StateError, match="keys_in_group was 16, is 7"):
        world.releases(spark, keys_in_group=7)
    with pytest.raises(StateError, match="begun with another secret"):
        world.releases(spark, secret=saved(tmp_path, rillet.Secret.for_tests(12), "wrong"))
    about = world.checkpoint / "rillet"
    (world.checkpoint / ".rillet.crc").unlink(missing_ok=True)
    known = about.read_text()
    about.write_text(json.dumps({**json.loads(known), "version": 0}))
    with pytest.raises(StateError, match="expected a checkpoint of version 3, found 0"):
        world.releases(spark)
    about.write_text("{")
    with pytest.raises(StateError, match="damaged"):
        world.releases(spark)
    about.unlink()
    with pytest.raises(StateError, match="found that of another query"):
        world.releases(spark)
    assert last_t(world.out) == 4
    about.write_text(known)
    world.run(spark)
    assert records(world.out) == expected


def test_a_secret_serves_one_checkpoint(spark: Any, tmp_path: Path) -> None:
    world, _ = by_count(tmp_path, 20, 4, **FIXED)
    world.secret = saved(tmp_path, rillet.Secret.generate(), "own")
    world.releases(spark)
    world.releases(spark)
    with pytest.raises(StateError, match="serves another state"):
        world.releases(spark, checkpoint=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / "rillet").exists()


def test_a_query_under_another_checkpoint_releases_nothing(spark: Any, tmp_path: Path) -> None:
    from rillet.spark import to_parquet

    world, _ = by_count(tmp_path, 20, 4, **FIXED)
    with pytest.raises(Exception, match="runs under another checkpoint"):
        run(world.releases(spark), to_parquet(str(world.out)), tmp_path / "elsewhere")
    assert not list(world.out.glob("batch=*"))


def test_what_does_not_fit_is_refused(spark: Any, tmp_path: Path) -> None:
    from rillet.spark import wall_clock

    (tmp_path / "count").mkdir()
    (tmp_path / "clock").mkdir()
    world, _ = by_count(tmp_path / "count", 20, 4, **FIXED)
    clocked, _ = by_clock(tmp_path / "clock", 20, 1, **FIXED)
    keys = world.plan.keys
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "30h"}
    person = rillet.Plan(keys=keys, unit=rillet.Person(most=2), **clock, **OPTIONS)
    shared = rillet.Plan(keys=keys, shared_threshold=True, **clock, **OPTIONS)
    levels = rillet.Plan(keys=keys, levels=["all"], **clock, **OPTIONS, **FIXED)
    for plan, reason in ((person, "one gate"), (shared, "would wait"), (levels, "of their own")):
        with pytest.raises(ParameterError, match=reason):
            clocked.releases(spark, plan)
    wrong: list[tuple[World, dict[str, Any], str]] = [
        (world, {"key": None}, "exactly where"),
        (world, {"value": "kw"}, "one of the columns meter, number, kwh"),
        (world, {"sequence": None}, "the order of the rows"),
        (world, {"clock": clocked.clock.stream(spark)}, "none for a plan by count"),
        (clocked, {"clock": None}, "wall_clock"),
        (clocked, {"at": None}, "the time of each row"),
        (world, {"person": "meter"}, "one gate"),
    ]
    for own, options, reason in wrong:
        with pytest.raises(ParameterError, match=reason):
            own.releases(spark, **options)
    with pytest.raises(ParameterError, match="one by the clock"):
        wall_clock(spark, world.plan)
    assert wall_clock(spark, clocked.plan).isStreaming
    assert not world.checkpoint.exists()
