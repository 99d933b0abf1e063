"""Every strategy that a plan can name keeps the contract, with either noise it offers."""

from typing import Any

import pytest

from rillet.errors import ParameterError
from rillet.statistic import Leaf, Statistic
from rillet.strategy import STRATEGIES, Strategy
from rillet.strategy.base import Decoder, Encoder, Stepper
from rillet.testing import check_strategy
from rillet.threshold import Threshold

#: Encoders in fixed point round every node, so a decoded sum is off by a few lattice units.
ROUNDS = {
    "linear": False,
    "tight": False,
    "tolerance": 4.0,
    "variance_tolerance": 1e-6,
    "largest_leaf": 2**20,
    "max_leaves": 6,
}
#: What a strategy may be allowed, by name; an integer tree needs nothing.
ALLOWED: dict[str, dict[str, Any]] = {
    "buffered-toeplitz": ROUNDS,
    "square-root-toeplitz": ROUNDS,
    "decayed-toeplitz": ROUNDS,
    "window-toeplitz": ROUNDS,
    "decayed-independent": {"tolerance": 2.0**-8, "variance_tolerance": 1e-6},
    "restarted-tree": {"tight": False},  # its tree is that of a whole window
    "honaker-tree": {"tight": False, "variance_tolerance": 1e-6},
}
#: Options without a default.
MADE_WITH: dict[str, dict[str, Any]] = {
    "decayed-toeplitz": {"half_life": 3.5},
    "decayed-independent": {"half_life": 3.5},
    "restarted-tree": {"window": 4, "arity": 3},
    "window-toeplitz": {"window": 3},
}


def offered() -> list[Strategy]:
    found = []
    for name, kind in STRATEGIES.own.items():
        for law in ("laplace", "gaussian"):
            try:
                found.append(kind(law=law, **MADE_WITH.get(name, {})))
            except ParameterError:
                continue
    return found


@pytest.mark.parametrize("strategy", offered(), ids=lambda s: f"{s.name}-{s.law}")
def test_the_contract_is_kept(strategy):
    check_strategy(strategy, **ALLOWED.get(strategy.name, {}))


def test_every_strategy_is_tried():
    assert {strategy.name for strategy in offered()} == set(STRATEGIES.own)


@pytest.mark.parametrize(
    ("base", "needed"),
    [
        (Encoder, {"start", "encode"}),
        (Decoder, {"start", "decode"}),
        (Stepper, {"step", "states"}),
        (Strategy, {"sensitivity", "encoder", "decoder", "weights"}),
        (Threshold, {"cost", "measure"}),
        (Leaf, {"contribute", "moves", "units"}),
        (Statistic, {"numbers"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_part_that_lacks_what_is_needed_cannot_be_made(base, needed):
    whole = {name: lambda *_: None for name in needed}
    type("Whole", (base,), whole)()
    for name in needed:
        part = type("Part", (base,), {other: whole[other] for other in needed - {name}})
        with pytest.raises(TypeError, match=name):
            part()
