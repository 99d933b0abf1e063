"""Counts in bins: the integers, what they stand for, quantiles and their intervals."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from rillet import (
    BufferedToeplitz,
    Count,
    Histogram,
    Independent,
    Mean,
    Plan,
    Quantile,
    Secret,
    Share,
    Sum,
)
from rillet.errors import ParameterError
from rillet.gather.grid import Grid
from rillet.release import Releases
from rillet.statistic import Range, Setting, Totals
from rillet.strategy import Strategy
from rillet.testing import check
from rillet.testing.statistics import normal_scale_p_value

DELTA = 2.0**-20
SETTINGS = [
    Setting(by_clock, missing, law)
    for by_clock in (False, True)
    for missing in (False, True)
    for law in ("laplace", "gaussian")
]
#: Streams whose quantiles, shares and means are known.
STREAMS = {
    "exponential": lambda random, n: random.exponential(20.0, n),
    "gamma": lambda random, n: random.gamma(2.6, 14.0, n),
    "uniform": lambda random, n: random.uniform(0.0, 90.0, n),
    "normal": lambda random, n: random.normal(45.0, 12.0, n),
    "two points": lambda random, n: np.where(random.random(n) < 0.5, 15.0, 61.0),
}


def plan(**options: object) -> Plan:
    known = {"epsilon": 1.0, "delta": DELTA, "length": 3000, "every": 1000, "missing": "none"}
    return Plan(**{**known, **options})


# --- The integers --------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("bins", [2, 16, (-3.0, 0.0, 2.5, 7.0)], ids=str)
@pytest.mark.parametrize("kind", [Histogram, Quantile])
@pytest.mark.parametrize("steps", [1024, 2**20])
def test_no_pair_of_values_moves_more_than_is_declared(setting, bins, kind, steps):
    """Every pair of contributions: sums of their largest sizes, and so every norm."""
    leaf = kind(bins=bins).leaf(setting)
    grid = Grid(-10.0, 10.0, *leaf.cut(steps))
    values = np.concatenate([np.linspace(-11, 11, 2000), [math.inf, -math.inf, math.nan]])
    rows = np.unique(leaf.contribute(values, grid).reshape(len(values), -1), axis=0)
    assert rows.shape[1] == leaf.width
    moves = [np.abs(b - a) for a, b in combinations(rows, 2)] if not setting.by_clock else rows
    (declared,) = leaf.moves(steps)
    room = np.cumsum(declared)
    for move in moves:
        assert np.all(np.cumsum(-np.sort(-np.abs(move))) <= room)
    squares = max(float(np.sum(np.square(move, dtype=float))) for move in moves)
    # On a coarse lattice the integers' own rounding weighs.
    assert squares >= (0.99 if steps == 2**20 else 0.95) * float(
        np.sum(np.square(declared, dtype=float))
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("bins", [2, 5, 64, (-3.0, 0.0, 2.5, 7.0)], ids=str)
@pytest.mark.parametrize("kind", [Histogram, Quantile])
def test_readings_are_the_counts(setting, bins, kind):
    """Without noise: every count of every bin, from the integers alone."""
    leaf, steps = kind(bins=bins).leaf(setting), 2**20
    grid = Grid(-10.0, 10.0, *leaf.cut(steps))
    random = np.random.default_rng(5)
    values = random.normal(0.0, 5.0, 5000)
    values[::7] = math.nan
    edges = np.linspace(-10, 10, bins + 1)[1:-1] if isinstance(bins, int) else np.array(bins)
    known = values[~np.isnan(values)]
    if not setting.missing:  # what is no number counts as the middle
        middle = (edges[0] + edges[-1]) / 2
        known = np.where(np.isnan(values), middle, values)
    cumulated = [int(np.sum(known <= edge)) for edge in edges] + [len(known)]
    expected = cumulated if kind is Quantile else np.diff(cumulated, prepend=0)
    total = leaf.contribute(values, grid).reshape(len(values), -1).sum(axis=0)
    offsets = leaf.offsets(None) or (0.0,) * leaf.readings
    for reading, (worth, offset) in enumerate(zip(leaf.units(grid), offsets, strict=True)):
        found = float(np.dot(worth, total)) + offset * len(known)
        assert found == pytest.approx(expected[reading], abs=1e-6)
    one = leaf.contributor(grid)
    rows = leaf.contribute(values[:50], grid).reshape(50, -1).tolist()
    assert [one(value) for value in values[:50].tolist()] == list(map(tuple, rows))


def test_the_square_root_over_bins_gains_what_it_should():
    """Noise of a cumulated count, relative to a count's own (MATH: F(b), and √b of plain bins)."""
    for bins, root in ((16, 1.94), (64, 2.39), (256, 2.83)):
        leaf = Quantile(bins=bins).leaf(Setting(True, True, "gaussian"))
        grid = Grid(0.0, 1.0, *leaf.cut(2**20))
        (moved,) = leaf.moves(2**20)
        norm = math.sqrt(sum(size**2 for size in moved))
        stds = norm * np.sqrt(np.sum(np.square(leaf.units(grid)), axis=1))
        assert stds.max() == pytest.approx(root, rel=0.005)
        assert stds.max() < math.sqrt(bins) / 2


