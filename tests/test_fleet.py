"""All keys at once give what each key gives alone, bit for bit, however the input is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rillet
from rillet import fleet, step
from rillet.gather.grid import LARGEST_SUM, Grid
from rillet.layout import Layout, nearest_share
from rillet.noise import Secret
from rillet.release import NUMBERS
from rillet.statistic import Range, Totals
from rillet.step import Anchor, read, removed_by

KEYS = 11
SECRET = Secret.for_tests(7)
STATISTICS = {
    "mean": rillet.Mean(),
    "sum": rillet.Sum(),
    "count": rillet.Count(),
    "window": rillet.Mean(window="5h"),
    "half-life": rillet.Sum(half_life="3h"),
}
SMALL = {"epsilon": 1.0, "delta": 1e-6, "upper": 10.0, "every": "1h", "length": "60h"}


def make(**options: Any) -> rillet.Plan:
    return rillet.Plan(
        **{**SMALL, "start": "2026-01-01T00:00Z", "keys": [f"k{i}" for i in range(KEYS)], **options}
    )


def arrivals(ticks: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, keys and ticks, in order of ticks: none, some or many for a key."""
    rng = np.random.default_rng(seed)
    tick_of = np.sort(rng.integers(1, ticks + 1, 40 * ticks))
    key_of = rng.integers(0, KEYS, len(tick_of)) * rng.integers(0, 2, len(tick_of))
    raw_values = rng.exponential(2.0, len(tick_of))
    raw_values[rng.random(len(tick_of)) < 0.05] = np.nan
    return raw_values, key_of, tick_of


@pytest.fixture(params=[3, 2**14], ids=["small pages", "one page"])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PAGE", request.param)


def columns(releases: rillet.Releases) -> list[Any]:
    keys = [releases.keys[index] for index in releases.key_of]
    return [keys, releases.t.tolist(), *(releases.rows(name).tobytes() for name in NUMBERS)]


def run(streams: Any, data: Any, cuts: Any = ()) -> rillet.Releases:
    """Feed values in blocks; a block closes all ticks before that of its last value."""
    raw_values, key_of, tick_of = data
    parts = []
    for rows in np.split(np.arange(len(raw_values)), np.sort(cuts)):
        if len(rows):
            until = int(tick_of[rows[-1]]) - 1
            parts.append(streams.absorb_ticks(raw_values[rows], key_of[rows], tick_of[rows], until))
    nothing = np.empty(0, np.int64)
    last = streams.layout.length
    parts.append(streams.absorb_ticks(np.empty(0), nothing, nothing, last))
    return rillet.Releases.join([part for part in parts if len(part)])


