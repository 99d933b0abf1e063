"""Calibrating a strategy to a budget: the noise fits the lattice, or the budget is refused."""

import numpy as np
import pytest

from rillet.errors import ParameterError
from rillet.gather.grid import FEWEST_STEPS
from rillet.noise import LARGEST_SCALE, Secret
from rillet.privacy import Guarantee
from rillet.strategy import BinaryTree, BufferedToeplitz, SignedDigitTree
from rillet.strategy.base import Mechanism


@pytest.mark.parametrize(
    ("strategy", "delta"),
    [
        (BufferedToeplitz(), 2.0**-20),
        (BufferedToeplitz(), 2.0**-60),
        (BinaryTree(law="gaussian"), 2.0**-60),
        (BinaryTree(), 0.0),
        (SignedDigitTree(), 0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [1000, 2**25])
def test_small_budgets_get_a_coarser_lattice_until_they_are_refused(strategy, delta, length):
    """A charge for rounding, which does not shrink with the lattice, must not break this off."""
    steps, refused = [], []
    for exponent in np.arange(0, 12, 0.3).tolist():
        try:
            mechanism = Mechanism.calibrate(strategy, length, Guarantee(10.0**-exponent, delta))
        except ParameterError as error:
            refused.append(error.parameter)
            continue
        assert not refused, "a smaller budget fits, a larger one did not"
        assert mechanism.scale <= LARGEST_SCALE
        mechanism.noise(Secret.for_tests(1)).draw(1, 2)
        steps.append(mechanism.steps)
    assert set(refused) <= {"epsilon"}
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1] >= FEWEST_STEPS


def test_the_charge_for_rounding_costs_a_step_and_not_the_plan():
    """Here the noise on the lattice chosen first is a little too large for it."""
    guarantee = Guarantee(5.01187233627294e-08, 2.0**-20)
    mechanism = Mechanism.calibrate(BufferedToeplitz(), 2**25, guarantee)
    assert mechanism.scale <= LARGEST_SCALE
    finer = BufferedToeplitz().sensitivity(2**25, 2 * mechanism.steps)
    used = BufferedToeplitz().sensitivity(2**25, mechanism.steps)
    assert mechanism.scale * float(finer / used) ** 0.5 > LARGEST_SCALE
