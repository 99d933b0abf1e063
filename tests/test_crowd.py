"""Many keys at once by count give what each gives alone, bit for bit, however blocks are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.test_fleet import columns

import rillet
import rillet.layout
import rillet.plan.calibrate
from rillet.errors import StreamEnded
from rillet.state.base import MemoryStore
from rillet.streams import Streams

KEYS, LENGTH = 9, 90
SECRET = rillet.Secret.for_tests(21)
PLANS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum, none missing": {"statistic": rillet.Sum(), "missing": "none"},
    "a number for missing ones": {"missing": 2.5},
    "count": {"statistic": rillet.Count(), "upper": None},
    "pure": {"delta": 0.0},
    "every 7": {"every": 7},
    "every 7, pure": {"every": 7, "delta": 0.0, "missing": "none"},
    "window": {"statistic": rillet.Mean(window=12), "every": 3},
    "half-life": {"statistic": rillet.Sum(half_life=12)},
    "tree": {"strategy": rillet.BinaryTree()},
    "honaker": {"strategy": rillet.HonakerTree(), "delta": 0.0},
    "toeplitz": {"strategy": rillet.BufferedToeplitz()},
    "shared": {"shared_threshold": True, "lag": 100},
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rillet.layout, "MANY_KEYS", 4)
    monkeypatch.setattr(rillet.plan.calibrate, "MANY_KEYS", 4)
    monkeypatch.setattr(rillet.layout, "KEYED_RATCHET_EVERY", 16)


def make(name: str) -> rillet.Plan:
    options = {"epsilon": 1.0, "delta": 1e-6, "upper": 10.0, "length": LENGTH, **PLANS[name]}
    if "shared_threshold" not in options:
        options["threshold"] = rillet.FixedThreshold()
    plan = rillet.Plan(keys=[f"k{number}" for number in range(KEYS)], **options)
    assert plan.layout.crowd
    return plan


def one_by_one(plan: rillet.Plan) -> Streams:
    """The same streams, each stepped by itself."""
    secrets = [plan.stream_secret(SECRET, key, "") for key in plan.keys]
    shared = plan.stream_secret(SECRET, (), "") if plan.shared_threshold else None
    return Streams(plan.layout, plan.tree, MemoryStore(secrets, shared))


def observations(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All of each key but of the last, which stops half-way, in any order."""
    rng = np.random.default_rng(seed)
    key_of = np.repeat(np.arange(KEYS), [LENGTH] * (KEYS - 1) + [LENGTH // 2])
    rng.shuffle(key_of)
    raw_values = rng.exponential(2.0, len(key_of))
    raw_values[rng.random(len(key_of)) < 0.03] = np.nan
    return raw_values, key_of


def blocks(data: Any, cuts: Any) -> list[Any]:
    return list(zip(*(np.split(one, cuts) for one in data), strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_as_each_key_by_itself(name: str) -> None:
    plan, rng = make(name), np.random.default_rng(5)
    data = observations(1)
    together, alone = plan.open_many(secret=SECRET), one_by_one(plan)
    assert together.store.crowd is not None and alone.store.crowd is None
    for number in range(2):
        cuts = np.sort(rng.integers(0, len(data[0]), 5 + 60 * number))
        together, alone = plan.open_many(secret=SECRET), one_by_one(plan)
        for raw_values, key_of in blocks(data, cuts):
            got, wanted = together.absorb(raw_values, key_of), alone.absorb(raw_values, key_of)
            assert columns(got) == columns(wanted)
            assert not len(got) or got.keys == wanted.keys
    for key in plan.keys:
        assert together.latest(key) == alone.latest(key)
        assert together.t(key) == alone.t(key)
    if not np.isnan(together.latest(plan.keys[0]).sum):
        assert together.rollup() == alone.rollup()


@pytest.mark.parametrize("name", [name for name in PLANS if name != "shared"])
def test_a_snapshot_of_one_key_goes_on_by_itself(name: str) -> None:
    plan = make(name)
    raw_values, key_of = observations(2)
    together, alone = plan.open_many(secret=SECRET), one_by_one(plan)
    for one in (together, alone):
        one.absorb(raw_values[:400], key_of[:400])
    stream = together.stream("k3")
    resumed = plan.resume(stream.snapshot(), secret=stream.secret)
    rest = raw_values[400:][key_of[400:] == 3]
    assert columns(resumed.update_many(rest)) == columns(alone.stream("k3").update_many(rest))


def test_nothing_is_absorbed_of_a_block_that_is_too_long() -> None:
    plan = make("mean")
    streams = plan.open_many(secret=SECRET)
    streams.update_many(np.ones(LENGTH - 1), key="k2")
    with pytest.raises(StreamEnded, match=r"k2.* to 91"):
        streams.update_many(np.ones(3), key=["k1", "k2", "k2"])
    assert (streams.t("k1"), streams.t("k2")) == (0, LENGTH - 1)
    assert streams.update(1.0, key="k2").t == LENGTH


def test_sequence_numbers_that_were_absorbed_are_left_out() -> None:
    streams = make("mean").open_many(secret=SECRET)
    numbers = np.array([3, 1, 2, 3, 4])
    streams.absorb(np.ones(5), np.array([0, 1, 1, 1, 0]), sequence=numbers)
    assert (streams.t("k0"), streams.t("k1")) == (2, 3)
    streams.absorb(np.ones(3), np.array([0, 1, 1]), sequence=np.array([4, 3, 4]))
    assert (streams.t("k0"), streams.t("k1")) == (2, 4)
