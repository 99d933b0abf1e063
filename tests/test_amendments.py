"""Keys that come, go or get another name in a running state, and another ε."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rillet
from rillet import Plan, Secret, fleet
from rillet.amendments import Amendment, roster_of
from rillet.errors import ParameterError, StateError
from rillet.levels import Tree
from rillet.state import folder as folders

SECRET = Secret.for_tests(5)
CLOCK = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "upper": 10.0,
    "every": "1h",
    "length": "60h",
    "start": "2026-01-01T00:00Z",
}
COUNT = {"epsilon": 1.0, "upper": 10.0, "length": 200}
MODES: dict[str, dict[str, Any]] = {
    "declared": {**CLOCK, "lag": 0},
    "shared": {**CLOCK, "shared_threshold": True},
    "window": {**CLOCK, "shared_threshold": True, "statistic": rillet.Mean(window="5h")},
    "half-life": {**CLOCK, "lag": 0, "statistic": rillet.Sum(half_life="3h")},
    "alone": CLOCK,
    "count": {**COUNT, "lag": 0},
    "count, shared": {**COUNT, "lag": 20, "shared_threshold": True},
    "crowd": {**COUNT, "lag": 0},
}


def make(mode: str, **more: Any) -> Plan:
    keys = 300 if mode == "crowd" else 5
    return Plan(**{**MODES[mode], "keys": [f"k{i}" for i in range(keys)], **more})


class Run:
    """A state that is fed the same values for each key and step, however it was amended."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder, self.step = plan, folder, 0
        self.found: dict[tuple[Any, int], tuple[float, ...]] = {}
        plan.open_folder(folder, secret=SECRET).close()

    def go(self, steps: int, *, at_once: bool = True) -> None:
        streams = self.plan.open_folder(self.folder)
        for _ in range(steps):
            self._one(streams)
            if not at_once:
                streams.close()
                streams = self.plan.open_folder(self.folder)
        streams.close()

    def _one(self, streams: rillet.Streams) -> None:
        self.step += 1
        keys = self.plan.keys_now
        values = [sum(map(ord, key[0])) * (self.step + 7) ** 2 % 1000 / 100 for key in keys]
        if self.plan.clock is None:
            self._take(streams.update_many(values, key=list(keys)))
            return
        begin = int(self.plan.clock.start // 1_000_000) + 3600 * (self.step - 1)
        streams.update_many(values, key=list(keys), at=begin + 1800)
        self._take(streams.advance(until=begin + 3600))

    def _take(self, releases: rillet.Releases) -> None:
        for one in releases:
            assert (one.key, one.t) not in self.found
            at = 0 if self.plan.clock is None else one.at_microseconds  # by count it is now
            self.found[one.key, one.t] = (one.value, one.noise_std, at)

    def amend(self, **change: Any) -> None:
        self.plan = self.plan.amend_folder(self.folder, **change)
        assert Plan.kept_in(self.folder) == self.plan

    def of(self, *keys: str) -> dict[Any, str]:
        """Releases of some keys as texts, in which NaN equals itself."""
        return {at: repr(numbers) for at, numbers in self.found.items() if at[0][0] in keys}


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_keys_that_come_and_go_change_nothing_of_the_others(tmp_path, mode):
    plain, other = (Run(make(mode), tmp_path / name) for name in ("plain", "other"))
    plain.go(40)
    other.go(10)
    other.amend(add=["new", "newer"])
    other.go(10)
    other.amend(retire=["k1"], rename={"k2": "two"}, add=["last"])
    other.go(20)
    same = [key[0] for key in plain.plan.keys if key[0] not in ("k1", "k2")]
    if not plain.plan.shared_threshold:  # there the others share a range with those that come
        assert plain.of(*same) == other.of(*same)
    last = 40
    assert max(t for _, t in other.of("k0")) == last
    assert max(t for _, t in other.of("k1")) == 20
    assert max(t for _, t in other.of("k2")) == 20
    assert min(t for _, t in other.of("two")) == 21
    by_clock = plain.plan.clock is not None
    assert max(t for _, t in other.of("new")) == (last if by_clock else 30)
    assert max(t for _, t in other.of("last")) == (last if by_clock else 20)
    with other.plan.open_folder(other.folder) as streams:
        with pytest.raises(ParameterError, match="it was retired"):
            streams.t("k1")
        with pytest.raises(ParameterError, match="declared keys"):
            streams.t("k2")
        assert streams.t("two") == 40
        streams.rollup()


@pytest.mark.parametrize("mode", MODES)
def test_stopped_after_each_step_as_without(tmp_path, mode):
    found, rest = [], 4 if mode == "crowd" else 20
    for at_once in (True, False):
        run = Run(make(mode), tmp_path / str(at_once))
        run.go(3, at_once=at_once)
        # A key that is added has a secret of its own by count; the noise of tests is compared.
        run.amend(add=["new"] if run.plan.layout.fleet else [], retire=["k1"])
        run.go(4, at_once=at_once)
        if run.plan.layout.fleet:
            run.amend(epsilon=3.0)
        run.go(rest, at_once=at_once)
        found.append(repr(sorted(run.found.items())))
    assert found[0] == found[1]


def test_an_observation_of_a_retired_key_is_left_out_of_sources(tmp_path):
    run = Run(make("declared"), tmp_path / "state")
    run.go(3)
    run.amend(retire=["k1"])
    with run.plan.open_folder(run.folder) as streams:
        one = np.ones(1, np.int64)
        streams.absorb_ticks(np.array([5.0]), one, 4 * one, 3)
        assert not streams.store.fleet.pages[0].exact_partial[0].any()
        assert ("k1",) not in [
            release.key for release in streams.advance(until="2026-01-01T06:00Z")
        ]


@pytest.mark.parametrize("statistic", [rillet.Sum(), rillet.Sum(window="6h"), rillet.Count()])
def test_keys_that_were_added_have_the_noise_that_their_records_state(
    tmp_path, monkeypatch, statistic
):
    """2,000 keys without an observation: all that they release is noise."""
    monkeypatch.setattr(fleet, "PAGE", 700)
    plan = make("declared", statistic=statistic)
    plan.open_folder(tmp_path / "state").close()
    with plan.open_folder(tmp_path / "state") as streams:
        streams.advance(until="2026-01-01T07:00Z")
    plan = plan.amend_folder(tmp_path / "state", add=[f"n{i}" for i in range(2000)])
    plan = plan.amend_folder(tmp_path / "state", epsilon=0.5)
    with plan.open_folder(tmp_path / "state") as streams:
        releases = streams.advance(until="2026-01-02T06:00Z")
    frame = releases.to_pandas()
    for t in (8, 9, 15, 30):
        new = frame[(frame["t"] == t) & frame["key"].str.startswith("n")]
        assert len(new) == 2000
        stated = new["noise_std"].iloc[0]
        # The noise may be one Laplace variable, whose fourth moment is six squares of its variance:
        # a mean of 2,000 squares then deviates by √(5/2000); five of these.
        assert np.mean((new["value"] / stated) ** 2) == pytest.approx(1, abs=5 * (5 / 2000) ** 0.5)
        assert abs(np.mean(new["value"] / stated)) < 5 / 2000**0.5
    before, after = (frame[frame["t"] == t]["noise_std"].iloc[-1] for t in (8, 9))
    assert after > before


# --- another promise -----------------------------------------------------------------------------


def test_charges_after_another_epsilon(tmp_path):
    run = Run(make("shared", statistic=rillet.Sum()), tmp_path / "state")
    run.go(20)
    run.amend(epsilon=0.25)
    run.go(10)
    run.amend(epsilon=2.0)
    run.go(10)
    charges = run.plan.layout.charges()
    assert [first for first, _ in charges.later] == [22, 32]
    assert [charges.promised(t).epsilon for t in (21, 22, 31, 32)] == [1.0, 0.25, 0.25, 2.0]
    for charge in charges.totals():
        assert charge.cost.within(charges.promised(charge.first))
    assert rillet.Charges.from_json(charges.to_json()) == charges
    assert "from ticks 32 on" in str(charges)
    assert run.plan.guarantee_now.epsilon == 2.0
    assert "(2, 1e-06)" in run.plan.describe()
    with run.plan.open_folder(run.folder) as streams:
        assert streams.charges("k0").after(25).later == charges.later[:1]


def test_noise_grows_faster_while_less_is_promised(tmp_path):
    """Under a declared range: one that is learned from a few values may be next to nothing."""
    run = Run(make("declared", statistic=rillet.Sum()), tmp_path / "state")
    run.go(20)
    run.amend(epsilon=0.25)
    run.go(10)
    run.amend(epsilon=2.0)
    run.go(10)
    stds = [run.found[("k0",), t][1] for t in (20, 30, 40)]
    assert abs(stds[2] - stds[1]) < stds[0] < stds[1] - stds[0]


def test_a_state_that_was_not_amended_has_other_noise_afterwards(tmp_path):
    """A copy that goes on under the old promise must not show the same noise."""
    run = Run(make("declared"), tmp_path / "state")
    run.go(5)
    noise = []
    for epsilon in (2.0, 4.0):
        copy = Run.__new__(Run)
        shutil.copytree(run.folder, tmp_path / str(epsilon))
        copy.plan, copy.folder, copy.step, copy.found = run.plan, tmp_path / str(epsilon), 5, {}
        copy.amend(epsilon=epsilon)
        with copy.plan.open_folder(copy.folder) as streams:
            noise.append(streams.store.fleet.common.secret)
    assert noise[0].to_bytes() != noise[1].to_bytes()


def test_other_keys_in_the_same_place_have_other_noise(tmp_path):
    """A copy to which another key was added must not show its data under the same noise."""
    run = Run(make("declared", statistic=rillet.Sum()), tmp_path / "state")
    run.go(3)
    found = []
    for name in ("north", "south"):
        shutil.copytree(run.folder, tmp_path / name)
        plan = run.plan.amend_folder(tmp_path / name, add=[name])
        with plan.open_folder(tmp_path / name) as streams:
            last = streams.advance(until="2026-01-01T04:00Z").latest()
        found.append((last["k0",].value, last[name,].value))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"add": ["k0"]},
        {"add": ["new", "new"]},
        {"add": [("two", "parts")]},
        {"retire": ["other"]},
        {"retire": [f"k{i}" for i in range(5)]},
        {"rename": {"other": "name"}},
        {"rename": {"k1": "k2"}},
        {"rename": [("k1",)]},
        {"epsilon": -1.0},
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path, change):
    run = Run(make("declared"), tmp_path / "state")
    run.go(2)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(ParameterError):
        run.amend(**change)
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def test_a_name_is_used_once():
    first = Amendment(rename=[("a", "b")])
    with pytest.raises(ParameterError, match="not used before"):
        roster_of((("a",),), [first, Amendment(add=["a"])])
    with pytest.raises(ParameterError, match="retired"):
        roster_of((("a",), ("c",)), [Amendment(retire=["a"]), Amendment(rename=[("a", "d")])])


