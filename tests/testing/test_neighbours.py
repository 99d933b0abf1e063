"""Brute force over neighbours, against sensitivities that are known."""

from fractions import Fraction

import numpy as np
import pytest

from rillet.errors import ParameterError
from rillet.testing.neighbours import largest_distances


def test_running_sums_move_by_their_number():
    found = largest_distances(lambda x: np.cumsum(x), [0, 1, 5], 4)
    assert found.l1 == 20  # the first leaf moves all four
    assert found.squared_l2 == 100


def test_witnesses_attain_what_is_found():
    def function(x):
        return [x[0] * x[1], max(x), x[2] - 7 * x[1]]

    found = largest_distances(function, [0, 2, 3], 3)
    a, b = found.l1_witness
    assert sum(u != v for u, v in zip(a, b, strict=True)) == 1
    moved = [Fraction(u) - Fraction(v) for u, v in zip(function(a), function(b), strict=True)]
    assert sum(abs(m) for m in moved) == found.l1
    c, d = found.squared_l2_witness
    moved = [Fraction(u) - Fraction(v) for u, v in zip(function(c), function(d), strict=True)]
    assert sum(m * m for m in moved) == found.squared_l2


def test_a_maximum_in_the_interior_is_found():
    found = largest_distances(lambda x: [1 if x == (1, 2, 1) else 0], range(4), 3)
    assert found.l1 == 1


def test_floats_and_large_integers_are_compared_exactly():
    tiny = largest_distances(lambda x: [1.0 + x[0] * 2.0**-52], [0, 1], 1)
    assert tiny.l1 == Fraction(1, 2**52)
    large = largest_distances(lambda x: [x[0] * 2**60 + 1], [0, 1, 7], 1)
    assert large.squared_l2 == (7 * 2**60) ** 2


def test_too_large_a_search_is_refused():
    with pytest.raises(ParameterError, match="length"):
        largest_distances(lambda x: x, range(10), 9)
    with pytest.raises(ParameterError, match="domain"):
        largest_distances(lambda x: x, [1], 3)
