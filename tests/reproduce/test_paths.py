"""Errors at all steps from the ranges alone: the same ranges, bias and noise as whole streams."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import FixedThreshold, ParameterError, Plan, Secret, SmoothQuantile, Sum
from rillet.reproduce.accuracy import best_fixed, clipped_at, evaluate, unit_noise
from rillet.reproduce.context import StandIn
from rillet.reproduce.mechanisms import BASELINE, DEFAULT, mechanisms, strategy_plan
from rillet.reproduce.paths import Clipping, Path, Piece, draw_paths, noise_std
from rillet.reproduce.pipeline import tree_error
from rillet.reproduce.simulate import simulate, simulate_plans
from rillet.strategy import BinaryTree, BufferedToeplitz, HonakerTree, Independent, SignedDigitTree

DELTA = 2.0**-20


def exponential(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).exponential(20.0, n)


def stand_in(n: int = 20_000) -> StandIn:
    return StandIn("made up", "Made up", "value", "units", 3000.0, exponential(n))


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_paths_are_those_of_whole_streams(delta):
    values = exponential(60_000)
    plan = Plan(epsilon=1.0, delta=delta, upper=3000.0, length=60_000, statistic=Sum())
    layout = plan.layout
    assert len(layout.epochs) > 2
    exact = np.cumsum(values)
    for run, path in enumerate(draw_paths(plan, values, 3, seed=11)):
        stream = plan.open(secret=Secret.for_tests(11), key=(run,))
        releases = stream.update_many(values)
        at = np.searchsorted(releases.t, [piece.last for piece in path.pieces])
        assert [piece.upper for piece in path.pieces] == releases.threshold[at].tolist()
        some = releases.t[::997]
        assert noise_std(layout, path, some) == pytest.approx(releases.sum_noise_std[::997])
        # What is left of the error after clipping and adding back is noise of the stated size.
        steps = np.append(np.arange(10_000, 60_000, 500), 60_000)
        bias = Clipping(values, steps, 0.0)(path)
        place = np.searchsorted(releases.t, steps)
        noise = releases.sum[place] - exact[steps - 1] - bias
        assert np.all(np.abs(noise / releases.sum_noise_std[place]) < 6)
        # At the very end the last look corrects once more.
        assert path.last_removed is not None


def test_mean_squared_error_agrees_with_whole_streams():
    stream = stand_in()
    plan = Plan(epsilon=1.0, delta=DELTA, upper=3000.0, length=stream.length, statistic=Sum())
    steps = np.unique(np.linspace(0, stream.length, 257)[1:].astype(np.int64))
    tree = np.ones(len(steps))
    found = evaluate(plan, stream, steps, tree, runs=60, draws=2000)
    exact = np.cumsum(stream.values)
    squares, ends = [], []
    for run in range(60):
        releases = plan.open(secret=Secret.for_tests(2), key=(run,)).update_many(stream.values)
        at = np.searchsorted(releases.t, steps[steps >= plan.lag])
        errors = releases.sum[at] - exact[releases.t[at] - 1]
        squares.append(np.mean(errors**2))
        ends.append(abs(errors[-1]))
    whole = np.sqrt(np.mean(squares))
    # Whole streams scatter: their errors are correlated over time.
    allowed = 5 * np.std(squares) / np.sqrt(60) / (2 * whole)
    assert found.over_all == pytest.approx(whole, abs=allowed)
    assert found.at_end == pytest.approx(np.mean(ends), abs=5 * np.std(ends) / np.sqrt(60))
    assert allowed < 0.5 * whole


def test_clipping_by_hand():
    values = np.array([1.0, 9.0, 5.0, 7.0, 3.0, 8.0])
    steps = np.array([2, 4, 6])
    path = Path((Piece(1, 3, 6.0), Piece(4, 6, 4.0, removed=0.5, removed_each=0.25)))
    # Taken: 3 from the 9; then 3 from the 7; then 4 from the 8.
    assert Clipping(values, steps, 0.0)(path).tolist() == [-3.0, -6.0 + 0.75, -10.0 + 1.25]
    corrected = Path(path.pieces, last_removed=9.0)
    assert Clipping(values, steps, 3.5)(corrected).tolist() == [-3.0, -5.25, -1.0]


def test_clipping_at_many_thresholds_at_once():
    values, uppers = exponential(5000), np.geomspace(10.0, 3000.0, 17)
    steps = np.array([100, 101, 2500, 5000])
    taken = clipped_at(values, steps, uppers)
    for column, upper in enumerate(uppers):
        by_hand = np.cumsum(np.maximum(values - upper, 0.0))[steps - 1]
        assert taken[:, column] == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize(
    "strategy",
    [
        BinaryTree(),
        BinaryTree(law="gaussian"),
        HonakerTree(),
        Independent(),
        SignedDigitTree(),
        BufferedToeplitz(),
    ],
)
def test_drawn_noise_has_the_stated_size(strategy):
    stream = stand_in(5000)
    layout = strategy_plan(stream, strategy).layout
    drawn = unit_noise(layout, 20_000, seed=3)
    assert np.std(drawn) == pytest.approx(layout.unit_std_at(5000), rel=0.03)
    assert abs(np.mean(drawn)) < 5 * np.std(drawn) / np.sqrt(20_000)


def test_error_of_the_tree_at_the_last_step_is_the_closed_form():
    stream = stand_in(5000)
    steps, tree = np.array([2500, 5000]), np.ones(2)
    found = evaluate(strategy_plan(stream, BinaryTree()), stream, steps, tree, 1, 40_000)
    assert found.at_end == pytest.approx(tree_error(3000.0, 5000), abs=5 * found.at_end_error)


def test_best_fixed_threshold_is_best():
    stream = stand_in()
    steps = np.unique(np.linspace(0, stream.length, 129)[1:].astype(np.int64))
    uppers = np.geomspace(15.0, 3000.0, 40)
    taken = clipped_at(stream.values, steps, uppers)
    best = best_fixed(stream, BinaryTree(), steps, taken, uppers)
    errors = []
    for upper in uppers:
        plan = Plan.baseline(epsilon=1.0, upper=3000.0, length=stream.length, statistic=Sum())
        layout = plan.layout
        path = Path((Piece(1, stream.length, upper),))
        bias, std = Clipping(stream.values, steps, 0.0)(path), noise_std(layout, path, steps)
        errors.append(np.sqrt(np.mean(bias**2 + std**2)))
    assert best.over_all == pytest.approx(min(errors))
    assert best.threshold == uppers[int(np.argmin(errors))]
    assert 0 < np.argmin(errors) < len(uppers) - 1


def test_every_mechanism_keeps_the_same_promise():
    stream = StandIn("made up", "Made up", "value", "units", 3000.0, exponential(120_000))
    named = {item.name: item.plan for item in mechanisms(stream)}
    assert {BASELINE, DEFAULT} <= set(named)
    kinds = {type(plan.strategy) for plan in named.values()}
    assert {Independent, BinaryTree, HonakerTree, SignedDigitTree, BufferedToeplitz} <= kinds
    for plan in named.values():
        assert plan.epsilon == 1.0
        assert plan.delta in (0.0, DELTA)
        assert plan.length == 120_000
        cost = plan.layout.worst_cost()
        assert cost.epsilon <= 1


def test_the_same_numbers_every_time():
    stream = stand_in()
    plan = Plan(
        epsilon=1.0,
        delta=DELTA,
        upper=3000.0,
        length=stream.length,
        lag=8000,
        statistic=Sum(),
        threshold=SmoothQuantile(quantile=0.05),
        strategy=BinaryTree(),
    )
    steps = np.array([10_000, stream.length])
    first, second = (
        evaluate(plan, stream, steps, np.ones(2), runs=20, draws=500) for _ in range(2)
    )
    assert first == second


def test_plans_together_are_plans_alone():
    values = exponential(4000)
    plans = [
        Plan.baseline(epsilon=1.0, upper=3000.0, length=4000, statistic=Sum()),
        Plan.baseline(
            epsilon=1.0, upper=3000.0, length=4000, statistic=Sum(), strategy=SignedDigitTree()
        ),
        Plan(
            epsilon=1.0,
            upper=3000.0,
            length=4000,
            statistic=Sum(),
            lag=0,
            threshold=FixedThreshold(100.0),
            strategy=BinaryTree(),
        ),
    ]
    together = simulate_plans(plans, values, 30, seed=5)
    for place, (plan, found) in enumerate(zip(plans, together, strict=True)):
        alone = simulate(plan, values, 30, seed=5 + place)
        assert np.array_equal(found.errors, alone.errors)
    other = Plan.baseline(epsilon=1.0, upper=3000.0, length=3999, statistic=Sum())
    with pytest.raises(ParameterError, match="plans"):
        simulate_plans([plans[0], other], values, 30)