# --- Releases ------------------------------------------------------------------------------------


def measured(statistic: object, values: np.ndarray, runs: int, **more: object) -> list:
    made = plan(statistic=statistic, length=len(values), **more)
    return [made.open(secret=Secret.for_tests(run)).update_many(values) for run in range(runs)]


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize(
    "statistic",
    [Histogram(bins=(0.0, 10.0, 20.0, 50.0)), Share(above=20.0), Count()],
    ids=lambda s: s.name,
)
def test_the_noise_of_counts_is_what_is_stated(statistic, missing, delta):
    """Unbiased, with the stated variance, at every release."""
    values = STREAMS["exponential"](np.random.default_rng(2), 3000)
    releases = measured(statistic, values, 250, delta=delta, missing=missing)
    edges = [-np.inf, 0.0, 10.0, 20.0, 50.0, np.inf]
    for index, t in enumerate((1000, 2000, 3000)):
        truth = {
            "histogram": np.histogram(values[:t], edges)[0],
            "share": [np.mean(values[:t] > 20.0)],
            "count": [t],
        }[statistic.name]
        for row, name in enumerate(statistic.names):
            records = [each[index][name] for each in releases]
            stated = records[0].noise_std
            found = (np.array([record.value for record in records]) - truth[row]) / stated
            if name == "count" and missing == "none":
                continue  # the same as with missing values: nothing says that the count is public
            # Laplace noise is heavier than normal: its scale is judged with room for it.
            if delta:
                check(f"{name} at {t}", normal_scale_p_value(found, 1.0))
            assert abs(found.mean()) < 5 / math.sqrt(len(found))
            assert 0.8 < found.std() < 1.25


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_a_quantile_is_near_the_truth_and_has_the_stated_noise(name, delta):
    values = STREAMS[name](np.random.default_rng(3), 3000)
    releases = measured(Quantile(0.5, 0.9, bins=np.linspace(0, 100, 65)), values, 40, delta=delta)
    for level in (0.5, 0.9):
        records = [each[-1][f"{level:g}"] for each in releases]
        truth = np.quantile(np.clip(values, 0, 100), level, method="inverted_cdf")
        found = np.array([record.value for record in records])
        if name == "two points":
            continue  # any value between them is a median: only the interval says something
        # Linear within bins of 1.6: off by much less than one of them, besides the noise.
        assert abs(found.mean() - truth) < 0.8 + 4 * found.std() / math.sqrt(len(found))
        stated = np.mean([record.noise_std for record in records])
        assert 0.6 < found.std() / stated < 1.6


ALL = [
    Mean(share=0.3),
    Quantile(0.5, 0.9, bins=np.linspace(0, 100, 33)),
    Share(above=25.0),
    Histogram(bins=(10.0, 30.0)),
    Count(),
    Sum(),
]
#: Leaves of the streams below.
LEAVES = 6


def covering_plan(strategy: Strategy, *, by_clock: bool = False) -> Plan:
    clock = {"every": "1h", "start": "2026-01-01T00:00Z", "length": f"{LEAVES}h"}
    count = {"every": 500, "length": LEAVES * 500}
    more = {"lag": 0, "upper": 100.0, "statistic": ALL, "strategy": strategy}
    return plan(**{**(clock if by_clock else count), **more})


