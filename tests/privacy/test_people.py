"""Persons: brute force over all that one of them may add, and a likelihood audit.

The statements are those of docs/proofs/people.md: neighbours differ in all of a person's
observations that are used, in the warm-up and after it, in several segments, looks and keys.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest

import rillet.plan.calibrate
from helpers.streams import looks_back, made
from rillet import Person, Plan
from rillet.audit.replay import by_clock, log_ratio, paid
from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.privacy import Cost, delta_at, gaussian_mu
from rillet.statistic import STATISTICS
from rillet.strategy import STRATEGIES, Contributions
from rillet.threshold import FixedThreshold, TailHistogram

TICKS, LAG = 14, 4
INF = math.inf
#: What others add: it makes no difference, but for leaves that saturate.
OTHERS = [(1, 40.0), (3, 99.0), (5, -INF), (8, 7.0), (8, 55.0), (13, 20.0)]
THRESHOLDS = {"fixed": FixedThreshold(), "tail": TailHistogram(growth=1.5)}


def strategies() -> list[Any]:
    found = []
    for name, law in product(STRATEGIES.names(), ("laplace", "gaussian")):
        try:
            found.append(made(name, law=law))
        except ParameterError:
            continue  # some take one law only
    return found


def plan_of(shape: str, strategy: Any, most: int = 3, apart: int = 2, **more: Any) -> Plan:
    statistic, threshold = shape.split("-")
    memory = looks_back(strategy, lambda leaves: f"{int(leaves)}h")
    fields: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 0.0 if strategy.law == "laplace" else 2.0**-20,
        "lower": -20.0,
        "upper": 100.0,
        "every": "1h",
        "start": "2026-01-01T00:00Z",
        "length": f"{TICKS}h",
        "statistic": STATISTICS.get(statistic, "statistic")(**memory),
        "strategy": strategy,
        "threshold": THRESHOLDS[threshold],
        "unit": Person(most=most, apart=f"{apart}h"),
        **({"lag": LAG} if threshold != "fixed" else {}),
        **more,
    }
    return Plan(**fields)


def ticks_of_a_person(most: int, apart: int) -> list[tuple[int, ...]]:
    """All sets of ticks that the gate lets through."""
    return [
        ticks
        for count in range(1, most + 1)
        for ticks in combinations(range(1, TICKS + 1), count)
        if all(b - a >= apart for a, b in pairwise(ticks))
    ]


def promised(layout: Layout) -> Cost:
    """All that a person may pay: pure, or Gaussian."""
    guarantee = layout.guarantee
    if guarantee.delta == 0:
        return Cost.pure(Fraction(guarantee.epsilon))
    return Cost.gaussian(Fraction(gaussian_mu(guarantee)) ** 2)


def paid_share(layout: Layout, found: Any) -> float:
    whole = promised(layout)
    if whole.mu_squared:
        assert not found.epsilon  # nothing pure is left beside Gaussian noise
        return float(found.mu_squared / whole.mu_squared)
    return float(found.epsilon / whole.epsilon)


def largest_share(layout: Layout, most: int, apart: int, chosen: int, seed: int = 1) -> float:
    """The largest part of the promise that a person can be made to pay, of some of all ways."""
    random = np.random.default_rng(seed)
    base = by_clock(layout, OTHERS)
    ways = ticks_of_a_person(most, apart)
    dense = [way for way in ways if way[-1] - way[0] == apart * (len(way) - 1) and len(way) == most]
    picked = [ways[i] for i in random.permutation(len(ways))[:chosen]]
    largest = 0.0
    for ticks in {*dense, *picked}:
        signs = [(INF,) * len(ticks), tuple(random.choice([INF, -INF, 30.0], len(ticks)))]
        for values in signs:
            other = by_clock(layout, [*zip(ticks, values, strict=True), *OTHERS], base)
            assert other.public() == base.public()
            largest = max(largest, paid_share(layout, paid(layout, base, other)))
    return largest


SHAPES = [*product(["mean-fixed", "mean-tail"], strategies()), ("sum-tail", made("binary-tree"))]


@pytest.mark.parametrize(
    ("shape", "strategy"), SHAPES, ids=lambda p: p if isinstance(p, str) else f"{p.name}-{p.law}"
)
def test_a_person_pays_no_more_than_is_promised(shape, strategy):
    """Signs and sizes, side by side and apart, in the warm-up, in every segment and look."""
    most, apart = 3, 2
    layout = plan_of(shape, strategy, most, apart).layout
    if shape.endswith("tail"):
        assert len(layout.segments) >= 2
        assert all(segment.look is not None for segment in layout.segments)
    share = largest_share(layout, most, apart, chosen=25)
    assert share <= 1.0
    assert share > 0.3  # what trees give away: they charge group privacy


@pytest.mark.parametrize(("most", "apart"), [(2, 10), (3, 6), (3, 5), (7, 2), (14, 1)])
@pytest.mark.parametrize("name", sorted(STRATEGIES.own))
def test_a_person_who_fits_only_with_the_warm_up_pays_no_more(name, most, apart):
    """More of them than there is room for after the warm-up: some are in it."""
    for law in ("gaussian", "laplace"):
        try:
            strategy = made(name, law=law)
        except ParameterError:
            continue
        layout = plan_of("mean-tail", strategy, most, apart).layout
        assert largest_share(layout, most, apart, chosen=4) <= 1.0


@pytest.mark.parametrize("apart", [1, 3])
def test_the_charge_is_no_larger_than_it_must_be(apart):
    """Nearly all of it can be paid, though columns count as if they went on past the end."""
    layout = plan_of("mean-fixed", made("buffered-toeplitz"), 3, apart).layout
    assert largest_share(layout, 3, apart, chosen=0) > 0.85


@pytest.mark.parametrize("shape", ["mean-fixed", "mean-tail"])
@pytest.mark.parametrize("name", ["buffered-toeplitz", "binary-tree", "decayed-toeplitz"])
def test_a_person_in_several_keys_pays_no_more(shape, name):
    """Every division of three observations over two keys."""
    law = "laplace" if name == "binary-tree" else "gaussian"
    layout = plan_of(shape, made(name, law=law), keys=["a", "b"]).layout
    base = by_clock(layout, OTHERS)
    random = np.random.default_rng(2)
    ways = [way for way in ticks_of_a_person(3, 2) if len(way) == 3]
    for index in random.permutation(len(ways))[:12]:
        for keys in product("ab", repeat=2):
            total = 0.0
            for key in "ab":
                own = [(t, INF) for t, k in zip(ways[index], ("a", *keys), strict=True) if k == key]
                if own:
                    found = paid(layout, base, by_clock(layout, own + OTHERS, base))
                    total += paid_share(layout, found)
            assert total <= 1.0


def test_what_is_broken_is_seen(monkeypatch):
    """One observation's charge, and looks that count one, do not do for a person."""
    strategy, honest = made("buffered-toeplitz"), TailHistogram.count_sensitivity

    def of_one(self: Any, law: str, *, added: bool = False) -> Fraction:
        return honest(self, law, added=added) / 9

    with monkeypatch.context() as patch:
        patch.setattr(TailHistogram, "count_sensitivity", of_one)
        assert largest_share(plan_of("mean-tail", strategy).layout, 3, 2, chosen=25) > 1.05
    with monkeypatch.context() as patch:
        patch.setattr(rillet.plan.calibrate, "contributions_of", lambda _: Contributions())
        assert largest_share(plan_of("mean-fixed", strategy).layout, 3, 2, chosen=0) > 1.5