@pytest.mark.parametrize(
    ("options", "change", "why"),
    [
        ({**COUNT, "keys": ["a"]}, {"epsilon": 2.0}, "by count"),
        ({**CLOCK, "keys": ["a", "b"]}, {"epsilon": 2.0}, "range of its own"),
        ({**CLOCK, "lag": 0}, {"add": ["b"]}, "none are declared"),
        (
            {**CLOCK, "lag": 0, "keys": ["a"], "unit": rillet.Person(most=2)},
            {"add": ["b"]},
            "persons",
        ),
        ({**CLOCK, "lag": 0, "keys": ["a", "b"], "levels": ["all"]}, {"add": ["c"]}, "totals"),
    ],
)
def test_where_a_promise_or_keys_cannot_change(options, change, why):
    with pytest.raises(ParameterError, match=why):
        Plan(**options, amendments=[change])


def test_a_stream_without_keys_takes_another_epsilon(tmp_path):
    plan = Plan(**{**CLOCK, "lag": 0})
    with plan.open_folder(tmp_path / "state") as streams:
        streams.advance(until="2026-01-01T05:00Z")
    plan = plan.amend_folder(tmp_path / "state", epsilon=2.0)
    with plan.open_folder(tmp_path / "state") as streams:
        assert len(streams.advance(until="2026-01-01T09:00Z")) == 4