def released(made: Plan, values: np.ndarray, noise: np.ndarray) -> Releases:
    """What a declared range releases: exact sums and decoded noise, of many runs at once.

    ``noise`` is that of the nodes: runs, columns, leaves.  The last leaf of all runs comes last.
    """
    layout = made.layout
    main, leaf, segment = layout.main, layout.leaf, layout.segments[0]
    grid = layout.grid(layout.declared_range, segment, 0.5)
    exact = leaf.contribute(values, grid).reshape(LEAVES, -1, leaf.width).sum(axis=1).cumsum(axis=0)
    decoder = main.strategy.decoder(main.leaves)
    impulses = np.eye(LEAVES, dtype=np.int64) * 2**40
    decoded = np.array([decoder.decode(decoder.start(), 1, row)[1] for row in impulses]) / 2**40
    prefixes = exact + np.einsum("rcl,lt->rtc", noise, decoded)
    runs, t = len(noise), np.tile(np.arange(1, LEAVES + 1), len(noise))
    observations = t * len(values) // LEAVES
    sums = prefixes.reshape(runs * LEAVES, -1) @ np.array(leaf.units(grid)).T
    offsets = np.array(leaf.offsets(layout.declared_range) or [0.0] * leaf.readings)
    sums = sums + offsets * observations[:, None] * (made.clock is None)
    covariance = layout.covariances(np.arange(1, LEAVES + 1), ((0, leaf.units(grid)),))
    clipping = Range(np.zeros(len(t)), np.full(len(t), 100.0))
    totals = Totals(
        None if made.clock is not None else observations,
        tuple(sums.T),
        lambda one, other: np.tile(covariance(one, other), runs),
        clipping,
    )
    numbers = {name: work_out() for name, work_out in made.statistic.numbers(totals).items()}
    return Releases(
        ((),),
        np.zeros(len(t), np.int64),
        observations,
        np.zeros(len(t), np.int64),
        made.statistic.names,
        numbers,
        layout.noise_law,
    )


