"""Totals of several keys: declarations, least squares, and what it does to the error."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from helpers.streams import DELTA, SECRET
from rillet import Count, Mean, Person, Plan, Releases, Secret, Streams, Sum
from rillet.errors import BudgetExceeded, ParameterError, StateError
from rillet.levels import Level, Tree, declared_levels
from rillet.privacy import gaussian_mu
from rillet.release import NUMBERS
from rillet.statistic import Range
from rillet.testing.statistics import check, normal_scale_p_value, smallest_detectable_ratio

START, HOUR = 1767225600.0, 3600.0  # 2026-01-01
KEYS = (("north", 1), ("south", 1), ("north", 2), ("south", 3), ("north", 3))


def plan_of(keys=KEYS, levels=("all", "region"), **more) -> Plan:
    fields = {
        "epsilon": 1.0,
        "delta": DELTA,
        "upper": 10.0,
        "every": "1h",
        "start": "2026-01-01T00:00Z",
        "length": "30d",
        "lag": 0,
        "keys": keys,
        "levels": levels,
        **more,
    }
    return Plan(**fields)


def observations(keys: int, ticks: int, in_tick: int, seed: int = 1):
    """So many of each key in each tick: values, keys and times."""
    random = np.random.default_rng(seed)
    key_of = np.tile(np.repeat(np.arange(keys), in_tick), ticks)
    tick_of = np.repeat(np.arange(1, ticks + 1), keys * in_tick)
    return random.gamma(2.0, 1.0, len(key_of)), key_of, tick_of


# --- Declaring them --------------------------------------------------------------------------


def test_all_ways_to_declare_levels_are_the_same():
    shares = {"all": 0.1, "region": 0.07}
    plan = plan_of(levels=shares)
    for levels in (
        ["all", "region"],
        "all,region",
        "all=0.1, region=0.07",
        [Level("all", 0.1), {"name": "region", "share": 0.07}],
        plan.levels,
    ):
        assert plan_of(levels=levels) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.digest == Plan.from_json(plan.to_json()).digest
    assert plan.tree.totals == ((), ("north",), ("south",))


def test_totals_can_name_their_keys():
    regions = {"north": ["m1", "m3"], "south": ["m2"]}
    plan = plan_of(["m1", "m2", "m3"], {"all": "auto", "region": regions})
    assert plan.tree.totals == ((), ("north",), ("south",))
    assert [own.tolist() for own in plan.tree.total_of] == [[3, 3, 3], [4, 5, 4]]
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.tree.totals == plan.tree.totals
    shared = plan_of(["m1", "m2", "m3"], {"all": 0.2, "region": {"share": 0.1, "of": regions}})
    assert [level.share for level in shared.levels] == [0.2, 0.1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": ()}, "none where no keys are declared"),
        ({"every": 1, "start": None, "length": 100}, "none in a run by count"),
        ({"lag": 50}, "one clipping range for all keys"),
        (
            {"lag": 50, "shared_threshold": True, "unit": Person(most=3)},
            "a declared range where persons are protected",
        ),
        ({"keys": ["a", "b"]}, "at least 2 parts"),
        ({"levels": {"all": 0.5, "region": 0.5}}, "leave some of the budget"),
        ({"levels": {"all": 1.5}}, "between 0 and 1"),
        ({"levels": {"all": "much"}}, "between 0 and 1"),
        ({"levels": ["all", "all"]}, "names that differ"),
        ({"levels": [7]}, "names"),
        ({"levels": 7}, "names of totals"),
        ({"levels": {"region": {"n": [("north", 1)]}}}, "4 have none"),
        ({"levels": {"region": {"n": KEYS[:2], "s": KEYS[2:]}}}, "the total of all keys as the"),
        ({"levels": {"all": 0.1, "r": {"n": KEYS, "s": KEYS[:1]}}}, "each key in one total"),
        ({"levels": {"all": 0.1, "r": {"n": [*KEYS, "m9"]}}}, "declared keys"),
        ({"levels": {"all": 0.1, "r": {"n": "m1"}}}, "each total once, with the list of its keys"),
        ({"levels": {"all": 0.1, "r": {("north", 1): KEYS}}}, "totals that are not keys"),
        (
            {
                "levels": {
                    "all": 0.1,
                    "r": {"x": KEYS[:2], "y": KEYS[2:]},
                    "d": {"v": KEYS[:1], "w": KEYS[1:]},
                }
            },
            "each lie in one of those above",
        ),
        ({"levels": {"all": 0.1, "r": {"x": KEYS}, "d": {"x": KEYS}}}, "other totals than above"),
    ],
)
def test_levels_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ParameterError, match=said):
        plan_of(**options)


def test_every_observation_pays_for_each_level_and_no_more_than_is_promised():
    for delta, unit in ((DELTA, None), (0.0, None), (DELTA, Person(most=5, apart="2h"))):
        plan = plan_of(delta=delta, unit=unit)
        (worst,) = {charge.cost for charge in plan.layout.charges().totals()}
        labels = [event.label for event in plan.layout.events()]
        assert sum(label.startswith("totals, all") for label in labels) == 1
        assert sum(label.startswith("totals, region") for label in labels) == 1
        assert worst.within(plan.guarantee)
        whole = 1.0 if delta == 0 else gaussian_mu(plan.guarantee) ** 2
        paid = float(worst.epsilon if delta == 0 else worst.mu_squared)
        assert 0.999 * whole < paid <= whole
        for level, calibrated in zip(plan.levels, plan.layout.levels, strict=True):
            cost = calibrated.segments[0].cost
            share = float(cost.epsilon if delta == 0 else cost.mu_squared) / whole
            assert share == pytest.approx(level.share, rel=1e-3)


def test_more_than_the_promise_is_refused(monkeypatch):
    """Power: were a level given more than its share, the charges would say so."""
    monkeypatch.setattr("rillet.plan.calibrate.key_share", lambda _: 1)
    with pytest.raises(BudgetExceeded, match="totals, region"):
        plan_of()


def test_levels_are_part_of_the_mechanism_and_leave_others_alone():
    plain, levels = plan_of(levels=()), plan_of()
    assert "levels" not in plain.layout.mechanism
    assert "levels" not in plain.to_json()
    digests = {
        plan.layout.digest for plan in (plain, levels, plan_of(levels={"all": 0.1, "r": 0.06}))
    }
    assert len(digests) == 3
    assert levels.layout.of_level(1).digest == levels.layout.digest
    more_keys = plan_of([*KEYS, ("north", 9)])
    assert more_keys.layout.digest == levels.layout.digest


def test_with_levels_gaussian_noise_is_chosen_earlier_since_squares_add_up():
    for length, alone, with_totals in (
        ("3h", "laplace", "laplace"),
        ("10d", "laplace", "gaussian"),
        ("30d", "gaussian", "gaussian"),
    ):
        assert plan_of(length=length, levels=()).strategy.law == alone
        assert plan_of(length=length).strategy.law == with_totals
    assert plan_of(length="10d", delta=0.0).strategy.law == "laplace"


def test_shares_by_default_leave_a_key_at_most_a_tenth_more_noise():
    deep = [(f"r{i}", f"d{i}", f"m{i}") for i in range(3)]
    for delta in (DELTA, 0.0):
        for keys, levels in (
            (KEYS, ["all"]),
            (KEYS, ["all", "region"]),
            (deep, ["all", "region", "district"]),
        ):
            plan = plan_of(keys, levels, delta=delta, statistic=Sum())
            plain = plan_of(keys, (), delta=delta, statistic=Sum())
            assert plan.unit_noise_std(720) <= 1.1 * plain.unit_noise_std(720)


# --- Least squares -----------------------------------------------------------------------------


def random_tree(random: np.random.Generator, keys: int, levels: int) -> Tree:
    names = [(*random.integers(0, 3, levels - 1).tolist(), i) for i in range(keys)]
    return Tree(tuple(names), declared_levels([f"level {i}" for i in range(levels)]))


def random_covariances(random, readings: int, streams: int, times: int) -> np.ndarray:
    roots = random.normal(size=(readings, readings, streams, times))
    found = np.einsum("ikst,jkst->ijst", roots, roots) + 0.1 * np.eye(readings)[:, :, None, None]
    return found * np.exp(random.normal(0.0, 2.0, (streams, 1)))


def dense(tree: Tree, readings: np.ndarray, covariances: np.ndarray):
    """Least squares by one large matrix, at one time."""
    count, streams = readings.shape
    parts = np.zeros((len(tree), len(tree.keys)))
    parts[np.arange(len(tree.keys)), np.arange(len(tree.keys))] = 1.0
    for own in tree.total_of:
        parts[own, np.arange(len(tree.keys))] = 1.0
    design = np.kron(parts, np.eye(count))
    weight = np.zeros((streams * count, streams * count))
    for s in range(streams):
        weight[s * count : (s + 1) * count, s * count : (s + 1) * count] = np.linalg.inv(
            covariances[:, :, s]
        )
    variance = design @ np.linalg.inv(design.T @ weight @ design) @ design.T
    estimate = variance @ weight @ readings.T.ravel()
    own = variance.reshape(streams, count, streams, count)
    return estimate.reshape(streams, count).T, np.einsum("sisj->ijs", own)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("keys", "levels"), [(1, 1), (6, 1), (9, 2), (14, 3), (30, 4)])
def test_two_passes_are_least_squares(count, keys, levels):
    random = np.random.default_rng(keys + count)
    tree = random_tree(random, keys, levels)
    readings = 100 * random.normal(size=(count, len(tree), 3))
    covariances = random_covariances(random, count, len(tree), 3)
    found, spread = tree.consistent(readings, covariances)
    for t in range(3):
        expected, variance = dense(tree, readings[..., t], covariances[..., t])
        np.testing.assert_allclose(found[..., t], expected, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(spread[..., t], variance, rtol=1e-8, atol=1e-8)


def test_totals_are_the_sums_of_their_parts_and_nothing_moves_that_is_consistent():
    random = np.random.default_rng(3)
    tree = random_tree(random, 20, 3)
    readings = 100 * random.normal(size=(2, len(tree), 4))
    covariances = random_covariances(random, 2, len(tree), 4)
    found, spread = tree.consistent(readings, covariances)
    keys = found[:, : len(tree.keys)]
    for own in tree.total_of:
        for total in np.unique(own):
            np.testing.assert_allclose(found[:, total], keys[:, own == total].sum(1), rtol=1e-9)
    again, _ = tree.consistent(found, covariances)
    np.testing.assert_allclose(again, found, rtol=1e-9)
    assert (np.diagonal(spread) <= np.diagonal(covariances)).all()


def test_least_squares_are_the_same_bits_however_times_are_cut(monkeypatch):
    random = np.random.default_rng(4)
    tree = random_tree(random, 40, 3)
    readings = random.normal(size=(3, len(tree), 11))
    covariances = random_covariances(random, 3, len(tree), 11)
    whole = tree.consistent(readings, covariances)
    for cuts in ([0, 1, 11], [0, 4, 5, 11], range(12)):
        parts = [
            tree.consistent(readings[..., a:b], covariances[..., a:b]) for a, b in pairwise(cuts)
        ]
        for one, other in zip(whole, zip(*parts, strict=True), strict=True):
            assert np.array_equal(one, np.concatenate(other, -1))
    monkeypatch.setattr("rillet.levels._AT_A_TIME", 3 * len(tree))
    for one, other in zip(whole, tree.consistent(readings, covariances), strict=True):
        assert np.array_equal(one, other)


def test_the_variances_that_are_told_are_those_of_the_estimates():
    """At each level: the errors of 20,000 draws have the standard deviation that is told."""
    random, draws = np.random.default_rng(5), 20_000
    tree = Tree(KEYS, declared_levels(["all", "region"]))
    own = random_covariances(random, 2, len(tree), 1)
    roots = np.linalg.cholesky(own[..., 0].transpose(2, 0, 1))
    readings = np.einsum("sij,jsd->isd", roots, random.normal(size=(2, len(tree), draws)))
    found, spread = tree.consistent(readings, np.repeat(own, draws, -1))
    for stream in (0, 3, len(KEYS), len(KEYS) + 2):
        for i in range(2):
            std = math.sqrt(spread[i, i, stream, 0])
            p_value = normal_scale_p_value(found[i, stream], std)
            check(f"least squares, stream {stream}, reading {i}", p_value)
    assert smallest_detectable_ratio(draws, 1e-9, 0.999) < 1.06
    untold = math.sqrt(own[0, 0, len(KEYS), 0])  # of the total's own reading, before
    assert normal_scale_p_value(found[0, len(KEYS)], untold) < 1e-9


# --- Streams -----------------------------------------------------------------------------------


def fed(plan: Plan, cuts=(), ticks: int = 30, streams: Streams | None = None):
    streams = streams or plan.open_many(secret=SECRET)
    values, key_of, tick_of = observations(len(plan.keys), ticks, 2)
    parts = []
    for a, b in pairwise(sorted({0, ticks, *cuts})):
        own = (tick_of > a) & (tick_of <= b)
        parts.append(streams.absorb_ticks(values[own], key_of[own], tick_of[own], b))
    return streams, Releases.join(parts)


STATISTICS = [Mean(), Sum(), Count(), Mean(window="5h"), Sum(half_life="6h")]


def clipped_totals(plan: Plan, ticks: int) -> np.ndarray:
    """The exact sum and count of every stream, after each tick."""
    values, key_of, tick_of = observations(len(plan.keys), ticks, 2)
    exact = np.zeros((2, len(plan.tree), ticks))
    for own in (key_of, *(total_of[key_of] for total_of in plan.tree.total_of)):
        np.add.at(exact[0], (own, tick_of - 1), np.clip(values, 0.0, 10.0))
        np.add.at(exact[1], (own, tick_of - 1), 1.0)
    return np.cumsum(exact, -1)


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_releases_are_the_readings_of_all_streams_made_consistent(monkeypatch, statistic, delta):
    plan, ticks = plan_of(statistic=statistic, delta=delta), 30
    taken = []
    honest = Tree.consistent

    def noted(self, readings, covariances):
        taken.append((readings[..., 0], covariances[..., 0]))
        return honest(self, readings, covariances)

    monkeypatch.setattr(Tree, "consistent", noted)
    _, released = fed(plan)
    assert len(taken) == ticks
    assert len(released) == ticks * len(plan.tree)
    names = ["count"] if statistic == Count() else ["sum", "count"]
    for t, (readings, covariances) in enumerate(taken, 1):
        expected, variance = dense(plan.tree, readings, covariances)
        here = released.t == t
        assert [released.keys[i] for i in released.key_of[here]] == list(plan.tree.all_keys)
        for number, name in enumerate(names):
            found, told = (getattr(released, each)[here] for each in (name, f"{name}_noise_std"))
            np.testing.assert_allclose(found, expected[number], rtol=1e-7, atol=1e-6)
            np.testing.assert_allclose(told, np.sqrt(variance[number, number]), rtol=1e-7)
    # A level with a smaller share has more noise, and only by that.
    stds = np.sqrt(covariances[-1, -1]) if statistic == Count() else None
    if stds is not None:
        power = 1.0 if delta == 0 else 0.5
        shares = [1 - sum(level.share for level in plan.levels)]
        shares += [level.share for level in plan.levels]
        of_stream = np.array(shares)[plan.layout.levels_of(0, len(plan.tree))]
        np.testing.assert_allclose(stds / stds[0], (of_stream[0] / of_stream) ** power, rtol=1e-3)


def test_each_observation_enters_its_key_and_its_totals(monkeypatch):
    """With hardly any noise the readings of all streams are the exact sums and counts."""
    plan, ticks = plan_of(epsilon=1e6, delta=0.0, statistic=Sum()), 30
    taken = []

    def raw(self, readings, covariances):
        taken.append(readings[..., 0])
        return readings, covariances

    monkeypatch.setattr(Tree, "consistent", raw)
    fed(plan, cuts={3, 4, 17})
    found = np.array(taken).transpose(1, 2, 0)
    np.testing.assert_allclose(found, clipped_totals(plan, ticks), atol=0.01)


def test_a_range_that_all_keys_learn_together(monkeypatch):
    """In the warm-up and after it, with hardly any noise: totals are the sums of their keys."""
    shared = {"lag": 6, "shared_threshold": True, "upper": 1000.0, "statistic": Sum()}
    plan = plan_of(epsilon=1e6, delta=0.0, **shared)
    taken = []

    def raw(self, readings, covariances):
        taken.append((readings[..., 0], covariances[..., 0]))
        return readings, covariances

    monkeypatch.setattr(Tree, "consistent", raw)
    _, released = fed(plan)
    assert len(taken) == 30 - 6 + 1
    assert released.clip_upper.max() < 100.0
    for readings, covariances in taken:
        for own in plan.tree.total_of:
            for total in np.unique(own):
                parts = np.flatnonzero(own == total)
                told = np.sqrt(covariances[0, 0, total] + covariances[0, 0, parts].sum())
                apart = readings[0, total] - readings[0, parts].sum()
                assert abs(apart) < 50 * told + 1e-3 * readings[0, total]
    (worst,) = {c.cost for c in plan.layout.charges().totals() if c.last and c.last <= 6}
    assert worst.within(plan.guarantee)
    noisy = plan_of(**shared)
    labels = [event.label for event in noisy.layout.events()]
    assert sum("first 6 ticks" in label for label in labels) == 3  # of a key and of two totals


def numbers(table: Releases) -> np.ndarray:
    return np.array([np.asarray(getattr(table, name), np.float64) for name in ("t", *NUMBERS)])


@pytest.mark.parametrize("page", [2, 2**14])
@pytest.mark.parametrize(
    "options",
    [
        {"statistic": Mean()},
        {"statistic": Sum(window="5h")},
        {"statistic": Sum(), "lag": 6, "shared_threshold": True},
    ],
    ids=repr,
)
def test_blocks_and_restarts_change_nothing(tmp_path, monkeypatch, options, page):
    monkeypatch.setattr("rillet.fleet.PAGE", page)
    monkeypatch.setattr("rillet.state.fleets.PAGE", page)
    plan = plan_of(**options)
    streams, whole = fed(plan)
    for cuts in ({1}, {7, 8, 20}, set(range(30))):
        again, table = fed(plan, cuts)
        assert [table.keys[i] for i in table.key_of] == [whole.keys[i] for i in whole.key_of]
        assert np.array_equal(numbers(table), numbers(whole), equal_nan=True)
        assert again.rollup() == streams.rollup()
    values, key_of, tick_of = observations(len(KEYS), 30, 2)
    parts = []
    for a, b in pairwise((0, 3, 4, 17, 30)):
        with plan.open_folder(tmp_path / "state", secret=SECRET if a == 0 else None) as kept:
            own = (tick_of > a) & (tick_of <= b)
            parts.append(kept.absorb_ticks(values[own], key_of[own], tick_of[own], b))
    assert np.array_equal(numbers(Releases.join(parts)), numbers(whole), equal_nan=True)
    with plan.open_folder(tmp_path / "state") as kept:
        # What nobody has taken yet is made again, consistent as it was.
        again = Releases.join([releases for _, releases in kept.store.undelivered()])
        assert np.array_equal(numbers(again), numbers(whole), equal_nan=True)
        assert kept.rollup() == streams.rollup()
        assert kept.latest(("north", 2)) == streams.latest(("north", 2))


def test_totals_are_read_and_not_written():
    plan = plan_of()
    streams, released = fed(plan)
    assert streams.keys == KEYS
    for total in ((), ("north",), "south"):
        latest = streams.latest(total)
        assert latest.t == 30
        assert "made consistent with totals" in latest.post_processing
        with pytest.raises(ParameterError, match="declared keys"):
            streams.update(1.0, key=total, at=START)
    assert streams.rollup() == streams.latest(())
    assert {release.key for release in released} == {*KEYS, (), ("north",), ("south",)}
    with pytest.raises(ParameterError, match="open_many"):
        plan.open(key=("north", 1))
    with pytest.raises(StateError, match="kept in a folder"):
        streams.stream(("north", 1)).snapshot()


def test_a_rollup_of_independent_keys_tells_its_larger_error():
    streams, _ = fed(plan_of())
    independent, _ = fed(plan_of(levels=()))
    assert streams.rollup().sum_noise_std < independent.rollup().sum_noise_std
    each = [streams.latest(key).sum_noise_std ** 2 for key in KEYS]
    # The noise of consistent keys is not independent: their total knows more than they add up to.
    assert streams.rollup().sum_noise_std < math.sqrt(sum(each))


# --- Totals that are good ------------------------------------------------------------------------


def fleet(levels: tuple[str, ...], statistic) -> tuple[Streams, np.ndarray, float]:
    """10,000 keys in 100 regions, 24 ticks with one reading each.

    Returns also the error of each key's sum, its noise std, and the exact sum of all.
    """
    keys = [(f"r{number % 100}", number) for number in range(10_000)]
    plan = plan_of(keys, levels, statistic=statistic, length="365d")
    assert plan.layout.noise_law == "gaussian"
    streams = plan.open_many(secret=SECRET)
    values, key_of, tick_of = observations(len(keys), 24, 1)
    streams.absorb_ticks(values, key_of, tick_of, 24)
    exact = np.bincount(key_of, np.clip(values, 0.0, 10.0))
    latest = [streams.latest(key) for key in plan.keys]
    errors = np.array([release.sum for release in latest]) - exact
    return streams, np.array([errors, [release.sum_noise_std for release in latest]]), exact.sum()


def test_at_10_000_keys_the_total_has_a_thirtieth_of_the_error():
    """Of the sum of independent keys, while a key has at most 1.1 times its own error."""
    independent, without, exact = fleet((), Sum())
    streams, with_levels, _ = fleet(("all", "region"), Sum())
    added, total = independent.rollup(), streams.rollup()
    assert total.sum_noise_std <= added.sum_noise_std / 30
    assert (with_levels[1] <= 1.1 * without[1]).all()
    of_region = math.sqrt(float(np.sum(without[1, 7::100] ** 2)))
    assert streams.latest(("r7",)).sum_noise_std < of_region / 2.5
    # What is told is what it is: by real draws.
    check("10,000 keys", normal_scale_p_value(without[0] / without[1], 1.0))
    assert np.std(with_levels[0]) <= 1.1 * 1.03 * np.std(without[0])
    for name, release in (("added up", added), ("total", total)):
        error = release.sum - exact
        check(f"10,000 keys, {name}", normal_scale_p_value([error], release.sum_noise_std))


def test_at_10_000_keys_the_same_holds_for_a_mean():
    """Where counting gets its share of the budget from what was released, key by key."""
    independent, without, _ = fleet((), Mean())
    streams, with_levels, _ = fleet(("all", "region"), Mean())
    assert streams.rollup().mean_noise_std <= independent.rollup().mean_noise_std / 30
    assert np.mean(with_levels[1]) <= 1.1 * np.mean(without[1])


def test_the_error_of_the_total_is_that_of_many_draws():
    """60 fleets: their total, a region and a key err as they are told to."""
    errors: dict[tuple[object, ...], list[float]] = {(): [], ("r1",): [], ("r1", 5): []}
    keys = [(f"r{number % 2}", number) for number in range(8)]
    plan = plan_of(keys, statistic=Sum(), length="1h")
    values, key_of, tick_of = observations(len(keys), 1, 3)
    for seed in range(60):
        streams = plan.open_many(secret=Secret.for_tests(seed))
        streams.absorb_ticks(values, key_of, tick_of, 1)
        for key, found in errors.items():
            own = np.array([name[: len(key)] == key for name in keys])[key_of]
            release = streams.latest(key)
            exact = np.clip(values[own], 0.0, 10.0).sum()
            found.append((release.sum - exact) / release.sum_noise_std)
    for key, found in errors.items():
        check(f"errors of {key}", normal_scale_p_value(found, 1.0))
        assert normal_scale_p_value(np.multiply(found, 3.0), 1.0) < 1e-9


def test_noise_is_expected_as_it_comes():
    plan = plan_of(statistic=Sum())
    streams, _ = fed(plan)
    clipping = Range(0.0, 10.0)
    raw = plan.layout.of_level(0).expected_noise(30, clipping, rate=10.0)["sum_noise_std"]
    assert 0.5 * raw < streams.rollup().sum_noise_std < raw