def test_spacing_is_counted_as_declared():
    """Closer than declared they pay more than was charged."""
    layout = plan_of("mean-fixed", made("buffered-toeplitz"), 3, 5).layout
    assert largest_share(layout, 3, 1, chosen=0) > 1.05


@pytest.mark.parametrize("shape", ["mean-fixed", "mean-tail"])
def test_the_most_exposed_person_stays_below_the_claim(shape):
    """δ̂ of the likelihood ratio at the promised ε over many runs of the worst person."""
    strategy = made("buffered-toeplitz")
    layout = plan_of(shape, strategy, delta=0.01).layout
    ticks = (LAG + 1, LAG + 3, LAG + 5)
    person = [(tick, INF) for tick in ticks]
    ratios = []
    for secret in range(60):
        one = by_clock(layout, person + OTHERS, secret=Secret.for_tests(secret))
        two = by_clock(layout, OTHERS, one, secret=Secret.for_tests(secret))
        ratios.append(log_ratio(one, two))
    losses = np.maximum(0.0, 1 - np.exp(1.0 - np.array(ratios)))
    claimed = float(delta_at(1.0, promised(layout)))
    assert losses.mean() <= claimed + 4 * losses.std() / math.sqrt(len(losses))
    # The ratio is that of a Gaussian mechanism: mean μ²/2, variance μ².
    mu = math.sqrt(float(promised(layout).mu_squared))
    assert abs(np.mean(ratios) - mu**2 / 2) < 4 * mu / math.sqrt(len(ratios))


def test_group_privacy_is_never_cheaper():
    """Spacing makes a person cheaper than as many strangers together."""
    one = plan_of("mean-fixed", made("buffered-toeplitz"), most=1).layout.main
    assert one is not None
    for most, apart in ((3, 1), (3, 3), (5, 2)):
        main = plan_of("mean-fixed", made("buffered-toeplitz"), most, apart).layout.main
        assert main is not None
        ratio = main.scale / main.steps / (one.scale / one.steps)
        assert math.sqrt(most) < ratio < most
