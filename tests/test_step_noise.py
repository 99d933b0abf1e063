"""What a stream pays and what it draws: nodes on neighbours, the charges, the noise itself."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import combinations

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import example, given, settings

from helpers.laws import laplace_tail
from helpers.streams import SECRET, Recording, awkward_values, baseline, paper, recorded
from rillet import BinaryTree, Independent, Plan, Secret, Sum
from rillet.privacy import Cost, gaussian_mu
from rillet.strategy.tree import TreeEncoder
from rillet.testing import Budget, StatisticalFailure, check
from rillet.testing.statistics import goodness_of_fit, sign_p_value

# --- No observation lies in more nodes than charged --------------------------------------------


def memberships(leaves: int) -> np.ndarray:
    """For every leaf, the number of nodes that change when it does."""
    encoder = TreeEncoder(leaves.bit_length())
    counts = []
    for leaf in range(leaves):
        impulse = np.zeros(leaves, np.int64)
        impulse[leaf] = 1
        _, nodes = encoder.encode(encoder.start(), 1, impulse)
        assert set(nodes.tolist()) <= {0, 1}
        counts.append(int(nodes.sum()))
    return np.array(counts)


@pytest.mark.parametrize("leaves", range(1, 131))
def test_no_leaf_lies_in_more_nodes_than_charged(leaves):
    counts = memberships(leaves)
    charged = BinaryTree().sensitivity(leaves, 1)
    assert counts.max() == charged == leaves.bit_length()
    # By hand: the nodes are (t − lowbit(t), t].
    by_hand = [
        sum(t - (t & -t) < leaf <= t for t in range(1, leaves + 1)) for leaf in range(1, leaves + 1)
    ]
    assert counts.tolist() == by_hand


def test_the_published_number_of_levels_would_be_one_short():
    """At a power of two log2 n levels are charged too little: the first leaf lies in one more."""
    assert memberships(64).max() == np.log2(64) + 1


# --- Record and replay on neighbours -----------------------------------------------------------

#: Plans, and the threshold that is forced, so that neighbours share it as they would a release.
PLANS = {
    "baseline": (baseline(45), None),
    "gaussian": (baseline(45, strategy=BinaryTree("gaussian"), delta=2**-20), None),
    "independent": (baseline(45, strategy=Independent()), None),
    "cadence": (baseline(45, every=4, lower=-20.0), None),
    "paper": (paper(45, 15), 12.5),
    "paper, cadence": (paper(45, 15, every=4, lower=-20.0), 12.5),
    "backfill": (paper(45, 15, backfill=True, every=2), 12.5),
}


def replay(name: str, values: np.ndarray) -> Recording:
    plan, threshold = PLANS[name]
    with recorded(threshold) as recording:
        plan.open(secret=SECRET).update_many(values)
    return recording


def node_vectors(name: str, recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Exact nodes of the opening and of the main mechanism."""
    layout = PLANS[name][0].layout
    nodes = [*recording.nodes.get("independent", []), *recording.nodes.get("tree", [])]
    opening = 0 if layout.warm_up is None else layout.warm_up.leaves
    assert layout.main is not None
    assert len(nodes) == opening + layout.main.leaves
    return np.array(nodes[:opening], np.int64), np.array(nodes[opening:], np.int64)


def moved(name: str, values: np.ndarray, place: int, other: float) -> tuple[int, int]:
    """Distance of opening and main nodes between neighbours, in the norm that is charged."""
    neighbour = values.copy()
    neighbour[place] = other
    layout = PLANS[name][0].layout
    pairs = zip(
        (layout.warm_up, layout.main),
        node_vectors(name, replay(name, values)),
        node_vectors(name, replay(name, neighbour)),
        strict=True,
    )
    distances = []
    for mechanism, one, two in pairs:
        law = "laplace" if mechanism is None else mechanism.strategy.law
        power = 1 if law == "laplace" else 2
        distances.append(int(np.sum(np.abs(one - two) ** power)))
    return distances[0], distances[1]


