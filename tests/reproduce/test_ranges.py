"""The default plan beside the best range known in advance: a quick form, and the whole table."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from rillet import FixedThreshold, MissingExtra, Plan, Sum, TailHistogram
from rillet.reproduce import ranges
from rillet.reproduce.ranges import LIMITS, Measured, best_range, main, measure
from rillet.reproduce.simulator import simulate
from rillet.reproduce.streams import DRAWN, Stream, Work
from rillet.statistic import Range


def measured(name: str, runs: int, seed: int) -> Measured:
    try:
        return measure(DRAWN[name], Work(runs, seed))
    except MissingExtra as missing:
        pytest.skip(str(missing))


def test_the_best_range_is_the_best_of_those_next_to_it():
    values = np.random.default_rng(3).normal(240.0, 4.0, 20_000)
    plan = Plan(epsilon=1.0, delta=2**-20, upper=1000.0, length=20_000, statistic=Sum())
    best, error = best_range(plan, values)
    fixed = Plan(
        epsilon=1.0,
        delta=2**-20,
        upper=1000.0,
        length=20_000,
        statistic=Sum(),
        threshold=FixedThreshold(),
        strategy=plan.strategy,
    )
    noise = float(fixed.layout.unit_std(np.array([20_000]))[0])

    def of(tried: Range) -> float:
        above = np.maximum(values - tried.upper, 0).sum()
        return float(
            np.hypot(noise * tried.width, above + np.maximum(tried.lower - values, 0).sum())
        )

    assert error == pytest.approx(of(best), rel=1e-9)
    for lower in (-0.5, 0.0, 0.5):
        for upper in (-0.5, 0.0, 0.5):
            assert of(Range(best.lower + lower, best.upper + upper)) > 0.999 * error


@pytest.mark.parametrize("name", ["Normal(240, 4)", "rounded Normal(30, 2)"])
def test_limits_are_kept_with_few_runs(name):
    found = measured(name, 12, 7)
    assert found.rmse - 3 * found.rmse_error <= LIMITS[name]


def test_the_command_prints_a_row_for_each_stream(capsys):
    code = main(["rounded Normal(30, 2)", "--runs", "2", "--seed", "5"])
    assert code in (0, 1)
    assert "| rounded Normal(30, 2) | 50,000 | [0, 500] |" in capsys.readouterr().out


def test_processes_share_the_runs_and_print_the_same(capsys):
    shown = []
    for jobs in ("1", "2"):
        main(["rounded Normal(30, 2)", "--runs", "60", "--seed", "5", "--jobs", jobs])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_values_are_drawn_anew_after_some_runs(monkeypatch):
    drawn = []

    def make(random, n):
        drawn.append(random.exponential(10.0 * (len(drawn) + 1), n))
        return drawn[-1]

    monkeypatch.setattr(ranges, "_RUNS_OF_VALUES", 2)
    found = measure(Stream(make, 6000, 1000.0), Work(5, 7))
    assert len(drawn) == 3
    facts = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 1000.0, "length": 6000}
    plan = Plan(**facts, statistic=Sum(), missing="none")
    seeds = np.random.SeedSequence(7).generate_state(3).tolist()
    squares = []  # each over that of the best range of its own values
    for runs, seed, values in zip((2, 2, 1), seeds, drawn, strict=True):
        one = simulate(plan, values, runs, seed=seed)
        square = (one.clipping + one.added_back) ** 2 + one.noise_std**2
        squares += (square / best_range(plan, values)[1] ** 2).tolist()
    assert found.rmse == pytest.approx(np.sqrt(np.mean(squares)))
    assert found.best == best_range(plan, drawn[0])[0]


@pytest.mark.long
@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_kept_with_a_fresh_seed(name):
    seed = secrets.randbits(31)
    found = measured(name, 500, seed)
    print(name, seed, found)  # noqa: T201
    assert found.rmse - 3 * found.rmse_error <= LIMITS[name], seed


def error_of(plan, values):
    found = simulate(plan, values, 40, seed=3)
    return np.sqrt(np.mean((found.clipping + found.added_back) ** 2 + found.noise_std**2))


@pytest.mark.parametrize("length", [3_600, 6_000, 12_000])
def test_two_sides_of_a_short_stream_cost_little_and_save_much(length):
    """They were three times worse than one, when a weak look could take a side for empty."""
    random = np.random.default_rng(8)
    facts = {"epsilon": 1.0, "delta": 2**-20, "upper": 1000.0, "length": length}
    facts |= {"statistic": Sum(), "missing": "none"}
    two, one = Plan(**facts), Plan(**facts, threshold=TailHistogram(two_sided=False))
    assert two.threshold.two_sided
    from_zero, level = random.exponential(10.0, length), random.normal(240.0, 4.0, length)
    assert error_of(two, from_zero) < 1.25 * error_of(one, from_zero)
    assert error_of(two, level) < error_of(one, level) / 5


def test_a_warm_up_that_is_too_short_for_two_sides_learns_one():
    facts = {"delta": 2**-20, "upper": 3000.0}
    short = Plan(epsilon=0.5, length=5900, **facts)
    assert not short.threshold.two_sided
    assert "too short to learn a lower end" in short.describe()
    assert Plan(epsilon=0.5, length=6000, **facts).threshold.two_sided
    assert Plan(epsilon=1.0, length=3000, **facts).threshold.two_sided
    assert Plan(epsilon=0.5, length=5900, lower=-10.0, **facts).threshold.two_sided
