"""The reference probabilities: they sum to 1 and agree with each other."""

import mpmath
import numpy as np
import pytest

from rillet.noise import GAUSSIAN, LAPLACE
from rillet.testing.lattice import (
    TAILS,
    cell_edges,
    cell_probabilities,
    count_cells,
    laplace_sum_tail,
    lattice_probability,
)


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=repr)
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5])
def test_single_probabilities_sum_to_cells(law, scale):
    tail = TAILS[law.name]
    edges = np.arange(-20, 20)
    single = [float(lattice_probability(tail, scale, k)) for k in range(-19, 20)]
    cells = cell_probabilities(tail, scale, edges)
    assert cells[1:-1] == pytest.approx(single, rel=1e-12)
    assert cells.sum() == pytest.approx(1, abs=1e-15)


def test_lattice_probabilities_keep_their_digits_far_out():
    """P(round(sZ) = k) = sinh(1/2s)·e^{−k/s} for the Laplace law, k ≥ 1."""
    with mpmath.workprec(100):
        found = lattice_probability(TAILS["laplace"], 2.0, 500)
        assert mpmath.almosteq(found, mpmath.sinh(0.25) * mpmath.exp(-250), rel_eps=2.0**-80)


def test_counts_and_cells_use_the_same_edges():
    edges = np.array([-2, 0, 3])
    values = np.array([-9, -2, -1, 0, 1, 3, 4, 99])
    assert count_cells(values, edges).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("scale", [0.5, 2.0**30])
def test_edges_leave_thin_cells_in_both_tails(scale):
    edges = cell_edges(LAPLACE, scale, 64)
    chances = cell_probabilities(TAILS["laplace"], scale, edges)
    assert len(np.unique(edges)) == len(edges)
    assert chances[0] < 1e-3 and chances[-1] < 1e-3
    assert edges.tolist() == sorted(-e - 1 for e in edges.tolist())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_tail_of_a_laplace_sum_is_the_integral_of_its_transform(count):
    """P(|S| > x) = 1 − (2/π) ∫ sin(ux)/u · (1 + u²)^−n du."""
    x = 2.5
    integral = mpmath.quadosc(
        lambda u: mpmath.sin(u * x) / u / (1 + u * u) ** count, [0, mpmath.inf], omega=x
    )
    assert laplace_sum_tail(count, x) == pytest.approx(
        float(1 - 2 / mpmath.pi * integral), rel=1e-9
    )
    assert laplace_sum_tail(count, 0.0) == pytest.approx(1, abs=1e-15)