@settings(max_examples=120)
@given(
    name=some.sampled_from(sorted(PLANS)),
    seed=some.integers(0, 2**16),
    place=some.integers(0, 44),
    other=some.one_of(some.floats(), some.sampled_from([-20.0, 0.0, 12.5, 100.0])),
)
@example("paper", 0, 0, 1e300)
@example("paper", 0, 15, float("nan"))
def test_neighbours_stay_within_the_sensitivity(name, seed, place, other):
    plan, _ = PLANS[name]
    layout = plan.layout
    opening, main = moved(name, awkward_values(45, seed), place, other)
    if place < layout.lag:
        assert main == 0  # the first observations do not enter the main mechanism
        assert opening <= layout.warm_up.strategy.sensitivity(
            layout.warm_up.leaves, layout.warm_up.steps
        )
    else:
        assert opening == 0
        assert main <= layout.main.strategy.sensitivity(layout.main.leaves, layout.main.steps)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_what_is_charged_is_what_is_drawn(name):
    """Every observation, worst values: what its nodes cost at the scale drawn, and no more."""
    plan, _ = PLANS[name]
    layout, values = plan.layout, np.full(45, plan.lower)
    recording = replay(name, values)
    _check_addresses(plan, recording)
    charged = {}
    for charge in plan.open(secret=SECRET)._layout.charges().totals():
        for t in range(charge.first, charge.last + 1):
            charged[t] = charge.cost
    paid = {}
    for t in range(1, 46):
        opening, main = moved(name, values, t - 1, 1e9)
        cost = Cost()
        if t <= layout.lag:
            scale = layout.warm_up.scale
            threshold = layout.threshold.cost(layout.threshold_budget, plan.delta)
            cost = threshold + Cost.pure(Fraction(opening) / Fraction(scale))
        elif layout.main.strategy.law == "laplace":
            cost = Cost.pure(Fraction(main) / Fraction(layout.main.scale))
        else:
            cost = Cost.gaussian(Fraction(main) / Fraction(layout.main.scale) ** 2)
        assert cost.epsilon <= charged[t].epsilon
        assert cost.delta == charged[t].delta
        assert cost.mu_squared <= charged[t].mu_squared
        assert cost.within(plan.guarantee)
        paid[t] = cost
    # The worst-off observation of either part pays all of its promise, but for rounding outward.
    worst = max(paid.values(), key=lambda cost: (cost.epsilon, cost.mu_squared))
    if layout.main.strategy.law == "laplace":
        assert float(worst.epsilon) == pytest.approx(1.0, rel=1e-14)
        assert max(cost.epsilon for t, cost in paid.items() if t > layout.lag) > 1 - 1e-14
    else:
        assert float(worst.mu_squared) == pytest.approx(gaussian_mu(plan.guarantee) ** 2)


def _check_addresses(plan: Plan, recording: Recording) -> None:
    """Each node is drawn once, at the calibrated scale, and nothing else is drawn."""
    layout = plan.layout
    expected = {(1, "strategy", "main"): layout.main}
    if layout.warm_up is not None:
        expected[0, "strategy", "warm-up"] = layout.warm_up
    assert set(recording.draws) == set(expected)
    for address, mechanism in expected.items():
        assert recording.draws[address] == list(range(1, mechanism.leaves + 1))
        assert recording.scales[address] == {mechanism.scale}
        assert recording.laws[address] == {mechanism.strategy.law}


def test_the_threshold_is_one_draw():
    with recorded() as recording:
        paper(45, 15).open(secret=SECRET).update_many(np.ones(45))
    assert recording.continuous == [(0, "laplace", "threshold", "smooth-quantile")]


def test_drawing_more_than_is_charged_is_seen():
    """Power: half the noise would cost twice the promise, and the comparison above would see it."""
    plan, _ = PLANS["baseline"]
    _, main = moved("baseline", np.zeros(45), 0, 1e9)
    half = Cost.pure(Fraction(main) / Fraction(plan.layout.main.scale / 2))
    assert not half.within(plan.guarantee)


# --- The noise itself --------------------------------------------------------------------------

RUNS = 6000
STEPS = (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 130)


@cache
def baseline_noise() -> np.ndarray:
    """Noise of every prefix sum, in lattice units: one row a run, each with a key of its own."""
    plan = baseline(130, statistic=Sum())
    step = 100.0 / plan.layout.main.steps
    exact = 50.0 * np.arange(1, 131)
    rows = []
    for run in range(RUNS):
        releases = plan.open(secret=SECRET, key=(run,)).update_many(np.full(130, 50.0))
        rows.append(np.rint((releases.sum - exact) / step))
    return np.array(rows)


def node_noise() -> np.ndarray:
    """Noise of the node that each step completes: the prefix minus the prefix it adds to."""
    prefix = np.concatenate([np.zeros((RUNS, 1)), baseline_noise()], axis=1)
    t = np.arange(1, 131)
    return prefix[:, t] - prefix[:, t - (t & -t)]


def law_p_value(values: np.ndarray, tail) -> float:
    """Exact fit of |values| to a law given by its tail; cells down to 3 in 10,000."""
    edges = np.linspace(0.15, 4.5, 30)
    tails = np.array([1.0, *map(tail, edges), 0.0])
    cells = np.searchsorted(edges, np.abs(values))
    return goodness_of_fit(np.bincount(cells, minlength=len(edges) + 1), -np.diff(tails)).p_value


