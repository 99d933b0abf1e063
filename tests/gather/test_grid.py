"""The lattice: total, monotone, exact in its sensitivity, never overflowing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rillet.errors import ParameterError
from rillet.gather.grid import (
    FEWEST_STEPS,
    LARGEST_BOUND,
    LARGEST_SUM,
    UNKNOWN_LENGTH_CAP,
    USUAL_STEPS,
    Grid,
    check_range,
    choose_steps,
)
from rillet.noise import LARGEST_SCALE
from rillet.testing import largest_distances
from rillet.threshold.base import SMALLEST_PART

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
HARD = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1.7976931348623157e308,
    -1.7976931348623157e308,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    1 - 2**-53,
    1 + 2**-52,
]


@st.composite
def grids(draw):
    """Any grid that can be made: tiny and huge ranges, few and very many steps."""
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    lower, upper = sorted((draw(numbers), draw(numbers)))
    try:
        check_range(lower, upper)
    except ParameterError:
        assume(False)
    return Grid(lower, upper, draw(st.integers(1, 2**30) | st.integers(1, LARGEST_SUM - 1)))


@given(grids(), st.lists(ANY_FLOAT, max_size=8))
@example(Grid(0.0, 1.0, 3), HARD)
@example(Grid(-1e308, 7e307, 2**60), HARD)
@example(Grid(0.0, 1e-289, 2**40), HARD)
@example(Grid(1.0, 1 + 2**-52, 5), HARD)
@example(Grid(0.0, 1.0, 2**54 + 3), HARD)  # as a float this is 2^54 + 4
@example(Grid(-5e-324, 1.7976931348623157e308, 1), HARD)
def test_every_value_lands_on_the_lattice(grid, values):
    units = grid.quantise(values)
    assert units.dtype == np.int64
    assert all(0 <= unit <= grid.steps for unit in units.tolist())
    for value, unit in zip(values, units.tolist(), strict=True):
        assert grid.quantiser()(value) == unit
        if math.isnan(value):
            assert unit == grid.steps // 2
        elif value <= grid.lower:
            assert unit == 0


@pytest.mark.parametrize("steps", [1, 7, 1000, 2**20, 2**52])
@pytest.mark.parametrize(("lower", "upper"), [(0, 1), (-5, 3000), (0, 0.1), (1e9, 1e9 + 1)])
def test_the_ends_are_met(lower, upper, steps):
    grid = Grid(lower, upper, steps)
    values = [lower, upper, -math.inf, math.inf, math.nan]
    units = [0, steps, 0, steps, steps // 2]
    assert grid.quantise(values).tolist() == units
    assert [grid.quantiser()(v) for v in values] == units
    assert grid.sensitivity == steps


@given(grids(), ANY_FLOAT, ANY_FLOAT)
def test_order_is_kept(grid, one, other):
    assume(not math.isnan(one) and not math.isnan(other))
    low, high = grid.quantise(sorted((one, other)))
    assert low <= high


@given(grids(), st.floats(0, 1))
def test_no_value_moves_by_more_than_half_a_step(grid, place):
    assume(grid.steps <= 2**50)
    value = min(max(grid.lower + place * grid.width, grid.lower), grid.upper)
    exact_step = (Fraction(grid.upper) - Fraction(grid.lower)) / grid.steps
    back = Fraction(grid.lower) + int(grid.quantiser()(value)) * exact_step
    # Rounding of the width, of the difference, of the factor and of the product: a few ulp each.
    error = (Fraction(grid.upper) - Fraction(grid.lower)) * Fraction(1, 2**49)
    assert abs(back - Fraction(value)) <= exact_step / 2 + error


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_sensitivity_by_brute_force(steps):
    grid = Grid(-1.0, 2.0, steps)
    domain = [math.nan, -math.inf, -1.0, -0.3, 0.5, 1.1, 2.0, 1e300]
    single = largest_distances(lambda x: grid.quantise(list(x)), domain, 3)
    assert single.l1 == grid.sensitivity
    assert single.squared_l2 == grid.sensitivity**2
    total = largest_distances(lambda x: [int(grid.quantise(list(x)).sum())], domain, 4)
    assert total.l1 == grid.sensitivity


def test_scalars_arrays_and_empty_input_are_quantised():
    grid = Grid(0.0, 10.0, 100)
    assert grid.quantise(2.5) == 25
    assert grid.quantise([]).shape == (0,)
    assert grid.quantise([[1.0, 2.0], [3.0, math.nan]]).tolist() == [[10, 20], [30, 50]]
    assert grid.quantise(np.array([1, 2], np.int32)).tolist() == [10, 20]


def test_input_is_left_as_it_was():
    values = np.array([1.0, math.nan, 99.0])
    Grid(0.0, 10.0, 100).quantise(values)
    assert values[0] == 1.0
    assert math.isnan(values[1])
    assert values[2] == 99.0


# --- Bad parameters ------------------------------------------------------------------------------

NO_NUMBERS = [math.nan, math.inf, -math.inf, "1", None, True, 1j, [1], 10**400]


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("name", ["lower", "upper"])
def test_bounds_that_are_no_finite_numbers_are_named(name, value):
    bounds = {"lower": 0.0, "upper": 1.0} | {name: value}
    with pytest.raises(ParameterError) as raised:
        Grid(**bounds, steps=10)
    assert raised.value.parameter == name


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(1, 1), (2, 1), (0.0, -0.0), (-1.7e308, 1.7e308), (0.0, 5e-324), (1e-310, 2e-310)],
)
def test_a_range_without_usable_width_is_refused(lower, upper):
    with pytest.raises(ParameterError) as raised:
        Grid(lower, upper, 10)
    assert raised.value.parameter == "upper"


@pytest.mark.parametrize("steps", [0, -1, 2**61, 1.5, True, "8", None, math.nan, 2.0])
def test_steps_that_are_no_usable_integer_are_named(steps):
    with pytest.raises(ParameterError) as raised:
        Grid(0.0, 1.0, steps)
    assert raised.value.parameter == "steps"


# --- The choice of the lattice -------------------------------------------------------------------


@given(
    st.integers(1, 2**55),
    st.floats(2.0**-60, 2.0**60),
)
def test_a_chosen_lattice_never_overflows(length, per_step):
    too_long = length * FEWEST_STEPS > LARGEST_SUM
    too_loud = FEWEST_STEPS * per_step > LARGEST_SCALE
    if too_long or too_loud:
        with pytest.raises(ParameterError) as raised:
            choose_steps(length, per_step)
        assert raised.value.parameter == ("length" if too_long else "epsilon")
        return
    steps = choose_steps(length, per_step)
    assert steps & (steps - 1) == 0
    assert steps >= FEWEST_STEPS
    assert steps * length <= LARGEST_SUM
    assert steps * per_step <= LARGEST_SCALE
    # As fine as asked for, unless the next finer one would not fit.
    wanted = steps >= max(USUAL_STEPS, length)
    assert wanted or 2 * steps * length > LARGEST_SUM or 2 * steps * per_step > LARGEST_SCALE


def test_usual_streams_get_the_usual_lattice():
    assert choose_steps(150_000, 18.0) == USUAL_STEPS
    assert choose_steps(25_000_000, 25.0) == 2**25
    assert UNKNOWN_LENGTH_CAP == 2**40
    assert choose_steps(1000, 41.0) == 2**20
    assert choose_steps(UNKNOWN_LENGTH_CAP, 41.0) >= FEWEST_STEPS


@pytest.mark.parametrize("length", [0, -1, 1.5, "10", True, None, math.nan])
def test_a_length_that_is_no_length_is_named(length):
    with pytest.raises(ParameterError) as raised:
        choose_steps(length, 1.0)
    assert raised.value.parameter == "length"


def test_a_length_that_would_overflow_is_refused_with_the_largest():
    largest = LARGEST_SUM // FEWEST_STEPS
    assert choose_steps(largest, 1.0) == FEWEST_STEPS
    with pytest.raises(ParameterError, match=f"{largest:,}"):
        choose_steps(largest + 1, 1.0)


@pytest.mark.parametrize("per_step", [2.0**29, math.inf])
def test_noise_that_does_not_fit_is_refused_by_its_budget(per_step):
    with pytest.raises(ParameterError) as raised:
        choose_steps(10, per_step)
    assert raised.value.parameter == "epsilon"


def test_public_bounds_leave_room_for_a_range_learned_later():
    """Nothing can be refused once data are seen: the smallest learned range must be usable too."""
    narrow = 1 / LARGEST_BOUND
    check_range(0.0, narrow)
    Grid(0.0, narrow * SMALLEST_PART, 2**60)
    for lower, upper in (
        (0.0, narrow * 0.99),
        (0.0, LARGEST_BOUND * 1.01),
        (-LARGEST_BOUND * 1.01, 0.0),
        (LARGEST_BOUND * 1.01, LARGEST_BOUND * 1.02),
    ):
        with pytest.raises(ParameterError, match="another unit") as raised:
            check_range(lower, upper)
        assert raised.value.parameter == "upper"
