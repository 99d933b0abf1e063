"""Privacy: the guarantee, what things cost, and what each observation is charged."""

from rillet.privacy.charges import Charge, Charges, Event
from rillet.privacy.costs import (
    Cost,
    delta_at,
    gaussian_mu,
    gaussian_std,
    laplace_scale,
    root_down,
    root_up,
    round_down,
    round_up,
)
from rillet.privacy.guarantee import (
    ADD_ONE,
    REPLACE_ONE,
    SMALLEST_EPSILON,
    Guarantee,
    check_delta,
    check_epsilon,
)
from rillet.privacy.units import UNITS, Person

__all__ = [
    "ADD_ONE",
    "REPLACE_ONE",
    "SMALLEST_EPSILON",
    "UNITS",
    "Charge",
    "Charges",
    "Cost",
    "Event",
    "Guarantee",
    "Person",
    "check_delta",
    "check_epsilon",
    "delta_at",
    "gaussian_mu",
    "gaussian_std",
    "laplace_scale",
    "root_down",
    "root_up",
    "round_down",
    "round_up",
]
