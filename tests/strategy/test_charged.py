"""What strategies charge for 1,000 leaves is part of their version: noise is scaled by it."""

from __future__ import annotations

import mpmath
import pytest

from rillet.strategy import (
    BufferedToeplitz,
    DecayedToeplitz,
    SquareRootToeplitz,
    WindowToeplitz,
)
from rillet.strategy.toeplitz.encoder import _round_sums

CHARGED = {
    (BufferedToeplitz(), "sensitivity", ()): 3582195805187.2,
    (BufferedToeplitz(), "several", (3, 7)): 23434927890290.93,
    (BufferedToeplitz(), "spread", (3, 7)): 23470197649084.53,
    (BufferedToeplitz(), "several", (100, 2)): 1.5337464879277644e16,
    (BufferedToeplitz(buffers=2), "sensitivity", ()): 3511947442404.441,
    (BufferedToeplitz(buffers=2), "several", (3, 7)): 23197028553745.133,
    (BufferedToeplitz(buffers=2), "spread", (3, 7)): 23211258254199.668,
    (BufferedToeplitz(buffers=2), "several", (100, 2)): 1.5237343252122586e16,
    (DecayedToeplitz(half_life=10.0), "sensitivity", ()): 1719261140412.8145,
    (DecayedToeplitz(half_life=10.0), "several", (3, 7)): 6836211873088.897,
    (DecayedToeplitz(half_life=10.0), "spread", (3, 7)): 6836229251447.0625,
    (DecayedToeplitz(half_life=10.0), "several", (100, 2)): 813154557016893.8,
    (WindowToeplitz(window=12), "sensitivity", ()): 139332524785892.81,
    (WindowToeplitz(window=12), "several", (3, 7)): 533570609681058.94,
    (WindowToeplitz(window=12), "spread", (3, 7)): 533570609681058.94,
    (WindowToeplitz(window=12), "several", (100, 2)): 6.474349821959056e16,
    (SquareRootToeplitz(), "sensitivity", ()): 3590043607259.0864,
    (SquareRootToeplitz(), "several", (3, 7)): 23591491698493.082,
    (SquareRootToeplitz(), "spread", (3, 7)): 23603996035076.24,
    (SquareRootToeplitz(), "several", (100, 2)): 1.5391191850513674e16,
}


@pytest.mark.parametrize("case", CHARGED, ids=str)
def test_charges_are_those_of_this_version(case):
    strategy, of, contributions = case
    found = getattr(strategy, of)(1000, 2**20, *contributions)
    assert float(found) == pytest.approx(CHARGED[case], rel=1e-13)


def test_coefficients_are_rounded_so_that_errors_do_not_add_up():
    values = [mpmath.mpf(number) / 7 for number in range(1, 60)]
    rounded = _round_sums(values, 3)
    for count in range(1, len(values)):
        assert abs(sum(rounded[:count]) - 8 * mpmath.fsum(values[:count])) <= 0.5


def test_compiled_code_is_kept_on_disk():
    """Else every process would compile for seconds before its first node."""
    kernels = pytest.importorskip("rillet.strategy.toeplitz.kernels")
    for compiled in (kernels.encode, kernels._growth):
        assert type(compiled._cache).__name__ == "FunctionCache"
