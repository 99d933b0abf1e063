"""A plan that makes no sense is refused by name, before there is a secret to draw from."""

import gc
import math

import pytest

from rillet import ParameterError, Plan, Secret
from rillet.noise import Keystream

WRONG = {
    "epsilon": [0, -1, math.nan, math.inf, True, "1", None, 10**400, 5e-324],
    "delta": [-1e-9, 1, 1.0, 2, math.nan, True, "0"],
    "lower": [math.nan, math.inf, "0", True, -(10**400)],
    "upper": [math.nan, math.inf, -1.0, 0.0, "1", True, 10**400, 5e-324],
    "length": [0, -1, 2**70, 1.5, True, "10", math.nan],
    "every": [0, -1, 1.5, True, "1"],
}
RIGHT = {"epsilon": 1.0, "upper": 3000.0, "length": 150_000}


def live_secrets() -> int:
    """How many objects could be drawn from."""
    # By type, not isinstance: among all objects are weak references to some that are gone.
    return sum(type(thing) in (Secret, Keystream) for thing in gc.get_objects())


@pytest.mark.parametrize(
    "make", [Plan.baseline, Plan.paper, Plan], ids=["baseline", "paper", "best"]
)
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in WRONG.items() for value in values],
    ids=lambda value: str(value)[:12],
)
def test_a_wrong_parameter_is_named_and_nothing_is_drawn(make, name, value):
    promise = {} if make is Plan.baseline else {"delta": 2.0**-20}
    before = live_secrets()
    with pytest.raises(ParameterError) as raised:
        make(**(RIGHT | promise | {name: value}))
    assert raised.value.parameter == name
    assert str(raised.value).startswith(name)
    assert live_secrets() <= before  # fewer where something of before was collected meanwhile


def test_what_could_be_drawn_from_is_counted():
    before = live_secrets()
    stream = Plan.baseline(**RIGHT).open(secret=Secret.for_tests(1))
    assert live_secrets() > before
    assert stream.t == 0


def test_bounds_in_the_wrong_order_are_named():
    for lower in (3000.0, 5000.0):
        with pytest.raises(ParameterError) as raised:
            Plan.baseline(**(RIGHT | {"lower": lower}))
        assert raised.value.parameter == "upper"