class Alone:
    """One key by the plain loop, one leaf at a time: what :mod:`rillet.fleet` must equal."""

    def __init__(self, layout: Layout, secret: Secret, number: int, found: list[Any]) -> None:
        self.layout, self.secret, self.number, self.found = layout, secret, number, found

    def levels(self, mechanism: Any, purpose: str, column: int) -> Any:
        levels, number = mechanism.levels(self.secret, purpose, column=column), self.number

        class Own:
            def __init__(self, level: int) -> None:
                self.level = level

            def draw(self, start: int, count: int) -> np.ndarray:
                return levels(self.level).draw(number * count, count)

        return Own

    def clipping(self, segment: int) -> Range:
        return Range(float(self.found[segment].lower[0]), float(self.found[segment].upper[0]))

    def run(self, ticks: list[np.ndarray]) -> list[tuple[int, dict[str, float]]]:
        layout, releases = self.layout, []
        width = layout.leaf.width
        sums: list[float] = [0.0] * len(layout.leaf.units(Grid(0.0, 1.0, *layout.leaf.cut(2))))
        removed, latest, warm_up = 0.0, (), ()
        if layout.lag and layout.warm_up is not None:
            leaf, mechanism, clipping = layout.warm_up_leaf, layout.warm_up, self.clipping(0)
            grid = Grid(clipping.lower, clipping.upper, *leaf.cut(mechanism.steps))
            exact = self.total(leaf, grid, np.concatenate(ticks[: layout.lag]), LARGEST_SUM)
            noise = [
                int(self.levels(mechanism, "warm-up", column)(0).draw(1, 1)[0])
                for column in range(width)
            ]
            prefixes = [float(a + b) for a, b in zip(exact, noise, strict=True)]
            warm_up = leaf.units(grid)
            each = float(self.found[0].removed_each[0])
            anchor = Anchor(clipping, 0, (0.0,) * len(sums), (0.0,) * width, 0.0, each)
            sums = read(layout, anchor, warm_up, leaf.offsets(clipping), layout.lag, prefixes)
            latest, shown = tuple(sums), list(sums)
            for reading, count in leaf.corrected:
                removed = float(removed_by(layout, anchor, count, layout.lag, shown))
                shown[reading] += removed
            releases.append((layout.lag, self.numbers(layout.lag, shown, clipping, warm_up)))
        self.secret = self.secret.ratchet()
        strategy, leaves = layout.main.strategy, layout.main.leaves
        encoders = [strategy.encoder(leaves).start()] * width
        decoders = [strategy.decoder(leaves).start()] * width
        processes = [strategy.noise_process(leaves).start()] * width
        after, prefixes_then, number = layout.lag, [0.0] * width, -1
        worth: list[Any] = []
        past: list[list[float]] = []
        for t in range(layout.lag + 1, layout.length + 1):
            segment, index = layout.segment_at(t), layout.leaf_of(t)
            if t == segment.first:
                number += 1
                clipping, share = self.clipping(number), 0.5
                if layout.leaf.splits and latest:
                    share = float(layout.statistic.count_share(latest, clipping))
                cut = layout.cut(segment.steps, int(nearest_share(share)))
                grid = Grid(clipping.lower, clipping.upper, *cut)
                units = layout.leaf.units(grid)
                worth = list(layout.still_felt([*worth, (index - 1, units)], index - 1))
            exact = self.total(layout.leaf, grid, ticks[t - 1], layout.largest_leaf)
            prefixes = []
            for column in range(width):
                encoders[column], node = strategy.encoder(leaves).encode(
                    encoders[column], index, np.array([exact[column]])
                )
                processes[column], noise = strategy.noise_process(leaves).draw(
                    processes[column], self.levels(layout.main, "main", column), index, 1
                )
                decoders[column], prefix = strategy.decoder(leaves).decode(
                    decoders[column], index, node + noise
                )
                prefixes.append(float(prefix[0]))
            self.secret = self.secret.ratchet()
            each = float(self.found[number].removed_each[0])
            anchor = Anchor(clipping, after, tuple(sums), tuple(prefixes_then), removed, each)
            last = list(prefixes)
            plain = read(layout, anchor, units, layout.leaf.offsets(clipping), t, prefixes)
            shown = list(plain)
            for reading, count in layout.leaf.corrected:
                shown[reading] += float(removed_by(layout, anchor, count, t, shown))
            if layout.memory.window is not None:
                past.append(list(shown))
                if len(past) > layout.memory.window:
                    before = past[-1 - layout.memory.window]
                    shown = [a - b for a, b in zip(shown, before, strict=True)]
            numbers = self.numbers(t, shown, clipping, warm_up, worth)
            releases.append((t, numbers))
            if t == segment.last:
                for _, count in layout.leaf.corrected[:1]:
                    removed = float(removed_by(layout, anchor, count, t, plain))
                after, sums, prefixes_then, latest = t, plain, last, tuple(shown)
        return releases

    @staticmethod
    def total(leaf: Any, grid: Grid, raw_values: np.ndarray, most: int) -> list[int]:
        exact_units = leaf.contribute(raw_values, grid).reshape(len(raw_values), leaf.width)
        return [max(-most, min(int(total), most)) for total in exact_units.sum(axis=0)]

    def numbers(
        self, t: int, sums: list[float], clipping: Range, warm_up: Any, worth: Any = ()
    ) -> dict[str, float]:
        layout = self.layout
        covariance = layout.covariances_of_warm_up(1, warm_up)
        if worth:
            covariance = layout.covariances(np.array([layout.leaf_of(t)]), worth, warm_up)
        totals = Totals(None, tuple(map(np.array, sums)), covariance, clipping)
        numbers = layout.statistic.numbers(totals)
        return {name: float(np.ravel(number())[0]) for name, number in numbers.items()}


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    ("statistic", "shared"),
    sorted({(name, shared and name != "count") for name in STATISTICS for shared in (True, False)}),
)
@pytest.mark.parametrize("delta", [1e-6, 0.0], ids=["gaussian", "pure"])
def test_each_key_as_by_the_plain_loop(statistic: str, delta: float, shared: bool) -> None:
    threshold = {"shared_threshold": True} if shared else {"threshold": rillet.FixedThreshold()}
    plan = make(delta=delta, statistic=STATISTICS[statistic], **threshold)
    assert plan.layout.fleet
    data = arrivals()
    streams = plan.open_many(secret=SECRET)
    releases = run(streams, data, [100, 101, 700, 1500, 2000])
    assert len(releases) == KEYS * (plan.layout.length - plan.layout.first_release + 1)
    found = streams.store.fleet.common.found
    raw_values, key_of, tick_of = data
    for index in (0, KEYS - 1):
        own = [raw_values[(key_of == index) & (tick_of == t)] for t in range(1, 61)]
        if plan.layout.setting.missing:
            own = [each[~np.isnan(each)] for each in own]
        secret = plan.stream_secret(SECRET, (), "")
        expected = Alone(plan.layout, secret, index, found).run(own)
        chosen = releases.key_of == index
        assert releases.t[chosen].tolist() == [t for t, _ in expected]
        for name in expected[0][1]:
            got = releases.rows(name)[chosen]
            assert np.array_equal(
                got, [numbers[name] for _, numbers in expected], equal_nan=True
            ), name


