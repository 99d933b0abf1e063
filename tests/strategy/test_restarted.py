"""A signed-digit tree for each window: blocks that share nothing, noise that does not grow."""

from __future__ import annotations

import numpy as np
import pytest

from rillet.errors import ParameterError
from rillet.noise import Secret
from rillet.privacy import Guarantee
from rillet.strategy import RestartedTree, SignedDigitTree
from rillet.strategy.base import Mechanism
from rillet.strategy.restarted import best_arity
from rillet.testing import check_strategy


def noise_of_windows(strategy: RestartedTree, t: np.ndarray) -> np.ndarray:
    """Variance of the difference of two prefix sums a window apart, at ε = 1."""
    leaves, before = int(t.max()), t - strategy.window
    weights = strategy.weights(leaves, t) + strategy.weights(leaves, before)
    weights -= 2 * strategy.covariance(leaves, before, t)
    return 2 * float(strategy.sensitivity(leaves, 1)) ** 2 * weights


@pytest.mark.parametrize("window", [4, 5, 13])
def test_contract_of_a_strategy(window):
    check_strategy(RestartedTree(window=window, arity=3), max_leaves=6, tight=False)


@pytest.mark.parametrize(
    ("window", "mean", "largest"),
    [(10, 20, 20), (60, 92, 144), (168, 148, 224), (1024, 388, 608), (1440, 476, 720)],
)
def test_noise_of_a_window_stays_for_ever(window, mean, largest):
    strategy = RestartedTree(window=window)
    for begin in (window, 1000 * window, 2**30 * window):
        found = noise_of_windows(strategy, begin + np.arange(1, window + 1))
        assert round(found.mean()) == mean
        assert found.max() == largest
        assert mean <= 2 * window  # of independent noise


@pytest.mark.parametrize("window", [30, 168, 1000])
def test_no_other_arity_has_less_noise(window):
    t = np.arange(window + 1, 2 * window + 1)
    others = [RestartedTree(window=window, arity=k) for k in range(3, 80, 2)]
    least = min(noise_of_windows(each, t).mean() for each in others)
    assert noise_of_windows(RestartedTree(window=window), t).mean() <= least


def test_blocks_draw_noise_of_their_own():
    """Draws through keyed noise, in pieces: the first leaf of each block is a fresh tree's."""
    strategy, leaves = RestartedTree(window=13, arity=3), 400
    mechanism = Mechanism.calibrate(strategy, leaves, Guarantee(1.0))
    process = strategy.noise_process(leaves)
    drawn: dict[int, list[int]] = {}

    def levels(number):
        source = mechanism.levels(Secret.for_tests(5))(number)

        class Kept:
            def draw(self, start, count):
                drawn.setdefault(number, []).extend(range(start, start + count))
                return source.draw(start, count)

        return Kept()

    state, pieces, first = process.start(), [], 1
    for count in [1, 2, 40, 13, 344]:
        state, noise = process.draw(state, levels, first, count)
        pieces.append(noise)
        first += count
    assert all(len(set(indices)) == len(indices) for indices in drawn.values())
    whole = np.concatenate(pieces)
    within = np.diff(whole[12::13], prepend=0)  # what each block adds
    assert len(set(within.tolist())) == len(within)
    keyed = mechanism.levels(Secret.for_tests(5))
    _, again = process.draw(process.start(), keyed, 1, leaves)
    assert np.array_equal(again, whole)
    # Between two blocks nothing of a tree is kept.
    (before, *tree), _ = process.draw(process.start(), keyed, 1, 26)
    assert before == whole[25:26]
    assert not any(part.any() for part in tree)


def test_a_window_is_as_sensitive_as_its_tree():
    strategy = RestartedTree(window=1000)
    tree = SignedDigitTree(arity=best_arity(1000))
    assert strategy.sensitivity(2**40, 7) == tree.sensitivity(1000, 7)
    assert strategy.repeated(2**40, 7, 5, 1000) == 5 * tree.sensitivity(1000, 7)


def test_options_are_checked():
    with pytest.raises(ParameterError, match="law"):
        RestartedTree(window=10, law="gaussian")
    with pytest.raises(ParameterError, match="arity"):
        RestartedTree(window=10, arity=4)
    with pytest.raises(ParameterError, match="window"):
        RestartedTree(window=1)