@pytest.mark.parametrize("t", STEPS)
def test_variance_is_the_closed_form(t):
    """Noise over the deviation that the release states has the law of its nodes with variance 1."""
    plan = baseline(130, statistic=Sum())
    stated = plan.expected_error(t)
    scale, steps = plan.layout.main.scale, plan.layout.main.steps
    nodes = t.bit_count()
    closed = (2 * nodes) ** 0.5 * scale / steps * 100.0
    assert stated == pytest.approx(closed, rel=1e-9)
    assert closed == pytest.approx((2 * nodes) ** 0.5 * 8 * 100.0, rel=1e-9)  # 8 levels, ε = 1
    measured = baseline_noise()[:, t - 1] * (100.0 / steps) / stated

    def tail(x: float) -> float:
        return laplace_tail(nodes, x * (2 * nodes) ** 0.5)

    check(f"noise of the tree at t = {t}", law_p_value(measured, tail))
    for factor in (0.85, 1.18):  # power: one level more or fewer moves the deviation by an eighth
        with pytest.raises(StatisticalFailure):
            check("power", law_p_value(measured * factor, tail), budget=Budget())


def test_variance_with_an_opening_is_the_closed_form():
    """One draw of the opening's scale and popcount(t − lag) of the tree's."""
    plan = paper(50, 19, statistic=Sum(), threshold_share=0.5)
    at, values = (19, 20, 22, 50), np.full(50, 6.25)
    layout = plan.layout
    rows = []
    with recorded(threshold=12.5):
        for run in range(RUNS):
            releases = plan.open(secret=SECRET, key=(run,)).update_many(values)
            rows.append(releases.sum[np.array(at) - 19])
    errors = np.array(rows) - 6.25 * np.array(at)
    scale = layout.main.scale / layout.main.steps
    other = layout.warm_up.scale / layout.warm_up.steps / scale
    assert other == pytest.approx(2 / 5)  # 1/0.5 against 5 levels
    for t, error in zip(at, errors.T, strict=True):
        nodes = (t - 19).bit_count()
        std = (2 * nodes + 2 * other**2) ** 0.5
        assert plan.expected_error(t, 12.5) == pytest.approx(std * scale * 12.5, rel=1e-9)

        def tail(x: float, nodes: int = nodes, std: float = std) -> float:
            return laplace_tail(nodes, x * std, other)

        measured = error / plan.expected_error(t, 12.5)
        check(f"noise with an opening at t = {t}", law_p_value(measured, tail))
        with pytest.raises(StatisticalFailure):
            check("power", law_p_value(measured * 1.25, tail), budget=Budget())


def dependence(pairs: list[tuple[np.ndarray, np.ndarray]], scale: float) -> float:
    """Least p-value over pairs, times their number: same signs, same sizes.

    Products of independent symmetric draws have a fair sign; so has the product of "larger than
    the median of |z|", which is scale·ln 2 up to the lattice.
    """
    median = round(scale * np.log(2)) + 0.5
    least = 1.0
    for one, two in pairs:
        sizes = (np.abs(one) - median) * (np.abs(two) - median)
        least = min(least, sign_p_value(one * two), sign_p_value(sizes))
    return min(1.0, 2 * len(pairs) * least)


def test_nodes_are_independent():
    nodes = node_noise()
    scale = baseline(130).layout.main.scale
    chosen = [0, 1, 2, 3, 4, 7, 15, 31, 62, 63, 64, 95, 126, 127, 128, 129]
    pairs = [(nodes[:, i], nodes[:, j]) for i, j in combinations(chosen, 2)]
    check("independence of nodes", dependence(pairs, scale))
    # Power: noise shared by one pair in ten runs, with a sign of its own, would be seen.
    shared = nodes[:, 1].copy()
    tenth = np.arange(RUNS) % 10 == 0
    shared[tenth] = nodes[tenth, 0]
    with pytest.raises(StatisticalFailure):
        check("power", dependence([*pairs[1:], (nodes[:, 0], shared)], scale), budget=Budget())
    # … and so would noise cached by level, whatever its sign.
    flipped = nodes[:, 0] * np.where(np.arange(RUNS) % 2, 1, -1)
    with pytest.raises(StatisticalFailure):
        check("power", dependence([(nodes[:, 0], flipped)], scale), budget=Budget())


def test_keys_purposes_and_epochs_are_independent():
    mechanism = baseline(130).layout.main
    own = SECRET.derive("stream", b"digest", "")
    sources = [
        mechanism.noise(own, "main"),
        mechanism.noise(own, "warm-up"),
        mechanism.noise(own.ratchet(), "main"),
        mechanism.noise(SECRET.derive("stream", b"digest", "", "north"), "main"),
        mechanism.noise(SECRET.derive("stream", b"digest", "", "south"), "main"),
        mechanism.noise(SECRET.derive("stream", b"digest", "run"), "main"),
        mechanism.noise(SECRET.derive("stream", b"other", ""), "main"),
        mechanism.noise(Secret.for_tests(1).derive("stream", b"digest", ""), "main"),
    ]
    draws = [source.draw(1, 20_000) for source in sources]
    pairs = list(combinations(draws, 2))
    check("independence of keys and purposes", dependence(pairs, mechanism.scale))
    with pytest.raises(StatisticalFailure):
        check("power", dependence([(draws[0], draws[0])], mechanism.scale), budget=Budget())
    # Nor does one repeat another at a distance.
    joined = np.concatenate(draws)
    assert len(np.unique(joined)) > 0.98 * len(joined)