@pytest.mark.parametrize("statistic", STATISTICS)
def test_however_the_input_is_cut_and_paged(
    statistic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(statistic=STATISTICS[statistic], shared_threshold=statistic != "count")
    data = arrivals(seed=1)
    rng = np.random.default_rng(2)
    whole = columns(run(plan.open_many(secret=SECRET), data))
    for page in (1, 4, 2**14):
        monkeypatch.setattr(fleet, "PAGE", page)
        cuts = rng.integers(0, len(data[0]), 40)
        assert columns(run(plan.open_many(secret=SECRET), data, cuts)) == whole


def test_rows_of_a_tick_in_any_order_of_keys() -> None:
    plan = make(shared_threshold=True)
    raw_values, key_of, tick_of = arrivals(seed=3)
    order = np.lexsort((np.random.default_rng(1).random(len(tick_of)), tick_of))
    one = run(plan.open_many(secret=SECRET), (raw_values, key_of, tick_of))
    other = (raw_values[order], key_of[order], tick_of[order])
    assert columns(run(plan.open_many(secret=SECRET), other)) == columns(one)


def test_one_key_alone_has_its_own_noise() -> None:
    """A single stream of a key is what the fleet has of it."""
    plan = make(threshold=rillet.FixedThreshold())
    raw_values, key_of, tick_of = arrivals(seed=4)
    all_keys = run(plan.open_many(secret=SECRET), (raw_values, key_of, tick_of))
    own = key_of == 4
    stream = plan.open(secret=SECRET, key="k4")
    nothing = np.zeros(int(own.sum()), np.int64)
    alone = run(stream._streams, (raw_values[own], nothing, tick_of[own]))
    chosen = all_keys.key_of == 4
    assert alone.value.tobytes() == all_keys.value[chosen].tobytes()
    assert stream.latest() == plan_latest(all_keys, 4)


def plan_latest(releases: rillet.Releases, index: int) -> rillet.Release:
    return releases.latest()[releases.keys[index]]


def test_values_of_later_ticks_are_held() -> None:
    plan = make(shared_threshold=True)
    raw_values, key_of, tick_of = arrivals(seed=5)
    whole = run(plan.open_many(secret=SECRET), (raw_values, key_of, tick_of))
    streams = plan.open_many(secret=SECRET)
    streams.absorb_ticks(raw_values, key_of, tick_of, 0)
    nothing = np.empty(0, np.int64)
    parts = [
        streams.absorb_ticks(np.empty(0), nothing, nothing, until) for until in (1, 2, 30, 31, 60)
    ]
    assert columns(rillet.Releases.join([part for part in parts if len(part)])) == columns(whole)


def test_what_a_look_sees_is_all_keys_and_each_tick_has_its_own_key() -> None:
    plan = make(shared_threshold=True, missing="none")
    raw_values, key_of, tick_of = arrivals(seed=6)
    raw_values = np.nan_to_num(raw_values, nan=1.0)
    streams = plan.open_many(secret=SECRET)
    layout, common = plan.layout, streams.store.fleet.common
    secrets = []
    for until in range(1, 61):
        rows = tick_of == until
        secrets.append(common.secret.to_bytes())
        streams.absorb_ticks(raw_values[rows], key_of[rows], tick_of[rows], until)
    assert len(set(secrets)) == 60 - layout.lag + 1  # the warm-up has one for all of its ticks
    segment = layout.segments[0]
    look, centre = common.looks[0][1], common.looks[0][0].centre
    counted = (tick_of >= segment.first) & (tick_of <= segment.last)
    exact = layout.threshold.count(raw_values[counted], layout.bounds, centre)
    off = np.abs(look.noisy - exact)
    assert 0 < off.max() < 12 * look.scale  # of some hundred Laplace draws
    assert sum(exact) == 256 * counted.sum()


def grouped(**more: Any) -> rillet.Plan:
    keys = [(kind, number) for kind in ("home", "works") for number in range(6)]
    options = {"keys": keys, "shared_threshold": True, "upper": 5000.0, "groups": 1, "lag": 4}
    return make(**{**options, **more})


def test_groups_learn_by_themselves() -> None:
    """Each as a fleet of its own keys would, up to the noise."""
    plan, rng = grouped(), np.random.default_rng(4)
    tick_of = np.repeat(np.arange(1, 61), 1200)
    key_of = np.tile(np.repeat(np.arange(12), 100), 60)
    values = rng.exponential(2.0, len(key_of)) * np.where(key_of < 6, 1.0, 400.0)
    streams = plan.open_many(secret=SECRET)
    releases = run(streams, (values, key_of, tick_of))
    last = {release.key: release for release in releases.latest().values()}
    homes, works = last["home", 0], last["works", 0]
    assert homes.clip_upper < 60
    assert works.clip_upper > 1000
    assert homes.clip_upper == last["home", 5].clip_upper
    assert homes.noise_std < works.noise_std / 20
    assert homes.value == pytest.approx(2.0, abs=6 * homes.noise_std + 0.2)
    # What one group had changes nothing of the other.
    values[key_of >= 6] /= 7
    other = run(plan.open_many(secret=SECRET), (values, key_of, tick_of)).latest()
    assert other["home", 3] == last["home", 3]
    assert other["works", 3].clip_upper < works.clip_upper


def test_groups_are_kept_with_the_state(tmp_path: Any) -> None:
    keys = grouped().keys
    plan = grouped(groups={"even": keys[::2], "odd": keys[1::2]})
    assert plan.tree.group_of.tolist() == [0, 1] * 6
    assert rillet.Plan.from_json(plan.to_json()) == plan
    plan.open_folder(tmp_path / "state").close()
    with pytest.raises(rillet.errors.StateError, match="in other groups"):
        grouped().open_folder(tmp_path / "state")
    amended = plan.amend_folder(tmp_path / "state", retire=[("home", 0)])
    amended.open_folder(tmp_path / "state").close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": 2},
        {"groups": {"a": [("home", 0)]}},
        {"groups": "many"},
        {"shared_threshold": False},
        {"levels": ["all"]},
    ],
)
def test_groups_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(rillet.errors.ParameterError, match="groups"):
        grouped(**wrong)