def test_many_runs_at_once_are_what_a_stream_releases():
    made = covering_plan(BufferedToeplitz())
    values = STREAMS["gamma"](np.random.default_rng(9), LEAVES * 500)
    secret = Secret.for_tests(5)
    real = made.open(secret=secret).update_many(values)
    own, main = made.stream_secret(secret, (), "").ratchet(), made.layout.main
    noise = [main.noise(own, "main", column=c).draw(1, LEAVES) for c in range(main.width)]
    short = released(made, values, np.array([noise]))
    for name in made.statistic.names:
        for one, other in (
            (short[name].value, real[name].value),
            *zip(short[name].noise_interval(0.95), real[name].noise_interval(0.95), strict=True),
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_clock", [False, True], ids=["by count", "by clock"])
@pytest.mark.parametrize("strategy", [BufferedToeplitz(), Independent()], ids=lambda s: s.law)
@pytest.mark.parametrize("name", STREAMS)
def test_intervals_cover_93_to_97_of_100_in_10000_runs(name, strategy, by_clock):
    """Quantiles at least 93: their intervals reach out to the edges of bins."""
    runs, made = 10_000, covering_plan(strategy, by_clock=by_clock)
    values = STREAMS[name](np.random.default_rng(7), LEAVES * 500)
    main, secret = made.layout.main, Secret.for_tests(11)
    noise = np.array(
        [main.noise(secret, name, column=c).draw(0, runs * LEAVES) for c in range(main.width)]
    ).reshape(main.width, runs, LEAVES)
    releases = released(made, values, noise.transpose(1, 0, 2))
    edges, clipped = [-np.inf, 10.0, 30.0, np.inf], np.clip(values, 0.0, 100.0)
    for t in (500, 1500, 3000):
        counts = np.histogram(values[:t], edges)[0]
        truth = {
            "mean": clipped[:t].mean(),
            "sum": clipped[:t].sum(),
            "above 25": np.mean(values[:t] > 25.0),
            "count": t,
            "0.5": np.quantile(clipped[:t], 0.5, method="inverted_cdf"),
            "0.9": np.quantile(clipped[:t], 0.9, method="inverted_cdf"),
            **dict(zip(("up to 10", "10 to 30", "above 30"), counts, strict=True)),
        }
        for row, expected in truth.items():
            low, high = releases[row].noise_interval(0.95)
            covered = np.mean((low <= expected) & (expected <= high), where=releases.t == t)
            assert 0.93 <= covered <= (1.0 if row in ("0.5", "0.9") else 0.97), (row, t)


def test_a_quantile_interval_reaches_out_to_edges_of_bins():
    edges = (0.0, 10.0, 20.0, 40.0, 80.0)
    values = STREAMS["exponential"](np.random.default_rng(3), 3000)
    release = plan(statistic=Quantile(0.5, bins=edges)).open().update_many(values)[-1]
    low, high = release.noise_interval(0.95)
    assert {low, high} <= set(edges)
    assert low <= release.value <= high
    assert (release.noise_lower, release.noise_upper) == (low, high)
    assert release.noise_interval(0.5) == (low, high)
    with pytest.raises(ParameterError, match=r"at most 0\.95"):
        release.noise_interval(0.99)
    assert release.post_processing == ("cumulated counts made monotone",)


def test_beyond_the_outermost_edge_the_interval_for_all_values_has_no_end():
    values = STREAMS["exponential"](np.random.default_rng(3), 3000)
    edges = tuple(np.quantile(values, [0.2, 0.35, 0.5, 0.65, 0.8]).tolist())
    made = plan(statistic=Quantile(0.05, 0.5, 0.95, bins=edges))
    release = made.open().update_many(values)[-1]
    for name, ends in (("0.05", (-math.inf, edges[0])), ("0.95", (edges[-1], math.inf))):
        assert release[name].interval(0.95) == ends
        assert np.isfinite(release[name].noise_interval(0.95)).all()
    assert np.isfinite(release["0.5"].interval(0.95)).all()
    releases = made.open().update_many(values)["0.95"]
    assert np.isfinite(releases.band()).all()
    assert np.isinf(releases.interval()[1]).any()


def test_without_data_there_is_no_quantile_and_the_interval_is_all():
    made = plan(
        statistic=Quantile(0.5, bins=(0.0, 5.0, 10.0)),
        every="1h",
        start="2026-01-01T00:00Z",
        length="5h",
        missing="skip",
    )
    stream = made.open(secret=Secret.for_tests(1))
    release = stream.advance(until="2026-01-01T05:00Z")[-1]
    assert math.isnan(release.value)
    assert release.noise_interval(0.95) == (0.0, 10.0)


@pytest.mark.parametrize("blocks", [1, 7, 250])
def test_the_same_however_it_is_cut(blocks):
    """Blocks, single updates, and a snapshot in between: bit for bit."""
    values = STREAMS["gamma"](np.random.default_rng(4), 500)
    options = {"length": 500, "every": 10, "upper": 200.0, "lag": 100, "missing": "skip"}
    made = plan(statistic=[Mean(), Quantile(0.5, 0.9, bins=9), Share(above=40.0)], **options)
    whole = made.open(secret=Secret.for_tests(1)).update_many(values)
    stream, parts = made.open(secret=Secret.for_tests(1)), []
    for block in np.array_split(values, blocks):
        if len(block) == 2:
            parts += [r for r in map(stream.update, block.tolist()) if r is not None]
        else:
            parts += list(stream.update_many(block))
    assert [list(release) for release in parts] == [
        [{**row, "at": each["at"]} for row, each in zip(release, part, strict=True)]
        for release, part in zip(whole, parts, strict=True)
    ]


# --- What is refused, and how it is spelled ------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Histogram(bins=1), "bins: expected 2 to 1,024 bins"),
        (lambda: Histogram(bins=[3.0, 3.0]), "each a finite number above the one before"),
        (lambda: Quantile(0.0), "levels: expected shares between 0 and 1"),
        (lambda: Quantile(0.5, 0.5), "levels: expected each share once"),
        (lambda: Quantile(0.5, bin=3), "bin: expected one of"),
        (lambda: Share(above=math.inf), "above: expected a finite number"),
        (
            lambda: plan(statistic=Quantile(0.5), upper=9.0, lag=100, refresh=2.0),
            "learned once, since bins stay as they are",
        ),
        (lambda: plan(statistic=[Mean(share=0.5), Sum(share=0.6)], upper=9.0), "add up to 1"),
        (lambda: plan(statistic=[Mean(), Mean()], upper=9.0), "differ in their names"),
        (
            lambda: plan(
                statistic=Quantile(0.5, bins=(0.0, 1.0)),
                every="1h",
                start="2026-01-01T00:00Z",
                length="9h",
                keys=["a", "b"],
                levels=["all"],
            ),
            "a single mean, sum, count or share",
        ),
        (
            lambda: plan(statistic=[Mean(window=1000), Sum()], upper=9.0),
            "all have the same window or half-life",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, expected):
    with pytest.raises(ParameterError, match=expected):
        make()


def test_every_spelling_makes_the_same_plan():
    common = {"epsilon": 1.0, "upper": 9.0, "length": 1000}
    made = Plan(**common, statistic=[Mean(share=0.7), Quantile(0.5, 0.9), Share(above=3)])
    assert Plan.from_json(made.to_json()) == made
    texts = ["mean:share=0.7", "quantile:levels=[0.5,0.9]", "share:above=3"]
    assert Plan.from_table({**common, "statistic": texts}) == made
    tables = [
        {"kind": "mean", "share": 0.7},
        {"kind": "quantile", "levels": [0.5, 0.9]},
        {"kind": "share", "above": 3},
    ]
    assert Plan.from_table({**common, "statistic": tables}) == made
    assert made.layout.digest == Plan.from_json(made.to_json()).layout.digest
    other = Plan(**common, statistic=[Mean(share=0.6), Quantile(0.5, 0.9), Share(above=3)])
    assert other.layout.digest != made.layout.digest
