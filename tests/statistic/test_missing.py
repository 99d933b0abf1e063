"""Missing values by count: left out, their number protected, nothing lost where there are none."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import rillet
from helpers.streams import DELTA, SECRET, awkward_values
from rillet import BufferedToeplitz, Count, Mean, Plan, Secret, Sum, TailHistogram, datasets
from rillet.gather.grid import Grid
from rillet.layout import Layout
from rillet.release import noise_deviations
from rillet.statistic import Setting
from rillet.step import EXPLAINED
from rillet.testing import binomial_p_value, check
from rillet.threshold.tail_model import mean_absolute

NORMAL: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "lower": -1000.0, "upper": 1000.0}


def with_gaps(count: int, seed: int, share: float = 0.03) -> np.ndarray:
    """Normal(20, 40), of which a share is missing."""
    random = np.random.default_rng(seed)
    values = random.normal(20.0, 40.0, count)
    values[random.random(count) < share] = np.nan
    return values


# --- What is released ----------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_the_mean_is_that_of_the_values_that_are_there(delta):
    plan = Plan(**{**NORMAL, "delta": delta}, length=20_000, every=100)
    within, counts = [], []
    for seed in range(40):
        values = with_gaps(20_000, seed)
        release = plan.open(secret=Secret.for_tests(seed)).update_many(values)[-1]
        truth = float(np.nanmean(values))
        low, high = release.noise_interval(0.99)
        within.append(low <= truth <= high)
        counts.append((release.count - np.isfinite(values).sum()) / release.count_noise_std)
        # Counted as the lower bound, or as the middle of any range that reaches it, it would show.
        assert high < truth + 15
        assert low > truth - 15
        assert abs(release.sum - release.mean * release.count) < 1e-6 * abs(release.sum)
    check("the mean of what is there is in its interval", binomial_p_value(sum(within), 40, 0.99))
    assert np.all(np.abs(counts) < 6)
    assert np.std(counts) > 0.3


def test_where_nothing_is_missing_the_count_is_exact_nearly_always():
    plan = Plan(**NORMAL, length=4000, every=10)
    whole = 0
    for seed in range(60):
        releases = plan.open(secret=Secret.for_tests(seed)).update_many(with_gaps(4000, seed, 0.0))
        whole += releases.count[-1] == 4000
        # It is decided anew at leaves that are powers of two, and stays so in between.
        taken = (releases.count == releases.t)[1:]  # the first release is that of the warm-up
        changes = np.flatnonzero(np.diff(taken.astype(int))) + 2
        assert all(leaf & (leaf - 1) == 0 for leaf in changes.tolist())
        assert np.isnan(releases.noise_covariance[1:][taken]).all()
        assert not np.isnan(
            releases.noise_covariance[1:][~taken & ~np.isnan(releases.mean[1:])]
        ).any()
    # By chance two deviations are passed in one of twenty-two.
    check("a whole stream is taken to be whole", binomial_p_value(int(whole), 60, 0.9545))


@pytest.mark.parametrize("statistic", [Mean(), Sum(), Count()], ids=lambda s: s.name)
def test_a_stream_of_nothing_has_no_wild_numbers(statistic):
    plan = Plan(**NORMAL, length=5000, every=50, statistic=statistic)
    releases = plan.open(secret=SECRET).update_many(np.full(5000, np.nan))
    assert abs(releases.count[-1]) < 6 * releases.count_noise_std[-1]
    known = releases.value[~np.isnan(releases.value)]
    if statistic.name == "mean":
        # Where the count is lost in noise there is no mean; JSON has null for it.
        assert np.isnan(releases.value[-1]) or releases.count[-1] > 2 * releases.count_noise_std[-1]
        assert len(known) < len(releases) / 2
    else:
        assert np.all(np.abs(known) < 6 * releases.noise_std[~np.isnan(releases.value)])
    for release in releases:
        for row in release:
            json.dumps(row, allow_nan=False)


def test_a_number_that_stands_in_is_like_that_number(monkeypatch):
    monkeypatch.setattr(Layout, "digest", b"the same noise for both")
    values = awkward_values(900, 3)
    common = {"epsilon": 1.0, "delta": DELTA, "upper": 100.0, "length": 900, "lag": 100}
    filled = np.where(np.isnan(values), 7.0, values)
    expected = Plan(**common, missing="none").open(secret=SECRET).update_many(filled)
    assert list(Plan(**common, missing=7.0).open(secret=SECRET).update_many(values)) == list(
        expected
    )


# --- Everywhere the same -------------------------------------------------------------------------

CELLS = {
    "csv": ("nan", "", "text", "12;5"),
    "jsonl": ('{"x": null}', '{"y": 1}', '{"x": "text"}', "[3", '{"x": NaN}'),
}


@pytest.mark.parametrize("form", CELLS)
def test_in_files_it_is_left_out(tmp_path, form):
    """Whatever way a cell has no number: the mean is that of the others, not of the lower bound."""
    values = np.random.default_rng(3).normal(20.0, 4.0, 4000)
    lines = [f'{{"x": {value}}}' if form == "jsonl" else str(value) for value in values.tolist()]
    for row, place in enumerate(range(0, 4000, 20)):
        lines[place] = CELLS[form][row % len(CELLS[form])]
        values[place] = np.nan
    path = tmp_path / f"in.{form}"
    path.write_text("\n".join([*(["x"] if form == "csv" else []), *lines]) + "\n")
    config = {
        "plan": {**NORMAL, "length": 4000, "every": 100, "epsilon": 8.0},
        "source": {"path": str(path), "column": "x"},
        "sink": [{"kind": "jsonl", "path": str(tmp_path / "out.jsonl")}],
    }
    rillet.run(config)
    last = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])
    assert last["t"] == 4000  # a row is an observation
    assert last["count"] == pytest.approx(3800, abs=6 * last["count_noise_std"])
    assert last["count"] < 3900
    assert last["mean"] == pytest.approx(np.nanmean(values), abs=6 * last["mean_noise_std"])
    assert last["mean_noise_std"] < 2  # the lower bound in its place would bring it down by 50


@pytest.mark.parametrize("nothing", [None, "", "text", [], {}, object(), float("nan"), np.nan])
def test_in_python_it_is_left_out(nothing):
    plan = Plan(**NORMAL, length=500, lag=0)
    one, other = plan.open(secret=SECRET), plan.open(secret=SECRET)
    assert one.update(nothing) == other.update(math.nan)
    column = np.empty(2, object)
    column[:] = [nothing, 3.0]
    assert list(one.update_many(column)) == list(other.update_many([math.nan, 3.0]))


def test_what_is_missing_enters_no_counts(monkeypatch):
    seen: list[np.ndarray] = []
    count = TailHistogram.count

    def note(self, raw_values, *more):
        seen.append(np.array(raw_values))
        return count(self, raw_values, *more)

    monkeypatch.setattr(TailHistogram, "count", note)
    values = with_gaps(900, 1, 0.3)
    common = {**NORMAL, "length": 900}
    Plan(**common, lag=100).open(secret=SECRET).update_many(values)
    single = Plan(**common, lag=100).open(secret=SECRET)
    for value in values.tolist():
        single.update(value)
    single.snapshot()
    shared = Plan(**common, lag=200, keys=["a", "b"], shared_threshold=True)
    shared.open_many(secret=SECRET).absorb(values, np.arange(900) % 2)
    counted = np.concatenate(seen)
    assert not np.isnan(counted).any()
    assert len(counted) > 900


# --- Sensitivity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("steps", [2, 3, 8, 1001, 2**20])
def test_one_observation_moves_a_leaf_by_no_more_than_its_value_could(law, steps):
    """Counting is free: no neighbour is farther than the largest value from the smallest one."""
    leaf = Mean().leaf(Setting(missing=True, law=law))
    lattice = Grid(-3.0, 5.0, *leaf.cut(steps))
    raw_values = np.array([-np.inf, -3.0, -2.9, 0.999, 1.0, 1.001, 4.9, 5.0, np.inf, np.nan])
    contributions = leaf.contribute(raw_values, lattice)
    of_one = leaf.contributor(lattice)
    assert contributions.tolist() == [list(of_one(x)) for x in raw_values.tolist()]
    power = 1 if law == "laplace" else 2
    worst = max(
        sum(abs(a - b) ** power for a, b in zip(one, other, strict=True))
        for one, other in itertools.product(contributions.tolist(), repeat=2)
    )
    most = max(sum(size**power for size in move) for move in leaf.moves(steps))
    assert worst <= most
    assert worst == lattice.steps**power
    if steps > 2:
        assert most == steps**power  # and counting costs nothing
        # One more for each value that is there would not be free any more.
        even, count = leaf.cut(steps)
        assert (even // 2) ** power + (count + 1) ** power > even**power


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_the_second_column_costs_next_to_nothing(delta):
    """The noise of a whole stream is that of ``missing="none"``, up to a charge for rounding."""
    common = {**NORMAL, "delta": delta, "length": 150_000}
    skip, none = Plan(**common), Plan(**common, missing="none")
    ratio = skip.expected_error(150_000) / none.expected_error(150_000)
    assert 1 <= ratio < 1.002
    for plan in (skip, none):
        assert plan.layout.worst_cost().within(plan.guarantee)
    assert Fraction(skip.layout.main.cost.epsilon) == none.layout.main.cost.epsilon


# --- What it costs where nothing is missing -------------------------------------------------------


def expected_error(missing: str, runs: int) -> float:
    """Mean absolute error of the mean of all baskets under the default plan.

    The noise of each run is not taken as it fell, but as it may fall: by its stated deviation.
    """
    values = datasets.baskets()[:150_000]
    plan = Plan(epsilon=1.0, delta=DELTA, upper=3000.0, length=150_000, missing=missing)
    ends = [plan.lag, *(segment.last for segment in plan.layout.segments)]
    errors = []
    for number in range(runs):
        stream = plan.open(secret=Secret.for_tests(number))
        release = stream.update_many(values)[-1]
        state = stream._state()
        ranges = [state.ranges[0], *state.ranges][: len(ends)]
        clipped = sum(
            np.clip(part, used.lower, used.upper).sum()
            for part, used in zip(np.split(values, ends[:-1]), ranges, strict=True)
        )
        bias = (clipped + state.anchor.removed - values.sum()) / len(values)
        errors.append(mean_absolute(np.array(bias), np.array(release.noise_std)))
        # And it did fall so.
        assert abs(release.value - values.mean() - bias) < 6 * release.noise_std
    return float(np.mean(errors))


@pytest.mark.long
def test_on_baskets_little_is_lost():
    assert expected_error("skip", 150) < 1.03 * expected_error("none", 150)


def test_on_baskets_not_much_is_lost():
    assert expected_error("skip", 8) < 1.15 * expected_error("none", 8)


@pytest.mark.parametrize(
    ("law", "largest", "least"), [("gaussian", 3**-0.5, 0.942), ("laplace", 1.0, 0.944)]
)
@pytest.mark.parametrize("widened", [True, False])
def test_a_stream_taken_for_complete_is_covered_whatever_is_missing(law, largest, least, widened):
    """The figures of docs/proofs/clock.md: the least over the ratio of noises and what is missing.

    In units of the noise of the centred sum; ``ratio`` is what a deviation of the count moves.
    """
    random, runs = np.random.default_rng(1), 200_000
    draw = random.normal if law == "gaussian" else random.laplace
    of_sum, of_count = (draw(size=runs) / (1.0 if law == "gaussian" else 2**0.5) for _ in range(2))
    reach, found = noise_deviations(0.95, law), []
    for ratio in np.linspace(0.1, largest, 4):
        as_ratio = np.abs(of_sum + ratio * of_count) <= reach * np.hypot(1.0, ratio)
        for missing in np.arange(0.0, 6.0, 0.25):
            taken = np.abs(missing - of_count) <= EXPLAINED
            wide = reach * (1.0 + ratio * widened)
            right = np.where(taken, np.abs(of_sum + ratio * missing) <= wide, as_ratio)
            found.append(right.mean())
    # Three deviations of a proportion of so many runs.
    assert (min(found) >= least - 0.0016) == widened


@pytest.mark.parametrize("statistic", [Mean(), Sum()])
def test_the_slack_is_what_a_deviation_of_the_count_would_move(statistic):
    plan = Plan(
        epsilon=1.0,
        delta=DELTA,
        upper=50.0,
        length=400,
        lag=0,
        statistic=statistic,
        strategy=BufferedToeplitz(),
    )
    releases = plan.open(secret=SECRET).update_many(np.linspace(5.0, 30.0, 400))
    middle, count_std = 25.0, releases.count_noise_std
    moved = abs(releases.mean - middle) / releases.t if statistic == Mean() else middle
    complete = releases.count == releases.t
    assert complete.any()
    expected = np.where(complete, moved * count_std, 0.0)
    np.testing.assert_allclose(releases.noise_slack, expected, rtol=1e-12)
    low, high = releases.noise_interval(0.95)
    reach = noise_deviations(0.95, "gaussian") * (releases.noise_std + releases.noise_slack)
    np.testing.assert_allclose((high - low)[complete], 2 * reach[complete], rtol=1e-9)