def test_another_plan_than_the_amended_one_is_refused(tmp_path):
    run = Run(make("declared"), tmp_path / "state")
    run.go(2)
    first = run.plan
    run.amend(add=["new"])
    for plan in (first, make("declared", amendments=[{"after": 2, "add": ["other"]}])):
        with pytest.raises(StateError, match="other amendments than the plan: added new"):
            plan.open_folder(run.folder)
    with pytest.raises(StateError, match="expected the folder of a state"):
        run.plan.amend_folder(tmp_path / "nothing", add=["x"])


def test_the_refusal_says_what_to_type(tmp_path):
    run = Run(make("declared"), tmp_path / "state")
    run.go(2)
    with pytest.raises(StateError, match=r"rillet amend \S+ --add k5 --retire k0"):
        make("declared", keys=[f"k{i}" for i in range(1, 6)]).open_folder(run.folder)
    with pytest.raises(StateError, match=r"rillet amend \S+ --epsilon 0.5"):
        make("declared", epsilon=0.5).open_folder(run.folder)


def test_a_crash_before_the_plan_is_written_is_made_good(tmp_path, monkeypatch):
    run = Run(make("declared"), tmp_path / "state")
    run.go(2)
    replace = folders._replace

    def crash(path: Path, text: str) -> None:
        if path.name == "plan.json":
            raise KeyboardInterrupt
        replace(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_replace", crash)
        with pytest.raises(KeyboardInterrupt):
            run.plan.amend_folder(run.folder, add=["new"])
    assert Plan.kept_in(run.folder) == run.plan
    with pytest.raises(StateError, match="added new"):
        run.plan.open_folder(run.folder)
    completed = Plan.kept_in(run.folder)
    assert completed.keys_now[-1] == ("new",)
    completed.open_folder(run.folder).close()


def test_amendments_are_sealed_and_chained(tmp_path):
    run = Run(make("declared"), tmp_path / "state")
    run.go(2)
    run.amend(add=["first"])
    run.amend(add=["second"], epsilon=3.0)
    with run.plan.open_folder(run.folder) as streams:
        records = streams.store.amendments()
    names = [record["chain"] for record in records]
    assert names[1] == Amendment(**records[1]["amendment"]).digest(names[0])
    assert names[0] == Amendment(**records[0]["amendment"]).digest("")
    assert b"second" not in (run.folder / "state.db").read_bytes()
    path = run.folder / "plan.json"
    table = json.loads(path.read_text())
    table["amendments"][1]["epsilon"] = 30.0
    path.write_text(json.dumps(table))
    with pytest.raises(StateError, match="other amendments"):
        Plan.kept_in(run.folder).open_folder(run.folder)


def test_tree_of_amended_keys():
    changes = [Amendment(after=3, add=["c"]), Amendment(after=5, retire=["a"], add=["d", "e"])]
    tree = Tree(roster_of((("a",), ("b",)), changes))
    assert tree.added_after.tolist() == [0, 0, 3, 5, 5]
    assert tree.live(np.array([0, 1, -1, 4])).tolist() == [-1, 1, -1, 4]
    assert list(tree.indices) == [("b",), ("c",), ("d",), ("e",)]
    assert tree.keys_at_first == (("a",), ("b",))