def test_a_key_joins_the_group_that_its_name_says(tmp_path: Any) -> None:
    plan = grouped()
    plan.open_folder(tmp_path / "state").close()
    plan = plan.amend_folder(tmp_path / "state", add=[("works", 6)])
    assert plan.tree.group_of.tolist() == [0] * 6 + [1] * 7
    with pytest.raises(rillet.errors.ParameterError, match="groups"):
        plan.amend_folder(tmp_path / "state", add=[("school", 1)])


# --- a range of its own --------------------------------------------------------------------------


def busy(ticks: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two keys with much data, one of small values and one of large ones."""
    rng, each = np.random.default_rng(9), np.full(KEYS, 3)
    each[[2, 5]] = 2500
    key_of = np.tile(np.repeat(np.arange(KEYS), each), ticks)
    tick_of = np.repeat(np.arange(1, ticks + 1), each.sum())
    scale = np.full(KEYS, 20.0)
    scale[[2, 5]] = 0.2, 1000.0
    return rng.exponential(1.0, len(key_of)) * scale[key_of], key_of, tick_of


BUSY = {"shared_threshold": True, "upper": 20_000.0, "lag": 4}


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("statistic", ["mean", "window"])
def test_keys_with_enough_data_learn_alone(statistic: str) -> None:
    plan = make(**BUSY, statistic=STATISTICS[statistic])
    data = busy()
    streams = plan.open_many(secret=SECRET)
    releases = run(streams, data)
    common, last = streams.store.fleet.common, releases.latest()
    assert common.own == [2, 5]
    small, large, other = last["k2",], last["k5",], last["k0",]
    assert small.clip_upper < 10
    assert large.clip_upper > 2000
    assert other.clip_upper == last["k7",].clip_upper
    if statistic == "window":  # noise of the first range is in a sum of all so far for ever
        assert small.sum_noise_std < other.sum_noise_std / 100
    # Others learn from each other alone, then: 20 times smaller than the largest, but so few that
    # any tail is likely; and in a sum of all so far a range in between leaves the least noise.
    assert other.clip_upper < 0.8 * large.clip_upper
    # All keys had one range up to the end of the segment in which one first learned alone.
    first = next(s.last for s in plan.layout.segments if plan.layout.enough_to_learn_alone(s))
    ends = {t: set(releases.clip_upper[releases.t == t].tolist()) for t in set(releases.t.tolist())}
    assert all(len(own) == 1 for t, own in ends.items() if t <= first)
    assert len(ends[60]) == 3
    cuts = np.random.default_rng(1).integers(0, len(data[0]), 12)
    assert columns(run(plan.open_many(secret=SECRET), data, cuts)) == columns(releases)


def test_a_look_of_its_own_has_the_values_of_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each observation is in one look of its segment: in its key's, or in that of the others."""
    plan, (raw_values, key_of, tick_of) = make(**BUSY, lower=-5.0), busy()
    layout = plan.layout
    looked: list[tuple[int, np.ndarray, float | None]] = []

    def later_look(noise: Any, exact: Any, draws: Any, centre: float | None) -> Any:
        looked.append((int(draws.shape[0]), exact.copy(), centre))
        return step.later_look(noise, exact, draws, centre)

    monkeypatch.setattr(fleet, "later_look", later_look)
    streams = plan.open_many(secret=SECRET)
    common, ends = streams.store.fleet.common, []
    for segment in layout.segments[:-1]:
        rows = (tick_of >= (segment.first if ends else 1)) & (tick_of <= segment.last)
        groups = 1 + len(common.own)
        looked.clear()
        streams.absorb_ticks(raw_values[rows], key_of[rows], tick_of[rows], segment.last)
        ends.append(groups)
        inside = (tick_of >= segment.first) & (tick_of <= segment.last)
        parts = [inside & ~np.isin(key_of, [2, 5][: groups - 1])]
        parts += [inside & (key_of == own) for own in [2, 5][: groups - 1]]
        assert len(looked) == groups
        for part, (_, exact, centre) in zip(parts, looked, strict=True):
            expected = layout.threshold.count(raw_values[part], layout.bounds, centre)
            assert exact.tolist() == expected.tolist()
    assert ends[0] == 1
    assert ends[-1] == 3
    # A key's own level is found by its first look, and counted around by those that follow.
    assert len(set(common.centres)) == 3


def test_no_more_keys_than_there_is_room_for_learn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "MOST_OWN_RANGES", 1)
    streams = make(**BUSY).open_many(secret=SECRET)
    run(streams, busy())
    assert streams.store.fleet.common.own in ([2], [5])


@pytest.mark.parametrize("options", [{"levels": "all"}, {"statistic": rillet.Count()}])
def test_where_no_key_learns_alone(options: dict[str, Any]) -> None:
    given = {**BUSY, **options}
    if "statistic" in options:
        given = {"lag": 0, **options}
    plan = make(**given)
    assert "learns its range alone" not in plan.describe()
    assert not any(map(plan.layout.enough_to_learn_alone, plan.layout.segments))
    assert "learns its range alone" in make(**BUSY).describe()


def test_several_pages_of_keys_that_have_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing raises because nothing came in the warm-up."""
    monkeypatch.setattr(fleet, "PAGE", 2)
    releases = make(shared_threshold=True).open_many().advance(until="2026-01-10T00:00Z")
    assert len(releases) > 0
