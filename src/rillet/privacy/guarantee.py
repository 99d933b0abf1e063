"""What is promised: ε, δ, and whom they protect.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from rillet.errors import ParameterError

#: No smaller ε is promised: its noise fits no lattice, and formulas would divide by nothing.
SMALLEST_EPSILON: Final = 2.0**-40
REPLACE_ONE: Final = "the value of any one observation (replace-one, event level)"
ADD_ONE: Final = "any one observation and that it is there (add or remove one, event level)"


def check_epsilon(epsilon: object, name: str = "epsilon") -> float:
    """Refuse anything but a positive finite number."""
    number = plain_number(epsilon)
    if not 0 < number < math.inf:
        raise ParameterError(name, "a positive finite number", epsilon)
    return number


def check_delta(delta: object, name: str = "delta") -> float:
    """Refuse anything but a number with 0 ≤ delta < 1."""
    number = plain_number(delta)
    if not 0 <= number < 1:
        raise ParameterError(name, "a number with 0 <= delta < 1", delta)
    return number


def plain_number(value: object) -> float:
    """The value as a float; NaN, which every check refuses, when it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy: ``P(M(x) ∈ S) ≤ e^ε · P(M(x′) ∈ S) + δ`` for neighbours x, x′.

    Examples
    --------
    >>> print(Guarantee(1.0, 2**-20, protects="one reading"))
    (1, 9.54e-07)-differential privacy for one reading
    """

    epsilon: float
    delta: float = 0.0
    protects: str = REPLACE_ONE

    def __post_init__(self) -> None:
        epsilon = check_epsilon(self.epsilon)
        if epsilon < SMALLEST_EPSILON:
            expected = f"a number of at least {SMALLEST_EPSILON:.2g}"
            hint = "noise for less would drown any data"
            raise ParameterError("epsilon", expected, self.epsilon, hint=hint)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", check_delta(self.delta))

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:.3g})-differential privacy for {self.protects}"
