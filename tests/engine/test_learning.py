"""How far each key is before its first release, as a run tells it."""

import json

import numpy as np
import pytest

import rillet
from rillet.engine.learning import Learning

KEYS = tuple(f"k{number}" for number in range(5))


def config(folder, **more):
    """A run of a file of keyed values; each key learns from its first forty."""
    plan = {"epsilon": 1.0, "delta": 1e-6, "upper": 50.0, "length": 2000, "lag": 40}
    return {
        "plan": plan | more.pop("plan", {}),
        "keys": {"columns": ["key"], "values": more.pop("values", list(KEYS))},
        "source": {"path": str(folder / "in.csv"), "column": "x", "block_rows": 16, **more},
        "state": {"folder": str(folder / "live")},
        "log": {"level": "error"},
    }


def write(folder, keys, numbers=None):
    numbers = range(len(keys)) if numbers is None else numbers
    rows = [f"{key},{7.5},{number}" for key, number in zip(keys, numbers, strict=True)]
    (folder / "in.csv").write_text("\n".join(["key,x,number", *rows, ""]), encoding="utf-8")


def told(folder):
    return json.loads((folder / "live" / "progress.json").read_text(encoding="utf-8"))["learning"]


def test_counts_are_those_of_the_streams_and_survive_a_restart(tmp_path):
    chance = np.random.default_rng(3)
    keys = chance.choice((*KEYS[:4], "ghost"), 150, p=[0.5, 0.2, 0.15, 0.05, 0.1]).tolist()
    write(tmp_path, keys)
    seen = []
    summary = rillet.run(config(tmp_path), watch=lambda now: seen.append(now.of_keys.counts()))
    counts = {key: keys.count(key) for key in KEYS}
    expected = {key: count for key, count in counts.items() if count < 40}
    assert counts["k0"] >= 40
    assert "k0" in seen[0]
    assert told(tmp_path) == expected == seen[-1]
    assert list(told(tmp_path)) == sorted(expected, key=lambda key: -expected[key])
    furthest = max(expected.values())
    words = f"learning, 4 of 5 keys; the furthest has {furthest} of 40 observations"
    assert summary.learning == words
    assert words in str(summary)
    assert summary.of_keys.share == pytest.approx((1 + sum(expected.values()) / 40) / 5)
    # Again, with nothing new, and with more.
    rillet.run(config(tmp_path))
    assert told(tmp_path) == expected
    write(tmp_path, [*keys, *["k3"] * 40])
    summary = rillet.run(config(tmp_path))
    assert told(tmp_path) == {key: count for key, count in expected.items() if key != "k3"}
    # What the last run told is lost: a key is known again when it has an observation.
    (tmp_path / "live" / "progress.json").unlink()
    write(tmp_path, [*keys, *["k3"] * 40, "k1", "k0"])
    rillet.run(config(tmp_path))
    assert told(tmp_path) == {"k1": expected["k1"] + 1}


def test_an_observation_that_comes_again_is_not_counted(tmp_path):
    write(tmp_path, ["k0"] * 20 + ["k1"] * 10, [*range(10), *range(10), *range(10)])
    rillet.run(config(tmp_path, sequence="number"))
    assert told(tmp_path) == {"k0": 10, "k1": 10, "k2": 0, "k3": 0, "k4": 0}


def test_keys_that_are_stepped_together_are_counted_too(tmp_path):
    """From 256 keys on, with a declared range."""
    many = [f"k{number}" for number in range(300)]
    write(tmp_path, many[:200] * 3 + many[:100] * 2)
    plan = {"threshold": "fixed", "every": 5, "lag": 0}
    summary = rillet.run(config(tmp_path, values=many, plan=plan))
    expected = dict.fromkeys(many[100:200], 3) | dict.fromkeys(many[200:], 0)
    assert told(tmp_path) == expected
    assert summary.of_keys.left == 200


def test_nothing_is_counted_by_the_clock(tmp_path):
    """There the number of observations is private."""
    rows = [f"{key},1.5,2026-01-01T00:30Z" for key in KEYS[:2]]
    (tmp_path / "in.csv").write_text("\n".join(["key,x,when", *rows, ""]), encoding="utf-8")
    plan = {"every": "1h", "start": "2026-01-01T00:00Z", "length": "100h"}
    tables = config(tmp_path, plan=plan, time="when")
    del tables["source"]["block_rows"]
    assert rillet.run(tables, until="2026-01-01T05:00Z").of_keys is None
    progress = json.loads((tmp_path / "live" / "progress.json").read_text(encoding="utf-8"))
    assert "learning" not in progress


def test_of_very_many_keys_the_furthest_are_told():
    keys = [f"k{number}" for number in range(10_002)]
    plan = rillet.Plan.baseline(epsilon=1.0, upper=1.0, length=9, every=5, keys=keys)
    found = Learning(plan, dict.fromkeys(keys, 0) | {"k10000": 3})
    assert len(found.counts()) == 10_000
    assert found.counts()["k10000"] == 3
    assert found.left == 10_002
